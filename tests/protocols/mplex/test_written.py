"""What a live side of mplex writes, byte by byte, and what it reads of a header."""

from __future__ import annotations

import pytest

from polymux.core.endpoint import Endpoint
from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_STREAM
from polymux.protocols.mplex.protocol import (
    CLOSE_INITIATOR,
    CLOSE_RECEIVER,
    MESSAGE_INITIATOR,
    MESSAGE_RECEIVER,
    NEW_STREAM,
    RESET_INITIATOR,
    RESET_RECEIVER,
    UNDEFINED,
    Mplex,
)
from polymux.protocols.registry import create

D1, A1 = 1 * 2, 1 * 2 + 1  # keys: number and opener
WRITTEN = [
    (Frame(NEW_STREAM, D1, b"abc"), "08 03 616263"),
    (Frame(NEW_STREAM, 77 * 2, b""), "e804 00"),
    (Frame(MESSAGE_INITIATOR, D1, b"hello"), "0a 05 68656c6c6f"),
    (Frame(MESSAGE_RECEIVER, A1, b"hi"), "09 02 6869"),
    (Frame(MESSAGE_INITIATOR, D1, b"a" * 128), "0a 8001" + "61" * 128),
    (Frame(CLOSE_INITIATOR, D1), "0c 00"),
    (Frame(CLOSE_RECEIVER, A1), "0b 00"),
    (Frame(CLOSE_RECEIVER, A1, b"x"), "0b 01 78"),
    (Frame(RESET_INITIATOR, D1, b"why"), "0e 03 776879"),
    (Frame(RESET_RECEIVER, A1), "0d 00"),
    (Frame(UNDEFINED, D1, b"x"), "0f 01 78"),
]


@pytest.mark.parametrize(("frame", "expected"), WRITTEN)
def test_a_frame_is_its_flag_its_length_and_its_payload_once(frame: Frame, expected: str) -> None:
    end = Endpoint(create("mplex", vantage=0), 0)
    end.send_frame(frame, force=True)
    assert end.data_to_send().hex(" ") == bytes.fromhex(expected).hex(" ")


@pytest.mark.parametrize("sender", [0, 1])
@pytest.mark.parametrize("kind", range(8))
def test_the_flag_tells_which_side_opened_the_stream_both_ways(kind: int, sender: int) -> None:
    opener = sender if kind % 2 == 0 else 1 - sender
    implementation = Mplex(Limits(), 2)
    data = bytes([5 * 8 + kind, 2]) + b"ab"
    read, resolved = FrameHeader(), FrameHeader()
    assert implementation.decode_header(sender, data, 0, 4, read) == 2
    assert (read.kind, read.stream_id, read.key, read.payload_size) == (kind, 5, 5 * 2 + opener, 2)
    assert (read.text_size, read.amount, read.trailer_size, read.parts_left, read.credit_cost) == (
        -1,
        -1,
        0,
        0,
        2,
    )
    resolved.kind, resolved.key = kind, 5 * 2  # the opener in the key is ignored
    implementation.resolve_ids(sender, resolved)
    assert (resolved.stream_id, resolved.key) == (5, 5 * 2 + opener)
    assert read.opener == resolved.opener == (NO_STREAM if kind == UNDEFINED else opener)


@pytest.mark.parametrize(("frame", "taken", "sent"), [(0, 2**20, 2**20), (1, 1, 1), (9, 9, 9),
                                                      (2**21, 2**21, 2**20)])  # fmt: skip
def test_a_frame_that_is_sent_is_never_over_one_mebibyte(frame: int, taken: int, sent: int) -> None:
    implementation = Mplex(Limits(max_frame_bytes=frame), 2)
    assert (implementation.max_frame_bytes, implementation.max_sent_frame_bytes) == (taken, sent)


def test_the_smallest_frame_may_be_asked_for() -> None:
    assert create("mplex:max_frame=1").max_frame_bytes == 1


def test_next_ids_are_saved_with_the_connection() -> None:
    before, after = create("mplex"), create("mplex")
    assert [before.allocate(side) >> 1 for side in (0, 0, 1)] == [1, 3, 0]
    after.load(before.save())
    assert [after.allocate(side) >> 1 for side in (0, 1)] == [5, 2]
