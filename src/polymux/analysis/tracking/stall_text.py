# mypyc: compiled
"""What was seen of a stall, with its numbers."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import HalfTrack
from polymux.core.streams import UNSEEN
from polymux.text.units import duration_text, size_text

TRIPS: Final[i64] = 5  # round trips after which credit is late, not on its way


def closed_text(closed: i64) -> str:
    return f"the peer's TCP window was closed for {duration_text(closed)}"


def credit_text(own: HalfTrack, rtt: i64, lasted: i64, size: i64) -> str:
    """Why there was no credit for a frame of `size`.

    A window that is too small costs a round trip at a time: that is a pace, not a stall. A pause of
    several is the reader's, however fast the stream went before.
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
    if rtt <= 0 or lasted < rtt * TRIPS:
        return full
    return f"{full}: the reader was slow to give credit"
