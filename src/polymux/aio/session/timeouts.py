"""What a session waits for only so long: the handshake, the rest of a frame, room to write."""

import asyncio
from typing import TYPE_CHECKING

from polymux.aio.session.component import Belonging
from polymux.core.errors import SessionClosed

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

TICK = 1.0  # how often deadlines are looked at, at most


class Deadlines(Belonging["Session"]):
    """One timer a session; a deadline is noticed within a tenth of the shortest, or a second."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        policy = session.policy
        shortest = min(policy.handshake, policy.header, policy.write, policy.keepalive)
        self._tick = min(TICK, max(0.01, shortest / 10))
        self._timer: asyncio.TimerHandle | None = None
        self._begun = 0.0
        self._offset = -1  # of the frame that was unfinished at the last tick
        self._unfinished_since = 0.0
        self._taken = -1  # octets the peer's side of the transport had taken by the last tick
        self._taken_at = 0.0
        self._heard = -1  # octets of the carrier that had come by the last tick
        self._heard_at = 0.0
        self._asked_at = 0.0

    def start(self) -> None:
        self._begun = self._heard_at = self.session.loop.time()
        self._timer = self.session.loop.call_later(self._tick, self.tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        session = self._session()
        if session is None:  # nobody holds it any more
            return
        policy = session.policy
        now = session.loop.time()
        self._timer = session.loop.call_later(self._tick, self.tick)
        if not session.ready.done() and now - self._begun >= policy.handshake:
            self._miss("handshake", "the peer's handshake did not come")
        elif self._unfinished(now) >= policy.header:
            self._miss("header", "the peer left a frame unfinished")
        elif self._stuck(now) >= policy.write:
            self._miss("write", "the peer took nothing")
        elif session.endpoint.carrier is not None:
            self._ask(now)

    def _miss(self, name: str, what: str) -> None:
        session = self.session
        allowed = getattr(session.policy, name)
        session.endpoint.counters.count(name)
        session._fail(SessionClosed(
            f"{what} for {allowed:g} s: deadline {name}={allowed:g}; "
            f"allow more with Policy({name}=...)"))  # fmt: skip

    def _unfinished(self, now: float) -> float:
        """How long the same frame has been waiting for its end, while we were reading.

        Content passes in parts and never waits, save where it is handed on in whole messages: there
        every octet that comes counts as progress.
        """
        session = self.session
        endpoint = session.endpoint
        d = endpoint.conversation.direction(1 - endpoint.side)
        waiting = d.waiting()
        if endpoint.carrier is not None:
            waiting = endpoint.carrier.course(1 - endpoint.side).decoder.pending()
        mark = -1
        if waiting and not session._pacing.is_idle:
            mark = d.offset + (waiting if endpoint.protocol.messages else 0)
        if mark < 0 or mark != self._offset:
            self._offset = mark
            self._unfinished_since = now
        return now - self._unfinished_since

    def _stuck(self, now: float) -> float:
        """How long the transport has not got rid of a single octet."""
        transport = self.session.transport
        held = transport.get_write_buffer_size() if transport is not None else 0
        taken = self.session.written - held
        if held == 0 or taken != self._taken:
            self._taken = taken
            self._taken_at = now
        return now - self._taken_at

    def _ask(self, now: float) -> None:
        """A carrier that can ask does: a peer that is stopped but not gone is noticed only so."""
        session = self.session
        endpoint = session.endpoint
        carrier = endpoint.carrier
        assert carrier is not None
        heard = carrier.course(1 - endpoint.side).decoder.offset
        if heard != self._heard or session._pacing.is_idle:
            self._heard = heard
            self._heard_at = now
        interval = session.policy.keepalive
        silence = now - self._heard_at
        if silence >= 2 * interval:
            endpoint.counters.count("keepalive")
            session._fail(SessionClosed(
                f"the peer said nothing for {2 * interval:g} s and answered no ping: deadline "
                f"keepalive={interval:g}; allow more with Policy(keepalive=...)"))  # fmt: skip
        elif silence >= interval and now - self._asked_at >= interval:
            self._asked_at = now
            carrier.ask()
            session._flush_soon()
