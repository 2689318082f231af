# mypyc: compiled
"""How many streams this side may open: no more than a peer with default limits accepts.

A peer limits both the streams that are open and the rate of streams that are opened and aborted.
Here both draw on one allowance, `Limits.max_own_streams`: an open stream holds one unit until it is
closed, and an aborted stream leaves a debt that is paid back at a fixed rate.
"""

from typing import Final

from mypy_extensions import i64

from polymux.live.runtime import Future, Runtime, Timer

PEER_RATE_SHARE: Final = 0.9  # of the rate that the peer allows: its clock differs


class OpenAllowance:
    """The allowance of one session, with a FIFO of the callers that wait for it.

    Args:
        runtime: Where the session runs.
        max_open: The allowance, in streams.
        refill_rate: Aborted streams per second that the peer tolerates.
    """

    def __init__(self, runtime: Runtime, max_open: int, refill_rate: int) -> None:
        self.runtime = runtime
        self.max_open: i64 = max_open
        self.max_ids: i64 = 0x7FFFFFFF  # stream ids that the protocol has
        self.max_unaccepted: i64 = 0x7FFFFFFF  # streams that may wait for the peer's acceptance
        self.refill_rate: float = refill_rate * PEER_RATE_SHARE
        self.open_streams: i64 = 0  # opened by this side and not closed
        self.unaccepted: i64 = 0  # of these, the ones that the peer has not accepted
        self.reserved: i64 = 0  # for callers that were woken and have not opened theirs yet
        self.opened_total: i64 = 0  # since the session began
        self.abort_debt: float = 0.0  # units held by aborted streams
        self.debt_updated_at: float = 0.0  # the runtime's time
        self.waiters: dict[Future[None], None] = {}
        self.timer: Timer | None = None

    def can_open(self) -> bool:
        """Return whether a stream may be opened now."""
        return len(self.waiters) == 0 and self.available() > 0

    def available(self) -> i64:
        """Return how many streams could be opened now if no caller waited."""
        held = self.open_streams + self.reserved
        room = self.max_open - held
        if self.abort_debt > 0.0:
            now = self.runtime.time()
            self.abort_debt = max(
                0.0, self.abort_debt - (now - self.debt_updated_at) * self.refill_rate
            )
            self.debt_updated_at = now
            if self.abort_debt > 0.0:
                # Rounded up, with a reserve of a tenth: aborts sent apart may arrive together.
                room -= self.max_open // 10 + 1 + int(self.abort_debt)
        return min(room, self.max_ids - held, self.max_unaccepted - self.unaccepted - self.reserved)

    def on_stream_opened(self) -> None:
        """This side opened a stream."""
        self.open_streams += 1
        self.unaccepted += 1
        self.opened_total += 1

    def on_stream_accepted(self) -> None:
        """The peer has accepted a stream that this side had opened."""
        self.unaccepted -= 1
        if len(self.waiters) > 0:
            self.wake_waiters()

    def on_stream_closed(self, accepted: bool = False) -> None:
        """A stream that this side had opened is closed; `accepted`: the peer had accepted it."""
        self.open_streams -= 1
        if not accepted:
            self.unaccepted -= 1
        if len(self.waiters) > 0:
            self.wake_waiters()

    def on_stream_aborted(self, weight: float) -> None:
        """A stream was aborted; the peer counts it with this weight.

        With a refill rate of 0 there is no debt, because it would never be paid back.
        """
        if self.refill_rate <= 0.0:
            return
        if self.abort_debt == 0.0:
            self.debt_updated_at = self.runtime.time()
        self.abort_debt += weight

    def add_waiter(self) -> Future[None]:
        """Queue a caller. Return a future for it to await.

        When it is done, a unit is reserved for the caller, which calls `release_reservation` and
        then opens its stream. If the caller is cancelled, it calls `remove_waiter`.
        """
        waiter: Future[None] = self.runtime.create_future()
        self.waiters[waiter] = None
        self.wake_waiters()
        return waiter

    def release_reservation(self) -> None:
        """A woken caller continues. If it opens no stream, the next caller gets the unit."""
        self.reserved -= 1
        if len(self.waiters) > 0:
            self.runtime.call_soon(self.wake_waiters)

    def remove_waiter(self, waiter: Future[None]) -> None:
        """A caller was cancelled: pass on the unit that may have been reserved for it."""
        if waiter in self.waiters:
            del self.waiters[waiter]
        elif waiter.done() and not waiter.cancelled():
            self.reserved -= 1
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake as many callers as the allowance has units for."""
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
            self.timer = self.runtime.call_later(1.0 / self.refill_rate, self.on_refill)

    def on_refill(self) -> None:
        """Some of the debt has been paid back."""
        self.timer = None
        self.wake_waiters()

    def close(self) -> None:
        """Wake all callers: the session is closed, which they find out by themselves."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        while len(self.waiters) > 0:
            waiter = next(iter(self.waiters))
            del self.waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)
                self.reserved += 1
