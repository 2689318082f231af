# mypyc: compiled
"""Per-stream measurement state, and the hash table that finds it by a frame row's stream."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from polymux.core.side import DIALER, NEITHER_SIDE
from polymux.core.stream_table import HASH_MULTIPLIER, INITIAL_SHIFT, LOW_32_BITS
from polymux.core.streams import NOT_YET, OPEN, HalfStream, StreamState

INCARNATION_MULTIPLIER: Final[i64] = 2862933555777941757
NO_GRANTS: Final[list[tuple[int, int]]] = []  # shared: few halves ever have late grants


def side_name(side: i64) -> str:
    """`dialer` or `acceptor`, as the tables name the sides."""
    return "dialer" if side == DIALER else "acceptor"


class HalfTracker:
    """Measurement state of one side of a stream. Times are nanoseconds; NOT_YET means none."""

    __slots__ = (
        "peer_content_at",
        "busy_ns_at_peer_content",
        "hol_blocked_ns",
        "seen_blocked_ns",
        "ended_at",
        "first_at",
        "bucket_frames",
        "last_frame_was_full_size",
        "bucket_bytes",
        "seen_granted",
        "late_grants",
        "half",
        "hol_suspected_at",
        "hol_blocking_start",
        "hol_blocking_stream",
        "hol_blocking_bytes",
        "hol_pause_start",
        "hol_pause_end",
        "hol_fallback_wait_ns",
        "hol_evidence_weak",
        "largest_payload",
        "last_at",
        "seen_content_bytes",
        "saturated_ns_at_peer_end",
        "saturated_ns_at_last_frame",
        "busy_ns_at_last_frame",
        "last_content_at",
        "seen_blocked_since",
        "blocked_span_start",
        "blocked_span_end",
        "busy_ns_at_unblock",
        "ends_mid_frame",
        "spent_at_last_content",
        "stalled_ns",
        "seen_state",
        "reported_blocked_us",
    )

    def __init__(self, half: HalfStream, opened_at: i64) -> None:
        self.half: HalfStream = half
        self.first_at: i64 = NOT_YET  # first and last of all its frames
        self.last_at: i64 = NOT_YET
        # Totals of its direction (`BusyRuns`) at its last frame:
        self.busy_ns_at_last_frame: i64 = 0
        self.saturated_ns_at_last_frame: i64 = 0
        # The state of the half at the last update:
        self.seen_content_bytes: i64 = 0
        self.seen_blocked_ns: i64 = 0
        self.seen_blocked_since: i64 = NOT_YET
        self.seen_granted: int = -1
        self.seen_state: i64 = OPEN
        self.ended_at: i64 = NOT_YET  # when this side ended its half, and expects the peer's answer
        self.saturated_ns_at_peer_end: i64 = 0  # of its direction, when the peer ended its half
        self.ends_mid_frame: bool = False  # the capture ended inside one of its frames
        # In the timeline's current bucket:
        self.bucket_frames: i64 = 0
        self.bucket_bytes: i64 = 0
        self.reported_blocked_us: i64 = 0  # blocked time that earlier buckets hold
        # Since its last content frame:
        self.last_content_at: i64 = opened_at
        self.spent_at_last_content: int = 0  # credit spent by then
        self.blocked_span_start: i64 = NOT_YET  # the longest time without credit that a grant ended
        self.blocked_span_end: i64 = NOT_YET
        self.busy_ns_at_unblock: i64 = 0  # of its direction, when that time ended
        self.late_grants: list[tuple[int, int]] = NO_GRANTS  # (timestamp, credit before it)
        self.peer_content_at: i64 = NOT_YET  # when the peer last sent content on the stream
        self.busy_ns_at_peer_content: i64 = 0  # of this side's direction, by then
        self.largest_payload: i64 = 0  # of its content frames
        self.last_frame_was_full_size: bool = False  # its last content frame was its largest
        # A suspected head-of-line stall, until the next frames confirm or refute it:
        self.hol_suspected_at: i64 = NOT_YET
        self.hol_evidence_weak: bool = False  # it may have had nothing to send
        self.hol_fallback_wait_ns: i64 = 0  # counted as head-of-line blocked if refuted
        self.hol_pause_start: i64 = 0  # the pause
        self.hol_pause_end: i64 = 0
        self.hol_blocking_start: i64 = 0  # when the other streams began in it
        self.hol_blocking_bytes: i64 = 0
        self.hol_blocking_stream: str = ""
        # Totals:
        self.stalled_ns: i64 = 0  # its stalls, without those of an idle sender
        self.hol_blocked_ns: i64 = 0  # its waits behind other streams, however short


class StreamTracker:
    """Measurement state of one stream; the identifying numbers are copied for fast lookup."""

    __slots__ = (
        "acceptor",
        "seen_accepted",
        "dialer",
        "dirty",
        "is_new",
        "removed",
        "incarnation",
        "label",
        "page_id",
        "stream_id",
        "opener",
        "label_index",
        "stream",
        "tally_bytes",
        "tally_id",
        "is_blocked",
    )

    def __init__(self, stream: StreamState) -> None:
        self.stream: StreamState = stream
        self.opener: i64 = stream.opener
        self.stream_id: i64 = stream.stream_id
        self.incarnation: i64 = stream.incarnation
        self.label: str = stream.label()
        self.dialer: HalfTracker = HalfTracker(stream.dialer, stream.opened_at)
        self.acceptor: HalfTracker = HalfTracker(stream.acceptor, stream.opened_at)
        self.page_id: i64 = -1  # the last page that has this stream's label
        self.label_index: i64 = 0  # index in the labels of that page
        self.tally_bytes: i64 = 0  # bytes in the current sum of `BusyRuns.busy_before`
        self.tally_id: i64 = -1
        self.is_new: bool = True  # none of its frames was processed
        self.seen_accepted: bool = False  # accepted at the last update
        self.dirty: bool = False  # has a row in the current timeline bucket
        self.is_blocked: bool = False  # in `Timeline.blocked_streams`
        self.removed: bool = False  # no more rows refer to it

    def half(self, side: i64) -> HalfTracker:
        return self.dialer if side == DIALER else self.acceptor


class StreamTrackerTable:
    """Hash table from (opener, stream id, incarnation) to tracker.

    Open addressing with linear probing, as in `core.streams.StreamTable`.
    """

    def __init__(self) -> None:
        self.empty_slot: StreamTracker = StreamTracker(StreamState(-1, -1, NEITHER_SIDE, 0))
        self.slots: vec[StreamTracker] = vec[StreamTracker]([self.empty_slot] * 64)
        self.mask: i64 = 63
        self.shift: i64 = INITIAL_SHIFT
        self.multiplier: i64 = HASH_MULTIPLIER
        self.used_slots: i64 = 0

    def find(self, opener: i64, stream_id: i64, incarnation: i64) -> StreamTracker:
        """The tracker, or `empty_slot` if there is none."""
        slots = self.slots
        mask = self.mask
        none = self.empty_slot
        i = self._slot(opener, stream_id, incarnation)
        while True:
            track = slots[i]
            if track is none or (
                track.stream_id == stream_id
                and track.opener == opener
                and track.incarnation == incarnation
            ):
                return track
            i = (i + 1) & mask

    def insert(self, track: StreamTracker) -> None:
        """Add a tracker whose key is not in the table."""
        i = self._slot(track.opener, track.stream_id, track.incarnation)
        while self.slots[i] is not self.empty_slot:
            i = (i + 1) & self.mask
        self.slots[i] = track
        self.used_slots += 1
        if self.used_slots * 2 > self.mask:
            self.grow()

    def grow(self) -> None:
        """Double the number of slots."""
        old = self.slots
        size: i64 = (self.mask + 1) * 2
        self.slots = vec[StreamTracker]([self.empty_slot] * size)
        self.mask = size - 1
        self.shift -= 1
        for track in old:
            if track is not self.empty_slot:
                i = self._slot(track.opener, track.stream_id, track.incarnation)
                while self.slots[i] is not self.empty_slot:
                    i = (i + 1) & self.mask
                self.slots[i] = track

    def remove(self, removed: StreamTracker) -> None:
        """Remove a tracker; later entries of its probe sequence move up to stay reachable."""
        mask = self.mask
        i = self._slot(removed.opener, removed.stream_id, removed.incarnation)
        while self.slots[i] is not removed:
            if self.slots[i] is self.empty_slot:
                return
            i = (i + 1) & mask
        self.used_slots -= 1
        hole = i
        while True:
            i = (i + 1) & mask
            track = self.slots[i]
            if track is self.empty_slot:
                break
            home = self._slot(track.opener, track.stream_id, track.incarnation)
            if ((i - home) & mask) >= ((i - hole) & mask):
                self.slots[hole] = track
                hole = i
        self.slots[hole] = self.empty_slot

    def _slot(self, opener: i64, stream_id: i64, incarnation: i64) -> i64:
        """The first slot of a tracker's probe sequence."""
        product = (stream_id * 4 + opener + incarnation * INCARNATION_MULTIPLIER) * self.multiplier
        return (
            (product ^ (product >> 32 & LOW_32_BITS)) * self.multiplier >> self.shift
        ) & self.mask

    def all(self) -> list[StreamTracker]:
        """All trackers, in the order in which their streams were registered."""
        trackers = [track for track in self.slots if track is not self.empty_slot]
        trackers.sort(key=serial_of)
        return trackers


def serial_of(track: StreamTracker) -> int:
    return track.stream.serial
