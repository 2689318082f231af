"""The beginning of a session is read once, for detection and for decoding."""

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.packet_script import Wire
from tests.analysis.recorded_conversation import MS, START, Record, Stage, save

from polymux.analysis.detection.sample import FULL_SAMPLE_BYTES, PeekedSession, take_sample
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import FilePool, StreamBatch, TcpSession, index_file, sessions_of
from polymux.capture.io.read_ahead import ReadAhead, ReadCoalescer
from polymux.core.errors import CaptureError


@contextmanager
def surveyed(path: str, asked: list[int] | None = None) -> Iterator[TcpSession]:
    """The only session of a capture; `asked` records every byte that is read of its payload."""
    with FilePool() as files:

        def reader(name: str) -> Callable[[int, int], bytes]:
            read = files.reader(name)

            def told(offset: int, size: int) -> bytes:
                if asked is not None:
                    asked.extend(range(offset, offset + size))
                return read(offset, size)

            return told

        (session,) = sessions_of(index_file(path).rows, reader)
        yield session.scan_packets()


def columns(batches: Iterator[StreamBatch]) -> list[tuple[list[tuple[int, ...]], bytes]]:
    return [
        (
            [
                (
                    int(batch.side[n]),
                    int(batch.kind[n]),
                    int(batch.timestamp[n]),
                    int(batch.size[n]),
                )
                for n in range(batch.count)
            ],
            batch.data,
        )
        for batch in batches
    ]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=300)), max_size=12),
    st.integers(1, 2000),
)
def test_whatever_a_batch_is_the_sample_and_the_batches_are_the_same(
    lines: list[tuple[int, bytes]], size: int
) -> None:
    record: Record = [(side, data, START + (n + 1) * MS) for n, (side, data) in enumerate(lines)]
    with TemporaryDirectory() as folder, surveyed(save(Path(folder, "a"), record)) as session:
        opening = PeekedSession(session, size)
        assert opening.sample() == take_sample(session)
        assert columns(opening.batches()) == columns(session.batches(size))
        assert list(opening.batches()) == []


@pytest.mark.parametrize("size", [1, 1500, 5000, 1 << 20])
def test_a_hole_ends_the_sample_but_not_the_batches(tmp_path: Path, size: int) -> None:
    wire = Wire(tmp_path / "a")
    wire.data(0, b"a" * 3000, START + MS)
    wire.next[0] += 500
    wire.data(0, b"b" * 3000, START + 2 * MS)
    wire.writer.close()
    with surveyed(wire.path) as session:
        opening = PeekedSession(session, size)
        assert opening.sample() == take_sample(session)
        assert opening.sample().head(0) == b"a" * 3000
        assert columns(opening.batches()) == columns(session.batches(size))


def test_no_byte_of_a_session_is_read_twice(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"bulk")
    for _ in range(40):
        stage.send(0, stream, bytes(30_000))
        stage.exchange()
    asked: list[int] = []
    with surveyed(stage.save(tmp_path / "a"), asked) as session:
        found = analyze_session(session, AnalysisOptions(), lambda table, batch: None)
        assert found.protocol == "mplex"
        assert sum(session.reassembled_bytes) > 4 * FULL_SAMPLE_BYTES
    assert len(asked) == len(set(asked))


def test_taking_a_sample_again_does_not_move_the_place_of_a_flow_among_others(
    tmp_path: Path,
) -> None:
    record: Record = [(0, b"0123456789", START + n * MS) for n in range(1, 6001)]
    shared = ReadCoalescer()
    with FilePool() as files:
        companion = ReadAhead(shared)
        rows = index_file(save(tmp_path / "a", record)).rows
        (session,) = sessions_of(rows, files.reader, read_ahead=companion)
        opening = PeekedSession(session.scan_packets(), 1 << 18)
        wanted = companion.next_timestamp
        assert opening.sample().size == 60_000
        assert companion.next_timestamp == wanted
        first = next(opening.batches())
        assert first.timestamp[first.count - 1] < wanted


def test_a_session_that_cannot_be_read_is_freed_all_the_same(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"bulk")
    stage.send(0, stream, bytes(30_000))
    stage.exchange()
    path = stage.save(tmp_path / "a")
    gc.collect()
    gc.disable()
    try:
        with FilePool() as files:
            held = []

            def open_reader(path: str) -> Callable[[int, int], bytes]:
                reader = partial(files.reader(path))
                held.append(weakref.ref(reader))  # the session itself has no weak references
                return reader

            (session,) = sessions_of(index_file(path).rows, open_reader)
            os.truncate(path, 1000)
            assert (
                "shrank"
                in analyze_session(session, AnalysisOptions(), lambda table, batch: None).read_error
            )
            assert held[0]() is not None
            del session
            assert [reader() for reader in held] == [None] * len(held)
    finally:
        gc.enable()


def test_where_reading_fails_the_readable_part_is_detected_and_the_error_noted(
    tmp_path: Path,
) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"bulk")
    for _ in range(6):
        stage.send(0, stream, bytes(30_000))
        stage.exchange()
    path = stage.save(tmp_path / "a")
    with surveyed(path) as session:
        os.truncate(path, 100_000)
        opening = PeekedSession(session, 150_000)
        assert opening.sample() == take_sample(session)
        assert opening.sample().size == FULL_SAMPLE_BYTES
        with pytest.raises(CaptureError, match="shrank"):
            list(opening.batches())
        found = analyze_session(session, AnalysisOptions(), lambda table, batch: None)
    assert found.protocol == "mplex"
    assert "shrank" in found.read_error
