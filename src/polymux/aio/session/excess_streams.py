"""Streams for which there is no room, of peers that only the connection itself can make wait.

Where streams need no acceptance, a peer may open more than `Limits.streams` or `Limits.pending`
allow because it cannot know that the application is behind. Reading stops then, until there is
room. If that takes longer than `Policy.pause`, they are turned away, and so are all others at once,
until the application has taken or finished a stream: an application that takes none holds the
connection up once.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from polymux.aio.session.component import Belonging
from polymux.core.errors import LimitExceeded
from polymux.core.streams import Stream as Record

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

log = logging.getLogger("polymux.aio")


class Crowd(Belonging["Session"]):
    """Keeps what came past a limit, for as long as reading may stop for it."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self._limit = ""  # what the first of them was over
        self._patient = True
        self._asked = False  # a look is on its way
        self._clock: asyncio.TimerHandle | None = None

    def takes(self, record: Record, limit: str) -> bool:
        """Keep a stream for which there is no room now. False: it is to be turned away."""
        session = self.session
        late = session._arrivals.late
        if not session.waits_for_room or session._ending.begun or limit == "name":
            return False
        limits = session.endpoint.limits
        if not self._patient or len(late) >= max(limits.streams, limits.open_reset_burst):
            return False  # one chunk may bring so many before reading has stopped
        late.append(session._adopt(record))
        session._theirs += 1
        if self._clock is None:
            self._limit = limit
            self._clock = session.loop.call_later(session.policy.pause, self.expire)
            session._arrivals.relief = self.notice
            session._pacing.crowd(True)
        return True

    def notice(self) -> None:
        """A stream was taken, or is over: look for room once that has been seen to."""
        if not self._asked:
            self._asked = True
            self.session.loop.call_soon(self._look)

    def _look(self) -> None:
        self._asked = False
        session = self._session()
        if session is None or session._over is not None:
            return
        late = session._arrivals.late
        self._patient = self._patient or not session._crowded()
        while late and not session._crowded():
            session._admit(late.popleft())
        if not late:
            self._go_on()

    def _go_on(self) -> None:
        """None of them waits any more."""
        self.stop()
        session = self.session
        if self._patient:
            session._arrivals.relief = None
        session._pacing.crowd(False)

    def expire(self) -> None:
        """The pause has lasted long enough: those that still wait are turned away."""
        session = self._session()
        if session is None or session._over is not None:
            return
        self._patient = False
        limits = session.endpoint.limits
        late = session._arrivals.late
        log.warning(
            "%s: %d streams turned away, there was no room for them for %g s: %s",
            session, len(late), session.policy.pause, limits.describe(self._limit),
        )  # fmt: skip
        try:
            while late:
                stream = late.popleft()
                session._turn_away(stream, self._limit)
                session.endpoint.guard.provoke(session.endpoint.now)
        except LimitExceeded as problem:
            session._fail(problem)
            return
        self._go_on()
        session._flush_soon()

    def stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
