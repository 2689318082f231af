"""A command in a real terminal: tmux, driven by keys and read as text."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from types import TracebackType

import pytest

POLYMUX = (sys.executable, "-c", "from polymux.cli import main; main()")
PATIENCE = 60.0  # seconds until a screen must have appeared, also on a loaded machine


def require_tmux() -> None:
    """Skip the test without tmux, or fail it where nothing may be skipped."""
    if shutil.which("tmux") is None:
        reason = "no tmux on this machine (Debian: apt install tmux)"
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


class Terminal:
    """A server of its own with one pane that runs `polymux` with these arguments.

    Use as a context, which ends the server and what runs in it. When the command has ended, the
    pane stays and shows `ended with CODE`.
    """

    def __init__(
        self, *arguments: str, size: tuple[int, int] = (80, 24), environment: str = ""
    ) -> None:
        require_tmux()
        self._server = f"polymux-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._size = size
        command = shlex.join((*POLYMUX, *arguments))
        self._script = f"{environment} {command}; echo ended with $?; exec cat"

    def __enter__(self) -> Terminal:
        columns, lines = self._size
        self._tmux(
            "-f", os.devnull, "new-session", "-d", "-x", str(columns), "-y", str(lines),
            f"sh -c {shlex.quote(self._script)}",
        )  # fmt: skip
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tmux("kill-server")

    def press(self, *keys: str) -> None:
        """Type these keys, by the names that tmux has for them."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def screen(self, *options: str) -> str:
        """What is on the screen now."""
        return self._tmux("capture-pane", "-p", *options)

    def wait(self, shows: str | Callable[[str], bool]) -> str:
        """Wait until the screen has this text, or fulfils this condition; return the screen."""
        deadline = time.monotonic() + PATIENCE
        while True:
            screen = self.screen()
            if shows in screen if isinstance(shows, str) else shows(screen):
                return screen
            if time.monotonic() > deadline:
                raise AssertionError(f"the screen never showed {shows}:\n{screen}")
            time.sleep(0.05)

    def _tmux(self, *arguments: str) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "TMUX"}
        done = subprocess.run(
            ["tmux", "-L", self._server, *arguments],
            capture_output=True, text=True, timeout=60, env={**environment, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        if arguments[0] != "kill-server":
            assert done.returncode == 0, done.stderr
        return done.stdout
