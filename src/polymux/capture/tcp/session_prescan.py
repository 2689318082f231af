# mypyc: compiled
"""Pre-scan: what the packets of a session show before reassembly.

That is the dialer, first and last timestamp, files and hint, and whether the captured order of the
two directions can be trusted: payload that first appears after it was acknowledged shows that one
direction was captured late, by another clock or from another queue.
"""

from __future__ import annotations

from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.packets.packet_refs import ACK, LOW32, SYN
from polymux.capture.tcp.ref_storage import RefBlock


class SessionPrescan:
    """Facts about a session, collected packet by packet.

    Directions are those of the flow, -1 if unknown. `hint_block` and `hint_index` are the
    `RefBlock` and the number of the earliest hint, -1 if there is none.
    """

    def __init__(self) -> None:
        self.packets: i64 = 0
        self.first_at: i64 = 0
        self.last_at: i64 = 0
        self.syn_direction: i64 = -1  # direction of the SYN
        self.syn_ack_direction: i64 = -1  # direction of the SYN-ACK
        self.first_payload_direction: i64 = -1
        self.segment_bytes: vec[i64] = vec[i64]([0, 0])  # including retransmissions
        self.hint_block: i64 = -1
        self.hint_index: i64 = 0
        self.files: list[int] = []
        self.disordered: bool = False
        self.current_file: i64 = -1
        self.end_seq: vec[i64] = vec[i64]([-1, -1])  # sequence number after a direction's last byte
        self.highest_ack: vec[i64] = vec[i64]([-1, -1])  # highest acknowledgement of its bytes

    def add_packet(
        self, block: RefBlock, size: i64, seq_ack: i64, header: i64, timestamp: i64
    ) -> None:
        """Add the next packet, one of `block`: its payload size, and words of its reference."""
        direction = block.direction
        syn = header & (SYN << 16) != 0
        if size > 0:
            if self.first_payload_direction < 0:
                self.first_payload_direction = direction
            self.segment_bytes[direction] += size
            high = self.end_seq[direction]
            if acked_before_captured(seq_ack >> 32, size, high, self.highest_ack[direction]):
                self.disordered = True
            stop = ((seq_ack >> 32) + size + (1 if syn else 0)) & LOW32
            if seq_after(stop, high):
                self.end_seq[direction] = stop
        elif syn:
            stop = ((seq_ack >> 32) + 1) & LOW32
            if seq_after(stop, self.end_seq[direction]):
                self.end_seq[direction] = stop
        if header & (ACK << 16) != 0 and seq_after(
            seq_ack & LOW32, self.highest_ack[1 - direction]
        ):
            self.highest_ack[1 - direction] = seq_ack & LOW32
        if syn:
            if header & (ACK << 16) == 0:
                if self.syn_direction < 0:
                    self.syn_direction = direction
            elif self.syn_ack_direction < 0:
                self.syn_ack_direction = direction
        if self.hint_block < 0 and (header >> 24) & 255 != 0:
            self.hint_block = block.index
            self.hint_index = (header >> 24) & 255
        if block.file != self.current_file:
            self.current_file = block.file
            if self.current_file not in self.files:
                self.files.append(self.current_file)
        self.last_at = timestamp
        if self.packets == 0:
            self.first_at = timestamp
        self.packets += 1

    def has_packets(self, direction: i64) -> bool:
        """Whether a packet of this direction was captured. A RST without ACK is not noticed."""
        return self.end_seq[direction] >= 0 or self.highest_ack[1 - direction] >= 0


def acked_before_captured(seq: i64, size: i64, high: i64, acked: i64) -> bool:
    """Whether the new bytes among these were acknowledged before they were captured."""
    if high < 0 or acked < 0 or not seq_after((seq + size) & LOW32, high):
        return False
    start = seq & LOW32
    if seq_after(high, start):
        start = high
    return seq_after(acked, start)


def seq_after(seq: i64, other: i64) -> bool:
    """Whether a sequence number comes after another; anything comes after -1."""
    return other < 0 or 0 < (seq - other) & LOW32 < 0x80000000
