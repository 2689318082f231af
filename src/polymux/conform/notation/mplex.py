"""Frames of mplex: `> MessageInitiator 1 "hello"`; `padded=3` makes the id three bytes long."""

from __future__ import annotations

from polymux.conform.notation.base import Notation, uvarint
from polymux.conform.notation.payload import FrameWords

KINDS = (
    "NewStream", "MessageReceiver", "MessageInitiator", "CloseReceiver", "CloseInitiator",
    "ResetReceiver", "ResetInitiator", "Undefined",
)  # fmt: skip


class MplexNotation(Notation):
    """`length=N` overrides the length of the payload."""

    def encode(self, words: FrameWords) -> bytes:
        if words.kind not in KINDS:
            raise self.unknown(words)
        payload = words.payload or b""
        head = uvarint(self.wire_id(words.stream) * 8 + KINDS.index(words.kind),
                       words.value("padded"))  # fmt: skip
        length = uvarint(words.value("length", len(payload)), words.value("padded-length"))
        return head + length + payload

    def own_id(self, number: int) -> int:
        return 2 * number - 1 + self.side  # odd from the dialer, even from the acceptor

    def obedience(self) -> str:
        return """> NewStream 990 "source 5"
                  < content 990 *5"""

    def liveness(self, number: int, level: int) -> str | None:
        if level < 1:
            return None
        stream = 900 + number
        return f"""> NewStream {stream} "echo"
                   > MessageInitiator {stream} "still there? {number}"
                   < content {stream} "still there? {number}" """
