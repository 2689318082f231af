"""The hook: a session tells its meter when it begins and when it ends, and nothing in between.

Figures of open sessions are read when somebody asks, so a meter costs a session nothing while
octets flow. A meter keeps numbers of ended sessions, never the sessions.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Protocol

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation
from polymux.core.limits import Limits, Policy
from polymux.core.side import Side
from polymux.metrics.families import Family, Labels, counters, gauges

DEADLINES = frozenset(entry.name for entry in fields(Policy)) | {"silence"}
LIMITS = frozenset(entry.name for entry in fields(Limits)) | DEADLINES
OTHER = "other"  # what is counted under a name that is not ours to know


class Metered(Protocol):
    """What a meter reads of a session."""

    endpoint: Endpoint

    @property
    def failure(self) -> Exception | None: ...

    @property
    def written(self) -> int:
        """Octets handed to the transport."""

    @property
    def live(self) -> int:
        """Streams that are not over, or not read to their end."""

    @property
    def pauses(self) -> int:
        """How often reading had to stop for a slow reader."""


class Meter:
    """Adds up any number of sessions. One meter may serve many servers and clients."""

    def __init__(self) -> None:
        self._open: dict[int, Metered] = {}
        self._ended = {family.name: family for family in counters()}

    def __repr__(self) -> str:
        return f"<polymux meter, sessions open: {len(self._open)}>"

    # --- what a session says

    def begun(self, session: Metered) -> None:
        self._open[id(session)] = session
        self._ended["sessions_begun"].add(who(session), 1)

    def ended(self, session: Metered) -> None:
        """The session is over; its figures stay. Said twice, it counts once."""
        if self._open.pop(id(session), None) is None:
            return
        read(session, self._ended)
        if session.failure is not None:
            self._ended["sessions_failed"].add((*who(session), cause(session.failure)), 1)

    # --- what somebody asks

    def collect(self) -> list[Family]:
        """Everything counted so far, and the state of the open sessions. Changes nothing."""
        found = {name: family.copy() for name, family in self._ended.items()}
        now = {family.name: family for family in gauges()}
        for session in list(self._open.values()):
            read(session, found)
            look(session, now)
        return [*found.values(), *now.values()]


def who(session: Metered) -> Labels:
    endpoint = session.endpoint
    return (endpoint.protocol.name, Side(endpoint.side).name.lower())


def cause(failure: Exception) -> str:
    if isinstance(failure, LimitExceeded):
        return "limit"
    return "violation" if isinstance(failure, PeerViolation) else "lost"


def read(session: Metered, into: dict[str, Family]) -> None:
    """Add a session's counts."""
    endpoint = session.endpoint
    labels = who(session)
    protocol = labels[0]
    conversation = endpoint.conversation
    theirs = conversation.direction(1 - endpoint.side)
    sight = endpoint.protocol.sight
    into["streams_opened"].add(labels, conversation.serials)
    into["frames"].add((*labels, "in"), sight.sent(1 - endpoint.side))
    into["frames"].add((*labels, "out"), sight.sent(endpoint.side))
    into["bytes"].add((*labels, "in"), theirs.octets)
    into["bytes"].add((*labels, "out"), session.written)
    into["stalls"].add(labels, session.pauses)
    rules = {rule.name for rule in endpoint.protocol.rules}
    for name, count in list(endpoint.counters.hits.items()):
        if name in LIMITS:
            into["limit_hits"].add((protocol, name), count)
        else:
            known = name in rules or name.startswith("websocket.")
            into["violations"].add((protocol, name if known else OTHER), count)


def look(session: Metered, into: dict[str, Family]) -> None:
    """Add what a session holds at this moment."""
    endpoint = session.endpoint
    labels = who(session)
    blocked = 0
    for stream in endpoint.protocol.streams.all():
        lane = stream.lane
        if lane is not None and lane.queued > 0 and not lane.turn:
            blocked += 1
    into["sessions"].add(labels, 1)
    into["streams"].add(labels, session.live)
    into["streams_blocked"].add(labels, blocked)
    into["unread_bytes"].add(labels, endpoint.inbox.unread)
    into["queued_bytes"].add(labels, endpoint.outbox.queued)
    into["waiting_answers"].add(labels, len(endpoint.outbox.control))
