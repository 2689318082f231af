"""Slow readers where the protocol has no credit: a bound on every pause.

Small amounts unread never hold up anybody. When the session's budget is full, reading stops and a
clock starts. It ends as soon as what was too much has been read. If that takes too long, the stream
that holds most is reset, and the next, until the session can go on.

What waits to be sent is held too: while the peer takes nothing, less is read of it. A quarter of
the budget is left to reading all the same, or two sides that only send would wait for each other.
"""

import asyncio
from typing import TYPE_CHECKING

from polymux.aio.session.component import Belonging
from polymux.aio.streams.duplex import Stream

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

LEAST = 4  # a quarter of the budget is for reading, however much waits to be sent
AROUND = 3  # and a third for what is being read or put together, and for what all of it weighs


class Pacing(Belonging["Session"]):
    """Watches the unread octets of one session and pauses its transport, never without end."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self.paused_at = 0.0
        self.pauses = 0  # how often reading had to stop
        self.held = False  # nothing may be read for another reason
        self.crowded = False  # nothing may be read until there is room for a stream: see `Crowd`
        self._clock: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Is it this side that does not read?"""
        return self.held or self.crowded or self.paused_at > 0

    def hold(self, held: bool) -> None:
        """Read nothing, whatever is unread, or go on: a full disk says so."""
        self.held = held
        self._apply()

    def crowd(self, crowded: bool) -> None:
        """Read nothing, or go on: there is no room for a stream that the peer has opened."""
        self.pauses += crowded
        self.crowded = crowded
        self._apply()

    def _apply(self) -> None:
        transport = self.session.transport
        if transport is None or transport.is_closing():
            return
        if self.is_idle:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def look(self) -> None:
        """Octets have come, were read, or have left."""
        session = self.session
        endpoint = session.endpoint
        transport = session.transport
        if transport is None or transport.is_closing():
            return
        if endpoint.protocol.credit and not endpoint.protocol.messages:  # messages have any size
            return
        unread = endpoint.inbox.unread
        if not self.paused_at:
            if unread * LEAST > endpoint.limits.session_buffer and unread > self.allowed():
                transport.pause_reading()
                self.paused_at = session.loop.time()
                self.pauses += 1
                endpoint.counters.count("session_buffer")
                self._clock = session.loop.call_later(session.policy.pause, self.expire)
        elif unread <= self.allowed():
            self.stop()
            self._apply()

    def allowed(self) -> int:
        """Octets that may wait unread now."""
        session = self.session
        endpoint = session.endpoint
        transport = session.transport
        budget = endpoint.limits.session_buffer
        held = endpoint.outbox.queued
        if transport is not None and session._leaving.blocked:  # else it does not say when it ends
            held += transport.get_write_buffer_size()
        if endpoint.protocol.messages:
            # One that is not whole yet, and one that is being handed on.
            held += 2 * endpoint.protocol.max_frame
        return max(budget // LEAST, budget - budget // AROUND - held)

    def expire(self) -> None:
        """The pause has lasted long enough: those who hold most make room."""
        session = self._session()
        if session is None:  # nobody holds it any more
            return
        endpoint = session.endpoint
        limits = endpoint.limits
        while endpoint.inbox.unread > self.allowed():
            hog = max(session._live.values(), key=unread_of, default=None)
            if hog is None or not unread_of(hog):
                break
            endpoint.counters.count("stream_buffer")
            hog.give_up(
                f"not read for {session.policy.pause:g} s while {unread_of(hog)} octets waited "
                f"and held up the others; {limits.describe('session_buffer')}"
            )
        self.look()
        if self.paused_at:  # what is left belongs to nobody, and goes with what is yet to leave
            self._clock = session.loop.call_later(session.policy.pause, self.expire)

    def stop(self) -> None:
        """No pause any more, and no clock."""
        self.paused_at = 0.0
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


def unread_of(stream: Stream) -> int:
    return stream.lane.unread
