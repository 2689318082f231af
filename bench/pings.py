"""Ping latency of all protocols, idle and beside bulk, with busy polling and without.

Each round trip is of 16 bytes on a stream that is open; yamux has pings of its own. A percentile
is the median of those of all rounds. The CPU time beside a latency is that of
both processes for one ping; beside bulk it is that of the bulk too. Third-party packages are
measured on asyncio's loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from typing import Any

from bench import harness, loops, npm, pairs
from bench.alternating_runs import CandidateFailed, cpu_seconds_of, required_time
from bench.fairness import PROTOCOLS, OwnProtocol, percentile
from bench.harness import Floor, Line, NotMeasured, Result, Times
from bench.peer_process import start_peer
from bench.raw_actions import raw_tcp, tcp_pings
from bench.raw_endpoints import RawClient
from tests.interop.node_peer import PeerFailed

PINGS = 300  # per round
WARM_UP_PINGS = 10  # before them, not counted
LOAD_BYTES = 32_000_000  # bulk data beside the pings
SLOW_LOAD = {"PyPI libp2p": 500_000, "h2 (HTTP/2)": 4_000_000}
MAX_PING_SECONDS = 0.005  # beside bulk, or five times the latency without
IDLE_P99_TARGET = 0.5  # of the speed of raw TCP: at most twice its latency
NAMELESS = ("npm libp2p-mplex",)  # no stream can be named `echo`
RANKS = ("p50", "p99")
RAW = "raw TCP"


def measure() -> list[Result]:
    lines = asyncio.run(measure_all(loops.ASYNCIO))
    reason = loops.missing(loops.UVLOOP)
    if reason is not None:
        return [*lines, NotMeasured("pings on uvloop", reason)]
    return lines + loops.run(loops.UVLOOP, measure_all(loops.UVLOOP))


async def measure_all(loop: str) -> list[Result]:
    lines: list[Result] = []
    async with start_peer(loop) as polling, start_peer(loop, busy_poll=0.0) as sleeping:
        for protocol in harness.chosen(PROTOCOLS):
            async with (
                OwnProtocol.connected(polling, protocol) as ours,
                OwnProtocol.connected(sleeping, protocol) as ours_sleeping,
                raw_tcp(polling, "raw-echo") as raw,
                contextlib.AsyncExitStack() as stack,
            ):
                pings = Pings(loop)
                pings.add("", ours, ours.pids)
                pings.add("busy_poll=0", ours_sleeping, ours_sleeping.pids)
                pings.add(RAW, RawPings(raw), ours.pids)
                if loop == loops.ASYNCIO:
                    for side in await foreign_pairs(protocol, stack, lines):
                        pings.add(side.name, side, side.pids)
                await pings.run()
                lines += pings.lines(protocol)
    return lines


async def foreign_pairs(
    protocol: str, stack: contextlib.AsyncExitStack, lines: list[Result]
) -> list[pairs.ForeignPair]:
    if protocol in pairs.PACKAGES:
        return await pairs.foreign_pairs(protocol, stack, lines)
    if protocol != "omnistreams":
        return []
    reason = npm.missing()
    if reason is not None:
        lines.append(NotMeasured("omnistreams, npm peers", reason))
        return []
    return [await stack.enter_async_context(npm.npm_pair("omnistreams"))]


class RawPings:
    """Pings over raw TCP; there is no stream to send bulk on beside them."""

    def __init__(self, client: RawClient) -> None:
        self.client = client

    async def pings(self, count: int, load: int) -> list[float]:
        return await tcp_pings(self.client, count)


class Pings:
    """Alternating rounds of all candidates of one protocol on one loop, idle and beside bulk."""

    def __init__(self, loop: str) -> None:
        self.suffix = "" if loop == loops.ASYNCIO else f", {loop}"
        self.candidates: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self.rounds: dict[tuple[str, bool, str], Times] = {}

    def add(self, name: str, side: Any, pids: Any) -> None:
        """Add a candidate; an empty name stands for polymux with its defaults."""
        if name not in NAMELESS:
            self.candidates[name] = side, tuple(pids)

    async def run(self) -> None:
        for turn in range(harness.EFFORT.rounds + 1):  # the first one is not counted
            for busy in (False, True):
                names = list(self.candidates)
                shift = turn % len(names)
                for name in names[shift:] + names[:shift]:
                    if not (busy and name == RAW):
                        await self.run_candidate(name, busy, turn > 0)

    async def run_candidate(self, name: str, busy: bool, counted: bool) -> None:
        side, pids = self.candidates[name]
        load = harness.EFFORT.scaled(LOAD_BYTES, 65536)
        try:
            count = harness.EFFORT.scaled(PINGS)
            cpu = cpu_seconds_of(pids)
            seconds = await side.pings(
                count + WARM_UP_PINGS, min(SLOW_LOAD.get(name, load), load) if busy else 0
            )
            cpu = max(1e-9, cpu_seconds_of(pids) - cpu) / len(seconds)
        except (CandidateFailed, PeerFailed) as problem:
            print(f"pings: {name} failed: {problem}")
            del self.candidates[name]
            return
        if counted:
            some = seconds[WARM_UP_PINGS:] or seconds
            ranks = {"p50": statistics.median(some), "p99": percentile(some)}
            for rank, value in ranks.items():
                self.rounds.setdefault((name, busy, rank), Times()).add(value, cpu)

    def median(self, name: str, busy: bool, rank: str) -> Times | None:
        """The median of all rounds: the best round would not show a tail."""
        rounds = self.rounds.get((name, busy, rank))
        return None if rounds is None else rounds.only_median()

    def lines(self, protocol: str) -> list[Line]:
        found = []
        for variant in ("", "busy_poll=0"):
            for busy in (False, True):
                for rank in RANKS:
                    times = self.median(variant, busy, rank)
                    assert times is not None  # a failure of polymux itself was raised
                    what = "ping beside bulk" if busy else "ping"
                    option = f", {variant}" if variant else ""
                    found.append(
                        Line(
                            f"{protocol}, {what}, {rank}{option}{self.suffix}",
                            times, 1000, "µs", self.floors(protocol, variant, busy, rank), "wall",
                            note=f"{times.median('cpu') * 1e6:.0f} µs CPU",
                        )
                    )  # fmt: skip
        return found

    def floors(self, protocol: str, variant: str, busy: bool, rank: str) -> list[Floor]:
        """What a line is compared with.

        Beside bulk the third-party packages of the same protocol must be slower. Their idle pings
        are compared with ours by default settings only.
        """
        floors = []
        if busy and rank == "p99":
            idle = self.rounds[variant, False, "p99"].median("wall")
            floors.append(
                required_time("5 ms or 5 times idle", max(MAX_PING_SECONDS, 5 * idle), 1000)
            )
        for name in self.candidates:
            theirs = self.median(name, busy, rank)
            if name in ("", "busy_poll=0") or theirs is None:
                continue
            if name == RAW:
                floors.append(Floor(RAW, theirs, IDLE_P99_TARGET if rank == "p99" else None))
            elif not variant:
                same_work = "HTTP/2" not in name and (busy or protocol == "yamux")
                floors.append(Floor(name, theirs, 1.0 if busy and same_work else None))
        return floors
