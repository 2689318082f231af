"""Peers for the tester: testees in this process, and bad ones."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

from polymux.testing import conform

PATIENCE = 20.0  # seconds; only a peer that fails uses them up

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def examine_testee(
    protocol: str,
    role: str = "dialer",
    names: Iterable[str] = (),
    *,
    level: int = 2,
    timeout: float = PATIENCE,
    captures: Path | None = None,
    jobs: int = 1,
) -> conform.Results:
    """Examine the testee of this process."""
    if role == "dialer":
        async with await conform.serve_testee("tcp://127.0.0.1:0", protocol) as server:
            return await conform.run_async(
                server.url, protocol, names, level=level, timeout=timeout, captures=captures,
                jobs=jobs,
            )  # fmt: skip
    dialing: list[asyncio.Task[None]] = []

    def start(url: str) -> None:
        dialing.append(asyncio.create_task(conform.dial_testee(url, protocol)))

    try:
        return await conform.run_async(
            "tcp://127.0.0.1:0", protocol, names, role=role, level=level, timeout=timeout,
            captures=captures, on_listening=start,
        )  # fmt: skip
    finally:
        for task in dialing:
            task.cancel()
        await asyncio.gather(*dialing, return_exceptions=True)


@contextlib.asynccontextmanager
async def bad_peer(serve: Serve) -> AsyncIterator[str]:
    """A peer that does what `serve` does with each connection; its URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # asyncio runs this in a task
        tasks.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended, noticed or not."""
    status = Path(f"/proc/{pid}/stat")
    latest = time.monotonic() + PATIENCE
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < latest, f"process {pid} is still there"
        time.sleep(0.02)
