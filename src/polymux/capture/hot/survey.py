"""A first look over the packets of a session: who dialled, when, which files, which comment.

And whether their order can be believed: octets that first appear after they were acknowledged
show that one direction was captured late, by another clock or another queue.
"""

from __future__ import annotations

from librt.strings import read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.hot.order import Flow
from polymux.capture.hot.references import ACK, CAPTURED_MASK, LOW32, SYN


class Survey:
    """What the entries `begin` to before `end` of a flow's order say without being reassembled.

    Directions are those of the flow, -1 where nothing tells. `hint_blob` and `hint` name the
    earliest comment of ours.
    """

    def __init__(self, flow: Flow, begin: i64, end: i64) -> None:
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
        high: vec[i64] = vec[i64]([-1, -1])  # sequence number after a direction's last octet
        acked: vec[i64] = vec[i64]([-1, -1])  # highest acknowledgement of a direction's octets
        order = flow.order
        file: i64 = -1
        number: i64 = 0
        blob = flow.blobs[0]
        for place in range(begin, end):
            entry = order[place]
            if entry >> 32 != number:
                number = entry >> 32
                blob = flow.blobs[number]
            pos = blob.seek(entry & LOW32)
            refs = blob.refs
            header = read_i64_le(refs, pos + 24)
            size = (read_i64_le(refs, pos) & CAPTURED_MASK) + (header >> 32)
            both = read_i64_le(refs, pos + 16)
            if size > 0:
                if self.spoke < 0:
                    self.spoke = blob.direction
                self.payload[blob.direction] += size
                if self.is_late(both >> 32, size, high[blob.direction], acked[blob.direction]):
                    self.disordered = True
            # Not `end`: compiled, a range follows a change of the name that bounds it.
            stop = ((both >> 32) + size + (1 if header & (SYN << 16) != 0 else 0)) & LOW32
            if (size > 0 or header & (SYN << 16) != 0) and later(stop, high[blob.direction]):
                high[blob.direction] = stop
            if header & (ACK << 16) != 0 and later(both & LOW32, acked[1 - blob.direction]):
                acked[1 - blob.direction] = both & LOW32
            if header & (SYN << 16) != 0:
                if header & (ACK << 16) == 0:
                    if self.asked < 0:
                        self.asked = blob.direction
                elif self.answered < 0:
                    self.answered = blob.direction
            if self.hint_blob < 0 and (header >> 24) & 255 != 0:
                self.hint_blob = number
                self.hint = (header >> 24) & 255
            if blob.file != file:
                file = blob.file
                if file not in self.files:
                    self.files.append(file)
            self.last_at = read_i64_le(refs, pos + 8)
            if place == begin:
                self.first_at = self.last_at

    def is_late(self, seq: i64, size: i64, high: i64, acked: i64) -> bool:
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
