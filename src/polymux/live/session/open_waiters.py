"""The callers that wait to open a stream while this side has as many open as it may."""

import logging

from polymux.core.errors import LimitExceeded
from polymux.live.runtime import Timer
from polymux.live.session.component import SessionComponent
from polymux.live.session.interface import SessionInterface

log = logging.getLogger("polymux.aio")


class OpenWaiters(SessionComponent[SessionInterface]):
    """Where `open` and `request` wait. Logs one warning if no waiting caller makes progress."""

    def __init__(self, session: SessionInterface) -> None:
        super().__init__(session)
        self._timer: Timer | None = None
        self._warned = False

    async def wait(self) -> None:
        """Wait until a stream may be opened. If cancelled, the next caller may open one instead.

        Raises:
            LimitExceeded: `Limits.max_own_streams` is 0.
            SessionClosed: The session has ended.
        """
        session = self.session
        allowance = session.open_allowance
        if allowance.max_open == 0:
            raise LimitExceeded(session.endpoint.limits.describe("max_own_streams"))
        waiter = allowance.add_waiter()
        self.start_stall_check()
        try:
            await waiter
        except BaseException:
            allowance.remove_waiter(waiter)
            raise
        allowance.release_reservation()
        session.check_open()

    def start_stall_check(self) -> None:
        """Check after `Timeouts.slow_reader` seconds whether any stream was opened meanwhile."""
        if self._timer is None and not self._warned:
            session = self.session
            before = session.open_allowance.opened_total
            self._timer = session.runtime.call_later(
                session.timeouts.slow_reader, self._check_progress, before
            )

    def _check_progress(self, opened_before: int) -> None:
        self._timer = None
        session = self.session_or_none()
        if session is None or session.close_reason is not None or not session.waiting_to_open():
            return
        allowance = session.open_allowance
        if allowance.opened_total > opened_before:
            self.start_stall_check()
            return
        self._warned = True
        bound = session.endpoint.limits.describe("max_own_streams")
        if allowance.open_streams >= allowance.max_ids:
            bound = f"there are {allowance.max_ids} ids"
        log.warning(
            "%s: %d streams wait to be opened until one of the %d that this side has open is over: "
            "%s",
            session,
            session.waiting_to_open(),
            allowance.open_streams,
            bound,
        )

    def stop(self) -> None:
        """Wake all waiting callers, which then raise SessionClosed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.session.open_allowance.close()
