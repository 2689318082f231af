"""The doors beside each other: pings and bulk through threads, trio and asyncio.

A speed of bulk is the median of all rounds. On loopback a round is now and then twice as fast as
the others, whenever both ends happen to take turns without waiting; the best would compare these.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from bench import harness
from bench.alternating_runs import Act, Candidate, Workload, compare
from bench.harness import Line, Result
from bench.peer_process import start_peer
from bench.peer_process_work import HANDLERS, LIMITS
from bench.raw_endpoints import COUNT_BYTES

import polymux
import polymux.anyio
import polymux.sync

PINGS = 2000  # per round; its median counts
PING_BYTES = 16
BULK_BYTES = 200_000_000
PIECE_BYTES = 65536


@dataclass
class Work:
    """The same work through one door."""

    ping: Act  # the median of many round trips
    bulk: Act  # pieces of 64 KiB on one stream, until the peer has received all of them
    raw_bulk: Act | None = None  # the same without a protocol, on a socket as the door has it


@dataclass
class Targets:
    """What a door has to reach of asyncio's speed; None: it is shown only."""

    ping: float | None
    bulk: float


TARGETS = {
    "threads": Targets(0.5, 0.8),  # a ping takes twice the time at most
    "trio": Targets(None, 0.6),
}


def measure() -> list[Result]:
    return asyncio.run(measure_all())


async def measure_all() -> list[Result]:
    lines: list[Result] = []
    async with start_peer() as other, contextlib.AsyncExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal("trio"))
        for protocol in ("mplex", "nerdbank"):
            url, text = f"tcp://127.0.0.1:{other.ports[protocol]}", HANDLERS[protocol][1]
            session = await stack.enter_async_context(other.connect(protocol))
            threads = await asyncio.to_thread(
                polymux.sync.connect, url, protocol=text, limits=LIMITS
            )
            stack.push_async_callback(asyncio.to_thread, threads.close)
            on_trio = stack.enter_context(
                portal.wrap_async_context_manager(
                    polymux.anyio.connect(url, protocol=text, limits=LIMITS)
                )
            )
            reference = Work(partial(ping, session), partial(bulk, session))
            doors = {
                "threads": Work(
                    partial(asyncio.to_thread, ping_blocking, threads),
                    partial(asyncio.to_thread, bulk_blocking, threads),
                    partial(asyncio.to_thread, raw_bulk_blocking, other.ports["tally"]),
                ),
                "trio": Work(
                    in_portal(portal, ping, on_trio),
                    in_portal(portal, bulk, on_trio),
                    in_portal(portal, raw_bulk_on_trio, other.ports["tally"]),
                ),
            }
            for name, door in doors.items():
                lines.append(await ping_line(protocol, name, door, reference, other.pids))
                lines.append(await bulk_line(protocol, name, door, reference, other.pids))
    return lines


def in_portal(
    portal: BlockingPortal, function: Callable[..., Awaitable[float]], *arguments: Any
) -> Act:
    """Run a coroutine function in the portal's event loop."""
    return partial(asyncio.to_thread, portal.call, function, *arguments)


async def ping_line(protocol: str, name: str, door: Work, reference: Work, pids: Any) -> Line:
    return await compare(
        f"{protocol}, ping through {name}, p50",
        [
            Candidate(name, door.ping, pids),
            Candidate("asyncio", reference.ping, pids, TARGETS[name].ping),
        ],
        Workload(1000, "µs", 0),
    )


async def bulk_line(protocol: str, name: str, door: Work, reference: Work, pids: Any) -> Line:
    candidates = [
        Candidate(name, door.bulk, pids),
        Candidate("asyncio", reference.bulk, pids, TARGETS[name].bulk),
    ]
    if door.raw_bulk is not None:
        candidates.append(Candidate(f"{name}, no protocol", door.raw_bulk, pids))
    line = await compare(
        f"{protocol}, bulk through {name}", candidates, Workload(bulk_bytes(), "MB/s", 1e6)
    )
    line.times = line.times.only_median()
    for floor in line.floors:
        floor.times = floor.times.only_median()
    return line


def bulk_bytes() -> int:
    return harness.EFFORT.scaled(BULK_BYTES, PIECE_BYTES)


async def ping(session: Any) -> float:
    data, found = bytes(PING_BYTES), []
    async with session.open("echo") as stream:
        for _ in range(harness.EFFORT.scaled(PINGS)):
            start = time.perf_counter()
            await stream.send(data)
            await stream.receive()
            found.append(time.perf_counter() - start)
    return statistics.median(found)


async def bulk(session: Any) -> float:
    piece = bytes(PIECE_BYTES)
    start = time.perf_counter()
    stream = await session.open("bulk")
    for _ in range(bulk_bytes() // PIECE_BYTES):
        await stream.send(piece)
    await stream.end()
    await stream.receive_all()
    return time.perf_counter() - start


def ping_blocking(session: polymux.sync.Session) -> float:
    data, found = bytes(PING_BYTES), []
    with session.open("echo") as stream:
        for _ in range(harness.EFFORT.scaled(PINGS)):
            start = time.perf_counter()
            stream.send(data)
            stream.receive()
            found.append(time.perf_counter() - start)
    return statistics.median(found)


def bulk_blocking(session: polymux.sync.Session) -> float:
    piece = bytes(PIECE_BYTES)
    start = time.perf_counter()
    stream = session.open("bulk")
    for _ in range(bulk_bytes() // PIECE_BYTES):
        stream.send(piece)
    stream.end()
    stream.receive_all()
    return time.perf_counter() - start


def raw_bulk_blocking(port: int) -> float:
    piece, count = bytes(PIECE_BYTES), bulk_bytes() // PIECE_BYTES
    with socket.create_connection(("127.0.0.1", port)) as connection:
        start = time.perf_counter()
        connection.sendall((count * PIECE_BYTES).to_bytes(COUNT_BYTES, "big"))
        for _ in range(count):
            connection.sendall(piece)
        connection.recv(1)
        return time.perf_counter() - start


async def raw_bulk_on_trio(port: int) -> float:
    piece, count = bytes(PIECE_BYTES), bulk_bytes() // PIECE_BYTES
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        start = time.perf_counter()
        await stream.send_all((count * PIECE_BYTES).to_bytes(COUNT_BYTES, "big"))
        for _ in range(count):
            await stream.send_all(piece)
        await stream.receive_some(1)
        return time.perf_counter() - start
