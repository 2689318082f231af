"""Nerdbank frames in every valid form, decoded from the middle of other bytes."""

from __future__ import annotations

import pytest
from tests.attacks.raw_frames import Nerdbank as Wire
from tests.attacks.raw_frames import msgpack_blob, msgpack_text, msgpack_uint

from polymux.core.endpoint import Endpoint
from polymux.core.frames import FrameHeader
from polymux.core.observer import Observer
from polymux.core.rules import Origin
from polymux.core.varint import INCOMPLETE, INVALID
from polymux.protocols.nerdbank.codec import (
    ACCEPTED,
    BAD_ACCEPTANCE,
    BAD_FRAME,
    BAD_HANDSHAKE,
    BAD_MAGIC,
    BAD_OFFER,
    BAD_WINDOW,
    CONTENT_FRAME,
    MALFORMED,
    MAX_CONTROL_CODE,
    OFFER,
    OFFER_WITHOUT_WINDOW,
    PROCESSED,
    TERMINATED,
    VERSION_MISMATCH,
    WINDOW_ADJUST,
    WRONG_SOURCE,
    decode_content_header_v3,
    decode_handshake_v1,
    decode_handshake_v2,
    decode_header_v1,
    decode_header_v2_v3,
    decode_payload_v2_v3,
)
from polymux.protocols.nerdbank.rules import FRAME_TOO_LONG
from polymux.protocols.registry import create

RANDOM = bytes(range(16))
LIMIT = 300  # max_frame_bytes
PEER = 1 << 20  # max_peer_window


def whole(data: bytes, fields: int, sender: int = 0) -> tuple[int, FrameHeader]:
    """Decode a frame with other bytes before and after it; cut anywhere, it is incomplete."""
    head = FrameHeader()
    start = decode_header_v2_v3(
        b"\x91\x00" + data + b"\xc1", 2, 2 + len(data), fields, LIMIT, sender, head
    )
    for cut in range(min(len(data), 12)):
        if cut < start - 2:
            assert (
                decode_header_v2_v3(data, 0, cut, fields, LIMIT, sender, FrameHeader())
                == INCOMPLETE
            )
    return start - 2 if start >= 0 else start, head


@pytest.mark.parametrize("number", [0, 1, 127, 128, 255, 256, 65535, 65536, 2**31 - 1])
@pytest.mark.parametrize("code", range(9))
def test_a_frame_of_version_2_says_code_and_id(code: int, number: int) -> None:
    start, head = whole(b"\x92" + bytes([code]) + msgpack_uint(number), 2)
    assert (start, head.kind, head.stream_id, head.payload_size, head.trailer_size) == (
        2 + len(msgpack_uint(number)), code, number, 0, 0)  # fmt: skip


@pytest.mark.parametrize("payload", [b"", b"a", b"b" * 255, b"c" * 256])
@pytest.mark.parametrize(("source", "opener"), [(b"\x01", 1), (b"\xff", 0), (b"\xd0\xff", 0)])
def test_a_frame_of_version_3_tells_which_side_offered(
    source: bytes, opener: int, payload: bytes
) -> None:
    data = b"\x94\x02\x05" + source + msgpack_blob(payload)
    start, head = whole(data + payload[:0], 3, sender=1)
    assert (start, head.opener, head.payload_size) == (
        len(data) - len(payload),
        opener,
        len(payload),
    )
    assert head.format_violations == 0


def test_more_elements_than_are_known_are_stepped_over() -> None:
    data = b"\x96\x02\x05\x01\xc4\x02ab" + b"\xa3xyz" + b"\x92\x01\x02"
    start, head = whole(data, 3)
    assert (start, head.payload_size, head.trailer_size) == (6, 2, 7)
    assert decode_header_v2_v3(data, 0, len(data) - 1, 3, LIMIT, 0, FrameHeader()) == INCOMPLETE
    assert (
        decode_header_v2_v3(data, 0, len(data) - 1, 3, len(data) - 1, 0, FrameHeader())
        == INCOMPLETE
    )
    short = FrameHeader()
    assert decode_header_v2_v3(data, 0, len(data) - 1, 3, len(data) - 2, 0, short) == INVALID
    assert short.format_violations == BAD_FRAME


WRONG = [
    (b"\x91\xa1x", BAD_FRAME),
    (b"\x92\x02\xa1x", BAD_FRAME),
    (b"\x92\xc3\x01", BAD_FRAME),
    (b"\x92\xff\x01", BAD_FRAME),
    (b"\x93\x02\x01\x05", BAD_FRAME),
    (b"\x93\x02\xff\x01", BAD_FRAME),
    (b"\xa3abc", BAD_FRAME),
    (b"\x93\x02" + msgpack_uint(2**64 - 1) + b"\x01", BAD_FRAME),
]


@pytest.mark.parametrize(("data", "flaw"), WRONG)
def test_what_is_no_frame_is_stepped_over_as_a_value(data: bytes, flaw: int) -> None:
    head = FrameHeader()
    fields = 2
    assert decode_header_v2_v3(data, 0, len(data), fields, LIMIT, 0, head) == 1
    assert (head.kind, head.format_violations, head.payload_size) == (
        MALFORMED,
        flaw,
        len(data) - 1,
    )


@pytest.mark.parametrize("source", [2, 5, 127])
def test_an_undefined_source_is_reported(source: int) -> None:
    head = FrameHeader()
    assert decode_header_v2_v3(b"\x93\x02\x05" + bytes([source]), 0, 4, 3, LIMIT, 0, head) == 1
    assert (head.kind, head.format_violations) == (MALFORMED, WRONG_SOURCE)
    seeded = FrameHeader()
    assert decode_header_v2_v3(b"\x93\x02\x05\x00", 0, 4, 3, LIMIT, 0, seeded) == 4
    assert seeded.opener not in (0, 1)


def test_the_last_code_is_the_last() -> None:
    for code in (MAX_CONTROL_CODE, MAX_CONTROL_CODE + 1):
        head = FrameHeader()
        found = decode_header_v2_v3(b"\x92" + msgpack_uint(code) + b"\x01", 0, 9, 2, LIMIT, 0, head)
        assert (head.kind == MALFORMED) == (code > MAX_CONTROL_CODE), (found, code)


def test_a_value_without_an_end_is_waited_for_up_to_the_limit() -> None:
    data = b"\xdc\x00\x50" + b"\x01" * 40  # 80 values are announced
    assert (
        decode_header_v2_v3(data[:3] + b"\xa1" * 10, 0, 13, 2, LIMIT, 0, FrameHeader())
        == INCOMPLETE
    )
    head = FrameHeader()
    endless = b"\x91" * 400
    assert decode_header_v2_v3(endless, 0, 300, 2, LIMIT, 0, FrameHeader()) == INCOMPLETE
    assert decode_header_v2_v3(endless, 0, 301, 2, LIMIT, 0, head) == INVALID
    assert head.format_violations == BAD_FRAME
    for fields in (2, 3):  # the fields before the payload do not count
        assert decode_header_v2_v3(endless, 50, 350, fields, LIMIT, 0, FrameHeader()) == INCOMPLETE
        assert decode_header_v2_v3(endless, 50, 351, fields, LIMIT, 0, FrameHeader()) == INVALID
    more = bytes(50) + b"\x94\x02\x05\xc4\x02ab" + endless
    assert decode_header_v2_v3(more, 50, 350, 2, LIMIT, 0, FrameHeader()) == INCOMPLETE
    assert decode_header_v2_v3(more, 50, 351, 2, LIMIT, 0, FrameHeader()) == INVALID


def test_a_handshake_without_an_end_is_waited_for_up_to_the_limit() -> None:
    data = bytes(50) + b"\x93\x92\x02\x00\xc4\x10" + RANDOM + b"\x91" * 400
    for end in (60, 72, 73, 349, 350):
        assert decode_handshake_v2(data, 50, end, LIMIT, FrameHeader()) == INCOMPLETE
    head = FrameHeader()
    assert decode_handshake_v2(data, 50, 351, LIMIT, head) == INVALID
    assert head.format_violations == BAD_HANDSHAKE


# Fast path for content


@pytest.mark.parametrize("size", [3, 255, 256, 20480])
@pytest.mark.parametrize("number", [0, 1, 127, 128, 200, 255, 256, 65535])
@pytest.mark.parametrize("source", [1, -1])
def test_the_short_way_reads_what_the_long_way_reads(source: int, number: int, size: int) -> None:
    data = Wire(3).frame(2, number, bytes(size), source)
    short, long = FrameHeader(), FrameHeader()
    at = decode_content_header_v3(b"\xc1" + data, 1, 1 + len(data), 0, short)
    assert at == decode_header_v2_v3(b"\xc1" + data, 1, 1 + len(data), 3, LIMIT, 0, long)
    assert (short.kind, short.stream_id, short.payload_size, short.opener) == (
        2, number, size, 0 if source == 1 else 1)  # fmt: skip
    assert (long.kind, long.stream_id, long.payload_size, long.opener) == (
        2,
        number,
        size,
        short.opener,
    )
    assert short.key == number * 4 + short.opener
    assert short.credit_cost == size


@pytest.mark.parametrize(
    "data",
    [b"\x93\x02\x01\x01\xc4\x01abcd", b"\x94\x03\x01\x01\xc4\x01abcd", b"\x94\x02\xce\0\0\0\1\1abc",
     b"\x94\x02\x01\x00\xc4\x01abcd", b"\x94\x02\x01\x01\xa1abcde", b"\x94\x02\x01\x02\xc4\x01abc",
     b"\x94\x02\x01\x01\xc5\x50\x01abc", b"\x94\x02\x01\x01\xc4\x01a"],
)  # fmt: skip
def test_the_fast_path_leaves_other_frames_to_the_slow_path(data: bytes) -> None:
    assert decode_content_header_v3(data, 0, len(data), 0, FrameHeader()) == 0


# Handshakes


def test_the_first_handshake_is_its_magic_and_sixteen_bytes() -> None:
    data = bytes.fromhex("2fdf1d50") + RANDOM
    head = FrameHeader()
    assert decode_handshake_v1(b"?" + data, 1, 21, head) == 5
    assert head.payload_size == 16
    for position in range(4):
        assert decode_handshake_v1(data, 0, position, FrameHeader()) == INCOMPLETE
        bad = FrameHeader()
        wrong = bytearray(data)
        wrong[position] ^= 1
        assert decode_handshake_v1(bytes(wrong), 0, 20, bad) == INVALID
        assert bad.format_violations == BAD_MAGIC


def test_the_second_handshake_in_every_shape() -> None:
    usual = b"\x92\x92\x02\x00\xc4\x10" + RANDOM
    longer = b"\x93\x93\x02\x00\x07\xc4\x10" + RANDOM + b"\xa2hi"
    for data, start, tail in ((usual, 6, 0), (longer, 7, 3)):
        head = FrameHeader()
        assert decode_handshake_v2(b"??" + data, 2, 2 + len(data), LIMIT, head) == 2 + start
        assert (head.payload_size, head.trailer_size) == (16, tail)
        for cut in range(start):
            assert decode_handshake_v2(data, 0, cut, LIMIT, FrameHeader()) == INCOMPLETE
    for cut in range(6, len(usual)):  # its end is known before it has come
        assert decode_handshake_v2(usual, 0, cut, LIMIT, FrameHeader()) == 6
    assert decode_handshake_v2(longer, 0, len(longer) - 1, LIMIT, FrameHeader()) == INCOMPLETE
    assert decode_handshake_v2(longer, 0, 20, LIMIT, FrameHeader()) == INCOMPLETE


@pytest.mark.parametrize(
    ("data", "flaw"),
    [(b"\x92\x92\x01\x00\xc4\x10" + RANDOM, VERSION_MISMATCH),
     (b"\x92\x92\x03\x00\xc4\x10" + RANDOM, VERSION_MISMATCH),
     (b"\x91\x92\x02\x00\xc4\x10" + RANDOM, BAD_HANDSHAKE),
     (b"\x92\x91\x02\xc4\x10" + RANDOM, BAD_HANDSHAKE),
     (b"\x92\x92\x02\x00\xc4\x0f" + RANDOM, BAD_HANDSHAKE),
     (b"\x92\x92\x02\x00\xc4\x11" + RANDOM + b"x", BAD_HANDSHAKE),
     (b"\x92\x92\x02\x00\x07" + RANDOM, BAD_HANDSHAKE),
     (b"\x92\x02" + RANDOM, BAD_HANDSHAKE),
     (b"\x92\x92\xa1x\x00\xc4\x10" + RANDOM, BAD_HANDSHAKE)],
)  # fmt: skip
def test_a_second_handshake_that_is_none_is_named(data: bytes, flaw: int) -> None:
    head = FrameHeader()
    assert decode_handshake_v2(data, 0, len(data), LIMIT, head) == INVALID
    assert head.format_violations == flaw


def test_frames_of_version_1_have_seven_bytes_before_them() -> None:
    data = Wire(1).frame(2, 5, b"abc")
    head = FrameHeader()
    assert decode_header_v1(b"?" + data, 1, 1 + len(data), head) == 8
    assert (head.kind, head.stream_id, head.payload_size, head.format_violations) == (2, 5, 3, 0)
    assert decode_header_v1(data, 0, 6, FrameHeader()) == INCOMPLETE
    for number, code, flaw in (
        (0, 2, BAD_FRAME),
        (2**31 - 1, 2, 0),
        (2**31, 2, BAD_FRAME),
        (1, MAX_CONTROL_CODE, 0),
        (1, MAX_CONTROL_CODE + 1, BAD_FRAME),
    ):
        head = FrameHeader()
        decode_header_v1(Wire(1).frame(code, number), 0, 7, head)
        assert head.format_violations == flaw, (number, code)


# Control payloads

SAID = [
    (OFFER, b"\x92" + msgpack_text(b"abc") + b"\x07", 7, 0, b"abc"),
    (OFFER, b"\x91" + msgpack_text(b"abc"), -1, OFFER_WITHOUT_WINDOW, b"abc"),
    (OFFER, b"\x92\xa0" + msgpack_uint(PEER), PEER, 0, b""),
    (OFFER, b"\x92\xa0" + msgpack_uint(PEER + 1), PEER + 1, BAD_WINDOW, b""),
    (OFFER, b"\x92\xa0\x00", -1, BAD_WINDOW, b""),
    (OFFER, b"\x92\xa0\xff", -1, BAD_WINDOW, b""),
    (OFFER, b"\x92\xa1a\xa1b", -1, BAD_OFFER, b"a"),
    (OFFER, b"\x92\xa4abc", -1, BAD_OFFER, b""),
    (OFFER, b"\x90", -1, BAD_OFFER, b""),
    (OFFER, b"", -1, BAD_OFFER, b""),
    (OFFER, b"\x91\x05", -1, BAD_OFFER, b""),
    (ACCEPTED, b"\x91\x01", 1, 0, b""),
    (ACCEPTED, b"\x90", -1, OFFER_WITHOUT_WINDOW, b""),
    (ACCEPTED, b"\x91" + msgpack_uint(PEER + 1), PEER + 1, BAD_WINDOW, b""),
    (ACCEPTED, b"\x91\x00", -1, BAD_WINDOW, b""),
    (ACCEPTED, b"\x91\xa1x", -1, BAD_ACCEPTANCE, b""),
    (ACCEPTED, b"", -1, BAD_ACCEPTANCE, b""),
    (ACCEPTED, b"\x05", -1, BAD_ACCEPTANCE, b""),
    (PROCESSED, b"\x91\x00", 0, 0, b""),
    (PROCESSED, b"\x91" + msgpack_uint(2**32), 2**32, 0, b""),
    (PROCESSED, b"\x91\xff", -1, BAD_FRAME, b""),
    (PROCESSED, b"\x90", -1, BAD_FRAME, b""),
    (PROCESSED, b"\x90\x05", -1, BAD_FRAME, b""),
    (PROCESSED, b"", -1, BAD_FRAME, b""),
    (PROCESSED, b"\x91\xa1x", -1, BAD_FRAME, b""),
    (WINDOW_ADJUST, b"\x91\x01", 1, 0, b""),
    (WINDOW_ADJUST, b"\x91" + msgpack_uint(PEER), PEER, 0, b""),
    (WINDOW_ADJUST, b"\x91" + msgpack_uint(PEER + 1), PEER + 1, BAD_WINDOW, b""),
    (WINDOW_ADJUST, b"\x91\x00", -1, BAD_WINDOW, b""),
    (TERMINATED, b"", -1, 0, b""),
    (TERMINATED, b"\x90", -1, 0, b""),
    (TERMINATED, b"\x90\xa1x", -1, 0, b""),
    (TERMINATED, b"\x91\xa3why", -1, 0, b"why"),
    (TERMINATED, b"\x91\xa4why", -1, BAD_FRAME, b""),
    (TERMINATED, b"\x91\x05", -1, BAD_FRAME, b""),
    (TERMINATED, b"\x05", -1, BAD_FRAME, b""),
]


@pytest.mark.parametrize(("kind", "payload", "amount", "flaws", "text"), SAID)
def test_a_control_frame_says_its_amount_and_text(
    kind: int, payload: bytes, amount: int, flaws: int, text: bytes
) -> None:
    head = FrameHeader()
    head.clear()
    head.kind = kind
    data = b"??" + payload + b"\xc1"
    decode_payload_v2_v3(data, 2, 2 + len(payload), PEER, head)
    assert (head.amount, head.format_violations) == (amount, flaws)
    assert data[head.text_start : head.text_start + max(0, head.text_size)] == text
    assert not head.format_violations & FRAME_TOO_LONG


@pytest.mark.parametrize("version", [2, 3])
def test_credit_above_64_bits_is_reported_and_later_frames_are_validated(version: int) -> None:
    """An observer continues after the violation, with credit that does not fit 64 bits."""
    wire = Wire(version)
    observer = Observer(create(f"nerdbank:version={version}"))
    for side, random in ((0, b"\xff" * 16), (1, bytes(16))):
        hello = b"\x92\x92\x02\x00\xc4\x10" + random if version == 2 else b""
        observer.feed(side, hello, 0)
    observer.feed(0, wire.offer(1), 1)
    observer.feed(1, wire.frame(ACCEPTED, 1, b"\x91\x0a", -1), 2)
    for at in range(3, 7):
        observer.feed(1, wire.frame(PROCESSED, 1, b"\x91" + msgpack_uint(2**63 - 1), -1), at)
    observer.feed(0, wire.frame(2, 1, bytes(20_000)), 8)
    observer.finish(9, True, True)
    names = {violation.rule.name for violation in observer.take_violations()}
    assert "nerdbank.acknowledged-too-much" in names
    assert "nerdbank.window-exceeded" not in names
    (stream,) = observer.protocol.streams.all()
    assert stream.dialer.credit_granted == 10 + 4 * (2**63 - 1)
    assert stream.dialer.credit_spent == 20_000


@pytest.mark.parametrize("adjusted", [False, True])
def test_an_implausible_window_is_reported_and_may_be_used(adjusted: bool) -> None:
    wire, large = Wire(3), 128 << 20
    first = 20480 if adjusted else large
    observer = Observer(create("nerdbank"))
    observer.feed(0, wire.frame(OFFER, 1, b"\x92\xa0" + msgpack_uint(first)), 0)
    observer.feed(1, wire.frame(ACCEPTED, 1, b"\x91" + msgpack_uint(first), -1), 1)
    if adjusted:
        observer.feed(1, wire.frame(WINDOW_ADJUST, 1, b"\x91" + msgpack_uint(large), -1), 2)
    for _ in range(3):
        observer.feed(0, wire.frame(CONTENT_FRAME, 1, bytes(20480)), 3)
    reported = [(v.rule.name, v.sender, v.rule.origin) for v in observer.take_violations()]
    limit = ("nerdbank.bad-window", 1, Origin.LIMIT)
    assert reported == ([limit] if adjusted else [("nerdbank.bad-window", 0, Origin.LIMIT), limit])
    stream = observer.protocol.streams.find(4)
    assert stream is not None
    assert (stream.dialer.window, stream.dialer.credit_spent) == (large, 3 * 20480)


def test_a_live_side_gives_up_a_channel_with_a_window_beyond_belief() -> None:
    end = Endpoint(create("nerdbank", vantage=1), 1)
    end.receive(Wire(3).frame(OFFER, 1, b"\x92\xa0" + msgpack_uint(128 << 20)), 0.0)
    assert end.counters.hits == {"nerdbank.bad-window": 1}
    assert end.data_to_send()[:4] == b"\x94\x04\x01\xff"
