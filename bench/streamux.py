"""Streamux: bulk requests, small requests in flight and one at a time; beside raw TCP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from bench import harness
from bench.alternating_runs import Act, Candidate, Workload, compare
from bench.harness import Result
from bench.peer_process import start_peer
from bench.peer_process_work import SINK_MARKER
from bench.raw_actions import raw_tcp, tcp_bulk, tcp_requests

CHUNK = 65535  # largest chunk with 16 bits of length
# name, chunks, requests, required share of raw TCP
BULK = (("bulk, 1 request", 512, 1, 0.5), ("bulk, 100 requests", 600, 100, None))
SMALL_REQUEST_BYTES = 64  # bytes of a small request and of its reply
# name, requests, in flight, required share of raw TCP with a task each
REQUESTS = (
    ("64 B requests, one at a time", 300, 1, None),
    ("64 B requests, 64 in flight", 6400, 64, 0.35),
    ("64 B requests, 1,000 in flight", 8000, 1000, None),
)


def measure() -> list[Result]:
    return asyncio.run(measure_all())


async def measure_all() -> list[Result]:
    lines: list[Result] = []
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(start_peer())
        sink = await stack.enter_async_context(other.connect("streamux-sink"))
        echo = await stack.enter_async_context(other.connect("streamux"))
        tally = await stack.enter_async_context(raw_tcp(other, "tally"))
        back = await stack.enter_async_context(raw_tcp(other, "raw-echo"))
        for name, chunks, requests, target in BULK:
            count = harness.EFFORT.scaled(chunks, requests)
            size = count * CHUNK
            candidates = [
                Candidate("polymux", bulk(sink, size, requests), other.pids),
                Candidate("raw TCP", tcp_bulk(tally, size, CHUNK), other.pids, target),
            ]
            work = Workload(size / 1e6, "MB/s", note=f"{CHUNK:,} B chunks")
            lines.append(await compare(f"Streamux, {name}", candidates, work))
        for name, amount, flight, target in REQUESTS:
            count = harness.EFFORT.scaled(amount, flight)
            ours = small_requests(echo, count, flight)
            alone = tcp_requests(back, count, SMALL_REQUEST_BYTES, flight, tasks=False)
            tasks = tcp_requests(back, count, SMALL_REQUEST_BYTES, flight, tasks=True)
            candidates = [
                Candidate("polymux", ours, other.pids),
                Candidate("raw TCP, a task each", tasks, other.pids, target),
                Candidate("raw TCP, one callback", alone, other.pids),
            ]
            lines.append(await compare(f"Streamux, {name}", candidates, Workload(count, "1/s")))
    return lines


def bulk(session: Any, size: int, requests: int) -> Act:
    """Requests of many chunks, each answered with an empty reply when it was read."""
    piece = SINK_MARKER * CHUNK

    async def ask(count: int) -> None:
        async with session.exchange() as exchange:
            for _ in range(count):
                await exchange.send(piece)
            await exchange.end()
            assert await exchange.read() == b""

    async def act() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(ask(size // CHUNK // requests) for _ in range(requests)))
        return time.perf_counter() - start

    return act


def small_requests(session: Any, count: int, flight: int) -> Act:
    """`flight` tasks, each with one request at a time."""
    request = bytes(SMALL_REQUEST_BYTES)

    async def some(share: int) -> None:
        for _ in range(share):
            await session.request(request)

    async def act() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(some(count // flight) for _ in range(flight)))
        return time.perf_counter() - start

    return act
