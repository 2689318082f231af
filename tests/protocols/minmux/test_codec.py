"""The three integers of Minmux and the header byte, exact to 2^64-1 in both directions."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.side import Vantage
from polymux.core.varint import INCOMPLETE, INVALID, put_varu64, varu64, varu64_width
from polymux.protocols.minmux.packets import (
    ID_BIAS,
    KINDS,
    U64_MAX,
    add_id_bias,
    has_nonzero_amount,
    key_of,
    put_u64,
    remove_id_bias,
    writer_of,
)
from polymux.protocols.minmux.profile import byte_profile
from polymux.protocols.minmux.protocol import Minmux

WORD = 2**64
# value, VarU64, VarNonZeroU64: the table that the author's own library produced
TABLE = [
    (0, "00", None),
    (1, "01", "00"),
    (247, "f7", "f6"),
    (248, "f8f8", "f7"),
    (249, "f8f9", "f8f8"),
    (255, "f8ff", "f8fe"),
    (256, "f90100", "f8ff"),
    (257, "f90101", "f90100"),
    (65535, "f9ffff", "f9fffe"),
    (65536, "fa010000", "f9ffff"),
    (2**24 - 1, "faffffff", "fafffffe"),
    (2**24, "fb01000000", "faffffff"),
    (2**32 - 1, "fbffffffff", "fbfffffffe"),
    (2**32, "fc0100000000", "fbffffffff"),
    (2**56 - 1, "feffffffffffffff", "fefffffffffffffe"),
    (2**56, "ff0100000000000000", "feffffffffffffff"),
    (2**64 - 1, "ffffffffffffffffff", "fffffffffffffffffe"),
]
IDS = [
    (63, "00"),
    (64, "01"),
    (310, "f7"),
    (311, "f8f8"),
    (318, "f8ff"),
    (319, "f90100"),
    (65598, "f9ffff"),
    (2**64 - 1, "ffffffffffffffffc0"),
]
EDGES = [
    e + d
    for e in (0, 62, 63, 248, 311, 2**8, 2**16, 2**32, 2**56, 2**62, 2**63, 2**63 + 62, 2**64)
    for d in (-2, -1, 0, 1, 2)
    if 0 <= e + d <= U64_MAX
]
numbers = st.one_of(st.sampled_from(EDGES), st.integers(0, U64_MAX))


def pattern(value: int) -> int:
    return value - WORD if value >= 2**63 else value


def implementation(strict: bool = True) -> Minmux:
    return Minmux(Limits(), Vantage.MIDDLE, byte_profile(), strict)


def read(side: int, data: bytes, strict: bool = True) -> tuple[int, FrameHeader]:
    head = FrameHeader()
    return implementation(strict).decode_header(side, data, 0, len(data), head), head


def written(side: int, kind: int, number: int, amount: int) -> bytes:
    p = implementation()
    head = FrameHeader()
    head.clear()
    head.kind, head.key, head.amount = kind, key_of(number), amount
    p.resolve_ids(side, head)
    out = BytesWriter()
    p.encode_frame(out, side, head, b"")
    return out.getvalue()


def test_varu64_and_its_non_zero_form_are_as_the_library_writes_them() -> None:
    for value, plain, from_one in TABLE:
        data = bytes.fromhex(plain)
        assert varu64(data, 0, len(data)) == (pattern(value), len(data))
        out = BytesWriter()
        put_u64(out, value)
        assert out.getvalue() == data
        assert written(0, 2, 0, value) == b"\x40" + data  # StopRead of stream 0
        assert read(0, b"\x40" + data)[1].amount == value
        if from_one is not None:
            assert written(0, 0, 0, value) == b"\x00" + bytes.fromhex(from_one)
            assert read(0, b"\x00" + bytes.fromhex(from_one))[1].amount == value


def test_ids_above_62_are_written_less_63() -> None:
    for number, data in IDS:
        reader = 1 - writer_of(key_of(number))
        assert written(reader, 0, number, 1) == b"\x3f" + bytes.fromhex(data) + b"\x00"
    assert written(0, 0, 62, 1) == b"\x3e\x00"


@given(numbers)
def test_any_value_comes_back_from_its_shortest_form(value: int) -> None:
    out = BytesWriter()
    put_varu64(out, pattern(value))
    data = out.getvalue()
    assert varu64(data, 0, len(data)) == (pattern(value), len(data))
    assert varu64_width(pattern(value)) == len(data)
    for cut in range(len(data)):
        assert varu64(data, 0, cut)[1] == INCOMPLETE


@given(st.integers(ID_BIAS, U64_MAX))
@example(63)
@example(2**63 - 1)
@example(2**63)
@example(2**63 + 62)
@example(2**63 + 63)
@example(U64_MAX)
def test_the_bias_of_ids_is_exact(number: int) -> None:
    assert remove_id_bias(pattern(number)) == pattern(number - 63)
    assert add_id_bias(pattern(number - 63)) == pattern(number)


@given(st.sampled_from([0, 1]), st.integers(0, 3), numbers, numbers)
def test_any_packet_comes_back_as_it_was_written(
    side: int, group: int, number: int, amount: int
) -> None:
    kind = group * 2 + (1 if writer_of(key_of(number)) == side else 0)
    if has_nonzero_amount(kind) and amount == 0:
        amount = U64_MAX
    data = written(side, kind, number, amount)
    start, head = read(side, data)
    assert start == len(data)
    assert (head.kind, head.key, head.amount) == (kind, key_of(number), amount)
    assert head.stream_id == head.key
    assert head.opener == (0 if number % 2 else 1)
    assert head.format_violations == 0
    for cut in range(len(data)):
        assert read(side, data[:cut])[0] == INCOMPLETE


@given(st.integers(0, 2**64 - 1), st.integers(1, 8))
def test_a_longer_form_is_flawed_unless_the_string_says_otherwise(value: int, width: int) -> None:
    shortest = varu64_width(pattern(value))
    if value >= 256**width:
        return
    data = bytes([0x40, 247 + width]) + value.to_bytes(width, "big")
    start, head = read(0, data)
    assert start == len(data)
    assert head.amount == value
    assert (head.format_violations == 0) == (width + 1 == shortest)
    assert read(0, data, strict=False)[1].format_violations == 0


def test_numbers_past_2_to_the_64_are_refused() -> None:
    assert read(0, b"\x00" + b"\xff" * 9)[0] == INVALID
    assert read(0, b"\x40" + b"\xff" * 9)[0] == 10  # a limit of 2^64-1 is fine
    for value in range(2**64 - 70, 2**64):
        data = b"\x3f\xff" + value.to_bytes(8, "big") + b"\x00"
        assert (read(0, data)[0] == INVALID) == (value + 63 > U64_MAX), value


def test_parity_and_role_decide_what_a_packet_is() -> None:
    expected = {
        (0, 0): ["GiveCredit", "StopRead", "Oops", "PromiseRead"],  # the dialer reads even ids
        (0, 1): ["Write", "StopWrite", "ForgoCredit", "PromiseWrite"],
        (1, 0): ["Write", "StopWrite", "ForgoCredit", "PromiseWrite"],
        (1, 1): ["GiveCredit", "StopRead", "Oops", "PromiseRead"],
    }
    for (side, parity), words in expected.items():
        for group, word in enumerate(words):
            for number in (parity, 2 + parity):
                head = read(side, bytes([group * 64 + number, 0]))[1]
                assert KINDS[head.kind].name == word


@given(st.lists(st.tuples(st.sampled_from(EDGES), st.sampled_from(EDGES)), max_size=8))
def test_streams_with_neighbouring_ids_never_meet(grants: list[tuple[int, int]]) -> None:
    observer = Observer(implementation())
    total: dict[int, int] = {}
    for number, amount in grants:
        if amount and total.get(number, 0) + amount <= U64_MAX:
            total[number] = total.get(number, 0) + amount
            reader = 1 - writer_of(key_of(number))
            observer.feed(reader, written(reader, 0, number, amount), 0)
    assert observer.take_violations() == []
    streams = observer.protocol.streams.all()
    assert {int(s.label()[1:]): s.half(s.opener).credit_granted for s in streams} == total


def test_the_key_of_an_id_is_its_64_bits() -> None:
    assert key_of(0) == 0
    assert key_of(2**63 - 1) == 2**63 - 1
    assert key_of(2**63) == -(2**63)
    assert key_of(U64_MAX) == -1
    assert Frame(0, key_of(U64_MAX)).key == -1


@pytest.mark.parametrize("number", [-1, U64_MAX + 1])
def test_no_key_stands_for_what_is_no_id(number: int) -> None:
    with pytest.raises(ValueError, match="0 to 2"):
        key_of(number)
