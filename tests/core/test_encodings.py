"""Numbers on the wire at every edge, against encodings that are written down here."""

from __future__ import annotations

import struct

import pytest
from librt.strings import BytesWriter

from polymux.core.msgpack import (
    MAX_SKIPPED_VALUES,
    msgpack_blob,
    msgpack_int,
    msgpack_skip,
    put_msgpack_bin,
    put_msgpack_int,
    put_msgpack_str,
)
from polymux.core.varint import INCOMPLETE, INVALID

HUGE = 2**63 - 1

# value, and every form a writer may choose for it; ours is the first
INTS: list[tuple[int, list[bytes]]] = [
    (0, [b"\x00", b"\xcc\x00", b"\xcd\x00\x00", b"\xd0\x00", b"\xd1\x00\x00"]),
    (127, [b"\x7f", b"\xcc\x7f", b"\xd0\x7f"]),
    (128, [b"\xcc\x80", b"\xcd\x00\x80", b"\xd1\x00\x80"]),
    (255, [b"\xcc\xff"]),
    (256, [b"\xcd\x01\x00"]),
    (32767, [b"\xcd\x7f\xff", b"\xd1\x7f\xff"]),
    (65535, [b"\xcd\xff\xff"]),
    (65536, [b"\xce\x00\x01\x00\x00"]),
    (2**31 - 1, [b"\xce\x7f\xff\xff\xff", b"\xd2\x7f\xff\xff\xff"]),
    (2**32 - 1, [b"\xce\xff\xff\xff\xff"]),
    (2**32, [b"\xcf\x00\x00\x00\x01\x00\x00\x00\x00"]),
    (HUGE, [b"\xcf\x7f" + b"\xff" * 7, b"\xd3\x7f" + b"\xff" * 7]),
    (-1, [b"\xff", b"\xd0\xff", b"\xd1\xff\xff", b"\xd2\xff\xff\xff\xff", b"\xd3" + b"\xff" * 8]),
    (-32, [b"\xe0", b"\xd0\xe0"]),
]
READ_ONLY: list[tuple[int, bytes]] = [
    (-128, b"\xd0\x80"),
    (-32768, b"\xd1\x80\x00"),
    (-(2**31), b"\xd2\x80\x00\x00\x00"),
    (HUGE, b"\xcf\x80" + bytes(7)),  # past 2^63-1: the largest there is
    (HUGE, b"\xcf" + b"\xff" * 8),
    (2**31, b"\xcb" + struct.pack(">d", 2.0**31)),  # what npm writes for a wide window
]


@pytest.mark.parametrize(("value", "forms"), INTS)
def test_integers_are_read_in_every_form_and_written_in_the_shortest(
    value: int, forms: list[bytes]
) -> None:
    out = BytesWriter()
    put_msgpack_int(out, value)
    assert out.getvalue() == forms[0]
    for form in forms:
        for data, pos in ((form, 0), (b"\xc1\xc1" + form + b"\xc1", 2)):
            assert msgpack_int(data, pos, len(data)) == (value, pos + len(form))
        for cut in range(len(form)):
            assert msgpack_int(form, 0, cut)[1] == INCOMPLETE


@pytest.mark.parametrize(("value", "form"), READ_ONLY)
def test_integers_that_only_others_write_are_read(value: int, form: bytes) -> None:
    assert msgpack_int(form, 0, len(form)) == (value, len(form))
    assert msgpack_int(form, 0, len(form) - 1)[1] == INCOMPLETE


@pytest.mark.parametrize("first", [0xC0, 0xC1, 0xC2, 0xA1, 0x91, 0x81, 0xC4, 0xD4, 0xD9, 0xDC])
def test_what_is_no_integer_is_refused_at_its_first_byte(first: int) -> None:
    assert msgpack_int(bytes([first]) + bytes(20), 0, 21)[1] == INVALID


SIZES = [(0, "c400"), (1, "c401"), (255, "c4ff"), (256, "c50100"), (65535, "c5ffff"),
         (65536, "c600010000"), (20480, "c55000")]  # fmt: skip


@pytest.mark.parametrize(("size", "head"), SIZES)
def test_binaries_say_their_size_in_the_shortest_form(size: int, head: str) -> None:
    out = BytesWriter()
    put_msgpack_bin(out, size)
    written = out.getvalue()
    assert written.hex() == head
    assert msgpack_blob(written, 0, len(written)) == (size, len(written))
    for cut in range(len(written)):
        assert msgpack_blob(written, 0, cut)[1] == INCOMPLETE


TEXTS = [(0, "a0"), (31, "bf"), (32, "d920"), (255, "d9ff"), (256, "da0100"), (65535, "daffff"),
         (65536, "db00010000")]  # fmt: skip


@pytest.mark.parametrize(("size", "head"), TEXTS)
def test_strings_say_their_size_in_the_shortest_form(size: int, head: str) -> None:
    out = BytesWriter()
    put_msgpack_str(out, b"x" * size)
    written = out.getvalue()
    assert written[: len(head) // 2].hex() == head
    assert written[len(head) // 2 :] == b"x" * size


@pytest.mark.parametrize(("opening", "inner"), [(b"\x91", 1), (b"\x92\xc0", 2), (b"\x81\xa0", 2)])
def test_values_are_stepped_over_up_to_a_number_that_nobody_needs(
    opening: bytes, inner: int
) -> None:
    nests = (MAX_SKIPPED_VALUES - 1) // inner
    data = opening * nests + b"\xc0"
    assert msgpack_skip(data, 0, len(data), 1) == len(data)
    data = opening * (nests + 1) + b"\xc0"
    assert msgpack_skip(data, 0, len(data), 1) == INVALID


def test_more_values_than_are_stepped_over_are_refused_before_they_come() -> None:
    for count, verdict in ((MAX_SKIPPED_VALUES - 1, INCOMPLETE), (MAX_SKIPPED_VALUES, INVALID)):
        head = b"\xdc" + struct.pack(">H", count)
        assert msgpack_skip(head, 0, len(head), 1) == verdict
