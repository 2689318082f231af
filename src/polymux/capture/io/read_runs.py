# mypyc: compiled
"""Reading the bytes that events point to: which of them one system call can fetch.

Pieces that lie close together are read along with the bytes between them and sliced. For pieces
spread over a file, such as those of one flow among many, the kernel gets a list (`iovecs`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, u8

from polymux.capture.packets.packet_refs import as_byte_view
from polymux.capture.tcp.reassembly import PAYLOAD, TcpEvents

# Up to this many bytes between two pieces are cheaper to read along than to skip.
MAX_READ_GAP_BYTES: Final[i64] = 16384
MAX_READ_BYTES: Final[i64] = 1048576
# Pieces of a run, as many as Linux accepts in one call (IOV_MAX), and its payload bytes; a single
# larger piece is a run of its own.
MAX_RUN_PIECES: Final[i64] = 1024
MAX_RUN_BYTES: Final[i64] = 1048576
# Linux maps up to 64 KiB around a page that is touched (fault-around).
RESIDENT_BLOCK_BITS: Final[i64] = 16
# Larger pieces are kept as views until they are joined: copying them first costs fresh memory.
SMALL_PIECE_BYTES: Final[i64] = 512


class ReadRun:
    """Rows of `events`, from `row` to before `stop`, whose bytes lie in one file.

    `pieces` of them are PAYLOAD rows, `payload_bytes` in all, between offsets `begin` and `end` of
    the file; 0 pieces means that no PAYLOAD row is left.
    """

    def __init__(self, events: TcpEvents, row: i64) -> None:
        self.row: i64 = row
        self.file: i64 = -1
        self.pieces: i64 = 0
        self.payload_bytes: i64 = 0
        self.begin: i64 = 0
        self.end: i64 = 0
        count = events.count
        while row < count and self.pieces < MAX_RUN_PIECES:
            if events.kind[row] == PAYLOAD:
                offset = events.offset[row]
                size = events.size[row]
                if self.pieces == 0:
                    self.file = events.file[row]
                    self.begin = offset
                elif events.file[row] != self.file or self.payload_bytes + size > MAX_RUN_BYTES:
                    break
                self.pieces += 1
                self.payload_bytes += size
                if offset < self.begin:
                    self.begin = offset
                if offset + size > self.end:
                    self.end = offset + size
            row += 1
        self.stop: i64 = row

    def is_sparse(self) -> bool:
        """Whether reading everything between the pieces would mostly read bytes of other flows."""
        return self.pieces > 1 and self.end - self.begin > self.payload_bytes * 4


class ResidentBlocks:
    """The 64 KiB blocks of a mapped file that reads have made resident, and their `count`."""

    def __init__(self, size: i64) -> None:
        self.marks: vec[u8] = vec[u8]([0] * ((size >> RESIDENT_BLOCK_BITS) + 1))
        self.count: i64 = 0

    def mark(self, offset: i64, size: i64) -> None:
        for block in range(
            offset >> RESIDENT_BLOCK_BITS, ((offset + size - 1) >> RESIDENT_BLOCK_BITS) + 1
        ):
            if self.marks[block] == 0:
                self.marks[block] = 1
                self.count += 1


def iovecs(events: TcpEvents, run: ReadRun, address: i64, resident_blocks: ResidentBlocks) -> bytes:
    """The pieces of the run as an array of `struct iovec` (64 bits) for the mapping at `address`.

    Marks the blocks they lie in as resident.
    """
    words: vec[i64] = vec[i64]([0] * (run.pieces * 2))
    filled: i64 = 0
    for row in range(run.row, run.stop):
        if events.kind[row] == PAYLOAD:
            offset = events.offset[row]
            size = events.size[row]
            resident_blocks.mark(offset, size)
            words[filled] = address + offset
            words[filled + 1] = size
            filled += 2
    return bytes(as_byte_view(words, filled))


def read_run(events: TcpEvents, run: ReadRun, read: Callable[[int, int], bytes]) -> bytes:
    """The bytes of a run, in order; `read(offset, size)` returns exactly `size` bytes."""
    parts: list[bytes | memoryview] = []
    window: bytes = b""
    view = memoryview(window)
    begin: i64 = 0
    end: i64 = -1
    for row in range(run.row, run.stop):
        if events.kind[row] != PAYLOAD:
            continue
        offset = events.offset[row]
        size = events.size[row]
        if offset < begin or size > end - offset:
            begin = offset
            end = read_end(events, row, run.stop)
            window = read(begin, end - begin)
            view = memoryview(window)
        if size <= SMALL_PIECE_BYTES:
            parts.append(window[offset - begin : offset - begin + size])
        else:
            parts.append(view[offset - begin : offset - begin + size])
    return b"".join(parts)


def read_end(events: TcpEvents, row: i64, stop: i64) -> i64:
    """Offset up to which to read from `row` on: past the pieces of the run that follow closely."""
    begin = events.offset[row]
    end = begin + events.size[row]
    for later in range(row + 1, stop):
        if events.kind[later] != PAYLOAD:
            continue
        offset = events.offset[later]
        if offset < begin or offset - end > MAX_READ_GAP_BYTES:
            break
        piece_end = offset + events.size[later]
        if piece_end - begin > MAX_READ_BYTES:
            break
        if piece_end > end:
            end = piece_end
    return end
