# mypyc: compiled
"""The chain of headers in one direction, read and nothing else: no rule, no stream, no row.

The loop of a conversation must find the same frames; tests hold it against this.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, u8

from polymux.core.frames import Head
from polymux.core.protocol import Protocol

INLINE: Final[i64] = 12  # octets of a value that Arrow's views hold themselves
HALF: Final[i64] = 4294967296  # 2**32


class Chain:
    """Headers as columns; `used` of `room` are filled."""

    __slots__ = ("content", "head", "kind", "key", "offset", "room", "size", "used", "width")

    def __init__(self, room: i64) -> None:
        self.used: i64 = 0
        self.room: i64 = room
        self.head: Head = Head()
        self.offset: vec[i64] = vec[i64]([i64(0)] * room)  # where the header begins
        self.width: vec[u8] = vec[u8]([u8(0)] * room)  # octets of the header
        self.kind: vec[u8] = vec[u8]([u8(0)] * room)
        self.key: vec[i64] = vec[i64]([i64(0)] * room)
        self.content: vec[i64] = vec[i64]([i64(0)] * room)  # where the payload begins
        self.size: vec[i64] = vec[i64]([i64(0)] * room)  # octets of the payload

    def read(self, protocol: Protocol, sender: i64, data: bytes, pos: i64, base: i64) -> i64:
        """Follow the chain from `pos` while headers are whole and there is room.

        `base` is where `data` begins in the direction. Returns where the next header begins: past
        the end of `data` if a payload reaches beyond it, before it if a header does.
        """
        head = self.head
        offsets = self.offset
        widths = self.width
        kinds = self.kind
        keys = self.key
        contents = self.content
        sizes = self.size
        room = self.room
        end: i64 = len(data)
        i = self.used
        while pos < end and i < room:
            start = protocol.header(sender, data, pos, end, head)
            if start < 0:
                break
            size = head.size
            offsets[i] = base + pos
            widths[i] = u8((start - pos) & 255)
            kinds[i] = u8(head.kind & 255)
            keys[i] = head.key
            contents[i] = base + start
            sizes[i] = size
            i += 1
            pos = start + size + head.tail
        self.used = i
        return pos

    def views(self, data: bytes, base: i64) -> vec[i64]:
        """The payloads as Arrow's `binary_view` structs over `data`, which begins at `base`.

        A payload that reaches past the end of `data` is shown as far as it is there.
        """
        made = vec[i64]([i64(0)] * (self.used * 2))
        contents = self.content
        sizes = self.size
        end: i64 = len(data)
        for i in range(self.used):
            at = contents[i] - base
            size = sizes[i]
            if size > end - at:
                size = end - at
            prefix = word(data, at) if size >= 4 else little(data, at, at + size)
            made[i * 2] = size + prefix * HALF
            if size > INLINE:
                made[i * 2 + 1] = at * HALF  # in the first and only buffer
            else:
                made[i * 2 + 1] = little(data, at + 4, at + size)
        return made


def word(data: bytes, at: i64) -> i64:
    """Four octets, little end first, as a signed number: the sign becomes a struct's top bit."""
    high: i64 = data[at + 3]
    if high > 127:
        high -= 256
    a: i64 = data[at]
    b: i64 = data[at + 1]
    c: i64 = data[at + 2]
    return a + b * 256 + c * 65536 + high * 16777216


def little(data: bytes, at: i64, end: i64) -> i64:
    """The octets from `at` to `end`, at most eight, little end first, signed if they are eight."""
    value: i64 = 0
    pos = end - 1
    while pos >= at:
        octet: i64 = data[pos]
        if octet > 127 and pos - at == 7:
            octet -= 256
        value = value * 256 + octet
        pos -= 1
    return value
