# mypyc: compiled
"""What a look at a stream tells the stalls and the timeline."""

from mypy_extensions import i64

from polymux.analysis.output.frame_page import Passing
from polymux.analysis.tracking.stalls import Stalls
from polymux.analysis.tracking.stream_tracker import Track
from polymux.analysis.tracking.timeline import Timeline
from polymux.core.streams import ABORTED, ENDED, UNSEEN


def look_at_leave(stalls: Stalls, timeline: Timeline, track: Track, side: i64, at: i64) -> None:
    """Has one side of the stream lost or regained its leave since the last look?

    Leave moves only with frames of the stream, and every one of them is followed by a look, so a
    time without leave that is over ended just now.
    """
    own = track.side(side)
    half = own.half
    if half.blocked != own.blocked:
        lasted = half.blocked - own.blocked
        began = own.since if own.since != UNSEEN else at - lasted
        stalls.released(track, side, began, began + lasted)
        own.blocked = half.blocked
    if half.granted != own.granted:
        stalls.granted(track, side, at)
        own.granted = half.granted
    own.since = half.blocked_since
    if own.since != UNSEEN and not track.waiting:
        timeline.wait(track)


def look_at_ends(stalls: Stalls, track: Track, side: i64, at: i64) -> None:
    """Was an offer accepted, or has a side ended its half, reset or given up the stream?"""
    stream = track.stream
    if stream.accepted and not track.accepted:
        track.accepted = True
        stalls.accepted(track, at)
    own = track.side(side)
    state = own.half.state
    if state == ENDED and stream.reset_by == side:  # it had ended its half before
        state = ABORTED
    if state != own.state:
        stalls.stopped(track, side, state, at)


def tell_silences(stalls: Stalls, passing: Passing, track: Track, side: i64) -> None:
    """The frame that was passing is whole: its stream stood still while nothing came."""
    if track.stream.serial >= 0:
        for since, until in passing.silences:
            stalls.silence(track, side, since, until)
    passing.silences = []
