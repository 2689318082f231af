"""Select the frames that the report shows.

All of them if they fit. Otherwise each session has a share: the frames around each shown violation,
the frames at which streams opened, ended, stalled and resumed, and of every listed stream its first
and last frames and an even sample of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from polymux.analysis.schema.tables import SIDES
from polymux.report.budget import Budget, fair_shares
from polymux.report.load.findings import STALL_COLUMNS, VIOLATION_COLUMNS, Findings
from polymux.report.load.overview import SessionRow
from polymux.report.load.stream_selection import StreamRow, list_stream_keys
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import Row, StreamKeyIndex, TopRows, index_in

if TYPE_CHECKING:
    import pyarrow as pa

FRAME_COLUMNS: Final = (
    "sender",
    "frame_index",
    "time",
    "byte_offset",
    "size",
    "kind",
    "stream",
    "amount",
    "payload_bytes",
    "verdict",
)
_FRAMES_AROUND_VIOLATION: Final = 3  # before and after it, in its direction
_EVENT_COLUMNS: Final = ("opened_at", "accepted_at", "closed_at")
KEY_STRIDE: Final = 1 << 44  # more than a direction has frames or a session microseconds
_HASH_MASK: Final = (1 << 32) - 1
_HASH_MULTIPLIER: Final = 2654435761  # Knuth's multiplicative hash


@dataclass(slots=True)
class SelectedFrames:
    """The frames shown of one session, in order of time; `complete` if none was left out."""

    rows: list[Row]
    complete: bool


def select_frames(
    tables: Tables,
    detailed: list[SessionRow],
    streams_by_session: list[list[StreamRow]],
    findings: Findings,
    budget: Budget,
) -> list[SelectedFrames]:
    """Read `frames` once and select at most the budget."""
    ids = [session.id for session in detailed]
    counts = [session.integer("frames") for session in detailed]
    shares = fair_shares(counts, budget.frames)
    complete = [count <= part for count, part in zip(counts, shares, strict=True)]
    collectors = _FrameCollectors(detailed, streams_by_session, findings, shares, complete)
    for batch in tables.batches("frames", ("session_id", *FRAME_COLUMNS)):
        collectors.add(index_in(batch["session_id"], ids), batch.select(list(FRAME_COLUMNS)))
    return [
        SelectedFrames(collectors.select(group, shares[group]), complete[group])
        for group in range(len(ids))
    ]


class _FrameCollectors:
    """One collector per reason to show a frame; a frame with several reasons is shown once."""

    def __init__(
        self,
        detailed: list[SessionRow],
        streams_by_session: list[list[StreamRow]],
        findings: Findings,
        shares: list[int],
        complete: list[bool],
    ) -> None:
        import pyarrow as pa

        self.complete_sessions = TopRows(
            [n if all_ else 0 for n, all_ in zip(shares, complete, strict=True)], key_columns=2
        )
        rest = [0 if all_ else n for n, all_ in zip(shares, complete, strict=True)]
        self.around_violations = TopRows([n // 4 for n in rest], key_columns=2)
        self.at_events = TopRows([n // 4 for n in rest], key_columns=2)
        self.violation_keys = pa.array(sorted(_violation_keys(findings)), pa.int64())
        self.event_keys = pa.array(
            sorted(_event_keys(detailed, streams_by_session, findings)), pa.int64()
        )
        self.session_starts = pa.array([session.started_us for session in detailed], pa.int64())
        listed = list_stream_keys(streams_by_session)
        self.stream_keys = StreamKeyIndex(
            listed + [(group, None) for group in range(len(detailed))]
        )
        self.session_of_stream = [group for group, _ in listed] + list(range(len(detailed)))
        each = _frames_per_stream(rest, streams_by_session)
        self.first = TopRows([-(-n // 8) for n in each], key_columns=2)
        self.last = TopRows([-(-n // 8) for n in each], key_columns=2)
        self.sample = TopRows(each, key_columns=2)

    def add(self, session: pa.Array, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.is_valid(session)
        batch, session = batch.filter(known), session.filter(known)
        if not batch.num_rows:
            return
        index, at = batch["frame_index"], batch["time"]
        side = pc.fill_null(index_in(batch["sender"], SIDES), 0)
        since = pc.subtract(at, self.session_starts.take(session))
        hashed = pc.bit_wise_and(
            pc.add(pc.multiply(index, _HASH_MULTIPLIER), pc.multiply(side, _HASH_MULTIPLIER >> 3)),
            _HASH_MASK,
        )
        self.complete_sessions.add(session, index, batch)
        frame = frame_keys(session, side, index)
        self.around_violations.add(_where_key_in(session, frame, self.violation_keys), index, batch)
        moment = pc.add(pc.multiply(session, KEY_STRIDE), since)
        self.at_events.add(_where_key_in(session, moment, self.event_keys), hashed, batch)
        stream = self.stream_keys.index_of(session, batch["stream"])
        self.first.add(stream, since, batch)
        self.last.add(stream, pc.negate(since), batch)
        self.sample.add(stream, hashed.cast(pa.int64()), batch)

    def select(self, group: int, limit: int) -> list[Row]:
        """The session's frames in order of time; those near findings are selected first."""
        rows: dict[tuple[object, object], Row] = {}
        for best in (self.complete_sessions, self.around_violations, self.at_events):
            rows |= {(row[0], row[1]): row for row in best.rows(group)}
        more: list[list[Row]] = []
        for place, owner in enumerate(self.session_of_stream):
            if owner == group:
                found: dict[tuple[object, object], Row] = {}
                for best in (self.first, self.last, self.sample):
                    found |= {(r[0], r[1]): r for r in best.rows(place) if (r[0], r[1]) not in rows}
                more.append(list(found.values()))
        room = fair_shares([len(found) for found in more], limit - len(rows))
        for part, listed in zip(room, more, strict=True):
            rows |= {(row[0], row[1]): row for row in listed[:part]}
        at = FRAME_COLUMNS.index("time")
        return sorted(rows.values(), key=lambda row: (row[at], row[0], row[1]))


def _frames_per_stream(rooms: list[int], streams_by_session: list[list[StreamRow]]) -> list[int]:
    """Frames per listed stream: two, and the rest divided among those with timelines."""
    each: list[int] = []
    for room, streams in zip(rooms, streams_by_session, strict=True):
        wants = [stream.frames if stream.has_timeline else 0 for stream in streams]
        spare = fair_shares(wants, max(0, room - 2 * len(streams)))
        each += [(2 if room else 0) + more for more in spare]
    return each + [room // 16 for room in rooms]  # frames on no stream, such as handshakes


def _violation_keys(findings: Findings) -> set[int]:
    sender = VIOLATION_COLUMNS.index("sender")
    frame_index = VIOLATION_COLUMNS.index("frame_index")
    keys: set[int] = set()
    for group, marks in enumerate(findings.session_violations):
        for row in marks:
            side = 1 if row[sender] == "acceptor" else 0
            index = row[frame_index]
            index = index if isinstance(index, int) else 0
            first = max(0, index - _FRAMES_AROUND_VIOLATION)
            last = index + _FRAMES_AROUND_VIOLATION
            keys |= {(group * 2 + side) * KEY_STRIDE + n for n in range(first, last + 1)}
    return keys


def _event_keys(
    detailed: list[SessionRow], streams_by_session: list[list[StreamRow]], findings: Findings
) -> set[int]:
    """Session and microseconds since its start, as one number, of the events to show frames of."""
    began, lasted = STALL_COLUMNS.index("started_at"), STALL_COLUMNS.index("duration_us")
    keys: set[int] = set()
    for group, session in enumerate(detailed):
        moments = {
            stream.integer(name) for stream in streams_by_session[group] for name in _EVENT_COLUMNS
        }
        for row in findings.session_stalls[group]:
            start, length = row[began], row[lasted]
            if isinstance(start, int) and isinstance(length, int):
                moments |= {start, start + length}
        for at in moments:
            if at is not None and 0 <= at - session.started_us < KEY_STRIDE:
                keys.add(group * KEY_STRIDE + at - session.started_us)
    return keys


def frame_keys(session: pa.Array, side: pa.Array, frame_index: pa.Array) -> pa.Array:
    """Session, side and frame index of each row as one int64; null where any of them is null."""
    import pyarrow.compute as pc

    return pc.add(pc.multiply(pc.add(pc.multiply(session, 2), side), KEY_STRIDE), frame_index)


def _where_key_in(group: pa.Array, key: pa.Array, wanted: pa.Array) -> pa.Array:
    """The group where the key is one of `wanted`, else null."""
    import pyarrow.compute as pc

    return pc.if_else(pc.is_in(key, value_set=wanted), group, None)
