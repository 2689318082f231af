"""Rows batched from many sessions are those that each session would have emitted alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.analysis.recorded_conversation import Stage

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output import session_rows as rows
from polymux.analysis.output.parquet import TableWriter, read_table
from polymux.analysis.output.row_batcher import (
    DEFAULT_BATCH_ROWS,
    MAX_PENDING_TEXT_BYTES,
    RowBatcher,
)
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions


class Emitted:
    """Batches by table, in order of arrival."""

    def __init__(self) -> None:
        self.batches: dict[str, list[pa.RecordBatch]] = {}

    def __call__(self, table: str, batch: pa.RecordBatch) -> None:
        self.batches.setdefault(table, []).append(batch)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        return {
            table: [row for batch in batches for row in batch.to_pylist()]
            for table, batches in self.batches.items()
        }


@pytest.fixture
def talks(tmp_path: Path) -> list[str]:
    paths = []
    for number in range(5):
        stage = Stage("mplex")
        for _ in range(number + 1):
            stream = stage.open(0, b"name")
            stage.send(0, stream, b"x" * 100)
            stage.end(0, stream)
        stage.exchange()
        ends = (("192.0.2.1", 40000 + number), ("198.51.100.2", 9000))
        paths.append(stage.save(tmp_path / f"talk-{number}.pcapng", ends=ends))
    return paths


def test_many_sessions_share_their_batches_and_keep_their_rows(talks: list[str]) -> None:
    alone, together = Emitted(), Emitted()
    batcher = RowBatcher(together)
    with read_sessions(talks) as reading:
        for session in reading:
            analyze_session(session, AnalysisOptions(), alone)
            analyze_session(session, AnalysisOptions(), together, batcher=batcher)
    assert "sessions" not in together.batches
    batcher.flush()
    assert together.rows() == alone.rows()
    assert len(alone.batches["sessions"]) == len(talks)
    assert len(together.batches["sessions"]) == len(together.batches["streams"]) == 1
    batcher.flush()
    assert together.rows() == alone.rows()


def put_violations(batcher: RowBatcher, count: int, detail: str) -> None:
    row = ["s", "dialer", 1, 1, 1, None, "r", "spec", "error", "certain", detail]
    batcher.add("violations", [row] * count)


def test_rows_are_emitted_when_a_batch_or_its_texts_are_full() -> None:
    emitted = Emitted()
    batcher = RowBatcher(emitted)
    put_violations(batcher, DEFAULT_BATCH_ROWS - 1, "d")
    assert not emitted.batches
    put_violations(batcher, 1, "d")
    assert [batch.num_rows for batch in emitted.batches["violations"]] == [DEFAULT_BATCH_ROWS]
    put_violations(batcher, 2, "d" * (MAX_PENDING_TEXT_BYTES // 2))  # long texts are emitted early
    assert [batch.num_rows for batch in emitted.batches["violations"]] == [
        DEFAULT_BATCH_ROWS,
        2,
    ]


def test_a_writer_has_all_rows_in_its_files(talks: list[str], tmp_path: Path) -> None:
    for name, waits in (("alone", False), ("together", True)):
        with read_sessions(talks) as reading, TableWriter(tmp_path / name) as writer:
            for session in reading:
                analyze_session(
                    session,
                    AnalysisOptions(),
                    writer.emit,
                    batcher=writer.batcher if waits else None,
                )
            assert writer.row_counts()["sessions"] == len(talks)
    for table in ("sessions", "streams", "frames", "timeline"):
        alone = read_table(tmp_path / "alone", table)
        assert alone.num_rows > 0
        assert read_table(tmp_path / "together", table).equals(alone)


def test_the_files_of_a_session_are_texts_too(talks: list[str]) -> None:
    emitted = Emitted()
    batcher = RowBatcher(emitted)
    with read_sessions(talks[:1]) as reading:
        (summary,) = (
            analyze_session(session, AnalysisOptions(), lambda *_: None) for session in reading
        )
    summary.capture = ["x" * 1000] * 100  # as for a session that lasts for days
    put = 0
    while not emitted.batches:
        batcher.add("sessions", [summary.values()])
        put += 1
    assert put == -(-MAX_PENDING_TEXT_BYTES // 100_000)


def test_a_full_batch_is_emitted_at_once() -> None:
    emitted = Emitted()
    batcher = RowBatcher(emitted)
    put_violations(batcher, DEFAULT_BATCH_ROWS, "d")
    assert [batch.num_rows for batch in emitted.batches["violations"]] == [DEFAULT_BATCH_ROWS]
    batcher.flush()
    assert len(emitted.batches["violations"]) == 1


def test_streams_with_long_names_do_not_wait_for_thousands_of_others(tmp_path: Path) -> None:
    stage = Stage("mplex")
    for _ in range(300):
        stage.open(0, b"n" * 4000)
        stage.exchange()
    emitted = Emitted()
    with read_sessions([stage.save(tmp_path / "talk.pcapng")]) as reading:
        for session in reading:
            analyze_session(session, AnalysisOptions(), emitted)
    most = -(-rows.MAX_PENDING_STREAM_TEXT_BYTES // 4000)
    assert [batch.num_rows for batch in emitted.batches["streams"]] == [most, 300 - most]
