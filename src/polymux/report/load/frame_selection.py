"""Which frames the report holds.

All of them while they fit. Otherwise, of every session its share: the frames around each shown
violation, the frames at which streams opened, ended, stalled and went on, and of every listed
stream its first frames, its last ones and an even sample of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from polymux.report.budget import Budget, share
from polymux.report.load.findings import STALL_COLUMNS, VIOLATION_COLUMNS, Findings
from polymux.report.load.overview import SessionRow
from polymux.report.load.stream_selection import StreamRow, pairs_of
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import Best, Pairs, Row, codes

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
_AROUND: Final = 3  # frames shown before and after a violation, in its direction
_MOMENTS: Final = ("opened_at", "accepted_at", "closed_at")
_ORDINALS: Final = 1 << 44  # more frames than a direction ever has
_MASK: Final = (1 << 32) - 1
_SCATTER: Final = 2654435761  # Knuth's multiplier: neighbours land far apart


@dataclass(slots=True)
class Picked:
    """The frames shown of one session, in order of time; `all` if none was left out."""

    rows: list[Row]
    all: bool


def pick(
    tables: Tables,
    detailed: list[SessionRow],
    chosen: list[list[StreamRow]],
    found: Findings,
    budget: Budget,
) -> list[Picked]:
    """Read `frames` once and keep at most the budget."""
    ids = [session.id for session in detailed]
    counts = [session.number("frames") for session in detailed]
    shares = share(counts, budget.frames)
    whole = [count <= part for count, part in zip(counts, shares, strict=True)]
    collectors = _Collectors(detailed, chosen, found, shares, whole)
    for batch in tables.batches("frames", ("session_id", *FRAME_COLUMNS)):
        collectors.look(codes(batch["session_id"], ids), batch.select(list(FRAME_COLUMNS)))
    return [Picked(collectors.of(group, shares[group]), whole[group]) for group in range(len(ids))]


class _Collectors:
    """One collector a reason; a frame that several want is shown once."""

    def __init__(
        self,
        detailed: list[SessionRow],
        chosen: list[list[StreamRow]],
        found: Findings,
        shares: list[int],
        whole: list[bool],
    ) -> None:
        import pyarrow as pa

        self.whole = Best([n if all_ else 0 for n, all_ in zip(shares, whole, strict=True)], keys=2)
        rest = [0 if all_ else n for n, all_ in zip(shares, whole, strict=True)]
        self.around = Best([n // 4 for n in rest], keys=2)
        self.moments = Best([n // 4 for n in rest], keys=2)
        self.near = pa.array(sorted(_near(found)), pa.int64())
        self.instants = pa.array(sorted(_instants(detailed, chosen, found)), pa.int64())
        self.origins = pa.array([session.started for session in detailed], pa.int64())
        listed = pairs_of(chosen)
        self.pairs = Pairs(listed + [(group, None) for group in range(len(detailed))])
        self.places = [group for group, _ in listed] + list(range(len(detailed)))
        each = _each(rest, chosen)
        self.first = Best([-(-n // 8) for n in each], keys=2)
        self.last = Best([-(-n // 8) for n in each], keys=2)
        self.sample = Best(each, keys=2)

    def look(self, session: pa.Array, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.is_valid(session)
        batch, session = batch.filter(known), session.filter(known)
        if not batch.num_rows:
            return
        ordinal, at = batch["frame_index"], batch["time"]
        side = pc.fill_null(codes(batch["sender"], ("dialer", "acceptor")), 0)
        since = pc.subtract(at, self.origins.take(session))
        scattered = pc.bit_wise_and(
            pc.add(pc.multiply(ordinal, _SCATTER), pc.multiply(side, _SCATTER >> 3)), _MASK
        )
        self.whole.offer(session, ordinal, batch)
        frame = _key(session, side, ordinal)
        self.around.offer(_only(session, frame, self.near), ordinal, batch)
        moment = pc.add(pc.multiply(session, _ORDINALS), since)
        self.moments.offer(_only(session, moment, self.instants), scattered, batch)
        stream = self.pairs.of(session, batch["stream"])
        self.first.offer(stream, since, batch)
        self.last.offer(stream, pc.negate(since), batch)
        self.sample.offer(stream, scattered.cast(pa.int64()), batch)

    def of(self, group: int, limit: int) -> list[Row]:
        """The session's frames in order of time: first what stands near trouble, then by stream."""
        rows: dict[tuple[object, object], Row] = {}
        for best in (self.whole, self.around, self.moments):
            rows |= {(row[0], row[1]): row for row in best.rows(group)}
        more: list[list[Row]] = []
        for place, owner in enumerate(self.places):
            if owner == group:
                found: dict[tuple[object, object], Row] = {}
                for best in (self.first, self.last, self.sample):
                    found |= {(r[0], r[1]): r for r in best.rows(place) if (r[0], r[1]) not in rows}
                more.append(list(found.values()))
        room = share([len(found) for found in more], limit - len(rows))
        for part, listed in zip(room, more, strict=True):
            rows |= {(row[0], row[1]): row for row in listed[:part]}
        at = FRAME_COLUMNS.index("time")
        return sorted(rows.values(), key=lambda row: (row[at], row[0], row[1]))


def _each(rest: list[int], chosen: list[list[StreamRow]]) -> list[int]:
    """Frames each listed stream may show: two, and what is left goes to those with lanes."""
    each: list[int] = []
    for room, streams in zip(rest, chosen, strict=True):
        wants = [stream.frames if stream.lane else 0 for stream in streams]
        spare = share(wants, max(0, room - 2 * len(streams)))
        each += [(2 if room else 0) + more for more in spare]
    return each + [room // 16 for room in rest]  # frames on no stream: handshakes and such


def _near(found: Findings) -> set[int]:
    sender, ordinal = VIOLATION_COLUMNS.index("sender"), VIOLATION_COLUMNS.index("frame_index")
    keys: set[int] = set()
    for group, marks in enumerate(found.marks):
        for row in marks:
            side = 1 if row[sender] == "acceptor" else 0
            place = row[ordinal] if isinstance(row[ordinal], int) else 0
            assert isinstance(place, int)
            low = max(0, place - _AROUND)
            keys |= {(group * 2 + side) * _ORDINALS + n for n in range(low, place + _AROUND + 1)}
    return keys


def _instants(
    detailed: list[SessionRow], chosen: list[list[StreamRow]], found: Findings
) -> set[int]:
    """Session and microseconds since its start, as one number, of all that is worth a frame."""
    began, lasted = STALL_COLUMNS.index("started_at"), STALL_COLUMNS.index("duration_us")
    keys: set[int] = set()
    for group, session in enumerate(detailed):
        moments = {stream.number(name) for stream in chosen[group] for name in _MOMENTS}
        for row in found.stalls[group]:
            start, length = row[began], row[lasted]
            if isinstance(start, int) and isinstance(length, int):
                moments |= {start, start + length}
        for at in moments:
            if at is not None and 0 <= at - session.started < _ORDINALS:
                keys.add(group * _ORDINALS + at - session.started)
    return keys


def _key(session: pa.Array, side: pa.Array, ordinal: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.add(pc.multiply(pc.add(pc.multiply(session, 2), side), _ORDINALS), ordinal)


def _only(group: pa.Array, key: pa.Array, wanted: pa.Array) -> pa.Array:
    """The group where the key is wanted, else null."""
    import pyarrow.compute as pc

    return pc.if_else(pc.is_in(key, value_set=wanted), group, None)
