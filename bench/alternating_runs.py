"""Alternating runs of live candidates: reported wall time, and CPU time of all its processes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
from bench import harness
from bench.harness import Floor, Line, Times
from tests.interop.node_peer import PeerFailed

Act = Callable[[], Awaitable[float]]  # seconds


class CandidateFailed(Exception):
    """A candidate failed; the message gives the reason."""


@dataclass
class Candidate:
    """One implementation of a line's work. The first of a comparison is the one under test."""

    name: str
    act: Act
    pids: Sequence[int] = ()  # its processes; empty: only this one
    target: float | None = None
    amount: float = 0.0  # its amount of work, if different from the line's
    cpu_seconds: Callable[[], float] | None = None  # so far, if not that of `pids`

    def cpu_so_far(self) -> float:
        return self.cpu_seconds() if self.cpu_seconds is not None else cpu_seconds_of(self.pids)


@dataclass
class Workload:
    """The amount of work of a line, its unit, and how it is printed."""

    amount: float
    unit: str
    scale: float = 1.0
    note: str = ""
    required_floors: list[Floor] = field(default_factory=list)


def cpu_seconds_of(pids: Sequence[int]) -> float:
    """CPU seconds used by these processes, in nanosecond resolution where available."""
    total = 0.0
    for pid in pids or (os.getpid(),):
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            total += sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
        except (OSError, ValueError, IndexError):
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
    return total


async def compare(name: str, candidates: Sequence[Candidate], work: Workload) -> Line:
    """Run every candidate once per round, in rotating order, after an uncounted warm-up round.

    A third-party candidate that fails is reported and left out; a failure of polymux raises.
    """
    left = list(candidates)
    ours = left[0]
    times = {each.name: Times() for each in left}
    for turn in itertools.chain([0], (turn + 1 for turn in harness.EFFORT.round_numbers())):
        shift = turn % len(left)
        for each in left[shift:] + left[:shift]:
            cpu = each.cpu_so_far()
            try:
                seconds = await each.act()
            except (PeerFailed, CandidateFailed) as problem:
                if each is ours:
                    raise
                print(f"{name}: {each.name} failed: {str(problem).splitlines()[0][:160]}")
                left.remove(each)
                continue
            if turn > 0:
                times[each.name].add(seconds, max(1e-9, each.cpu_so_far() - cpu))
    floors = [
        Floor(each.name, times[each.name], each.target, each.amount)
        for each in left
        if each is not ours
    ]
    return Line(
        name,
        times[ours.name],
        work.amount,
        work.unit,
        work.required_floors + floors,
        "wall",
        work.scale,
        work.note,
    )


def required_time(name: str, seconds: float, amount: float = 0.0) -> Floor:
    """A floor that is a fixed time for `amount` of work (0: the line's)."""
    times = Times()
    times.add(seconds, seconds)
    return Floor(name, times, 1.0, amount)


def equal_share(total: int, parts: int) -> int:
    """An equal share, at least one."""
    return max(1, total // parts)
