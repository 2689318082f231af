"""Commands as child processes, as users run them, and killed as in an outage."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

POLYMUX = (sys.executable, "-c", "from polymux.cli import main; main()")


class Command:
    """`polymux ...` in a process group of its own; use as a context, which kills what still runs.

    `lines` has what it wrote to standard error so far.
    """

    def __init__(self, *arguments: str, ready: str, before: Sequence[str] = ()) -> None:
        self._command = (*before, *POLYMUX, *arguments)
        self._ready = ready
        self.lines: list[str] = []
        self.process: asyncio.subprocess.Process

    async def __aenter__(self) -> Command:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.kill()
        await self.ended()

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self._command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self._listening = asyncio.create_task(self._listen(self.process))
        before = len(self.lines)
        async with asyncio.timeout(90):
            while not any(self._ready in line for line in self.lines[before:]):
                assert self.process.returncode is None, self.text
                await asyncio.sleep(0.02)

    async def restart(self) -> None:
        """Killed without warning, and started again."""
        self.kill()
        await self.ended()
        await self.start()

    def kill(self) -> None:
        """At once, with all it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def stop(self) -> int:
        """As a service is stopped; returns the exit code."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            code = await self.process.wait()
            await self._listening
        assert "Traceback" not in self.text, self.text
        return code

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def said(self, pattern: str, seconds: float = 60) -> None:
        """Wait until what it wrote matches this."""
        async with asyncio.timeout(seconds):
            while re.search(pattern, self.text) is None:
                assert self.process.returncode is None, self.text
                await asyncio.sleep(0.02)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            self.lines.append(line.decode().rstrip())
