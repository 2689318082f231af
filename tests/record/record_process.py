"""`polymux record` as a child process, as users run it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

import pytest

POLYMUX = (sys.executable, "-c", "from polymux.cli import main; main()")


class Child:
    """A proxy that listens on a free port; use as a context, which kills it if it still runs.

    `url` and `port` say where; `lines` has what it wrote to standard error so far.
    """

    def __init__(self, *arguments: str, before: Sequence[str] = ()) -> None:
        self._command = (*before, *POLYMUX, "record", *arguments)
        self.lines: list[str] = []
        self.url = ""
        self.process: asyncio.subprocess.Process

    async def __aenter__(self) -> Child:
        self.process = await asyncio.create_subprocess_exec(
            *self._command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        async with asyncio.timeout(90):
            while not self.url:
                line = (await self.process.stderr.readline()).decode()
                assert line, f"the proxy did not start: {self.lines}"
                self.lines.append(line.rstrip())
                found = re.search(r"listening at (\S+),", line)
                self.url = found[1] if found else ""
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.kill()
        await self.ended()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def kill(self) -> None:
        """At once and without warning, the tracer of a traced one too."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def stop(self) -> int:
        """As a service is stopped; returns the exit code."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            code = await self.process.wait()
            await self._listening
        assert "Traceback" not in self.text
        return code

    async def said(self, text: str) -> None:
        """Wait until a line on standard error has this in it."""
        async with asyncio.timeout(60):
            while text not in self.text:
                await asyncio.sleep(0.02)

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.lines.append(line.decode().rstrip())


async def polymux(*arguments: str, before: Sequence[str] = ()) -> tuple[int, str, str]:
    """Run a command to its end: exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *before, *POLYMUX, *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(90):
        out, problems = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), problems.decode()


def strace(*faults: str, log: str = os.devnull) -> list[str]:
    """The command that runs another with these faults injected (see strace --inject); `log` gets
    a line for each call that could have failed."""
    if shutil.which("strace") is None:
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail("strace is not installed and POLYMUX_NO_SKIP=1")
        pytest.skip("strace is not installed")
    calls = ",".join(dict.fromkeys(fault.partition(":")[0] for fault in faults))
    injected = [word for fault in faults for word in ("-e", f"inject={fault}")]
    return ["strace", "-qq", "-f", "-o", log, "-e", f"trace={calls}", *injected]
