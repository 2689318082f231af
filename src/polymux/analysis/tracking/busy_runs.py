# mypyc: compiled
"""Recent runs of frames in one direction: which streams kept it busy, and for how long.

Consecutive frames of one stream form a run. A frame occupies its direction from its first byte to
its last and, where the direction was silent before it, for its transmission time: a capture often
has one timestamp for a whole frame, and the frame was transmitted before that timestamp.

Two estimates are kept. Busy time assumes a slow line (8 Mbit/s) and is an upper bound; saturated
time assumes a fast one (100 Mbit/s) and is a lower bound:
the line was certainly full for that long.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import StreamTracker

MAX_RUNS: Final[i64] = 1024  # runs remembered per direction; older ones are overwritten

# Transmission time of a byte before the frame's only timestamp, at 8 Mbit/s, the slowest line that
# is assumed. A longer silence before the frame was a pause.
SLOW_LINE_NS_PER_BYTE: Final[i64] = 1000
# The same at 100 Mbit/s: for this long the line was certainly full.
FULL_LINE_NS_PER_BYTE: Final[i64] = 80
# A silence up to this length is the spacing of full packets on any line, not a pause.
PACKET_SPACING_NS: Final[i64] = 2_000_000
MIN_FULL_PACKET_BYTES: Final[i64] = 1200  # payload of a full packet
MAX_PACKET_BURST_BYTES: Final[i64] = 4800  # payload of the few packets that share a timestamp


class BusyPeriod:
    """A time in which a direction was busy with other streams, and which of them sent the most."""

    def __init__(self, no_stream: StreamTracker) -> None:
        self.start: i64 = 0
        self.total_bytes: i64 = 0  # of all other streams
        self.stream_count: i64 = 0  # other streams
        self.blocking_stream: StreamTracker = no_stream
        self.blocking_bytes: i64 = 0  # of `blocking_stream`
        self.busy_ns: i64 = 0  # the direction was busy with other streams
        self.saturated_ns: i64 = 0  # and saturated by them


class BusyRuns:
    """The last MAX_RUNS runs of one direction. A pause longer than `pause_ns` ends a run."""

    def __init__(self, no_stream: StreamTracker, pause_ns: i64, side: i64) -> None:
        self.no_stream: StreamTracker = no_stream
        self.pause_ns: i64 = pause_ns
        self.run_stream: list[StreamTracker] = []
        self.run_bytes: vec[i64] = vec[i64]([i64(0)] * MAX_RUNS)
        self.run_start: vec[i64] = vec[i64]([i64(0)] * MAX_RUNS)
        self.run_end: vec[i64] = vec[i64]([i64(0)] * MAX_RUNS)
        self.run_busy_ns: vec[i64] = vec[i64]([i64(0)] * MAX_RUNS)
        self.run_saturated_ns: vec[i64] = vec[i64]([i64(0)] * MAX_RUNS)
        self.run_count: i64 = 0
        self.tally_id: i64 = side  # of the current sum; the directions use odd and even numbers
        self.last_stream: StreamTracker = no_stream  # of the last frame
        self.last_frame_end: i64 = 0
        self.last_frame_saturated_ns: i64 = 0  # how long it saturated the direction
        self.last_frame_gap_ns: i64 = 0  # the silence before it, 0 if that was a pause
        # Totals of the direction so far, and their values at the end of the last pause:
        self.busy_ns: i64 = 0
        self.saturated_ns: i64 = 0
        self.busy_ns_at_pause: i64 = 0
        self.saturated_ns_at_pause: i64 = 0

    def add(self, track: StreamTracker, size: i64, began: i64, ended: i64) -> None:
        """Add a frame of this stream: `size` bytes that arrived from `began` to `ended`."""
        duration: i64 = ended - began
        if duration < 0:
            duration = 0
        busy = duration
        saturated = duration
        start = began
        silence: i64 = 0
        last: i64 = 0
        if self.run_count > 0:
            gap = began - self.last_frame_end
            if gap > self.pause_ns:
                self.busy_ns_at_pause = self.busy_ns
                self.saturated_ns_at_pause = self.saturated_ns
            elif gap > 0:
                silence = gap
                longest = size * SLOW_LINE_NS_PER_BYTE
                if 0 < duration < longest:  # its first packet took no longer than its rest
                    longest = duration
                if gap < longest:
                    longest = gap
                shortest = longest
                packets = (
                    gap <= PACKET_SPACING_NS
                    and MIN_FULL_PACKET_BYTES <= size <= MAX_PACKET_BURST_BYTES
                )
                if not packets and size * FULL_LINE_NS_PER_BYTE < longest:
                    shortest = size * FULL_LINE_NS_PER_BYTE
                busy += longest
                saturated += shortest
                start -= longest
            last = (self.run_count - 1) % MAX_RUNS
        self.last_frame_end = ended
        self.last_frame_saturated_ns = saturated
        self.last_frame_gap_ns = silence
        self.busy_ns += busy
        self.saturated_ns += saturated
        if (
            self.run_count > 0
            and self.last_stream is track
            and began - self.run_end[last] <= self.pause_ns
        ):
            self.run_bytes[last] += size
            self.run_end[last] = ended
            self.run_busy_ns[last] += busy
            self.run_saturated_ns[last] += saturated
            return
        self.last_stream = track
        slot = self.run_count % MAX_RUNS
        if self.run_count < MAX_RUNS:
            self.run_stream.append(track)
        else:
            self.run_stream[slot] = track
        self.run_bytes[slot] = size
        self.run_start[slot] = start
        self.run_end[slot] = ended
        self.run_busy_ns[slot] = busy
        self.run_saturated_ns[slot] = saturated
        self.run_count += 1

    def is_back_to_back(self, size: i64, began: i64) -> bool:
        """Whether a frame of `size` bytes that begins at `began` follows without a pause."""
        if self.run_count == 0:
            return False
        gap = began - self.last_frame_end
        if gap <= PACKET_SPACING_NS or gap <= self.last_frame_gap_ns:
            return True
        return gap <= self.pause_ns and gap <= size * SLOW_LINE_NS_PER_BYTE

    def busy_before(self, waiting_stream: StreamTracker, since: i64, until: i64) -> BusyPeriod:
        """What other streams sent in the busy time that ends at `until`.

        It reaches back to `since`, to the waiting stream's own last frame, or to a pause, whichever
        is latest.
        """
        period = BusyPeriod(self.no_stream)
        period.start = until
        self.tally_id += 2
        run = self.run_count - 1
        oldest = self.run_count - MAX_RUNS if self.run_count > MAX_RUNS else 0
        later = until
        while run >= oldest:
            slot = run % MAX_RUNS
            track = self.run_stream[slot]
            if track is waiting_stream or later - self.run_end[slot] > self.pause_ns:
                break
            size = self.run_bytes[slot]
            began = self.run_start[slot]
            busy = self.run_busy_ns[slot]
            saturated = self.run_saturated_ns[slot]
            if began < since:  # only the part after `since` counts
                run_ns = self.run_end[slot] - began
                inside_ns = self.run_end[slot] - since
                if inside_ns <= 0:
                    break
                share = float(inside_ns) / float(run_ns)
                size = i64(float(size) * share)
                busy = i64(float(busy) * share)
                saturated = i64(float(saturated) * share)
                began = since
            if track.tally_id != self.tally_id:
                track.tally_id = self.tally_id
                track.tally_bytes = 0
                period.stream_count += 1
            track.tally_bytes += size
            period.total_bytes += size
            period.busy_ns += busy
            period.saturated_ns += saturated
            if track.stream.serial >= 0 and track.tally_bytes > period.blocking_bytes:
                period.blocking_bytes = track.tally_bytes
                period.blocking_stream = track
            period.start = began
            later = began
            run -= 1
        return period
