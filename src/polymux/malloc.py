"""A word with the system's allocator: before bytes flow, and when a session is gone."""

import ctypes
from collections.abc import Callable

RETAINED_BYTES = 4 * 1024 * 1024  # bytes; many times what is held of one chunk or window
MIN_TRIM_INTERVAL = 1.0  # seconds at least from one time that memory is given back to the next

_threshold_raised: list[bool] = []
_trim_time: list[float] = []  # when memory is, or was last, given back


def raise_trim_threshold() -> None:
    """Let the allocator keep a few megabytes that were freed rather than give them back.

    A chunk of a socket or a window of a file lives for microseconds. glibc returns free memory at
    the top of its heap as soon as there is twice the largest block it has mapped and released, at
    first 256 KiB: two chunks at once, and every page of every chunk is then mapped anew, at several
    times the cost of the copy. Releasing one larger block, which is never touched, moves that line.
    Other systems take no notice.
    """
    if not _threshold_raised:
        _threshold_raised.append(True)
        bytes(RETAINED_BYTES)


def schedule_trim(now: float, call_later: Callable[[float, Callable[[], None]], object]) -> None:
    """Return free memory to the system: a session has ended. At once, but not again within a
    second; whatever ends in that second is seen to when it is over. `later` has something called
    after some seconds.

    Large messages of all sizes leave holes, and glibc returns only what is free at the top of its
    heap: a server that runs for long would seem to need more and more. Others return it by
    themselves, or never.
    """
    due = now
    if _trim_time and abs(_trim_time[0] - now) <= MIN_TRIM_INTERVAL:
        if now < _trim_time[0]:
            return
        due = _trim_time[0] + MIN_TRIM_INTERVAL
    _trim_time[:] = [due]
    call_later(due - now, trim)


def trim() -> None:
    """Return all free memory to the system, where it can be asked to take it."""
    ask = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if ask is not None:
        ask(0)
