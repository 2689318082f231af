# mypyc: compiled
"""What passed when: frames, content and time without leave, by stream, side and time bucket.

A bucket is written when the next one begins, so only the current one is in memory. A capture's
clock may step back; its buckets do not: such frames count in the bucket that is open.
"""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.output.timeline_rows import TimelineRows
from polymux.analysis.tracking.stream_tracker import HalfTrack, Track
from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.streams import UNSEEN, Stream

LAST_BUCKET: Final[i64] = 499
# Streams without leave have a row in every bucket. Beyond so many of them at once the rest get
# rows only where something passes: a flood of offers must not become five hundred times as many.
WAITING_MOST: Final[i64] = 4096


class Timeline:
    """Buckets of `width_us` from `started_us` on; instants are in nanoseconds."""

    def __init__(self, started_us: i64, width_us: i64) -> None:
        self.started_us: i64 = started_us
        self.width_us: i64 = width_us
        self.bucket: i64 = 0
        self.rows: TimelineRows = TimelineRows()
        self.dirty: list[Track] = []
        self.waiting: list[Track] = []
        self.nowhere: Track = Track(Stream(-1, -1, 0, 0))  # frames that belong to no stream
        self.boundary: i64 = self.end_of(0)  # the first instant of the next bucket

    def end_of(self, bucket: i64) -> i64:
        if bucket >= LAST_BUCKET:
            return 0x7FFFFFFFFFFFFFFF
        return (self.started_us + (bucket + 1) * self.width_us) * 1000

    def touch(self, track: Track) -> None:
        """The track has something for the current bucket."""
        if not track.dirty:
            track.dirty = True
            self.dirty.append(track)

    def wait(self, track: Track) -> None:
        """The track is without leave from now on, until a later look says otherwise."""
        if not track.waiting and len(self.waiting) < WAITING_MOST:
            track.waiting = True
            self.waiting.append(track)

    def advance(self, at: i64) -> None:
        """Something is about to pass at `at`, in a later bucket."""
        target = (at // 1000 - self.started_us) // self.width_us
        if target > LAST_BUCKET:
            target = LAST_BUCKET
        while self.bucket < target:
            self.write(self.boundary)
            self.bucket += 1
            if len(self.waiting) == 0:
                self.bucket = target
            self.boundary = self.end_of(self.bucket)

    def write(self, until: i64) -> None:
        """Write the current bucket, which ends at `until`."""
        for track in self.dirty:
            track.dirty = False
            self.put(track, until)
        self.dirty = []
        if len(self.waiting) > 0:
            still: list[Track] = []
            for track in self.waiting:
                self.put(track, until)  # whatever was written above is not written again
                blocked = track.dialer.half.blocked_since, track.acceptor.half.blocked_since
                if (blocked[0] != UNSEEN or blocked[1] != UNSEEN) and not track.gone:
                    still.append(track)
                else:
                    track.waiting = False
            self.waiting = still
        self.put(self.nowhere, until)

    def put(self, track: Track, until: i64) -> None:
        self.put_half(track, track.dialer, DIALER, until)
        self.put_half(track, track.acceptor, ACCEPTOR, until)

    def put_half(self, track: Track, own: HalfTrack, side: i64, until: i64) -> None:
        blocked: i64 = -1
        half = own.half
        if half.granted >= 0:
            total = half.blocked
            if half.blocked_since != UNSEEN and until > half.blocked_since:
                total += until - half.blocked_since
            blocked = total // 1000 - own.told_us
            if blocked < 0:
                blocked = 0
            own.told_us += blocked
        if own.frames == 0 and own.gained == 0 and blocked <= 0:
            return
        place: i64 = -1
        if track is not self.nowhere:
            place = self.rows.streams.of(track.label)
        self.rows.put(place, side, self.bucket, own.frames, own.gained, blocked)
        own.frames = 0
        own.gained = 0

    def take(self) -> TimelineRows:
        rows = self.rows
        self.rows = TimelineRows()
        return rows
