"""Staying awake for an answer that is about to come.

Who sleeps has to be woken, and on many machines that takes longer than all the work on a small
request. So where answers have come at once, several in a row, the loop is kept turning for a moment
after a request has left, instead of sleeping. Where the answer does not come after all, twice as
many have to come at once before that is tried again.
"""

import os
from asyncio import AbstractEventLoop
from time import monotonic_ns
from typing import Final
from weakref import WeakKeyDictionary

from mypy_extensions import i64

NANO: Final = 1_000_000_000
FIRST: Final[i64] = 4  # answers that came at once before we stay awake for the next
MOST: Final[i64] = 1024
NOT_ASKED: Final[i64] = -1


class Watch:
    """Keeps a loop turning while somebody on it stays awake. There is one for each loop."""

    def __init__(self) -> None:
        self.awake: dict[Vigil, None] = {}
        self.until: i64 = 0
        self.turning = False

    def keep(self, vigil: "Vigil", until: i64, loop: AbstractEventLoop) -> None:
        self.awake[vigil] = None
        if until > self.until:
            self.until = until
        if not self.turning:
            self.turning = True
            loop.call_soon(self.turn, loop)

    def turn(self, loop: AbstractEventLoop) -> None:
        """A turn of the loop has passed, in which it looked for what has come."""
        if len(self.awake) > 0:
            if monotonic_ns() < self.until:
                loop.call_soon(self.turn, loop)
                return
            for vigil in self.awake:
                vigil.expire()
            self.awake = {}
        self.turning = False


class Vigil:
    """Whether a session stays awake, and for how long: `patience`, in nanoseconds; 0: never."""

    def __init__(self, loop: AbstractEventLoop, patience: i64) -> None:
        self.loop = loop
        self.watch: Watch = watch_of(loop)
        self.patience: i64 = patience
        self.asked_at: i64 = NOT_ASKED  # when something last left, if nothing has come since
        self.prompt: i64 = 0  # answers in a row that came at once
        self.needed: i64 = FIRST

    def wrote(self) -> None:
        """Something has left, to which there may be an answer."""
        if self.patience > 0:
            now: i64 = monotonic_ns()
            self.asked_at = now
            if self.prompt >= self.needed:
                self.watch.keep(self, now + self.patience, self.loop)

    def came(self) -> None:
        """Something has come; an answer, if we wrote before."""
        if self.asked_at == NOT_ASKED:
            return
        wait = monotonic_ns() - self.asked_at
        self.asked_at = NOT_ASKED
        if self in self.watch.awake:
            del self.watch.awake[self]
            self.needed = FIRST
        # Who slept was woken late, and so was the peer: no reason not to try it awake.
        self.prompt = self.prompt + 1 if wait <= 2 * self.patience else 0

    def expire(self) -> None:
        """It was in vain."""
        self.prompt = 0
        if self.needed < MOST:
            self.needed *= 2


watches: Final[WeakKeyDictionary[AbstractEventLoop, Watch]] = WeakKeyDictionary()


def watch_of(loop: AbstractEventLoop) -> Watch:
    watch = watches.get(loop)
    if watch is None:
        watch = watches[loop] = Watch()
    return watch


def patience_for(seconds: float) -> int:
    """What a session may have. With one processor the peer may need just that one."""
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return int(seconds * NANO) if processors > 1 else 0
