# mypyc: compiled
"""What was seen of a stall, with its numbers."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import HalfTracker
from polymux.core.streams import NOT_YET
from polymux.text.units import duration_text, size_text

LATE_CREDIT_ROUND_TRIPS: Final[i64] = 5  # round trips after which credit is late, not on its way


def window_closed_text(duration_ns: i64) -> str:
    return f"the peer's TCP window was closed for {duration_text(duration_ns)}"


def no_credit_text(own: HalfTracker, rtt_ns: i64, duration_ns: i64, size: i64) -> str:
    """Why there was no credit for a frame of `size`.

    A window that is too small costs a round trip at a time: that is a pace, not a stall. A pause of
    several is the reader's, however fast the stream went before.
    """
    half = own.half
    if own.seen_content_bytes == 0:
        return f"no leave for {duration_text(duration_ns)} before its first byte"
    if half.window <= 0:
        return f"no leave for {duration_text(duration_ns)}, of {half.credit_granted} given in all"
    if own.blocked_span_start == NOT_YET:
        return (
            f"the window of {size_text(half.window)} had no room for the next "
            f"{size_text(size)} for {duration_text(duration_ns)}"
        )
    full = f"the window of {size_text(half.window)} was full for {duration_text(duration_ns)}"
    if rtt_ns <= 0 or duration_ns < rtt_ns * LATE_CREDIT_ROUND_TRIPS:
        return full
    return f"{full}: the reader was slow to give credit"
