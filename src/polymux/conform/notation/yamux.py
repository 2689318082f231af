"""Frames of yamux: `> WindowUpdate+SYN 1`, `> Data 1 "hello"`, `> Ping amount=7`.

`version=`, `type=` and `flags=` override fields of the header; `amount=N` is its last field
where no payload follows.
"""

from __future__ import annotations

import struct

from polymux.conform.notation.base import Notation
from polymux.conform.notation.payload import FrameWords

TYPES = {"Data": 0, "WindowUpdate": 1, "Ping": 2, "Pong": 2, "GoAway": 3}
FLAGS = {"SYN": 1, "ACK": 2, "FIN": 4, "RST": 8}


class YamuxNotation(Notation):
    """Streams are counted from 1; `o1` is an id that only the other side may open."""

    def own_id(self, number: int) -> int:
        return 2 * number - 1 + self.side

    def wire_id(self, word: str) -> int:
        if word.startswith(("p", "#")):
            return int(word[1:], 0)
        if word.startswith("o"):  # an id that only the other side may open
            return 2 * int(word[1:]) - self.side
        return super().wire_id(word)

    def encode(self, words: FrameWords) -> bytes:
        name, *names = words.kind.split("+")
        if name not in TYPES or not FLAGS.keys() >= set(names):
            raise self.unknown(words)
        flags = sum(FLAGS[flag] for flag in names) | {"Ping": 1, "Pong": 2}.get(name, 0)
        payload = words.payload or b""
        return struct.pack(
            ">BBHII",
            words.value("version"),
            words.value("type", TYPES[name]),
            words.value("flags", flags),
            self.wire_id(words.stream) if words.stream else 0,
            words.value("amount", len(payload)) & 0xFFFFFFFF,
        ) + payload  # fmt: skip

    def answer(self, kind: str, stream_id: int, amount: int) -> bytes:
        if kind == "Ping":
            return struct.pack(">BBHII", 0, 2, 2, 0, max(amount, 0))
        return b""

    def obedience(self) -> str:
        return """> WindowUpdate+SYN 990
                  > Data 990 "testee: source 5" x0a
                  < content 990 *5"""

    def liveness(self, number: int, level: int) -> str | None:
        if level < 1:
            return f"""> Ping amount={7000 + number}
                       < Pong amount={7000 + number}"""
        stream = 1_000_000 + number
        return f"""> WindowUpdate+SYN {stream}
                   > Data {stream} "still there? {number}"
                   < content {stream} "still there? {number}" """
