"""Messages of omnistreams: `> CREATE_RECEIVE_STREAM 1 "metadata"`, `> message x0105`.

In the legacy numbering the same names have other numbers on the wire.
"""

from __future__ import annotations

import os
import struct

from polymux.conform.notation.base import Notation
from polymux.conform.notation.payload import FrameWords

KINDS = (
    "CONTROL_MESSAGE", "CREATE_RECEIVE_STREAM", "STREAM_DATA", "STREAM_END",
    "CANCEL_RECEIVE_STREAM", "STREAM_REQUEST_DATA", "CANCEL_SEND_STREAM",
)  # fmt: skip
LEGACY_TYPES = (5, 0, 1, 2, 6, 4, 3)


class OmnistreamsNotation(Notation):
    """Messages with a length before each, or in WebSocket frames."""

    def encode(self, words: FrameWords) -> bytes:
        payload = words.payload or b""
        if words.kind == "message":
            return self.carried(payload, words.value("opcode", 2))
        if words.kind not in KINDS:
            raise self.unknown(words)
        number = KINDS.index(words.kind)
        kind = LEGACY_TYPES[number] if self.options.get("numbering") == "legacy" else number
        head = bytes([kind])
        if number:
            head += bytes([self.wire_id(words.stream)])
        if words.kind == "STREAM_REQUEST_DATA":
            head += bytes([words.value("amount", 1)])
        return self.carried(head + payload)

    def wire_id(self, word: str) -> int:
        return int(word[1:]) if word.startswith(("p", "#")) else super().wire_id(word)

    def carried(self, message: bytes, opcode: int = 2) -> bytes:
        """The message in the encapsulation of the connection."""
        if self.options.get("carrier") != "websocket":
            return struct.pack(">I", len(message)) + message
        masked = 0x80 if self.side == 0 else 0
        size = len(message)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([masked | size])
        elif size < 1 << 16:
            head += bytes([masked | 126]) + struct.pack(">H", size)
        else:
            head += bytes([masked | 127]) + struct.pack(">Q", size)
        if not masked:
            return head + message
        key = os.urandom(4)
        mask = key * (size // 4 + 1)
        return head + key + bytes(a ^ b for a, b in zip(message, mask, strict=False))

    def obedience(self) -> str:
        return """> CREATE_RECEIVE_STREAM 99 "source 5"
                  < CREATE_RECEIVE_STREAM p
                  > STREAM_REQUEST_DATA p amount=9
                  < content p *5"""

    def liveness(self, number: int, level: int) -> str | None:
        stream = 100 + number % 100
        if level < 1:
            return f"""> STREAM_DATA {stream} "to no stream"
                       < CANCEL_SEND_STREAM {stream}"""
        return f"""> CREATE_RECEIVE_STREAM {stream} "echo {number}"
                   < STREAM_REQUEST_DATA {stream}
                   > STREAM_DATA {stream} "still there? {number}"
                   > STREAM_END {stream}
                   < CREATE_RECEIVE_STREAM p "echo {number}"
                   > STREAM_REQUEST_DATA p amount=9
                   < content p "still there? {number}" """
