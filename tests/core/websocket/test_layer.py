"""The WebSocket layer of an observer: rows have wire offsets, and every byte is counted."""

from base64 import b64encode
from random import Random
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.observer import Observer
from polymux.core.websocket.frames import CLOSE, CONTINUATION, PING, TEXT, encode_frame
from polymux.core.websocket.handshake import accept_key, detect_upgrade
from polymux.protocols.registry import create

KEY = b"\x11\x22\x33\x44"
NONCE = b64encode(b"0123456789abcdef").decode()
REQUEST = (
    "GET /omnistreams HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {NONCE}\r\n\r\n"
).encode()
RESPONSE = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Accept: {accept_key(NONCE)}\r\n\r\n"
).encode()

Chunk = tuple[int, bytes]


def d(text: str, opcode: int = 2, final: bool = True) -> Chunk:
    """One WebSocket frame of the dialer."""
    return 0, encode_frame(opcode, bytes.fromhex(text), KEY, final)


def a(text: str, opcode: int = 2) -> Chunk:
    return 1, encode_frame(opcode, bytes.fromhex(text))


STREAM = [d("0105"), a("050502"), d("020568656c6c6f"), d("0305")]
UPGRADE = [(0, REQUEST), (1, RESPONSE)]


def new_observer(text: str = "omnistreams:carrier=websocket") -> Observer:
    return Observer(create(text))


def observe(chunks: list[Chunk], text: str = "omnistreams:carrier=websocket") -> Observer:
    observer = new_observer(text)
    for at, (side, data) in enumerate(chunks):
        observer.feed(side, data, at)
    observer.finish(99, True, True)
    assert observer.accounts_for_all_bytes()
    for side in (0, 1):
        size = sum(len(data) for sender, data in chunks if sender == side)
        assert observer.connection.direction(side).total_bytes == size
    return observer


def rows(observer: Observer) -> list[tuple[int, int, int, str]]:
    """Sender, offset, size and kind of every frame."""
    assert observer.rows is not None
    return [
        (b.sender[i], b.byte_offset[i], b.size[i], observer.protocol.kind_name(int(b.kind[i])))
        for b in observer.rows.take()
        for i in range(b.used)
    ]


def test_rows_have_the_offset_and_size_of_the_websocket_frames() -> None:
    observer = observe([*UPGRADE, *STREAM])
    request, response = len(REQUEST), len(RESPONSE)
    assert rows(observer) == [
        (0, request, 8, "CREATE_RECEIVE_STREAM"),
        (1, response, 5, "STREAM_REQUEST_DATA"),
        (0, request + 8, 13, "STREAM_DATA"),
        (0, request + 21, 8, "STREAM_END"),
    ]
    dialer, acceptor = observer.connection.dialer, observer.connection.acceptor
    assert (dialer.overhead_bytes, dialer.framed_bytes) == (request, 29)
    assert (acceptor.overhead_bytes, acceptor.framed_bytes) == (response, 5)
    assert observer.websocket is not None
    assert observer.websocket.path == "/omnistreams"


def test_a_row_is_right_at_the_edge_of_a_batch_too() -> None:
    observer = observe([d("0105"), *[d("0009")] * 500])
    sizes = [size for _, _, size, _ in rows(observer)]
    assert sizes == [8] * 501


def test_pings_and_the_close_are_overhead() -> None:
    observer = observe([d("0105"), d("aabb", PING), a("03e8", CLOSE), d("03e8", CLOSE)])
    assert observer.connection.dialer.overhead_bytes == 8 + 8
    assert observer.connection.acceptor.overhead_bytes == 4
    assert observer.take_violations() == []


def test_without_a_carrier_option_the_first_bytes_decide() -> None:
    assert len(rows(observe([*UPGRADE, *STREAM], "omnistreams"))) == 4
    plain = [(0, bytes.fromhex("00000002 0105")), (1, bytes.fromhex("00000003 050502"))]
    assert rows(observe(plain, "omnistreams")) == [
        (0, 0, 6, "CREATE_RECEIVE_STREAM"),
        (1, 0, 7, "STREAM_REQUEST_DATA"),
    ]


def test_without_a_carrier_option_frames_are_distinguished_from_lengths() -> None:
    assert len(rows(observe(STREAM, "omnistreams"))) == 4
    assert len(rows(observe([a("0107"), d("050701")], "omnistreams"))) == 2


def test_a_frame_sent_with_the_response_is_read_after_it() -> None:
    chunks = [(0, REQUEST), (1, RESPONSE + a("0107")[1]), d("050701")]
    assert [kind for *_, kind in rows(observe(chunks))] == [
        "CREATE_RECEIVE_STREAM",
        "STREAM_REQUEST_DATA",
    ]


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([(0, REQUEST), (1, b"HTTP/1.1 404 No\r\n\r\nbody"), d("0105")], "not 101"),
        ([(0, b"GET / HTTP/1.1\r\n\r\n"), (1, RESPONSE)], "Upgrade"),
        ([(0, REQUEST), *[d("00" * 100)] * 700], "never answered"),
    ],
)
def test_a_failed_upgrade_is_undecodable_with_a_reason(chunks: list[Chunk], reason: str) -> None:
    observer = observe(chunks)
    for side in (0, 1):
        direction = observer.connection.direction(side)
        assert direction.decoding_stopped
        assert reason in direction.stop_reason
        assert direction.undecoded_bytes == direction.total_bytes
    assert rows(observer) == []


@pytest.mark.parametrize("side", [0, 1])
def test_a_long_head_is_not_parsed_again_for_every_chunk_of_the_other(side: int) -> None:
    heads = [REQUEST, RESPONSE]
    heads[side] = heads[side][:-2] + b"a:\n" * 5000 + b"\r\n"
    other = heads[1 - side][:-2] + b"b: " + b"y" * 1000
    observer = new_observer()
    began = process_time()
    observer.feed(side, heads[side], 0)
    detect_upgrade(heads[0], heads[1])
    once = process_time() - began
    began = process_time()
    for byte in other:
        observer.feed(1 - side, bytes([byte]), 1)
    assert process_time() - began < 60 * once
    observer.feed(1 - side, b"\r\n\r\n", 2)
    observer.feed(*d("0105"), 3)
    assert [kind for *_, kind in rows(observer)] == ["CREATE_RECEIVE_STREAM"]


def test_a_wrong_head_is_detected_although_its_first_bytes_are_right() -> None:
    observer = new_observer()
    for side, data in [(0, REQUEST), (1, b"HTTP"), (1, b"/2 101 Switching Protocols")]:
        observer.feed(side, data, 0)
    assert "does not begin with 'HTTP/1.'" in observer.connection.acceptor.stop_reason


def test_compressed_messages_are_undecodable_and_the_heads_are_overhead() -> None:
    extension = b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    response = RESPONSE[:-2] + extension
    observer = observe([(0, REQUEST), (1, response), d("0105")])
    assert "permessage-deflate" in observer.connection.dialer.stop_reason
    assert observer.connection.dialer.overhead_bytes == len(REQUEST)
    assert observer.connection.dialer.undecoded_bytes == 8


def test_an_upgrade_cut_off_is_truncated() -> None:
    observer = observe([(0, REQUEST), (1, RESPONSE[:40])])
    found = {v.rule.name for v in observer.take_violations()}
    assert found == {"omnistreams.truncated"}


def test_broken_framing_is_a_violation_and_decoding_continues() -> None:
    observer = observe([d("0101", TEXT), d("0102"), (0, encode_frame(2, b"\1\3"))])
    assert [v.rule.name for v in observer.take_violations()] == [
        "websocket.text-message",
        "websocket.unmasked-frame",
    ]
    assert [kind for *_, kind in rows(observer)] == ["CREATE_RECEIVE_STREAM"] * 2
    assert observer.connection.dialer.undecoded_bytes == 8


def test_a_message_over_the_limit_is_never_buffered() -> None:
    observer = new_observer()
    data = encode_frame(2, b"", KEY)[:1] + b"\xff" + (1 << 40).to_bytes(8, "big") + KEY
    observer.feed(0, data, 0)
    for _ in range(20):
        observer.feed(0, bytes(65536), 0)
    assert [v.rule.name for v in observer.take_violations()] == ["websocket.message-too-big"]
    assert observer.websocket is not None
    assert len(repr(observer.websocket.save())) < 2000


def test_a_gap_inside_data_is_bridged_and_inside_a_header_is_not() -> None:
    big = d("0205" + "61" * 1000)[1]
    observer = new_observer()
    for side, data in [d("0105"), a("050502"), (0, big[:300])]:
        observer.feed(side, data, 0)
    observer.gap(0, 200, 0)
    observer.feed(0, big[500:] + d("0305")[1], 0)
    observer.gap(0, 3, 0)
    observer.feed(0, b"zzz", 0)
    observer.finish(0, True, True)
    assert observer.accounts_for_all_bytes()
    assert [kind for *_, kind in rows(observer)][-2:] == ["STREAM_DATA", "STREAM_END"]
    (stream,) = observer.protocol.streams.all()
    assert stream.dialer.content_bytes == 1000
    direction = observer.connection.dialer
    assert (direction.missing_bytes, direction.undecoded_bytes, direction.stopped_by_gap) == (
        3,
        3,
        True,
    )


def test_a_gap_over_type_and_id_drops_the_message() -> None:
    observer = new_observer()
    data = d("0105616263")[1]
    observer.feed(0, data[:6], 0)
    observer.gap(0, 1, 0)
    observer.feed(0, data[7:] + d("0106")[1], 0)
    observer.finish(0, True, True)
    assert observer.accounts_for_all_bytes()
    assert [stream.label() for stream in observer.protocol.streams.all()] == ["d6"]
    assert (
        observer.connection.dialer.missing_bytes,
        observer.connection.dialer.undecoded_bytes,
    ) == (1, 10)


def test_a_gap_in_the_upgrade_makes_the_connection_undecodable() -> None:
    observer = new_observer("omnistreams")
    observer.feed(0, REQUEST, 0)
    observer.gap(1, len(RESPONSE), 0)
    observer.feed(0, d("0105")[1], 0)
    observer.finish(0, True, True)
    assert observer.accounts_for_all_bytes()
    assert observer.connection.dialer.decoding_stopped
    assert observer.connection.acceptor.missing_bytes == len(RESPONSE)


def random_connection(seed: int) -> list[Chunk]:
    """A connection with pings, fragments, violations and an upgrade."""
    rng = Random(seed)
    chunks = list(UPGRADE) if rng.random() < 0.5 else []
    for _ in range(rng.randrange(1, 30)):
        number = f"{rng.randrange(3):02x}"
        chunks += rng.choice(
            [
                [d("01" + number), a("05" + number + "03")],
                [d("02" + number + "61" * rng.randrange(200))],
                [d("02" + number, final=False), a("00"), d("62", CONTINUATION)],
                [d("03" + number), a("06" + number)],
                [d("aa", PING), a("aa", PING)],
                [d("00", TEXT)],
                [d("")],
            ]
        )
    return chunks


@given(seed=st.integers(0, 10**6), cut=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_any_split_and_any_snapshot_give_the_same_rows(seed: int, cut: int) -> None:
    chunks = random_connection(seed)
    whole = new_observer("omnistreams:carrier=websocket")
    for side, data in chunks:
        whole.feed(side, data, 7)
    rng = Random(cut)
    pieces = new_observer("omnistreams:carrier=websocket")
    for side, data in chunks:
        pos = 0
        while pos < len(data):
            size = rng.choice([1, 2, 5, 100])
            pieces.feed(side, data[pos : pos + size], 7)
            pos += size
            assert pieces.accounts_for_all_bytes()
            if rng.random() < 0.1:
                saved, kept = pieces.snapshot(), (pieces.rows, pieces.connection.violations)
                gone = pieces.protocol.streams.removed
                pieces = new_observer("omnistreams:carrier=websocket")
                pieces.restore(saved)
                pieces.rows, pieces.connection.violations = kept
                pieces.connection.rows = kept[0]
                pieces.protocol.streams.removed = gone
    for observer in (whole, pieces):
        observer.finish(9, True, True)
        assert observer.accounts_for_all_bytes()
    assert rows(whole) == rows(pieces)
    said = [[str(v) for v in observer.take_violations()] for observer in (whole, pieces)]
    assert said[0] == said[1]


@given(st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=80)), max_size=20))
@settings(max_examples=100, deadline=None)
def test_noise_is_counted_to_the_last_byte(chunks: list[Chunk]) -> None:
    observe(chunks)
    observe(chunks, "omnistreams")
    observe([*UPGRADE, *chunks], "omnistreams")


def test_bytes_before_the_websocket_layer_shift_the_rows() -> None:
    observer = new_observer()
    direction = observer.connection.dialer
    direction.total_bytes = direction.overhead_bytes = direction.offset = 20  # a preamble
    for side, data in [*UPGRADE, d("0105")]:
        observer.feed(side, data, 0)
    observer.finish(0, True, True)
    assert observer.accounts_for_all_bytes()
    assert [offset for _, offset, _, _ in rows(observer)] == [20 + len(REQUEST)]
    assert direction.overhead_bytes == 20 + len(REQUEST)
