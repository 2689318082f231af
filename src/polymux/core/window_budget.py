# mypyc: compiled
"""How large the next receive window of a session may be.

A window is a promise: the peer may send that much before this side has read anything. So the bound
on what a session holds has to be kept when a window is announced; afterwards it is too late. The
windows of a session add up to four times `Limits.session_buffer_bytes` at most, since few peers
fill all of them at once. Half of that is a pool from which a new window gets a part that shrinks
with the square of what is left: the first streams get the window they ask for, a hundred streams
still get tens of kilobytes. The other half is a reserve, of which a new window gets a thousandth of
what is left once the pool is used up: the thousandth stream still gets a dozen kilobytes. However
many streams there are, each gets a smallest window, with which it makes progress. A peer that needs
more can ask for it later, where the protocol has such a request.
"""

from typing import Final

from polymux.core.limits import Limits

WINDOWS_FACTOR: Final = 4  # all windows of a session, in units of `session_buffer_bytes`
MIN_WINDOW_BYTES: Final = 1024  # a stream with less would spend more on headers than on content
POOL_DIVISOR: Final = 16  # of the untouched pool, for one window
RESERVE_DIVISOR: Final = 1024  # of the reserve that is left, for one window


def windows_total(limits: Limits) -> int:
    """Return the bytes that all receive windows of a session may add up to."""
    return WINDOWS_FACTOR * limits.session_buffer_bytes


def window_pool(limits: Limits) -> int:
    """Return the bytes that windows may add up to before they have to be small."""
    return windows_total(limits) // 2


def next_window(limits: Limits, committed: int, wanted: int) -> int:
    """Return the window for one more stream, in bytes: `wanted`, or less if there is no room.

    Args:
        limits: The session's limits.
        committed: Bytes of the windows announced so far, and of content that is not read yet.
        wanted: The window to announce while there is room.
    """
    pool = window_pool(limits)
    left = max(0, pool - committed)
    from_pool = left * left // (POOL_DIVISOR * max(1, pool))
    streams = max(1, limits.max_streams + limits.max_own_streams)
    reserve = max(0, windows_total(limits) - max(pool, committed))
    from_reserve = reserve // min(RESERVE_DIVISOR, streams)
    return min(wanted, max(from_pool, from_reserve, MIN_WINDOW_BYTES))
