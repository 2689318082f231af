"""mplex, Nerdbank and yamux at both ends, beside npm, Go, py-libp2p, HTTP/2 and raw TCP.

On asyncio's own loop; work with many loop iterations also on uvloop, which uses the same library as
Node's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

from bench import go_peers, harness, loops, npm
from bench.alternating_runs import Act, Candidate, Workload, compare, required_time
from bench.delayed_relay import growing_window
from bench.harness import NotMeasured, Result
from bench.peer_process import PeerProcess, start_peer
from bench.raw_actions import raw_tcp, tcp_bulk
from bench.raw_endpoints import RawClient
from bench.third_party import ThirdPartyPair, third_party_pair
from bench.third_party import missing as guest_missing

import polymux

# name, bytes, bytes of a write, streams
BULK = (
    ("bulk, 1 stream", 16_000_000, 65536, 1),
    ("bulk, 100 streams", 16_000_000, 16384, 100),
    ("bulk, 1,000 streams", 16_000_000, 16000, 1000),
    ("100-byte messages", 2_000_000, 100, 1),
)
MANY_STREAMS = BULK[2:3]
MANY_STREAMS_SHARE = {"mplex": 0.35, "nerdbank": 0.25}  # required share of raw TCP
OPENINGS = (("open and close, 1 in flight", 150, 1), ("open and close, 100 in flight", 2000, 100))
TARGET_OPENINGS_PER_SECOND = 20_000  # mplex, 100 in flight
PACKAGES = {"mplex": ("multiplex", "libp2p-mplex"), "nerdbank": ("nerdbank",),
            "yamux": ("libp2p-yamux", "yamux-js")}  # fmt: skip
UNRELIABLE = ("yamux-js",)  # measured only if a trial of each kind of work succeeds
THIRD_PARTY_SCRIPTS = {"mplex": ("libp2p_mplex", "http2"), "nerdbank": ("http2",),
                       "yamux": ("libp2p_yamux", "http2")}  # fmt: skip
GO_LIBRARIES = ("yamux", "smux")  # beside yamux
WORK_DIVISORS = {
    "PyPI libp2p": 16,
    "h2 (HTTP/2)": 4,
    "npm libp2p-mplex": 2,
    "npm libp2p-yamux": 2,
}  # slow peers do this many times less work

ForeignPair = npm.NpmPair | ThirdPartyPair


def measure() -> list[Result]:
    lines = asyncio.run(measure_all(loops.ASYNCIO, BULK))
    if harness.chosen(["yamux"]):
        lines.append(asyncio.run(growing_window()))
    reason = loops.missing(loops.UVLOOP)
    if reason is not None:
        return [*lines, NotMeasured("mplex, nerdbank, yamux on uvloop", reason)]
    return lines + loops.run(loops.UVLOOP, measure_all(loops.UVLOOP, MANY_STREAMS))


async def measure_all(loop: str, bulk_lines: Sequence[tuple[str, int, int, int]]) -> list[Result]:
    lines: list[Result] = []
    suffix = "" if loop == loops.ASYNCIO else f", {loop}"
    async with start_peer(loop) as other:
        for protocol in harness.chosen(PACKAGES):
            async with contextlib.AsyncExitStack() as stack:
                # First, because installing a package blocks the loop: no session outlives that.
                sides = await foreign_pairs(protocol, stack, lines, loop)
                session = await stack.enter_async_context(other.connect(protocol))
                tally = await stack.enter_async_context(raw_tcp(other, "tally"))
                for name, amount, size, streams in bulk_lines:
                    candidates = bulk_candidates(
                        other, session, tally, sides, amount, size, streams
                    )
                    if streams == MANY_STREAMS[0][3]:
                        candidates[1].target = MANY_STREAMS_SHARE.get(protocol)
                    byte_count = harness.EFFORT.scaled(amount, size * streams)
                    work = Workload(byte_count / 1e6, "MB/s")
                    lines.append(await compare(f"{protocol}, {name}{suffix}", candidates, work))
                for name, amount, flight in OPENINGS:
                    count = harness.EFFORT.scaled(amount, flight)
                    candidates = opening_candidates(other, session, sides, count, flight)
                    work = Workload(count, "1/s")
                    if protocol == "mplex" and flight == 100:
                        text = f"{TARGET_OPENINGS_PER_SECOND:,}/s"
                        work.required_floors.append(
                            required_time(text, count / TARGET_OPENINGS_PER_SECOND)
                        )
                    lines.append(await compare(f"{protocol}, {name}{suffix}", candidates, work))
    return lines


async def foreign_pairs(
    protocol: str, stack: contextlib.AsyncExitStack, lines: list[Result], loop: str = loops.ASYNCIO
) -> list[ForeignPair]:
    """The third-party packages; one that is not available is a line with the reason. Those in
    Python are measured on asyncio's loop only."""
    sides: list[ForeignPair] = []
    reason = npm.missing()
    if reason is None:
        for script in PACKAGES[protocol]:
            pair = await stack.enter_async_context(npm.npm_pair(script))
            reason = await npm.failed_trial(pair) if script in UNRELIABLE else None
            if reason is None:
                sides.append(pair)
            else:
                lines.append(NotMeasured(f"{protocol}, {pair.name}", reason))
    else:
        lines.append(NotMeasured(f"{protocol}, npm peers", reason))
    for library in GO_LIBRARIES if protocol == "yamux" else ():
        reason = go_peers.missing(library)
        if reason is None:
            sides.append(await stack.enter_async_context(go_peers.go_pair(library)))
        else:
            lines.append(NotMeasured(f"yamux, {go_peers.LIBRARIES[library][0]}", reason))
    for script in THIRD_PARTY_SCRIPTS[protocol] if loop == loops.ASYNCIO else ():
        reason = guest_missing(script)
        if reason is None:
            sides.append(await stack.enter_async_context(third_party_pair(script)))
        else:
            lines.append(NotMeasured(f"{protocol}, {script}", reason))
    return sides


def target_ratio(side: ForeignPair) -> float | None:
    """Peers of the same protocol must be slower; HTTP/2 is informative."""
    return None if side.name == "h2 (HTTP/2)" else 1.0


def bulk_candidates(
    other: PeerProcess,
    session: Any,
    tally: RawClient,
    sides: list[ForeignPair],
    amount: int,
    size: int,
    streams: int,
) -> list[Candidate]:
    whole = size * streams
    byte_count = harness.EFFORT.scaled(amount, whole)
    candidates = [
        Candidate("polymux", bulk(session, byte_count, size, streams), other.pids),
        Candidate("raw TCP", tcp_bulk(tally, byte_count, size), other.pids),
    ]
    for side in sides:
        if side.name == "PyPI libp2p" and streams > 100:
            continue  # it would take a minute
        some = max(1, byte_count // WORK_DIVISORS.get(side.name, 1) // whole) * whole
        act = side.bulk(some, size, streams)
        candidates.append(Candidate(side.name, act, side.pids, target_ratio(side), some / 1e6))
    return candidates


def opening_candidates(
    other: PeerProcess, session: Any, sides: list[ForeignPair], count: int, flight: int
) -> list[Candidate]:
    candidates = [Candidate("polymux", openings(session, count, flight), other.pids)]
    for side in sides:
        if side.name != "npm libp2p-mplex":  # it closes sessions that open more than six a second
            some = max(1, count // WORK_DIVISORS.get(side.name, 1) // flight) * flight
            act = side.openings(some, flight)
            candidates.append(Candidate(side.name, act, side.pids, target_ratio(side), some))
    return candidates


# polymux


def stream_name(session: Any, name: str) -> str:
    """The name of a stream, where the protocol has names."""
    return "" if isinstance(session, polymux.YamuxSession) else name


async def push(session: Any, byte_count: int, size: int, weight: int = 1) -> None:
    """Open a stream, send, end, and wait until the peer has ended it too."""
    stream = await session.open(stream_name(session, "bulk"))
    if weight > 1:
        stream.weight = weight
    payload = bytes(size)
    if size < 1024:
        batch = [payload] * max(1, min(byte_count, 65536) // size)
        for _ in range(byte_count // (size * len(batch))):
            stream.send_many(batch)
            await stream.drain()
    else:
        for _ in range(byte_count // size):
            await stream.send(payload)
    await stream.end()
    async for _ in stream:
        pass


def bulk(session: Any, byte_count: int, size: int, streams: int) -> Act:
    async def act() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(push(session, byte_count // streams, size) for _ in range(streams)))
        return time.perf_counter() - start

    return act


def openings(session: Any, count: int, flight: int) -> Act:
    async def some(share: int) -> None:
        for _ in range(share):
            stream = await session.open(stream_name(session, "stream"))
            await stream.end()
            async for _ in stream:
                pass

    async def act() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(some(count // flight) for _ in range(flight)))
        return time.perf_counter() - start

    return act
