"""The event loop that async tests run on: asyncio's own, or what POLYMUX_LOOP names (uvloop)."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

LOOP = os.environ.get("POLYMUX_LOOP", "asyncio")


def new_event_loop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = importlib.import_module(LOOP).new_event_loop()
    return loop


def pass_on_uvloop(tests: Iterable[Path], *options: str, more_than: int) -> None:
    """Run these tests on uvloop, in a process of their own: so many pass, and none is skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rN", *options]
    done = subprocess.run(
        [*command, *map(str, tests)],
        env={**os.environ, "POLYMUX_LOOP": "uvloop"}, cwd=Path(__file__).parent.parent,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    last = done.stdout.splitlines()[-1]
    assert "skipped" not in last
    assert int(last.split()[0]) > more_than, last
