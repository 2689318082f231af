"""`Meter`: adds up the counters of sessions.

A session notifies its meter only when it begins and when it ends. The counters of open sessions are
read in `collect`, so a meter costs nothing while data is transferred. Of ended sessions the meter
keeps totals, never the session object.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, fields
from typing import Final, Protocol

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import Side
from polymux.core.stream_table import StreamTable
from polymux.core.streams import OPEN, StreamState
from polymux.metrics.families import Family, Labels, counters, gauges

TIMEOUT_NAMES = frozenset(entry.name for entry in fields(Timeouts)) | {"silence"}
LIMIT_NAMES = frozenset(entry.name for entry in fields(Limits)) | TIMEOUT_NAMES
UNKNOWN_RULE = "other"  # label for names that are neither a limit nor a known rule
MAX_PEERS = 1000  # peers with a label of their own; more share one
FURTHER_PEERS = "other"
# In one answer of `Meter.state`, which the program's event loop has to make.
MAX_LISTED_SESSIONS: Final = 1000
MAX_LISTED_STREAMS: Final = 4096  # of all listed sessions together
MAX_LISTED_NAME_BYTES: Final = 256  # of a stream's name
MAX_EXAMINED_SLOTS: Final = 32768  # of stream tables: two slots or more for each stream


class MeteredSession(Protocol):
    """The part of a session that a meter reads."""

    endpoint: Endpoint

    peer: str  # address or URL of the peer

    @property
    def peer_identity(self) -> object | None:
        """The names in the peer's certificate, if it was verified."""

    @property
    def failure(self) -> Exception | None: ...

    @property
    def bytes_sent(self) -> int:
        """Bytes given to the transport."""

    @property
    def open_streams(self) -> int:
        """Streams that are not closed, or not read to their end."""

    @property
    def read_pauses(self) -> int:
        """How often reading has paused for a slow reader."""


class Meter:
    """Adds up any number of sessions, of any number of servers and clients.

    Pass it as `meter` to `connect` and `serve`. Not thread-safe: call `collect` from the event loop
    of the sessions.
    """

    def __init__(self) -> None:
        self._open: dict[int, MeteredSession] = {}
        self._totals = {family.name: family for family in counters()}
        self._surveys: dict[int, Survey] = {}  # by session, while one of them is large

    def __repr__(self) -> str:
        return f"<polymux meter, sessions open: {len(self._open)}>"

    # Called by sessions

    def begun(self, session: MeteredSession) -> None:
        """A session has begun."""
        self._open[id(session)] = session
        self._totals["sessions_begun"].add(labels_of(session), 1)
        if session.peer_identity is not None:
            family = self._totals["identified_sessions"]
            labels = (session.endpoint.protocol.name, str(session.peer_identity))
            if labels not in family.values and len(family.values) >= MAX_PEERS:
                labels = (labels[0], FURTHER_PEERS)
            family.add(labels, 1)

    def limit_hit(self, protocol: str, limit: str) -> None:
        """A limit on the connections of a server was hit."""
        self._totals["limit_hits"].add((protocol, limit), 1)

    def ended(self, session: MeteredSession) -> None:
        """A session has ended: add its counters to the totals. A second call has no effect."""
        if self._open.pop(id(session), None) is None:
            return
        self._surveys.pop(id(session), None)
        add_counters(session, self._totals)
        if session.failure is not None:
            self._totals["sessions_failed"].add(
                (*labels_of(session), failure_cause(session.failure)), 1
            )

    def refused(self, peer: str, reason: str) -> None:
        """A server has refused a peer."""
        self._totals["refused"].add((), 1)

    # Called by users

    def collect(self) -> list[Family]:
        """Return all families: totals including open sessions, and gauges of open sessions."""
        totals = {name: family.copy() for name, family in self._totals.items()}
        current = {family.name: family for family in gauges()}
        for session in list(self._open.values()):
            add_counters(session, totals)
            add_gauges(session, current)
        return [*totals.values(), *current.values()]

    def state(self) -> dict[str, object]:
        """Return the open sessions and their streams, as plain data: for `StateSocket`.

        At most MAX_LISTED_SESSIONS sessions are listed, those with the most waiting streams, then
        with the most bytes; and of these at most MAX_LISTED_STREAMS streams in all, those with the
        most data waiting, then with the most bytes. `left_out` has how many are not listed;
        `totals` includes them. Names and addresses are those of the peers, and not escaped; a name
        is cut to MAX_LISTED_NAME_BYTES.

        With more than about 10,000 open streams, one answer examines a part of them, and those that
        waited in the last answer; the next one goes on with the next part. `waiting_streams` then
        counts those that were examined. `open_streams` counts all.
        """
        seen = self._survey()
        sessions = seen
        if len(seen) > MAX_LISTED_SESSIONS:
            sessions = heapq.nlargest(MAX_LISTED_SESSIONS, seen, key=OpenSession.rank)
        streams = listed_streams(sessions)
        open_streams = sum(each.open_streams for each in seen)
        return {
            "kind": "sessions",
            "ended_sessions": sum(self._totals["sessions_begun"].values.values()) - len(seen),
            "totals": {
                "sessions": len(seen),
                "streams": sum(each.session.endpoint.connection.next_serial for each in seen),
                "open_streams": open_streams,
                "waiting_streams": sum(each.waiting_streams for each in seen),
                "frames": sum(each.frames_sent + each.frames_received for each in seen),
                "bytes": sum(each.bytes_sent + each.bytes_received for each in seen),
                "violations": sum(sum(each.violations().values()) for each in seen),
            },
            "left_out": {
                "sessions": len(seen) - len(sessions),
                "streams": open_streams - sum(map(len, streams.values())),
            },
            "sessions": [session_state(each, streams[each.number]) for each in sessions],
        }

    def _survey(self) -> list[OpenSession]:
        """Look at the open sessions and, of all their streams together, a bounded number."""
        tables = {number: each.endpoint.protocol.streams for number, each in self._open.items()}
        sizes = {number: table.slot_count() for number, table in tables.items()}
        if sum(sizes.values()) <= MAX_EXAMINED_SLOTS:
            self._surveys.clear()
            return [
                OpenSession.of(number, session, tables[number].all(), None)
                for number, session in self._open.items()
            ]
        shares = fair_shares(sizes, MAX_EXAMINED_SLOTS)
        seen = []
        for number, session in self._open.items():
            survey = self._surveys.setdefault(number, Survey())
            chosen = survey.choose(tables[number], shares[number])
            complete = shares[number] >= sizes[number]
            each = OpenSession.of(
                number, session, chosen, None if complete else session.open_streams
            )
            survey.waiting = each.waiting
            seen.append(each)
        return seen


class Survey:
    """The examination of a session with very many streams, a part of them in each answer.

    Attributes:
        next_slot: of the stream table, where the next part begins.
        waiting: streams that waited when they were last examined.
    """

    def __init__(self) -> None:
        self.next_slot = 0
        self.waiting: list[StreamState] = []

    def choose(self, table: StreamTable, slots: int) -> list[StreamState]:
        """The streams to examine: the next part of the table, and as many of those that waited."""
        found = {id(stream): stream for stream in table.in_slots(self.next_slot, slots)}
        self.next_slot = (self.next_slot + slots) % table.slot_count()
        for stream in self.waiting[:slots]:
            found.setdefault(id(stream), stream)
        return list(found.values())


def fair_shares(sizes: dict[int, int], total: int) -> dict[int, int]:
    """Divide `total` among parts of these sizes: small ones get all they need, others as much."""
    shares = {}
    for position, (key, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        shares[key] = min(size, max(1, total // (len(sizes) - position)))
        total -= shares[key]
    return shares


@dataclass(slots=True)
class OpenSession:
    """A session at the moment of `Meter.state`; `number` tells it from the others.

    `streams` are those of the examined ones that are open, or have data that is not sent or not
    read. A stream is in `waiting` if it has data that was not read, or that there is no credit to
    send.
    """

    number: int
    session: MeteredSession
    streams: list[StreamState]
    waiting: list[StreamState]
    open_streams: int
    frames_sent: int
    frames_received: int
    bytes_sent: int
    bytes_received: int

    @staticmethod
    def of(
        number: int,
        session: MeteredSession,
        examined: list[StreamState],
        open_streams: int | None,
    ) -> OpenSession:
        """Look at a session. `open_streams`: how many it has; None if all are `examined`."""
        endpoint = session.endpoint
        own, peer = endpoint.side, 1 - endpoint.side
        causality = endpoint.protocol.causality
        streams: list[StreamState] = []
        waiting: list[StreamState] = []
        for stream in examined:
            buffers = stream.buffers
            if buffers is not None and (buffers.unread_bytes or buffers.queued_bytes):
                streams.append(stream)
                if buffers.unread_bytes or not buffers.scheduled:
                    waiting.append(stream)
            elif not stream.over:
                streams.append(stream)
        return OpenSession(
            number, session, streams, waiting,
            len(streams) if open_streams is None else max(open_streams, len(streams)),
            causality.frames_sent(own), causality.frames_sent(peer),
            session.bytes_sent, endpoint.connection.direction(peer).total_bytes,
        )  # fmt: skip

    @property
    def waiting_streams(self) -> int:
        return len(self.waiting)

    def rank(self) -> tuple[int, int]:
        """What is listed first if not all can be."""
        return self.waiting_streams, self.bytes_sent + self.bytes_received

    def violations(self) -> dict[str, int]:
        """How often the peer broke each rule."""
        hits = self.session.endpoint.counters.hits
        return {name: count for name, count in list(hits.items()) if name not in LIMIT_NAMES}


def listed_streams(sessions: list[OpenSession]) -> dict[int, list[StreamState]]:
    """The streams to list, by the number of their session: MAX_LISTED_STREAMS at most."""
    if sum(len(each.streams) for each in sessions) <= MAX_LISTED_STREAMS:
        return {each.number: each.streams for each in sessions}
    streams = ((each.number, stream) for each in sessions for stream in each.streams)
    found: dict[int, list[StreamState]] = {each.number: [] for each in sessions}
    for number, stream in heapq.nlargest(MAX_LISTED_STREAMS, streams, key=stream_rank):
        found[number].append(stream)
    return found


def labels_of(session: MeteredSession) -> Labels:
    endpoint = session.endpoint
    return (endpoint.protocol.name, Side(endpoint.side).name.lower())


def failure_cause(failure: Exception) -> str:
    if isinstance(failure, LimitExceeded):
        return "limit"
    return "violation" if isinstance(failure, PeerViolation) else "lost"


def add_counters(session: MeteredSession, families: dict[str, Family]) -> None:
    """Add the counters of a session to `families`."""
    endpoint = session.endpoint
    labels = labels_of(session)
    protocol = labels[0]
    connection = endpoint.connection
    causality = endpoint.protocol.causality
    families["streams_opened"].add(labels, connection.next_serial)
    families["frames"].add((*labels, "in"), causality.frames_sent(1 - endpoint.side))
    families["frames"].add((*labels, "out"), causality.frames_sent(endpoint.side))
    families["bytes"].add((*labels, "in"), connection.direction(1 - endpoint.side).total_bytes)
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
    """Add the current state of a session to `families`."""
    endpoint = session.endpoint
    labels = labels_of(session)
    blocked = sum(map(is_blocked, endpoint.protocol.streams.all()))
    families["sessions"].add(labels, 1)
    families["streams"].add(labels, session.open_streams)
    families["streams_blocked"].add(labels, blocked)
    families["unread_bytes"].add(labels, endpoint.receive_queue.unread_bytes)
    families["queued_bytes"].add(labels, endpoint.scheduler.ready_bytes)
    families["waiting_answers"].add(labels, len(endpoint.scheduler.control_queue))


def is_blocked(stream: StreamState) -> bool:
    """Whether a stream has queued data and no credit to send it."""
    buffers = stream.buffers
    return buffers is not None and buffers.queued_bytes > 0 and not buffers.scheduled


def session_state(each: OpenSession, streams: list[StreamState]) -> dict[str, object]:
    """The state of one session for `Meter.state`, with those of its streams that are listed."""
    session = each.session
    endpoint = session.endpoint
    return {
        "id": f"{each.number:x}",
        "protocol": endpoint.protocol.name,
        "side": labels_of(session)[1],
        "peer": session.peer,
        "stream_count": endpoint.connection.next_serial,
        "open_streams": each.open_streams,
        "waiting_streams": each.waiting_streams,
        "frames_sent": each.frames_sent,
        "frames_received": each.frames_received,
        "bytes_sent": each.bytes_sent,
        "bytes_received": each.bytes_received,
        "queued_bytes": endpoint.scheduler.ready_bytes,
        "unread_bytes": endpoint.receive_queue.unread_bytes,
        "read_pauses": session.read_pauses,
        "violations": each.violations(),
        "streams": [stream_state(stream, endpoint.side) for stream in streams],
    }


def stream_rank(numbered: tuple[int, StreamState]) -> tuple[int, int]:
    """What is listed first if not all can be: where data waits, then where most was sent."""
    stream = numbered[1]
    buffers = stream.buffers
    waiting = 0 if buffers is None else buffers.queued_bytes + buffers.unread_bytes
    return int(waiting), int(stream.half(0).content_bytes + stream.half(1).content_bytes)


def stream_state(stream: StreamState, own: int) -> dict[str, object]:
    """The state of one stream; `own` is the side of this process."""
    buffers, name = stream.buffers, stream.name
    half, peer_half = stream.half(own), stream.half(1 - own)
    credit = half.credit_granted - half.credit_spent if half.credit_granted >= 0 else None
    return {
        "key": stream.label(),
        "name": None if name is None else name[:MAX_LISTED_NAME_BYTES].decode(errors="replace"),
        "bytes_sent": half.content_bytes,
        "bytes_received": peer_half.content_bytes,
        "frames": half.frames + peer_half.frames,
        "queued_bytes": 0 if buffers is None else buffers.queued_bytes,
        "unread_bytes": 0 if buffers is None else buffers.unread_bytes,
        "credit": credit,
        "window": half.window if half.window > 0 else None,
        "no_credit": is_blocked(stream),
        "ended": half.state != OPEN,
        "peer_ended": peer_half.state != OPEN,
    }
