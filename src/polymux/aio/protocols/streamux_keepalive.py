"""Signs of life in Streamux: ours when we have been idle, and the peer's, without which it is gone.

The two have nothing to do with each other: how often we speak is the peer's wish, how long we bear
silence is ours.
"""

import asyncio
from typing import TYPE_CHECKING

from polymux.aio.session.component import SessionComponent
from polymux.core.errors import SessionClosed

if TYPE_CHECKING:
    from polymux.aio.protocols.streamux import StreamuxSession

SILENCE_GRACE_SECONDS = (
    0.5  # for bytes that came while this process itself was stopped and could not read
)
IDLE_CHECK_SECONDS = 3600.0  # seconds until the next look when there is nothing to look for


class Keepalive(SessionComponent["StreamuxSession"]):
    """One timer a session. Both times are seconds; 0 turns that one off."""

    def __init__(self, session: "StreamuxSession") -> None:
        super().__init__(session)
        self.interval = 0.0  # after how much idleness a keep alive is sent
        self.silence_timeout = 0.0  # how long the peer may say nothing
        self.sent_at = self.received_at = session.loop.time()
        self.sent_count = 0  # keep alives
        self._bytes_sent = 0  # bytes handed to the transport by then
        self._suspect_received_at = (
            -1.0
        )  # the last word of the peer that was found to be too long ago
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The initiators are known: both times follow from them until they are set."""
        session = self.session
        side = session.endpoint.side
        self.interval = session.protocol.keep_alive_interval(side)
        beat = session.protocol.keep_alive_interval(1 - side)
        self.silence_timeout = max(2 * session.timeouts.keepalive_interval, 3 * beat)
        self.sent_at = self.received_at = session.loop.time()
        self.update()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note_sent(self, bytes_sent: int) -> None:
        """So many bytes have been handed to the transport by now."""
        if bytes_sent != self._bytes_sent:
            self._bytes_sent = bytes_sent
            self.sent_at = self.session.loop.time()

    def update(self) -> None:
        """Do what is due, and come back when the next thing is."""
        self.stop()
        session = self.session_or_none()
        if session is None or session.close_reason is not None or session.shutdown.io_stopped:
            return
        now = session.loop.time()
        if session.read_backpressure.is_paused or session.all_peer_ids_in_use():
            self.received_at = now  # it is we who do not read or answer
        if self.silence_timeout and now - self.received_at >= self.silence_timeout:
            if self._suspect_received_at != self.received_at:
                self._suspect_received_at = self.received_at
                self._timer = session.loop.call_later(SILENCE_GRACE_SECONDS, self.update)
                return
            session.endpoint.counters.count("silence")
            session.fail(SessionClosed(
                f"the peer said nothing for {self.silence_timeout:g} s, not even a keep alive; "
                "allow more with session.silence = ..., 0 for ever"))  # fmt: skip
            return
        if self.interval and now - self.sent_at >= self.interval:
            self.sent_at = now
            self._send_keepalive()
        dues = [self.sent_at + self.interval] if self.interval else []
        if self.silence_timeout:
            dues.append(self.received_at + self.silence_timeout)
        due = min(dues, default=now + IDLE_CHECK_SECONDS)
        self._timer = session.loop.call_later(max(0.001, due - now), self.update)

    def _send_keepalive(self) -> None:
        """A keep alive, if nothing else is about to go and an id is free for it."""
        session = self.session
        endpoint = session.endpoint
        if session.socket_writer.blocked or endpoint.pending():
            return
        frame = session.protocol.keep_alive_frame(endpoint.side)
        if frame is not None:
            endpoint.send_frame(frame)
            self.sent_count += 1
            session.flush()
