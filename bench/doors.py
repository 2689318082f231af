"""The doors beside each other: pings and bulk through threads and through asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from typing import Any

from bench import harness
from bench.alternating_runs import Candidate, Workload, compare
from bench.harness import Line, Result
from bench.peer_process import PeerProcess, start_peer
from bench.peer_process_work import HANDLERS, LIMITS

import polymux
import polymux.sync

PINGS = 2000  # per round; its median counts
PING_BYTES = 16
BULK_BYTES = 200_000_000
PIECE_BYTES = 65536
PING_TARGET = 0.5  # threads: at most twice the time of asyncio
BULK_TARGET = 0.8


def measure() -> list[Result]:
    return asyncio.run(measure_all())


async def measure_all() -> list[Result]:
    lines: list[Result] = []
    async with start_peer() as other, contextlib.AsyncExitStack() as stack:
        for protocol in ("mplex", "nerdbank"):
            session = await stack.enter_async_context(other.connect(protocol))
            url = f"tcp://127.0.0.1:{other.ports[protocol]}"
            threads = await asyncio.to_thread(
                polymux.sync.connect, url, protocol=HANDLERS[protocol][1], limits=LIMITS
            )
            stack.push_async_callback(asyncio.to_thread, threads.close)
            lines.append(await ping_line(protocol, session, threads, other))
            lines.append(await bulk_line(protocol, session, threads, other))
    return lines


async def ping_line(protocol: str, session: Any, threads: Any, other: PeerProcess) -> Line:
    """The median of many round trips."""
    count = harness.EFFORT.scaled(PINGS)
    data = bytes(PING_BYTES)
    mine, theirs = await session.open("echo"), await asyncio.to_thread(threads.open, "echo")

    async def by_asyncio() -> float:
        found = []
        for _ in range(count):
            start = time.perf_counter()
            await mine.send(data)
            await mine.receive()
            found.append(time.perf_counter() - start)
        return statistics.median(found)

    def call() -> float:
        found = []
        for _ in range(count):
            start = time.perf_counter()
            theirs.send(data)
            theirs.receive()
            found.append(time.perf_counter() - start)
        return statistics.median(found)

    async def by_threads() -> float:
        return await asyncio.to_thread(call)

    line = await compare(
        f"{protocol}, ping through threads, p50",
        [
            Candidate("threads", by_threads, other.pids),
            Candidate("asyncio", by_asyncio, other.pids, PING_TARGET),
        ],
        Workload(1000, "µs", 0),
    )
    await mine.end()
    await asyncio.to_thread(theirs.end)
    return line


async def bulk_line(protocol: str, session: Any, threads: Any, other: PeerProcess) -> Line:
    """Pieces of 64 KiB on one stream, until the peer has received all of them."""
    size = harness.EFFORT.scaled(BULK_BYTES, PIECE_BYTES)
    piece = bytes(PIECE_BYTES)

    async def by_asyncio() -> float:
        start = time.perf_counter()
        stream: polymux.Stream = await session.open("bulk")
        for _ in range(size // PIECE_BYTES):
            await stream.send(piece)
        await stream.end()
        await stream.receive_all()
        return time.perf_counter() - start

    def call() -> float:
        start = time.perf_counter()
        stream = threads.open("bulk")
        for _ in range(size // PIECE_BYTES):
            stream.send(piece)
        stream.end()
        stream.receive_all()
        return time.perf_counter() - start

    async def by_threads() -> float:
        return await asyncio.to_thread(call)

    return await compare(
        f"{protocol}, bulk through threads",
        [
            Candidate("threads", by_threads, other.pids),
            Candidate("asyncio", by_asyncio, other.pids, BULK_TARGET),
        ],
        Workload(size, "MB/s", 1e6),
    )
