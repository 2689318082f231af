# mypyc: compiled
"""Integers and heads as the five protocols put them on the wire.

Readers take `(data, pos, end)` and return `(value, next)`. A negative `next` is a status: `SHORT`
(more bytes are needed) or `BAD` (no bytes to come can make this valid). They never raise.
"""

from typing import Final

from librt.strings import BytesWriter, read_f64_be
from mypy_extensions import i64, u8

INCOMPLETE: Final[i64] = -1
INVALID: Final[i64] = -2
AWAITING_HANDSHAKE: Final[i64] = -3  # readable only once the other direction has said more

MAX_SKIPPED_VALUES: Final[i64] = 4096  # that are stepped over in one place; a frame has five
I64_MAX: Final[i64] = 0x7FFFFFFFFFFFFFFF  # stands for everything larger
I64_MAX_PLUS_1: Final = (
    0x8000000000000000  # a plain int: an i64 on either side would narrow the other
)


def clamp_to_i64(amount: int) -> i64:
    """An amount as tables and frames hold it: 2**63-1 stands for everything larger."""
    return I64_MAX if amount >= I64_MAX_PLUS_1 else i64(amount)


# --- unsigned base-128 varints (mplex): at most nine bytes, so at most 63 bits


def uvarint(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    if pos >= end:
        return 0, INCOMPLETE
    byte: i64 = data[pos]
    if byte < 128:
        return byte, pos + 1
    value: i64 = byte & 127
    shift: i64 = 7
    pos += 1
    while pos < end:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
        shift += 7
        if shift > 56:
            return 0, INVALID
    return 0, INCOMPLETE


def put_uvarint(out: BytesWriter, value: i64) -> None:
    while value > 127:
        out.append(u8((value & 127) | 128))
        value >>= 7
    out.append(u8(value))


# --- VarU64 (Minmux): the value itself below 248, else 1 to 8 bytes, big endian.
#     A value of 2**63 or more is returned as the negative number with the same 64 bits.


def varu64(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    if pos >= end:
        return 0, INCOMPLETE
    byte: i64 = data[pos]
    if byte < 248:
        return byte, pos + 1
    width: i64 = byte - 247
    if width > end - pos - 1:
        return 0, INCOMPLETE
    return read_big_endian(data, pos + 1, width), pos + 1 + width


def read_big_endian(data: bytes, pos: i64, width: i64) -> i64:
    """`width` bytes (1 to 8) big endian, as 64 bits; 2**63 and more come out negative."""
    value: i64 = data[pos]
    if width == 8 and value > 127:
        value -= 256
    for i in range(pos + 1, pos + width):
        value = value * 256 + data[i]
    return value


def varu64_width(value: i64) -> i64:
    """Bytes of the canonical form of these 64 bits."""
    if value < 0:
        return 9
    if value < 248:
        return 1
    width: i64 = 1
    while value > 0:
        value >>= 8
        width += 1
    return width


def put_varu64(out: BytesWriter, value: i64) -> None:
    width = varu64_width(value)
    if width == 1:
        out.append(u8(value))
        return
    out.append(u8(246 + width))
    put_big_endian(out, value, width - 1)


def put_big_endian(out: BytesWriter, value: i64, width: i64) -> None:
    shift: i64 = (width - 1) * 8
    while shift >= 0:
        out.append(u8((value >> shift) & 255))
        shift -= 8


# --- msgpack, as much of it as Nerdbank frames need


def msgpack_int(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """An integer in any form, or a float64 that is a whole number (JavaScript writes those)."""
    if pos >= end:
        return 0, INCOMPLETE
    code: i64 = data[pos]
    if code < 0x80:
        return code, pos + 1
    if code >= 0xE0:
        return code - 256, pos + 1
    width: i64
    if code == 0xCC or code == 0xD0:
        width = 1
    elif code == 0xCD or code == 0xD1:
        width = 2
    elif code == 0xCE or code == 0xD2:
        width = 4
    elif code == 0xCF or code == 0xD3 or code == 0xCB:
        width = 8
    else:
        return 0, INVALID
    if width > end - pos - 1:
        return 0, INCOMPLETE
    if code == 0xCB:
        return float_as_integer(data, pos + 1), pos + 9
    value = read_big_endian(data, pos + 1, width)
    if code == 0xCF and value < 0:
        value = I64_MAX
    elif code == 0xD0 and value > 127:
        value -= 256
    elif code == 0xD1 and value > 32767:
        value -= 65536
    elif code == 0xD2 and value > 2147483647:
        value -= 4294967296
    return value, pos + 1 + width


def float_as_integer(data: bytes, pos: i64) -> i64:
    """The float64 at `pos` as an integer; HUGE if too large, -1 if it is no whole number >= 0."""
    number: float = read_f64_be(data, pos)
    if number >= 9.0e18:
        return I64_MAX
    if not number >= 0.0:
        return -1
    whole = int(number)
    if float(whole) != number:
        return -1
    return i64(whole)


def msgpack_blob(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """The head of a binary, a string or nil (read as empty): (bytes, where they start)."""
    if pos >= end:
        return 0, INCOMPLETE
    code: i64 = data[pos]
    if code == 0xC0:
        return 0, pos + 1
    if 0xA0 <= code <= 0xBF:
        return code - 0xA0, pos + 1
    width: i64
    if code == 0xC4 or code == 0xD9:
        width = 1
    elif code == 0xC5 or code == 0xDA:
        width = 2
    elif code == 0xC6 or code == 0xDB:
        width = 4
    else:
        return 0, INVALID
    if width > end - pos - 1:
        return 0, INCOMPLETE
    return read_big_endian(data, pos + 1, width), pos + 1 + width


def msgpack_array(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """The head of an array: (elements, where the first starts)."""
    if pos >= end:
        return 0, INCOMPLETE
    code: i64 = data[pos]
    if 0x90 <= code <= 0x9F:
        return code - 0x90, pos + 1
    width: i64
    if code == 0xDC:
        width = 2
    elif code == 0xDD:
        width = 4
    else:
        return 0, INVALID
    if width > end - pos - 1:
        return 0, INCOMPLETE
    return read_big_endian(data, pos + 1, width), pos + 1 + width


def msgpack_skip(data: bytes, pos: i64, end: i64, values: i64) -> i64:
    """Step over `values` values of any type. Flat: nesting costs no stack, only its own bytes.

    BAD for more values than anybody has a use for: looking for their end would be work for nothing.
    """
    left = MAX_SKIPPED_VALUES
    while values > 0:
        if values > left:
            return INVALID
        if pos >= end:
            return INCOMPLETE
        code: i64 = data[pos]
        values -= 1
        left -= 1
        size: i64 = 1
        if code < 0x80 or code >= 0xE0 or code == 0xC0 or code == 0xC2 or code == 0xC3:
            pass
        elif code < 0x90:
            values += (code & 15) * 2
        elif code < 0xA0:
            values += code & 15
        elif code < 0xC0:
            size = 1 + (code & 31)
        elif code == 0xC1:
            return INVALID
        else:
            size, more = value_extent(data, pos, end, code)
            if size < 0:
                return INCOMPLETE
            values += more
        if size > end - pos:
            return INCOMPLETE
        pos += size
    return pos


def value_extent(data: bytes, pos: i64, end: i64, code: i64) -> tuple[i64, i64]:
    """Bytes of a value's head and body (-1: cut short), and the values nested in it."""
    if 0xCA <= code <= 0xD3:  # floats and integers
        if code == 0xCA:
            return 5, 0
        if code == 0xCB:
            return 9, 0
        power: i64 = code & 3
        return (2 if power == 0 else 3 if power == 1 else 5 if power == 2 else 9), 0
    if 0xD4 <= code <= 0xD8:  # fixext: type byte, then 1, 2, 4, 8, 16
        return (3 if code == 0xD4 else 4 if code == 0xD5 else 6 if code == 0xD6
                else 10 if code == 0xD7 else 18), 0  # fmt: skip
    width: i64  # of the length that follows
    if code == 0xC4 or code == 0xC7 or code == 0xD9:
        width = 1
    elif code == 0xC5 or code == 0xC8 or code == 0xDA or code == 0xDC or code == 0xDE:
        width = 2
    else:
        width = 4
    if width > end - pos - 1:
        return -1, 0
    count = read_big_endian(data, pos + 1, width)
    if code == 0xDC or code == 0xDD:
        return 1 + width, count
    if code == 0xDE or code == 0xDF:
        return 1 + width, count * 2
    if 0xC7 <= code <= 0xC9:
        return 2 + width + count, 0
    return 1 + width + count, 0


def put_msgpack_int(out: BytesWriter, value: i64) -> None:
    """A whole number, shortest form. Numbers below zero: only -1 to -32 are ever needed."""
    if value < 0:
        out.append(u8((value + 256) & 255))
    elif value < 128:
        out.append(u8(value))
    elif value < 256:
        out.append(0xCC)
        out.append(u8(value))
    elif value < 65536:
        out.append(0xCD)
        put_big_endian(out, value, 2)
    elif value < 4294967296:
        out.append(0xCE)
        put_big_endian(out, value, 4)
    else:
        out.append(0xCF)
        put_big_endian(out, value, 8)


def put_msgpack_bin(out: BytesWriter, size: i64) -> None:
    """The head of a binary of `size` bytes."""
    if size < 256:
        out.append(0xC4)
        out.append(u8(size))
    elif size < 65536:
        out.append(0xC5)
        put_big_endian(out, size, 2)
    else:
        out.append(0xC6)
        put_big_endian(out, size, 4)


def put_msgpack_str(out: BytesWriter, text: bytes) -> None:
    """A string, head and bytes."""
    size: i64 = len(text)
    if size < 32:
        out.append(u8(0xA0 + size))
    elif size < 256:
        out.append(0xD9)
        out.append(u8(size))
    elif size < 65536:
        out.append(0xDA)
        put_big_endian(out, size, 2)
    else:
        out.append(0xDB)
        put_big_endian(out, size, 4)
    out.write(text)
