# mypyc: compiled
"""Packed references: the location of a TCP segment in a file and its header, in 32 bytes.

Four little-endian 64-bit words:

    0  offset << 20 | captured     file offset of the payload; payload bytes in the file
    1  at                          timestamp of the packet, nanoseconds since 1970, signed
    2  seq << 32 | ack             as on the wire
    3  missing << 32 | hint << 24 | flags << 16 | window
                                   payload bytes cut off by the snap length; number of the comment
                                   that applies to the packet, 0 for none; TCP flags; raw window

The offset ascends from packet to packet within a file, so it also gives the order of capture.
References of one direction of a flow are concatenated into one `bytes`.

Not thread safe: memory of packed references is reused for the next ones (`spare_chunks`,
`spare_sort_buffers`).
"""

from __future__ import annotations

import struct
import sys
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

REF_BYTES: Final = 32
REF_WORDS: Final[i64] = 4
CAPTURED_BITS: Final[i64] = 20
CAPTURED_MASK: Final[i64] = 0xFFFFF
MAX_FILE_OFFSET: Final[i64] = 0x7FFFFFFFFFF
MAX_MISSING_BYTES: Final[i64] = 0x7FFFFFFF
LOW32: Final[i64] = 0xFFFFFFFF
# The bits of word 3 that two references of the same packet share: all but the comment's number.
SAME_PACKET_MASK: Final[i64] = -0xFF000001

# TCP flags, as in the header.
FIN: Final[i64] = 1
SYN: Final[i64] = 2
RST: Final[i64] = 4
PSH: Final[i64] = 8
ACK: Final[i64] = 16

ROW_WORDS: Final[i64] = 5
MIN_CHUNK_ROWS: Final[i64] = 64
MAX_CHUNK_ROWS: Final[i64] = 16384


class RefColumns:
    """Preallocated rows of five words: a reference, and the direction index it belongs to."""

    def __init__(self, capacity: i64) -> None:
        self.words: vec[i64] = vec[i64]([0] * (capacity * ROW_WORDS))
        self.capacity: i64 = capacity
        self.count: i64 = 0


# Buffers kept for the next file: the page faults of fresh memory cost more than filling it.
MAX_SPARE_CHUNKS: Final = 8
MAX_SPARE_WORDS: Final[i64] = 524288
spare_chunks: list[RefColumns] = []
spare_sort_buffers: list[SortBuffer] = []


class SortBuffer:
    """Words that references are sorted into."""

    def __init__(self, size: i64) -> None:
        self.words: vec[i64] = vec[i64]([0] * size)
        self.size: i64 = size


def new_columns(capacity: i64) -> RefColumns:
    """Empty columns, reused if they are of the largest size."""
    if capacity == MAX_CHUNK_ROWS and len(spare_chunks) > 0:
        columns = spare_chunks.pop()
        columns.count = 0
        return columns
    return RefColumns(capacity)


def new_sort_buffer(size: i64) -> SortBuffer:
    """A buffer of at least `size` words, reused if possible."""
    if len(spare_sort_buffers) > 0:
        buffer = spare_sort_buffers.pop()
        if buffer.size >= size:
            return buffer
    return SortBuffer(size)


class SortedRefs:
    """References sorted by direction index. Offsets are in bytes."""

    def __init__(self, buffer: SortBuffer, ends: vec[i64]) -> None:
        self.buffer: SortBuffer = buffer
        self.ends: vec[i64] = ends  # in words

    def begin(self, direction: i64) -> i64:
        """Where the references of a direction begin."""
        if direction == 0:
            return 0
        return self.ends[direction - 1] * 8

    def end(self, direction: i64) -> i64:
        """Where the references of a direction end."""
        return self.ends[direction] * 8

    def word(self, n: i64) -> i64:
        return self.buffer.words[n]

    def direction(self, direction: i64) -> bytes:
        """The references of a direction, packed."""
        begin = self.begin(direction)
        end = self.end(direction)
        if begin == end:
            return b""
        return bytes(as_byte_view(self.buffer.words, self.buffer.size)[begin:end])


def sort_by_direction(chunks: list[RefColumns], directions: i64) -> SortedRefs:
    """Stable sort of references by direction index.

    Consumes the chunks: the caller must not use them afterwards.
    """
    heads: vec[i64] = vec[i64]([0] * (directions + 1))
    for chunk in chunks:
        words = chunk.words
        for row in range(chunk.count):
            heads[words[row * ROW_WORDS + 4] + 1] += REF_WORDS
    for n in range(directions):
        heads[n + 1] += heads[n]
    buffer = new_sort_buffer(heads[directions])
    into = buffer.words
    used = RefColumns(0)
    for number in range(i64(len(chunks))):
        chunk = chunks[number]
        chunks[number] = used
        words = chunk.words
        for row in range(chunk.count):
            first = row * ROW_WORDS
            direction = words[first + 4]
            head = heads[direction]
            heads[direction] = head + REF_WORDS
            into[head] = words[first]
            into[head + 1] = words[first + 1]
            into[head + 2] = words[first + 2]
            into[head + 3] = words[first + 3]
        if chunk.capacity == MAX_CHUNK_ROWS and len(spare_chunks) < MAX_SPARE_CHUNKS:
            spare_chunks.append(chunk)
    # Now each head is the end of its direction.
    return SortedRefs(buffer, heads)


def group_by_direction(chunks: list[RefColumns], directions: i64) -> list[bytes]:
    """Stable sort of references by direction index: one packed `bytes` for each direction.

    Consumes the chunks: the caller must not use them afterwards.
    """
    ordered = sort_by_direction(chunks, directions)
    buffer = ordered.buffer
    heads = ordered.ends
    packed: list[bytes] = []
    data = as_byte_view(buffer.words, heads[directions])
    begin: i64 = 0
    for n in range(directions):
        end = heads[n] * 8
        packed.append(bytes(data[begin:end]) if end > begin else b"")
        begin = end
    if buffer.size <= MAX_SPARE_WORDS and len(spare_sort_buffers) == 0:
        spare_sort_buffers.append(buffer)
    return packed


def as_byte_view(words: vec[i64], count: i64) -> memoryview:
    """The first `count` words as little-endian bytes; a copy only on big-endian machines."""
    if count == 0:
        return memoryview(b"")
    if sys.byteorder == "little":
        return memoryview(words).cast("B")
    return memoryview(struct.pack(f"<{count}q", *words[:count]))
