# mypyc: compiled
"""What a look at a stream tells the stalls and the timeline."""

from mypy_extensions import i64

from polymux.analysis.output.frame_page import PartialFrame
from polymux.analysis.tracking.stalls import StallDetector
from polymux.analysis.tracking.stream_tracker import StreamTracker
from polymux.analysis.tracking.timeline import Timeline
from polymux.core.streams import ABORTED, ENDED, NOT_YET


def update_blocked_time(
    stalls: StallDetector, timeline: Timeline, track: StreamTracker, side: i64, timestamp: i64
) -> None:
    """Has one side of the stream lost or regained its leave since the last look?

    Leave moves only with frames of the stream, and every one of them is followed by a look, so a
    time without leave that is over ended just now.
    """
    own = track.half(side)
    half = own.half
    if half.blocked_ns != own.seen_blocked_ns:
        lasted = half.blocked_ns - own.seen_blocked_ns
        began = own.seen_blocked_since if own.seen_blocked_since != NOT_YET else timestamp - lasted
        stalls.on_unblocked(track, side, began, began + lasted)
        own.seen_blocked_ns = half.blocked_ns
    if half.credit_granted != own.seen_granted:
        stalls.on_credit(track, side, timestamp)
        own.seen_granted = half.credit_granted
    own.seen_blocked_since = half.blocked_since
    if own.seen_blocked_since != NOT_YET and not track.is_blocked:
        timeline.mark_blocked(track)


def report_state_changes(
    stalls: StallDetector, track: StreamTracker, side: i64, timestamp: i64
) -> None:
    """Was an offer accepted, or has a side ended its half, reset or given up the stream?"""
    stream = track.stream
    if stream.accepted and not track.seen_accepted:
        track.seen_accepted = True
        stalls.on_accepted(track, timestamp)
    own = track.half(side)
    state = own.half.state
    if state == ENDED and stream.reset_by == side:  # it had ended its half before
        state = ABORTED
    if state != own.seen_state:
        stalls.on_half_ended(track, side, state, timestamp)


def report_silences(
    stalls: StallDetector, partial_frame: PartialFrame, track: StreamTracker, side: i64
) -> None:
    """The frame that was passing is whole: its stream stood still while nothing came."""
    if track.stream.serial >= 0:
        for since, until in partial_frame.silences:
            stalls.on_mid_frame_silence(track, side, since, until)
    partial_frame.silences = []
