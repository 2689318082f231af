# mypyc: compiled
"""How many streams this side opens at once: no more than a peer with default limits accepts.

A peer bounds the streams that are live and those that were opened and given up lately. Both come
out of one allowance here, `Limits.max_own_streams`; what was given up comes back at a rate.
"""

from asyncio import AbstractEventLoop, Future, TimerHandle
from typing import Final

from mypy_extensions import i64

PEER_RATE_SHARE: Final = 0.9  # of the rate that a peer allows: its clock is not ours


class OpenAllowance:
    """The allowance of one session. Callers of `open` past it wait in line, first come first
    served.

    `rate` is how many streams that were given up come back in a second.
    """

    def __init__(self, loop: AbstractEventLoop, max_open: int, refill_rate: int) -> None:
        self.loop = loop
        self.max_open: i64 = max_open
        self.max_ids: i64 = 0x7FFFFFFF  # streams that can be open at once, whatever is allowed
        self.refill_rate: float = refill_rate * PEER_RATE_SHARE
        self.open_streams: i64 = 0  # streams that this side has opened and that are not over
        self.reserved: i64 = 0  # callers that have been woken and are about to open theirs
        self.opened_total: i64 = 0  # streams opened, in all
        self.abort_debt: float = 0.0  # of the allowance, what streams given up hold
        self.debt_updated_at: float = 0.0  # when that was reckoned last
        self.waiters: dict[Future[None], None] = {}
        self.timer: TimerHandle | None = None

    def can_open(self) -> bool:
        """May a stream be opened now?"""
        return len(self.waiters) == 0 and self.available() > 0

    def available(self) -> i64:
        """How many could be opened now if no caller waited."""
        held = self.open_streams + self.reserved
        room = self.max_open - held
        if self.abort_debt > 0.0:
            now = self.loop.time()
            self.abort_debt = max(
                0.0, self.abort_debt - (now - self.debt_updated_at) * self.refill_rate
            )
            self.debt_updated_at = now
            if self.abort_debt > 0.0:
                # Rounded up, and a tenth is left: what was sent apart may arrive together.
                room -= self.max_open // 10 + 1 + int(self.abort_debt)
        return min(room, self.max_ids - held)

    def on_stream_opened(self) -> None:
        """A stream was opened."""
        self.open_streams += 1
        self.opened_total += 1

    def on_stream_closed(self) -> None:
        """A stream that this side had opened is over."""
        self.open_streams -= 1
        if len(self.waiters) > 0:
            self.wake_waiters()

    def on_stream_aborted(self, weight: float) -> None:
        """A stream was given up; a peer counts it by this weight. Nothing is held back for a rate
        of 0: it would be held for ever."""
        if self.refill_rate <= 0.0:
            return
        if self.abort_debt == 0.0:
            self.debt_updated_at = self.loop.time()
        self.abort_debt += weight

    def add_waiter(self) -> Future[None]:
        """A place in line, to be awaited. Once it is done, `settle` it; if cancelled, `leave`."""
        waiter: Future[None] = self.loop.create_future()
        self.waiters[waiter] = None
        self.wake_waiters()
        return waiter

    def release_reservation(self) -> None:
        """A caller that was woken goes on. Should it open nothing, its room is the next one's."""
        self.reserved -= 1
        if len(self.waiters) > 0:
            self.loop.call_soon(self.wake_waiters)

    def remove_waiter(self, waiter: Future[None]) -> None:
        """A caller was cancelled: its place, or what it was woken for, is the next one's."""
        if waiter in self.waiters:
            del self.waiters[waiter]
        elif waiter.done() and not waiter.cancelled():
            self.reserved -= 1
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake as many as there is room for."""
        room = self.available()
        while room > 0 and len(self.waiters) > 0:
            waiter = next(iter(self.waiters))
            del self.waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)
                self.reserved += 1
                room -= 1
        if (
            len(self.waiters) > 0
            and self.abort_debt > 0.0
            and self.refill_rate > 0.0
            and self.timer is None
        ):
            self.timer = self.loop.call_later(1.0 / self.refill_rate, self.on_refill)

    def on_refill(self) -> None:
        """Some of what was given up has come back."""
        self.timer = None
        self.wake_waiters()

    def close(self) -> None:
        """The session is over: all who wait go on, and are told so."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        while len(self.waiters) > 0:
            waiter = next(iter(self.waiters))
            del self.waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)
                self.reserved += 1
