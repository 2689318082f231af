"""Flood limits of the sans-IO endpoint, and violations that it only counts."""

from __future__ import annotations

import tracemalloc

import pytest

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation, StreamEnded
from polymux.core.events import Aborted
from polymux.core.limits import Limits
from polymux.protocols.registry import create


def endpoint(text: str = "mplex", limits: Limits | None = None) -> Endpoint:
    end = Endpoint(create(text, limits or Limits(), vantage=1), 1, direct=True)
    end.start(bytes(16))
    return end


def test_frames_for_unknown_streams_take_no_memory_and_are_counted_exactly() -> None:
    end = endpoint(limits=Limits(unknown_stream_burst=200_000))
    chunk = bytes.fromhex("0a00") * 5_000
    end.receive(chunk[:200], 0.0)
    tracemalloc.start()
    end.receive(chunk, 0.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert end.counters.hits == {"mplex.unknown-stream": 5_000 + 100}
    assert peak < 256 * 1024


def test_a_chunk_with_too_many_openings_is_not_decoded_completely() -> None:
    end = endpoint()
    two = b"".join(bytes([n << 3 & 127 | 128, n >> 4]) + b"\0" for n in range(16, 2048))
    three = b"".join(
        bytes([n << 3 & 127 | 128, n >> 4 & 127 | 128, n >> 11]) + b"\0" for n in range(2048, 9000)
    )
    with pytest.raises(LimitExceeded, match="open_reset_burst=1000"):
        end.receive(two + three, 0.0)
    assert end.connection.next_serial == 1024 + 1000 + 1


def test_buckets_refill_over_time() -> None:
    end = endpoint(limits=Limits(unknown_stream_burst=10, unknown_stream_rate=5))
    end.receive(bytes.fromhex("0a00") * 10, 0.0)
    with pytest.raises(LimitExceeded, match="unknown_stream_burst=10"):
        end.receive(bytes.fromhex("0a00"), 0.1)
    end = endpoint(limits=Limits(unknown_stream_burst=10, unknown_stream_rate=5))
    for second in range(20):
        end.receive(bytes.fromhex("0a00") * 5, float(second))
    assert end.counters.hits == {"mplex.unknown-stream": 100}


def test_a_violation_is_reported_once_and_aborts_its_stream() -> None:
    end = endpoint("nerdbank", Limits(receive_window=10))
    end.receive(bytes.fromhex("94 00 01 01 c4 06 92 a1 78 cd 1000"), 0.0)
    stream = end.protocol.streams.find(4)
    assert stream is not None
    end.accept(stream)
    end.data_to_send()
    events = end.receive(bytes.fromhex("94 02 01 01 c4 0b" + "78" * 11) * 1000, 0.0)
    faults = [event for event in events if isinstance(event, Aborted)]
    assert len(faults) == 1
    assert faults[0].text.startswith(b"nerdbank.window-exceeded: Content of 11 bytes: 1 byte ")
    assert end.counters.hits["nerdbank.window-exceeded"] == 1000
    assert end.receive_queue.unread_bytes == 0
    said = end.data_to_send()
    assert said.count(b"nerdbank.window-exceeded") == 1


def test_undecodable_bytes_end_the_session_with_a_reason() -> None:
    end = endpoint()
    end.connection.stop_decoding(end.connection.direction(0), 0, 0, 0, "bytes went missing")
    with pytest.raises(PeerViolation, match="bytes went missing"):
        end.receive(b"\0\0", 0.0)


def test_a_peer_that_never_replies_does_not_fill_the_memory() -> None:
    limits = Limits(closed_streams_remembered=20, open_reset_burst=10_000, accept_backlog=10_000)
    end = endpoint("nerdbank", limits)
    for _ in range(200):
        stream = end.open(b"x")
        end.data_to_send()
        end.abort(stream)
        end.data_to_send()  # the peer must reply to each of these
    assert len(end.protocol.pending_replies) <= 21


def test_unsent_replies_are_noticed_when_more_bytes_arrive() -> None:
    end = endpoint("nerdbank", Limits(max_queued_replies=5))
    for number in range(1, 6):
        end.receive(bytes.fromhex(f"94 00 {number:02x} 01 c4 06 92 a1 78 cd 1000"), 0.0)
        end.receive(bytes.fromhex(f"93 04 {number:02x} 01"), 0.0)
    assert len(end.scheduler.control_queue) == 5
    with pytest.raises(LimitExceeded, match="max_queued_replies=5"):
        end.receive(bytes.fromhex("93 04 09 01"), 0.0)
    assert end.counters.hits["max_queued_replies"] == 1


def test_a_reply_for_an_earlier_use_of_an_id_does_not_affect_the_next() -> None:
    end = endpoint()
    end.receive(bytes.fromhex("0800"), 0.0)
    first = end.protocol.streams.find(2)
    assert first is not None
    end.abort(first)  # queued, not sent
    end.end(first)
    end.receive(bytes.fromhex("0e00 0800"), 0.0)  # the peer resets, and uses the id again
    assert end.data_to_send() == b""
    second = end.protocol.streams.find(2)
    assert second is not first


def test_data_without_credit_does_not_count_as_waiting_for_the_transport() -> None:
    end = endpoint("nerdbank")
    stream = end.open(b"x")
    end.send(stream, bytes(1000))
    assert end.scheduler.ready_bytes == 1000
    end.data_to_send()
    assert (end.scheduler.ready_bytes, stream.buffers and stream.buffers.queued_bytes) == (0, 1000)
    end.receive(bytes.fromhex("94 01 01 ff c4 04 91 cd 012c"), 0.0)  # accepted: 300 bytes
    end.resume(stream)
    assert end.scheduler.ready_bytes == 1000
    end.data_to_send()
    assert (end.scheduler.ready_bytes, stream.buffers and stream.buffers.queued_bytes) == (0, 700)
    end.abort(stream)
    assert (end.scheduler.ready_bytes, stream.buffers and stream.buffers.queued_bytes) == (0, 0)


def test_send_many_queues_all_pieces_or_none() -> None:
    end = endpoint()
    stream = end.open(b"x")
    end.data_to_send()
    end.send_many(stream, [b"a", b"", b"bc"])
    assert end.data_to_send().hex() == "020161" + "02026263"
    end.end(stream)
    with pytest.raises(StreamEnded):
        end.send_many(stream, [b"a", b"b"])
    assert end.data_to_send().hex() == "0400"
