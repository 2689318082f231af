"""Slow readers where the protocol has no credit: a bound on every pause.

Small amounts unread never hold up anybody. When the session's budget is full, reading stops and a
clock starts. It ends as soon as what was too much has been read. If that takes too long, the stream
that holds most is reset, and the next, until the session can go on.
"""

import asyncio
from typing import TYPE_CHECKING

from .duplex import Stream

if TYPE_CHECKING:
    from .session import Session


class Pacing:
    """Watches the unread octets of one session and pauses its transport, never without end."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.paused_at = 0.0
        self.pauses = 0  # how often reading had to stop
        self._clock: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Octets have come or were read."""
        session = self.session
        endpoint = session.endpoint
        transport = session.transport
        budget = endpoint.limits.session_buffer
        if transport is None or transport.is_closing():
            return
        if endpoint.protocol.credit and not endpoint.protocol.messages:  # messages have any size
            return
        unread = endpoint.inbox.unread
        if not self.paused_at and unread > budget:
            transport.pause_reading()
            self.paused_at = session.loop.time()
            self.pauses += 1
            endpoint.counters.count("session_buffer")
            self._clock = session.loop.call_later(session.policy.pause, self.expire)
        elif self.paused_at and unread <= budget:
            self.stop()
            transport.resume_reading()

    def expire(self) -> None:
        """The pause has lasted long enough: those who hold most make room."""
        session = self.session
        endpoint = session.endpoint
        limits = endpoint.limits
        while endpoint.inbox.unread > limits.session_buffer:
            hog = max(session._live.values(), key=unread_of, default=None)
            if hog is None or not unread_of(hog):
                break
            endpoint.counters.count("stream_buffer")
            hog.give_up(
                f"not read for {session.policy.pause:g} s while {unread_of(hog)} octets waited "
                f"and held up the others; {limits.describe('session_buffer')}"
            )
        self.look()

    def stop(self) -> None:
        """No pause any more, and no clock."""
        self.paused_at = 0.0
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


def unread_of(stream: Stream) -> int:
    return stream.lane.unread
