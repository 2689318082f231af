"""Read backpressure: a session with slow readers pauses its transport, for a bounded time.

Where the protocol has credit, each stream limits its own sender and nothing here acts. Without
credit (mplex), or where content comes in whole messages of any size, the only way to slow the peer
down is to stop reading from the connection. That stops every stream: a single task that never reads
would block all others (head-of-line blocking) for ever. So:

- Reading pauses when the unread bytes exceed their share of `Limits.session_buffer_bytes`, and
  resumes as soon as they are below it again. Small amounts never pause anything.
- A pause lasts `Timeouts.slow_reader` seconds at most. Then the stream with the most unread bytes
  is aborted, and the next one, until the session is below its share.
- Data queued for sending counts against the same budget, so a peer that does not read is read from
  less. A quarter of the budget is always left for reading; otherwise two sides that only send would
  wait for each other.

Two other causes also hold reading: `hold` (a full disk) and `hold_at_stream_limit` (see
`excess_streams`). The transport reads only while none of the three applies.
"""

import asyncio

from polymux.aio.session.component import SessionComponent
from polymux.aio.session.interface import SessionInterface
from polymux.aio.streams.duplex import Stream

MIN_READ_SHARE_DIVISOR = 4  # a quarter of the budget is for unread data, whatever is queued
# A third of the budget is for data being read or reassembled, and for the overhead of all objects.
OVERHEAD_SHARE_DIVISOR = 3


class ReadBackpressure(SessionComponent[SessionInterface]):
    """Watches the unread bytes of one session and pauses its transport."""

    def __init__(self, session: SessionInterface) -> None:
        super().__init__(session)
        self.paused_at = 0.0  # loop time when slow readers paused reading; 0.0 while they do not
        self.pause_count = 0
        self.held = False  # reading is held by `hold`
        self.held_at_stream_limit = False  # reading is held by `hold_at_stream_limit`
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_paused(self) -> bool:
        """Whether this side does not read at the moment, for any cause."""
        return self.held or self.held_at_stream_limit or self.paused_at > 0

    def hold(self, held: bool) -> None:
        """Pause reading regardless of what is unread, or release that pause."""
        self.held = held
        self._apply()

    def hold_at_stream_limit(self, held: bool) -> None:
        """Pause reading while there is no room for a stream of the peer, or release that pause."""
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
        """Pause or resume reading. Called when bytes were received, read or sent."""
        session = self.session
        endpoint = session.endpoint
        transport = session.transport
        if transport is None or transport.is_closing():
            return
        if endpoint.protocol.has_credit and not endpoint.protocol.content_is_messages:
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
                    session.timeouts.slow_reader, self._on_pause_timeout
                )
        elif unread <= self.allowed_unread():
            self.stop()
            self._apply()

    def allowed_unread(self) -> int:
        """Return how many bytes may be unread now."""
        session = self.session
        endpoint = session.endpoint
        transport = session.transport
        budget = endpoint.limits.session_buffer_bytes
        held = endpoint.scheduler.ready_bytes
        # The transport's buffer counts only while writing is paused: only then does its end cause
        # another update.
        if transport is not None and session.socket_writer.blocked:
            held += transport.get_write_buffer_size()
        if endpoint.protocol.content_is_messages:
            # One message that is incomplete, and one that is being delivered.
            held += 2 * endpoint.protocol.max_frame_bytes
        return max(
            budget // MIN_READ_SHARE_DIVISOR, budget - budget // OVERHEAD_SHARE_DIVISOR - held
        )

    def _on_pause_timeout(self) -> None:
        """Abort the streams with the most unread bytes until the session can read again."""
        session = self.session_or_none()
        if session is None:
            return
        endpoint = session.endpoint
        limits = endpoint.limits
        seconds = session.timeouts.slow_reader
        while endpoint.receive_queue.unread_bytes > self.allowed_unread():
            largest = max(session.streams.values(), key=unread_bytes, default=None)
            if largest is None or not unread_bytes(largest):
                break
            endpoint.counters.count("stream_buffer_bytes")
            largest.abort_with_reason(
                f"not read for {seconds:g} s while {unread_bytes(largest)} bytes waited "
                f"and held up the other streams; {limits.describe('session_buffer_bytes')}"
            )
        self.update()
        if self.paused_at:  # the rest belongs to no stream and goes when queued data is sent
            self._timer = session.loop.call_later(seconds, self._on_pause_timeout)

    def stop(self) -> None:
        """End the pause for slow readers and cancel its timer."""
        self.paused_at = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def unread_bytes(stream: Stream) -> int:
    return stream.buffers.unread_bytes
