"""omnistreams: what an endpoint sends, from creation to the end or a cancel."""

import pytest
from tests.protocols.omnistreams.endpoint_pair import (
    CANCEL_RECEIVE,
    CONTROL,
    DATA,
    LEGACY,
    REQUEST,
    SPEC,
    carry,
    ends,
    fill,
    messages,
    names,
    receive_messages,
    sent_messages,
)

from polymux.core.errors import LocalProtocolError, NoFreeIds
from polymux.core.events import Aborted, Control, Credit, Data, Opened
from polymux.core.frames import Frame


@pytest.mark.parametrize(
    ("text", "first", "asked", "rest"),
    [
        (SPEC, "01007b7d", "050002", ["020068656c6c6f", "0200", "0300"]),
        (LEGACY, "00007b7d", "040002", ["010068656c6c6f", "0100", "0200"]),
    ],
)
def test_a_stream_from_creation_to_end(text: str, first: str, asked: str, rest: list[str]) -> None:
    dialer, acceptor = ends(text)
    stream = dialer.open(b"{}")
    dialer.send(stream, b"hello")
    dialer.send(stream, b"")
    dialer.end(stream)
    data = dialer.data_to_send()
    assert messages(data) == [first]
    (opened,) = acceptor.receive(data, 0.0)
    assert isinstance(opened, Opened)
    assert opened.stream is not None
    assert opened.stream.name == b"{}"
    acceptor.accept(opened.stream, 2)
    data = acceptor.data_to_send()
    assert messages(data) == [asked]
    (credit,) = dialer.receive(data, 0.0)
    assert isinstance(credit, Credit)
    dialer.resume(stream)
    data = dialer.data_to_send()
    assert messages(data) == rest
    events = acceptor.receive(data, 0.0)
    assert names(events) == ["Data", "Data", "Ended", "Closed"]
    assert [event.data for event in events if isinstance(event, Data)] == [b"hello", b""]


def test_a_message_waits_for_credit_and_is_never_split() -> None:
    dialer, _ = ends()
    stream = dialer.open()
    big = bytes(100_000)
    dialer.send(stream, big)
    dialer.send(stream, big)
    assert sent_messages(dialer) == ["0100"]
    receive_messages(dialer, "050001")
    dialer.resume(stream)
    assert sent_messages(dialer) == ["0200" + big.hex()]
    receive_messages(dialer, "050001")
    dialer.resume(stream)
    assert sent_messages(dialer) == ["0200" + big.hex()]


def test_a_request_above_255_is_split() -> None:
    dialer, acceptor = ends()
    dialer.open()
    (opened,) = carry(dialer, acceptor)
    assert opened.stream is not None
    acceptor.accept(opened.stream, 600)
    data = acceptor.data_to_send()
    assert messages(data) == ["0500ff", "0500ff", "05005a"]
    assert acceptor.protocol.causality.frames_sent(1) == 3
    dialer.receive(data, 0.0)
    stream = dialer.protocol.streams.find(0)
    assert stream is not None
    assert (stream.dialer.credit_granted, opened.stream.dialer.credit_granted) == (600, 600)


def test_a_request_of_0_is_not_sent_by_reading_and_may_be_put() -> None:
    dialer, acceptor = ends()
    dialer.open()
    (opened,) = carry(dialer, acceptor)
    assert opened.stream is not None
    acceptor.read(opened.stream, 0)
    assert sent_messages(acceptor) == []
    acceptor.send_frame(Frame(REQUEST, opened.stream.key, b"", 0))
    assert sent_messages(acceptor) == ["050000"]


def test_reading_asks_again_at_half_the_window() -> None:
    dialer, acceptor = ends()
    stream = dialer.open()
    (opened,) = carry(dialer, acceptor)
    assert opened.stream is not None
    acceptor.accept(opened.stream)
    assert sent_messages(acceptor) == ["050040"]  # 64 messages by default
    receive_messages(dialer, "050040")
    for _ in range(40):
        dialer.send(stream, b"x")
    dialer.resume(stream)
    assert len(carry(dialer, acceptor)) == 40
    acceptor.read(opened.stream, 31)
    assert sent_messages(acceptor) == []
    acceptor.read(opened.stream, 1)
    assert sent_messages(acceptor) == ["050020"]


def test_control_messages_pass_beside_the_streams() -> None:
    dialer, acceptor = ends()
    dialer.send_frame(Frame(CONTROL, 0, b"{}"))
    (event,) = carry(dialer, acceptor)
    assert isinstance(event, Control)
    assert (event.stream, event.kind, event.text) == (None, CONTROL, b"{}")


def test_the_writer_cancels_and_the_id_is_free() -> None:
    dialer, acceptor = ends()
    stream = dialer.open()
    dialer.send(stream, b"never leaves")
    dialer.abort(stream)
    data = dialer.data_to_send()
    assert messages(data) == ["0100", "0400"]
    assert names(acceptor.receive(data, 0.0)) == ["Opened", "Aborted", "Closed"]
    assert dialer.protocol.ending(stream) == "cancelled"
    assert stream.over


def test_the_reader_cancels_and_late_data_is_dropped_in_silence() -> None:
    _, acceptor = ends()
    (opened, *_) = receive_messages(acceptor, "0105")
    assert opened.stream is not None
    acceptor.accept(opened.stream, 9)
    acceptor.abort(opened.stream)
    assert sent_messages(acceptor) == ["050509", "0605"]
    assert [e for e in receive_messages(acceptor, "020561", "020562") if isinstance(e, Data)] == []
    assert sent_messages(acceptor) == []  # no cancel for each late message
    assert acceptor.counters.hits == {}
    assert opened.stream.dialer.content_units == 2


def test_a_legacy_writer_cancels_in_silence_and_keeps_the_id_until_the_peer_lets_go() -> None:
    dialer, _ = ends(LEGACY)
    stream = dialer.open()
    dialer.send(stream, b"x")
    sent_messages(dialer)
    dialer.abort(stream)
    dialer.end(stream)
    receive_messages(dialer, "0400ff")
    dialer.resume(stream)
    assert sent_messages(dialer) == []
    assert dialer.protocol.allocate(0) == 1 * 2
    fill(dialer, 255)
    with pytest.raises(NoFreeIds):
        dialer.open()
    receive_messages(dialer, "0300")
    assert dialer.open().label() == "d0.2"


def test_the_legacy_numbering_has_no_writers_cancel() -> None:
    dialer, _ = ends(LEGACY)
    dialer.open()
    with pytest.raises(LocalProtocolError, match="unknown-type"):
        dialer.send_frame(Frame(CANCEL_RECEIVE, 0))


def test_data_beyond_credit_cancels_that_stream_and_delivers_nothing() -> None:
    _, acceptor = ends()
    receive_messages(acceptor, "0101", "0102")
    for stream in acceptor.protocol.streams.all():
        acceptor.accept(stream, 1)
    events = receive_messages(acceptor, "020161", "020162", "020263")
    assert [bytes(e.data) for e in events if isinstance(e, Data)] == [b"a", b"c"]
    assert sent_messages(acceptor) == ["050101", "050201", "0601"]
    assert acceptor.counters.hits == {"omnistreams.credit-exceeded": 1}


def test_create_on_an_open_id_aborts_the_old_stream_and_opens_the_new() -> None:
    _, acceptor = ends()
    (first,) = receive_messages(acceptor, "010161")
    events = receive_messages(acceptor, "010162")
    assert [type(e) for e in events] == [Opened, Aborted]
    assert events[1].stream is first.stream
    assert events[0].stream is not first.stream
    assert first.stream is not None
    acceptor.abort(first.stream)  # has no effect on the new stream
    acceptor.read(first.stream, 1)
    acceptor.accept(first.stream)
    assert sent_messages(acceptor) == []


def test_an_end_that_crosses_a_cancel_leaves_both_sides_idle() -> None:
    dialer, acceptor = ends()
    stream = dialer.open()
    (opened,) = carry(dialer, acceptor)
    assert opened.stream is not None
    dialer.end(stream)
    acceptor.abort(opened.stream)
    ending, cancel = dialer.data_to_send(), acceptor.data_to_send()
    acceptor.receive(ending, 0.0)
    dialer.receive(cancel, 0.0)
    assert not dialer.pending()
    assert not acceptor.pending()
    assert stream.over
    assert opened.stream.over
    assert (dialer.counters.hits, acceptor.counters.hits) == ({}, {})


def test_nothing_is_sent_after_the_peers_cancel() -> None:
    dialer, _ = ends()
    stream = dialer.open()
    dialer.send(stream, b"x")
    receive_messages(dialer, "050001", "0600")
    dialer.end(stream)
    assert sent_messages(dialer) == ["0100"]
    with pytest.raises(LocalProtocolError, match="sent-after-cancel"):
        dialer.send_frame(Frame(DATA, 0, b"x"))
