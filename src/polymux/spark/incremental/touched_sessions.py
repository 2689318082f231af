"""Which sessions of a lake new captures touch, although they were over.

Nearly always none: what had not ended is carried (`carried_packets`), and a new connection begins
with a SYN. Packets touch a session of the lake if they are of its time, or if nothing says that
they are of another connection:

- *late* packets, of a time up to which the lake had captures of the sensor before: they belong to
  sessions of that time, or to those right before and after;
- packets that go on without a SYN with a flow that is not carried.

A touched session is analyzed again from its captures, and its rows are replaced; if one of these is
gone, it stays (`kept_sessions`). Sessions of the same flow that may have packets in one of these
captures are touched too: so the captures that are read again have the packets of touched sessions
only. They are those that share a capture with it, and those of the time of one: a session does not
name a capture that only repeats its packets.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from polymux.capture.packets.flows import FlowName, flow_name, flow_name_of, sensor_of_flow
from polymux.capture.packets.packet_refs import ACK, REF_BYTES, SYN
from polymux.core.errors import MissingExtra
from polymux.spark.batch.reference_shuffle import FlowSelection, ReferenceReader, StoredFlow
from polymux.spark.incremental.carried_packets import MARK
from polymux.spark.incremental.kept_sessions import KeptSessions
from polymux.spark.incremental.lake_output import start_date
from polymux.spark.incremental.ledger import ReadCapture
from polymux.spark.incremental.open_rule import SETTLE_NS

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    raise MissingExtra("captures", "reading tables") from None

SESSION_COLUMNS = [
    "session_id", "sensor", "dialer", "acceptor", "started_at", "ended_at", "ending",
    "connection_id", "capture",
]  # fmt: skip
MICROSECOND = 1000  # nanoseconds; times in tables are cut to it
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Batches = Callable[[list[str]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class NewPackets:
    """New packets of a flow, which may belong to a session of the lake: their time, and whether
    they begin with a SYN."""

    flow: FlowName
    first_at: int
    last_at: int
    begins: bool


@dataclass(frozen=True, slots=True)
class PublishedSession:
    """A session of the lake that was over. Times are in nanoseconds, cut to microseconds."""

    session_id: str
    started_at: int
    ended_at: int
    begun: bool  # its SYN was captured
    ended: bool  # both its ends were captured
    captures: frozenset[str]


@dataclass
class TouchedSessions:
    """The sessions whose rows are replaced, by id with the date of their start, and by flow; and
    the captures that are read for them, each with the flows it is read for."""

    dates: dict[str, str] = field(default_factory=dict)
    captures: dict[str, set[FlowName]] = field(default_factory=dict)
    sessions: dict[FlowName, list[PublishedSession]] = field(default_factory=dict)

    def flows_by_capture(self) -> frozenset[tuple[FlowName, str]]:
        """Flows, each with a capture that is read again for it."""
        return frozenset((flow, path) for path, flows in self.captures.items() for flow in flows)

    def keep(self, gone: Iterable[str]) -> KeptSessions:
        """Leave out the sessions of flows for which one of these captures would be read.

        All of a flow: a capture that is read for some of its sessions has packets of the others.
        """
        missing = sorted(path for path in gone if self.captures.get(path))
        kept = {flow for path in missing for flow in self.captures[path]}
        times = {}
        for flow in kept:
            sessions = self.sessions.pop(flow)
            for session in sessions:
                del self.dates[session.session_id]
            times[flow] = tuple((s.started_at, s.ended_at + MICROSECOND - 1) for s in sessions)
        captures = {path: flows - kept for path, flows in self.captures.items()}
        self.captures = {path: flows for path, flows in captures.items() if flows}
        return KeptSessions(sum(map(len, times.values())), times, tuple(missing))


def find_new_packets(
    staging: str, names: Sequence[str], selection: FlowSelection, newest: dict[str, int]
) -> bytes:
    """Find the flows of an index that may touch sessions of the lake; runs in a task.

    `newest` has the newest packet of each sensor that the lake had before. Returns packed
    `NewPackets`.
    """
    found = []
    for flow in ReferenceReader(staging, names, selection):
        rows = [location for location in flow.locations if MARK not in location.row.file]
        if not rows:
            continue
        carried = len(rows) < len(flow.locations)
        first = min(location.row.first_at for location in rows)
        known_until = newest.get(sensor_of_flow(rows[0].row.flow))
        late = known_until is not None and first <= known_until
        begins = _begins_with_syn(StoredFlow(rows))
        if known_until is not None and (late or not (begins or carried)):
            last = max(location.row.last_at for location in rows)
            found.append([flow_name(rows[0].row.flow), first, last, begins])
    return zlib.compress(json.dumps(found).encode(), 1)


def unpack_new_packets(packed: Iterable[bytes]) -> Iterator[NewPackets]:
    """Decode what tasks have returned."""
    for data in packed:
        for (sensor, one, other), first, last, begins in json.loads(zlib.decompress(data)):
            yield NewPackets((sensor, one, other), first, last, begins)


def _begins_with_syn(flow: StoredFlow) -> bool:
    """Whether the first packet of a flow opens a connection; a SYN-ACK answers a SYN before it."""
    first = min(flow.locations, key=lambda location: location.row.first_at)
    header = int.from_bytes(first.read(0, REF_BYTES)[24:32], "little", signed=True)
    return header >> 16 & int(SYN | ACK) == int(SYN)


def find_touched(
    packets: Iterable[NewPackets],
    reread: frozenset[str],
    day: set[str],
    captures: Mapping[str, ReadCapture],
    batches: Batches,
) -> TouchedSessions:
    """Find the sessions that new packets touch.

    Args:
        packets: New packets of flows, as far as they may touch any.
        reread: Captures that are read again as a whole: their sessions are touched.
        day: Dates whose sessions are touched.
        captures: What the lake has read, by path.
        batches: Called with columns; returns the rows of `sessions` that are over.
    """
    touched = TouchedSessions()
    by_flow: dict[FlowName, list[NewPackets]] = {}
    for each in packets:
        by_flow.setdefault(each.flow, []).append(each)
    names = set(by_flow)
    if reread or day:
        for flow, session in _sessions(batches, lambda batch: _of_captures(batch, reread, day)):
            touched.dates[session.session_id] = start_date(session.started_at)
            names.add(flow)
    if not names:
        return touched
    endpoints = pa.array(sorted({end for _, *ends in names for end in ends}), pa.string())
    flows: dict[FlowName, list[PublishedSession]] = {}
    for flow, session in _sessions(batches, lambda batch: _between(batch, endpoints)):
        if flow in names:
            flows.setdefault(flow, []).append(session)
    for flow, sessions in flows.items():
        sessions.sort(key=lambda session: session.started_at)
        chosen = {s.session_id for s in sessions if s.session_id in touched.dates}
        for new in by_flow.get(flow, ()):
            chosen |= _touched_by(new, sessions)
        closure = _closure(chosen, sessions, captures)
        if closure:
            touched.sessions[flow] = closure
        for session in closure:
            touched.dates[session.session_id] = start_date(session.started_at)
            for path in session.captures - reread:
                touched.captures.setdefault(path, set()).add(flow)
    return touched


def _touched_by(new: NewPackets, sessions: list[PublishedSession]) -> set[str]:
    """The sessions of a flow, in the order of their start, that new packets may belong to."""
    begin, end = new.first_at - SETTLE_NS, new.last_at + SETTLE_NS
    found = {s.session_id for s in sessions if s.started_at <= end and s.ended_at >= begin}
    starts = [session.started_at for session in sessions]
    before = sessions[: bisect_right(starts, new.first_at)][-1:]
    # Its first packet need not be its SYN.
    after = sessions[bisect_right(starts, new.last_at) :][:1]
    found |= {s.session_id for s in before if not new.begins or not s.ended}
    return found | {s.session_id for s in after}


def _closure(
    chosen: set[str], sessions: list[PublishedSession], captures: Mapping[str, ReadCapture]
) -> list[PublishedSession]:
    """The chosen sessions of a flow, and those that may have packets in a capture of the result."""
    result = [session for session in sessions if session.session_id in chosen]
    others = [session for session in sessions if session.session_id not in chosen]
    paths: set[str] = set()
    for session in result:  # grows meanwhile
        new = session.captures - paths
        if not new:
            continue
        paths |= new
        read = [captures[path] for path in new if path in captures]
        sharing = [other for other in others if other.captures & new or _is_of_time(other, read)]
        found = {other.session_id for other in sharing}
        others = [other for other in others if other.session_id not in found]
        result += sharing
    return result


def _is_of_time(session: PublishedSession, captures: Iterable[ReadCapture]) -> bool:
    """Whether one of the captures has packets of the time of a session."""
    begin, end = session.started_at, session.ended_at + MICROSECOND
    return any(capture.overlaps(begin, end) for capture in captures)


def _sessions(
    batches: Batches, wanted: Callable[[pa.RecordBatch], pa.Array]
) -> Iterator[tuple[FlowName, PublishedSession]]:
    """The sessions of the lake in the rows that `wanted` selects, each with its flow."""
    for batch in batches(SESSION_COLUMNS):
        for row in batch.filter(wanted(batch)).to_pylist():
            yield (
                flow_name_of(row["sensor"], row["dialer"], row["acceptor"]),
                PublishedSession(
                    row["session_id"],
                    _nanoseconds(row["started_at"]),
                    _nanoseconds(row["ended_at"]),
                    row["connection_id"] is not None,
                    row["ending"] == "clean",
                    frozenset(row["capture"]),
                ),
            )


def _between(batch: pa.RecordBatch, endpoints: pa.Array) -> pa.Array:
    """The rows whose two endpoints are among these."""
    return pc.and_(
        pc.is_in(batch["dialer"], value_set=endpoints),
        pc.is_in(batch["acceptor"], value_set=endpoints),
    )


def _of_captures(batch: pa.RecordBatch, paths: frozenset[str], dates: set[str]) -> pa.Array:
    """The rows of sessions that began on these dates, or have packets of these captures."""
    days = pc.strftime(batch["started_at"], format="%Y-%m-%d")
    mask = pc.is_in(days, value_set=pa.array(sorted(dates), pa.string()))
    lists = batch["capture"]
    found = pc.is_in(pc.list_flatten(lists), value_set=pa.array(sorted(paths), pa.string()))
    rows = pc.list_parent_indices(lists).filter(found)
    numbers = pa.array(range(batch.num_rows), rows.type)
    return pc.or_(mask, pc.is_in(numbers, value_set=rows))


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * MICROSECOND
