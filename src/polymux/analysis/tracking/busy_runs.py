# mypyc: compiled
"""Whose bytes a direction carried last, and how much of the time it was at work.

Consecutive frames of one stream are one run. A frame occupies its direction from its first byte to
its last and, where nothing came right before it, for as long as its bytes take on the way: a
capture often has one instant for a whole frame, and the frame passed before that instant.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import StreamTracker

MAX_RUNS: Final[i64] = 1024  # runs; what is older than these is forgotten

# How long the bytes of a frame may have been on their way before the frame's only instant: at
# 8 Mbit/s, the slowest line that is assumed. A longer silence before it was a pause.
SLOW_LINE_NS_PER_BYTE: Final[i64] = 1000  # a byte
# The same on a line that is surely full, 100 Mbit/s; and a silence that is no pause, but the
# spacing of full packets on any line.
FULL_LINE_NS_PER_BYTE: Final[i64] = 80  # a byte
PACKET_SPACING_NS: Final[i64] = 2_000_000
MIN_FULL_PACKET_BYTES: Final[i64] = 1200  # bytes in it at least
MAX_PACKET_BURST_BYTES: Final[i64] = 4800  # and at most, in the few that may share an instant


class BusyPeriod:
    """A time in which a direction was busy with others: how it began, and who had most of it."""

    def __init__(self, no_stream: StreamTracker) -> None:
        self.start: i64 = 0
        self.total_bytes: i64 = 0  # of all others
        self.stream_count: i64 = 0  # how many of them
        self.blocking_stream: StreamTracker = no_stream
        self.blocking_bytes: i64 = 0  # bytes of the culprit
        self.busy_ns: i64 = 0  # nanoseconds in which the direction was at work for others
        self.saturated_ns: i64 = 0  # and in which it was surely full


class BusyRuns:
    """The last runs of one direction. A pause of `idle` or more parts runs even of one stream."""

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
        self.tally_id: i64 = side  # of stretches added up; the two directions never have the same
        self.last_stream: StreamTracker = no_stream  # of the last frame: its stream,
        self.last_frame_end: i64 = 0  # its last byte,
        self.last_frame_saturated_ns: i64 = 0  # how long it surely filled the direction,
        self.last_frame_gap_ns: i64 = 0  # and the silence before it, if that was no pause
        # Nanoseconds in which the direction was at work so far, and in which it was surely full;
        # and what both were at the end of the last pause of `idle` or more.
        self.busy_ns: i64 = 0
        self.saturated_ns: i64 = 0
        self.busy_ns_at_pause: i64 = 0
        self.saturated_ns_at_pause: i64 = 0

    def add(self, track: StreamTracker, size: i64, began: i64, ended: i64) -> None:
        """A frame of this stream passed from `began` to `ended`."""
        passed: i64 = ended - began
        if passed < 0:
            passed = 0
        work = passed
        full = passed
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
                slow = size * SLOW_LINE_NS_PER_BYTE
                if 0 < passed < slow:  # its first packet took no longer than the rest of it
                    slow = passed
                if gap < slow:
                    slow = gap
                quick = slow
                packets = (
                    gap <= PACKET_SPACING_NS
                    and MIN_FULL_PACKET_BYTES <= size <= MAX_PACKET_BURST_BYTES
                )
                if not packets and size * FULL_LINE_NS_PER_BYTE < slow:
                    quick = size * FULL_LINE_NS_PER_BYTE
                work += slow
                full += quick
                start -= slow
            last = (self.run_count - 1) % MAX_RUNS
        self.last_frame_end = ended
        self.last_frame_saturated_ns = full
        self.last_frame_gap_ns = silence
        self.busy_ns += work
        self.saturated_ns += full
        if (
            self.run_count > 0
            and self.last_stream is track
            and began - self.run_end[last] <= self.pause_ns
        ):
            self.run_bytes[last] += size
            self.run_end[last] = ended
            self.run_busy_ns[last] += work
            self.run_saturated_ns[last] += full
            return
        self.last_stream = track
        place = self.run_count % MAX_RUNS
        if self.run_count < MAX_RUNS:
            self.run_stream.append(track)
        else:
            self.run_stream[place] = track
        self.run_bytes[place] = size
        self.run_start[place] = start
        self.run_end[place] = ended
        self.run_busy_ns[place] = work
        self.run_saturated_ns[place] = full
        self.run_count += 1

    def is_back_to_back(self, size: i64, began: i64) -> bool:
        """Does a frame that begins now come as close behind the last one as that came itself?"""
        if self.run_count == 0:
            return False
        gap = began - self.last_frame_end
        if gap <= PACKET_SPACING_NS or gap <= self.last_frame_gap_ns:
            return True
        return gap <= self.pause_ns and gap <= size * SLOW_LINE_NS_PER_BYTE

    def busy_before(self, waiting_stream: StreamTracker, since: i64, until: i64) -> BusyPeriod:
        """What others sent in the busy time that led up to `until`, back to `since` at most, or to
        this stream's own last frame, or to a pause."""
        found = BusyPeriod(self.no_stream)
        found.start = until
        self.tally_id += 2
        number = self.run_count - 1
        oldest = self.run_count - MAX_RUNS if self.run_count > MAX_RUNS else 0
        later = until
        while number >= oldest:
            place = number % MAX_RUNS
            track = self.run_stream[place]
            if track is waiting_stream or later - self.run_end[place] > self.pause_ns:
                break
            size = self.run_bytes[place]
            began = self.run_start[place]
            work = self.run_busy_ns[place]
            full = self.run_saturated_ns[place]
            if began < since:  # only a part of it lies in the time asked for
                whole = self.run_end[place] - began
                inside = self.run_end[place] - since
                if inside <= 0:
                    break
                share = float(inside) / float(whole)
                size = i64(float(size) * share)
                work = i64(float(work) * share)
                full = i64(float(full) * share)
                began = since
            if track.tally_id != self.tally_id:
                track.tally_id = self.tally_id
                track.tally_bytes = 0
                found.stream_count += 1
            track.tally_bytes += size
            found.total_bytes += size
            found.busy_ns += work
            found.saturated_ns += full
            if track.stream.serial >= 0 and track.tally_bytes > found.blocking_bytes:
                found.blocking_bytes = track.tally_bytes
                found.blocking_stream = track
            found.start = began
            later = began
            number -= 1
        return found
