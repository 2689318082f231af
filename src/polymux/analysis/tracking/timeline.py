# mypyc: compiled
"""The timeline: frames, content bytes and blocked time by stream, side and time bucket.

A bucket is written when the next one begins, so only the current one is in memory. If the capture's
clock steps back, frames count in the current bucket.
"""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.output.row_columns import TimelineRows
from polymux.analysis.schema.tables import TIMELINE_BUCKETS
from polymux.analysis.tracking.stream_tracker import HalfTracker, StreamTracker
from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.streams import NOT_YET, StreamState

LAST_BUCKET: Final[i64] = TIMELINE_BUCKETS - 1
# Streams without send credit have a row in every bucket. At most this many at once; others have
# rows only in buckets with frames, so that a flood of offers does not become 500 rows for each.
MAX_BLOCKED_STREAMS: Final[i64] = 4096


class Timeline:
    """Buckets of `width_us` microseconds from `started_us` on. Timestamps are nanoseconds."""

    def __init__(self, started_us: i64, width_us: i64) -> None:
        self.started_us: i64 = started_us
        self.width_us: i64 = width_us
        self.bucket: i64 = 0
        self.rows: TimelineRows = TimelineRows()
        self.dirty: list[StreamTracker] = []
        self.blocked_streams: list[StreamTracker] = []
        # Counts the frames that belong to no stream:
        self.no_stream: StreamTracker = StreamTracker(StreamState(-1, -1, 0, 0))
        self.bucket_end: i64 = self.end_of(0)  # the first timestamp of the next bucket

    def end_of(self, bucket: i64) -> i64:
        """The first timestamp after a bucket; the last bucket has no end."""
        if bucket >= LAST_BUCKET:
            return 0x7FFFFFFFFFFFFFFF
        return (self.started_us + (bucket + 1) * self.width_us) * 1000

    def mark_dirty(self, track: StreamTracker) -> None:
        """The stream has a row in the current bucket."""
        if not track.dirty:
            track.dirty = True
            self.dirty.append(track)

    def mark_blocked(self, track: StreamTracker) -> None:
        """The stream is blocked from now on, until `write_bucket` finds that it has credit."""
        if not track.is_blocked and len(self.blocked_streams) < MAX_BLOCKED_STREAMS:
            track.is_blocked = True
            self.blocked_streams.append(track)

    def advance(self, timestamp: i64) -> None:
        """Write the buckets that end before `timestamp`."""
        target = (timestamp // 1000 - self.started_us) // self.width_us
        if target > LAST_BUCKET:
            target = LAST_BUCKET
        while self.bucket < target:
            self.write_bucket(self.bucket_end)
            self.bucket += 1
            if len(self.blocked_streams) == 0:
                self.bucket = target
            self.bucket_end = self.end_of(self.bucket)

    def write_bucket(self, until: i64) -> None:
        """Write the current bucket, which ends at `until`."""
        for track in self.dirty:
            track.dirty = False
            self.write_stream(track, until)
        self.dirty = []
        if len(self.blocked_streams) > 0:
            still: list[StreamTracker] = []
            for track in self.blocked_streams:
                self.write_stream(track, until)  # writes nothing a second time
                blocked = track.dialer.half.blocked_since, track.acceptor.half.blocked_since
                if (blocked[0] != NOT_YET or blocked[1] != NOT_YET) and not track.removed:
                    still.append(track)
                else:
                    track.is_blocked = False
            self.blocked_streams = still
        self.write_stream(self.no_stream, until)

    def write_stream(self, track: StreamTracker, until: i64) -> None:
        self.write_half(track, track.dialer, DIALER, until)
        self.write_half(track, track.acceptor, ACCEPTOR, until)

    def write_half(self, track: StreamTracker, own: HalfTracker, side: i64, until: i64) -> None:
        """Add a row if one side of the stream has frames, content or blocked time in the bucket."""
        blocked: i64 = -1
        half = own.half
        if half.credit_granted >= 0:
            total = half.blocked_ns
            if half.blocked_since != NOT_YET and until > half.blocked_since:
                total += until - half.blocked_since
            blocked = total // 1000 - own.reported_blocked_us
            if blocked < 0:
                blocked = 0
            own.reported_blocked_us += blocked
        if own.bucket_frames == 0 and own.bucket_bytes == 0 and blocked <= 0:
            return
        label: i64 = -1
        if track is not self.no_stream:
            label = self.rows.stream_labels.index_of(track.label)
        self.rows.add(label, side, self.bucket, own.bucket_frames, own.bucket_bytes, blocked)
        own.bucket_frames = 0
        own.bucket_bytes = 0

    def take_rows(self) -> TimelineRows:
        """The rows written since the last call."""
        rows = self.rows
        self.rows = TimelineRows()
        return rows
