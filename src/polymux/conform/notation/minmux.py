"""Packets of Minmux: `> Write w1 "abc"`, `> GiveCredit r1 amount=5`.

`w1` is the first stream that the tester writes and `r1` the first that it reads: the dialer writes
1, 3, 5 and reads 2, 4, 6, the acceptor writes 2, 4, 6 and reads 3, 5, 7. So the peer answers on the
stream after the one it has read.
"""

from __future__ import annotations

from polymux.conform.notation.base import Notation, varu64
from polymux.conform.notation.payload import BadScript, FrameWords

GROUPS = {
    "GiveCredit": 0, "Write": 0, "StopRead": 1, "StopWrite": 1, "Oops": 2, "ForgoCredit": 2,
    "PromiseRead": 3, "PromiseWrite": 3,
}  # fmt: skip
PLAIN = {"StopRead", "StopWrite", "Oops"}  # their number may be 0
SOURCE_PAIR = 8
LIVENESS_PAIR = 9


class MinmuxNotation(Notation):
    """`amount=N` is the number of a packet; a Write has as many items as its payload has bytes."""

    def wire_id(self, word: str) -> int:
        if word.startswith("#"):
            return int(word[1:], 0)
        if not word.startswith(("w", "r")):
            raise BadScript(f"{word!r}: a stream of Minmux is w1, r1 or #1")
        first = 2 * int(word[1:]) - 1 + self.side
        return first if word.startswith("w") else first + 1

    def matches_stream(self, word: str, opener: int, stream_id: int) -> bool:
        return word in ("", "*") or self.wire_id(word) == stream_id

    def encode(self, words: FrameWords) -> bytes:
        if words.kind not in GROUPS:
            raise self.unknown(words)
        items = words.payload or b""
        amount = words.value("amount", len(items))
        number = self.wire_id(words.stream)
        head = bytes([GROUPS[words.kind] << 6 | min(number, 63)])
        if number > 62:
            head += varu64(number - 63)
        return head + varu64(amount if words.kind in PLAIN else amount - 1) + items

    def obedience(self) -> str:
        return f"""> GiveCredit r{SOURCE_PAIR} amount=5
                   < content r{SOURCE_PAIR} *5"""

    def liveness(self, number: int, level: int) -> str | None:
        if level < 1:
            return None
        text = f"still there? {number}"
        credit = f"> GiveCredit r{LIVENESS_PAIR} amount={len(text)}"
        return f"""{credit}
                   < credit w{LIVENESS_PAIR} amount={len(text)}
                   > Write w{LIVENESS_PAIR} "{text}"
                   < content r{LIVENESS_PAIR} "{text}" """
