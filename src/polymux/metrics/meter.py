"""The hook: a session tells its meter when it begins and when it ends, and nothing in between.

Figures of open sessions are read when somebody asks, so a meter costs a session nothing while
bytes flow. A meter keeps numbers of ended sessions, never the sessions.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Protocol

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import Side
from polymux.metrics.families import Family, Labels, counters, gauges

TIMEOUT_NAMES = frozenset(entry.name for entry in fields(Timeouts)) | {"silence"}
LIMIT_NAMES = frozenset(entry.name for entry in fields(Limits)) | TIMEOUT_NAMES
UNKNOWN_RULE = "other"  # what is counted under a name that is not ours to know


class MeteredSession(Protocol):
    """What a meter reads of a session."""

    endpoint: Endpoint

    @property
    def failure(self) -> Exception | None: ...

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the transport."""

    @property
    def open_streams(self) -> int:
        """Streams that are not over, or not read to their end."""

    @property
    def read_pauses(self) -> int:
        """How often reading had to stop for a slow reader."""


class Meter:
    """Adds up any number of sessions. One meter may serve many servers and clients."""

    def __init__(self) -> None:
        self._open: dict[int, MeteredSession] = {}
        self._totals = {family.name: family for family in counters()}

    def __repr__(self) -> str:
        return f"<polymux meter, sessions open: {len(self._open)}>"

    # --- what a session says

    def begun(self, session: MeteredSession) -> None:
        self._open[id(session)] = session
        self._totals["sessions_begun"].add(labels_of(session), 1)

    def ended(self, session: MeteredSession) -> None:
        """The session is over; its figures stay. Said twice, it counts once."""
        if self._open.pop(id(session), None) is None:
            return
        add_counters(session, self._totals)
        if session.failure is not None:
            self._totals["sessions_failed"].add(
                (*labels_of(session), failure_cause(session.failure)), 1
            )

    # --- what somebody asks

    def collect(self) -> list[Family]:
        """Everything counted so far, and the state of the open sessions. Changes nothing."""
        found = {name: family.copy() for name, family in self._totals.items()}
        now = {family.name: family for family in gauges()}
        for session in list(self._open.values()):
            add_counters(session, found)
            add_gauges(session, now)
        return [*found.values(), *now.values()]


def labels_of(session: MeteredSession) -> Labels:
    endpoint = session.endpoint
    return (endpoint.protocol.name, Side(endpoint.side).name.lower())


def failure_cause(failure: Exception) -> str:
    if isinstance(failure, LimitExceeded):
        return "limit"
    return "violation" if isinstance(failure, PeerViolation) else "lost"


def add_counters(session: MeteredSession, families: dict[str, Family]) -> None:
    """Add a session's counts."""
    endpoint = session.endpoint
    labels = labels_of(session)
    protocol = labels[0]
    conversation = endpoint.connection
    theirs = conversation.direction(1 - endpoint.side)
    sight = endpoint.protocol.causality
    families["streams_opened"].add(labels, conversation.next_serial)
    families["frames"].add((*labels, "in"), sight.frames_sent(1 - endpoint.side))
    families["frames"].add((*labels, "out"), sight.frames_sent(endpoint.side))
    families["bytes"].add((*labels, "in"), theirs.total_bytes)
    families["bytes"].add((*labels, "out"), session.bytes_sent)
    families["stalls"].add(labels, session.read_pauses)
    rules = {rule.name for rule in endpoint.protocol.rules}
    for name, count in list(endpoint.counters.hits.items()):
        if name in LIMIT_NAMES:
            families["limit_hits"].add((protocol, name), count)
        else:
            known = name in rules or name.startswith("websocket.")
            families["violations"].add((protocol, name if known else UNKNOWN_RULE), count)


def add_gauges(session: MeteredSession, families: dict[str, Family]) -> None:
    """Add what a session holds at this moment."""
    endpoint = session.endpoint
    labels = labels_of(session)
    blocked = 0
    for stream in endpoint.protocol.streams.all():
        lane = stream.buffers
        if lane is not None and lane.queued_bytes > 0 and not lane.scheduled:
            blocked += 1
    families["sessions"].add(labels, 1)
    families["streams"].add(labels, session.open_streams)
    families["streams_blocked"].add(labels, blocked)
    families["unread_bytes"].add(labels, endpoint.receive_queue.unread_bytes)
    families["queued_bytes"].add(labels, endpoint.scheduler.ready_bytes)
    families["waiting_answers"].add(labels, len(endpoint.scheduler.control_queue))
