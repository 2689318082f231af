"""Streams for which there is no room, of peers that only the connection itself can make wait.

Where streams need no acceptance, a peer may open more than `Limits.max_streams` or `Limits.accept_backlog`
allow because it cannot know that the application is behind. Reading stops then, until there is
room. If that takes longer than `Timeouts.slow_reader`, they are turned away, and so are all others at once,
until the application has taken or finished a stream: an application that takes none holds the
connection up once.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from polymux.aio.session.component import SessionComponent
from polymux.core.errors import LimitExceeded
from polymux.core.streams import StreamState as Record

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

log = logging.getLogger("polymux.aio")


class ExcessStreams(SessionComponent["Session"]):
    """Keeps what came past a limit, for as long as reading may stop for it."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self._limit = ""  # what the first of them was over
        self._may_pause = True
        self._check_scheduled = False  # a look is on its way
        self._timer: asyncio.TimerHandle | None = None

    def try_hold(self, state: Record, limit: str) -> bool:
        """Keep a stream for which there is no room now. False: it is to be turned away."""
        session = self.session
        late = session.accept_queue.excess
        if (
            not session.pauses_at_stream_limit
            or session.shutdown.started
            or limit == "max_name_bytes"
        ):
            return False
        limits = session.endpoint.limits
        if not self._may_pause or len(late) >= max(limits.max_streams, limits.open_reset_burst):
            return False  # one chunk may bring so many before reading has stopped
        late.append(session.create_stream(state))
        session.peer_stream_count += 1
        if self._timer is None:
            self._limit = limit
            self._timer = session.loop.call_later(
                session.timeouts.slow_reader, self.on_pause_timeout
            )
            session.accept_queue.on_stream_removed = self.schedule_check
            session.read_backpressure.hold_at_stream_limit(True)
        return True

    def schedule_check(self) -> None:
        """A stream was taken, or is over: look for room once that has been seen to."""
        if not self._check_scheduled:
            self._check_scheduled = True
            self.session.loop.call_soon(self._admit_held)

    def _admit_held(self) -> None:
        self._check_scheduled = False
        session = self._session_ref()
        if session is None or session.close_reason is not None:
            return
        late = session.accept_queue.excess
        self._may_pause = self._may_pause or not session.exceeded_stream_limit()
        while late and not session.exceeded_stream_limit():
            session.admit_stream(late.popleft())
        if not late:
            self._resume_reading()

    def _resume_reading(self) -> None:
        """None of them waits any more."""
        self.stop()
        session = self.session
        if self._may_pause:
            session.accept_queue.on_stream_removed = None
        session.read_backpressure.hold_at_stream_limit(False)

    def on_pause_timeout(self) -> None:
        """The pause has lasted long enough: those that still wait are turned away."""
        session = self._session_ref()
        if session is None or session.close_reason is not None:
            return
        self._may_pause = False
        limits = session.endpoint.limits
        late = session.accept_queue.excess
        log.warning(
            "%s: %d streams turned away, there was no room for them for %g s: %s",
            session, len(late), session.timeouts.slow_reader, limits.describe(self._limit),
        )  # fmt: skip
        try:
            while late:
                stream = late.popleft()
                session.reject_excess_stream(stream, self._limit)
                session.endpoint.flood_guard.charge_forced_abort(session.endpoint.now)
        except LimitExceeded as problem:
            session.fail(problem)
            return
        self._resume_reading()
        session.schedule_flush()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
