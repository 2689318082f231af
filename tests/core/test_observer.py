"""The observer: removed streams, snapshots, gaps and sinks."""

from __future__ import annotations

from polymux.core.connection import MAX_ZERO_FILL_BYTES
from polymux.core.events import EventSink, NullSink
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.streams import StreamState
from polymux.protocols.registry import create


def uvarint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def frame(number: int, flag: int, payload: bytes = b"") -> bytes:
    """An mplex frame."""
    return uvarint(number * 8 + flag) + uvarint(len(payload)) + payload


def new_observer(remembered: int = 4096) -> Observer:
    return Observer(create("mplex", Limits(closed_streams_remembered=remembered)))


def resumed(observer: Observer, remembered: int = 4096) -> Observer:
    """Another observer that continues from a snapshot of this one."""
    other = new_observer(remembered)
    other.restore(observer.snapshot())
    assert other.snapshot() == observer.snapshot()
    return other


def labels(streams: list[StreamState]) -> list[str]:
    return [stream.label() for stream in streams]


# Streams that leave the table


def observer_inside_a_reply() -> Observer:
    """Id 0 is reset and opened again while the dialer's reply on it is arriving."""
    observer = new_observer()
    observer.feed(1, frame(0, 0), 0)
    observer.feed(0, frame(0, 1, b"x" * 100)[:50], 1)
    observer.feed(1, frame(0, 6) + frame(0, 0), 2)
    return observer


def test_a_stream_with_an_incomplete_frame_is_returned_once_it_is_complete() -> None:
    observer = observer_inside_a_reply()
    assert observer.take_removed_streams() == []
    observer.feed(0, frame(0, 1, b"x" * 100)[50:], 3)
    (gone,) = observer.take_removed_streams()
    assert (gone.label(), gone.dialer.content_bytes) == ("a0", 100)
    assert observer.take_removed_streams() == []


def test_a_stream_whose_frame_is_never_completed_is_returned_at_the_end() -> None:
    observer = observer_inside_a_reply()
    assert observer.take_removed_streams() == []
    observer.finish(9, True, True)
    assert labels(observer.take_removed_streams()) == ["a0"]


# Snapshots


def test_an_incomplete_frame_keeps_its_stream_in_a_snapshot_after_id_reuse() -> None:
    observer = resumed(observer_inside_a_reply())
    observer.feed(0, frame(0, 1, b"x" * 100)[50:], 3)
    assert [
        (gone.label(), gone.dialer.content_bytes) for gone in observer.take_removed_streams()
    ] == [("a0", 100)]
    assert labels(observer.protocol.streams.all()) == ["a0.2"]


def test_closed_streams_are_evicted_in_order_also_after_a_snapshot() -> None:
    observer = new_observer(2)
    observer.feed(0, frame(1, 0) + frame(3, 0) + frame(5, 0), 0)
    observer.feed(0, frame(3, 6) + frame(1, 6), 1)
    observer = resumed(observer, 2)
    observer.feed(0, frame(5, 6), 2)
    assert labels(observer.take_removed_streams()) == ["d3"]
    assert labels(observer.protocol.streams.all()) == ["d1", "d5"]


def test_a_replaced_stream_counts_as_remembered_also_after_a_snapshot() -> None:
    def forgotten(resume: bool) -> list[str]:
        observer = new_observer(3)
        for number in (1, 3, 3, 3):
            observer.feed(0, frame(number, 0) + frame(number, 6), 0)
        observer.take_removed_streams()
        if resume:
            observer = resumed(observer, 3)
        observer.feed(0, frame(5, 0) + frame(5, 6), 1)
        return labels(observer.take_removed_streams()) + labels(observer.protocol.streams.all())

    assert forgotten(True) == forgotten(False)


# Bytes that were not captured


def test_gaps_in_many_frames_are_zero_filled_up_to_one_limit() -> None:
    size, frames = MAX_ZERO_FILL_BYTES // 2, 20
    observer = new_observer()
    observer.feed(0, frame(1, 0), 0)
    for n in range(frames):
        observer.feed(0, uvarint(1 * 8 + 2) + uvarint(size), n)
        observer.gap(0, size, n)
        if n == 10:
            observer = resumed(observer, 64)
    unfilled = observer.connection.unfilled_bytes
    assert unfilled == (frames - 11) * size  # the others by the first observer
    assert observer.connection.zero_filled_bytes == MAX_ZERO_FILL_BYTES
    assert observer.accounts_for_all_bytes()


def test_a_gap_in_a_frame_is_zero_filled_up_to_a_limit_and_counted_beyond() -> None:
    size, step = 2**40, 2**38
    observer = new_observer()
    observer.feed(0, frame(1, 0) + uvarint(1 * 8 + 2) + uvarint(size) + b"x" * 1000, 0)
    for _ in range(3):
        observer.gap(0, step, 1)
        assert observer.accounts_for_all_bytes()
    filled = 1000 + 3 * step - observer.connection.unfilled_bytes
    assert MAX_ZERO_FILL_BYTES <= filled < MAX_ZERO_FILL_BYTES + 65536
    assert observer.connection.dialer.in_payload
    observer.gap(0, size - 3 * step - 1000, 2)
    observer.feed(0, frame(1, 2, b"after"), 3)
    assert observer.accounts_for_all_bytes()
    d = observer.connection.dialer
    assert (d.decoding_stopped, d.in_payload, d.frames, d.missing_bytes, d.offset) == (
        False,
        False,
        3,
        0,
        d.total_bytes,
    )
    stream = observer.protocol.streams.find(2)
    assert stream is not None
    assert stream.dialer.content_bytes == size + 5
    assert observer.rows is not None
    (batch,) = observer.rows.take()
    assert [batch.payload_bytes[i] for i in range(batch.used)] == [0, size, 5]
    assert batch.byte_offset[2] == d.total_bytes - 7


# Sinks


def test_a_sink_is_notified_of_all_content_by_default() -> None:
    assert EventSink().wants_content
    assert EventSink().wants_frame_ends
    assert not NullSink().wants_content
    assert not NullSink().wants_frame_ends
    assert isinstance(new_observer().connection.sink, NullSink)
