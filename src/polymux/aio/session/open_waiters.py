"""The line of callers that wait to open a stream, because this side has as many open as it may."""

import asyncio
import logging
from typing import TYPE_CHECKING

from polymux.aio.session.component import Belonging
from polymux.core.errors import LimitExceeded

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

log = logging.getLogger("polymux.aio")


class Line(Belonging["Session"]):
    """Where `open` and `request` wait. A line that does not move is told once, in the log."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self._clock: asyncio.TimerHandle | None = None
        self._told = False

    async def turn(self) -> None:
        """Wait for room. If cancelled, the room is the next caller's. LimitExceeded if there can
        never be any."""
        session = self.session
        openings = session._openings
        if openings.most == 0:
            raise LimitExceeded(session.endpoint.limits.describe("own_streams"))
        waiter = openings.join()
        self.watch()
        try:
            await waiter
        except BaseException:
            openings.leave(waiter)
            raise
        openings.settle()
        session._check_open()

    def watch(self) -> None:
        """Somebody waits: see whether the line moves."""
        if self._clock is None and not self._told:
            session = self.session
            before = session._openings.begun
            self._clock = session.loop.call_later(session.policy.pause, self._look, before)

    def _look(self, before: int) -> None:
        self._clock = None
        session = self._session()
        if session is None or session._over is not None or not session._in_line():
            return
        if session._openings.begun > before:
            self.watch()
            return
        self._told = True
        openings = session._openings
        bound = session.endpoint.limits.describe("own_streams")
        if openings.live >= openings.ids:
            bound = f"there are {openings.ids} ids"
        log.warning(
            "%s: %d streams wait to be opened until one of the %d that this side has open is over: "
            "%s", session, session._in_line(), openings.live, bound,
        )  # fmt: skip

    def stop(self) -> None:
        """The session is over: all who wait go on, and are told so."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        self.session._openings.close()
