# mypyc: compiled
"""The part of msgpack that Nerdbank frames use.

Decoders work like those of `polymux.core.varint`: they take `(data, pos, end)`, return `(value,
next)` with INCOMPLETE or INVALID for `next`, never raise and allocate nothing. A general msgpack
library decodes complete objects only; here a frame may be cut anywhere, and a value may claim any
size.
"""

from typing import Final

from librt.strings import BytesWriter, read_f64_be
from mypy_extensions import i64, u8

from polymux.core.varint import I64_MAX, INCOMPLETE, INVALID, put_big_endian, read_big_endian

MAX_SKIPPED_VALUES: Final[i64] = 4096  # in one call of `msgpack_skip`; a frame has five values


def msgpack_int(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """Decode an integer in any form, or a float64 with an integral value (as JavaScript writes)."""
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
    """The float64 at `pos` as an integer; I64_MAX if too large, -1 if negative or not integral."""
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
    """Decode the header of a binary, a string or nil (as empty): (size, where its bytes start)."""
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
    """Decode the header of an array: (elements, where the first starts)."""
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
    """The position after `values` values of any type. Nested values need no stack.

    INVALID for more than MAX_SKIPPED_VALUES values, nested ones included: no frame has so many, and
    a peer could make us search for their end.
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


def msgpack_structure(
    data: bytes, pos: i64, end: i64, values: i64, numbers: i64
) -> list[tuple[int, int]]:
    """The ranges of `values` values, complete or not, that decoding them depends on.

    These are their types and lengths, and the first `numbers` values that have no bytes of
    variable length. The others may have any bytes: a number of one byte, the byte ff.
    """
    found: list[tuple[int, int]] = []
    left = MAX_SKIPPED_VALUES
    while values > 0 and pos < end and left > 0:
        code: i64 = data[pos]
        values -= 1
        left -= 1
        size: i64 = 1
        head: i64 = 1
        number = code < 0x80 or (code >= 0xC0 and (code < 0xC4 or code >= 0xE0))
        if number:
            pass
        elif code < 0x90:
            values += (code & 15) * 2
        elif code < 0xA0:
            values += code & 15
        elif code < 0xC0:
            size = 1 + (code & 31)
        else:
            size, more = value_extent(data, pos, end, code)
            if size < 0:  # incomplete: what there is of its length
                found.append((int(pos), int(end)))
                return found
            values += more
            number = 0xCA <= code <= 0xD3
            head = header_bytes(code)
        if number and numbers > 0:
            numbers -= 1
            head = size
        elif number and size == 1:
            head = 0
        if head > end - pos:
            head = end - pos
        if head > 0:
            found.append((int(pos), int(pos + head)))
        if size > end - pos:
            break
        pos += size
    return found


def header_bytes(code: i64) -> i64:
    """Bytes of the type and length of a value whose type is one of c4 to df."""
    if code in (0xC4, 0xC7, 0xD9):
        return 2
    if code in (0xC5, 0xC8, 0xDA, 0xDC, 0xDE):
        return 3
    if code in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF):
        return 5
    return 1


def value_extent(data: bytes, pos: i64, end: i64, code: i64) -> tuple[i64, i64]:
    """The bytes of a value's header and body (-1: incomplete), and the values nested in it."""
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
    width: i64  # of the length field
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
    """Append an integer in its shortest form. Of the negative ones only -1 to -32 are supported."""
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
    """Append the header of a binary of `size` bytes."""
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
    """Append a string: header and bytes."""
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
