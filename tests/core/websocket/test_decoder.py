"""The decoder's contract beyond what single vectors say: bounds, errors, snapshots, offsets."""

import tracemalloc

import pytest

from polymux.core.rules import Origin, Reaction, Severity
from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.websocket.decoder import CLOSED, FAILED, FINISHED, LOST, Decoder
from polymux.core.websocket.events import Close, FrameViolation, Message, Ping
from polymux.core.websocket.frames import binary_frame, close_frame, encode_frame, ping_frame
from polymux.core.websocket.rules import FRAME_RULES, TRUNCATED

KEY = b"\x11\x22\x33\x44"


def faults(decoder: Decoder) -> list[str]:
    return [item.rule.name for item in decoder.take() if isinstance(item, FrameViolation)]


def test_feed_says_how_many_items_wait_and_take_hands_them_out_once() -> None:
    decoder = Decoder(ACCEPTOR)
    assert decoder.feed(binary_frame(b"a") + binary_frame(b"b")[:1]) == 1
    assert decoder.feed(binary_frame(b"b")[1:]) == 2
    assert len(decoder.take()) == 2
    assert decoder.take() == []
    assert decoder.feed(b"") == 0


def test_offsets_count_from_the_start_of_the_connection() -> None:
    decoder = Decoder(ACCEPTOR, offset=129)
    decoder.feed(binary_frame(b"abc") + ping_frame())
    message, heartbeat = decoder.take()
    assert isinstance(message, Message)
    assert isinstance(heartbeat, Ping)
    assert (message.offset, heartbeat.offset, decoder.offset) == (129, 134, 136)


def test_an_oversized_message_is_refused_before_a_single_byte_is_kept() -> None:
    decoder = Decoder(DIALER, max_message_bytes=1024 * 1024)
    head = encode_frame(2, bytes(70000), KEY)[:2] + (1 << 26).to_bytes(8, "big") + KEY
    piece = bytes(65536)
    decoder.feed(head)
    tracemalloc.start()
    for _ in range(64):
        decoder.feed(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoder.state == FAILED
    assert peak < 65536
    assert decoder.pending() == 0
    assert decoder.skipped_bytes == len(head) + 64 * 65536


def test_the_error_of_a_limit_says_name_value_and_how_to_raise_it() -> None:
    decoder = Decoder(ACCEPTOR, max_message_bytes=10, limit_name="max_message_bytes")
    decoder.feed(b"\x82\x0b")
    (fault,) = decoder.take()
    assert isinstance(fault, FrameViolation)
    assert fault.rule.origin is Origin.LIMIT
    assert fault.close_code == 1009
    assert "limit max_message_bytes=10; raise it with Limits(max_message_bytes=...)" in fault.detail
    assert str(fault).startswith("websocket.message-too-big: a frame with first byte 0x82 and 11")


def test_every_rule_ends_a_live_session_and_only_a_cut_is_a_warning() -> None:
    assert {rule.reaction for rule in FRAME_RULES} == {Reaction.SESSION}
    assert {rule.severity for rule in FRAME_RULES} == {Severity.ERROR}
    assert TRUNCATED.severity is Severity.WARNING
    assert len({rule.name for rule in FRAME_RULES}) == len(FRAME_RULES)


def test_begun_tells_where_the_unfinished_message_began() -> None:
    wire = (
        binary_frame(b"x")
        + encode_frame(2, b"ab", final=False)
        + ping_frame(b"p")
        + encode_frame(0, b"c")
    )
    decoder = Decoder(ACCEPTOR)
    seen = []
    for byte in wire:
        decoder.feed(bytes([byte]))
        seen.append(decoder.message_start_offset())
    # from the first byte of the first fragment to the last but one of the last, the ping between
    assert seen == [0, 0, -1] + [3] * 9 + [-1]


def test_begun_is_silent_about_pings_and_about_messages_that_will_not_be_delivered() -> None:
    decoder = Decoder(ACCEPTOR, lenient=True)
    for byte in ping_frame(b"abc")[:-1]:
        decoder.feed(bytes([byte]))
        assert decoder.message_start_offset() == -1
    decoder = Decoder(ACCEPTOR, lenient=True)
    decoder.feed(encode_frame(1, b"text", final=False))
    assert decoder.message_start_offset() == -1
    decoder.feed(encode_frame(0, b"more")[:3])
    assert decoder.message_start_offset() == -1


def test_control_frames_are_carrier_bytes_and_messages_are_not() -> None:
    wire = ping_frame(b"12") + binary_frame(b"abc") + close_frame(1000, "bye")
    decoder = Decoder(ACCEPTOR)
    decoder.feed(wire)
    assert (decoder.control_bytes, decoder.delivered_bytes, decoder.skipped_bytes) == (4 + 7, 5, 0)


def test_a_close_drops_the_message_it_interrupts() -> None:
    decoder = Decoder(ACCEPTOR)
    decoder.feed(encode_frame(2, b"ab", final=False) + close_frame(1001))
    (item,) = decoder.take()
    assert isinstance(item, Close)
    assert (decoder.state, decoder.skipped_bytes, decoder.control_bytes) == (CLOSED, 4, 4)
    assert decoder.pending() == 0


def test_a_strict_decoder_stays_failed() -> None:
    decoder = Decoder(ACCEPTOR)
    decoder.feed(b"\x83\x00")
    assert faults(decoder) == ["websocket.reserved-opcode"]
    decoder.feed(binary_frame(b"a") * 3)
    assert decoder.gap(5) == 0
    assert (decoder.state, decoder.skipped_bytes, decoder.missing_bytes) == (FAILED, 11, 5)


def test_a_strict_decoder_reports_one_rule_a_lenient_one_all() -> None:
    wire = b"\x4a\x7e\x00\x01\x00"  # reserved bit, no final bit, long form
    names = ["reserved-bits", "non-minimal-length", "fragmented-control"]
    strict, lenient = Decoder(ACCEPTOR), Decoder(ACCEPTOR, lenient=True)
    strict.feed(wire)
    lenient.feed(wire)
    assert faults(strict) == [f"websocket.{names[0]}"]
    assert faults(lenient) == [f"websocket.{name}" for name in names]


def test_a_gap_of_nothing_changes_nothing() -> None:
    decoder = Decoder(ACCEPTOR)
    decoder.feed(b"\x82\x02a")
    before = decoder.snapshot()
    assert decoder.gap(0) == 0
    assert decoder.snapshot() == before


def test_a_negative_gap_is_the_callers_mistake() -> None:
    decoder = Decoder(ACCEPTOR)
    with pytest.raises(ValueError, match="-1 bytes"):
        decoder.gap(-1)
    assert decoder.offset == 0


def test_a_lost_decoder_counts_what_it_cannot_read() -> None:
    decoder = Decoder(ACCEPTOR, lenient=True)
    decoder.feed(encode_frame(2, b"ab", final=False))
    decoder.gap(3)
    decoder.feed(binary_frame(b"abc"))
    decoder.gap(1)
    assert decoder.state == LOST
    assert (decoder.skipped_bytes, decoder.missing_bytes, decoder.delivered_bytes) == (4 + 5, 4, 0)


def test_a_hole_in_a_dropped_message_counts_as_missing() -> None:
    decoder = Decoder(ACCEPTOR, lenient=True)
    decoder.feed(b"\x02\x03a")
    decoder.gap(2)
    decoder.feed(binary_frame(b"b"))
    assert (decoder.skipped_bytes, decoder.missing_bytes, decoder.delivered_bytes) == (3, 2, 3)


def test_finish_is_final() -> None:
    decoder = Decoder(ACCEPTOR)
    decoder.feed(b"\x82")
    assert decoder.finish() == 1
    assert faults(decoder) == ["websocket.truncated"]
    assert decoder.finish() == 0
    assert decoder.feed(binary_frame(b"a")) == 0
    assert (decoder.state, decoder.skipped_bytes, decoder.pending()) == (FINISHED, 4, 0)


def test_a_snapshot_is_refused_while_items_wait() -> None:
    decoder = Decoder(ACCEPTOR)
    decoder.feed(binary_frame(b"a"))
    with pytest.raises(ValueError, match="take the 1 pending events"):
        decoder.snapshot()


def test_a_snapshot_is_plain_data() -> None:
    decoder = Decoder(DIALER)
    decoder.feed(binary_frame(b"abcdef", KEY)[:-2])
    numbers, chunks, holes = decoder.snapshot()
    assert {type(number) for number in numbers} == {int}
    assert {type(byte) for byte in chunks} == {bytes}
    assert holes == ()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda numbers, chunks: ((), chunks),
        lambda numbers, chunks: ((99, *numbers[1:]), chunks),
        lambda numbers, chunks: (numbers, chunks[:1]),
    ],
)
def test_something_else_is_not_restored(spoil) -> None:  # type: ignore[no-untyped-def]  # lambdas
    numbers, chunks, holes = Decoder(ACCEPTOR).snapshot()
    decoder = Decoder(ACCEPTOR)
    decoder.feed(b"\x82\x05ab")
    before = decoder.snapshot()
    with pytest.raises(ValueError, match="not a snapshot"):
        decoder.restore((*spoil(numbers, chunks), holes))
    assert decoder.snapshot() == before


def test_a_message_of_many_small_pieces_takes_no_more_than_it_holds() -> None:
    decoder = Decoder(ACCEPTOR, max_message_bytes=1 << 20)
    decoder.feed(b"\x82\x7f" + (1 << 19).to_bytes(8, "big"))
    pieces = [b"ab"] * (1 << 17)
    tracemalloc.start()
    for piece in pieces:
        decoder.feed(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoder.pending() == 10 + (1 << 18)
    assert peak < 4 * (1 << 18)
