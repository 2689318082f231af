"""Signs of life in Streamux: ours when we have been idle, and the peer's, without which it is gone.

The two have nothing to do with each other: how often we speak is the peer's wish, how long we bear
silence is ours.
"""

import asyncio
from typing import TYPE_CHECKING

from polymux.aio.session.component import Belonging
from polymux.core.errors import SessionClosed

if TYPE_CHECKING:
    from polymux.aio.protocols.streamux import StreamuxSession

GRACE = 0.5  # for octets that came while this process itself was stopped and could not read
IDLE = 3600.0  # seconds until the next look when there is nothing to look for


class Signs(Belonging["StreamuxSession"]):
    """One timer a session. Both times are seconds; 0 turns that one off."""

    def __init__(self, session: "StreamuxSession") -> None:
        super().__init__(session)
        self.every = 0.0  # after how much idleness a keep alive is sent
        self.silence = 0.0  # how long the peer may say nothing
        self.sent_at = self.heard_at = session.loop.time()
        self.sent = 0  # keep alives
        self._written = 0  # octets handed to the transport by then
        self._doubted = -1.0  # the last word of the peer that was found to be too long ago
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The initiators are known: both times follow from them until they are set."""
        session = self.session
        side = session.endpoint.side
        self.every = session.protocol.keep_alive_interval(side)
        beat = session.protocol.keep_alive_interval(1 - side)
        self.silence = max(2 * session.policy.keepalive, 3 * beat)
        self.sent_at = self.heard_at = session.loop.time()
        self.look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self, written: int) -> None:
        """So many octets have been handed to the transport by now."""
        if written != self._written:
            self._written = written
            self.sent_at = self.session.loop.time()

    def look(self) -> None:
        """Do what is due, and come back when the next thing is."""
        self.stop()
        session = self._session()
        if session is None or session._over is not None or session._ending.shut:
            return
        now = session.loop.time()
        if session._pacing.is_idle or session._all_asked():
            self.heard_at = now  # it is we who do not read or answer
        if self.silence and now - self.heard_at >= self.silence:
            if self._doubted != self.heard_at:
                self._doubted = self.heard_at
                self._timer = session.loop.call_later(GRACE, self.look)
                return
            session.endpoint.counters.count("silence")
            session._fail(SessionClosed(
                f"the peer said nothing for {self.silence:g} s, not even a keep alive; "
                "allow more with session.silence = ..., 0 for ever"))  # fmt: skip
            return
        if self.every and now - self.sent_at >= self.every:
            self.sent_at = now
            self._beat()
        dues = [self.sent_at + self.every] if self.every else []
        if self.silence:
            dues.append(self.heard_at + self.silence)
        due = min(dues, default=now + IDLE)
        self._timer = session.loop.call_later(max(0.001, due - now), self.look)

    def _beat(self) -> None:
        """A keep alive, if nothing else is about to go and an id is free for it."""
        session = self.session
        endpoint = session.endpoint
        if session._leaving.blocked or endpoint.pending():
            return
        frame = session.protocol.keep_alive(endpoint.side)
        if frame is not None:
            endpoint.put(frame)
            self.sent += 1
            session._flush()
