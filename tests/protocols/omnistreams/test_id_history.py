"""omnistreams: which id is allocated next, and how messages for unopened ids are answered."""

import pytest
from tests.protocols.omnistreams.endpoint_pair import ends, fill, receive_messages, sent_messages

from polymux.core.endpoint import Endpoint
from polymux.core.errors import NoFreeIds
from polymux.core.limits import Limits
from polymux.core.streams import StreamState


def test_data_for_an_unknown_id_is_answered_once_until_its_next_create() -> None:
    _, acceptor = ends()
    receive_messages(acceptor, "020961", "020961")
    assert sent_messages(acceptor) == ["0609"]
    receive_messages(acceptor, "020961")
    assert sent_messages(acceptor) == []
    receive_messages(acceptor, "0109", "0309", "020961")
    assert sent_messages(acceptor) == ["0609"]
    assert acceptor.counters.hits == {"omnistreams.data-on-unknown-id": 4}


def test_an_answer_that_was_not_sent_yet_does_not_hit_the_stream_created_meanwhile() -> None:
    _, acceptor = ends()
    receive_messages(acceptor, "020961")  # a cancel is queued
    receive_messages(acceptor, "0109")
    assert sent_messages(acceptor) == []
    receive_messages(acceptor, "0309", "020961")
    receive_messages(acceptor, "0109")
    assert sent_messages(acceptor) == []


def test_a_flood_of_data_for_unknown_ids_queues_one_answer_an_id() -> None:
    _, acceptor = ends(limits=Limits(unknown_stream_burst=10_000))
    for _ in range(20):
        receive_messages(acceptor, *[f"02{number:02x}00" for number in range(256)])
    assert len(sent_messages(acceptor)) == 256


def test_ids_are_0_to_255_and_then_there_are_none() -> None:
    dialer, acceptor = ends()
    streams = fill(dialer)
    assert [stream.stream_id for stream in streams] == list(range(256))
    with pytest.raises(NoFreeIds):
        dialer.open()
    assert acceptor.open().label() == "a0"  # the other side has 256 of its own


def finish(end: Endpoint, stream: StreamState) -> None:
    end.end(stream)
    sent_messages(end)


def test_among_ids_that_are_only_ended_the_longest_free_is_used_again() -> None:
    dialer, _ = ends()
    streams = fill(dialer)
    for number in (9, 3, 200):
        finish(dialer, streams[number])
    assert [dialer.open().label() for _ in range(3)] == ["d9.2", "d3.2", "d200.2"]


def test_an_id_the_peer_has_cancelled_is_preferred_to_one_only_ended() -> None:
    dialer, _ = ends()
    streams = fill(dialer)
    finish(dialer, streams[9])
    receive_messages(dialer, "0603")
    assert dialer.open().label() == "d3.2"
    assert dialer.open().label() == "d9.2"


def test_an_id_whose_end_the_peer_has_provably_read_is_preferred_to_all() -> None:
    dialer, _ = ends()
    streams = fill(dialer, 255)
    finish(dialer, streams[9])
    finish(dialer, streams[70])
    dialer.open()  # id 255, after these ends
    receive_messages(dialer, "0603", "05ff01")  # a request for 255 proves that they were read
    finish(dialer, streams[5])
    assert [dialer.open().stream_id for _ in range(4)] == [9, 70, 3, 5]


def test_streams_are_told_apart_through_ten_thousand_uses_of_an_id() -> None:
    _, acceptor = ends()
    for _ in range(10_000):
        acceptor.receive(b"\0\0\0\2\1\7\0\0\0\2\3\7", 0.0)
    (stream,) = acceptor.protocol.streams.all()
    assert stream.label() == "d7.10000"
    assert len(acceptor.protocol.streams.closed) <= 2049
    assert not acceptor.protocol.streams.has_evicted
