"""A word with the system's allocator, once, before the first connection."""

import functools

LARGEST = 4 * 1024 * 1024  # octets; many times what a connection holds of one chunk


@functools.cache
def settle_allocator() -> None:
    """Let the allocator keep a few megabytes that were freed rather than give them back.

    A chunk of the socket lives for microseconds. glibc returns free memory at the top of its heap
    as soon as there is twice the largest block it has mapped and released, at first 256 KiB: two
    chunks at once, and every page of every chunk is then mapped anew, at several times the cost of
    the copy. Releasing one larger block, which is never touched, moves that line. Other systems
    take no notice.
    """
    del_me = bytes(LARGEST)
    del del_me
