"""Every way to read what passed on one mplex id: the oracle of the tests of reuse.

The opener's frames are about the newest use. The receiver's may be about any use that it can have
read of; it moves on monotonically, and in each use it sends messages, at most one close, and at
most one reset as its last word. What all such readings agree on, the wire determines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.protocols.mplex.npm_peers import CLOSE, MESSAGE, NEW, RESET, Passing

OPEN, ENDED, ABORTED = range(3)


class Outcome(NamedTuple):
    """Return how a use ended, as in the streams table."""

    ending: str
    reset_by: int


def allowed(kind: str, state: int) -> bool:
    return state == OPEN or (state == ENDED and kind == RESET)


def after(kind: str, state: int) -> int:
    return {MESSAGE: state, CLOSE: ENDED, RESET: ABORTED}[kind]


def readings(frames: list[Passing], use: int = 1, state: int = OPEN) -> Iterator[tuple[int, ...]]:
    """Return all assignments of the receiver's frames, in order, to uses."""
    if not frames:
        yield ()
        return
    first = frames[0]
    for later in range(use, first.newest + 1):
        now = state if later == use else OPEN
        if allowed(first.frame.kind, now):
            for rest in readings(frames[1:], later, after(first.frame.kind, now)):
                yield later, *rest


def outcomes(log: list[Passing], reading: tuple[int, ...]) -> dict[int, Outcome]:
    """Return how each use ended before the next was opened, under one reading."""
    states: dict[int, list[int]] = {}
    reset_by: dict[int, int] = {}
    left = list(reading)
    done: dict[int, Outcome] = {}
    use = 0
    for passing in log:
        frame = passing.frame
        if frame.kind == NEW:
            if use:
                done[use] = outcome(states[use], reset_by.get(use, -1), True)
            use += 1
            states[use] = [OPEN, OPEN]
            continue
        about = use if frame.sender == frame.opener else left.pop(0)
        both = states[about]
        if about in done or frame.kind == MESSAGE:
            continue
        if frame.kind == CLOSE:
            both[frame.sender] = max(both[frame.sender], ENDED)
        elif both != [ENDED, ENDED] and both[frame.sender] != ABORTED:
            both[frame.sender] = ABORTED
            reset_by.setdefault(about, frame.sender)
    done[use] = outcome(states[use], reset_by.get(use, -1), False)
    return done


def outcome(both: list[int], reset_by: int, replaced: bool) -> Outcome:
    if ABORTED in both:
        return Outcome("reset", reset_by)
    if both == [ENDED, ENDED]:
        return Outcome("clean", -1)
    if replaced:
        return Outcome("abandoned", -1)
    return Outcome("half-closed" if ENDED in both else "open", -1)


def of_receiver(log: list[Passing]) -> list[Passing]:
    return [p for p in log if p.frame.kind != NEW and p.frame.sender != p.frame.opener]


def determined(log: list[Passing]) -> dict[int, Outcome]:
    """The uses of one id whose outcome was beyond doubt when the id was used again, or at last.

    As far as the first that may have been open at the receiver then: with npm both write on.
    """
    sure: dict[int, Outcome] = {}
    openings = [i for i, p in enumerate(log) if p.frame.kind == NEW]
    for use, until in enumerate([*openings[1:], len(log)], 1):
        part = log[:until]
        found = {outcomes(part, each)[use] for each in readings(of_receiver(part))}
        alive = until < len(log) and any(each.ending in ("open", "half-closed") for each in found)
        if len(found) == 1:
            sure[use] = Outcome("abandoned", -1) if alive else found.pop()
        if alive:
            break
    return sure


def placed(log: list[Passing]) -> dict[tuple[int, int], int]:
    """Return the receiver's frames that could belong to one use only when they passed."""
    sure: dict[tuple[int, int], int] = {}
    for i, passing in enumerate(log):
        if passing.frame.kind != NEW and passing.frame.sender != passing.frame.opener:
            last = {each[-1] for each in readings(of_receiver(log[: i + 1]))}
            if len(last) == 1:
                sure[passing.frame.sender, passing.ordinal] = last.pop()
    return sure
