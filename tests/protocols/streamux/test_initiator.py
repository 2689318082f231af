"""Streamux encoding: initiators, headers in every layout, and protocol strings."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter

from polymux.core.frames import FrameHeader
from polymux.core.observer import Observer
from polymux.core.varint import AWAITING_HANDSHAKE, INCOMPLETE, INVALID
from polymux.protocols.registry import BadProtocolString, create
from polymux.protocols.streamux.initiator import HeaderLayout, initiator_violations
from polymux.protocols.streamux.protocol import Streamux
from polymux.protocols.streamux.rules import (
    BAD_BIT_COUNTS,
    BAD_VERSION,
    CANCEL,
    CANCEL_ACK,
    EMPTY_REPLY,
    INITIATOR,
    KEEP_ALIVE,
    REPLY,
    REPLY_LAST,
    REQUEST,
    REQUEST_LAST,
)

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "streamux.md"

# length bits, id bits, T, R, length, id, bytes on the wire
HEADERS = [
    (10, 4, 1, 0, 5, 5, "55 80"),
    (10, 4, 1, 1, 2, 5, "25 c0"),
    (10, 4, 0, 0, 1023, 15, "ff 3f"),
    (10, 4, 0, 0, 0, 5, "05 00"),
    (10, 4, 0, 1, 0, 5, "05 40"),
    (10, 4, 1, 0, 0, 0, "00 80"),
    (10, 4, 1, 1, 0, 5, "05 c0"),
    (1, 13, 1, 0, 1, 8191, "ff bf"),
    (13, 1, 0, 1, 4096, 1, "01 60"),
    (9, 5, 1, 0, 300, 17, "91 a5"),
    (17, 13, 1, 0, 5, 4660, "34 b2 00 80"),
    (17, 13, 0, 1, 0, 8191, "ff 1f 00 40"),
    (15, 15, 1, 0, 1, 1, "01 80 00 80"),
    (29, 1, 1, 0, 536870911, 1, "ff ff ff bf"),
    (24, 6, 0, 0, 65536, 63, "3f 00 40 00"),
    (20, 10, 1, 1, 1000, 1023, "ff a3 0f c0"),
]


def connected(dialer: tuple[int, int], acceptor: tuple[int, int]) -> Streamux:
    """Return a protocol whose initiators have been exchanged."""
    observer = Observer(create("streamux"))
    for side, (length_bits, id_bits) in enumerate((dialer, acceptor)):
        observer.feed(side, bytes([1, length_bits, id_bits, 0]), 0)
    assert isinstance(observer.protocol, Streamux)
    return observer.protocol


def head_of(kind: int, number: int, size: int) -> FrameHeader:
    head = FrameHeader()
    head.kind = kind
    head.stream_id = number
    head.payload_size = size
    return head


def kind_of(termination: int, reply: int, length: int) -> int:
    return termination + 2 * reply + (4 if length == 0 else 0)


@pytest.mark.parametrize(
    ("length_bits", "id_bits", "termination", "reply", "length", "number", "data"), HEADERS
)
def test_a_header_is_written_and_read_as_the_table_says(
    length_bits: int,
    id_bits: int,
    termination: int,
    reply: int,
    length: int,
    number: int,
    data: str,
) -> None:
    p = connected((length_bits, id_bits), (length_bits, id_bits))
    wire = bytes.fromhex(data)
    kind = kind_of(termination, reply, length)
    out = BytesWriter()
    p.encode_frame(out, 0, head_of(kind, number, length), b"")
    assert out.getvalue() == wire
    head = FrameHeader()
    assert p.decode_header(0, wire, 0, len(wire), head) == len(wire)
    assert (head.kind, head.stream_id, head.payload_size) == (kind, number, length)
    assert head.opener == (255 if kind == KEEP_ALIVE else reply)


def test_every_header_on_the_docs_page_is_right() -> None:
    rows = re.findall(r"^\| (\d+)/(\d+) \| (\d) (\d) (\d+) (\d+) \| `([^`]+)` \| (\w+)",
                      PAGE.read_text(), re.M)  # fmt: skip
    assert len(rows) == 15
    for *numbers, data, name in rows:
        length_bits, id_bits, termination, reply, length, number = map(int, numbers)
        p = connected((length_bits, id_bits), (length_bits, id_bits))
        head, wire = FrameHeader(), bytes.fromhex(data)
        assert p.decode_header(0, wire, 0, len(wire), head) == len(wire)
        kind = kind_of(termination, reply, length)
        assert (head.kind, head.stream_id, head.payload_size) == (kind, number, length)
        assert p.kind_name(kind) == name


def test_the_kinds_are_numbered_by_what_the_header_says() -> None:
    kinds = [REQUEST, REQUEST_LAST, REPLY, REPLY_LAST, CANCEL, KEEP_ALIVE, CANCEL_ACK, EMPTY_REPLY]
    assert kinds == list(range(8))
    names = [create("streamux").kind_name(kind) for kind in (*kinds, INITIATOR)]
    assert names == [
        "Request", "Request", "Reply", "Reply", "Cancel", "KeepAlive", "CancelAck", "EmptyReply",
        "Initiator",
    ]  # fmt: skip


@given(
    total=st.sampled_from([14, 30]),
    splits=st.tuples(st.integers(1, 29), st.integers(1, 29)),
    sender=st.integers(0, 1),
    flags=st.integers(0, 3),
    where=st.integers(0, 2**29),
    size=st.integers(0, 2**29),
)
@settings(max_examples=400)
def test_any_header_in_any_split_comes_back_as_it_went(
    total: int, splits: tuple[int, int], sender: int, flags: int, where: int, size: int
) -> None:
    bits = [min(each, total - 1) for each in splits]
    layouts = [(each, total - each) for each in bits]
    p = connected(layouts[0], layouts[1])
    termination, reply = flags & 1, flags >> 1
    opener = sender ^ reply
    length_bits, id_bits = layouts[opener]
    number, length = where % 2**id_bits, size % 2**length_bits
    kind = kind_of(termination, reply, length)
    out = BytesWriter()
    p.encode_frame(out, sender, head_of(kind, number, length), b"")
    wire = out.getvalue()
    assert len(wire) == (total + 2) // 8
    value = int.from_bytes(wire, "little")
    assert value == ((termination << (total + 1)) + (reply << total) + (length << id_bits) + number)
    head = FrameHeader()
    for end in range(len(wire)):
        assert p.decode_header(sender, wire, 0, end, head) == INCOMPLETE
    assert p.decode_header(sender, b"\xff" + wire, 1, 1 + len(wire), head) == 1 + len(wire)
    assert (head.kind, head.stream_id, head.payload_size) == (kind, number, length)
    assert head.key == number * 2 + opener


def test_every_pair_of_bit_counts_is_good_or_bad_as_the_spec_says() -> None:
    for length_bits in range(256):
        for id_bits in range(256):
            good = min(length_bits, id_bits) > 0 and length_bits + id_bits in (14, 30)
            found = initiator_violations(bytes([1, length_bits, id_bits, 7]))
            assert found == (0 if good else BAD_BIT_COUNTS)


@pytest.mark.parametrize("version", [0, 2, 17, 255])
def test_another_version_is_refused_whatever_its_other_bytes_say(version: int) -> None:
    assert initiator_violations(bytes([version, 10, 4, 0])) == BAD_VERSION
    assert initiator_violations(bytes([version, 0, 0, 0])) == BAD_VERSION


@pytest.mark.parametrize("announced", [b"", b"\x01\x0a\x04", b"\x01\x0a\x04\x00\x00"])
def test_an_initiator_has_four_bytes(announced: bytes) -> None:
    assert initiator_violations(announced) == BAD_BIT_COUNTS


@pytest.mark.parametrize("length_bits", range(1, 14))
def test_a_layout_knows_its_limits(length_bits: int) -> None:
    small, large = HeaderLayout(), HeaderLayout()
    small.set_from_initiator(bytes([1, length_bits, 14 - length_bits, 50]))
    large.set_from_initiator(bytes([1, 30 - length_bits, length_bits, 0]))
    assert (small.header_size, small.max_chunk_bytes, small.max_id, small.timeout_tenths) == (
        2, 2**length_bits - 1, 2 ** (14 - length_bits) - 1, 50,
    )  # fmt: skip
    assert (large.header_size, large.max_chunk_bytes, large.max_id, large.timeout_tenths) == (
        4, 2 ** (30 - length_bits) - 1, 2**length_bits - 1, 0,
    )  # fmt: skip


def test_nothing_is_read_before_both_initiators_are_known() -> None:
    observer = Observer(create("streamux"))
    p, head = observer.protocol, FrameHeader()
    wire = bytes.fromhex("010a0464")
    for end in range(4):
        assert p.decode_header(0, wire, 0, end, head) == INCOMPLETE
    assert p.decode_header(0, wire, 0, 4, head) == 4
    assert head.kind == INITIATOR
    observer.feed(0, wire, 0)
    assert p.decode_header(0, b"\x55\x80hello", 0, 7, head) == AWAITING_HANDSHAKE
    observer.feed(1, wire, 0)
    assert p.decode_header(0, b"\x55\x80hello", 0, 7, head) == 2


def test_nothing_is_read_behind_a_bad_initiator() -> None:
    observer = Observer(create("streamux"))
    observer.feed(0, bytes.fromhex("020a0464"), 0)
    observer.feed(1, bytes.fromhex("010a0464"), 0)
    for data in (b"\x55", b"\x55\x80hello"):
        assert observer.protocol.decode_header(0, data, 0, len(data), FrameHeader()) == INVALID


@pytest.mark.parametrize(
    ("text", "announced"),
    [
        ("streamux", "01 10 0e 32"),
        ("streamux:length_bits=10,id_bits=4,timeout=10", "01 0a 04 64"),
        ("streamux:length_bits=17,id_bits=13", "01 11 0d 32"),
        ("streamux:length_bits=1,id_bits=29,timeout=0", "01 01 1d 00"),
        ("streamux:timeout=25.5", "01 10 0e ff"),
        ("streamux:timeout=0.1", "01 10 0e 01"),
    ],
)
def test_a_protocol_string_says_what_we_announce(text: str, announced: str) -> None:
    hello = create(text).handshake_frame(0, b"")
    assert hello is not None
    assert hello.payload == bytes.fromhex(announced)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("streamux:length_bits=10", "give both"),
        ("streamux:length_bits=14,id_bits=0", "id_bits is at least 1"),
        ("streamux:length_bits=255,id_bits=15", "14 or 30"),
        ("streamux:length_bits=x,id_bits=4", "whole number"),
        ("streamux:timeout=26", "0 to 25.5 seconds"),
        ("streamux:timeout=-1", "0 to 25.5 seconds"),
        ("streamux:timeout=nan", "0 to 25.5 seconds"),
        ("streamux:timeout=0.25", "one decimal place"),
        ("streamux:timeout=soon", "number of seconds"),
        ("streamux:window=5", "no option of streamux"),
    ],
)
def test_a_protocol_string_that_cannot_be_announced_is_refused(text: str, problem: str) -> None:
    with pytest.raises(BadProtocolString, match=problem):
        create(text)


@pytest.mark.parametrize(
    ("tenths", "seconds"), [(0, 30.0), (1, 1.0), (29, 1.0), (60, 2.0), (255, 8.5)]
)
def test_a_keep_alive_is_due_after_a_third_of_the_other_sides_patience(
    tenths: int, seconds: float
) -> None:
    observer = Observer(create("streamux"))
    observer.feed(0, bytes([1, 10, 4, 90]), 0)
    observer.feed(1, bytes([1, 10, 4, tenths]), 0)
    p = observer.protocol
    assert isinstance(p, Streamux)
    assert p.keep_alive_interval(0) == pytest.approx(seconds)
    assert p.keep_alive_interval(1) == pytest.approx(3.0)
    assert (p.timeout_seconds(0), p.timeout_seconds(1)) == (9.0, tenths / 10)


def test_a_session_names_its_version_and_splits() -> None:
    p = connected((10, 4), (7, 7))
    assert (p.version(), p.dialect()) == ("1", "10/4, 7/7")
    assert connected((10, 4), (10, 4)).dialect() == "10/4"
    assert (create("streamux").version(), create("streamux").dialect()) == ("", "")
