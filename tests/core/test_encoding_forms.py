"""Every form a number or value can have on the wire, against an encoder that is written here."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from polymux.core.msgpack import msgpack_array, msgpack_blob, msgpack_int, msgpack_skip
from polymux.core.varint import (
    INCOMPLETE,
    INVALID,
    put_big_endian,
    put_uvarint,
    put_varu64,
    read_big_endian,
    uvarint,
    varu64,
    varu64_width,
)

HUGE = 2**63 - 1
BEFORE, AFTER = b"\xc1\x80\xff", b"\xff\x80\xc1"  # nothing here may be looked at
EDGES = sorted({(1 << bits) + near for bits in range(1, 64) for near in (-1, 0, 1)} | {0})


def signed(value: int) -> int:
    """64 bits as the codec hands them on."""
    return value - 2**64 if value >= 2**63 else value


def base128(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def eight_bit(value: int) -> bytes:
    if value < 248:
        return bytes([value])
    data = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([247 + len(data)]) + data


# --- numbers of mplex and Minmux


def test_a_base_128_number_is_written_read_and_found_short_at_every_cut() -> None:
    for value in (edge for edge in EDGES if edge < 2**63):
        out = BytesWriter()
        put_uvarint(out, value)
        form = base128(value)
        assert out.getvalue() == form
        data = BEFORE + form + AFTER
        assert uvarint(data, 3, len(data)) == (value, 3 + len(form))
        assert uvarint(data, 3, 3 + len(form)) == (value, 3 + len(form))
        for cut in range(len(form)):
            assert uvarint(data, 3, 3 + cut) == (0, INCOMPLETE)


@pytest.mark.parametrize("last", [0, 1, 127])
def test_nine_bytes_are_the_longest_base_128_number(last: int) -> None:
    nine = b"\x80" * 8 + bytes([last])
    assert uvarint(nine, 0, 9) == (last << 56, 9)
    assert uvarint(b"\x80" * 9, 0, 9) == (0, INVALID)
    assert uvarint(b"\x80" * 9 + b"\x01", 0, 10) == (0, INVALID)
    assert uvarint(b"\x80" * 8, 0, 8) == (0, INCOMPLETE)


def test_a_varu64_is_written_read_and_found_short_at_every_cut() -> None:
    for value in [*EDGES, 247, 248, 249, 2**64 - 1]:
        out = BytesWriter()
        put_varu64(out, signed(value))
        form = eight_bit(value)
        assert out.getvalue() == form
        assert varu64_width(signed(value)) == len(form)
        data = BEFORE + form + AFTER
        assert varu64(data, 3, len(data)) == (signed(value), 3 + len(form))
        assert varu64(data, 3, 3 + len(form)) == (signed(value), 3 + len(form))
        for cut in range(len(form)):
            assert varu64(data, 3, 3 + cut) == (0, INCOMPLETE)


@pytest.mark.parametrize("width", range(1, 9))
def test_big_endian_numbers_of_any_width_come_back(width: int) -> None:
    for value in {0, 1, 127, 128, 255, 256 ** (width - 1), 256**width - 1, 256**width // 2}:
        if value < 256**width:
            out = BytesWriter()
            put_big_endian(out, signed(value), width)
            assert out.getvalue() == value.to_bytes(width, "big")
            assert read_big_endian(BEFORE + out.getvalue() + AFTER, 3, width) == signed(value)


# --- msgpack

Sample = tuple[int, bytes]  # the code, and a whole value that begins with it


def lengths(width: int, size: int) -> bytes:
    return size.to_bytes(width, "big")


def samples() -> list[Sample]:
    """A value for every first byte there is but 0xc1, which begins none."""
    found: list[Sample] = [(code, bytes([code])) for code in (*range(128), *range(0xE0, 256))]
    found += [(0x80 + n, bytes([0x80 + n]) + b"\x01\xc3" * n) for n in range(16)]
    found += [(0x90 + n, bytes([0x90 + n]) + b"\x07" * n) for n in range(16)]
    found += [(0xA0 + n, bytes([0xA0 + n]) + b"a" * n) for n in range(32)]
    found += [(code, bytes([code])) for code in (0xC0, 0xC2, 0xC3)]
    for code, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xD9, 1), (0xDA, 2), (0xDB, 4)):
        found += [(code, bytes([code]) + lengths(width, n) + b"b" * n) for n in (0, 1, 37)]
    for code, width in ((0xC7, 1), (0xC8, 2), (0xC9, 4)):
        found += [(code, bytes([code]) + lengths(width, n) + b"t" + b"e" * n) for n in (0, 1, 21)]
    for code, size in ((0xCA, 4), (0xCB, 8), (0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        found.append((code, bytes([code]) + bytes(size)))
    for code, size in ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)):
        found.append((code, bytes([code]) + bytes(size)))
    for code, size in ((0xD4, 1), (0xD5, 2), (0xD6, 4), (0xD7, 8), (0xD8, 16)):
        found.append((code, bytes([code]) + b"t" + b"x" * size))
    for code, width in ((0xDC, 2), (0xDD, 4)):
        found += [(code, bytes([code]) + lengths(width, n) + b"\x05" * n) for n in (0, 1, 20)]
    for code, width in ((0xDE, 2), (0xDF, 4)):
        found += [(code, bytes([code]) + lengths(width, n) + b"\x05\xa1k" * n) for n in (0, 1, 20)]
    return found


def test_there_is_a_sample_for_every_first_byte() -> None:
    assert {code for code, _ in samples()} == set(range(256)) - {0xC1}


def test_a_value_of_any_type_is_stepped_over_exactly() -> None:
    for _, value in samples():
        step_over(value)


def step_over(value: bytes) -> None:
    data = BEFORE + value + AFTER
    assert msgpack_skip(data, 3, len(data), 1) == 3 + len(value)
    assert msgpack_skip(data, 3, 3 + len(value), 1) == 3 + len(value)
    for cut in range(len(value)):
        assert msgpack_skip(data, 3, 3 + cut, 1) == INCOMPLETE
    assert msgpack_skip(value * 3, 0, 3 * len(value), 3) == 3 * len(value)
    assert msgpack_skip(value * 3, 0, 3 * len(value), 4) == INCOMPLETE
    assert msgpack_skip(b"\x91" + value, 0, 1 + len(value), 1) == 1 + len(value)
    assert msgpack_skip(value + b"\xc1", 0, 1 + len(value), 2) == INVALID
    assert msgpack_skip(value, 0, len(value), 0) == 0


def test_only_what_has_the_wanted_type_is_taken_for_it() -> None:
    for code, value in samples():
        take_apart(code, value)


def take_apart(code: int, value: bytes) -> None:
    whole = BEFORE + value + AFTER
    arrays = (*range(0x90, 0xA0), 0xDC, 0xDD)
    blobs = (*range(0xA0, 0xC0), 0xC0, 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB)
    ints = (*range(128), *range(0xE0, 256), 0xCB, 0xCC, 0xCD, 0xCE, 0xCF, 0xD0, 0xD1, 0xD2, 0xD3)
    for codes, read in ((arrays, msgpack_array), (blobs, msgpack_blob), (ints, msgpack_int)):
        found, at = read(whole, 3, len(whole))
        assert (at != INVALID) == (code in codes)
        if at == INVALID:
            assert found == 0
            continue
        head = at - 3
        for cut in range(head):
            assert read(whole, 3, 3 + cut) == (0, INCOMPLETE)
        if read is msgpack_array:
            assert msgpack_skip(whole, at, len(whole), found) == 3 + len(value)
        elif read is msgpack_blob:
            assert at + found == 3 + len(value)
        else:
            assert at == 3 + len(value)


@pytest.mark.parametrize(
    ("number", "value"),
    [(0.0, 0), (1.0, 1), (2.0**53, 2**53), (8.9e18, int(8.9e18)), (9.0e18, HUGE), (1e300, HUGE),
     (math.inf, HUGE), (-1.0, -1), (-0.5, -1), (0.5, -1), (1.5, -1), (math.nan, -1),
     (-math.inf, -1), (-0.0, 0)],
)  # fmt: skip
def test_a_float_is_taken_for_the_whole_number_it_is(number: float, value: int) -> None:
    form = b"\xcb" + struct.pack(">d", number)
    assert msgpack_int(form, 0, 9) == (value, 9)


@given(st.integers(0, 2**63 - 1), st.binary(max_size=6))
def test_any_number_is_read_from_anywhere(value: int, before: bytes) -> None:
    for put, read in ((put_uvarint, uvarint), (put_varu64, varu64)):
        out = BytesWriter()
        put(out, value)
        data = before + out.getvalue()
        assert read(data, len(before), len(data)) == (value, len(data))
