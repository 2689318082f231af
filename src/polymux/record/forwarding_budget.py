"""`ForwardingBudget`: bounds what a recording proxy has read and not yet forwarded.

A connection holds in each direction what it has read at once, until the other peer, or the disk,
has taken it: it is not read from before. So the size of one read bounds the memory. A read may
take an equal part of what is left of the budget; with few connections that is more than a read
ever gives. A peer that does not read so leaves room for the others, however many there are of its
kind, and none is ended for it.
"""

from __future__ import annotations

MAX_READ_BYTES = 256 * 1024  # at once
MIN_READ_BYTES = 4 * 1024  # at once, although the budget is used up


class ForwardingBudget:
    """The budget of all connections of a proxy.

    Args:
        max_bytes: Bytes that all connections may hold. `MIN_READ_BYTES` may come on top of it for
            each direction.

    Attributes:
        held_bytes: Bytes that they hold.
    """

    def __init__(self, max_bytes: int) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        # Filled by a read, and emptied before the next one: one is enough for all connections.
        self._buffer = memoryview(bytearray(MAX_READ_BYTES))

    def read_buffer(self, connections: int) -> memoryview:
        """Return the buffer for the next read, given how many connections are open."""
        part = (self._max_bytes - self.held_bytes) // (2 * max(1, connections))
        return self._buffer[: max(MIN_READ_BYTES, min(MAX_READ_BYTES, part))]
