"""A live side of Minmux: rules kept and enforced, Oops, promises, and forgone credit."""

import pytest
from tests.protocols.minmux.endpoint_pair import ACCEPTOR, DIALER, Pair, content, profile_of

from polymux.core.errors import LocalProtocolError, PeerViolation
from polymux.core.events import Control
from polymux.core.frames import Frame
from polymux.protocols.minmux.item_codecs import CODEC_SIZED, Codec, Fixed, Prefixed, Sized
from polymux.protocols.minmux.packets import (
    GIVE_CREDIT,
    OOPS,
    PROMISE_READ,
    U64_MAX,
    forgo_credit,
    give_credit,
    oops,
    promise_read,
    promise_write,
    stop_read,
    stop_write,
    write,
)


@pytest.mark.parametrize(
    ("side", "frame", "rule"),
    [
        (ACCEPTOR, write(0, b"a", 1), "credit-exceeded"),
        (ACCEPTOR, forgo_credit(0, 1), "forgo-exceeds-credit"),
        (DIALER, write(0, b"a", 1), "unassigned-stream"),
        (ACCEPTOR, give_credit(0, 1), "unassigned-stream"),
        (DIALER, give_credit(2, 1), "unassigned-stream"),
        (DIALER, give_credit(0, 0), "varint-overflow"),
        (DIALER, give_credit(0, U64_MAX + 1), "varint-overflow"),
        (DIALER, stop_read(0, -1), "varint-overflow"),
        (DIALER, stop_read(0, U64_MAX + 1), "varint-overflow"),
        (ACCEPTOR, write(0, b"ab", 1), "bad-item"),
        (DIALER, Frame(GIVE_CREDIT, 0, b"x", 1), "bad-item"),
        (ACCEPTOR, stop_write(0), "endless-stream-stopped"),
    ],
)
def test_what_breaks_a_rule_is_not_sent(side: int, frame: object, rule: str) -> None:
    pair = Pair(profile_of(Fixed(1), endless=True))
    end = (pair.dialer, pair.acceptor)[side]
    with pytest.raises(LocalProtocolError, match=f"minmux.{rule}"):
        end.send_frame(frame)  # type: ignore[arg-type]  # parametrised
    assert end.data_to_send() == b""


def test_limits_bind_their_own_side() -> None:
    pair = Pair()
    pair.dialer.send_frame(stop_read(0, 5))
    pair.dialer.send_frame(give_credit(0, 3))
    with pytest.raises(
        LocalProtocolError, match="credit-past-limit on a0: GiveCredit of 3: 2 more"
    ):
        pair.dialer.send_frame(give_credit(0, 3))
    with pytest.raises(LocalProtocolError, match="limit-raised"):
        pair.dialer.send_frame(stop_read(0, 3))
    stream = pair.implementations[0].get_stream(DIALER, 0)
    frame = pair.implementations[0].credit_frame(DIALER, stream, 100)
    assert frame is not None
    assert frame.amount == 2
    pair.dialer.send_frame(frame)
    assert pair.implementations[0].credit_frame(DIALER, stream, 1) is None
    pair.pass_on()
    pair.acceptor.send_frame(stop_write(0, 1))
    pair.acceptor.send_frame(write(0, b"a", 1))
    with pytest.raises(LocalProtocolError, match="write-past-limit"):
        pair.acceptor.send_frame(write(0, b"a", 1))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("0000 61", "credit-exceeded"),
        ("00 fffffffffffffffffe", "credit-exceeded"),
        ("8000", "forgo-exceeds-credit"),
        ("4001 4002", "limit-raised"),
        ("4000 0000 61", "write-past-limit"),
        ("01 fffffffffffffffffe 0100", "credit-overflow"),
        ("4100 0100", "credit-past-limit"),
        ("40 f800", "varint-noncanonical"),
        ("01 ffffffffffffffffff", "varint-overflow"),
    ],
)
def test_a_peer_that_breaks_a_rule_ends_the_session_by_its_name(data: str, rule: str) -> None:
    pair = Pair()
    with pytest.raises(PeerViolation, match=f"minmux.{rule}"):
        pair.dialer.receive(bytes.fromhex(data), 0.0)
    assert content(pair.dialer.receive_queue.events) == []


def test_an_item_over_the_limit_ends_the_session_before_it_is_taken() -> None:
    pair = Pair(profile_of(Prefixed()))
    pair.dialer.send_frame(give_credit(0, 10))
    with pytest.raises(PeerViolation, match="item-too-long"):
        pair.dialer.receive(bytes.fromhex("0001 0161 fa010001 6162"), 0.0)
    assert content(pair.dialer.receive_queue.events) == [b"\x01a"]


@pytest.mark.parametrize("codec", [Prefixed(), Sized(lambda data, pos, end: 1 + data[pos])])
def test_the_limit_of_an_item_is_inclusive(codec: Codec) -> None:
    profile = profile_of(codec)
    profile.max_item_bytes = 5 if codec.item_size == CODEC_SIZED else 4
    pair = Pair(profile)
    pair.dialer.send_frame(give_credit(0, 10))
    assert content(pair.dialer.receive(b"\x00\x00\x04abcd", 0.0)) == [b"\x04abcd"]
    with pytest.raises(PeerViolation, match="item-too-long"):
        pair.dialer.receive(b"\x00\x00\x05abcde", 0.0)


@pytest.mark.parametrize("amount", [0, U64_MAX + 2])
def test_not_even_force_writes_a_number_that_has_no_form(amount: int) -> None:
    pair = Pair()
    with pytest.raises(LocalProtocolError, match=f"GiveCredit cannot carry {amount}"):
        pair.dialer.send_frame(give_credit(0, amount), force=True)
    assert pair.dialer.data_to_send() == b""


def test_an_item_that_its_codec_refuses_ends_the_session() -> None:
    def odd(data: bytes, pos: int, end: int) -> int:
        if data[pos] == 0xFF:
            raise ValueError
        return 2

    pair = Pair(profile_of(Sized(odd)))
    pair.dialer.send_frame(give_credit(0, 10))
    with pytest.raises(PeerViolation, match="bad-item"):
        pair.dialer.receive(bytes.fromhex("0001 6161 ff61"), 0.0)


def test_an_item_whose_end_never_shows_stops_decoding_at_the_limit() -> None:
    pair = Pair(profile_of(Sized(lambda data, pos, end: 0)))
    pair.dialer.send_frame(give_credit(0, 10))
    pair.dialer.receive(b"\x00\x00" + bytes(60_000), 0.0)
    with pytest.raises(PeerViolation, match="item-too-long"):
        pair.dialer.receive(bytes(6_000), 0.0)


def test_an_oops_is_answered_with_the_credit_above_it_and_drops_nothing() -> None:
    pair = Pair()
    pair.dialer.send_frame(give_credit(0, 100))
    pair.pass_on()
    stream = pair.implementations[1].streams.all()[0]
    pair.acceptor.send(stream, b"hello")
    pair.dialer.send_frame(oops(0, 10))
    received = pair.acceptor.receive(pair.dialer.data_to_send(), 0.0)
    assert [e.amount for e in received if isinstance(e, Control) and e.kind == OOPS] == [10]
    assert content(pair.pass_on()[0]) == [b"hello"]
    assert pair.implementations[0].writer_credit(pair.implementations[0].streams.all()[0]) == 5
    assert pair.implementations[1].writer_credit(stream) == 5
    assert pair.implementations[1].pending_replies == {}
    for maximum in (4, 0):
        pair.dialer.send_frame(oops(0, maximum))
        pair.pass_on()
        assert pair.implementations[1].writer_credit(stream) == maximum


def test_an_oops_can_be_left_unanswered() -> None:
    pair = Pair(yielding=False)
    pair.dialer.send_frame(give_credit(0, 100))
    pair.dialer.send_frame(oops(0, 10))
    pair.pass_on()
    assert pair.implementations[1].writer_credit(pair.implementations[1].streams.all()[0]) == 100


def test_credit_that_may_never_come_back_is_kept_while_items_wait_for_it() -> None:
    pair = Pair()
    pair.dialer.send_frame(stop_read(0, 5))
    pair.dialer.send_frame(give_credit(0, 5))
    stream = pair.implementations[1].get_stream(ACCEPTOR, 0)
    pair.acceptor.send(stream, b"hello")
    pair.dialer.send_frame(oops(0, 0))
    assert b"".join(content(pair.pass_on()[0])) == b"hello"
    assert pair.implementations[1].pending_replies == {}


def test_an_oops_without_effect_expects_no_reply() -> None:
    pair = Pair()
    for number in range(0, 40, 2):
        pair.dialer.send_frame(oops(number, 0))
    pair.pass_on()
    assert pair.implementations[1].pending_replies == {}
    assert pair.implementations[1].pending_oops == {}


def test_promises_are_hints() -> None:
    pair = Pair()
    pair.dialer.send_frame(promise_read(0, U64_MAX))
    pair.acceptor.send_frame(promise_write(0, 7))
    seen = pair.pass_on()
    hints = [event for event in seen[1] if isinstance(event, Control)]
    assert [(event.kind, event.amount) for event in hints] == [(PROMISE_READ, U64_MAX)]
    assert pair.implementations[1].writer_credit(pair.implementations[1].streams.all()[0]) == 0


def test_giving_a_stream_up_is_a_limit_of_nothing() -> None:
    pair = Pair()
    pair.dialer.send_frame(give_credit(0, 100))
    pair.pass_on()
    writing, reading = (
        pair.implementations[1].streams.all()[0],
        pair.implementations[0].streams.all()[0],
    )
    pair.acceptor.send(writing, b"never mind")
    pair.acceptor.abort(writing)
    pair.dialer.abort(reading)
    seen = pair.pass_on()
    assert content(seen[0]) == []
    assert writing.over
    assert reading.over
    assert pair.implementations[0].ending(reading) == "clean"


def test_reading_gives_credit_back_within_the_limits() -> None:
    pair = Pair()
    pair.dialer.send_frame(give_credit(0, 10))
    pair.pass_on()
    reading, writing = (
        pair.implementations[0].streams.all()[0],
        pair.implementations[1].streams.all()[0],
    )
    assert reading.buffers is not None
    reading.buffers.target_window = 10
    pair.acceptor.send(writing, bytes(100))
    given = 10
    for _ in range(30):
        got = sum(len(part) for part in content(pair.pass_on()[0]))
        if got:
            pair.dialer.read(reading, got)
            given += got
    assert reading.acceptor.content_bytes == 100
    assert reading.acceptor.credit_granted <= given


def test_force_writes_even_the_form_of_2_to_the_64() -> None:
    pair = Pair()
    pair.dialer.send_frame(give_credit(0, U64_MAX + 1), force=True)
    assert pair.dialer.data_to_send() == b"\x00" + b"\xff" * 9
