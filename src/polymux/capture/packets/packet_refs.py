# mypyc: compiled
"""A packed reference: where one TCP segment lies and what its header said, in 32 bytes.

Four little-endian 64-bit words:

    0  offset << 20 | captured     byte of the file where the payload starts; payload bytes held
    1  at                          instant of the packet, nanoseconds since 1970, signed
    2  seq << 32 | ack             as on the wire
    3  missing << 32 | hint << 24 | flags << 16 | window
                                   payload bytes cut off by the snap length; number of the comment
                                   that speaks for the packet, 0 for none; TCP flags; raw window

The offset grows from packet to packet within a file, so it also is the packet's place in the
order of capture. References of one flow direction are concatenated into one `bytes`.
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
# What makes two references the same packet: everything of word 3 but the comment's number.
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
    """Preallocated rows of five words: the four of a reference, and the lane it belongs to."""

    def __init__(self, capacity: i64) -> None:
        self.words: vec[i64] = vec[i64]([0] * (capacity * ROW_WORDS))
        self.capacity: i64 = capacity
        self.count: i64 = 0


# What files that are done leave for the next one: fresh memory costs more than filling it.
MAX_SPARE_CHUNKS: Final = 8
MAX_SPARE_WORDS: Final[i64] = 524288
spare_chunks: list[RefColumns] = []
spare_sort_buffers: list[SortBuffer] = []


class SortBuffer:
    """Room to sort in."""

    def __init__(self, size: i64) -> None:
        self.words: vec[i64] = vec[i64]([0] * size)
        self.size: i64 = size


def new_columns(capacity: i64) -> RefColumns:
    if capacity == MAX_CHUNK_ROWS and len(spare_chunks) > 0:
        columns = spare_chunks.pop()
        columns.count = 0
        return columns
    return RefColumns(capacity)


def new_sort_buffer(size: i64) -> SortBuffer:
    if len(spare_sort_buffers) > 0:
        room = spare_sort_buffers.pop()
        if room.size >= size:
            return room
    return SortBuffer(size)


def group_by_direction(chunks: list[RefColumns], directions: i64) -> list[bytes]:
    """Sort references by lane, keeping their order: one packed `bytes` for each lane.

    Uses the chunks up: nobody else may look at them any more.
    """
    heads: vec[i64] = vec[i64]([0] * (directions + 1))
    for chunk in chunks:
        words = chunk.words
        for row in range(chunk.count):
            heads[words[row * ROW_WORDS + 4] + 1] += REF_WORDS
    for n in range(directions):
        heads[n + 1] += heads[n]
    room = new_sort_buffer(heads[directions])
    into = room.words
    used = RefColumns(0)
    for number in range(i64(len(chunks))):
        chunk = chunks[number]
        chunks[number] = used
        words = chunk.words
        for row in range(chunk.count):
            first = row * ROW_WORDS
            lane = words[first + 4]
            head = heads[lane]
            heads[lane] = head + REF_WORDS
            into[head] = words[first]
            into[head + 1] = words[first + 1]
            into[head + 2] = words[first + 2]
            into[head + 3] = words[first + 3]
        if chunk.capacity == MAX_CHUNK_ROWS and len(spare_chunks) < MAX_SPARE_CHUNKS:
            spare_chunks.append(chunk)
    # Now each head stands where its lane ends.
    packed: list[bytes] = []
    data = as_byte_view(into, heads[directions])
    begin: i64 = 0
    for n in range(directions):
        end = heads[n] * 8
        packed.append(bytes(data[begin:end]) if end > begin else b"")
        begin = end
    if room.size <= MAX_SPARE_WORDS and len(spare_sort_buffers) == 0:
        spare_sort_buffers.append(room)
    return packed


def as_byte_view(words: vec[i64], count: i64) -> memoryview:
    """The first `count` words as little-endian bytes, where the machine allows it as they lie."""
    if count == 0:
        return memoryview(b"")
    if sys.byteorder == "little":
        return memoryview(words).cast("B")
    return memoryview(struct.pack(f"<{count}q", *words[:count]))
