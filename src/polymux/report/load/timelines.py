"""The multiplexing lanes: what each stream carried in each of 500 buckets, and what all did.

A lane is a text of two characters a bucket and side, so that a page with lanes has the same size
whether a thousand frames lie behind it or ten million. The number behind two characters is 0 for
nothing, 1 for frames without content, else 2 + 64 log2(octets): right to half a percent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from polymux.analysis.schema.tables import BUCKETS, bucket_width_us
from polymux.report.load.overview import SessionRow
from polymux.report.load.stream_selection import StreamRow
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import Pairs, codes

if TYPE_CHECKING:
    import pyarrow as pa

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_MERGE_AT: Final = 1 << 18  # rows of half-summed cells before they are summed again
_SPANS: Final = 40  # times without leave drawn a lane; the longest
_COLUMNS: Final = ("session_id", "stream", "sender", "bucket", "frames", "bytes", "blocked_us")
_SUMS: Final = ("frames", "bytes", "blocked_us")
_KEYS: Final = ("lane", "side", "bucket")


@dataclass(slots=True)
class Lane:
    """One lane: octets and frames of each bucket, per side, and when there was no leave."""

    octets: tuple[list[int], list[int]] = field(
        default_factory=lambda: ([0] * BUCKETS, [0] * BUCKETS)
    )
    frames: tuple[list[int], list[int]] = field(
        default_factory=lambda: ([0] * BUCKETS, [0] * BUCKETS)
    )
    blocked: list[tuple[int, int, int]] = field(default_factory=list)  # side, bucket, microseconds

    def text(self, side: int) -> str:
        """The cells of a side, two characters each."""
        return "".join(
            _cell(octets, frames)
            for octets, frames in zip(self.octets[side], self.frames[side], strict=True)
        )

    def spans(self, width_us: int) -> list[list[int]]:
        """Runs of buckets without leave for half their time: [side, first, last], longest kept."""
        spans: list[list[int]] = []
        for side, bucket, blocked in sorted(self.blocked):
            if blocked * 2 < width_us:
                continue
            if spans and spans[-1][0] == side and spans[-1][2] == bucket - 1:
                spans[-1][2] = bucket
            else:
                spans.append([side, bucket, bucket])
        spans.sort(key=lambda span: (span[1] - span[2], span))
        return sorted(spans[:_SPANS])


@dataclass(slots=True)
class SessionLanes:
    """The lanes of a session in the order of its streams, one for the rest, and the sums."""

    width_us: int
    lanes: list[Lane]
    rest: Lane

    def total(self, side: int) -> list[int]:
        """Octets of each bucket over all streams."""
        columns = [lane.octets[side] for lane in (*self.lanes, self.rest)]
        return [sum(cells) for cells in zip(*columns, strict=True)]


def draw(
    tables: Tables, detailed: list[SessionRow], chosen: list[list[StreamRow]]
) -> list[SessionLanes]:
    """Read `timeline` and sum it up for every detailed session."""
    pairs: list[tuple[int, str | None]] = []
    places: list[Lane] = []
    found: list[SessionLanes] = []
    for group, (session, streams) in enumerate(zip(detailed, chosen, strict=True)):
        drawn = [stream for stream in streams if stream.lane]
        made = SessionLanes(bucket_width_us(session.lasted), [Lane() for _ in drawn], Lane())
        found.append(made)
        pairs += [(group, stream.key) for stream in drawn]
        places += made.lanes
    summed = _sum(tables, [session.id for session in detailed], Pairs(pairs), len(pairs))
    for lane, side, bucket, frames, octets, blocked in summed:
        # Numbers past the lanes stand for the rest of a session.
        target = places[lane] if lane < len(places) else found[lane - len(places)].rest
        target.frames[side][bucket] += frames
        target.octets[side][bucket] += octets
        if blocked:
            target.blocked.append((side, bucket, blocked))
    return found


def _sum(
    tables: Tables, ids: list[str], pairs: Pairs, lanes: int
) -> list[tuple[int, int, int, int, int, int]]:
    """(lane, side, bucket, frames, octets, blocked) for each cell that has anything."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: list[pa.Table] = []
    held = 0
    for batch in tables.batches("timeline", _COLUMNS):
        session = codes(batch["session_id"], ids)
        lane = pc.coalesce(pairs.of(session, batch["stream"]), pc.add(session, lanes))
        side = codes(batch["sender"], ("dialer", "acceptor"))
        bucket = batch["bucket"]
        table = pa.table(
            [lane, side, bucket, *(pc.fill_null(batch[name], 0) for name in _SUMS)],
            names=[*_KEYS, *_SUMS],
        )
        known = pc.and_(pc.is_valid(lane), pc.is_valid(side))
        within = pc.and_(pc.greater_equal(bucket, 0), pc.less(bucket, BUCKETS))
        parts.append(_merged([table.filter(pc.and_(known, within))]))
        held += parts[-1].num_rows
        if held > _MERGE_AT:
            parts = [_merged(parts)]
            held = 0  # what is left is bounded by lanes times cells
    if not parts:
        return []
    columns = _merged(parts).to_pydict()
    return list(zip(*(columns[name] for name in (*_KEYS, *_SUMS)), strict=True))


def _merged(parts: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    summed = (
        pa.concat_tables(parts).group_by(list(_KEYS)).aggregate([(name, "sum") for name in _SUMS])
    )
    return summed.select([*_KEYS, *(f"{name}_sum" for name in _SUMS)]).rename_columns(
        [*_KEYS, *_SUMS]
    )


def _cell(octets: int, frames: int) -> str:
    code = 1 if frames > 0 else 0
    if octets > 0:
        code = min(4095, 2 + round(64 * math.log2(octets)))
    return _ALPHABET[code >> 6] + _ALPHABET[code & 63]
