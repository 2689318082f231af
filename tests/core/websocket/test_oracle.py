"""The `websockets` library as an oracle, for decoding and encoding."""

from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Close as TheirClose
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.websocket.decoder import Decoder
from polymux.core.websocket.events import Close, FrameViolation, Message, Ping, Pong
from polymux.core.websocket.frames import (
    binary_frame,
    close_frame,
    encode_frame,
    ping_frame,
    pong_frame,
)

LIMIT = (
    2000  # more than eight frames can hold: which of two faults comes first is a matter of taste
)
sides = st.sampled_from([DIALER, ACCEPTOR])
Story = list[tuple[str, object]]


def library_events(side: int, wire: bytes) -> Story:
    """What the library decodes from the bytes this side sent."""
    protocol: ClientProtocol | ServerProtocol
    if side == DIALER:
        protocol = ServerProtocol(state=State.OPEN, max_size=LIMIT)
    else:
        protocol = ClientProtocol(parse_uri("ws://example.org/"), state=State.OPEN, max_size=LIMIT)
    protocol.receive_data(wire)
    story: Story = []
    message = b""
    for event in protocol.events_received():
        assert isinstance(event, Frame)
        if event.opcode is Opcode.PING:
            story.append(("ping", bytes(event.data)))
        elif event.opcode is Opcode.PONG:
            story.append(("pong", bytes(event.data)))
        elif event.opcode in (Opcode.BINARY, Opcode.CONT):
            message += event.data
            if event.fin:
                story.append(("message", message))
                message = b""
    if protocol.close_rcvd is not None:
        story.append(("close", (int(protocol.close_rcvd.code), protocol.close_rcvd.reason)))
    elif protocol.close_sent is not None:
        story.append(("failure", int(protocol.close_sent.code)))
    return story


def polymux_events(side: int, wire: bytes) -> Story:
    decoder = Decoder(side, LIMIT)
    decoder.feed(wire)
    story: Story = []
    for item in decoder.take():
        match item:
            case Message() | Ping() | Pong():
                story.append((type(item).__name__.lower(), item.data))
            case Close():
                story.append(("close", (item.code, item.reason)))
            case FrameViolation() if (
                item.rule.name != "websocket.after-close"
            ):  # they do not look there
                story.append(("failure", item.close_code))
            case _:
                pass
    return story


@st.composite
def any_frame(draw: st.DrawFn, side: int) -> bytes:
    """One complete frame, valid or not; never text, never a non-minimal length."""
    opcode = draw(st.sampled_from([0, 0, 2, 2, 2, 8, 9, 10, 5, 13]))
    if opcode == 8:
        code = draw(st.sampled_from([1000, 1001, 1007, 1014, 3000, 4999, 1004, 1005, 1015, 2000]))
        payload = draw(st.sampled_from([b"", b"\x03", code.to_bytes(2, "big")]))
        if len(payload) == 2 and code not in (1004, 1005, 1015, 2000):
            payload += draw(st.sampled_from([b"", b"bye", b"\xc3\xa4", b"\xff", b"\xed\xa0\x80"]))
    else:
        payload = draw(st.one_of(st.binary(max_size=20), st.sampled_from([bytes(125), bytes(126)])))
    right = draw(st.integers(0, 15)) > 0
    key = draw(st.binary(min_size=4, max_size=4)) if (side == DIALER) == right else None
    data = encode_frame(opcode, payload, key, draw(st.integers(0, 3)) > 0)
    reserved = draw(st.sampled_from([0] * 15 + [0x10, 0x20, 0x40]))
    return bytes([data[0] | reserved]) + data[1:]


@given(sides, st.data())
@settings(max_examples=400)
def test_both_decode_the_same_from_any_frames(side: int, data: st.DataObject) -> None:
    wire = b"".join(data.draw(st.lists(any_frame(side), max_size=8)))
    assert polymux_events(side, wire) == library_events(side, wire)


@given(sides, st.lists(st.tuples(st.sampled_from([2, 9, 10]), st.binary(max_size=125))), st.data())
def test_we_decode_what_the_library_encodes(
    side: int, script: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    wire = b"".join(
        Frame(Opcode(opcode), payload).serialize(mask=side == DIALER) for opcode, payload in script
    )
    code = data.draw(st.sampled_from([1000, 1001, 1011, 4000]))
    reason = data.draw(st.text(max_size=30, alphabet=st.characters(codec="utf-8")))
    last = Frame(Opcode.CLOSE, TheirClose(code, reason).serialize()).serialize(mask=side == DIALER)
    names = {2: "message", 9: "ping", 10: "pong"}
    expected: Story = [(names[opcode], payload) for opcode, payload in script]
    assert polymux_events(side, wire + last) == [*expected, ("close", (code, reason))]


@given(sides, st.lists(st.tuples(st.sampled_from("mpo"), st.binary(max_size=125))), st.data())
def test_the_library_decodes_what_we_encode(
    side: int, script: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    key = data.draw(st.binary(min_size=4, max_size=4)) if side == DIALER else None
    writers = {"m": binary_frame, "p": ping_frame, "o": pong_frame}
    names = {"m": "message", "p": "ping", "o": "pong"}
    wire = b"".join(writers[kind](payload, key) for kind, payload in script)
    wire += close_frame(1001, "going", key)
    expected: Story = [(names[kind], payload) for kind, payload in script]
    assert library_events(side, wire) == [*expected, ("close", (1001, "going"))]


def test_a_message_over_the_limit_fails_alike_whole_and_in_fragments() -> None:
    for wire in (
        binary_frame(bytes(LIMIT + 1)),
        encode_frame(2, bytes(LIMIT), final=False) + encode_frame(0, b"x"),
        encode_frame(2, bytes(LIMIT), final=False) + encode_frame(0, b""),
    ):
        assert polymux_events(ACCEPTOR, wire) == library_events(ACCEPTOR, wire)


def test_an_empty_close_reads_alike() -> None:
    assert (
        polymux_events(ACCEPTOR, b"\x88\x00")
        == library_events(ACCEPTOR, b"\x88\x00")
        == [("close", (1005, ""))]
    )
