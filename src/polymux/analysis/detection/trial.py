# mypyc: compiled
"""Feed a sample to an observer, counting violations, and stop early if the protocol is wrong."""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import VIOLATION_ROW, FrameRows
from polymux.core.observer import Observer
from polymux.core.rules import Severity

# The first EARLY_BYTES are fed in small steps, so that a wrong protocol is noticed early.
EARLY_BYTES: Final[i64] = 4096
EARLY_STEP_BYTES: Final[i64] = 256


class TrialFeed:
    """Feeds bytes to an observer until all are fed or the trial is stopped.

    `violating_frames` holds sender and index of the frames that violated a rule which is not
    excused, `violations_by_rule` how often each rule was violated. The trial stops after
    `give_up_after` violating frames if they are nine tenths of all frames.
    """

    def __init__(
        self, observer: Observer, excused_rules: tuple[str, ...], give_up_after: i64
    ) -> None:
        self.observer: Observer = observer
        self.excused_rules: tuple[str, ...] = excused_rules
        self.give_up_after: i64 = give_up_after
        self.bytes_fed: i64 = 0
        self.violating_frames: set[tuple[int, int]] = set()
        self.violations_by_rule: dict[str, int] = {}
        self.stopped_early: bool = False

    def feed(self, pieces: tuple[tuple[int, bytes, int], ...], step: i64) -> None:
        """Feed pieces (side, bytes, timestamp); the first bytes are fed `step` at a time."""
        early: i64 = 0
        for side, data, at in pieces:
            size: i64 = len(data)
            start: i64 = 0
            while early < EARLY_BYTES and size - start > step:
                self.feed_chunk(side, data[start : start + step], at)
                if self.stopped_early:
                    return
                start += step
                early += step
                if early >= EARLY_STEP_BYTES:
                    step = EARLY_STEP_BYTES
            self.feed_chunk(side, data if start == 0 else data[start:], at)
            if self.stopped_early:
                return

    def feed_chunk(self, side: i64, data: bytes, timestamp: i64) -> None:
        self.observer.feed(side, data, timestamp)
        self.bytes_fed += len(data)
        for violation in self.observer.take_violations():
            rule = violation.rule
            if rule.severity is not Severity.NOTE and rule.name not in self.excused_rules:
                self.violating_frames.add((violation.sender, violation.frame_index))
                self.violations_by_rule[rule.name] = self.violations_by_rule.get(rule.name, 0) + 1
        violating: i64 = len(self.violating_frames)
        if violating >= self.give_up_after and violating * 10 >= frame_count(self.observer) * 9:
            self.stopped_early = True

    def violating_bytes(self, batch: FrameRows) -> i64:
        """Total size of the violating frames among these rows."""
        found: i64 = 0
        for i in range(batch.used):
            if (
                batch.verdict[i] == VIOLATION_ROW
                and (int(batch.sender[i]), int(batch.frame_index[i])) in self.violating_frames
            ):
                found += batch.size[i]
        return found


def frame_count(observer: Observer) -> i64:
    """Frames of both sides, incomplete ones included."""
    causality = observer.protocol.causality
    return causality.frames_sent(0) + causality.frames_sent(1)


def largest_payloads(batch: FrameRows) -> tuple[int, int]:
    """Payload size of the largest frame of each side."""
    first: i64 = 0
    second: i64 = 0
    for i in range(batch.used):
        size = batch.payload_bytes[i]
        if batch.sender[i] == 0:
            if size > first:
                first = size
        elif size > second:
            second = size
    return first, second
