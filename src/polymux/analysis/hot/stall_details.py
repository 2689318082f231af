"""What was seen of a stall, with its numbers."""

from mypy_extensions import i64

from ...core.streams import UNSEEN
from .figures import duration_text, rate_text, size_text
from .tracks import HalfTrack


def closed_text(closed: i64) -> str:
    return f"the peer's TCP window was closed for {duration_text(closed)}"


def credit_text(own: HalfTrack, rtt: i64, lasted: i64, size: i64) -> str:
    """Why there was no credit for a frame of `size`.

    The window sets the pace only of a stream that keeps it full: one that reached at least half of
    what a window a round trip allows. Any other had to wait for its reader.
    """
    half = own.half
    if own.octets == 0:
        return f"no leave for {duration_text(lasted)} before its first octet"
    if half.window <= 0:
        return f"no leave for {duration_text(lasted)}, of {half.granted} given in all"
    if own.span_began == UNSEEN:
        return (
            f"the window of {size_text(half.window)} had no room for the next "
            f"{size_text(size)} for {duration_text(lasted)}"
        )
    full = f"the window of {size_text(half.window)} was full for {duration_text(lasted)}"
    if rtt <= 0:
        return full
    sending = float(own.span_ended - own.first_at)
    if float(own.octets) * 2.0 * float(rtt) >= float(half.window) * sending:
        return (
            f"window-limited: {size_text(half.window)} window, {duration_text(rtt)} round "
            f"trip, so at most {rate_text(half.window, rtt)}; "
            f"no leave for {duration_text(lasted)}"
        )
    return f"{full}: the reader was slow to give credit"
