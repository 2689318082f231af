# mypyc: compiled
"""What is known of a session before it is reassembled: who dialled, when, which files and comment.

And whether their order can be believed: octets that first appear after they were acknowledged
show that one direction was captured late, by another clock or another queue.
"""

from __future__ import annotations

from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.packets.packet_refs import ACK, LOW32, SYN
from polymux.capture.tcp.ref_storage import Blob


class Survey:
    """What the packets of a session say, taken one after another.

    Directions are those of the flow, -1 where nothing tells. `hint_blob` and `hint` name the
    earliest comment of ours.
    """

    def __init__(self) -> None:
        self.packets: i64 = 0
        self.first_at: i64 = 0
        self.last_at: i64 = 0
        self.asked: i64 = -1  # direction that sent a SYN
        self.answered: i64 = -1  # direction that sent a SYN-ACK
        self.spoke: i64 = -1  # direction of the first payload
        self.payload: vec[i64] = vec[i64]([0, 0])  # octets carried, repeated ones too
        self.hint_blob: i64 = -1
        self.hint: i64 = 0
        self.files: list[int] = []
        self.disordered: bool = False
        self.file: i64 = -1
        self.high: vec[i64] = vec[i64]([-1, -1])  # sequence number after a direction's last octet
        self.acked: vec[i64] = vec[i64]([-1, -1])  # highest acknowledgement of its octets

    def take(self, blob: Blob, size: i64, both: i64, header: i64, at: i64) -> None:
        """The next packet, of those the blob refers to: its octets, and words of its reference."""
        direction = blob.direction
        syn = header & (SYN << 16) != 0
        if size > 0:
            if self.spoke < 0:
                self.spoke = direction
            self.payload[direction] += size
            high = self.high[direction]
            if is_late(both >> 32, size, high, self.acked[direction]):
                self.disordered = True
            stop = ((both >> 32) + size + (1 if syn else 0)) & LOW32
            if later(stop, high):
                self.high[direction] = stop
        elif syn:
            stop = ((both >> 32) + 1) & LOW32
            if later(stop, self.high[direction]):
                self.high[direction] = stop
        if header & (ACK << 16) != 0 and later(both & LOW32, self.acked[1 - direction]):
            self.acked[1 - direction] = both & LOW32
        if syn:
            if header & (ACK << 16) == 0:
                if self.asked < 0:
                    self.asked = direction
            elif self.answered < 0:
                self.answered = direction
        if self.hint_blob < 0 and (header >> 24) & 255 != 0:
            self.hint_blob = blob.number
            self.hint = (header >> 24) & 255
        if blob.file != self.file:
            self.file = blob.file
            if self.file not in self.files:
                self.files.append(self.file)
        self.last_at = at
        if self.packets == 0:
            self.first_at = at
        self.packets += 1

    def heard(self, direction: i64) -> bool:
        """Was any packet of this direction captured? All but a lone RST begin or acknowledge."""
        return self.high[direction] >= 0 or self.acked[1 - direction] >= 0


def is_late(seq: i64, size: i64, high: i64, acked: i64) -> bool:
    """Whether the new octets among these were acknowledged before they came."""
    if high < 0 or acked < 0 or not later((seq + size) & LOW32, high):
        return False
    start = seq & LOW32
    if later(high, start):
        start = high
    return later(acked, start)


def later(seq: i64, than: i64) -> bool:
    """Whether a sequence number comes after another; anything comes after -1."""
    return than < 0 or 0 < (seq - than) & LOW32 < 0x80000000
