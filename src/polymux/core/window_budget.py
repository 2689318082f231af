# mypyc: compiled
"""How large the next receive window of a session may be.

A window is a promise: the peer may send that much before this side has read anything. So the bound
on what a session holds has to be kept when a window is announced; afterwards it is too late. Three
quarters of `Limits.session_buffer_bytes` are a pool for windows, of which a new window gets an
eighth of what is left: the first streams get the window they ask for, and many streams get ever
smaller ones. The last quarter gives every stream that may be open a smallest window, with which it
always makes progress. A peer that needs more can ask for it later, where the protocol has such a
request.
"""

from typing import Final

from polymux.core.limits import Limits

MIN_WINDOW_BYTES: Final = 1024  # a stream with less would spend more on headers than on content
SHARE_DIVISOR: Final = 8  # of the pool that is left, for one window


def window_pool(limits: Limits) -> int:
    """Return the bytes that all receive windows above the smallest may add up to."""
    return limits.session_buffer_bytes - limits.session_buffer_bytes // 4


def smallest_window(limits: Limits) -> int:
    """Return the window that a stream gets when the pool is used up, in bytes."""
    streams = max(1, limits.max_streams + limits.max_own_streams)
    return max(MIN_WINDOW_BYTES, limits.session_buffer_bytes // (4 * streams))


def next_window(limits: Limits, committed: int, wanted: int) -> int:
    """Return the window for one more stream, in bytes: `wanted`, or less if there is no room.

    Args:
        limits: The session's limits.
        committed: Bytes of the windows announced so far, and of content that is not read yet.
        wanted: The window to announce while there is room.
    """
    share = max(0, window_pool(limits) - committed) // SHARE_DIVISOR
    return min(wanted, max(smallest_window(limits), share))
