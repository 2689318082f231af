"""Take the picture of the report for the README: `python -m tools.screenshot demo-out`."""

import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parent.parent / "docs" / "report.png"


def main(folder: str) -> None:
    page = Path(folder, "tables", "report.html").resolve()
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={profile}", "--window-size=1200,900", "--hide-scrollbars",
             f"--screenshot={PICTURE}", page.as_uri()],
            check=True,
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
