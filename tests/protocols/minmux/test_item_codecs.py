"""Item codecs, and reassembly of items from pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.varint import INCOMPLETE, INVALID
from polymux.protocols.minmux.item_codecs import (
    CODEC_SIZED,
    PREFIXED,
    Codec,
    Fixed,
    ItemDecoder,
    Prefixed,
    Sized,
)


def line(data: bytes, pos: int, end: int) -> int:
    """Items that end with a newline; an x cannot begin one."""
    if data[pos] == ord("x"):
        raise ValueError
    found = data.find(b"\n", pos, end)
    return 0 if found < 0 else found - pos + 1


CODECS: list[tuple[Codec, list[bytes]]] = [
    (Fixed(1), [b"a", b"b", b"\x00"]),
    (Fixed(4), [b"abcd", b"efgh"]),
    (Prefixed(), [b"", b"a", bytes(247), bytes(248), bytes(70_00)]),
    (Sized(line), [b"\n", b"hello\n", b"you\n"]),
]


@pytest.mark.parametrize(("codec", "items"), CODECS)
@given(cuts=st.lists(st.integers(1, 900), max_size=60))
def test_items_come_back_whatever_pieces_they_come_in(
    codec: Codec, items: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(codec.encode(item) for item in items)
    assert codec.count(data) == len(items)
    reader = ItemDecoder(codec)
    found: list[bytes] = []
    for size in cuts:
        found += reader.feed(memoryview(data)[:size])
        data = data[size:]
    found += reader.feed(data)
    assert found == items


def test_an_item_that_does_not_fit_its_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="4 bytes, not 3"):
        Fixed(4).encode(b"abc")
    with pytest.raises(ValueError, match="exactly one item"):
        Sized(line).encode(b"a\nb\n")
    with pytest.raises(ValueError, match="at least 1 byte"):
        Fixed(0)
    for codec, data in ((Fixed(4), b"abcde"), (Prefixed(), b"\x02a"), (Sized(line), b"a")):
        with pytest.raises(ValueError, match=r"inside item|no whole number"):
            codec.count(data)


def test_measures_say_short_and_bad() -> None:
    assert Prefixed().measure(b"\x02", 0, 1) == 3  # the length is enough
    assert Prefixed().measure(b"\xf9\x01", 0, 2) == INCOMPLETE
    assert Prefixed().measure(b"\xff" * 9, 0, 9) == INVALID
    assert Sized(line).measure(b"ab", 0, 2) == INCOMPLETE
    assert Sized(line).measure(b"x\n", 0, 2) == INVALID
    assert Sized(lambda data, pos, end: -5).measure(b"x", 0, 1) == INVALID
    assert Sized(lambda data, pos, end: 2**70).measure(b"x", 0, 1) == INVALID
    assert Sized(lambda data, pos, end: data[99]).measure(b"x", 0, 1) == INVALID
    assert (Prefixed().item_size, Sized(line).item_size, Fixed(7).item_size) == (
        PREFIXED,
        CODEC_SIZED,
        7,
    )


@pytest.mark.parametrize("codec", [Prefixed(), Sized(line)])
def test_an_item_over_its_limit_is_an_error_before_it_is_collected(codec: Codec) -> None:
    reader = ItemDecoder(codec, max_item_bytes=10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        reader.feed(b"\x20abcdefghijklmnop")


def test_bytes_that_are_no_item_are_an_error() -> None:
    with pytest.raises(ValueError, match="no item"):
        ItemDecoder(Sized(line)).feed(b"a\nx")


def test_waiting_for_a_long_item_joins_nothing() -> None:
    reader = ItemDecoder(Prefixed())
    reader.feed(b"\xf9\xff\x00")
    for _ in range(0xFF00 - 1):
        assert reader.feed(b"y") == []
    assert len(reader.pieces) > 60_000  # one joining at the end, none before
    assert reader.feed(b"z") == [b"y" * (0xFF00 - 1) + b"z"]
