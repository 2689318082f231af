"""The examples in the README and the docs run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for page in PAGES:
        for number, match in enumerate(re.finditer(r"```python\n(.*?)```", page.read_text(), re.S)):
            found.append((f"{page.relative_to(ROOT)} {number + 1}", match[1]))
    return found


@pytest.mark.parametrize(("where", "code"), examples(), ids=lambda value: str(value)[:40])
def test_an_example_runs(where: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, f"{where}:\n{done.stderr}"
    assert done.stdout, f"{where} printed nothing"
