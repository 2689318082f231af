"""A word with the system's allocator, once, before octets flow."""

LARGEST = 4 * 1024 * 1024  # octets; many times what is held of one chunk or window

_settled: list[bool] = []


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
