"""Frames of Nerdbank: `> Offer 1 "name" window=100`, `> Code 1 code=9`.

`source=N` overrides the source of version 3; `raw=1` sends the payload as it is instead of what the
kind of frame calls for.
"""

from __future__ import annotations

import struct

from polymux.conform.notation.base import Notation, msgpack_bytes, msgpack_int, msgpack_text
from polymux.conform.notation.payload import FrameWords

CODES = {
    "Offer": 0, "OfferAccepted": 1, "Content": 2, "ContentWritingCompleted": 3,
    "ChannelTerminated": 4, "ContentProcessed": 5, "ContentReadingCompleted": 6,
    "ChannelWindowAdjust": 7, "ChannelWindowGrowthRequest": 8,
}  # fmt: skip
WINDOW = 1 << 20
RANDOM = b"\xff" * 15 + b"\xfe"  # greater than nearly all others: the tester has the odd ids
MAGIC = bytes.fromhex("2fdf1d50")


class NerdbankNotation(Notation):
    """Frames of one of the three versions."""

    directions_are_independent = False  # before version 3, frames need both handshakes

    @property
    def version(self) -> int:
        return int(self.options.get("version", "3"))

    def hello(self) -> bytes:
        return {1: MAGIC + RANDOM, 2: bytes.fromhex("92920200c410") + RANDOM, 3: b""}[self.version]

    def own_id(self, number: int) -> int:
        return number if self.version == 3 else 2 * number - 1

    def wire_id(self, word: str) -> int:
        return int(word[1:]) if word.startswith(("p", "#")) else super().wire_id(word)

    def encode(self, words: FrameWords) -> bytes:
        if words.kind == "Random":
            return RANDOM
        code = words.value("code", -1)
        if code < 0:
            if words.kind not in CODES:
                raise self.unknown(words)
            code = CODES[words.kind]
        payload = self.payload(words)
        number = self.wire_id(words.stream)
        if self.version == 1:
            data = payload or b""
            return struct.pack(">BIH", code, number, len(data)) + data
        fields = [msgpack_int(code), msgpack_int(number)]
        if self.version == 3:
            default = -1 if words.stream.startswith("p") else 1
            fields.append(struct.pack("b", words.value("source", default)))
        if payload is not None:
            fields.append(msgpack_bytes(payload))
        return bytes([0x90 + len(fields)]) + b"".join(fields)

    def payload(self, words: FrameWords) -> bytes | None:
        """The payload element: None if the frame has none."""
        plain = words.payload
        if words.value("raw") or words.kind not in CODES:
            return plain
        if self.version == 1:
            return plain
        if words.kind == "Offer":
            window = words.value("window", WINDOW)
            return b"\x92" + msgpack_text(plain or b"") + msgpack_int(window)
        if words.kind == "OfferAccepted":
            return b"\x91" + msgpack_int(words.value("window", WINDOW))
        if words.kind in ("ContentProcessed", "ChannelWindowAdjust"):
            return b"\x91" + msgpack_int(words.value("amount"))
        return plain

    def obedience(self) -> str:
        return """> Offer 990 "source 5"
                  < OfferAccepted 990
                  < content 990 *5"""

    def liveness(self, number: int, level: int) -> str | None:
        channel = 900 + number
        if level < 1:
            return f"""> Offer {channel} "polymux-{number}"
                       > ChannelTerminated {channel}
                       < ChannelTerminated {channel}"""
        return f"""> Offer {channel} "echo"
                   < OfferAccepted {channel}
                   > Content {channel} "still there? {number}"
                   < content {channel} "still there? {number}" """
