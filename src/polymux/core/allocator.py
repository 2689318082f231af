"""A word with the system's allocator: before octets flow, and when a session is gone."""

import ctypes

LARGEST = 4 * 1024 * 1024  # octets; many times what is held of one chunk or window
EVERY = 1.0  # seconds between two times that memory is given back

_settled: list[bool] = []
_given: list[float] = []  # when it was given back last


def settle_allocator() -> None:
    """Let the allocator keep a few megabytes that were freed rather than give them back.

    A chunk of a socket or a window of a file lives for microseconds. glibc returns free memory at
    the top of its heap as soon as there is twice the largest block it has mapped and released, at
    first 256 KiB: two chunks at once, and every page of every chunk is then mapped anew, at several
    times the cost of the copy. Releasing one larger block, which is never touched, moves that line.
    Other systems take no notice.
    """
    if not _settled:
        _settled.append(True)
        bytes(LARGEST)


def give_back(now: float) -> None:
    """Return free memory to the system, now and then: a session has ended.

    Large messages of all sizes leave holes, and glibc returns only what is free at the top of its
    heap: a server that runs for long would seem to need more and more. Others return it by
    themselves, or never.
    """
    if _given and 0 <= now - _given[0] < EVERY:
        return
    _given[:] = [now]
    trim()


def trim() -> None:
    """Return all free memory to the system, where it can be asked to take it."""
    ask = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if ask is not None:
        ask(0)
