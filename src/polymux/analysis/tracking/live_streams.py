# mypyc: compiled
"""The streams of a session that is still going on, as they are at one moment.

A live view reads this a few times a second for every open stream, so it is compiled; what a stream
waits for is decided by the stall detector (`StallDetector.pending`).
"""

from mypy_extensions import i64

from polymux.analysis.tracking.session_tracker import SessionTracker
from polymux.analysis.tracking.stall_evidence import PendingStall
from polymux.analysis.tracking.stream_tracker import HalfTracker, StreamTracker
from polymux.core.streams import NOT_YET


class HalfView:
    """What one side has sent on a stream.

    Attributes:
        content_bytes: bytes of content.
        frames: all its frames.
        ended: it has ended its half, or aborted.
        window: the largest window announced to it, in the protocol's unit; -1: none.
        in_use: credit of this window that is in use; without a window, all credit spent.
        credit: credit that is left; -1: it needs none.
        blocked_ns: time without credit so far.
        stalled_ns: its stalls so far that have ended.
        hol_blocked_ns: its waits behind other streams so far.
    """

    def __init__(self, own: HalfTracker, now: i64) -> None:
        half = own.half
        self.content_bytes: i64 = half.content_bytes
        self.frames: i64 = half.frames
        self.ended: bool = half.state != 0
        self.window: int = half.window
        self.in_use: int = half.credit_spent
        self.credit: int = -1
        if half.credit_granted >= 0:
            left = half.credit_granted - half.credit_spent
            self.credit = left if left > 0 else 0
            if half.window > 0:
                self.in_use = half.credit_spent - (half.credit_granted - half.window)
        self.blocked_ns: i64 = half.blocked_ns
        if half.blocked_since != NOT_YET and now > half.blocked_since:
            self.blocked_ns += now - half.blocked_since
        self.stalled_ns: i64 = own.stalled_ns
        self.hol_blocked_ns: i64 = own.hol_blocked_ns


class StreamView:
    """One open stream. Times are nanoseconds since 1970, -1 for none.

    Attributes:
        serial: its number among the streams of the session, in the order of opening.
        key: its key in the tables.
        name: as it was sent; None if it has none.
        accepted: its offer was accepted, in protocols that have offers.
        last_at: its last frame.
        stall: what it waits for; None if for nothing.
    """

    def __init__(self, track: StreamTracker, stall: PendingStall | None, now: i64) -> None:
        stream = track.stream
        self.serial: i64 = stream.serial
        self.key: str = track.label
        self.name: bytes | None = stream.name
        self.accepted: bool = stream.accepted
        self.opened_at: i64 = stream.opened_at
        self.dialer: HalfView = HalfView(track.dialer, now)
        self.acceptor: HalfView = HalfView(track.acceptor, now)
        self.last_at: i64 = track.dialer.last_at
        if track.acceptor.last_at > self.last_at:
            self.last_at = track.acceptor.last_at
        self.stall: PendingStall | None = stall


def open_streams(tracker: SessionTracker, now: i64) -> list[StreamView]:
    """The streams of a session that are not over at `now`, in the order of their opening."""
    found: list[StreamView] = []
    table = tracker.stream_trackers
    for track in table.slots:
        if track is table.empty_slot or track.stream.over or track.removed:
            continue
        stall = tracker.stalls.pending(track, 0, now)
        other = tracker.stalls.pending(track, 1, now)
        if stall is None or (other is not None and other.began < stall.began):
            stall = other
        found.append(StreamView(track, stall, now))
    found.sort(key=serial_of)
    return found


def serial_of(view: StreamView) -> int:
    return view.serial
