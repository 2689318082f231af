# mypyc: compiled
"""What passed when: frames, content and time without leave, by stream, side and time bucket.

A bucket is written when the next one begins, so only the current one is in memory. A capture's
clock may step back; its buckets do not: such frames count in the bucket that is open.
"""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.output.timeline_rows import TimelineRows
from polymux.analysis.schema.tables import TIMELINE_BUCKETS
from polymux.analysis.tracking.stream_tracker import HalfTracker, StreamTracker
from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.streams import NOT_YET, StreamState

LAST_BUCKET: Final[i64] = TIMELINE_BUCKETS - 1
# Streams without leave have a row in every bucket. Beyond so many of them at once the rest get
# rows only where something passes: a flood of offers must not become five hundred times as many.
MAX_BLOCKED_STREAMS: Final[i64] = 4096


class Timeline:
    """Buckets of `width_us` from `started_us` on; instants are in nanoseconds."""

    def __init__(self, started_us: i64, width_us: i64) -> None:
        self.started_us: i64 = started_us
        self.width_us: i64 = width_us
        self.bucket: i64 = 0
        self.rows: TimelineRows = TimelineRows()
        self.dirty: list[StreamTracker] = []
        self.blocked_streams: list[StreamTracker] = []
        self.no_stream: StreamTracker = StreamTracker(
            StreamState(-1, -1, 0, 0)
        )  # frames that belong to no stream
        self.bucket_end: i64 = self.end_of(0)  # the first instant of the next bucket

    def end_of(self, bucket: i64) -> i64:
        if bucket >= LAST_BUCKET:
            return 0x7FFFFFFFFFFFFFFF
        return (self.started_us + (bucket + 1) * self.width_us) * 1000

    def mark_dirty(self, track: StreamTracker) -> None:
        """The track has something for the current bucket."""
        if not track.dirty:
            track.dirty = True
            self.dirty.append(track)

    def mark_blocked(self, track: StreamTracker) -> None:
        """The track is without leave from now on, until a later look says otherwise."""
        if not track.is_blocked and len(self.blocked_streams) < MAX_BLOCKED_STREAMS:
            track.is_blocked = True
            self.blocked_streams.append(track)

    def advance(self, timestamp: i64) -> None:
        """Something is about to pass at `at`, in a later bucket."""
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
                self.write_stream(track, until)  # whatever was written above is not written again
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
        place: i64 = -1
        if track is not self.no_stream:
            place = self.rows.stream_labels.index_of(track.label)
        self.rows.add(place, side, self.bucket, own.bucket_frames, own.bucket_bytes, blocked)
        own.bucket_frames = 0
        own.bucket_bytes = 0

    def take_rows(self) -> TimelineRows:
        rows = self.rows
        self.rows = TimelineRows()
        return rows
