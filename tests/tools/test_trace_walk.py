"""The tracer counts the calls, files and switches of one operation."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_traced_operation_passes_several_files() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.trace_walk"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = done.stdout.splitlines()
    names = [line.partition(":")[0] for line in lines]
    assert names == ["one received frame", "one send", "one packet"]
    for line in lines:
        counts = [int(number) for number in re.findall(r"(\d+) (?:calls|functions|files)", line)]
        assert counts == sorted(counts, reverse=True), line
        assert counts[-1] > 1, line
