"""Sessions of a capture on a pipe, read while it is written, equal those of the file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.spark.random_captures import blocks_of, conversations, record, roughen

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.analysis.session.live_analyzer import LiveAnalyzer
from polymux.capture import PcapngWriter, TcpConnectionWriter, index_file, read_sessions
from polymux.capture import live_reader as live_module
from polymux.capture.io.pipes import CapturePipe
from polymux.capture.live_reader import LiveCapture, LiveSession
from polymux.capture.synthesis.packet_builder import PacketBurst

Row = dict[str, object]
Events = list[list[tuple[str, bytes | int]]]


class Trickle(CapturePipe):
    """Returns the bytes of a file in pieces of random sizes, with pauses."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(str(path), -1)
        self._rng = Random(seed)
        self._data = path.read_bytes()
        self._at = 0

    def read_raw(self) -> bytes | None:
        if self._rng.random() < 0.05:
            return None
        size = self._rng.choice((1, 7, 100, 1000, 50_000))
        self._at += size
        return self._data[self._at - size : self._at]


def passed(pieces: Iterator[tuple[int, str, bytes | int]]) -> Events:
    """The events of each side: payload joined, gaps, and the end."""
    sides: Events = [[], []]
    for side, kind, what in pieces:
        lane = sides[side]
        if lane and lane[-1][0] == kind:
            lane[-1] = (kind, lane[-1][1] + what)  # type: ignore[operator]  # of the same kind
        else:
            lane.append((kind, what))
    return sides


def from_file(path: Path) -> dict[tuple[str, int], Events]:
    """Sessions whose order is proven: a pipe cannot know of later packets that cast doubt on it."""
    found = {}
    with read_sessions(path) as reading:
        for session in reading:
            if not session.ordered:
                continue
            found[session.dialer, session.started_at] = passed(
                (piece.side, piece.end or "gap" if not piece.data else "bytes",
                 piece.data or piece.size)
                for piece in session.pieces()
            )  # fmt: skip
    return found


def from_pipe(path: Path, seed: int) -> dict[tuple[str, int], Events]:
    pieces: dict[LiveSession, list[tuple[int, str, bytes | int]]] = {}
    capture = LiveCapture(Trickle(path, seed))
    for session in capture:
        if session is None:
            continue
        for batch in session.take_batches():
            start = 0
            for n in range(batch.count):
                kind = ("bytes", "gap", "fin", "rst")[batch.kind[n]]
                size = int(batch.size[n])
                what: bytes | int = size
                if kind == "bytes":
                    what = batch.data[start : start + size]
                    start += size
                pieces.setdefault(session, []).append((int(batch.side[n]), kind, what))
    return {
        (session.dialer, session.started_at): passed(iter(found))
        for session, found in pieces.items()
    }


@pytest.mark.parametrize("seed", range(6))
def test_a_pipe_gives_what_the_file_gives(seed: int, tmp_path: Path) -> None:
    """Segments out of order, repeated and lost; several connections at once."""
    calm = tmp_path / "calm.pcapng"
    record([calm], conversations(100 + seed, 4))
    head, packets = blocks_of(calm)
    rng = Random(seed)
    lost = roughen(packets, seed) if seed else packets
    lost = [packet for n, packet in enumerate(lost) if n < 12 or rng.random() > 0.01 * (seed % 3)]
    rough = tmp_path / "rough.pcapng"
    rough.write_bytes(head + b"".join(lost))
    expected = from_file(rough)
    found = from_pipe(rough, seed)
    assert expected
    assert {name: found[name] for name in expected} == expected


def frames_of(path: Path) -> list[Row]:
    rows: list[Row] = []
    with read_sessions(path) as reading:
        for session in reading:
            plan = AnalysisOptions(tables=frozenset({"frames"}))
            analyze_session(session, plan, lambda _, batch: rows.extend(batch.to_pylist()))
    return rows


def key(row: Row) -> tuple[str, str, int]:
    return str(row["session_id"]), str(row["sender"]), int(str(row["frame_index"]))


@pytest.mark.parametrize("seed", range(3))
def test_frames_of_a_pipe_are_those_of_the_file(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "talk.pcapng"
    record([path], conversations(200 + seed, 4))
    rows: list[Row] = []
    frames = LiveAnalyzer(AnalysisOptions(), lambda _, batch: rows.extend(batch.to_pylist()))
    for session in LiveCapture(Trickle(path, seed)):
        frames.receive(session)
    assert frames.session_count == frames.matched_count == 4
    assert sorted(rows, key=key) == sorted(frames_of(path), key=key)


def test_frames_come_while_the_pipe_is_open(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    sink = Pipeline(writer, tmp_path)
    scribe = TcpConnectionWriter(sink, ("192.0.2.1", 40000), ("198.51.100.2", 9000), 10**18)
    scribe.data(0, b"\x08\x04good\x0a\x05hello", 10**18 + 1)
    scribe.data(1, b"\x09\x02ok", 10**18 + 2)
    came = threading.Event()
    rows: list[Row] = []

    def emit(table: str, batch: object) -> None:
        rows.extend(batch.to_pylist())  # type: ignore[attr-defined]  # a RecordBatch
        if len(rows) >= 3:
            came.set()

    def read() -> None:
        frames = LiveAnalyzer(AnalysisOptions("mplex"), emit)
        for session in LiveCapture(CapturePipe("-", reader)):
            frames.receive(session)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert came.wait(20), rows
        assert [row["kind"] for row in rows] == ["NewStream", "MessageInitiator", "MessageReceiver"]
    finally:
        os.close(writer)
        thread.join(20)
        os.close(reader)


class Pipeline:
    """A sink that writes packets to a pipe at once, each as a capture of its own."""

    def __init__(self, fd: int, scratch: Path) -> None:
        self.comment_epoch = 1
        self._fd = fd
        self._scratch = scratch
        self._count = 0

    def burst(self, burst: PacketBurst) -> None:
        self._count += 1
        path = self._scratch / f"{self._count}.pcapng"
        with PcapngWriter(path, sync="none") as writer:
            writer.burst(burst)
        os.write(self._fd, path.read_bytes())


def test_flows_beyond_the_bound_are_ended_the_one_silent_for_longest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "MAX_TRACKED_FLOWS", 2)
    path = tmp_path / "many.pcapng"
    with PcapngWriter(path, sync="none") as writer:
        for number in range(4):
            scribe = TcpConnectionWriter(
                writer, ("192.0.2.1", 40000 + number), ("192.0.2.2", 9), 10**18
            )
            scribe.data(0, b"x", 10**18 + number + 1)
    capture = LiveCapture(Trickle(path, 1))
    over = [session.dialer for session in capture if session and session.over]
    assert capture.summary == index_file(path).summary
    assert over == [f"192.0.2.1:{40000 + number}" for number in range(4)]
