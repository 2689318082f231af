"""The fast paths, runs of messages and external mask functions, equal the slow ones."""

from hypothesis import given, settings
from hypothesis import strategies as st

import polymux
from polymux.core.endpoint import Endpoint
from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.websocket.decoder import Decoder
from polymux.core.websocket.events import FrameViolation, Message
from polymux.core.websocket.frames import FAST_MASK_MIN_BYTES, binary_frame, masked, ping_frame

KEY = b"\x01\x82\x33\xf4"
sizes = st.one_of(
    st.integers(0, 130),
    st.sampled_from(
        [FAST_MASK_MIN_BYTES - 1, FAST_MASK_MIN_BYTES, FAST_MASK_MIN_BYTES + 5, 65535, 65536, 66000]
    ),
)


def other_mask(data: bytes, key: bytes) -> bytes:
    """An independent mask function, with big integers."""
    pattern = (key * (len(data) // 4 + 1))[: len(data)]
    number = int.from_bytes(data, "little") ^ int.from_bytes(pattern, "little")
    return number.to_bytes(len(data), "little")


def payload(size: int) -> bytes:
    return (bytes(i * 7 & 255 for i in range(256)) * (size // 256 + 1))[:size]


@given(st.sampled_from([DIALER, ACCEPTOR]), st.lists(sizes, max_size=6), st.integers(100, 70000))
@settings(max_examples=40, deadline=None)
def test_a_run_of_messages_gives_the_same_events_as_its_frames(
    side: int, wanted: list[int], cut: int
) -> None:
    key = KEY if side == DIALER else None
    wire = b"".join(binary_frame(payload(size), key) + ping_frame(b"?", key) for size in wanted)
    plain, quick = Decoder(side), Decoder(side)
    quick.run_decoder.fast_mask = other_mask
    plain.feed(wire)
    for start in range(0, len(wire), cut):
        quick.feed(wire[start : start + cut])
    found = [item for item in plain.take() if isinstance(item, Message)]
    assert [item.data for item in found] == [payload(size) for size in wanted]
    same = [item for item in quick.take() if isinstance(item, Message)]
    assert [(i.data, i.offset, i.wire_bytes, i.holes) for i in same] == [
        (i.data, i.offset, i.wire_bytes, i.holes) for i in found
    ]
    assert plain.snapshot() == quick.snapshot()
    assert plain.delivered_bytes + plain.control_bytes == len(wire)


@given(st.sampled_from([DIALER, ACCEPTOR]), st.integers(0, 200), st.integers(0, 200))
def test_a_run_ends_before_a_message_over_the_limit(side: int, limit: int, size: int) -> None:
    key = KEY if side == DIALER else None
    decoder = Decoder(side, limit)
    decoder.feed(binary_frame(b"", key) + binary_frame(payload(size), key))
    items = decoder.take()
    assert isinstance(items[0], Message)
    assert isinstance(items[1], Message if size <= limit else FrameViolation)


def test_a_non_minimal_length_is_not_part_of_a_run() -> None:
    for wire in (b"\x82\x7e\x00\x05hello", b"\x82\x7f" + bytes(7) + b"\x05hello"):
        decoder = Decoder(ACCEPTOR)
        decoder.feed(binary_frame(b"fine") + wire)
        fine, fault = decoder.take()
        assert isinstance(fine, Message)
        assert isinstance(fault, FrameViolation)
        assert fault.rule.name == "websocket.non-minimal-length"


def test_a_fast_mask_changes_no_byte_that_is_sent() -> None:
    sent = []
    for quick in (False, True):
        dialer = Endpoint(polymux.protocol("omnistreams:carrier=websocket"), DIALER)
        dialer.start(bytes(range(16)))
        assert dialer.websocket is not None
        if quick:
            dialer.websocket.use_fast_mask(other_mask)
        for size in (10, FAST_MASK_MIN_BYTES, 20_000, 100_000, 3):
            dialer.open(payload(min(size, 60_000)))
        sent.append(dialer.data_to_send(1 << 30))
    assert sent[0] == sent[1]


def test_masking_keys_differ_from_frame_to_frame() -> None:
    dialer = Endpoint(polymux.protocol("omnistreams:carrier=websocket"), DIALER)
    dialer.start(bytes(range(16)))
    assert dialer.websocket is not None
    keys = [dialer.websocket.next_masking_key() for _ in range(1000)]
    assert len(set(keys)) > 990
    assert all(key is not None and len(key) == 4 for key in keys)


def test_masked_agrees_with_the_websockets_library() -> None:
    data = payload(5000)
    assert masked(data, 0, len(data), KEY) == other_mask(data, KEY)
