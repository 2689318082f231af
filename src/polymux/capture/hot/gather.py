"""The octets that events point to, joined: few reads, one copy more than the reads make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from polymux.capture.hot.reassembly import OCTETS, Events

# Octets between two pieces that are cheaper to read along than to skip with another read.
SLACK: Final[i64] = 16384
LARGEST_READ: Final[i64] = 1048576


def gather(events: Events, readers: list[Callable[[int, int], bytes]]) -> bytes:
    """Payload of all OCTETS rows, in order. `readers[file](offset, size)` reads exactly."""
    parts: list[bytes] = []
    window: bytes = b""
    file: i64 = -1
    begin: i64 = 0
    end: i64 = 0
    count = events.count
    for row in range(count):
        if events.kind[row] != OCTETS:
            continue
        offset = events.offset[row]
        size = events.size[row]
        if events.file[row] != file or offset < begin or size > end - offset:
            file = events.file[row]
            begin = offset
            end = reach(events, row, count)
            window = readers[file](begin, end - begin)
        parts.append(window[offset - begin : offset - begin + size])
    if len(parts) == 1:
        return parts[0]
    return b"".join(parts)


def reach(events: Events, row: i64, count: i64) -> i64:
    """How far to read from `row` on: over the pieces that follow closely in the same file."""
    file = events.file[row]
    begin = events.offset[row]
    end = begin + events.size[row]
    for later in range(row + 1, count):
        if events.kind[later] != OCTETS:
            continue
        offset = events.offset[later]
        if events.file[later] != file or offset < begin or offset - end > SLACK:
            break
        stop = offset + events.size[later]
        if stop - begin > LARGEST_READ:
            break
        if stop > end:
            end = stop
    return end
