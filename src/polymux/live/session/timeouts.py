"""A session's timeouts: the handshake, the rest of a frame, writing, and keepalive by pings.

One periodic timer compares what has changed since its last tick. So neither receiving nor sending
has to start or cancel a timer.
"""

from polymux.core.errors import SessionClosed
from polymux.live.runtime import Timer
from polymux.live.session.component import SessionComponent
from polymux.live.session.interface import SessionInterface
from polymux.live.session.read_backpressure import ReadBackpressure

MAX_TICK_SECONDS = 1.0
MIN_TICK_SECONDS = 0.01


class TimeoutMonitor(SessionComponent[SessionInterface]):
    """Ends the session when a timeout has passed.

    A timeout is noticed within a tenth of the shortest of them, or a second if that is less.
    """

    def __init__(self, session: SessionInterface, read_backpressure: ReadBackpressure) -> None:
        super().__init__(session)
        self._read_backpressure = read_backpressure
        timeouts = session.timeouts
        shortest = min(
            timeouts.handshake, timeouts.frame, timeouts.write, timeouts.keepalive_interval
        )
        self._interval = min(MAX_TICK_SECONDS, max(MIN_TICK_SECONDS, shortest / 10))
        self._timer: Timer | None = None
        self._started_at = 0.0
        self._unfinished_offset = -1  # of the frame that was incomplete at the last tick
        self._unfinished_since = 0.0
        self._bytes_drained = -1  # bytes that had left the transport's buffer by the last tick
        self._drained_at = 0.0
        self._bytes_received = -1  # bytes received by the last tick, where there are pings
        self._received_at = 0.0
        self._pinged_at = 0.0

    def start(self) -> None:
        self._started_at = self._received_at = self.session.runtime.time()
        self._timer = self.session.runtime.call_later(self._interval, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        session = self.session_or_none()
        if session is None:
            return
        timeouts = session.timeouts
        now = session.runtime.time()
        self._timer = session.runtime.call_later(self._interval, self._tick)
        if not session.ready.done() and now - self._started_at >= timeouts.handshake:
            self._on_timeout("handshake", "no handshake from the peer")
        elif self._unfinished_frame_age(now) >= timeouts.frame:
            self._on_timeout("frame", "the peer left a frame unfinished")
        elif self._write_stall_age(now) >= timeouts.write:
            self._on_timeout("write", "the peer accepted no data")
        elif session.endpoint.can_ping():
            self._ping_if_silent(now)

    def _on_timeout(self, name: str, what: str) -> None:
        session = self.session
        allowed = getattr(session.timeouts, name)
        session.endpoint.counters.count(name)
        session.fail(
            SessionClosed(
                f"{what} for {allowed:g} s: deadline {name}={allowed:g}; "
                f"allow more with Timeouts({name}=...)"
            )
        )

    def _unfinished_frame_age(self, now: float) -> float:
        """Return for how many seconds the same frame has been incomplete while this side read.

        Content is delivered in parts and is never incomplete, except where it is delivered in whole
        messages: there every received byte counts as progress.
        """
        endpoint = self.session.endpoint
        direction = endpoint.connection.direction(1 - endpoint.side)
        buffered = direction.buffered_bytes()
        if endpoint.websocket is not None:
            buffered = endpoint.websocket.direction_decoder(1 - endpoint.side).decoder.pending()
        offset = -1
        if buffered and not self._read_backpressure.is_paused:
            progress = buffered if endpoint.protocol.content_is_messages else 0
            offset = direction.offset + progress
        if offset < 0 or offset != self._unfinished_offset:
            self._unfinished_offset = offset
            self._unfinished_since = now
        return now - self._unfinished_since

    def _write_stall_age(self, now: float) -> float:
        """Return for how many seconds not a byte has left the transport's buffer."""
        session = self.session
        transport = session.transport
        held = transport.get_write_buffer_size() if transport is not None else 0
        drained = session.socket_writer.bytes_sent - held
        if held == 0 or drained != self._bytes_drained:
            self._bytes_drained = drained
            self._drained_at = now
        return now - self._drained_at

    def _ping_if_silent(self, now: float) -> None:
        """Ping a silent peer where there are pings; end the session if it stays silent.

        Only so is a peer noticed whose process is stopped while its system keeps the connection.
        """
        session = self.session
        endpoint = session.endpoint
        received = endpoint.peer_bytes()
        if received != self._bytes_received or self._read_backpressure.is_paused:
            self._bytes_received = received
            self._received_at = now
        interval = session.timeouts.keepalive_interval
        silence = now - self._received_at
        if silence >= 2 * interval:
            endpoint.counters.count("keepalive_interval")
            session.fail(
                SessionClosed(
                    f"the peer said nothing for {2 * interval:g} s and answered no ping: "
                    f"deadline keepalive_interval={interval:g}; "
                    "allow more with Timeouts(keepalive_interval=...)"
                )
            )
        elif silence >= interval and now - self._pinged_at >= interval:
            self._pinged_at = now
            endpoint.queue_ping()
            session.schedule_flush()
