"""Frames of Streamux: `> Request 1 "hello" last=1`; the tester announces 16 and 14 bits.

Headers of requests have the tester's layout, those of replies to the peer's requests the peer's.
"""

from __future__ import annotations

import struct

from polymux.conform.notation.base import Notation
from polymux.conform.notation.payload import FrameWords

TERMINATION = {"KeepAlive", "EmptyReply"}
REPLIES = {"Reply", "EmptyReply", "CancelAck"}
KINDS = {"Request", "Cancel", *TERMINATION, *REPLIES}


class StreamuxNotation(Notation):
    """`last=1` sets the termination bit. `Initiator` has version=, length=, id= and timeout=."""

    directions_are_independent = False
    length_bits = 16
    id_bits = 14

    def hello(self) -> bytes:
        return bytes([1, self.length_bits, self.id_bits, 50])

    def encode(self, words: FrameWords) -> bytes:
        if words.kind == "Initiator":
            lengths, ids = words.value("length", 16), words.value("id", 14)
            if lengths and ids and lengths + ids in (14, 30):
                self.length_bits, self.id_bits = lengths, ids
            return bytes([words.value("version", 1), lengths, ids, words.value("timeout", 50)])
        if words.kind not in KINDS:
            raise self.unknown(words)
        data = words.payload or b""
        last = words.kind in TERMINATION or words.value("last") == 1
        reply = words.kind in REPLIES
        bits = self.length_bits + self.id_bits
        value = (last << (bits + 1)) | (reply << bits) | (len(data) << self.id_bits)
        value |= self.wire_id(words.stream)
        return struct.pack("<I" if bits == 30 else "<H", value) + data

    def wire_id(self, word: str) -> int:
        return int(word[1:]) if word.startswith(("p", "#")) else super().wire_id(word)

    def obedience(self) -> str:
        return """> Request 1 "testee: source 5" last=1
                  < content 1 *5"""

    def liveness(self, number: int, level: int) -> str | None:
        top = 1 << self.id_bits
        request = top - 1 - number % (top // 4)
        if level < 1:
            return f"""> Cancel {request}
                       < CancelAck {request}"""
        return f"""> Request {request} "still there? {number}" last=1
                   < content {request} "still there? {number}" """
