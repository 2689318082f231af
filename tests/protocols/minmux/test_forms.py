"""Minmux items and packets at the limits of their sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacks.raw_frames import varu64

from polymux.core.frames import FrameHeader
from polymux.core.limits import Limits
from polymux.core.varint import INCOMPLETE, INVALID
from polymux.protocols.minmux.item_codecs import MAX_PLAUSIBLE_SIZE
from polymux.protocols.minmux.protocol import Minmux
from polymux.protocols.minmux.rules import (
    BAD_ITEM,
    ITEM_TOO_LONG,
    VARINT_NONCANONICAL,
    VARINT_OVERFLOW,
)
from polymux.protocols.registry import create

PROFILE = Path(__file__).parents[2] / "attacks" / "profile.toml"
LONGEST = 1000
SIZED = 5  # a stream of items with a length prefix


def minmux(strict: bool = True) -> Minmux:
    text = f"minmux:profile={PROFILE}" + ("" if strict else ",canonical=no")
    protocol = create(text, Limits(max_frame_bytes=LONGEST))
    assert isinstance(protocol, Minmux)
    return protocol


@pytest.mark.parametrize(
    ("head", "size", "flaws"),
    [(b"\x00", 1, 0), (varu64(1), 2, 0), (varu64(LONGEST), 3 + LONGEST, 0),
     (varu64(LONGEST + 1), 4 + LONGEST, ITEM_TOO_LONG),
     (varu64(MAX_PLAUSIBLE_SIZE), 9 + MAX_PLAUSIBLE_SIZE, ITEM_TOO_LONG),
     (varu64(MAX_PLAUSIBLE_SIZE + 1), INVALID, BAD_ITEM), (varu64(2**64 - 1), INVALID, BAD_ITEM),
     (b"\xf8\x05", 7, VARINT_NONCANONICAL), (b"\xf9\x00\xf8", 251, VARINT_NONCANONICAL),
     (b"\xf8\xf8", 250, 0)],
)  # fmt: skip
def test_an_item_says_its_length_within_limits(head: bytes, size: int, flaws: int) -> None:
    protocol = minmux()
    data = b"??" + head + b"x" * 20
    assert protocol.measure_item(None, data, 2, len(data)) == (size, flaws)
    for cut in range(len(head)):
        assert protocol.measure_item(None, data, 2, 2 + cut) == (INCOMPLETE, 0)


def parts(data: bytes, count: int) -> tuple[int, int, int]:
    """Return the size of the next part, the items still to come, and the violations."""
    head = FrameHeader()
    head.clear()
    head.key = SIZED
    head.parts_left = count
    size = minmux().decode_part_size(0, b"?" + data, 1, 1 + len(data), head)
    return size, head.parts_left, head.format_violations


def test_whole_items_are_taken_together_and_others_alone() -> None:
    two = b"\x02ab\x01c"
    assert parts(two, 2) == (5, 0, 0)
    assert parts(two, 5) == (5, 3, 0)
    assert parts(two, 1) == (3, 1 - 1, 0)
    assert parts(two + b"\x09d", 3) == (5, 1, 0)  # the third is incomplete: a part of its own
    assert parts(b"\x09d", 3) == (10, 2, 0)
    assert parts(two + b"\xf8", 3) == (5, 1, 0)
    assert parts(b"\xf8", 3) == (INCOMPLETE, 3, 0)
    assert parts(b"", 3) == (INCOMPLETE, 3, 0)


def test_an_item_with_a_flaw_stands_alone() -> None:
    flawed = b"\xf8\x01z"
    assert parts(flawed, 2) == (3, 1, VARINT_NONCANONICAL)
    assert parts(b"\x01a" + flawed, 2) == (2, 1, 0)
    assert parts(varu64(LONGEST + 1), 2) == (4 + LONGEST, 1, ITEM_TOO_LONG)
    assert parts(b"\xff" * 9, 2) == (INVALID, 2, BAD_ITEM)
    assert parts(b"\x01a" + b"\xff" * 9, 2) == (2, 1, 0)


def read(data: bytes, strict: bool = True) -> tuple[int, FrameHeader]:
    head = FrameHeader()
    head.clear()
    protocol = create("minmux" if strict else "minmux:canonical=no")
    return protocol.decode_header(0, b"?" + data, 1, 1 + len(data), head), head


@pytest.mark.parametrize("number", [0, 1, 62, 63, 64, 310, 311, 65535, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("amount", [1, 248, 249, 65536, 2**64 - 1])
def test_a_packet_says_its_stream_and_amount(number: int, amount: int) -> None:
    data = bytes([1 << 7 | 1 << 6 | min(number, 63)])
    if number > 62:
        data += varu64(number - 63)
    data += varu64(amount - 1)
    start, head = read(data)
    assert start == 1 + len(data)
    assert head.stream_id % 2**64 == number
    assert head.amount == amount
    assert head.format_violations == 0
    for cut in range(len(data)):
        assert read(data[:cut])[0] == INCOMPLETE


def test_ids_past_the_last_cannot_be_written() -> None:
    for value in (2**64 - 63, 2**64 - 1):
        start, head = read(b"\xff" + varu64(value) + b"\x00")
        assert (start, head.format_violations) == (INVALID, VARINT_OVERFLOW)
    assert read(b"\xff" + varu64(2**64 - 64) + b"\x00")[0] == 12


@pytest.mark.parametrize("data", [b"\xc1\xf8\x05", b"\xff\xf8\x05\x00", b"\xc1\xf9\x00\xff"])
def test_numbers_that_are_too_long_are_a_flaw_where_that_is_wanted(data: bytes) -> None:
    start, head = read(data)
    assert (start, head.format_violations) == (1 + len(data), VARINT_NONCANONICAL)
    start, head = read(data, strict=False)
    assert (start, head.format_violations) == (1 + len(data), 0)
