"""Timing: alternating runs of candidates and floors, best and median of each, and ratios."""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.reasons import reason_for

ROUNDS = max(7, int(os.environ.get("POLYMUX_BENCH_ROUNDS", "7")))
# `POLYMUX_BENCH_PROTOCOLS=yamux,mplex`: only these in `pairs`, `pings` and `fairness`; empty: all.
CHOSEN_PROTOCOLS = [
    each for each in os.environ.get("POLYMUX_BENCH_PROTOCOLS", "").split(",") if each
]
MAX_SLOPE = 1.15  # of growth
MAX_IDLE_SLOPE = 0.15  # of what should not grow
MIN_JUDGED_STEP = 4  # times the size before: a tenth of noise changes the exponent by 0.07 at most
MAX_ROUNDS_FACTOR = 4  # most rounds of a fast line, as a multiple of `rounds`


def chosen(protocols: Iterable[str]) -> list[str]:
    """Those of the protocols that are to be measured."""
    return [each for each in protocols if not CHOSEN_PROTOCOLS or each in CHOSEN_PROTOCOLS]


@dataclass
class Effort:
    """How much work the live parts do. Tests reduce it; real figures need all of it."""

    rounds: int = ROUNDS  # fewest rounds
    seconds: float = 4.0  # a faster line is repeated for this long, to average out load
    work_share: float = 1.0  # factor for the work of each line
    third_party: bool = True  # run packages of others, and install them if needed

    def scaled(self, amount: int, step: int = 1) -> int:
        """Scale `amount` by `work_share`, in multiples of `step` and at least one."""
        return max(1, int(amount * self.work_share) // step) * step

    def round_numbers(self, lines: int = 1, rounds: int = 0) -> Iterator[int]:
        """Yield round numbers: `rounds` of them (0: the default), and more while they are fast."""
        began = time.perf_counter()
        rounds = rounds or self.rounds
        for number in itertools.count():
            elapsed = time.perf_counter() - began
            if number >= rounds * (MAX_ROUNDS_FACTOR if elapsed < self.seconds * lines else 1):
                return
            yield number


EFFORT = Effort()


class Times:
    """Wall and CPU seconds of one candidate, one pair per round."""

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

    def only_median(self) -> Times:
        """The median of all rounds, as if it were the only one."""
        times = Times()
        times.add(self.median("wall"), self.median("cpu"))
        return times


def time_call(act: Callable[[], object], times: Times) -> None:
    """Run `act` once. Its result is freed after the clocks are read."""
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
    """Run every candidate once per round, in rotating order.

    A warm-up round is not counted. Fast candidates run more rounds, so that a short burst of other
    load does not affect all of them.
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
    """memcpy of these bytes into allocated memory."""
    target = ctypes.create_string_buffer(len(data))
    return lambda: ctypes.memmove(target, data, len(data))


@dataclass
class Floor:
    """What a line is compared with. `target` is the required ratio of speeds; None: informative."""

    name: str
    times: Times
    target: float | None = None
    amount: float = 0.0  # its amount of work; 0: the same as the line's
    why: str = ""  # a sentence: why it is faster, if the line is behind it; "": `reasons` say it


@dataclass
class Comparison:
    """The comparison of one line with one floor."""

    floor: str
    value: float
    ratio: float
    target: float | None
    other_clock: float = 0.0  # the floor's best by the other clock
    why: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio >= self.target


@dataclass
class Line:
    """One figure: `amount` of `unit` in the measured times, and its floors.

    Its value, and what is judged, is the best of both: load of others only ever slows a run down.
    With a `scale` it is printed as amount per second divided by `scale`, otherwise as nanoseconds
    per unit.
    """

    name: str
    times: Times
    amount: float
    unit: str
    floors: list[Floor] = field(default_factory=list)
    clock: str = "cpu"
    scale: float = 0.0  # 0: nanoseconds per unit
    note: str = ""
    part: str = ""

    def figure(self, seconds: float, amount: float = 0.0) -> float:
        amount = amount or self.amount
        return amount / seconds / self.scale if self.scale else seconds / amount * 1e9

    @property
    def value(self) -> float:
        return self.figure(self.times.best(self.clock))

    @property
    def best(self) -> float:
        return self.value

    @property
    def median(self) -> float:
        return self.figure(self.times.median(self.clock))

    @property
    def other_clock(self) -> float:
        """The best by the other clock: wall for kernels, CPU for sockets."""
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
                    self.figure(other, amount), floor.why or reason_for(floor.name),
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
    """A fixed value to compare a figure with; with `target` 1.0 it is required."""

    name: str
    value: float
    target: float | None = 1.0


@dataclass
class Figure:
    """A figure with fixed bounds, or without: bytes, an index, a share, a time.

    Its value, and what is judged, is the median of the samples.
    """

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
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        return max(self.samples) if self.higher_is_better else min(self.samples)

    @property
    def median(self) -> float:
        return self.value

    def comparisons(self) -> list[Comparison]:
        """Compare the value with the bounds. A ratio over 1 is better than the bound."""
        found = []
        middle = max(1e-9, self.value)
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


def growth(
    what: str, of: str, sizes: Sequence[int], times: Sequence[float], most: float = MAX_SLOPE
) -> list[Figure]:
    """The exponent with which `what` grows with the number `of` things: 1 is linear.

    The sizes should be such that a fixed share of the work at the smallest is small: it makes the
    exponent less. The first figure is the exponent of the whole, with that of each step in its
    note. The second is the steepest step: what begins only at some size is lost in the whole.
    `most` is required of both; of a step only if it is long enough.
    """
    x, y = [math.log(size) for size in sizes], [math.log(each) for each in times]
    slope = statistics.linear_regression(x, y).slope
    steps = [(y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in range(len(x) - 1)]
    name = f"growth of {what}, {', '.join(f'{size:,}' for size in sizes)} {of}"
    note = f"steps {', '.join(f'{step:.2f}' for step in steps)}"
    whole = Figure(name, [slope], "", [Bound("slope", most)], note=note)
    if len(steps) == 1:
        return [whole]
    n = max(range(len(steps)), key=steps.__getitem__)
    bound = Bound("slope", most, 1.0 if sizes[n + 1] >= MIN_JUDGED_STEP * sizes[n] else None)
    between = f"{sizes[n]:,} to {sizes[n + 1]:,}"
    return [whole, Figure(f"{name}: steepest step", [steps[n]], "", [bound], note=between)]


@dataclass
class NotMeasured:
    """A line of the table for a peer that could not be measured, with the reason."""

    name: str
    reason: str
    part: str = ""

    def comparisons(self) -> list[Comparison]:
        return []

    def as_json(self) -> dict[str, Any]:
        return {"part": self.part, "line": self.name, "absent": self.reason, "floors": []}


Result = Line | Figure | NotMeasured


def missed_targets(lines: Iterable[Result]) -> list[tuple[Result, Comparison]]:
    """The lines that miss one of their targets."""
    return [
        (line, verdict) for line in lines for verdict in line.comparisons() if verdict.met is False
    ]
