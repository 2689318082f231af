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

NS_PER_SECOND: Final = 1_000_000_000
MAX_POLL_SECONDS: Final = 1.0  # seconds; nobody gains by more
DEFAULT_BUSY_POLL_SECONDS: Final = 0.0002
MIN_FAST_REPLIES: Final[i64] = 4  # answers that came at once before we stay awake for the next
MAX_FAST_REPLIES: Final[i64] = 64
NOTHING_SENT: Final[i64] = -1

CallSoon = Callable[[Callable[[], None]], object]


class BusyPollLoop:
    """Who stays awake on a loop: who began first in front, and so is the first to give up where all
    have the same patience. There is one for each loop, of which it knows nothing: what it knew
    would outlive the loop."""

    def __init__(self) -> None:
        self.active_pollers: dict[BusyPoller, None] = {}
        self.spinning = False

    def add(self, poller: "BusyPoller", call_soon: CallSoon) -> None:
        """Have the loop turn until this one is through. `soon` has the loop call something."""
        if poller in self.active_pollers:
            del self.active_pollers[poller]
        self.active_pollers[poller] = None
        if not self.spinning:
            self.spinning = True
            call_soon(LoopSpinner(self, call_soon).spin)

    def poll(self) -> bool:
        """Is anybody still awake? Who waits in vain goes to sleep."""
        if len(self.active_pollers) > 0:
            now: i64 = monotonic_ns()
            late: list[BusyPoller] = []
            for vigil in self.active_pollers:
                if now < vigil.deadline_ns:
                    break
                late.append(vigil)
            for vigil in late:
                del self.active_pollers[vigil]
                vigil.back_off()
        self.spinning = len(self.active_pollers) > 0
        return self.spinning


class LoopSpinner:
    """What keeps a loop from sleeping: something to be done at its next turn, again and again."""

    def __init__(self, poll_loop: BusyPollLoop, call_soon: CallSoon) -> None:
        self.poll_loop = poll_loop
        self.call_soon = call_soon

    def spin(self) -> None:
        """A turn of the loop has passed, in which it looked for what has come."""
        if self.poll_loop.poll():
            self.call_soon(self.spin)


class BusyPoller:
    """Whether a session stays awake, and for how long: `patience`, in nanoseconds; 0: never."""

    def __init__(self, poll_loop: BusyPollLoop, budget_ns: i64) -> None:
        self.poll_loop = poll_loop
        self.budget_ns: i64 = budget_ns
        self.deadline_ns: i64 = 0
        self.sent_at_ns: i64 = NOTHING_SENT  # when something last left, if nothing has come since
        self.fast_replies: i64 = 0  # answers in a row that came at once
        self.fast_replies_needed: i64 = MIN_FAST_REPLIES
        self.active = False  # does it stay awake for the next one?
        # How long such answers take, of late, who sleeps and who does not.
        self.sleep_latency_ns: i64 = 0
        self.poll_latency_ns: i64 = 0
        # Nanoseconds to the peer and back, at the very least; below 0 if nobody knows.
        self.min_rtt_ns: Callable[[], int] | None = None

    def on_send(self, call_soon: CallSoon) -> None:
        """Something has left, to which there may be an answer."""
        if self.budget_ns > 0:
            now: i64 = monotonic_ns()
            self.sent_at_ns = now
            if self.fast_replies >= self.fast_replies_needed:
                if not self.active:
                    if self.min_rtt_ns is not None and self.min_rtt_ns() > 2 * self.budget_ns:
                        self.back_off()  # those were answers to what had left before
                        return
                    self.active = True
                    self.poll_latency_ns = (
                        self.sleep_latency_ns * 3 // 5
                    )  # the benefit of the doubt, for a few
                self.deadline_ns = now + self.budget_ns
                self.poll_loop.add(self, call_soon)

    def on_receive(self) -> None:
        """Something has come; an answer, if we wrote before."""
        if self.sent_at_ns == NOTHING_SENT:
            return
        wait = monotonic_ns() - self.sent_at_ns
        self.sent_at_ns = NOTHING_SENT
        if self in self.poll_loop.active_pollers:
            del self.poll_loop.active_pollers[self]
            self.poll_latency_ns += (wait - self.poll_latency_ns) >> 3
            if wait > self.budget_ns or self.poll_latency_ns * 5 > self.sleep_latency_ns * 4:
                self.back_off()
                return
            self.fast_replies_needed = MIN_FAST_REPLIES
            self.fast_replies += 1
        elif wait <= 2 * self.budget_ns:  # who slept was woken late, and so was the peer
            self.fast_replies += 1
            self.sleep_latency_ns = (
                wait
                if self.sleep_latency_ns == 0
                else self.sleep_latency_ns + ((wait - self.sleep_latency_ns) >> 3)
            )
        else:
            self.fast_replies = 0

    def back_off(self) -> None:
        """It was in vain."""
        self.fast_replies = 0
        self.active = False
        if self.fast_replies_needed < MAX_FAST_REPLIES:
            self.fast_replies_needed *= 2

    def stop(self) -> None:
        """The session is over."""
        self.budget_ns = 0
        self.min_rtt_ns = None
        self.sent_at_ns = NOTHING_SENT
        if self in self.poll_loop.active_pollers:
            del self.poll_loop.active_pollers[self]


poll_loops: Final[WeakKeyDictionary[AbstractEventLoop, BusyPollLoop]] = WeakKeyDictionary()


def poll_loop_of(loop: AbstractEventLoop) -> BusyPollLoop:
    watch = poll_loops.get(loop)
    if watch is None:
        watch = poll_loops[loop] = BusyPollLoop()
    return watch


def poll_budget_ns(seconds: float) -> int:
    """What a session may have. With one processor the peer may need just that one."""
    if not seconds > 0:
        return 0
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return int(min(seconds, MAX_POLL_SECONDS) * NS_PER_SECOND) if processors > 1 else 0
