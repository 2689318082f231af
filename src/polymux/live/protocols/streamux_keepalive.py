"""Streamux keep-alives: sent when this side is idle, and expected from the peer.

The two intervals are independent. How often this side sends follows from the timeout the peer has
announced; how long it accepts silence follows from this side's own settings.
"""

from typing import TYPE_CHECKING

from polymux.core.errors import SessionClosed
from polymux.live.runtime import Timer
from polymux.live.session.component import SessionComponent

if TYPE_CHECKING:
    from polymux.live.protocols.streamux import StreamuxSession

# Bytes may be waiting in the socket because this process itself was suspended: read them first.
SILENCE_GRACE_SECONDS = 0.5
IDLE_CHECK_SECONDS = 3600.0  # timer interval while both functions are off


class Keepalive(SessionComponent["StreamuxSession"]):
    """One timer per session for both intervals. They are in seconds; 0 turns one off."""

    def __init__(self, session: "StreamuxSession") -> None:
        super().__init__(session)
        self.interval = 0.0  # send a keep-alive after this time without sending
        self.silence_timeout = 0.0  # fail after this time without receiving
        self.sent_at = self.received_at = session.runtime.time()
        self.sent_count = 0  # keep-alives sent
        self._suspect_received_at = -1.0  # `received_at` for which the grace period has begun
        self._timer: Timer | None = None

    def start(self) -> None:
        """The handshake is done: derive both intervals from it, until the application sets them."""
        session = self.session
        side = session.endpoint.side
        self.interval = session.protocol.keep_alive_interval(side)
        peer_interval = session.protocol.keep_alive_interval(1 - side)
        self.silence_timeout = max(2 * session.timeouts.keepalive_interval, 3 * peer_interval)
        self.sent_at = self.received_at = session.runtime.time()
        self.update()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def update(self) -> None:
        """Send a keep-alive or fail the session if that is due, and set the timer."""
        self.stop()
        session = self.session_or_none()
        if session is None or session.close_reason is not None or session.shutdown.io_stopped:
            return
        now = session.runtime.time()
        endpoint = session.endpoint
        sent_ns: int = session.socket_writer.sent_at
        received_ns: int = endpoint.connection.direction(1 - endpoint.side).received_at
        self.sent_at = max(self.sent_at, sent_ns / 1e9)
        self.received_at = max(self.received_at, received_ns / 1e9)
        if session.read_backpressure.is_paused or session.all_peer_ids_in_use():
            self.received_at = now  # this side does not read or answer: no blame on the peer
        if self.silence_timeout and now - self.received_at >= self.silence_timeout:
            if self._suspect_received_at != self.received_at:
                self._suspect_received_at = self.received_at
                self._timer = session.runtime.call_later(SILENCE_GRACE_SECONDS, self.update)
                return
            session.endpoint.counters.count("silence")
            session.fail(
                SessionClosed(
                    f"the peer sent nothing for {self.silence_timeout:g} s, not even a keep alive; "
                    "allow more with session.silence = ..., 0 for no limit"
                )
            )
            return
        if self.interval and now - self.sent_at >= self.interval:
            self.sent_at = now
            self._send_keepalive()
        deadlines = [self.sent_at + self.interval] if self.interval else []
        if self.silence_timeout:
            deadlines.append(self.received_at + self.silence_timeout)
        due = min(deadlines, default=now + IDLE_CHECK_SECONDS)
        self._timer = session.runtime.call_later(max(0.001, due - now), self.update)

    def _send_keepalive(self) -> None:
        """Send a keep-alive unless other data is about to be sent or no id is free for it."""
        session = self.session
        endpoint = session.endpoint
        if session.socket_writer.blocked or endpoint.pending():
            return
        frame = session.protocol.keep_alive_frame(endpoint.side)
        if frame is not None:
            endpoint.send_frame(frame)
            self.sent_count += 1
            session.flush()
