"""Stream timelines: what each stream carried in each of 500 buckets, and the total.

A timeline (a lane on the page) is encoded as two characters per bucket and side, so that its size
does not depend on the number of frames. Two characters encode 0 for nothing, 1 for frames without
content, else 2 + 64 log2(bytes), which is exact to half a percent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from polymux.analysis.schema.tables import SIDES, TIMELINE_BUCKETS, bucket_width_us
from polymux.report.load.overview import SessionRow
from polymux.report.load.stream_selection import StreamRow
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import StreamKeyIndex, index_in

if TYPE_CHECKING:
    import pyarrow as pa

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_MAX_UNMERGED_ROWS: Final = 1 << 18  # rows of partial sums before they are merged
_MAX_BLOCKED_SPANS: Final = 40  # blocked times drawn per timeline: the longest
_COLUMNS: Final = ("session_id", "stream", "sender", "bucket", "frames", "bytes", "blocked_us")
_SUMS: Final = ("frames", "bytes", "blocked_us")
_KEYS: Final = ("lane", "side", "bucket")


@dataclass(slots=True)
class StreamTimeline:
    """One timeline: bytes and frames of each bucket by side, and when the sender was blocked."""

    content_bytes: tuple[list[int], list[int]] = field(
        default_factory=lambda: ([0] * TIMELINE_BUCKETS, [0] * TIMELINE_BUCKETS)
    )
    frames: tuple[list[int], list[int]] = field(
        default_factory=lambda: ([0] * TIMELINE_BUCKETS, [0] * TIMELINE_BUCKETS)
    )
    blocked: list[tuple[int, int, int]] = field(default_factory=list)  # side, bucket, microseconds

    def encode(self, side: int) -> str:
        """The buckets of a side, two characters each."""
        return "".join(
            _encode_cell(size, frames)
            for size, frames in zip(self.content_bytes[side], self.frames[side], strict=True)
        )

    def blocked_spans(self, width_us: int) -> list[list[int]]:
        """Runs of buckets blocked for half their time or more: [side, first, last]; the longest."""
        spans: list[list[int]] = []
        for side, bucket, blocked in sorted(self.blocked):
            if blocked * 2 < width_us:
                continue
            if spans and spans[-1][0] == side and spans[-1][2] == bucket - 1:
                spans[-1][2] = bucket
            else:
                spans.append([side, bucket, bucket])
        spans.sort(key=lambda span: (span[1] - span[2], span))
        return sorted(spans[:_MAX_BLOCKED_SPANS])


@dataclass(slots=True)
class SessionTimelines:
    """The timelines of a session in the order of its streams, and one for all other streams."""

    width_us: int
    timelines: list[StreamTimeline]
    other_streams: StreamTimeline

    def total_bytes(self, side: int) -> list[int]:
        """The bytes of each bucket, of all streams."""
        columns = [lane.content_bytes[side] for lane in (*self.timelines, self.other_streams)]
        return [sum(cells) for cells in zip(*columns, strict=True)]


def load_timelines(
    tables: Tables, detailed: list[SessionRow], streams_by_session: list[list[StreamRow]]
) -> list[SessionTimelines]:
    """Read `timeline` and add it up for every detailed session."""
    pairs: list[tuple[int, str | None]] = []
    timelines: list[StreamTimeline] = []
    found: list[SessionTimelines] = []
    for group, (session, streams) in enumerate(zip(detailed, streams_by_session, strict=True)):
        drawn = [stream for stream in streams if stream.has_timeline]
        made = SessionTimelines(
            bucket_width_us(session.duration_us),
            [StreamTimeline() for _ in drawn],
            StreamTimeline(),
        )
        found.append(made)
        pairs += [(group, stream.key) for stream in drawn]
        timelines += made.timelines
    summed = _sum_cells(
        tables, [session.id for session in detailed], StreamKeyIndex(pairs), len(pairs)
    )
    for lane, side, bucket, frames, size, blocked in summed:
        # Numbers after the timelines stand for the other streams of a session.
        target = (
            timelines[lane] if lane < len(timelines) else found[lane - len(timelines)].other_streams
        )
        target.frames[side][bucket] += frames
        target.content_bytes[side][bucket] += size
        if blocked:
            target.blocked.append((side, bucket, blocked))
    return found


def _sum_cells(
    tables: Tables, ids: list[str], stream_keys: StreamKeyIndex, timeline_count: int
) -> list[tuple[int, int, int, int, int, int]]:
    """(timeline, side, bucket, frames, bytes, blocked_us) of each bucket with traffic."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: list[pa.Table] = []
    held = 0
    for batch in tables.batches("timeline", _COLUMNS):
        session = index_in(batch["session_id"], ids)
        lane = pc.coalesce(
            stream_keys.index_of(session, batch["stream"]), pc.add(session, timeline_count)
        )
        side = index_in(batch["sender"], SIDES)
        bucket = batch["bucket"]
        table = pa.table(
            [lane, side, bucket, *(pc.fill_null(batch[name], 0) for name in _SUMS)],
            names=[*_KEYS, *_SUMS],
        )
        known = pc.and_(pc.is_valid(lane), pc.is_valid(side))
        within = pc.and_(pc.greater_equal(bucket, 0), pc.less(bucket, TIMELINE_BUCKETS))
        parts.append(_merge([table.filter(pc.and_(known, within))]))
        held += parts[-1].num_rows
        if held > _MAX_UNMERGED_ROWS:
            parts = [_merge(parts)]
            held = 0  # the merged rows are bounded by timelines times buckets
    if not parts:
        return []
    columns = _merge(parts).to_pydict()
    return list(zip(*(columns[name] for name in (*_KEYS, *_SUMS)), strict=True))


def _merge(parts: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    summed = (
        pa.concat_tables(parts).group_by(list(_KEYS)).aggregate([(name, "sum") for name in _SUMS])
    )
    return summed.select([*_KEYS, *(f"{name}_sum" for name in _SUMS)]).rename_columns(
        [*_KEYS, *_SUMS]
    )


def _encode_cell(size: int, frames: int) -> str:
    code = 1 if frames > 0 else 0
    if size > 0:
        code = min(4095, 2 + round(64 * math.log2(size)))
    return _ALPHABET[code >> 6] + _ALPHABET[code & 63]
