"""omnistreams over WebSocket: messages, many streams, openings; beside npm's and bare ones."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from bench import harness, npm
from bench.alternating_runs import Act, Candidate, Workload, compare
from bench.harness import NotMeasured, Result
from bench.peer_process import PeerProcess, start_peer
from bench.peer_process_work import DONE
from bench.raw_actions import library_bulk, raw_websocket, websocket_bulk

# name, messages, bytes of each, streams, how they are sent, required share of a bare WebSocket
LINES = (
    ("64 KiB messages", 400, 65536, 1, "send", 0.5),
    ("64 B messages, await send", 16384, 64, 1, "send", None),
    ("64 B messages, send_many", 16384, 64, 1, "send_many", 0.1),
    ("64 KiB messages, 256 streams", 512, 65536, 256, "send", None),
    ("64 B messages, 256 streams", 32768, 64, 256, "send", None),
    ("64 B messages, 256 streams, send_many", 32768, 64, 256, "send_many", None),
)
OPENINGS = (("open and end, 1 in flight", 128, 1), ("open and end, 100 in flight", 1000, 100))


def measure() -> list[Result]:
    return asyncio.run(measure_all())


async def measure_all() -> list[Result]:
    lines: list[Result] = []
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(start_peer())
        session = await stack.enter_async_context(other.connect("omnistreams"))
        floor = await stack.enter_async_context(raw_websocket(other))
        couples = []
        reason = npm.missing()
        if reason is None:
            for script in ("omnistreams", "ws"):
                couples.append(await stack.enter_async_context(npm.npm_pair(script)))
        else:
            lines.append(NotMeasured("npm omnistreams, npm ws", reason))
        for name, amount, size, streams, way, target in LINES:
            count = harness.EFFORT.scaled(amount, streams)
            candidates = [
                Candidate("polymux", bulk(session, count, size, streams, way), other.pids),
                Candidate("our bare WebSocket", websocket_bulk(floor, count, size), other.pids,
                          target),
                library(other, count, size),
            ]  # fmt: skip
            for each in couples:
                candidates.append(npm_candidate(each, count, size, streams))
            lines.append(await compare(f"omnistreams, {name}", candidates, rate(count, size)))
        for name, amount, flight in OPENINGS:
            count = harness.EFFORT.scaled(amount, flight)
            candidates = [Candidate("polymux", openings(session, count, flight), other.pids)]
            for each in couples:
                if each.dialer.script == "omnistreams":
                    act = each.openings(count, flight)
                    candidates.append(Candidate(each.name, act, each.pids, 1.0))
            lines.append(await compare(f"omnistreams, {name}", candidates, Workload(count, "1/s")))
    return lines


def rate(count: int, size: int) -> Workload:
    """Count small messages, and bytes of large ones."""
    return Workload(count / 1e3, "1000/s") if size < 1024 else Workload(count * size / 1e6, "MB/s")


def library(other: PeerProcess, count: int, size: int) -> Candidate:
    """The PyPI library `websockets`, with fewer small messages because it is slow with them."""
    some = count // 8 if size < 1024 and count >= 8 else count
    act = library_bulk(other, some, size)
    return Candidate("websockets", act, other.pids, amount=rate(some, size).amount)


def npm_candidate(couple: npm.NpmPair, count: int, size: int, streams: int) -> Candidate:
    """npm omnistreams must be slower; raw npm ws, without streams and credit, is informative."""
    if couple.dialer.script == "omnistreams":
        act = couple.one_way_bulk(count * size, size, streams=streams)
        return Candidate(couple.name, act, couple.pids, 1.0)
    return Candidate(couple.name, couple.one_way_bulk(count * size, size), couple.pids)


# polymux


async def push(session: Any, count: int, size: int, way: str) -> None:
    sender = await session.open("bulk")
    message = bytes(size)
    if way == "send":
        for _ in range(count):
            await sender.send(message)
    else:
        left = count
        while left > 0:
            await sender.drain()
            batch = min(left, max(1, sender.credit))
            sender.send_many([message] * batch)
            left -= batch
    await sender.end()


def bulk(session: Any, count: int, size: int, streams: int, way: str) -> Act:
    """Wait until the peer has confirmed that it has read every stream to its end."""

    async def act() -> float:
        start = time.perf_counter()
        pushes = [push(session, count // streams, size, way) for _ in range(streams)]
        await asyncio.gather(*pushes)
        for _ in range(streams):
            assert await session.receive_control() == DONE
        return time.perf_counter() - start

    return act


def openings(session: Any, count: int, flight: int) -> Act:
    """Open, wait for the first credit, end: like the npm peer."""

    async def some(share: int) -> None:
        for _ in range(share):
            sender = await session.open("stream")
            await sender.drain()
            await sender.end()

    async def act() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(some(count // flight) for _ in range(flight)))
        return time.perf_counter() - start

    return act
