"""Frames of the protocols as an attacker writes them: functions that return bytes.

Nothing here comes from the code under test, so a mistake there cannot hide a mistake here.
"""

from __future__ import annotations

import struct

# --- numbers


def uvarint(value: int) -> bytes:
    """A varint: seven bits per byte, lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varu64(value: int) -> bytes:
    """Below 248 the value itself; otherwise the number of bytes that follow, then these."""
    if value < 248:
        return bytes([value])
    size = (value.bit_length() + 7) // 8
    return bytes([247 + size]) + value.to_bytes(size, "big")


def msgpack_uint(value: int) -> bytes:
    for limit, form in ((128, "B"), (256, "xB"), (1 << 16, "xH"), (1 << 32, "xI"), (1 << 64, "xQ")):
        if value < limit:
            data = bytearray(struct.pack(">" + form, value))
            if form != "B":
                data[0] = {"xB": 0xCC, "xH": 0xCD, "xI": 0xCE, "xQ": 0xCF}[form]
            return bytes(data)
    raise ValueError(value)


def msgpack_text(text: bytes) -> bytes:
    if len(text) < 32:
        return bytes([0xA0 + len(text)]) + text
    if len(text) < 1 << 16:
        return b"\xda" + struct.pack(">H", len(text)) + text
    return b"\xdb" + struct.pack(">I", len(text)) + text


def msgpack_blob(data: bytes) -> bytes:
    if len(data) < 256:
        return b"\xc4" + bytes([len(data)]) + data
    if len(data) < 1 << 16:
        return b"\xc5" + struct.pack(">H", len(data)) + data
    return b"\xc6" + struct.pack(">I", len(data)) + data


# --- mplex

NEW, MESSAGE_RECEIVER, MESSAGE, CLOSE_RECEIVER, CLOSE, RESET_RECEIVER, RESET = range(7)


def mplex(number: int, flag: int, payload: bytes = b"") -> bytes:
    return uvarint(number * 8 + flag) + uvarint(len(payload)) + payload


# --- Nerdbank

OFFER, ACCEPTED, CONTENT, COMPLETED, TERMINATED, PROCESSED, READ_COMPLETED, ADJUST, GROWTH = range(
    9
)
ODD = b"\xff" * 16  # the greatest random value: whoever sends it is the odd party
HELLO = {1: bytes.fromhex("2fdf1d50") + ODD, 2: bytes.fromhex("92920200c410") + ODD, 3: b""}


class Nerdbank:
    """Frames of one version, as sent by the dialer, which uses odd ids."""

    def __init__(self, version: int) -> None:
        self.version = version

    def frame(self, code: int, number: int, payload: bytes = b"", source: int = 1) -> bytes:
        if self.version == 1:
            return struct.pack(">BIH", code, number, len(payload)) + payload
        fields = bytes([code]) + msgpack_uint(number)
        if self.version == 3:
            fields += struct.pack("b", source)
        count = self.version + (1 if payload else 0)
        return bytes([0x90 + count]) + fields + (msgpack_blob(payload) if payload else b"")

    def offer(self, number: int, name: bytes = b"x", window: int = 1 << 20) -> bytes:
        text = name if self.version == 1 else b"\x92" + msgpack_text(name) + msgpack_uint(window)
        return self.frame(OFFER, number, text)

    def number(self, n: int) -> int:
        """The n-th id that this side may offer."""
        return n + 1 if self.version == 3 else 2 * n + 1


# --- omnistreams

CONTROL, CREATE, DATA, END, CANCEL_RECEIVE, REQUEST, CANCEL_SEND = range(7)


def omni(kind: int, rest: bytes = b"") -> bytes:
    """One length-prefixed message: the encapsulation over plain TCP."""
    return struct.pack(">I", len(rest) + 1) + bytes([kind]) + rest


def websocket(payload: bytes, opcode: int = 2, first: int = 0x80, size: int | None = None) -> bytes:
    """One masked frame; `size` overrides the length, `first` has FIN and the reserved bits."""
    length = len(payload) if size is None else size
    head = bytes([first | opcode])
    if length < 126:
        head += bytes([0x80 | length])
    elif length < 1 << 16:
        head += b"\xfe" + struct.pack(">H", length)
    else:
        head += b"\xff" + struct.pack(">Q", length)
    return head + bytes(4) + payload  # a masking key of zeros changes nothing


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)

# --- Streamux: 16 bits of length, 14 of id, as ours announces them

INITIATOR = bytes([1, 16, 14, 50])


def streamux(
    number: int, data: bytes = b"", last: bool = False, reply: bool = False, size: int = -1
) -> bytes:
    length = len(data) if size < 0 else size
    value = (last << 31) | (reply << 30) | (length << 14) | number
    return struct.pack("<I", value) + data


# --- Minmux, as sent by the dialer: it writes the odd ids and reads the even ones


def minmux(group: int, number: int, amount: int, items: bytes = b"", nonzero: bool = True) -> bytes:
    head = bytes([group << 6 | min(number, 63)])
    if number > 62:
        head += varu64(number - 63)
    return head + varu64(amount - 1 if nonzero else amount) + items


def write_items(number: int, items: bytes, amount: int = 0) -> bytes:
    return minmux(0, number, amount or len(items), items)


def give_credit(number: int, amount: int) -> bytes:
    return minmux(0, number, amount)


def stop(number: int, amount: int = 0) -> bytes:
    return minmux(1, number, amount, nonzero=False)


def oops(number: int, amount: int = 0) -> bytes:
    """On an even id; on an odd one the same bytes forgo `amount + 1` credit."""
    return minmux(2, number, amount, nonzero=False)


def promise(number: int, amount: int) -> bytes:
    return minmux(3, number, amount)


# --- yamux

YAMUX_DATA, YAMUX_UPDATE, YAMUX_PING, YAMUX_GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


def yamux(kind: int, flags: int, number: int, length: int = 0, payload: bytes = b"") -> bytes:
    """A frame; `length` is that of the payload if there is one."""
    return struct.pack(">BBHII", 0, kind, flags, number, len(payload) or length) + payload
