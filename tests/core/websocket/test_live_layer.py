"""The WebSocket layer of an endpoint: frames both ways, pongs, and closes on violations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, PeerViolation
from polymux.core.events import Data
from polymux.core.frames import Frame
from polymux.core.websocket.decoder import Decoder
from polymux.core.websocket.events import Close, Message, Pong
from polymux.core.websocket.frames import CLOSE, PING, TEXT, encode_frame
from polymux.protocols.registry import create

TEXT_FORM = "omnistreams:carrier=websocket"
KEY = b"\x11\x22\x33\x44"


def end(side: int) -> Endpoint:
    made = Endpoint(create(TEXT_FORM, vantage=side), side)
    made.start(bytes(range(side, side + 16)))
    return made


def items(data: bytes, side: int) -> list[object]:
    """The events of a strict decoder for what one side sent."""
    decoder = Decoder(side, max_message_bytes=1 << 21)
    decoder.feed(data)
    assert decoder.pending() == 0
    return list(decoder.take())


def payloads(data: bytes, side: int) -> list[bytes]:
    return [item.data for item in items(data, side) if isinstance(item, Message)]


def test_the_dialer_masks_each_message_with_its_own_key() -> None:
    dialer = end(0)
    for _ in range(20):
        dialer.open(b"{}")
    data = dialer.data_to_send()
    assert payloads(data, 0) == [bytes([1, number]) + b"{}" for number in range(20)]
    assert len({data[i * 10 + 2 : i * 10 + 6] for i in range(20)}) == 20


def test_the_acceptor_masks_nothing_and_does_not_copy_large_payloads() -> None:
    acceptor = end(1)
    stream = acceptor.open()
    acceptor.data_to_send()
    acceptor.receive(encode_frame(2, b"\5\0\2", KEY), 0.0)
    big = bytes(100_000)
    acceptor.send(stream, big)
    acceptor.send(stream, b"small")
    acceptor.resume(stream)
    chunks = acceptor.chunks_to_send()
    assert any(chunk is big for chunk in chunks)
    assert payloads(b"".join(chunks), 1) == [b"\2\0" + big, b"\2\0small"]


def test_without_a_nonce_a_dialer_sends_nothing() -> None:
    dialer = Endpoint(create(TEXT_FORM, vantage=0), 0)
    dialer.open()
    with pytest.raises(LocalProtocolError, match="random"):
        dialer.data_to_send()


SIZES = st.one_of(st.integers(0, 300), st.sampled_from([16_383, 16_384, 65_535, 65_536, 70_001]))
BODIES = SIZES.map(lambda size: bytes(range(251)) * (size // 251) + bytes(size % 251))


@given(st.lists(BODIES, max_size=6), st.integers(0, 1))
@settings(max_examples=40, deadline=None)
def test_messages_of_any_size_arrive_as_they_were_sent(sent: list[bytes], side: int) -> None:
    writer, reader = end(side), end(1 - side)
    stream = writer.open()
    (opened,) = reader.receive(writer.data_to_send(), 0.0)
    assert opened.stream is not None
    reader.accept(opened.stream)
    writer.receive(reader.data_to_send(), 0.0)
    for message in sent:
        writer.send(stream, message)
    writer.end(stream)
    data = writer.data_to_send(1 << 30)
    events = []
    for pos in range(0, len(data), 5000):
        events += reader.receive(data[pos : pos + 5000], 0.0)
    assert [bytes(e.data) for e in events if isinstance(e, Data)] == sent
    assert opened.stream.over


def test_a_ping_is_answered_before_anything_else_and_only_the_newest() -> None:
    acceptor = end(1)
    acceptor.receive(encode_frame(PING, b"old", KEY) + encode_frame(PING, b"new", KEY), 0.0)
    assert acceptor.pending()
    acceptor.open()
    found = items(acceptor.data_to_send(), 1)
    assert isinstance(found[0], Pong)
    pongs = [item.data for item in found if isinstance(item, Pong)]
    assert pongs == [b"new"]
    assert not acceptor.pending()


def test_a_close_is_answered_with_its_code_and_nothing_follows() -> None:
    acceptor = end(1)
    acceptor.receive(encode_frame(CLOSE, b"\x03\xe9", KEY), 0.0)
    assert acceptor.pending()
    (close,) = items(acceptor.data_to_send(), 1)
    assert isinstance(close, Close)
    assert close.code == 1001
    acceptor.open()
    assert acceptor.data_to_send() == b""
    assert not acceptor.pending()


def test_closing_sends_what_is_queued_first() -> None:
    dialer = end(0)
    dialer.open(b"last words")
    dialer.close_websocket(1000, "done")
    first, second = items(dialer.data_to_send(), 0)
    assert isinstance(first, Message)
    assert isinstance(second, Close)
    assert (second.code, second.reason) == (1000, "done")


@pytest.mark.parametrize(
    ("data", "rule", "code"),
    [
        (encode_frame(TEXT, b"hi", KEY), "websocket.text-message", 1003),
        (encode_frame(2, b"\1\1"), "websocket.unmasked-frame", 1002),
        (b"\x82\xff" + (1 << 21).to_bytes(8, "big") + KEY, "websocket.message-too-big", 1009),
    ],
)
def test_broken_framing_ends_the_session_with_the_close_code(
    data: bytes, rule: str, code: int
) -> None:
    acceptor = end(1)
    with pytest.raises(PeerViolation, match=rule):
        acceptor.receive(data, 0.0)
    assert acceptor.counters.hits == {rule: 1}
    (close,) = items(acceptor.data_to_send(), 1)
    assert isinstance(close, Close)
    assert close.code == code


def test_a_fragmented_message_is_one_message() -> None:
    acceptor = end(1)
    data = (
        encode_frame(2, b"\1", KEY, False)
        + encode_frame(PING, b"", KEY)
        + encode_frame(0, b"\7{}", KEY)
    )
    (opened,) = acceptor.receive(data, 0.0)
    assert opened.stream is not None
    assert (opened.stream.label(), opened.stream.name) == ("d7", b"{}")


def test_an_end_inside_a_message_is_detected() -> None:
    acceptor = end(1)
    data = encode_frame(2, b"\1\7", KEY)
    acceptor.receive(data, 0.0)
    assert acceptor.finish()
    acceptor.receive(data[:3], 0.0)
    assert not acceptor.finish()


def test_several_requests_of_one_amount_are_several_messages() -> None:
    acceptor = end(1)
    acceptor.receive(encode_frame(2, b"\1\7", KEY), 0.0)
    acceptor.send_frame(Frame(5, 14, b"", 300))
    assert payloads(acceptor.data_to_send(), 1) == [b"\5\7\xff", b"\5\7\x2d"]
