# mypyc: compiled
"""The `detail` of a stall: what the capture shows, with its numbers."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import HalfTracker
from polymux.core.streams import NOT_YET
from polymux.text.units import duration_text, size_text

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
