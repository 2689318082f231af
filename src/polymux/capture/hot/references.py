"""A packed reference: where one TCP segment lies and what its header said, in 32 octets.

Four little-endian 64-bit words:

    0  offset << 20 | captured     octet of the file where the payload starts; payload octets held
    1  at                          instant of the packet, nanoseconds since 1970, signed
    2  seq << 32 | ack             as on the wire
    3  missing << 32 | hint << 24 | flags << 16 | window
                                   payload octets cut off by the snap length; number of the comment
                                   that speaks for the packet, 0 for none; TCP flags; raw window

The offset grows from packet to packet within a file, so it also is the packet's place in the
order of capture. References of one flow direction are concatenated into one `bytes`.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i64_le
from librt.vecs import vec
from mypy_extensions import i64

RECORD: Final = 32
CAPTURED_BITS: Final[i64] = 20
CAPTURED_MASK: Final[i64] = 0xFFFFF
LARGEST_OFFSET: Final[i64] = 0x7FFFFFFFFFF
LARGEST_MISSING: Final[i64] = 0x7FFFFFFF
LOW32: Final[i64] = 0xFFFFFFFF
# What makes two references the same packet: everything of word 3 but the comment's number.
SAME_PACKET: Final[i64] = -0xFF000001

FIN: Final[i64] = 1
SYN: Final[i64] = 2
RST: Final[i64] = 4
ACK: Final[i64] = 16

STRIDE: Final[i64] = 5
SMALLEST_CHUNK: Final[i64] = 64
LARGEST_CHUNK: Final[i64] = 16384


class Columns:
    """Preallocated rows of five words: the four of a reference, and the lane it belongs to."""

    def __init__(self, rows: i64) -> None:
        self.words: vec[i64] = vec[i64]([0] * (rows * STRIDE))
        self.rows: i64 = rows
        self.count: i64 = 0


def pack_lanes(chunks: list[Columns], lanes: i64) -> list[bytes]:
    """Sort references by lane, keeping their order: one packed `bytes` for each lane."""
    starts: vec[i64] = vec[i64]([0] * (lanes + 1))
    for chunk in chunks:
        words = chunk.words
        for row in range(chunk.count):
            starts[words[row * STRIDE + 4] + 1] += 1
    for n in range(lanes):
        starts[n + 1] += starts[n]
    total: i64 = starts[lanes]
    place: vec[i64] = vec[i64]([0] * total)
    heads: vec[i64] = vec[i64]([0] * (lanes + 1))
    for n in range(lanes):
        heads[n] = starts[n]
    for number in range(i64(len(chunks))):
        chunk = chunks[number]
        words = chunk.words
        for row in range(chunk.count):
            into = words[row * STRIDE + 4]
            # chunks never hold more than LARGEST_CHUNK rows, so 16 bits name the row
            place[heads[into]] = number * 65536 + row
            heads[into] += 1
    packed: list[bytes] = []
    for n in range(lanes):
        writer = BytesWriter()
        for i in range(starts[n], starts[n + 1]):
            where = place[i]
            words = chunks[where >> 16].words
            first = (where & 65535) * STRIDE
            write_i64_le(writer, words[first])
            write_i64_le(writer, words[first + 1])
            write_i64_le(writer, words[first + 2])
            write_i64_le(writer, words[first + 3])
        packed.append(writer.getvalue())
    return packed
