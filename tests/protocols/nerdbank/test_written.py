"""What a live side of each Nerdbank version writes, byte by byte, and what it never writes."""

from __future__ import annotations

import pytest

from polymux.core.endpoint import Endpoint
from polymux.core.errors import NoFreeIds
from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM
from polymux.core.rules import PendingReply
from polymux.core.streams import StreamState
from polymux.protocols.nerdbank.codec import (
    ACCEPTED,
    CONTENT_FRAME,
    GROWTH_REQUEST,
    HANDSHAKE,
    MALFORMED,
    OFFER,
    PROCESSED,
    READING_COMPLETED,
    TERMINATED,
    WINDOW_ADJUST,
    WRITING_COMPLETED,
)
from polymux.protocols.nerdbank.protocol import MAX_ALLOCATED_ID, Nerdbank
from polymux.protocols.registry import create

HIGH, LOW = b"\xff" * 16, bytes(16)
MAGICS = {1: "2fdf1d50", 2: "92920200c410"}


def live(text: str, side: int = 0, odd: int = 0) -> Endpoint:
    """Return an endpoint whose handshake is complete."""
    end = Endpoint(create(text, Limits(receive_window=1000), vantage=side), side, direct=True)
    protocol = end.protocol
    assert isinstance(protocol, Nerdbank)
    end.start(HIGH if side == odd else LOW)
    if protocol.major_version < 3:
        end.receive(
            bytes.fromhex(MAGICS[protocol.major_version]) + (LOW if side == odd else HIGH), 0.0
        )
    end.data_to_send()
    return end


def receive_hex(end: Endpoint, text: str) -> bytes:
    end.receive(bytes.fromhex(text), 0.0)
    return end.data_to_send()


def offered(end: Endpoint, text: str, key: int) -> StreamState:
    receive_hex(end, text)
    stream = end.protocol.streams.find(key)
    assert stream is not None
    return stream


# Frames

D1, A1, SEEDED = 1 * 4, 1 * 4 + 1, 0 * 4 + 2  # keys: number and opener
WRITTEN = [
    ("1", Frame(OFFER, D1, b"echo"), "00 00000001 0004 6563686f"),
    ("1", Frame(ACCEPTED, D1), "01 00000001 0000"),
    ("1", Frame(CONTENT_FRAME, D1, b"abc"), "02 00000001 0003 616263"),
    ("1", Frame(WRITING_COMPLETED, 0x01020304 * 4), "03 01020304 0000"),
    ("1", Frame(TERMINATED, D1), "04 00000001 0000"),
    ("2", Frame(OFFER, D1, b"echo", 102400), "93 00 01 c4 0b 92 a4 6563686f ce 00019000"),
    ("2", Frame(OFFER, D1, b"echo"), "93 00 01 c4 06 91 a4 6563686f"),
    ("2", Frame(OFFER, D1, b"", 0), "93 00 01 c4 03 92 a0 00"),
    ("2", Frame(ACCEPTED, D1, b"", 102400), "93 01 01 c4 06 91 ce 00019000"),
    ("2", Frame(ACCEPTED, D1), "93 01 01 c4 01 90"),
    ("2", Frame(ACCEPTED, D1, b"", 0), "93 01 01 c4 02 91 00"),
    ("2", Frame(CONTENT_FRAME, D1, b"a"), "93 02 01 c4 01 61"),
    ("2", Frame(CONTENT_FRAME, D1, b""), "92 02 01"),
    ("2", Frame(WRITING_COMPLETED, D1), "92 03 01"),
    ("2", Frame(TERMINATED, D1), "92 04 01"),
    ("2", Frame(TERMINATED, D1, b"", 5), "92 04 01"),
    ("2", Frame(TERMINATED, D1, b"e"), "93 04 01 c4 03 91 a1 65"),
    ("2", Frame(TERMINATED, D1, b"oops", 5), "93 04 01 c4 06 91 a4 6f6f7073"),
    ("2", Frame(PROCESSED, D1, b"", 20480), "93 05 01 c4 04 91 cd 5000"),
    ("2", Frame(WINDOW_ADJUST, D1, b"", 2**40), "93 07 01 c4 0a 91 cf 0000010000000000"),
    ("2", Frame(GROWTH_REQUEST, D1), "92 08 01"),
    ("2", Frame(READING_COMPLETED, 300 * 4), "92 06 cd 012c"),
    ("3", Frame(OFFER, D1, b"echo", 102400), "94 00 01 01 c4 0b 92 a4 6563686f ce 00019000"),
    ("3", Frame(ACCEPTED, A1, b"", 102400), "94 01 01 ff c4 06 91 ce 00019000"),
    ("3", Frame(CONTENT_FRAME, D1, b"a" * 256), "94 02 01 01 c5 0100" + "61" * 256),
    ("3", Frame(CONTENT_FRAME, SEEDED, b"a"), "94 02 00 00 c4 01 61"),
    ("3", Frame(WRITING_COMPLETED, A1), "93 03 01 ff"),
    ("3", Frame(TERMINATED, SEEDED), "93 04 00 00"),
    ("3", Frame(PROCESSED, A1, b"", 2**63 - 1), "94 05 01 ff c4 0a 91 cf 7fffffffffffffff"),
    ("3", Frame(PROCESSED, A1, b"", 2**63), "94 05 01 ff c4 0a 91 cf 7fffffffffffffff"),
    ("3", Frame(PROCESSED, A1, b"", 2**63 - 2), "94 05 01 ff c4 0a 91 cf 7ffffffffffffffe"),
    ("3", Frame(9, D1, b"xyz", 7), "94 09 01 01 c4 03 78797a"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "frame", "expected"), WRITTEN)
def test_a_frame_is_written_as_its_version_has_it(
    version: str, frame: Frame, expected: str
) -> None:
    end = live(f"nerdbank:version={version}")
    end.send_frame(frame, force=True)
    assert end.data_to_send().hex(" ") == bytes.fromhex(expected).hex(" ")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("number", "opener"), [(1, 0), (2, 1), (7, 0), (8, 1)])
@pytest.mark.parametrize("side_bits", [0, 1, 2, 3])
def test_in_the_older_versions_the_number_alone_says_whose_channel_it_is(
    version: int, number: int, opener: int, side_bits: int
) -> None:
    protocol = live(f"nerdbank:version={version}").protocol
    head = FrameHeader()
    head.kind, head.key = CONTENT_FRAME, number * 4 + side_bits
    protocol.resolve_ids(0, head)
    assert (head.stream_id, head.opener, head.key) == (number, opener, number * 4 + opener)


@pytest.mark.parametrize("sender", [0, 1])
@pytest.mark.parametrize("side_bits", [0, 1, 2, 3])
def test_version_3_can_say_three_sources_and_a_fourth_becomes_the_other_sides(
    sender: int, side_bits: int
) -> None:
    protocol = live("nerdbank").protocol
    head = FrameHeader()
    head.kind, head.key = CONTENT_FRAME, 9 * 4 + side_bits
    protocol.resolve_ids(sender, head)
    assert (head.stream_id, head.opener) == (9, side_bits if side_bits < 3 else 1 - sender)
    assert head.key == 9 * 4 + head.opener


@pytest.mark.parametrize("kind", [MALFORMED, HANDSHAKE])
def test_handshakes_and_what_is_no_frame_belong_to_no_channel(kind: int) -> None:
    head = FrameHeader()
    head.kind, head.key = kind, D1
    live("nerdbank").protocol.resolve_ids(0, head)
    assert head.opener == NO_STREAM


@pytest.mark.parametrize("version", [1, 2])
def test_a_side_begins_with_its_magic_and_its_bytes(version: int) -> None:
    end = Endpoint(create(f"nerdbank:version={version}", vantage=0), 0)
    end.start(HIGH)
    assert end.data_to_send() == bytes.fromhex(MAGICS[version]) + HIGH


def test_version_3_begins_with_its_first_offer() -> None:
    end = live("nerdbank")
    end.open(b"echo")
    assert end.data_to_send().hex(" ") == "94 00 01 01 c4 09 92 a4 65 63 68 6f cd 03 e8"


# Ids


@pytest.mark.parametrize(("text", "step"), [("nerdbank:version=2", 2), ("nerdbank", 1)])
@pytest.mark.parametrize("side", [0, 1])
def test_the_last_id_is_the_last(text: str, step: int, side: int) -> None:
    end = live(text, side, odd=side)
    protocol = end.protocol
    assert isinstance(protocol, Nerdbank)
    if side == 0:
        protocol.next_dialer_id = MAX_ALLOCATED_ID
    else:
        protocol.next_acceptor_id = MAX_ALLOCATED_ID
    assert end.open(b"z").stream_id == 2**31 - 1
    assert (protocol.next_dialer_id, protocol.next_acceptor_id)[side] == MAX_ALLOCATED_ID + step
    with pytest.raises(NoFreeIds):
        end.open(b"none")
    assert protocol.allocate(side) == NO_ID


def test_ids_and_handshakes_are_saved_with_the_connection() -> None:
    before = live("nerdbank:version=2").protocol
    after = create("nerdbank:version=2")
    assert isinstance(before, Nerdbank)
    assert isinstance(after, Nerdbank)
    assert [before.allocate(side) >> 2 for side in (0, 0, 1)] == [1, 3, 2]
    after.load(before.save())
    assert (after.dialer_random, after.acceptor_random, after.odd_id_side) == (HIGH, LOW, 0)
    assert [after.allocate(side) >> 2 for side in (0, 1, 1)] == [5, 4, 6]


# Credit


def test_accepted_without_a_window_nothing_is_sent_until_there_is_one() -> None:
    end = live("nerdbank")
    stream = end.open(b"x")
    end.send(stream, b"hello")
    end.data_to_send()
    assert receive_hex(end, "94 01 01 ff c4 01 90") == b""
    end.resume(stream)
    assert end.data_to_send() == b""
    receive_hex(end, "94 07 01 ff c4 02 91 02")
    end.resume(stream)
    assert end.data_to_send().hex(" ") == "94 02 01 01 c4 02 68 65"
    receive_hex(end, "94 05 01 ff c4 02 91 01")
    end.resume(stream)
    assert end.data_to_send().hex(" ") == "94 02 01 01 c4 01 6c"


def test_version_1_needs_no_credit_and_writes_full_frames() -> None:
    end = live("nerdbank:version=1")
    stream = end.open(b"x")
    end.data_to_send()
    receive_hex(end, "01 00000001 0000")
    end.send(stream, b"a" * 20482)
    assert end.data_to_send() == (
        bytes.fromhex("02 00000001 5000") + b"a" * 20480 + bytes.fromhex("02 00000001 0002 6161")
    )


def test_version_1_can_neither_stop_content_nor_grant_credit() -> None:
    end = live("nerdbank:version=1", side=1)
    stream = offered(end, "00 00000001 0001 78", D1)
    end.accept(stream)
    assert end.data_to_send().hex(" ") == "01 00 00 00 01 00 00"
    receive_hex(end, "02 00000001 0003 616263")
    end.read(stream, 3)
    end.stop_reading(stream)
    assert end.data_to_send() == b""
    assert end.protocol.credit_frame(1, stream, 3) is None
    end.abort(stream, b"why")
    assert end.data_to_send().hex(" ") == "04 00 00 00 01 00 00"


@pytest.mark.parametrize(
    ("text", "offer", "key", "expected"),
    [("nerdbank:version=2", "93 00 01 c4 05 92 a0 cd 03e8", D1, "92 06 01"),
     ("nerdbank", "94 00 01 01 c4 05 92 a0 cd 03e8", D1, "93 06 01 ff")],
)  # fmt: skip
def test_later_versions_say_that_they_read_no_more(
    text: str, offer: str, key: int, expected: str
) -> None:
    end = live(text, side=1)
    stream = offered(end, offer, key)
    end.accept(stream)
    end.data_to_send()
    end.stop_reading(stream)
    assert end.data_to_send().hex(" ") == expected


def test_an_offer_that_was_withdrawn_is_not_accepted_any_more() -> None:
    end = live("nerdbank", side=1)
    stream = offered(end, "94 00 01 01 c4 05 92 a0 cd 03e8", D1)
    end.receive(bytes.fromhex("93 04 01 01"), 0.0)
    end.accept(stream)  # before its own termination was sent
    assert end.data_to_send().hex(" ") == "93 04 01 ff"
    end.accept(stream)
    assert end.data_to_send() == b""


def test_a_wish_on_a_channel_that_is_forgotten_is_not_answered() -> None:
    protocol = create("nerdbank", vantage=1)
    assert protocol.reply_frame(PendingReply(1, WINDOW_ADJUST, 77 * 4, 0, 0, 0)) is None


@pytest.mark.parametrize("side", [0, 1])
def test_nothing_is_sent_to_a_peer_that_terminated_or_has_not_accepted(side: int) -> None:
    protocol = create("nerdbank")
    stream = StreamState(D1, 1, 0, 0)
    own, peer = stream.half(side), stream.half(1 - side)
    own.credit_granted = own.window = 10
    assert protocol.next_frame_size(side, stream, 5, 5, True) == -1
    stream.accepted = True
    assert protocol.next_frame_size(side, stream, 5, 8, True) == 5
    assert protocol.next_frame_size(side, stream, 20, 8, True) == 8
    assert protocol.next_frame_size(side, stream, 20, 20, True) == 10
    own.credit_spent = 9
    assert protocol.next_frame_size(side, stream, 20, 20, True) == 1
    own.credit_spent = 10
    assert protocol.next_frame_size(side, stream, 20, 20, True) == -1
    own.credit_spent = 0
    peer.last_frame_index = 3
    assert protocol.next_frame_size(side, stream, 5, 8, True) == -1


def test_frames_of_version_1_say_no_amount() -> None:
    protocol = create("nerdbank:version=1")
    stream = StreamState(D1, 1, 0, 0)
    for frame in (protocol.open_frame(0, D1, b"x", 5), protocol.accept_frame(1, stream, 5)):
        assert frame is not None
        assert frame.amount == -1
