"""Streams that share a session, in all protocols: fairness, weights, and memory when idle."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from typing import Any

from bench import harness, minmux, omnistreams, pairs, streamux
from bench.footprint import footprint_lines
from bench.harness import Bound, Figure, Result
from bench.peer_process import PeerProcess, start_peer
from bench.peer_process_work import DONE

from polymux.core.send_scheduler import QUANTUM_BYTES

MIN_JAIN_INDEX = 0.95  # Jain's index of ten equal streams
MIN_PART = 0.9  # of what its weight gives a stream
MAX_PART = 1.1
WEIGHTS = (1, 2, 4)
HEAVY_STREAMS, HEAVY_WEIGHT = 100, 16
LIGHT_PIECES = 60  # of one quantum each, sent on a stream of weight 1 beside these
# Of the time between two of them: in a round, each stream sends a quantum times its weight.
MAX_ROUNDS_BETWEEN = 2.0
FAIRNESS_STREAMS = 10
FAIRNESS_STREAM_BYTES = 3_000_000
PROTOCOLS = ("mplex", "nerdbank", "omnistreams", "streamux", "minmux", "yamux")


def measure() -> list[Result]:
    return asyncio.run(measure_all())


async def measure_all() -> list[Result]:
    lines: list[Result] = []
    async with start_peer() as other:
        for protocol in harness.chosen(PROTOCOLS):
            async with OwnProtocol.connected(other, protocol) as ours:
                lines.append(await fairness(ours))
                if protocol == "mplex":  # it has no credit, which would limit the heavy ones
                    lines += await weighted(ours)
                    lines += await light(ours)
        if not harness.CHOSEN_PROTOCOLS:
            lines += await footprint_lines(other)
    return lines


# Pings and bulk in each protocol


class OwnProtocol:
    """One protocol of polymux, for pings and bulk."""

    def __init__(self, protocol: str, session: Any, other: PeerProcess) -> None:
        self.protocol = protocol
        self.session = session
        self.pids = other.pids
        self.ids = itertools.count(3, 2)

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, other: PeerProcess, protocol: str) -> Any:
        listener = "streamux-either" if protocol == "streamux" else protocol
        async with other.connect(listener) as session:
            yield cls(protocol, session, other)

    @contextlib.asynccontextmanager
    async def pinging(self) -> Any:
        """Return a coroutine function that does one round trip of 16 bytes."""
        session = self.session
        data = bytes(16)
        if self.protocol == "streamux":

            async def request() -> None:
                await session.request(data)

            yield request
        elif self.protocol == "omnistreams":
            sender = await session.open("echo")
            receiver = await session.accept()

            async def message() -> None:
                await sender.send(data)
                await receiver.receive()

            yield message
            await sender.end()
            async for _ in receiver:
                pass
        elif self.protocol == "minmux":
            (number,) = await minmux.request_streams(session, b"e", self.ids, 1)
            writer, reader = session.sender(number), session.receiver(number + 1)

            async def items() -> None:
                await writer.send(data)
                got = 0
                while got < len(data):
                    got += len(await reader.receive())

            yield items
            await writer.end()
            async for _ in reader:
                pass
        elif self.protocol == "yamux":  # its streams have no names: its own pings

            async def ping() -> None:
                await session.ping()

            yield ping
        else:
            stream = await session.open("echo")

            async def echo() -> None:
                await stream.send(data)
                got = 0
                while got < len(data):
                    got += len(await stream.receive())

            yield echo
            await stream.end()
            async for _ in stream:
                pass

    async def bulk(self, size: int) -> None:
        """Send on one stream; return when the peer has received everything."""
        session = self.session
        if self.protocol == "streamux":
            await streamux.bulk(session, max(streamux.CHUNK, size), 1)()
        elif self.protocol == "omnistreams":
            await omnistreams.push(session, max(1, size // 65536), 65536, "send")
            assert await session.receive_control() == DONE
        elif self.protocol == "minmux":
            (number,) = await minmux.request_streams(session, b"r", self.ids, 1)
            await minmux.push(session, number, size, 65536)
        else:
            await pairs.push(session, size, 65536)

    async def pings(self, count: int, load: int) -> list[float]:
        found = []
        async with self.pinging() as ping:
            busy = asyncio.create_task(self.bulk(load)) if load else None
            for _ in range(count):
                start = time.perf_counter()
                await ping()
                found.append(time.perf_counter() - start)
                if busy is not None and busy.done():
                    break
            if busy is not None:
                await busy
        return found


def percentile(seconds: list[float], rank: int = 99) -> float:
    return sorted(seconds)[min(len(seconds) - 1, len(seconds) * rank // 100)]


# Fairness


async def fairness(ours: OwnProtocol) -> Figure:
    """Jain's fairness index of the rates of ten equal streams that start together."""
    size = harness.EFFORT.scaled(FAIRNESS_STREAM_BYTES, 65536)
    samples = []

    async def one(start: float) -> float:
        await ours.bulk(size)
        return size / (time.perf_counter() - start)

    for _ in range(harness.EFFORT.rounds):
        start = time.perf_counter()
        samples.append(jain(await asyncio.gather(*(one(start) for _ in range(FAIRNESS_STREAMS)))))
    name = f"{ours.protocol}, fairness of ten bulk streams"
    return Figure(name, samples, "Jain", [Bound("demand", MIN_JAIN_INDEX)], higher_is_better=True)


async def weighted(ours: OwnProtocol) -> list[Figure]:
    """The least and the most that one of three bulk streams of weights 1, 2, 4 has of its part.

    Each sends in proportion to its weight, so that all end together if they share as they should.
    """
    size = harness.EFFORT.scaled(2 * FAIRNESS_STREAM_BYTES, 65536)
    least, most = [], []

    async def one(start: float, weight: int) -> float:
        await pairs.push(ours.session, weight * size, 65536, weight)
        return size / (time.perf_counter() - start)

    for _ in range(harness.EFFORT.rounds):
        start = time.perf_counter()
        rates = await asyncio.gather(*(one(start, weight) for weight in WEIGHTS))
        least.append(min(rates) / statistics.mean(rates))
        most.append(max(rates) / statistics.mean(rates))
    name = f"{ours.protocol}, bulk streams of weights 1, 2, 4"
    demands = [Bound("demand", MIN_PART)], [Bound("demand", MAX_PART)]
    return [
        Figure(f"{name}: least part", least, "of it", demands[0], higher_is_better=True),
        Figure(f"{name}: most", most, "of it", demands[1]),
    ]


async def light(ours: OwnProtocol) -> list[Figure]:
    """How long a bulk stream of weight 1 waits between two pieces beside a hundred of weight 16.

    Its part is 1/1601 of the bytes: a piece of one quantum in each round of 1,601.
    """
    session = ours.session
    piece = bytes(QUANTUM_BYTES)
    round_bytes = (HEAVY_STREAMS * HEAVY_WEIGHT + 1) * QUANTUM_BYTES
    seconds, rounds = [], []

    async def send_on(stream: Any) -> None:
        while True:
            await stream.send(piece)

    for _ in range(harness.EFFORT.rounds):
        heavy = [await session.open("bulk", weight=HEAVY_WEIGHT) for _ in range(HEAVY_STREAMS)]
        stream = await session.open("bulk")
        begun = session.bytes_sent
        sending = [asyncio.create_task(send_on(each)) for each in heavy]
        while session.bytes_sent < begun + HEAVY_STREAMS * QUANTUM_BYTES:
            await asyncio.sleep(0)
        passed: list[tuple[float, int]] = []
        for _ in range(harness.EFFORT.scaled(LIGHT_PIECES) + 1):
            await stream.send(piece)
            passed.append((time.perf_counter(), session.bytes_sent))
        for task in sending:
            task.cancel()
        await asyncio.wait(sending)
        for each in (*heavy, stream):
            each.abort()
        pairwise = list(itertools.pairwise(passed))
        seconds.append(percentile([after[0] - before[0] for before, after in pairwise]))
        rounds.append(
            percentile([(after[1] - before[1]) / round_bytes for before, after in pairwise])
        )
    name = f"{ours.protocol}, weight 1 beside {HEAVY_STREAMS} of {HEAVY_WEIGHT}, between pieces p99"
    return [
        Figure(name, [1000 * each for each in seconds], "ms"),
        Figure(f"{name}, bytes", rounds, "rounds", [Bound("demand", MAX_ROUNDS_BETWEEN)]),
    ]


def jain(rates: list[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one has everything."""
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))
