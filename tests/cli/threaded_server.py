"""A peer for the commands that talk: a server in a thread of its own, and commands as processes."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import polymux

COMMAND = [sys.executable, "-c", "from polymux.cli import main; main()"]
Handler = Callable[[Any], Awaitable[None]]


@contextmanager
def served(
    handler: Handler,
    protocol: str,
    url: str = "tcp://127.0.0.1:0",
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """The URL of a server that runs `handler` for each session."""
    started = threading.Event()
    found: list[str] = []
    stop: list[Callable[[], object]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(over.set))
        async with await polymux.serve(handler, url, protocol=protocol, tls=tls) as server:
            found.append(server.url)
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert started.wait(60)
    try:
        yield found[0]
    finally:
        stop[0]()
        thread.join(60)


async def echo(session: Any) -> None:
    """Send every stream back as it comes."""
    async for stream in session.incoming:
        async for chunk in stream:
            await stream.send(chunk)
        await stream.end()


class Serving:
    """`polymux serve` as a process, listening."""

    def __init__(self, *arguments: str, stdout: int = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "serve", *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        match = re.match(r"listening at (\S+)", line)
        assert match, line + self.process.stderr.read()
        self.url = match[1]

    def wait(self) -> tuple[int, str, str]:
        """Exit code, output and errors, once it has ended."""
        out, err = self.process.communicate(timeout=100)
        return self.process.returncode, out, err

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.process.kill()
        self.process.communicate()
