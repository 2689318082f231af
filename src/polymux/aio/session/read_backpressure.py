"""Slow readers where the protocol has no credit: a bound on every pause.

Small amounts unread never hold up anybody. When the session's budget is full, reading stops and a
clock starts. It ends as soon as what was too much has been read. If that takes too long, the stream
that holds most is reset, and the next, until the session can go on.

What waits to be sent is held too: while the peer takes nothing, less is read of it. A quarter of
the budget is left to reading all the same, or two sides that only send would wait for each other.
"""

import asyncio
from typing import TYPE_CHECKING

from polymux.aio.session.component import SessionComponent
from polymux.aio.streams.duplex import Stream

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

MIN_READ_SHARE_DIVISOR = 4  # a quarter of the budget is for reading, however much waits to be sent
OVERHEAD_SHARE_DIVISOR = (
    3  # and a third for what is being read or put together, and for what all of it weighs
)


class ReadBackpressure(SessionComponent["Session"]):
    """Watches the unread bytes of one session and pauses its transport, never without end."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self.paused_at = 0.0
        self.pause_count = 0  # how often reading had to stop
        self.held = False  # nothing may be read for another reason
        self.held_at_stream_limit = (
            False  # nothing may be read until there is room for a stream: see `Crowd`
        )
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_paused(self) -> bool:
        """Is it this side that does not read?"""
        return self.held or self.held_at_stream_limit or self.paused_at > 0

    def hold(self, held: bool) -> None:
        """Read nothing, whatever is unread, or go on: a full disk says so."""
        self.held = held
        self._apply()

    def hold_at_stream_limit(self, held: bool) -> None:
        """Read nothing, or go on: there is no room for a stream that the peer has opened."""
        self.pause_count += held
        self.held_at_stream_limit = held
        self._apply()

    def _apply(self) -> None:
        transport = self.session.transport
        if transport is None or transport.is_closing():
            return
        if self.is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def update(self) -> None:
        """Bytes have come, were read, or have left."""
        session = self.session
        endpoint = session.endpoint
        transport = session.transport
        if transport is None or transport.is_closing():
            return
        if (
            endpoint.protocol.has_credit and not endpoint.protocol.content_is_messages
        ):  # messages have any size
            return
        unread = endpoint.receive_queue.unread_bytes
        if not self.paused_at:
            if (
                unread * MIN_READ_SHARE_DIVISOR > endpoint.limits.session_buffer_bytes
                and unread > self.allowed_unread()
            ):
                transport.pause_reading()
                self.paused_at = session.loop.time()
                self.pause_count += 1
                endpoint.counters.count("session_buffer_bytes")
                self._timer = session.loop.call_later(
                    session.timeouts.slow_reader, self.on_pause_timeout
                )
        elif unread <= self.allowed_unread():
            self.stop()
            self._apply()

    def allowed_unread(self) -> int:
        """Bytes that may wait unread now."""
        session = self.session
        endpoint = session.endpoint
        transport = session.transport
        budget = endpoint.limits.session_buffer_bytes
        held = endpoint.scheduler.ready_bytes
        if (
            transport is not None and session.socket_writer.blocked
        ):  # else it does not say when it ends
            held += transport.get_write_buffer_size()
        if endpoint.protocol.content_is_messages:
            # One that is not whole yet, and one that is being handed on.
            held += 2 * endpoint.protocol.max_frame_bytes
        return max(
            budget // MIN_READ_SHARE_DIVISOR, budget - budget // OVERHEAD_SHARE_DIVISOR - held
        )

    def on_pause_timeout(self) -> None:
        """The pause has lasted long enough: those who hold most make room."""
        session = self._session_ref()
        if session is None:  # nobody holds it any more
            return
        endpoint = session.endpoint
        limits = endpoint.limits
        while endpoint.receive_queue.unread_bytes > self.allowed_unread():
            hog = max(session.streams.values(), key=unread_bytes, default=None)
            if hog is None or not unread_bytes(hog):
                break
            endpoint.counters.count("stream_buffer_bytes")
            hog.abort_with_reason(
                f"not read for {session.timeouts.slow_reader:g} s while {unread_bytes(hog)} bytes waited "
                f"and held up the others; {limits.describe('session_buffer_bytes')}"
            )
        self.update()
        if self.paused_at:  # what is left belongs to nobody, and goes with what is yet to leave
            self._timer = session.loop.call_later(
                session.timeouts.slow_reader, self.on_pause_timeout
            )

    def stop(self) -> None:
        """No pause any more, and no clock."""
        self.paused_at = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def unread_bytes(stream: Stream) -> int:
    return stream.buffers.unread_bytes
