"""A live Streamux side: what it sends, replies and rejects."""

import pytest
from tests.protocols.streamux.one_side import (
    HELLO,
    opened_stream,
    protocol,
    receive_hex,
    send_request,
    sent_hex,
    side,
)

from polymux.core.endpoint import Endpoint
from polymux.core.errors import (
    LocalProtocolError,
    PeerViolation,
    StreamEnded,
    Unsupported,
)
from polymux.core.events import Control, Data, Ended
from polymux.core.frames import Frame
from polymux.core.limits import Limits
from polymux.protocols.registry import create
from polymux.protocols.streamux.rules import (
    CANCEL,
    CANCEL_ACK,
    EMPTY_REPLY,
    INITIATOR,
    KEEP_ALIVE,
    REPLY_LAST,
    REQUEST,
    REQUEST_LAST,
)

# Initiators


def test_the_first_bytes_are_the_initiator() -> None:
    endpoint = Endpoint(create("streamux", vantage=0), 0)
    endpoint.start()
    assert sent_hex(endpoint) == "01100e32"


def test_nothing_is_opened_before_the_peers_initiator_has_come() -> None:
    endpoint = side(peer="")
    with pytest.raises(LocalProtocolError, match="handshake"):
        endpoint.open()
    assert sent_hex(endpoint) == ""
    endpoint.send_frame(Frame(REQUEST_LAST, 0, b"early"))  # allowed: only its own layout is needed
    assert sent_hex(endpoint) == "5080" + b"early".hex()


def test_a_reply_before_the_peers_initiator_is_refused() -> None:
    endpoint = side(peer="")
    with pytest.raises(LocalProtocolError, match="initiators must come first"):
        endpoint.send_frame(Frame(EMPTY_REPLY, 1))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("020a0464", "bad-version"),
        ("01ff0f00", "bad-bit-counts"),
        ("010e0000", "bad-bit-counts"),
        ("01110d32", "mixed-header-sizes"),
    ],
)
def test_an_initiator_that_will_not_do_ends_the_session(data: str, rule: str) -> None:
    with pytest.raises(PeerViolation, match=f"streamux.{rule}"):
        side(peer=data)


def test_a_second_initiator_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="already"):
        side().send_frame(Frame(INITIATOR, 0, bytes.fromhex(HELLO)))


# Requests


def test_a_short_request_is_one_chunk_with_the_termination_bit() -> None:
    endpoint = side()
    send_request(endpoint, b"hello")
    assert sent_hex(endpoint) == "5080" + b"hello".hex()


def test_a_long_request_is_cut_to_our_own_length_bits() -> None:
    endpoint = side(text="streamux:length_bits=2,id_bits=12", peer="010d0100")
    send_request(endpoint, b"12345678")
    data = bytes.fromhex(sent_hex(endpoint))
    assert data == b"\x00\x30123" + b"\x00\x30456" + b"\x00\xa078"


def test_the_last_chunk_waits_until_it_is_known_to_be_the_last() -> None:
    endpoint = side()
    stream = endpoint.open()
    endpoint.send(stream, b"one")
    assert sent_hex(endpoint) == ""
    endpoint.send(stream, b"two")
    assert sent_hex(endpoint) == "3000" + b"one".hex()
    endpoint.end(stream)
    assert sent_hex(endpoint) == "3080" + b"two".hex()
    with pytest.raises(StreamEnded):
        endpoint.send(stream, b"three")


def test_a_request_without_data_is_refused_and_can_be_given_up() -> None:
    endpoint = side()
    stream = endpoint.open()
    with pytest.raises(LocalProtocolError, match="at least one byte"):
        endpoint.end(stream)
    endpoint.abort(stream)
    assert sent_hex(endpoint) == ""
    with pytest.raises(StreamEnded):
        endpoint.send(stream, b"x")


def test_a_name_is_refused_and_takes_no_id() -> None:
    endpoint = side(text="streamux:length_bits=13,id_bits=1")
    for _ in range(5):
        with pytest.raises(Unsupported, match="no names"):
            endpoint.open(b"name")
    assert [endpoint.open().stream_id for _ in range(2)] == [1, 0]


# Replies


def test_a_reply_is_laid_out_as_the_asker_announced() -> None:
    endpoint = side(1, "streamux:length_bits=13,id_bits=1", peer="01020c00")
    stream = opened_stream(receive_hex(endpoint, "ff 9f 21"))  # one byte on id 4095
    endpoint.send(stream, b"12345")
    endpoint.end(stream)
    assert bytes.fromhex(sent_hex(endpoint)) == b"\xff\x7f123" + b"\xff\xef45"


def test_an_end_without_data_is_an_empty_reply() -> None:
    endpoint = side(1)
    endpoint.end(opened_stream(receive_hex(endpoint, "1580 21")))
    assert sent_hex(endpoint) == "05c0"


def test_a_reply_waits_for_the_whole_request() -> None:
    endpoint = side(1)
    stream = opened_stream(receive_hex(endpoint, "1500 21"))
    endpoint.send(stream, b"ok")
    endpoint.end(stream)
    assert sent_hex(endpoint) == ""
    events = receive_hex(endpoint, "1580 22")
    assert any(isinstance(event, Ended) for event in events)
    endpoint.resume(stream)
    assert sent_hex(endpoint) == "25c0" + b"ok".hex()


def test_an_empty_reply_waits_for_the_whole_request() -> None:
    endpoint = side(1)
    stream = opened_stream(receive_hex(endpoint, "1500 21"))
    endpoint.end(stream)
    assert sent_hex(endpoint) == ""
    receive_hex(endpoint, "1500 22")
    assert sent_hex(endpoint) == ""
    receive_hex(endpoint, "1580 23")
    assert sent_hex(endpoint) == "05c0"
    assert not endpoint.protocol.pending_replies


def test_dropping_a_call_answers_it_without_data_and_reads_no_more_of_it() -> None:
    endpoint = side(1)
    stream = opened_stream(receive_hex(endpoint, "1500 21"))
    endpoint.abort(stream)
    assert not any(isinstance(event, Data) for event in receive_hex(endpoint, "1580 22"))
    assert sent_hex(endpoint) == "05c0"


def test_dropping_a_call_in_mid_reply_ends_the_reply() -> None:
    endpoint = side(1)
    stream = opened_stream(receive_hex(endpoint, "1580 21"))
    endpoint.send(stream, b"a")
    endpoint.send(stream, b"b")
    assert sent_hex(endpoint) == "154061"
    endpoint.abort(stream)
    assert sent_hex(endpoint) == "05c0"
    assert protocol(endpoint).ending(stream) == "clean"


# Keep alives


def test_a_keep_alive_goes_out_on_the_next_free_id_and_does_not_take_it() -> None:
    endpoint = side()
    sent_hex(endpoint)
    send_request(endpoint)
    sent_hex(endpoint)
    for _ in range(2):
        frame = protocol(endpoint).keep_alive_frame(0)
        assert frame is not None
        endpoint.send_frame(frame)
    assert sent_hex(endpoint) == "01800180"
    assert endpoint.open().stream_id == 1


def test_no_keep_alive_without_a_free_id() -> None:
    endpoint = side(text="streamux:length_bits=13,id_bits=1", peer="010d0100")
    for _ in range(2):
        send_request(endpoint)
    sent_hex(endpoint)
    assert protocol(endpoint).keep_alive_frame(0) is None


# Frames that send_frame rejects


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (Frame(REQUEST_LAST, 0, b"x" * 1024), "does not fit a 10/4 header"),
        (Frame(REQUEST_LAST, 32, b"x"), "does not fit a 10/4 header"),
        (Frame(REQUEST, 0, b""), "would be read as something else"),
        (Frame(REQUEST_LAST, 0, b""), "would be read as something else"),
        (Frame(REPLY_LAST, 1, b""), "would be read as something else"),
        (Frame(CANCEL, 0, b"x"), "does not fit"),
        (Frame(KEEP_ALIVE, 0, b"x"), "does not fit"),
        (Frame(CANCEL_ACK, 1), "ack-not-cancelled"),
        (Frame(EMPTY_REPLY, 1), "no such request"),
    ],
)
def test_put_refuses_what_breaks_a_rule_and_sends_nothing(frame: Frame, problem: str) -> None:
    endpoint = side()
    with pytest.raises(LocalProtocolError, match=problem):
        endpoint.send_frame(frame)
    assert sent_hex(endpoint) == ""


def test_put_refuses_an_id_in_flight_and_a_keep_alive_on_it() -> None:
    endpoint = side()
    stream = send_request(endpoint)
    sent_hex(endpoint)
    for frame in (Frame(REQUEST, stream.key, b"x"), Frame(KEEP_ALIVE, stream.key)):
        with pytest.raises(LocalProtocolError):
            endpoint.send_frame(frame)
    endpoint.send_frame(Frame(CANCEL, stream.key))
    with pytest.raises(LocalProtocolError, match="cancel-twice"):
        endpoint.send_frame(Frame(CANCEL, stream.key))
    assert sent_hex(endpoint) == "0000"


# Violations of the peer


def test_strays_are_dropped_and_counted_and_the_session_goes_on() -> None:
    endpoint = side()
    assert [type(event) for event in receive_hex(endpoint, "23c0 6f6b 0540")] == [
        Control
    ]  # the ack
    assert endpoint.counters.hits == {
        "streamux.reply-unknown": 1,
        "streamux.ack-not-cancelled": 1,
    }
    send_request(endpoint)
    assert sent_hex(endpoint) == "10803f"


def test_a_chunk_over_the_limit_is_refused_at_its_header() -> None:
    endpoint = side(text="streamux", peer="011d0100")
    with pytest.raises(
        PeerViolation, match=r"chunk-too-long.*limit max_frame_bytes=65536; raise it with"
    ):
        receive_hex(endpoint, "ffffffbf")
    limits = Limits(max_frame_bytes=4)
    with pytest.raises(PeerViolation, match="limit max_frame_bytes=4;"):
        receive_hex(side(limits=limits), "5080")
    assert len(receive_hex(side(limits=limits), "4080 31323334")) > 0
