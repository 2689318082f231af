"""The same sessions on uvloop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Whatever is about a transport, its end, or who waits for it. The tests of the way past asyncio's
# transport, straight to its socket (test_writing), have nothing to say here.
ABOUT_TRANSPORTS = [
    "test_sessions.py", "test_ending.py", "test_bad_input.py", "test_processes.py",
    "test_adaptors.py", "test_websocket.py", "test_preamble.py",
]  # fmt: skip


def test_all_that_is_said_of_transports_holds_on_uvloop() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-rN"]
    done = subprocess.run(
        [*command, *(str(HERE / name) for name in ABOUT_TRANSPORTS)],
        env={**os.environ, "POLYMUX_LOOP": "uvloop"}, cwd=HERE.parent.parent,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    last = done.stdout.splitlines()[-1]
    assert "skipped" not in last
    assert int(last.split()[0]) > 100, last
