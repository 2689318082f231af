"""Captures on a pipe that begin in the middle, with a hole, with a SYN that carries payload, ..."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from tests.capture.capture_builder import (
    ACK,
    ALICE,
    BOB,
    MS,
    PSH,
    START,
    SYN,
    Packet,
    frame,
    pcapng,
    talk,
)

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session import live_analyzer as frames_module
from polymux.analysis.session.analyzer import analyze_session
from polymux.analysis.session.live_analyzer import LiveAnalyzer
from polymux.capture import read_sessions
from polymux.capture.io.pipes import CapturePipe
from polymux.capture.live_reader import LiveCapture

Row = dict[str, object]

OPENED = b"\x08\x04good"
ASKED = b"\x0a\x05hello"
ANSWERED = b"\x09\x02ok"


class Given(CapturePipe):
    """A pipe that returns one of these pieces for each read; None is a pause."""

    def __init__(self, *pieces: bytes | None) -> None:
        super().__init__("-", -1)
        self._pieces = list(pieces)

    def read_raw(self) -> bytes | None:
        return self._pieces.pop(0) if self._pieces else b""


def of_pipe(*pieces: bytes | None, protocol: str = "mplex") -> list[Row]:
    rows: list[Row] = []
    frames = LiveAnalyzer(
        AnalysisOptions(protocol), lambda _, batch: rows.extend(batch.to_pylist())
    )
    for session in LiveCapture(Given(*pieces)):
        frames.receive(session)
    return rows


def of_file(data: bytes, path: Path, protocol: str = "mplex") -> list[Row]:
    path.write_bytes(data)
    rows: list[Row] = []
    with read_sessions(path) as reading:
        for session in reading:
            plan = AnalysisOptions(protocol, tables=frozenset({"frames"}))
            analyze_session(session, plan, lambda _, batch: rows.extend(batch.to_pylist()))
    return rows


@pytest.mark.parametrize("protocol", ["mplex", "auto"])
@pytest.mark.parametrize("missing", [2, 3, 4])
def test_a_session_whose_start_was_not_captured_is_decoded(
    missing: int, protocol: str, tmp_path: Path
) -> None:
    lines = [(0, OPENED), *[(0, ASKED), (1, ANSWERED)] * 40]
    data = pcapng(talk(*lines)[missing:])
    rows = of_pipe(data, protocol=protocol)
    assert len(rows) == len(lines) - max(0, missing - 3)
    assert rows == of_file(data, tmp_path / "late.pcapng", protocol)


@pytest.mark.parametrize("protocol", ["mplex", "auto"])
def test_a_session_that_begins_with_a_hole_is_not_buffered_for_ever(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "MAX_UNDECIDED_BYTES", 2000)
    monkeypatch.setattr(frames_module, "FULL_SAMPLE_BYTES", 5000)
    lines = [(0, OPENED), (1, ANSWERED), *[(0, ASKED * 10), (1, ANSWERED * 10)] * 60]
    packets = talk(*lines, close=False)
    del packets[3]  # acknowledged by the next, so it was sent and not captured
    rows = of_pipe(pcapng(packets), protocol=protocol)
    # mplex cannot be decoded after a hole; the other side can, if the protocol is given.
    assert len(rows) == (601 if protocol == "mplex" else 0)


def test_a_syn_with_payload_that_is_confirmed_later_is_decoded(tmp_path: Path) -> None:
    sent = [
        frame(ALICE, BOB, 100, 0, SYN, OPENED),
        frame(BOB, ALICE, 900, 107, SYN | ACK),
        frame(ALICE, BOB, 107, 901, PSH | ACK, ASKED),
        frame(BOB, ALICE, 901, 114, PSH | ACK, ANSWERED),
    ]
    before = talk((0, OPENED), isn=(70000, 80000), close=False)
    after = [Packet(START + MS * (n + 100), data) for n, data in enumerate(sent)]
    data = pcapng([*before, *after])
    rows = of_pipe(data)
    assert [row["kind"] for row in rows] == [
        "NewStream", "NewStream", "MessageInitiator", "MessageReceiver"
    ]  # fmt: skip
    assert rows == of_file(data, tmp_path / "fast.pcapng")


def test_frames_of_one_side_come_when_the_pipe_is_silent() -> None:
    rows: list[Row] = []
    frames = LiveAnalyzer(AnalysisOptions("mplex"), lambda _, batch: rows.extend(batch.to_pylist()))
    came = []
    data = pcapng(talk((0, OPENED + ASKED), close=False))
    for session in LiveCapture(Given(data, None, pcapng([]))):
        frames.receive(session)
        came.append(len(rows))
    assert came == [0, 2, 2]


def test_a_session_with_too_many_open_streams_is_decoded_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames_module, "MAX_OPEN_STREAMS", 100)
    opened = [bytes((n & 127 | 128, n >> 7, 0)) for n in range(1 << 3, 500 << 3, 8) if n >= 128]
    packets = talk(*[(0, new) for new in opened], close=False)
    told: list[str] = []
    rows: list[Row] = []
    frames = LiveAnalyzer(
        AnalysisOptions("mplex"),
        lambda _, batch: rows.extend(batch.to_pylist()),
        on_warning=lambda session, note: told.append(note),
    )
    data = pcapng(packets)
    pieces = [data[at : at + 500] for at in range(0, len(data), 500)]
    for session in LiveCapture(Given(*pieces[:20], None, *pieces[20:])):
        frames.receive(session)
    assert told == ["more than 100 streams are open at once: decoding stopped"]
    assert 100 < len(rows) < 200


def test_packets_truncated_to_their_headers_leave_nothing_buffered() -> None:
    """Each of them is buffered behind a hole for a while, without any payload."""
    sent = talk(*[(0, b"y" * 100)] * 6000, step=10 * MS, close=False)
    cut = [
        replace(packet, data=packet.data[:54], wire=len(packet.data))
        for n, packet in enumerate(sent)
        if n % 10 != 5
    ]
    data = pcapng(cut)
    pipe = Given(*(data[at : at + 8192] for at in range(0, len(data), 8192)))
    sizes = []
    tracemalloc.start()
    for session in LiveCapture(pipe):
        if session is not None:
            session.take_batches()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[-2] - sizes[len(sizes) // 4] < 50_000
