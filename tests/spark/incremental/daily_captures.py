"""Captures of several days and sensors: sessions over midnight, reused ports, missing ends.

With POLYMUX_SOAK rows are compared by a hash of each: there are millions.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pyarrow as pa

from polymux.analysis.output.parquet import read_batches
from polymux.analysis.schema.tables import TABLES
from polymux.capture import PcapngWriter, TcpConnectionWriter
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.spark.lake.lake import open_lake
from polymux.testing.simulator import Simulation

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
DAY = 86_400 * 1_000_000_000
FIRST_DAY = 1_762_473_600_000_000_000 // DAY * DAY  # 2025-11-07, so that all days are over
PROTOCOLS = ("mplex", "yamux", "nerdbank:version=2", "streamux")
SENSORS = ("web-1", "web-2")


@dataclass(frozen=True)
class Talk:
    """A conversation: its sensor and port, and what is written when, in nanoseconds."""

    sensor: str
    port: int
    protocol: str
    record: list[tuple[int, bytes, int]]
    ending: str  # "fin", "rst" or ""


class Switch:
    """Passes packets to the file of their time."""

    def __init__(self) -> None:
        self.comment_epoch = 0
        self.writer: PcapngWriter | None = None

    def burst(self, burst: PacketBurst) -> None:
        assert self.writer is not None
        self.writer.burst(burst)


@cache
def said(protocol: str, seed: int, steps: int) -> list[tuple[int, bytes, int]]:
    """What the sides of a simulated connection write."""
    world = Simulation(protocol, seed)
    world.run(steps)
    return world.record


def talks(seed: int, days: int, count: int, steps: int = 60, kinds: int = 1 << 30) -> list[Talk]:
    """Conversations spread over the days; every fifth goes on for hours or days.

    Of each protocol there are `kinds` different ones at most.
    """
    rng = Random(seed)
    made = []
    free: dict[tuple[str, int], int] = {}  # since when a port of a sensor is
    for number in sorted(rng.random() for _ in range(count)):
        begin = FIRST_DAY + int(number * days * DAY)
        protocol = rng.choice(PROTOCOLS)
        spoken = said(protocol, rng.randrange(kinds), steps)
        length = max((at for _, _, at in spoken), default=0) or 1
        wanted = (
            rng.randrange(DAY // 4, 2 * DAY) if rng.random() < 0.2 else rng.randrange(1, DAY // 50)
        )
        sensor = rng.choice(SENSORS)
        port = next(p for p in range(40_000, 60_000) if free.get((sensor, p), 0) < begin)
        record = [(side, data, begin + 1000 + at * wanted // length) for side, data, at in spoken]
        ending = rng.choice(("fin", "fin", "fin", "rst", ""))
        free[sensor, port] = begin + wanted + (DAY // 1000 if ending else 3 * DAY)
        made.append(Talk(sensor, port, protocol, [(-1, b"", begin), *record], ending))
    return made


def write_days(folder: Path, found: list[Talk], days: int, per_day: int = 2) -> list[list[Path]]:
    """Write what each sensor saw into `per_day` files a day; returns those of each day."""
    written: list[list[Path]] = [[] for _ in range(days)]
    for sensor in SENSORS:
        events = sorted(_events([talk for talk in found if talk.sensor == sensor]))
        scribes: dict[int, TcpConnectionWriter] = {}
        sink = Switch()
        (folder / sensor).mkdir(parents=True, exist_ok=True)
        for part in range(days * per_day):
            until = FIRST_DAY + (part + 1) * DAY // per_day
            path = folder / sensor / f"{part // per_day:02}-{part % per_day}.pcapng"
            with PcapngWriter(str(path), sync="none") as writer:
                sink.writer = writer
                sink.comment_epoch += 1
                while events and events[0][0] < until:
                    _write(events.pop(0), scribes, sink)
            written[part // per_day].append(path)
    return written


Event = tuple[int, int, int, Talk]


def _events(found: list[Talk]) -> Iterator[tuple[int, int, int, Talk]]:
    for number, talk in enumerate(found):
        for n, (_, _, at) in enumerate(talk.record):
            yield at, number, n, talk
        yield talk.record[-1][2] + 5000, number, len(talk.record), talk


def _write(event: Event, scribes: dict[int, TcpConnectionWriter], sink: Switch) -> None:
    at, number, n, talk = event
    if n == 0:
        ends = ("192.0.2.1", talk.port), ("198.51.100.2", 9000)
        scribes[number] = TcpConnectionWriter(sink, *ends, at)
    elif n < len(talk.record):
        side, data, _ = talk.record[n]
        scribes[number].data(side, data, at)
    elif talk.ending == "fin":
        scribes[number].close(at)
    elif talk.ending == "rst":
        scribes[number].abort(0, at)


def deliver(paths: Iterable[Path], made: Path, captures: Path) -> None:
    """Copy captures to where they are read from."""
    for path in paths:
        target = captures / path.relative_to(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def rows_of_lake(url: str | Path) -> dict[str, list[str]]:
    """All rows of each table of a lake, as texts, sorted."""
    lake = open_lake(str(url))
    version = lake.current()
    assert version is not None
    return {table: texts(lake.batches(version.files_of(table))) for table in TABLES}


def rows_of_tables(folder: str | Path) -> dict[str, list[str]]:
    """The same of the tables of one analysis."""
    return {table: texts(read_batches(folder, table)) for table in TABLES}


def texts(batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Rows as texts, sorted."""
    rows = (repr(row) for batch in batches for row in batch.to_pylist())
    if SOAK:
        rows = (hashlib.sha256(row.encode()).hexdigest()[:16] for row in rows)
    return sorted(rows)


def differences(one: dict[str, list[str]], other: dict[str, list[str]]) -> dict[str, object]:
    """The tables whose rows differ: how many of each, and the first that differ."""
    found: dict[str, object] = {}
    for table in one:
        if one[table] != other[table]:
            a, b = set(one[table]), set(other[table])
            found[table] = (
                len(one[table]),
                len(other[table]),
                sorted(a - b)[:2],
                sorted(b - a)[:2],
            )
    return found
