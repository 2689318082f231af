"""omnistreams: limits, malformed messages and invalid options."""

import pytest
from tests.protocols.omnistreams.endpoint_pair import (
    CONTROL,
    DATA,
    END,
    LEGACY,
    REQUEST,
    SPEC,
    UNKNOWN,
    carry,
    ends,
    names,
    receive_messages,
    sent_messages,
)

from polymux.core.errors import LimitExceeded, LocalProtocolError, PeerViolation
from polymux.core.events import Closed, Ended, Opened
from polymux.core.frames import Frame
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.protocols.registry import BadProtocolString, create


def test_a_message_over_the_limit_ends_the_session_at_its_header() -> None:
    _, acceptor = ends()
    receive_messages(acceptor, "0101")
    with pytest.raises(PeerViolation, match=r"message-too-long.*1048576.*Limits\(max_frame_bytes="):
        acceptor.receive(bytes.fromhex("00100003 0201"), 0.0)


def test_a_message_at_the_limit_passes() -> None:
    dialer, acceptor = ends()
    stream = dialer.open()
    (opened,) = carry(dialer, acceptor)
    assert opened.stream is not None
    acceptor.accept(opened.stream)
    dialer.send(stream, bytes(1 << 20))
    dialer.end(stream)
    carry(acceptor, dialer)
    dialer.resume(stream)
    assert names(carry(dialer, acceptor)) == ["Data", "Ended", "Closed"]


def test_a_message_over_the_limit_is_not_taken_from_the_application() -> None:
    dialer, _ = ends(limits=Limits(max_frame_bytes=10))
    stream = dialer.open()
    dialer.send(stream, bytes(10))
    with pytest.raises(LimitExceeded, match="max_frame_bytes"):
        dialer.send(stream, bytes(11))
    with pytest.raises(LocalProtocolError, match="message-too-long"):
        dialer.send_frame(Frame(CONTROL, 0, bytes(11)))


def test_metadata_over_its_limit_is_cancelled_and_the_session_goes_on() -> None:
    dialer, acceptor = ends(limits=Limits(max_metadata_bytes=8))
    with pytest.raises(LimitExceeded, match="max_metadata_bytes"):
        dialer.open(bytes(9))
    events = receive_messages(acceptor, "0101" + "7b" * 9, "0102" + "7b" * 8)
    assert [e.stream.name for e in events if isinstance(e, Opened) and e.stream] == [None, b"{" * 8]
    assert sent_messages(acceptor) == ["0601"]
    assert acceptor.counters.hits == {"omnistreams.metadata-too-long": 1}


def test_requests_without_end_cost_no_memory() -> None:
    dialer, _ = ends()
    stream = dialer.open()
    data = bytes.fromhex("00000003 0500ff") * 1000
    for _ in range(100):
        dialer.receive(data, 0.0)
    assert stream.dialer.credit_granted == 255 * 100_000
    assert len(repr(dialer.protocol.save())) < 5000


def test_strange_messages_are_counted_and_the_session_goes_on() -> None:
    _, acceptor = ends()
    receive_messages(acceptor, "", "ff", "01", "0501", "0309", "0101", "030161")
    assert acceptor.counters.hits == {
        "omnistreams.empty-message": 1,
        "omnistreams.unknown-type": 1,
        "omnistreams.bad-length": 2,
        "omnistreams.request-on-unknown-id": 1,
        "omnistreams.end-on-unknown-id": 1,
        "omnistreams.end-with-payload": 1,
    }


def test_a_tester_may_send_anything() -> None:
    dialer, _ = ends()
    frames = [
        (Frame(UNKNOWN, 0), ""),
        (Frame(UNKNOWN, 0, b"\xffzz"), "ff7a7a"),
        (Frame(REQUEST, 1), "0500"),
        (Frame(REQUEST, 1, b"z", 300), ["0500ff", "05002d7a"]),
        (Frame(END, 0, b"zz"), "03007a7a"),
        (Frame(DATA, 2 * 300, b"z"), "022c7a"),
    ]
    for frame, data in frames:
        with pytest.raises(LocalProtocolError):
            dialer.send_frame(frame)
        dialer.send_frame(frame, force=True)
        assert sent_messages(dialer) == ([data] if isinstance(data, str) else data)


@pytest.mark.parametrize("text", ["omnistreams:numbering=3", "omnistreams:carrier=tcp"])
def test_a_wrong_option_names_the_accepted_values(text: str) -> None:
    with pytest.raises(BadProtocolString, match=r"numbering is spec or|carrier is websocket or"):
        create(text)


def test_the_dialect_is_the_numbering() -> None:
    assert [create(text).dialect() for text in (SPEC, LEGACY)] == ["spec", "legacy"]


def test_the_end_of_a_stream_is_reported_once() -> None:
    _, acceptor = ends()
    receive_messages(acceptor, "0101")
    assert [type(e) for e in receive_messages(acceptor, "0301")] == [Ended, Closed]
    assert receive_messages(acceptor, "0301") == []


def test_an_amount_beyond_reason_is_refused() -> None:
    _, acceptor = ends()
    receive_messages(acceptor, "0101")
    with pytest.raises(LocalProtocolError, match="bad-length"):
        acceptor.send_frame(Frame(REQUEST, 2, b"", 1 << 30))


def test_time_without_credit_ends_with_the_stream() -> None:
    """However it ends: by its end, a cancel, or another stream on its id."""
    for last in ("0301", "0401", "0101"):
        observer = Observer(create(SPEC))
        for at, text in ((10, "0101"), (50, last)):
            message = bytes.fromhex(text)
            observer.feed(0, len(message).to_bytes(4, "big") + message, at)
        observer.finish(1000, True, True)
        streams = [*observer.take_removed_streams(), *observer.protocol.streams.all()]
        assert streams[0].dialer.blocked_ns == 40
    observer = Observer(create(SPEC))
    observer.feed(0, bytes.fromhex("00000002 0101"), 10)
    observer.feed(1, bytes.fromhex("00000003 050101"), 30)
    observer.feed(0, bytes.fromhex("00000002 0201"), 60)
    observer.feed(1, bytes.fromhex("00000002 0601"), 100)
    observer.feed(0, bytes.fromhex("00000002 0201"), 200)  # crossed, and beyond credit
    observer.finish(1000, True, True)
    assert observer.protocol.streams.all()[0].dialer.blocked_ns == 20 + 40
