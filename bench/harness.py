"""Taking times: candidates and floors in turns, the best and the median of each, and ratios."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

ROUNDS = max(7, int(os.environ.get("POLYMUX_BENCH_ROUNDS", "7")))
MAX_ROUNDS_FACTOR = 4  # times as many rounds where they are quick


@dataclass
class Effort:
    """How much the live parts do. Tests turn it down; a benchmark's figures need all of it."""

    rounds: int = ROUNDS  # at least
    seconds: float = 4.0  # that a line is measured for, if few rounds take less: moods pass
    work_share: float = 1.0  # of the work of each line
    third_party: bool = (
        True  # are packages of others started, and installed where they are missing?
    )

    def scaled(self, amount: int, step: int = 1) -> int:
        """So much of `amount`, in whole steps, one at least."""
        return max(1, int(amount * self.work_share) // step) * step

    def round_numbers(self, lines: int = 1, rounds: int = 0) -> Iterator[int]:
        """Numbers of the rounds in which so many lines are measured: `rounds`, or as many as usual,
        and more where they are quick."""
        began = time.perf_counter()
        rounds = rounds or self.rounds
        for turn in itertools.count():
            lasted = time.perf_counter() - began
            if turn >= rounds * (MAX_ROUNDS_FACTOR if lasted < self.seconds * lines else 1):
                return
            yield turn


EFFORT = Effort()


class Times:
    """Wall and CPU seconds of one candidate, a pair a round."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def add(self, wall: float, cpu: float) -> None:
        self.wall.append(wall)
        self.cpu.append(cpu)

    def best(self, clock: str) -> float:
        return min(self.cpu if clock == "cpu" else self.wall)

    def median(self, clock: str) -> float:
        return statistics.median(self.cpu if clock == "cpu" else self.wall)


def time_call(act: Callable[[], object], times: Times) -> None:
    """Run `act` once. What it returns is freed after the clocks were read."""
    gc.collect()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        kept = act()
        times.add(time.perf_counter() - wall, time.process_time() - cpu)
    finally:
        gc.enable()
    del kept


def measure_alternating(
    candidates: dict[str, Callable[[], object]], rounds: int = ROUNDS
) -> dict[str, Times]:
    """Run every candidate once a round; who goes first changes from round to round.

    One round before the first warms caches and is not counted. What is quick is measured for a
    while, in more rounds: a few could all fall into one mood of the machine.
    """
    names = list(candidates)
    times = {name: Times() for name in names}
    for name in names:
        candidates[name]()
    for turn in EFFORT.round_numbers(rounds=rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            time_call(candidates[name], times[name])
    return times


def memcpy_of(data: bytes) -> Callable[[], object]:
    """memcpy of these bytes into memory that is there already."""
    target = ctypes.create_string_buffer(len(data))
    return lambda: ctypes.memmove(target, data, len(data))


@dataclass
class Floor:
    """What a line is held against. `target` is a ratio of speeds; None: shown for comparison."""

    name: str
    times: Times
    target: float | None = None
    amount: float = 0.0  # work done in its times; 0: as much as the line's


@dataclass
class Comparison:
    """One line against one floor."""

    floor: str
    value: float
    ratio: float
    target: float | None
    other_clock: float = 0.0  # the floor's best by the clock that does not decide

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio >= self.target


@dataclass
class Line:
    """One figure: `amount` of `unit` in the times taken, and what it is held against.

    `rate` units are shown as amount a second divided by `scale`, others as nanoseconds for one.
    """

    name: str
    times: Times
    amount: float
    unit: str
    floors: list[Floor] = field(default_factory=list)
    clock: str = "cpu"
    scale: float = 0.0  # 0: nanoseconds for one
    note: str = ""
    part: str = ""

    def figure(self, seconds: float, amount: float = 0.0) -> float:
        amount = amount or self.amount
        return amount / seconds / self.scale if self.scale else seconds / amount * 1e9

    @property
    def value(self) -> float:
        return self.figure(self.times.best(self.clock))

    @property
    def median(self) -> float:
        return self.figure(self.times.median(self.clock))

    @property
    def other_clock(self) -> float:
        """The best by the clock that does not decide: wall for kernels, CPU for sockets."""
        return self.figure(max(1e-9, self.times.best("wall" if self.clock == "cpu" else "cpu")))

    def comparisons(self) -> list[Comparison]:
        own = self.times.best(self.clock) / self.amount
        found = []
        for floor in self.floors:
            amount = floor.amount or self.amount
            best = floor.times.best(self.clock)
            ratio = best / amount / own
            other = max(1e-9, floor.times.best("wall" if self.clock == "cpu" else "cpu"))
            found.append(
                Comparison(
                    floor.name, self.figure(best, amount), ratio, floor.target,
                    self.figure(other, amount),
                )
            )  # fmt: skip
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "line": self.name,
            "unit": self.unit,
            "value": self.value,
            "median": self.median,
            "clock": self.clock,
            "other_clock": self.other_clock,
            "wall": self.times.wall,
            "cpu": self.times.cpu,
            "amount": self.amount,
            "note": self.note,
            "floors": [{**vars(verdict), "met": verdict.met} for verdict in self.comparisons()],
        }


@dataclass
class Bound:
    """A fixed value that a figure is held against; with `target` 1.0 it is a demand."""

    name: str
    value: float
    target: float | None = 1.0


@dataclass
class Figure:
    """A line that is no time: bytes, an index, a share. `more`: is more better?"""

    name: str
    samples: list[float]
    unit: str
    bounds: list[Bound] = field(default_factory=list)
    higher_is_better: bool = False
    note: str = ""
    part: str = ""
    clock: str = ""

    @property
    def value(self) -> float:
        return max(self.samples) if self.higher_is_better else min(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def comparisons(self) -> list[Comparison]:
        """Of the median, since no other load could have made a figure look worse than it is.

        A ratio over 1 is better than the bound, whichever way better is.
        """
        found = []
        middle = max(1e-9, self.median)
        for bound in self.bounds:
            ratio = middle / bound.value if self.higher_is_better else bound.value / middle
            found.append(Comparison(bound.name, bound.value, ratio, bound.target))
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "line": self.name,
            "unit": self.unit,
            "value": self.value,
            "median": self.median,
            "samples": self.samples,
            "note": self.note,
            "floors": [{**vars(verdict), "met": verdict.met} for verdict in self.comparisons()],
        }


@dataclass
class NotMeasured:
    """A peer that could not be measured, and why: a line of the table like any other."""

    name: str
    reason: str
    part: str = ""

    def comparisons(self) -> list[Comparison]:
        return []

    def as_json(self) -> dict[str, Any]:
        return {"part": self.part, "line": self.name, "absent": self.reason, "floors": []}


Result = Line | Figure | NotMeasured


def missed_targets(lines: Iterable[Result]) -> list[tuple[Result, Comparison]]:
    """The lines that do not reach a target of theirs."""
    return [
        (line, verdict) for line in lines for verdict in line.comparisons() if verdict.met is False
    ]
