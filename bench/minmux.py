"""Minmux: bulk, small writes, a thousand streams; beside raw TCP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

from bench import harness
from bench.alternating_runs import Act, Candidate, Workload, compare
from bench.harness import Result
from bench.peer_process import start_peer
from bench.peer_process_work import ORDER_STREAM_ID, ORDER_STRUCT
from bench.raw_actions import raw_tcp, tcp_bulk

# name, bytes, bytes of a write, streams, required share of raw TCP
LINES = (
    ("bulk, 1 stream", 32_000_000, 65536, 1, 0.25),
    ("64 B writes, 1 stream", 1_024_000, 64, 1, None),
    ("bulk, 100 streams", 16_000_000, 16384, 100, None),
    ("bulk, 1,000 streams", 16_000_000, 16000, 1000, 0.2),
)
OPENINGS = (("first write to last word, 1 in flight", 200, 1),
            ("first write to last word, 100 in flight", 2000, 100))  # fmt: skip


def measure() -> list[Result]:
    return asyncio.run(measure_all())


async def measure_all() -> list[Result]:
    lines: list[Result] = []
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(start_peer())
        tally = await stack.enter_async_context(raw_tcp(other, "tally"))
        session = await stack.enter_async_context(other.connect("minmux"))
        ids = itertools.count(3, 2)
        for name, amount, size, streams, target in LINES:
            byte_count = harness.EFFORT.scaled(amount, size * streams)
            candidates = [
                Candidate("polymux", bulk(session, ids, byte_count, size, streams), other.pids),
                Candidate("raw TCP", tcp_bulk(tally, byte_count, size), other.pids, target),
            ]
            work = Workload(byte_count / 1e6, "MB/s")
            if size < 1024:
                work = Workload(byte_count / size / 1e3, "1000/s")
            lines.append(await compare(f"Minmux, {name}", candidates, work))
        for name, amount, flight in OPENINGS:
            count = harness.EFFORT.scaled(amount, flight)
            ours = openings(session, ids, count, flight)
            candidates = [Candidate("polymux", ours, other.pids)]
            lines.append(await compare(f"Minmux, {name}", candidates, Workload(count, "1/s")))
    return lines


async def request_streams(session: Any, what: bytes, ids: Iterator[int], count: int) -> list[int]:
    """Tell the peer process to read or echo the next `count` streams. Return their ids."""
    numbers = [next(ids) for _ in range(count)]
    await session.sender(ORDER_STREAM_ID).send(ORDER_STRUCT.pack(what, numbers[0], count))
    return numbers


async def push(session: Any, number: int, byte_count: int, size: int) -> None:
    """Wait until both sides have stopped; the reader stops when it has read everything."""
    sender = session.sender(number)
    piece = bytes(size)
    for _ in range(max(1, byte_count // size)):
        await sender.send(piece)
    await sender.end()
    await sender.wait_over()


def bulk(session: Any, ids: Iterator[int], byte_count: int, size: int, streams: int) -> Act:
    async def act() -> float:
        start = time.perf_counter()
        numbers = await request_streams(session, b"r", ids, streams)
        await asyncio.gather(*(push(session, n, byte_count // streams, size) for n in numbers))
        return time.perf_counter() - start

    return act


def openings(session: Any, ids: Iterator[int], count: int, flight: int) -> Act:
    """Streams of one write each. Minmux has no opening: the peer grants credit first."""

    async def some(share: int) -> None:
        for _ in range(share):
            (number,) = await request_streams(session, b"r", ids, 1)
            await push(session, number, 16, 16)

    async def act() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(some(count // flight) for _ in range(flight)))
        return time.perf_counter() - start

    return act
