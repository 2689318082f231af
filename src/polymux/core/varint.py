# mypyc: compiled
"""Variable-length integers as the protocols encode them, and the statuses of all decoders.

Decoders take `(data, pos, end)` and return `(value, next)`: the value, and the position after it.
A negative `next` is a status, INCOMPLETE (more bytes are needed) or INVALID (no further bytes can
make it valid). They never raise and never read outside of data[pos:end].
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

INCOMPLETE: Final[i64] = -1  # more bytes are needed
INVALID: Final[i64] = -2  # no further bytes can make it valid
AWAITING_HANDSHAKE: Final[i64] = -3  # decodable only after the other direction's handshake

I64_MAX: Final[i64] = 0x7FFFFFFFFFFFFFFF  # stands for itself and everything larger
# A plain int: compared with an i64, the other operand would be narrowed to i64 as well.
I64_MAX_PLUS_1: Final = 0x8000000000000000


def clamp_to_i64(amount: int) -> i64:
    """An amount as rows of tables hold it: 2**63-1 stands for everything larger."""
    return I64_MAX if amount >= I64_MAX_PLUS_1 else i64(amount)


# Unsigned base-128 varints (mplex)


def uvarint(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """Decode a varint of at most nine bytes, that is 63 bits; a longer one is INVALID."""
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
    """Append a non-negative integer in its shortest form."""
    while value > 127:
        out.append(u8((value & 127) | 128))
        value >>= 7
    out.append(u8(value))


# VarU64 (Minmux): values below 248 are one byte; else a byte with the width, then 1 to 8 bytes,
# big endian. Values from 2**63 on are handled as the negative number with the same 64 bits.


def varu64(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """Decode a VarU64, in its canonical form or not."""
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
    """The big-endian integer of `width` bytes (1 to 8) at `pos`; negative from 2**63 on."""
    value: i64 = data[pos]
    if width == 8 and value > 127:
        value -= 256
    for i in range(pos + 1, pos + width):
        value = value * 256 + data[i]
    return value


def varu64_width(value: i64) -> i64:
    """Bytes of the canonical (shortest) form of these 64 bits."""
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
    """Append a VarU64 in its canonical form."""
    width = varu64_width(value)
    if width == 1:
        out.append(u8(value))
        return
    out.append(u8(246 + width))
    put_big_endian(out, value, width - 1)


def put_big_endian(out: BytesWriter, value: i64, width: i64) -> None:
    """Append the low `width` bytes (1 to 8) of `value`, big endian."""
    shift: i64 = (width - 1) * 8
    while shift >= 0:
        out.append(u8((value >> shift) & 255))
        shift -= 8
