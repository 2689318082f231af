"""polymux at both ends against the npm packages at both ends: the same work in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.interop import peer as peers
from tests.interop.peer import Peer, PeerFailed

import polymux

from .harness import ROUNDS, Floor, Line, Times

Act = Callable[[], Awaitable[float]]  # seconds

# name, octets, octets of a write, streams
BULK = (
    ("bulk, 1 stream", 16_000_000, 65536, 1),
    ("bulk, 100 streams", 16_000_000, 16384, 100),
    ("100-octet messages", 2_000_000, 100, 1),
)
OPENINGS = (("open and close, 1 in flight", 100, 1), ("open and close, 100 in flight", 600, 100))
PINGS = 60
PACKAGES = {"mplex": ("multiplex", "libp2p-mplex"), "nerdbank": ("nerdbank",)}


class Failed(Exception):
    """A package could not do it; the text says what happened."""


async def pair_lines(ports: dict[str, int]) -> list[Line]:
    reason = peers.missing()
    if reason is not None:
        print(f"live: without the npm peers: {reason}")
    print("live: PyPI's libp2p is not measured: it brings over fifty packages")
    lines: list[Line] = []
    for protocol in ("mplex", "nerdbank"):
        packages = PACKAGES[protocol] if reason is None else ()
        async with contextlib.AsyncExitStack() as stack:
            url = f"tcp://127.0.0.1:{ports[protocol]}"
            session = await stack.enter_async_context(polymux.connect(url, protocol=protocol))
            sides = [await stack.enter_async_context(couple(name)) for name in packages]
            for name, octets, size, streams in BULK:
                acts: dict[str, Act] = {"polymux": bulk(session, octets, size, streams)}
                for side in sides:
                    acts[f"npm {side.script}"] = npm_bulk(side, octets, size, streams)
                lines.append(await compare(f"{protocol}, {name}", acts, octets / 1e6, "MB/s", 1.0))
            for name, count, flight in OPENINGS:
                acts = {"polymux": openings(session, count, flight)}
                for side in sides:
                    if side.script != "libp2p-mplex":  # ends a session that opens six a second
                        acts[f"npm {side.script}"] = npm_openings(side, count, flight)
                lines.append(await compare(f"{protocol}, {name}", acts, count, "1/s", 1.0))
            echoing = [side for side in sides if side.script != "libp2p-mplex"]
            lines += await pings(protocol, session, echoing)
    return lines


@contextlib.asynccontextmanager
async def couple(script: str) -> AsyncIterator[Peer]:
    """An npm package connected to itself in another process: the dialing side."""
    async with Peer.listen(script) as acceptor, Peer.connect(script, acceptor.port) as dialer:
        await acceptor.event("session")
        await dialer.event("session")
        await acceptor.call("mode", incoming="sink", quiet=True)
        await acceptor.call("mode", incoming="echo", name="echo", quiet=True)
        await acceptor.call("mode", incoming="echo", name="stream", quiet=True)
        yield dialer


async def compare(name: str, acts: dict[str, Act], amount: float, unit: str, scale: float) -> Line:
    """Interleaved; a package that fails is said and left out."""
    times: dict[str, Times] = {key: Times() for key in acts}
    for turn in range(ROUNDS + 1):
        keys = list(acts)
        shift = turn % len(keys)
        for key in keys[shift:] + keys[:shift]:
            cpu = time.process_time()
            try:
                seconds = await acts[key]()
            except PeerFailed as problem:
                print(f"live: {name}: {key} failed: {str(problem).splitlines()[0][:160]}")
                del acts[key]
                continue
            if turn > 0:
                times[key].add(seconds, time.process_time() - cpu)
    floors = [Floor(key, times[key]) for key in acts if key != "polymux"]
    return Line(name, times["polymux"], amount, unit, floors, "wall", scale)


# --- polymux


async def push(session: Any, octets: int, size: int) -> None:
    """Open a stream, send, end, and wait until the other side has ended it too."""
    stream = await session.open("bulk")
    payload = bytes(size)
    if size < 1024:
        batch = [payload] * (65536 // size)
        for _ in range(octets // (size * len(batch))):
            stream.send_many(batch)
            await stream.drain()
    else:
        for _ in range(octets // size):
            await stream.send(payload)
    await stream.end()
    async for _ in stream:
        pass


def bulk(session: Any, octets: int, size: int, streams: int) -> Act:
    async def act() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(push(session, octets // streams, size) for _ in range(streams)))
        return time.perf_counter() - start

    return act


def openings(session: Any, count: int, flight: int) -> Act:
    async def some(share: int) -> None:
        for _ in range(share):
            stream = await session.open("stream")
            await stream.end()
            async for _ in stream:
                pass

    async def act() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(some(count // flight) for _ in range(flight)))
        return time.perf_counter() - start

    return act


# --- npm


def npm_bulk(side: Peer, octets: int, size: int, streams: int) -> Act:
    async def act() -> float:
        reply = await side.call("blast", octets=octets, size=size, streams=streams, timeout=60)
        return float(reply["seconds"])

    return act


def npm_openings(side: Peer, count: int, flight: int) -> Act:
    async def act() -> float:
        reply = await side.call("openclose", count=count, in_flight=flight, timeout=60)
        return float(reply["seconds"])

    return act


# --- small messages beside bulk


async def our_pings(session: Any) -> list[float]:
    stream = await session.open("echo")
    load = asyncio.create_task(push(session, 48_000_000, 65536))
    found = []
    for _ in range(PINGS):
        start = time.perf_counter()
        await stream.send(bytes(16))
        got = 0
        while got < 16:
            got += len(await stream.receive())
        found.append(time.perf_counter() - start)
        if load.done():
            break
    await load
    await stream.end()
    return found


async def npm_pings(side: Peer) -> list[float]:
    opened = await side.call("open", names=["echo"])
    number = opened["streams"][0]["stream"]
    load = side.begin("blast", octets=24_000_000, size=65536)
    found = []
    for _ in range(PINGS):
        reply = await side.call("ping", stream=number, timeout=30)
        found.append(float(reply["seconds"]))
        if load.done():
            break
    await side.result(load, timeout=60)
    await side.call("end", stream=number)
    return found


async def pings(protocol: str, session: Any, sides: list[Peer]) -> list[Line]:
    """Round trips of 16 octets while another stream sends all it can."""
    middle: dict[str, Times] = {"polymux": Times(), **{f"npm {s.script}": Times() for s in sides}}
    worst: dict[str, Times] = {key: Times() for key in middle}
    for _ in range(ROUNDS):
        for key, side in [("polymux", None), *((f"npm {s.script}", s) for s in sides)]:
            cpu = time.process_time()
            found = await (our_pings(session) if side is None else npm_pings(side))
            spent = (time.process_time() - cpu) / len(found)
            middle[key].add(statistics.median(found), spent)
            worst[key].add(sorted(found)[len(found) * 99 // 100], spent)
    lines = []
    for name, times in (("p50", middle), ("p99", worst)):
        floors = [Floor(key, times[key]) for key in times if key != "polymux"]
        title = f"{protocol}, ping beside bulk, {name}"
        lines.append(Line(title, times["polymux"], 1000, "µs", floors, "wall"))
    return lines
