# mypyc: compiled
"""What the cause of a stall is decided from, and the rows that stalls become.

Frames and TCP show what happened in a direction: which streams kept it busy (`BusyRuns`), when
its receiver's TCP window was closed, when its sender retransmitted (`Intervals`), and which bytes
were not captured. `DirectionHistory` has all of it for one direction; `stalls` and
`missing_replies` decide by it.

Consecutive frames of one stream form a run. A frame occupies its direction from its first byte to
its last and, where the direction was silent before it, for its transmission time: a capture often
has one timestamp for a whole frame, and the frame was transmitted before that timestamp. Two
estimates are kept. Busy time assumes a slow line (8 Mbit/s) and is an upper bound; saturated time
assumes a fast one (100 Mbit/s) and is a lower bound: the line was certainly full for that long.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import HalfTracker, StreamTracker
from polymux.core.streams import NOT_YET
from polymux.text.units import duration_text, size_text

NO_CREDIT: Final = "no-credit"
SLOW_READER: Final = "slow-reader"
HEAD_OF_LINE: Final = "head-of-line"
TRANSPORT: Final = "transport"
NO_REPLY: Final = "no-reply"
SENDER_IDLE: Final = "sender-idle"


class StallRows:
    """Rows as columns; `blocking_stream` is "" for none, times are microseconds."""

    def __init__(self) -> None:
        self.stream: list[str] = []
        self.sender: list[int] = []
        self.started_us: list[int] = []
        self.duration_us: list[int] = []
        self.cause: list[str] = []
        self.blocking_stream: list[str] = []
        self.detail: list[str] = []

    def add(
        self,
        track: StreamTracker,
        side: i64,
        began: i64,
        ended: i64,
        cause: str,
        blocking_stream: str,
        detail: str,
    ) -> None:
        """Add a row (times in nanoseconds); unless idle, add its time to `stalled_ns` too."""
        if cause != SENDER_IDLE:
            track.half(side).stalled_ns += ended - began
        self.stream.append(track.label)
        self.sender.append(int(side))
        self.started_us.append(int(began // 1000))
        self.duration_us.append(int((ended - began) // 1000))
        self.cause.append(cause)
        self.blocking_stream.append(blocking_stream)
        self.detail.append(detail)


class PendingStall:
    """A pause that has not ended, of one side of a stream; see `StallRows` for the columns.

    `side` is the side that cannot send, `began` is in nanoseconds.
    """

    def __init__(
        self, side: i64, began: i64, cause: str, blocking_stream: str, detail: str
    ) -> None:
        self.side: i64 = side
        self.began: i64 = began
        self.cause: str = cause
        self.blocking_stream: str = blocking_stream
        self.detail: str = detail


LATE_CREDIT_ROUND_TRIPS: Final[i64] = 5  # credit after this many round trips is late


def window_closed_text(duration_ns: i64) -> str:
    return f"the peer's TCP window was closed for {duration_text(duration_ns)}"


def hol_blocked_text(blocking_bytes: i64, blocking_stream: str, duration_ns: i64) -> str:
    """What another stream sent while this one was head-of-line blocked."""
    sent = f"{size_text(blocking_bytes)} of {blocking_stream} passed first"
    return f"{sent}, in {duration_text(duration_ns)}"


def no_credit_text(own: HalfTracker, rtt_ns: i64, duration_ns: i64, size: i64) -> str:
    """Why there was no credit for a frame of `size` bytes.

    A window that is too small costs one round trip at a time, which limits throughput and is no
    stall. A pause of several round trips is due to the reader, whatever the throughput before it.
    """
    half = own.half
    lasted = duration_text(duration_ns)
    if own.seen_content_bytes == 0:
        return f"no send credit for {lasted} before its first byte"
    if half.window <= 0:
        return f"no send credit for {lasted}, of {half.credit_granted} granted in total"
    if own.blocked_span_start == NOT_YET:
        return (
            f"the window of {size_text(half.window)} had no room for the next "
            f"{size_text(size)} for {lasted}"
        )
    full = f"the window of {size_text(half.window)} was full for {lasted}"
    if rtt_ns <= 0 or duration_ns < rtt_ns * LATE_CREDIT_ROUND_TRIPS:
        return full
    return f"{full}: the reader was slow to grant credit"


def still_no_credit_text(own: HalfTracker, duration_ns: i64) -> str:
    """That a half has had no credit for this long, and has none."""
    half = own.half
    lasted = duration_text(duration_ns)
    if half.window > 0 and own.seen_content_bytes > 0:
        return f"the window of {size_text(half.window)} has been full for {lasted}"
    if own.seen_content_bytes == 0:
        return f"no send credit for {lasted}, and nothing sent yet"
    return f"no send credit for {lasted}, of {half.credit_granted} granted in total"


MAX_GAPS: Final = 1024  # gaps remembered; beyond, the older half is dropped
FAIR_QUANTUM_BYTES: Final[i64] = 16384  # a fair scheduler sends this of a stream before the next


class DirectionHistory:
    """The runs of frames of one direction, and the intervals in which TCP delayed it."""

    def __init__(
        self, runs: BusyRuns, window_closed: Intervals, retransmissions: Intervals
    ) -> None:
        self.runs: BusyRuns = runs
        # The receiver's TCP window was closed, or too small for the next segment:
        self.window_closed: Intervals = window_closed
        self.retransmissions: Intervals = retransmissions
        self.gaps: list[tuple[int, int]] = []  # (start, end) of bytes that were not captured
        # Streams with an unresolved head-of-line suspect (see `stalls`):
        self.hol_suspects: list[StreamTracker] = []

    def add_gap(self, began: i64, ended: i64) -> None:
        """Bytes that passed between `began` and `ended` were not captured."""
        if len(self.gaps) >= MAX_GAPS:
            self.gaps = self.gaps[MAX_GAPS // 2 :]
        self.gaps.append((int(began), int(ended)))

    def gap_overlap(self, began: i64, ended: i64) -> i64:
        """Nanoseconds of [began, ended) covered by gaps."""
        covered: i64 = 0
        for since, until in reversed(self.gaps):
            if until <= began:
                break
            start: i64 = since if since > began else began
            stop: i64 = until if until < ended else ended
            if stop > start:
                covered += stop - start
        return covered

    def transport_cause(self, began: i64, ended: i64) -> tuple[str, str]:
        """The cause and detail of a pause by what TCP shows; `sender-idle` if it shows nothing."""
        lasted = ended - began
        closed_ns = self.window_closed.overlap(began, ended)
        if closed_ns * 2 >= lasted:
            return SLOW_READER, window_closed_text(closed_ns)
        resent_ns = self.retransmissions.overlap(began, ended)
        if resent_ns * 2 >= lasted:
            return TRANSPORT, f"bytes were lost and sent again for {duration_text(resent_ns)}"
        missing_ns = self.gap_overlap(began, ended)
        if missing_ns * 2 >= lasted:
            return TRANSPORT, f"bytes of {duration_text(missing_ns)} were not captured"
        return SENDER_IDLE, f"the sender sent nothing for {duration_text(lasted)}"


MAX_RUNS: Final[i64] = 1024  # runs remembered per direction; older ones are overwritten
FIRST_RUNS: Final[i64] = 16  # runs of a direction for which there is room from the start

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


def with_zeros(numbers: vec[i64], size: i64) -> vec[i64]:
    """A copy of these numbers, with zeros behind them up to `size`."""
    copy: vec[i64] = vec[i64]([i64(0)] * size)
    for n in range(i64(len(numbers))):
        copy[n] = numbers[n]
    return copy


class BusyRuns:
    """The last MAX_RUNS runs of one direction. A pause longer than `pause_ns` ends a run."""

    def __init__(self, no_stream: StreamTracker, pause_ns: i64, side: i64) -> None:
        self.no_stream: StreamTracker = no_stream
        self.pause_ns: i64 = pause_ns
        self.run_stream: list[StreamTracker] = []
        self.run_bytes: vec[i64] = vec[i64]([i64(0)] * FIRST_RUNS)
        self.run_start: vec[i64] = vec[i64]([i64(0)] * FIRST_RUNS)
        self.run_end: vec[i64] = vec[i64]([i64(0)] * FIRST_RUNS)
        self.run_busy_ns: vec[i64] = vec[i64]([i64(0)] * FIRST_RUNS)
        self.run_saturated_ns: vec[i64] = vec[i64]([i64(0)] * FIRST_RUNS)
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
        if self.run_count == FIRST_RUNS:
            self.make_room()
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

    def make_room(self) -> None:
        """Make room for MAX_RUNS runs; most sessions of a large capture have only a few."""
        self.run_bytes = with_zeros(self.run_bytes, MAX_RUNS)
        self.run_start = with_zeros(self.run_start, MAX_RUNS)
        self.run_end = with_zeros(self.run_end, MAX_RUNS)
        self.run_busy_ns = with_zeros(self.run_busy_ns, MAX_RUNS)
        self.run_saturated_ns = with_zeros(self.run_saturated_ns, MAX_RUNS)

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


class Intervals:
    """Intervals (start, end) in nanoseconds, sorted by start."""

    def __init__(self, intervals: list[tuple[int, int]]) -> None:
        ordered = sorted(intervals)
        self.count: i64 = len(ordered)
        self.starts: vec[i64] = vec[i64]([i64(0)] * len(ordered))
        self.ends: vec[i64] = vec[i64](
            [i64(0)] * len(ordered)
        )  # the latest end up to and including this interval
        latest: i64 = 0
        for n in range(i64(len(ordered))):
            began, ended = ordered[n]
            self.starts[n] = began
            if n == 0 or ended > latest:
                latest = ended
            self.ends[n] = latest

    def first_ending_after(self, time: i64) -> i64:
        """Index of the first interval that ends after `time`; `count` if none does."""
        low: i64 = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.ends[middle] <= time:
                low = middle + 1
            else:
                high = middle
        return low

    def overlap(self, began: i64, ended: i64) -> i64:
        """Nanoseconds of [began, ended) that the intervals cover."""
        covered: i64 = 0
        reached = began
        n = self.first_ending_after(began)
        while n < self.count and self.starts[n] < ended:
            start = self.starts[n] if self.starts[n] > reached else reached
            stop = self.ends[n] if self.ends[n] < ended else ended
            if stop > start:
                covered += stop - start
                reached = stop
            n += 1
        return covered

    def start_after(self, time: i64) -> i64:
        """Start of the first interval that ends after `time`, but not before `time`."""
        began = self.starts[self.first_ending_after(time)]
        return began if began > time else time

    def end_before(self, time: i64) -> i64:
        """Latest end of the intervals that start before `time`, but not after `time`."""
        low: i64 = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.starts[middle] < time:
                low = middle + 1
            else:
                high = middle
        ended = self.ends[low - 1]
        return ended if ended < time else time

    def last_start(self) -> i64:
        """Start of the last interval; -1 if there is none."""
        return self.starts[self.count - 1] if self.count > 0 else -1

    def last_end(self) -> i64:
        """Latest end of all intervals; -1 if there is none."""
        return self.ends[self.count - 1] if self.count > 0 else -1
