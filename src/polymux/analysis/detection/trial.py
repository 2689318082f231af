# mypyc: compiled
"""A protocol that may not be the right one, on octets that may be thousands of its frames."""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import VIOLATION_ROW, Batch
from polymux.core.observer import Observer
from polymux.core.rules import Severity

# The first octets, up to EARLY, are fed in small steps: as long as a trial may turn out hopeless.
EARLY: Final[i64] = 4096
STEP: Final[i64] = 256


class Feeding:
    """Octets fed to an observer, until all are or there is no hope.

    `held`: sender and ordinal of the frames that broke a rule which is not excused; `faults`: how
    often each was broken. `hopeless`: so many such frames, nine of ten, are enough to give up.
    """

    def __init__(self, observer: Observer, excused: tuple[str, ...], hopeless: i64) -> None:
        self.observer: Observer = observer
        self.excused: tuple[str, ...] = excused
        self.hopeless: i64 = hopeless
        self.octets: i64 = 0
        self.held: set[tuple[int, int]] = set()
        self.faults: dict[str, int] = {}
        self.given_up: bool = False

    def feed(self, pieces: tuple[tuple[int, bytes, int], ...], step: i64) -> None:
        """Pieces (side, octets, instant); the very first octets are fed `step` at a time."""
        early: i64 = 0
        for side, data, at in pieces:
            size: i64 = len(data)
            start: i64 = 0
            while early < EARLY and size - start > step:
                self.put(side, data[start : start + step], at)
                if self.given_up:
                    return
                start += step
                early += step
                if early >= STEP:
                    step = STEP
            self.put(side, data if start == 0 else data[start:], at)
            if self.given_up:
                return

    def put(self, side: i64, data: bytes, at: i64) -> None:
        self.observer.feed(side, data, at)
        self.octets += len(data)
        for violation in self.observer.take_violations():
            rule = violation.rule
            if rule.severity is not Severity.NOTE and rule.name not in self.excused:
                self.held.add((violation.sender, violation.ordinal))
                self.faults[rule.name] = self.faults.get(rule.name, 0) + 1
        held: i64 = len(self.held)
        if held >= self.hopeless and held * 10 >= frames_of(self.observer) * 9:
            self.given_up = True

    def broken_octets(self, batch: Batch) -> i64:
        """Octets of the frames among these rows that are held against it."""
        found: i64 = 0
        for i in range(batch.used):
            if (
                batch.verdict[i] == VIOLATION_ROW
                and (int(batch.sender[i]), int(batch.ordinal[i])) in self.held
            ):
                found += batch.size[i]
        return found


def frames_of(observer: Observer) -> i64:
    """Frames of both sides, the one still passing as well."""
    sight = observer.protocol.sight
    return sight.sent(0) + sight.sent(1)


def largest_payloads(batch: Batch) -> tuple[int, int]:
    """Octets of content in the largest frame of each side."""
    first: i64 = 0
    second: i64 = 0
    for i in range(batch.used):
        size = batch.payload[i]
        if batch.sender[i] == 0:
            if size > first:
                first = size
        elif size > second:
            second = size
    return first, second
