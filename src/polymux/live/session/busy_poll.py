# mypyc: compiled
"""Adaptive busy polling: keep the event loop spinning for a moment after a send.

The problem: a loop that blocks in `select` has to be woken when a reply arrives, and on many
machines (virtual ones above all) waking a sleeping process takes longer than handling a small
request.

The idea: after a send, keep the loop turning (each iteration polls the sockets without blocking)
until the reply arrives or a budget is spent: `busy_poll` seconds, 200 microseconds by default. That
costs processor time, so a session polls only where it demonstrably helps:

- It starts after MIN_FAST_REPLIES replies in a row arrived within twice the budget.
- It backs off when a reply does not arrive within the budget, or when the average latency with
  polling is not at least a fifth below the average latency without. Each time it backs off, twice
  as many fast replies are needed before it starts again, up to MAX_FAST_REPLIES.
- With many requests in flight something arrives soon after every send, however far away the peer.
  So before it starts, the kernel's minimum round-trip time is compared with the budget as well.
- With a single processor it never polls: the peer might need that processor.

`BusyPollLoop` is shared by all sessions of a runtime, so that one spinning callback serves them
all.
"""

import os
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from mypy_extensions import i64

NS_PER_SECOND: Final = 1_000_000_000
MAX_POLL_SECONDS: Final = 1.0  # a larger budget is cut to this
DEFAULT_BUSY_POLL_SECONDS: Final = 0.0002
MIN_FAST_REPLIES: Final[i64] = 4  # in a row, before polling starts
MAX_FAST_REPLIES: Final[i64] = 64
NOTHING_SENT: Final[i64] = -1

CallSoon = Callable[[Callable[[], None]], object]


class BusyPollLoop:
    """The active pollers of one event loop."""

    def __init__(self) -> None:
        self.active_pollers: dict[BusyPoller, None] = {}
        self.spinning = False

    def add(self, poller: "BusyPoller", call_soon: CallSoon) -> None:
        """Keep the loop spinning until this poller's deadline."""
        if poller in self.active_pollers:
            del self.active_pollers[poller]
        self.active_pollers[poller] = None
        if not self.spinning:
            self.spinning = True
            call_soon(LoopSpinner(self, call_soon).spin)

    def poll(self) -> bool:
        """Drop pollers whose deadline has passed. Return True while any poller is active."""
        if len(self.active_pollers) > 0:
            now: i64 = monotonic_ns()
            expired: list[BusyPoller] = []
            for poller in self.active_pollers:
                if now >= poller.deadline_ns:
                    expired.append(poller)
            for poller in expired:
                del self.active_pollers[poller]
                poller.back_off()
        self.spinning = len(self.active_pollers) > 0
        return self.spinning


class LoopSpinner:
    """A callback that schedules itself again, so that the loop does not block."""

    def __init__(self, poll_loop: BusyPollLoop, call_soon: CallSoon) -> None:
        self.poll_loop = poll_loop
        self.call_soon = call_soon

    def spin(self) -> None:
        """Run once in an event-loop iteration, after the loop has polled its sockets."""
        if self.poll_loop.poll():
            self.call_soon(self.spin)


class BusyPoller:
    """Decides for one session when to busy-poll. A `budget_ns` of 0 disables it."""

    def __init__(self, poll_loop: BusyPollLoop, budget_ns: i64) -> None:
        self.poll_loop = poll_loop
        self.budget_ns: i64 = budget_ns
        self.deadline_ns: i64 = 0
        self.sent_at_ns: i64 = NOTHING_SENT  # time of the last send without a reply yet
        self.fast_replies: i64 = 0  # in a row
        self.fast_replies_needed: i64 = MIN_FAST_REPLIES
        self.active = False  # polls after the next send
        # Moving averages of the time to a fast reply, without polling and with it.
        self.sleep_latency_ns: i64 = 0
        self.poll_latency_ns: i64 = 0
        # Returns the minimum round-trip time to the peer; negative if unknown.
        self.min_rtt_ns: Callable[[], int] | None = None

    def on_send(self, call_soon: CallSoon) -> None:
        """Data was written, to which the peer may reply."""
        if self.budget_ns > 0:
            self.sent_at_ns = monotonic_ns()
            if self.fast_replies >= self.fast_replies_needed:
                self.start_polling(call_soon)

    def start_polling(self, call_soon: CallSoon) -> None:
        """Poll for the reply to what was just sent, unless the peer turns out to be too far."""
        if not self.active:
            if self.min_rtt_ns is not None and self.min_rtt_ns() > 2 * self.budget_ns:
                self.back_off()  # those were replies to earlier requests
                return
            self.active = True
            # An optimistic start, so that the first few replies cannot end it.
            self.poll_latency_ns = self.sleep_latency_ns * 3 // 5
        self.deadline_ns = self.sent_at_ns + self.budget_ns
        self.poll_loop.add(self, call_soon)

    def on_receive(self) -> None:
        """Data was received: a reply, if anything was sent before."""
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
        elif wait <= 2 * self.budget_ns:  # twice: both sides had to be woken
            self.fast_replies += 1
            self.sleep_latency_ns = (
                wait
                if self.sleep_latency_ns == 0
                else self.sleep_latency_ns + ((wait - self.sleep_latency_ns) >> 3)
            )
        else:
            self.fast_replies = 0

    def back_off(self) -> None:
        """Stop polling, and double the number of fast replies needed to start again."""
        self.fast_replies = 0
        self.active = False
        if self.fast_replies_needed < MAX_FAST_REPLIES:
            self.fast_replies_needed *= 2

    def stop(self) -> None:
        """Disable polling: the connection is gone."""
        self.budget_ns = 0
        self.min_rtt_ns = None
        self.sent_at_ns = NOTHING_SENT
        if self in self.poll_loop.active_pollers:
            del self.poll_loop.active_pollers[self]


def poll_budget_ns(seconds: float) -> int:
    """Return the budget in nanoseconds: at most a second, and 0 with a single processor."""
    if not seconds > 0:
        return 0
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return int(min(seconds, MAX_POLL_SECONDS) * NS_PER_SECOND) if processors > 1 else 0
