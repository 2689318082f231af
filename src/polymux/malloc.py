"""Memory that is freed: glibc keeps it while data flows, and returns it after sessions have ended.

There is no effect where the C library is not glibc. The module keeps process-wide state, since a
process has one heap.
"""

import ctypes
from collections.abc import Callable

# Arrow's own allocator retains freed memory in each of its threads, tens of megabytes per process.
# To be set in the environment before pyarrow is imported.
ARROW_POOL = ("ARROW_DEFAULT_MEMORY_POOL", "system")
RETAINED_BYTES = 4 * 1024 * 1024  # many times the size of a chunk or of a window of a file
MIN_TRIM_INTERVAL = 1.0  # seconds between two calls of `trim`, at least

_threshold_raised: list[bool] = []
_trim_time: list[float] = []  # when `trim` is scheduled, or was last called


def raise_trim_threshold() -> None:
    """Make glibc keep a few freed megabytes in the process. Only the first call has an effect.

    A chunk of a socket or a window of a file lives for microseconds. glibc returns free memory at
    the top of its heap to the system once there is twice the size of the largest block that was
    mapped and released, at first 256 KiB. Two chunks exceed that, and then every page of every
    chunk is mapped anew, at several times the cost of copying it. Allocating and releasing one
    larger block, without touching it, raises this dynamic threshold.
    """
    if not _threshold_raised:
        _threshold_raised.append(True)
        bytes(RETAINED_BYTES)


def schedule_trim(now: float, call_later: Callable[[float, Callable[[], None]], object]) -> None:
    """Schedule `trim` after a session has ended: now, or MIN_TRIM_INTERVAL after the last time.

    Large messages of different sizes leave holes in the heap, and glibc by itself returns only what
    is free at its top: the memory of a long-running server would seem to grow without end.

    Args:
        now: the current time in seconds, of the clock of `call_later`.
        call_later: calls a function after a delay in seconds, as `loop.call_later` does.
    """
    due = now
    if _trim_time and abs(_trim_time[0] - now) <= MIN_TRIM_INTERVAL:
        if now < _trim_time[0]:
            return
        due = _trim_time[0] + MIN_TRIM_INTERVAL
    _trim_time[:] = [due]
    call_later(due - now, trim)


def trim() -> None:
    """Return all free memory to the system, if the C library has `malloc_trim`."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
