"""The line of callers that wait to open a stream, because this side has as many open as it may."""

import asyncio
import logging
from typing import TYPE_CHECKING

from polymux.aio.session.component import SessionComponent
from polymux.core.errors import LimitExceeded

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

log = logging.getLogger("polymux.aio")


class OpenWaiters(SessionComponent["Session"]):
    """Where `open` and `request` wait. A line that does not move is told once, in the log."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False

    async def wait(self) -> None:
        """Wait for room. If cancelled, the room is the next caller's. LimitExceeded if there can
        never be any."""
        session = self.session
        openings = session.open_allowance
        if openings.max_open == 0:
            raise LimitExceeded(session.endpoint.limits.describe("max_own_streams"))
        waiter = openings.add_waiter()
        self.start_stall_check()
        try:
            await waiter
        except BaseException:
            openings.remove_waiter(waiter)
            raise
        openings.release_reservation()
        session.check_open()

    def start_stall_check(self) -> None:
        """Somebody waits: see whether the line moves."""
        if self._timer is None and not self._warned:
            session = self.session
            before = session.open_allowance.opened_total
            self._timer = session.loop.call_later(
                session.timeouts.slow_reader, self._check_progress, before
            )

    def _check_progress(self, opened_before: int) -> None:
        self._timer = None
        session = self._session_ref()
        if session is None or session.close_reason is not None or not session.waiting_to_open():
            return
        if session.open_allowance.opened_total > opened_before:
            self.start_stall_check()
            return
        self._warned = True
        openings = session.open_allowance
        bound = session.endpoint.limits.describe("max_own_streams")
        if openings.open_streams >= openings.max_ids:
            bound = f"there are {openings.max_ids} ids"
        log.warning(
            "%s: %d streams wait to be opened until one of the %d that this side has open is over: "
            "%s",
            session,
            session.waiting_to_open(),
            openings.open_streams,
            bound,
        )

    def stop(self) -> None:
        """The session is over: all who wait go on, and are told so."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.session.open_allowance.close()
