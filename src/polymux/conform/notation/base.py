"""What the tester must know of a protocol: how to write frames, and how to tell a live peer."""

from __future__ import annotations

import struct
from collections.abc import Callable

from polymux.conform.notation.payload import BadScript, FrameWords, stream_number


def uvarint(value: int, size: int = 0) -> bytes:
    """A varint of seven bits a byte, lowest first; padded to `size` bytes."""
    out = bytearray()
    while value > 127 or len(out) + 1 < size:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varu64(value: int) -> bytes:
    """Below 248 the value itself, else the number of bytes that follow, and these."""
    if value < 248:
        return bytes([value])
    size = (value.bit_length() + 7) // 8
    return bytes([247 + size]) + value.to_bytes(size, "big")


def msgpack_int(value: int) -> bytes:
    """The shortest form of an integer."""
    if -32 <= value < 128:
        return struct.pack("b", value)
    for limit, form, mark in ((1 << 8, ">B", 0xCC), (1 << 16, ">H", 0xCD), (1 << 32, ">I", 0xCE)):
        if 0 <= value < limit:
            return bytes([mark]) + struct.pack(form, value)
    if value >= 0:
        return b"\xcf" + struct.pack(">Q", value)
    return b"\xd3" + struct.pack(">q", value)


def msgpack_bytes(data: bytes) -> bytes:
    if len(data) < 1 << 8:
        return b"\xc4" + bytes([len(data)]) + data
    if len(data) < 1 << 16:
        return b"\xc5" + struct.pack(">H", len(data)) + data
    return b"\xc6" + struct.pack(">I", len(data)) + data


def msgpack_text(text: bytes) -> bytes:
    if len(text) < 32:
        return bytes([0xA0 + len(text)]) + text
    if len(text) < 1 << 16:
        return b"\xda" + struct.pack(">H", len(text)) + text
    return b"\xdb" + struct.pack(">I", len(text)) + text


class Notation:
    """Encodes the frames of scripts for one connection. Each protocol has a subclass.

    None of this uses the codecs of `polymux.protocols`, so that a mistake there shows.

    Args:
        options: of the protocol string.
        side: the tester's side, 0 for the dialer and 1 for the acceptor.
    """

    directions_are_independent = True  # each side's bytes can be decoded whatever the other sends

    def __init__(self, options: dict[str, str], side: int) -> None:
        self.options = options
        self.side = side
        self.handlers: dict[str, Callable[[FrameWords], bytes]] = {}

    def hello(self) -> bytes:
        """The tester's handshake; empty if the protocol has none."""
        return b""

    def encode(self, words: FrameWords) -> bytes:
        """The bytes of a frame.

        Raises:
            BadScript: there is no such kind of frame.
        """
        raise NotImplementedError

    def wire_id(self, word: str) -> int:
        """The id on the wire of a stream that a script names."""
        if word.startswith("#"):
            return stream_number(word)
        return self.own_id(stream_number(word))

    def own_id(self, number: int) -> int:
        """The id of the n-th stream that the tester opens, from 1."""
        return number

    def matches_stream(self, word: str, opener: int, stream_id: int) -> bool:
        """Whether the stream of a frame, as an observer names it, is the one of the script."""
        if word in ("", "*"):
            return True
        if word.startswith("p"):
            wanted = word[1:]
            return opener == 1 - self.side and wanted in ("", str(stream_id))
        return stream_id == self.wire_id(word) and (opener == self.side or opener > 1)

    def liveness(self, number: int, level: int) -> str | None:
        """A script that a live peer completes; None if this level has none.

        Args:
            number: different in each call: a stream to open, or a part of the content.
            level: what the peer cooperates in.
        """
        return None

    def obedience(self) -> str:
        """A script that a peer completes which obeys the commands of `polymux testee`."""
        raise NotImplementedError

    def answer(self, kind: str, stream_id: int, amount: int) -> bytes:
        """What the tester sends at once when it reads this frame; mostly nothing."""
        return b""

    def unknown(self, words: FrameWords) -> BadScript:
        return BadScript(f"no frame {words.kind!r} in {type(self).__name__}")
