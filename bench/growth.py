"""How cost grows: with streams of a session, sessions of a server, and what captures hold.

A slope is the exponent with which the CPU time of all processes grows with a size: 1 is linear, and
less than 1 is not a saving but a fixed share. Sessions are connected to one peer process by TCP.

Left out are streams of a session of omnistreams, which has 256 ids, and sessions of a server in the
other protocols: a session's tasks, buffers and place in the server are the same in all of them.
Measured are mplex, which has no handshake and no credit, and Nerdbank, which has both.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from bench import harness, session_costs
from bench.alternating_runs import cpu_seconds_of
from bench.footprint import open_idle
from bench.harness import MAX_IDLE_SLOPE, Figure, NotMeasured, Result, growth
from bench.minmux import push as push_items
from bench.minmux import request_streams
from bench.pairs import stream_name
from bench.peer_process import PeerProcess, start_peer

STREAMS = (100, 1_000, 10_000, 100_000)
SESSIONS = (10, 100, 1_000, 10_000)
PROTOCOLS = ("mplex", "nerdbank", "yamux", "streamux", "minmux")  # for streams of a session
PROTOCOLS_OF_SESSIONS = ("mplex", "nerdbank")
SMALL_RUNS = 3_000  # a size is repeated until so many streams or sessions were counted
MIN_ROUNDS = 3
CONNECTING = 64  # connections that are being made at the same time
IDLE_PINGS = 2_000
DATA = bytes(100)
SPARE_DESCRIPTORS = 256

Work = Callable[[Any, int], Coroutine[Any, Any, None]]


def measure() -> list[Result]:
    lines = asyncio.run(live_lines())
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as folder:
        return lines + session_costs.growth_lines(Path(folder))


async def live_lines() -> list[Result]:
    sessions = scaled(SESSIONS)
    short = lacking_descriptors(sessions[-1])  # before the peer is started, which inherits them
    lines: list[Result] = []
    async with start_peer() as other:
        for protocol in harness.chosen(PROTOCOLS):
            lines += await growth_with_streams(other, protocol)
        lines += await growth_with_idle_streams(other)
        if short is not None:
            return [*lines, NotMeasured("sessions of a server", short)]
        for protocol in harness.chosen(PROTOCOLS_OF_SESSIONS):
            lines += await growth_with_sessions(other, protocol, sessions)
        lines += await growth_with_idle_sessions(other, sessions)
    return lines


def scaled(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(harness.EFFORT.scaled(size) for size in sizes)


def lacking_descriptors(sessions: int) -> str | None:
    """Raise the limit of open files to what `sessions` need. Why that cannot be done, or None."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = sessions + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"{sessions:,} sessions need {needed:,} open files, and the hard limit is {hard:,}"
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return None


async def cpu_seconds(other: PeerProcess, act: Callable[[], Awaitable[None]]) -> float:
    """The CPU time of both processes."""
    gc.collect()
    before = cpu_seconds_of(other.pids)
    await act()
    return cpu_seconds_of(other.pids) - before


def rounds_for(size: int) -> int:
    return min(harness.EFFORT.rounds * MIN_ROUNDS, max(MIN_ROUNDS, SMALL_RUNS // size))


# Streams of a session


async def growth_with_streams(other: PeerProcess, protocol: str) -> list[Figure]:
    """All streams of a new session are open before the first one ends."""
    work = {"streamux": open_requests, "minmux": open_items}.get(protocol, open_streams)
    listener = "streamux-many" if protocol == "streamux" else protocol
    sizes = scaled(STREAMS)
    times = [
        min([await seconds_of(other, listener, work, size) for _ in range(rounds_for(size))])
        for size in sizes
    ]
    return growth("CPU time", f"streams of a session of {protocol}", sizes, times)


async def seconds_of(other: PeerProcess, listener: str, work: Work, size: int) -> float:
    async with other.connect(listener) as session:
        return await cpu_seconds(other, lambda: work(session, size))


async def open_streams(session: Any, count: int) -> None:
    async def opened() -> Any:
        stream = await session.open(stream_name(session, "stream"))
        await stream.send(DATA)
        return stream

    async def end(stream: Any) -> None:
        await stream.end()
        async for _ in stream:
            pass

    streams = await asyncio.gather(*(opened() for _ in range(count)))
    await asyncio.gather(*(end(stream) for stream in streams))


async def open_requests(session: Any, count: int) -> None:
    async def asked() -> Any:
        exchange = await session.open()
        await exchange.send(DATA)
        return exchange

    async def end(exchange: Any) -> None:
        await exchange.end()
        await exchange.read()

    exchanges = await asyncio.gather(*(asked() for _ in range(count)))
    await asyncio.gather(*(end(exchange) for exchange in exchanges))


async def open_items(session: Any, count: int) -> None:
    numbers = await request_streams(session, b"r", iter(range(3, 3 + 2 * count, 2)), count)
    await asyncio.gather(*(push_items(session, number, len(DATA), len(DATA)) for number in numbers))


async def growth_with_idle_streams(other: PeerProcess) -> list[Figure]:
    """The same pings, beside more and more streams that are open and idle."""
    times, sizes = [], scaled(STREAMS)
    for size in sizes:
        async with other.connect("mplex") as session:
            await open_idle("mplex", session, size)
            times.append(await seconds_of_pings(other, session))
    return growth("CPU time of pings", "idle streams of a session", sizes, times, MAX_IDLE_SLOPE)


async def seconds_of_pings(other: PeerProcess, session: Any) -> float:
    stream = await session.open("echo")

    async def ping() -> None:
        for _ in range(harness.EFFORT.scaled(IDLE_PINGS)):
            await stream.send(DATA)
            await stream.receive()

    await ping()
    return min([await cpu_seconds(other, ping) for _ in range(MIN_ROUNDS)])


# Sessions of a server


async def growth_with_sessions(
    other: PeerProcess, protocol: str, sizes: tuple[int, ...]
) -> list[Figure]:
    """All sessions are connected before the first one opens a stream, and then all end."""

    async def act(size: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            sessions = await connected(stack, other, protocol, size)
            await asyncio.gather(*(open_streams(session, 1) for session in sessions))

    times = [
        min([await cpu_seconds(other, lambda: act(size)) for _ in range(rounds_for(size))])  # noqa: B023  # called at once
        for size in sizes
    ]
    return growth("CPU time", f"sessions of a server of {protocol}", sizes, times)


async def growth_with_idle_sessions(other: PeerProcess, sizes: tuple[int, ...]) -> list[Figure]:
    """The same pings, beside more and more sessions that are idle."""
    times = []
    for size in sizes:
        async with contextlib.AsyncExitStack() as stack:
            await connected(stack, other, "mplex", size)
            session = await stack.enter_async_context(other.connect("mplex"))
            times.append(await seconds_of_pings(other, session))
    return growth("CPU time of pings", "idle sessions of a server", sizes, times, MAX_IDLE_SLOPE)


async def connected(
    stack: contextlib.AsyncExitStack, other: PeerProcess, protocol: str, size: int
) -> list[Any]:
    """New sessions, which end with `stack`."""
    sessions: list[Any] = []
    while len(sessions) < size:
        some = (
            stack.enter_async_context(other.connect(protocol))
            for _ in range(min(CONNECTING, size - len(sessions)))
        )
        sessions += await asyncio.gather(*some)
    return sessions
