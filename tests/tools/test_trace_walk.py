"""The tracer of `tools/trace_walk.py`, and how far one operation may be spread over files."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def traced_counts() -> dict[str, tuple[int, int]]:
    """Files and switches of each walk, from the interpreted source."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "tools.trace_walk"]
    out = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = re.findall(r"^(.+): .* (\d+) files, (\d+) switches$", out, re.MULTILINE)
    return {name: (int(files), int(switches)) for name, files, switches in found}


def test_a_newcomer_can_follow_a_frame_a_send_and_a_packet_through_few_files() -> None:
    counts = traced_counts()
    files, switches = counts["one received frame"]
    assert files <= 10
    assert switches <= 30
    files, _ = counts["one send"]
    assert files <= 9
    files, _ = counts["one packet"]
    assert files <= 50
