"""Streams over a limit, held while reading is paused.

Where streams need no acceptance, a peer that cannot know how far behind the application is may open
more streams than `Limits.max_streams` or `Limits.accept_backlog` allow. Only the connection itself
can slow it down: reading pauses until there is room. If that takes longer than
`Timeouts.slow_reader` seconds, the held streams are rejected. From then on every further stream
over the limit is rejected at once, until the application has taken or finished a stream. So an
application that accepts no streams holds the connection up once, not again and again.
"""

import logging

from polymux.core.errors import LimitExceeded
from polymux.core.streams import StreamState
from polymux.live.runtime import Timer
from polymux.live.session.accept_queue import AcceptQueue
from polymux.live.session.component import SessionComponent
from polymux.live.session.interface import SessionInterface
from polymux.live.session.read_backpressure import ReadBackpressure
from polymux.live.session.shutdown import Shutdown

log = logging.getLogger("polymux.aio")


class ExcessStreams(SessionComponent[SessionInterface]):
    """Holds the streams over a limit in `AcceptQueue.excess`, for a bounded pause."""

    def __init__(
        self,
        session: SessionInterface,
        accept_queue: AcceptQueue,
        read_backpressure: ReadBackpressure,
        shutdown: Shutdown,
    ) -> None:
        super().__init__(session)
        self._accept_queue = accept_queue
        self._read_backpressure = read_backpressure
        self._shutdown = shutdown
        self._limit = ""  # the limit that the first held stream exceeded
        self._may_pause = True  # False after a pause that ended in rejection
        self._check_scheduled = False
        self._timer: Timer | None = None

    def try_hold(self, state: StreamState, limit: str) -> bool:
        """Hold a stream for which there is no room. Return False if it must be rejected."""
        session = self.session
        excess = self._accept_queue.excess
        if (
            not session.pauses_at_stream_limit
            or self._shutdown.started
            or limit == "max_name_bytes"
        ):
            return False
        limits = session.endpoint.limits
        if not self._may_pause or len(excess) >= max(limits.max_streams, limits.open_reset_burst):
            return False  # one chunk can open this many before the pause takes effect
        excess.append(session.create_stream(state))
        session.peer_stream_count += 1
        if self._timer is None:
            self._limit = limit
            self._timer = session.runtime.call_later(
                session.timeouts.slow_reader, self._on_pause_timeout
            )
            self._accept_queue.on_stream_removed = self._schedule_check
            self._read_backpressure.hold_at_stream_limit(True)
        return True

    def _schedule_check(self) -> None:
        """A stream was accepted or finished: look for room in the next event-loop iteration."""
        if not self._check_scheduled:
            self._check_scheduled = True
            self.session.runtime.call_soon(self._admit_held)

    def _admit_held(self) -> None:
        self._check_scheduled = False
        session = self.session_or_none()
        if session is None or session.close_reason is not None:
            return
        excess = self._accept_queue.excess
        self._may_pause = self._may_pause or not session.exceeded_stream_limit()
        while excess and not session.exceeded_stream_limit():
            session.admit_stream(excess.popleft())
        if not excess:
            self._resume_reading()

    def _resume_reading(self) -> None:
        """End the pause: no stream is held any more."""
        self.stop()
        if self._may_pause:
            self._accept_queue.on_stream_removed = None
        self._read_backpressure.hold_at_stream_limit(False)

    def _on_pause_timeout(self) -> None:
        """Reject the held streams: the pause has lasted `Timeouts.slow_reader` seconds."""
        session = self.session_or_none()
        if session is None or session.close_reason is not None:
            return
        self._may_pause = False
        limits = session.endpoint.limits
        excess = self._accept_queue.excess
        log.warning(
            "%s: %d streams rejected, there was no room for them for %g s: %s",
            session,
            len(excess),
            session.timeouts.slow_reader,
            limits.describe(self._limit),
        )
        try:
            while excess:
                stream = excess.popleft()
                session.reject_excess_stream(stream, self._limit)
                session.endpoint.flood_guard.charge_forced_abort(session.endpoint.now)
        except LimitExceeded as problem:
            session.fail(problem)
            return
        self._resume_reading()
        session.schedule_flush()

    def stop(self) -> None:
        """Cancel the timer of the pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
