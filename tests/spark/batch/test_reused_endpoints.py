"""Thousands of short connections of the same two endpoints: one flow, whose sessions are freed."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import ACCEPTOR, MS, START

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.session.analyzer import analyze_flow, analyze_session
from polymux.capture import (
    CaptureLimits,
    FilePool,
    PcapngWriter,
    TcpConnectionWriter,
    TcpSession,
    index_file,
    read_sessions,
)
from polymux.capture.io.file_pool import UrlFilePool
from polymux.capture.tcp.reassembly import TcpEvents
from polymux.spark.batch.analyze_stage import StageResult, analyze_sessions
from polymux.spark.batch.reference_shuffle import (
    MIN_BUCKETS,
    FlowSelection,
    ReferenceReader,
    ReferenceWriter,
)

CONNECTIONS = 300
FEW = 5
OPTIONS = AnalysisOptions("mplex")


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("reused") / "one.pcapng"
    with PcapngWriter(str(path), sync="none") as writer:
        for number in range(CONNECTIONS):
            at = START + number * 1000 * MS
            connection = TcpConnectionWriter(writer, ("192.0.2.1", 5000), ACCEPTOR, at)
            connection.data(0, b"\x08\x01s\x0a\x05hello", at + MS)
            connection.data(1, b"\x09\x05world", at + 2 * MS)
            connection.close(at + 3 * MS)
    return str(path)


class Held:
    """How many sessions and reassembled events are in memory."""

    def __init__(self) -> None:
        gc.collect()
        every = gc.get_objects()
        self.sessions = sum(isinstance(each, TcpSession) for each in every)
        self.events = sum(isinstance(each, TcpEvents) for each in every)


class CountingOutput:
    """Writes all sessions to the same files. `last` is what is held after the last one."""

    def __init__(self, writer: TableWriter) -> None:
        self.writer = writer
        self.ended = 0
        self.last: Held | None = None

    def begin_flow(self, sessions: Sequence[TcpSession], files: UrlFilePool) -> None:
        assert len(sessions) == CONNECTIONS

    def begin_session(self, session: TcpSession) -> TableWriter:
        return self.writer

    def end_session(self, session: TcpSession) -> None:
        self.ended += 1
        if self.ended == CONNECTIONS:
            self.last = Held()


def test_a_task_holds_no_session_that_it_has_analyzed(capture: str, tmp_path: Path) -> None:
    with ReferenceWriter(str(tmp_path)) as writer:
        writer.add(index_file(capture).rows)
    selection = FlowSelection(range(MIN_BUCKETS))
    flows = ReferenceReader(str(tmp_path), [writer.result.name], selection)
    result = StageResult()
    with (
        TableWriter(str(tmp_path), "part", OPTIONS.layout) as tables,
        UrlFilePool(CaptureLimits(), flows.identities, flows.copies) as files,
    ):
        output = CountingOutput(tables)
        analyze_sessions(flows, files, output, OPTIONS, result)
    assert result.sessions == CONNECTIONS
    assert output.last is not None
    assert output.last.sessions <= FEW
    assert output.last.events <= FEW


def test_nor_does_the_analysis_of_a_flow(capture: str) -> None:
    last: list[Held] = []
    emitted = 0

    def emit(table: str, batch: object) -> None:
        nonlocal emitted
        emitted += table == "sessions"
        if emitted == CONNECTIONS and not last:
            last.append(Held())

    with FilePool() as files:
        found = analyze_flow(index_file(capture).rows, files.reader, OPTIONS, emit)
    assert len(found) == CONNECTIONS
    assert last[0].sessions <= FEW


def test_a_reader_holds_no_session_but_the_one_it_gave_last(capture: str) -> None:
    with read_sessions([capture]) as reading:
        for number, _ in enumerate(reading, 1):
            if number == CONNECTIONS:
                assert Held().sessions <= FEW


def test_an_analyzed_session_holds_no_events(capture: str) -> None:
    with read_sessions([capture]) as reading:
        sessions = list(reading)
        for session in sessions:
            analyze_session(session, OPTIONS, lambda table, batch: None)
        held = Held()
    assert held.sessions >= CONNECTIONS
    assert held.events <= FEW


def test_a_session_that_was_scanned_can_be_read_again_and_again(capture: str) -> None:
    with read_sessions([capture]) as reading:
        session = next(iter(reading)).scan_packets()
        first, second, third = ([piece.data for piece in session.pieces()] for _ in range(3))
    assert first == second == third
    assert b"".join(first) == b"\x08\x01s\x0a\x05hello\x09\x05world"
