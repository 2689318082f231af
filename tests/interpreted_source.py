"""Programs that run with the source instead of the compiled package, to change what it does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_interpreted(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments. Methods of compiled classes cannot be replaced."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip
