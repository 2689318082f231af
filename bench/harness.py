"""Taking times: candidates and floors in turns, the best and the median of each, and ratios."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

ROUNDS = max(7, int(os.environ.get("POLYMUX_BENCH_ROUNDS", "7")))


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


def clocked(act: Callable[[], object], times: Times) -> None:
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


def race(candidates: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, Times]:
    """Run every candidate once a round; who goes first changes from round to round.

    One round before the first warms caches and is not counted.
    """
    names = list(candidates)
    times = {name: Times() for name in names}
    for name in names:
        candidates[name]()
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            clocked(candidates[name], times[name])
    return times


@dataclass
class Floor:
    """What a line is held against. `target` is a ratio of speeds; None: shown for comparison."""

    name: str
    times: Times
    target: float | None = None
    amount: float = 0.0  # work done in its times; 0: as much as the line's


@dataclass
class Verdict:
    """One line against one floor."""

    floor: str
    value: float
    ratio: float
    target: float | None

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

    def verdicts(self) -> list[Verdict]:
        own = self.times.best(self.clock) / self.amount
        found = []
        for floor in self.floors:
            amount = floor.amount or self.amount
            best = floor.times.best(self.clock)
            ratio = best / amount / own
            found.append(Verdict(floor.name, self.figure(best, amount), ratio, floor.target))
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
            "floors": [{**vars(verdict), "met": verdict.met} for verdict in self.verdicts()],
        }


def behind(lines: Iterable[Line]) -> list[tuple[Line, Verdict]]:
    """The lines that do not reach a target of theirs."""
    return [
        (line, verdict) for line in lines for verdict in line.verdicts() if verdict.met is False
    ]
