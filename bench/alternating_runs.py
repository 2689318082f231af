"""Live candidates in turns: wall seconds as each reports them, CPU seconds of all its processes."""

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
    """A candidate could not do it; the text says what happened."""


@dataclass
class Candidate:
    """One way to do a line's work. The first of a comparison is the one that is measured."""

    name: str
    act: Act
    pids: Sequence[int] = ()  # processes that work for it; none: this one alone
    target: float | None = None
    amount: float = 0.0  # its work, if it is not the line's


@dataclass
class Workload:
    """What a line is made of: how much, in which unit, how it is shown."""

    amount: float
    unit: str
    scale: float = 1.0
    note: str = ""
    required_floors: list[Floor] = field(default_factory=list)


def cpu_seconds_of(pids: Sequence[int]) -> float:
    """CPU seconds that these processes have used, to the nanosecond where the system says it."""
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
    """Everybody once a round, who goes first changes; one round before the first is not counted.

    A candidate of others that fails is said and left out; ours must not fail.
    """
    left = list(candidates)
    ours = left[0]
    times = {each.name: Times() for each in left}
    for turn in itertools.chain([0], (turn + 1 for turn in harness.EFFORT.round_numbers())):
        shift = turn % len(left)
        for each in left[shift:] + left[:shift]:
            cpu = cpu_seconds_of(each.pids)
            try:
                seconds = await each.act()
            except (PeerFailed, CandidateFailed) as problem:
                if each is ours:
                    raise
                print(f"{name}: {each.name} failed: {str(problem).splitlines()[0][:160]}")
                left.remove(each)
                continue
            if turn > 0:
                times[each.name].add(seconds, max(1e-9, cpu_seconds_of(each.pids) - cpu))
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
    """A fixed time for so much work (0: the line's), as a floor that must be reached."""
    times = Times()
    times.add(seconds, seconds)
    return Floor(name, times, 1.0, amount)


def equal_share(total: int, parts: int) -> int:
    """An equal share, one at least."""
    return max(1, total // parts)
