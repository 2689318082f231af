# mypyc: compiled
"""Earlier copies of bytes that a packet repeats, to compare the two.

Reassembly takes the first copy and reads no payload, so it does not notice that a retransmission
has other bytes. It keeps the indexes of the packets that repeat bytes; here the packets before them
with the same sequence numbers are found, by their references.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_le
from mypy_extensions import i64

from polymux.capture.packets.packet_refs import (
    CAPTURED_BITS,
    CAPTURED_MASK,
    LOW32,
    SYN,
)
from polymux.capture.tcp.flow_order import FlowOrder

MAX_LOOK_BACK: Final[i64] = 4096  # packets searched for earlier copies of one


class RepeatedBytes:
    """Bytes captured twice: `size` bytes at `offset` of `file`, and of `earlier_file`.

    File numbers are those of the flow. `skipped` is how many bytes of the packet come before them.
    """

    def __init__(
        self,
        file: i64,
        offset: i64,
        earlier_file: i64,
        earlier_offset: i64,
        size: i64,
        skipped: i64,
    ) -> None:
        self.file: i64 = file
        self.offset: i64 = offset
        self.earlier_file: i64 = earlier_file
        self.earlier_offset: i64 = earlier_offset
        self.size: i64 = size
        self.skipped: i64 = skipped


def find_repeated_bytes(flow: FlowOrder, begin: i64, index: i64) -> list[RepeatedBytes]:
    """The bytes of packet `index` of a flow's order that packets from `begin` on have as well.

    The search goes backwards until as many bytes are found as the packet has.
    """
    found: list[RepeatedBytes] = []
    entry = flow.order[index]
    block = flow.ref_blocks[entry >> 32]
    pos = block.seek(entry & LOW32)
    location = read_i64_le(block.refs, pos)
    seq = first_byte_number(block.refs, pos)
    captured = location & CAPTURED_MASK
    offset = location >> CAPTURED_BITS
    direction = block.direction
    file = block.file
    left = captured
    lowest = index - MAX_LOOK_BACK
    if lowest < begin:
        lowest = begin
    at = index - 1
    while at >= lowest and left > 0:
        entry = flow.order[at]
        at -= 1
        block = flow.ref_blocks[entry >> 32]
        if block.direction != direction:
            continue
        pos = block.seek(entry & LOW32)
        location = read_i64_le(block.refs, pos)
        # Where the earlier packet begins, relative to the first byte of this one.
        away = (first_byte_number(block.refs, pos) - seq) & LOW32
        if away >= 0x80000000:
            away -= 0x100000000
        start = away
        if start < 0:
            start = 0
        stop = away + (location & CAPTURED_MASK)
        if stop > captured:
            stop = captured
        if stop > start:
            found.append(
                RepeatedBytes(
                    file,
                    offset + start,
                    block.file,
                    (location >> CAPTURED_BITS) + start - away,
                    stop - start,
                    start,
                )
            )
            left -= stop - start
    return found


def first_byte_number(refs: bytes, pos: i64) -> i64:
    """The sequence number of the first payload byte of a packet; a SYN takes the one before."""
    seq = (read_i64_le(refs, pos + 16) >> 32) & LOW32
    if (read_i64_le(refs, pos + 24) >> 16) & SYN != 0:
        seq = (seq + 1) & LOW32
    return seq
