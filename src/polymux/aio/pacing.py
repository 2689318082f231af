"""Slow readers where the protocol has no credit: a bound on every pause.

Small amounts unread never hold up anybody. When the session's budget is full, reading stops and a
clock starts; if the application reads nothing in time, the stream that holds most is reset.
"""

from typing import TYPE_CHECKING

from .duplex import Stream

if TYPE_CHECKING:
    from .session import Session


class Pacing:
    """Watches the unread octets of one session and pauses its transport, never without end."""

    def __init__(self, session: "Session") -> None:
        self.session = session
        self.paused_at = 0.0
        self.held = 0  # unread octets when the clock last started

    def look(self) -> None:
        """Octets have come or were read."""
        endpoint = self.session.endpoint
        transport = self.session.transport
        budget = endpoint.limits.session_buffer
        if transport is None or transport.is_closing() or endpoint.protocol.credit:
            return
        unread = endpoint.inbox.unread
        if not self.paused_at and unread > budget:
            transport.pause_reading()
            self.paused_at = self.session.loop.time()
            self.held = unread
            endpoint.counters.count("session_buffer")
            self.session.loop.call_later(self.session.policy.pause, self.expire, self.paused_at)
        elif self.paused_at and unread <= budget // 2:
            self.paused_at = 0.0
            transport.resume_reading()

    def expire(self, since: float) -> None:
        """The pause has lasted long enough: go on if something was read, else reset the hog."""
        if self.paused_at != since:
            return
        endpoint = self.session.endpoint
        if endpoint.inbox.unread < self.held:  # progress: another span of patience
            self.paused_at = self.session.loop.time()
            self.held = endpoint.inbox.unread
            self.session.loop.call_later(self.session.policy.pause, self.expire, self.paused_at)
            self.look()
            return
        hog = max(self.session._live.values(), key=unread_of, default=None)
        if hog is not None and unread_of(hog):
            endpoint.counters.count("stream_buffer")
            hog.give_up(
                f"unread for {self.session.policy.pause:g} s with {unread_of(hog)} octets waiting; "
                + endpoint.limits.describe("session_buffer")
            )
        self.held = endpoint.inbox.unread
        self.look()
        if self.paused_at == since:
            self.session.loop.call_later(self.session.policy.pause, self.expire, since)

    def tick(self, now: float) -> None:
        self.look()


def unread_of(stream: Stream) -> int:
    return stream.lane.unread
