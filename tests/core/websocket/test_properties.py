"""Properties of the decoder that hold for any bytes."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.websocket.decoder import READING, Decoder
from polymux.core.websocket.events import DecodingLost, FrameViolation, Message, Ping, Pong
from polymux.core.websocket.frames import binary_frame, encode_frame

LIMIT = 300
keys = st.one_of(st.none(), st.binary(min_size=4, max_size=4))
sides = st.sampled_from([DIALER, ACCEPTOR])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One frame, usually a valid one, sometimes with a damaged header."""
    opcode = draw(st.sampled_from([0, 0, 1, 2, 2, 2, 8, 9, 9, 10, 3, 11]))
    payload = draw(st.one_of(st.binary(max_size=12), st.just(b"\x03\xe8ok"), st.just(bytes(130))))
    data = encode_frame(opcode, payload, draw(keys), draw(st.booleans()))
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, min(len(data), 10) - 1))
        data = data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]
    return data


wires = st.one_of(
    st.binary(max_size=80),
    st.lists(frames(), max_size=8).map(b"".join),
)
pieces = st.lists(st.one_of(st.integers(0, 20), wires), max_size=5)


def run(decoder: Decoder, parts: list[bytes | int]) -> list[str]:
    for part in parts:
        if isinstance(part, int):
            decoder.gap(part)
        else:
            decoder.feed(part)
    return [repr(item) for item in decoder.take()]


def counts(decoder: Decoder) -> tuple[int, ...]:
    return (
        decoder.delivered_bytes,
        decoder.control_bytes,
        decoder.skipped_bytes,
        decoder.missing_bytes,
    )


@given(sides, st.booleans(), wires, st.data())
@settings(max_examples=300)
def test_any_split_gives_the_same_events_and_the_same_state(
    side: int, lenient: bool, wire: bytes, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=6).map(sorted))
    edges = [0, *cuts, len(wire)]
    split: list[bytes | int] = [wire[a:b] for a, b in pairwise(edges)]
    whole, parts, single = (Decoder(side, LIMIT, lenient) for _ in range(3))
    expected = run(whole, [wire])
    assert run(parts, split) == expected
    assert run(single, [bytes([byte]) for byte in wire]) == expected
    assert whole.snapshot() == parts.snapshot() == single.snapshot()


@given(sides, st.booleans(), pieces)
@settings(max_examples=300)
def test_every_byte_and_every_gap_is_counted_exactly_once(
    side: int, lenient: bool, parts: list[bytes | int]
) -> None:
    decoder = Decoder(side, LIMIT, lenient)
    total = 0
    for part in parts:
        run(decoder, [part])
        total += part if isinstance(part, int) else len(part)
        assert decoder.offset == total
        assert sum(counts(decoder)) + decoder.pending() == total
        assert min(counts(decoder)) >= 0
    decoder.finish()
    assert sum(counts(decoder)) == total
    assert decoder.pending() == 0


@given(sides, st.booleans(), pieces)
def test_a_gap_reported_byte_by_byte_is_the_same_gap(
    side: int, lenient: bool, parts: list[bytes | int]
) -> None:
    slow: list[bytes | int] = []
    for part in parts:
        slow.extend([1] * part if isinstance(part, int) else [part])
    one, other = Decoder(side, LIMIT, lenient), Decoder(side, LIMIT, lenient)
    assert run(one, parts) == run(other, slow)
    assert one.snapshot() == other.snapshot()


@given(sides, st.booleans(), pieces, pieces)
def test_a_restored_decoder_continues_as_the_original(
    side: int, lenient: bool, before: list[bytes | int], after: list[bytes | int]
) -> None:
    first = Decoder(side, LIMIT, lenient)
    run(first, before)
    second = Decoder(side, LIMIT, lenient)
    second.restore(first.snapshot())
    assert run(second, after) == run(first, after)
    assert second.snapshot() == first.snapshot()


@given(sides, st.booleans(), wires, st.binary(max_size=20))
@settings(max_examples=300)
def test_no_bytes_make_it_hang(side: int, lenient: bool, wire: bytes, payload: bytes) -> None:
    """After any bytes a valid message is decoded, or the decoder has stopped, or it waits for the
    payload that a header has announced."""
    decoder = Decoder(side, LIMIT, lenient)
    decoder.feed(wire)
    decoder.take()
    waits = decoder.in_payload or len(decoder.partial_header) > 0
    if decoder.state == READING and not waits:
        decoder.feed(binary_frame(payload, b"abcd" if side == DIALER else None))
        messages = [item for item in decoder.take() if isinstance(item, Message)]
        assert messages or decoder.state != READING
        assert all(message.data == payload for message in messages)
    elif decoder.in_payload:
        decoder.feed(bytes(min(decoder.payload_left, 1 << 12)))
        assert not decoder.in_payload or decoder.payload_left > 0


@given(st.binary(max_size=200))
def test_a_stopped_decoder_stays_stopped(wire: bytes) -> None:
    decoder = Decoder(ACCEPTOR, LIMIT)
    decoder.feed(wire)
    stopped = any(isinstance(item, FrameViolation | DecodingLost) for item in decoder.take())
    if stopped:
        assert decoder.state != READING
        decoder.feed(binary_frame(b"late"))
        assert not decoder.take()


@given(
    sides,
    st.lists(st.tuples(st.sampled_from(["message", "ping", "pong"]), st.binary(max_size=120))),
    st.integers(1, 50),
    st.binary(min_size=4, max_size=4),
)
def test_encoded_messages_round_trip(
    side: int, script: list[tuple[str, bytes]], size: int, random: bytes
) -> None:
    """Messages in fragments of `size` bytes, with pings and pongs between the fragments."""
    key = random if side == DIALER else None
    wire = b""
    controls = [(kind, data) for kind, data in script if kind != "message"]
    expected: list[tuple[str, bytes]] = []
    for kind, data in script:
        if kind != "message":
            continue
        starts = range(0, max(len(data), 1), size)
        for start in starts:
            last = start + size >= len(data)
            wire += encode_frame(0 if start else 2, data[start : start + size], key, last)
            if not last and controls:
                name, payload = controls.pop()
                wire += encode_frame(9 if name == "ping" else 10, payload, key)
                expected.append((name, payload))
        expected.append(("message", data))
    decoder = Decoder(side)
    decoder.feed(wire)
    found: list[tuple[str, bytes]] = []
    for item in decoder.take():
        assert isinstance(item, Message | Ping | Pong)
        found.append((type(item).__name__.lower(), item.data))
    assert found == expected
    assert decoder.pending() == 0
