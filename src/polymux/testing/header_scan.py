# mypyc: compiled
"""Decode the headers of one direction, and nothing else: no validation, streams or rows.

`Connection` must find the same frames; tests and benchmarks compare it with this scan.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, u8

from polymux.core.frames import FrameHeader
from polymux.core.protocol import Protocol

MAX_INLINE_VIEW_BYTES: Final[i64] = 12  # values up to this size are inline in Arrow's views
TWO_TO_THE_32: Final[i64] = 4294967296  # 2**32


class HeaderScan:
    """Decoded headers as columns; the first `used` of `capacity` rows are filled."""

    __slots__ = (
        "payload_offset",
        "head",
        "kind",
        "key",
        "header_offset",
        "capacity",
        "payload_size",
        "used",
        "header_size",
    )

    def __init__(self, capacity: i64) -> None:
        self.used: i64 = 0
        self.capacity: i64 = capacity
        self.head: FrameHeader = FrameHeader()
        self.header_offset: vec[i64] = vec[i64](
            [i64(0)] * capacity
        )  # offset of the header in the direction
        self.header_size: vec[u8] = vec[u8]([u8(0)] * capacity)  # bytes
        self.kind: vec[u8] = vec[u8]([u8(0)] * capacity)
        self.key: vec[i64] = vec[i64]([i64(0)] * capacity)
        self.payload_offset: vec[i64] = vec[i64](
            [i64(0)] * capacity
        )  # offset of the payload in the direction
        self.payload_size: vec[i64] = vec[i64]([i64(0)] * capacity)  # bytes

    def read(self, protocol: Protocol, sender: i64, data: bytes, pos: i64, base: i64) -> i64:
        """Decode headers from `pos` on while they are complete and rows are free.

        `base` is the offset of `data` in the direction. Returns the position of the next header:
        beyond the end of `data` if the last payload is incomplete, before it if the header is.
        """
        head = self.head
        offsets = self.header_offset
        widths = self.header_size
        kinds = self.kind
        keys = self.key
        contents = self.payload_offset
        sizes = self.payload_size
        room = self.capacity
        end: i64 = len(data)
        i = self.used
        while pos < end and i < room:
            start = protocol.decode_header(sender, data, pos, end, head)
            if start < 0:
                break
            size = head.payload_size
            offsets[i] = base + pos
            widths[i] = u8((start - pos) & 255)
            kinds[i] = u8(head.kind & 255)
            keys[i] = head.key
            contents[i] = base + start
            sizes[i] = size
            i += 1
            pos = start + size + head.trailer_size
        self.used = i
        return pos

    def payload_views(self, data: bytes, base: i64) -> vec[i64]:
        """Return the payloads as Arrow `binary_view` structs over `data`, whose offset is `base`.

        A payload that continues after the end of `data` is cut off there.
        """
        views = vec[i64]([i64(0)] * (self.used * 2))
        contents = self.payload_offset
        sizes = self.payload_size
        end: i64 = len(data)
        for i in range(self.used):
            at = contents[i] - base
            size = sizes[i]
            if size > end - at:
                size = end - at
            prefix = (
                little_endian_i32(data, at) if size >= 4 else little_endian(data, at, at + size)
            )
            views[i * 2] = size + prefix * TWO_TO_THE_32
            if size > MAX_INLINE_VIEW_BYTES:
                views[i * 2 + 1] = at * TWO_TO_THE_32  # offset in buffer 0
            else:
                views[i * 2 + 1] = little_endian(data, at + 4, at + size)
        return views


def little_endian_i32(data: bytes, start: i64) -> i64:
    """Return four bytes as a signed little-endian integer: the sign is the struct's top bit."""
    high: i64 = data[start + 3]
    if high > 127:
        high -= 256
    a: i64 = data[start]
    b: i64 = data[start + 1]
    c: i64 = data[start + 2]
    return a + b * 256 + c * 65536 + high * 16777216


def little_endian(data: bytes, start: i64, end: i64) -> i64:
    """Return up to eight bytes as a little-endian integer, signed if there are eight."""
    value: i64 = 0
    pos = end - 1
    while pos >= start:
        byte: i64 = data[pos]
        if byte > 127 and pos - start == 7:
            byte -= 256
        value = value * 256 + byte
        pos -= 1
    return value
