# mypyc: compiled
"""The octets that events point to: which of them one call can fetch, and cutting them out.

Pieces that lie close together are read with what is between them and cut out. For pieces spread
over a file, as those of one among many flows are, the kernel is given a list of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, u8

from polymux.capture.packets.packet_refs import as_octets
from polymux.capture.tcp.events import OCTETS, Events

# Octets between two pieces that are cheaper to read along than to skip with another read.
SLACK: Final[i64] = 16384
LARGEST_READ: Final[i64] = 1048576
# Pieces of a run, which is what Linux takes in one call, and octets of it beyond the first piece.
RUN_PIECES: Final[i64] = 1024
RUN_OCTETS: Final[i64] = 1048576
BLOCK_BITS: Final[i64] = 16
# Larger pieces are copied once: keeping copies of them all costs fresh memory.
SMALL: Final[i64] = 512


class Run:
    """Rows of `events` from `row` to before `stop` whose octets lie in one file.

    `pieces` of them are OCTETS rows, with `octets` in all, between `begin` and `end` of the file;
    none: no such row is left.
    """

    def __init__(self, events: Events, row: i64) -> None:
        self.row: i64 = row
        self.file: i64 = -1
        self.pieces: i64 = 0
        self.octets: i64 = 0
        self.begin: i64 = 0
        self.end: i64 = 0
        count = events.count
        while row < count and self.pieces < RUN_PIECES:
            if events.kind[row] == OCTETS:
                offset = events.offset[row]
                size = events.size[row]
                if self.pieces == 0:
                    self.file = events.file[row]
                    self.begin = offset
                elif events.file[row] != self.file or self.octets + size > RUN_OCTETS:
                    break
                self.pieces += 1
                self.octets += size
                if offset < self.begin:
                    self.begin = offset
                if offset + size > self.end:
                    self.end = offset + size
            row += 1
        self.stop: i64 = row

    def is_sparse(self) -> bool:
        """Whether reading everything between the pieces would be mostly waste."""
        return self.pieces > 1 and self.end - self.begin > self.octets * 4


class Touched:
    """The blocks of a mapped file that are in use: Linux maps 64 KiB around what is looked at."""

    def __init__(self, size: i64) -> None:
        self.marks: vec[u8] = vec[u8]([0] * ((size >> BLOCK_BITS) + 1))
        self.count: i64 = 0

    def touch(self, offset: i64, size: i64) -> None:
        for block in range(offset >> BLOCK_BITS, ((offset + size - 1) >> BLOCK_BITS) + 1):
            if self.marks[block] == 0:
                self.marks[block] = 1
                self.count += 1


def vectors(events: Events, run: Run, address: i64, touched: Touched) -> bytes:
    """The run as the kernel wants it (`struct iovec` of 64 bits), its file mapped at `address`."""
    words: vec[i64] = vec[i64]([0] * (run.pieces * 2))
    at: i64 = 0
    for row in range(run.row, run.stop):
        if events.kind[row] == OCTETS:
            offset = events.offset[row]
            size = events.size[row]
            touched.touch(offset, size)
            words[at] = address + offset
            words[at + 1] = size
            at += 2
    return bytes(as_octets(words, at))


def read_run(events: Events, run: Run, read: Callable[[int, int], bytes]) -> bytes:
    """The octets of a run, in order. `read(offset, size)` reads exactly."""
    parts: list[bytes | memoryview] = []
    window: bytes = b""
    view = memoryview(window)
    begin: i64 = 0
    end: i64 = -1
    for row in range(run.row, run.stop):
        if events.kind[row] != OCTETS:
            continue
        offset = events.offset[row]
        size = events.size[row]
        if offset < begin or size > end - offset:
            begin = offset
            end = reach(events, row, run.stop)
            window = read(begin, end - begin)
            view = memoryview(window)
        if size <= SMALL:
            parts.append(window[offset - begin : offset - begin + size])
        else:
            parts.append(view[offset - begin : offset - begin + size])
    return b"".join(parts)


def reach(events: Events, row: i64, stop: i64) -> i64:
    """How far to read from `row` on: over the pieces of the run that follow closely."""
    begin = events.offset[row]
    end = begin + events.size[row]
    for later in range(row + 1, stop):
        if events.kind[later] != OCTETS:
            continue
        offset = events.offset[later]
        if offset < begin or offset - end > SLACK:
            break
        behind = offset + events.size[later]
        if behind - begin > LARGEST_READ:
            break
        if behind > end:
            end = behind
    return end
