# mypyc: compiled
"""Staying awake for an answer that is about to come.

Who sleeps has to be woken, and on many machines that takes longer than all the work on a small
request. So where answers have come at once, several in a row, the loop is kept turning for a moment
after a request has left, instead of sleeping. Where the answer does not come after all, or answers
do not come a good deal sooner for it, twice as many have to come at once before that is tried
again. With many requests under way something comes at once after each, from however far: so the
network is asked too how far away the peer is.
"""

import os
from asyncio import AbstractEventLoop
from collections.abc import Callable
from time import monotonic_ns
from typing import Final
from weakref import WeakKeyDictionary

from mypy_extensions import i64

NANO: Final = 1_000_000_000
LONGEST: Final = 1.0  # seconds; nobody gains by more
FIRST: Final[i64] = 4  # answers that came at once before we stay awake for the next
MOST: Final[i64] = 64
NOT_ASKED: Final[i64] = -1

Soon = Callable[[Callable[[], None]], object]


class Watch:
    """Who stays awake on a loop: who began first in front, and so is the first to give up where all
    have the same patience. There is one for each loop, of which it knows nothing: what it knew
    would outlive the loop."""

    def __init__(self) -> None:
        self.awake: dict[Vigil, None] = {}
        self.turning = False

    def keep(self, vigil: "Vigil", soon: Soon) -> None:
        """Have the loop turn until this one is through. `soon` has the loop call something."""
        if vigil in self.awake:
            del self.awake[vigil]
        self.awake[vigil] = None
        if not self.turning:
            self.turning = True
            soon(Turning(self, soon).turn)

    def look(self) -> bool:
        """Is anybody still awake? Who waits in vain goes to sleep."""
        if len(self.awake) > 0:
            now: i64 = monotonic_ns()
            late: list[Vigil] = []
            for vigil in self.awake:
                if now < vigil.until:
                    break
                late.append(vigil)
            for vigil in late:
                del self.awake[vigil]
                vigil.expire()
        self.turning = len(self.awake) > 0
        return self.turning


class Turning:
    """What keeps a loop from sleeping: something to be done at its next turn, again and again."""

    def __init__(self, watch: Watch, soon: Soon) -> None:
        self.watch = watch
        self.soon = soon

    def turn(self) -> None:
        """A turn of the loop has passed, in which it looked for what has come."""
        if self.watch.look():
            self.soon(self.turn)


class Vigil:
    """Whether a session stays awake, and for how long: `patience`, in nanoseconds; 0: never."""

    def __init__(self, watch: Watch, patience: i64) -> None:
        self.watch = watch
        self.patience: i64 = patience
        self.until: i64 = 0
        self.asked_at: i64 = NOT_ASKED  # when something last left, if nothing has come since
        self.prompt: i64 = 0  # answers in a row that came at once
        self.needed: i64 = FIRST
        self.up = False  # does it stay awake for the next one?
        # How long such answers take, of late, who sleeps and who does not.
        self.asleep: i64 = 0
        self.awake: i64 = 0
        # Nanoseconds to the peer and back, at the very least; below 0 if nobody knows.
        self.distance: Callable[[], int] | None = None

    def wrote(self, soon: Soon) -> None:
        """Something has left, to which there may be an answer."""
        if self.patience > 0:
            now: i64 = monotonic_ns()
            self.asked_at = now
            if self.prompt >= self.needed:
                if not self.up:
                    if self.distance is not None and self.distance() > 2 * self.patience:
                        self.expire()  # those were answers to what had left before
                        return
                    self.up = True
                    self.awake = self.asleep * 3 // 5  # the benefit of the doubt, for a few
                self.until = now + self.patience
                self.watch.keep(self, soon)

    def came(self) -> None:
        """Something has come; an answer, if we wrote before."""
        if self.asked_at == NOT_ASKED:
            return
        wait = monotonic_ns() - self.asked_at
        self.asked_at = NOT_ASKED
        if self in self.watch.awake:
            del self.watch.awake[self]
            self.awake += (wait - self.awake) >> 3
            if wait > self.patience or self.awake * 5 > self.asleep * 4:
                self.expire()
                return
            self.needed = FIRST
            self.prompt += 1
        elif wait <= 2 * self.patience:  # who slept was woken late, and so was the peer
            self.prompt += 1
            self.asleep = wait if self.asleep == 0 else self.asleep + ((wait - self.asleep) >> 3)
        else:
            self.prompt = 0

    def expire(self) -> None:
        """It was in vain."""
        self.prompt = 0
        self.up = False
        if self.needed < MOST:
            self.needed *= 2

    def rest(self) -> None:
        """The session is over."""
        self.patience = 0
        self.distance = None
        self.asked_at = NOT_ASKED
        if self in self.watch.awake:
            del self.watch.awake[self]


watches: Final[WeakKeyDictionary[AbstractEventLoop, Watch]] = WeakKeyDictionary()


def watch_of(loop: AbstractEventLoop) -> Watch:
    watch = watches.get(loop)
    if watch is None:
        watch = watches[loop] = Watch()
    return watch


def patience_for(seconds: float) -> int:
    """What a session may have. With one processor the peer may need just that one."""
    if not seconds > 0:
        return 0
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return int(min(seconds, LONGEST) * NANO) if processors > 1 else 0
