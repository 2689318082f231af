"""What a session waits for only so long: the handshake, the rest of a frame, room to write."""

import asyncio
from typing import TYPE_CHECKING

from polymux.aio.session.component import SessionComponent
from polymux.core.errors import SessionClosed

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

MAX_TICK_SECONDS = 1.0  # how often deadlines are looked at, at most


class TimeoutMonitor(SessionComponent["Session"]):
    """One timer a session; a deadline is noticed within a tenth of the shortest, or a second."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        policy = session.timeouts
        shortest = min(policy.handshake, policy.frame, policy.write, policy.keepalive_interval)
        self._interval = min(MAX_TICK_SECONDS, max(0.01, shortest / 10))
        self._timer: asyncio.TimerHandle | None = None
        self._started_at = 0.0
        self._unfinished_offset = -1  # of the frame that was unfinished at the last tick
        self._unfinished_since = 0.0
        self._bytes_drained = (
            -1
        )  # bytes the peer's side of the transport had taken by the last tick
        self._drained_at = 0.0
        self._bytes_received = -1  # bytes of the carrier that had come by the last tick
        self._received_at = 0.0
        self._pinged_at = 0.0

    def start(self) -> None:
        self._started_at = self._received_at = self.session.loop.time()
        self._timer = self.session.loop.call_later(self._interval, self.tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        session = self._session_ref()
        if session is None:  # nobody holds it any more
            return
        policy = session.timeouts
        now = session.loop.time()
        self._timer = session.loop.call_later(self._interval, self.tick)
        if not session.ready.done() and now - self._started_at >= policy.handshake:
            self._on_timeout("handshake", "the peer's handshake did not come")
        elif self._unfinished_frame_age(now) >= policy.frame:
            self._on_timeout("frame", "the peer left a frame unfinished")
        elif self._write_stall_age(now) >= policy.write:
            self._on_timeout("write", "the peer took nothing")
        elif session.endpoint.websocket is not None:
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
        """How long the same frame has been waiting for its end, while we were reading.

        Content passes in parts and never waits, save where it is handed on in whole messages: there
        every byte that comes counts as progress.
        """
        session = self.session
        endpoint = session.endpoint
        d = endpoint.connection.direction(1 - endpoint.side)
        waiting = d.buffered_bytes()
        if endpoint.websocket is not None:
            waiting = endpoint.websocket.direction_decoder(1 - endpoint.side).decoder.pending()
        mark = -1
        if waiting and not session.read_backpressure.is_paused:
            mark = d.offset + (waiting if endpoint.protocol.content_is_messages else 0)
        if mark < 0 or mark != self._unfinished_offset:
            self._unfinished_offset = mark
            self._unfinished_since = now
        return now - self._unfinished_since

    def _write_stall_age(self, now: float) -> float:
        """How long the transport has not got rid of a single byte."""
        transport = self.session.transport
        held = transport.get_write_buffer_size() if transport is not None else 0
        taken = self.session.bytes_sent - held
        if held == 0 or taken != self._bytes_drained:
            self._bytes_drained = taken
            self._drained_at = now
        return now - self._drained_at

    def _ping_if_silent(self, now: float) -> None:
        """A carrier that can ask does: a peer that is stopped but not gone is noticed only so."""
        session = self.session
        endpoint = session.endpoint
        carrier = endpoint.websocket
        assert carrier is not None
        heard = carrier.direction_decoder(1 - endpoint.side).decoder.offset
        if heard != self._bytes_received or session.read_backpressure.is_paused:
            self._bytes_received = heard
            self._received_at = now
        interval = session.timeouts.keepalive_interval
        silence = now - self._received_at
        if silence >= 2 * interval:
            endpoint.counters.count("keepalive_interval")
            session.fail(
                SessionClosed(
                    f"the peer said nothing for {2 * interval:g} s and answered no ping: deadline "
                    f"keepalive_interval={interval:g}; allow more with Timeouts(keepalive_interval=...)"
                )
            )
        elif silence >= interval and now - self._pinged_at >= interval:
            self._pinged_at = now
            carrier.queue_ping()
            session.schedule_flush()
