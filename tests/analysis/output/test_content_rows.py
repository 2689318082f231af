"""The content table holds exactly the bytes that the streams count."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import MS, START, Stage, analyse, save

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.parquet import TableWriter, read_table
from polymux.analysis.output.row_columns import ContentCollector
from polymux.analysis.schema.stream_keys import BadStreamKey, parse_stream_key
from polymux.analysis.session.analyzer import analyze_session
from polymux.analysis.tracking.session_tracker import SessionTracker
from polymux.analysis.tracking.stalls import StallDetector
from polymux.analysis.tracking.timeline import Timeline
from polymux.capture import read_sessions
from polymux.core.observer import Observer
from polymux.protocols.registry import create
from polymux.testing.simulator import Simulation

PROTOCOLS = (
    "mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3",
    "omnistreams:numbering=spec", "streamux", "minmux", "yamux",
)  # fmt: skip


def recorded(protocol: str, seed: int, path: Path, port: int = 9000) -> str:
    world = Simulation(protocol, seed)
    world.run(300)
    record = [(side, data, START + at) for side, data, at in world.record]
    ends = (("192.0.2.1", 40000), ("198.51.100.2", port))
    return save(path, record, START + world.now + MS, protocol=protocol, ends=ends)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_content_adds_up_to_what_the_streams_count(protocol: str, tmp_path: Path) -> None:
    found = analyse(
        recorded(protocol, 2, tmp_path / "a.pcapng"), plan=AnalysisOptions().with_content()
    )
    sums: dict[tuple[object, object], int] = defaultdict(int)
    for row in found.rows("content"):
        assert isinstance(row["data"], bytes)
        sums[row["stream"], row["sender"]] += len(row["data"])
    for stream in found.rows("streams"):
        for side in ("dialer", "acceptor"):
            assert sums[stream["stream"], side] == stream[f"bytes_{side}"]
    assert found.session.balanced
    assert found.session.protocol == protocol.partition(":")[0]
    assert found.session.findings == found.session.stalls  # no rule was broken


def test_content_is_what_was_sent(tmp_path: Path) -> None:
    stage = Stage("nerdbank:version=2")
    stream = stage.open(0, b"x")
    stage.exchange()
    stage.accept(1)
    stage.exchange()
    data = bytes(range(256)) * 300
    stage.send(0, stream, data)
    stage.exchange()
    found = analyse(stage.save(tmp_path / "a.pcapng"), plan=AnalysisOptions().with_content())
    assert b"".join(bytes(row["data"]) for row in found.rows("content")) == data  # type: ignore[call-overload]  # bytes


@pytest.mark.parametrize(("selected", "size"), [(None, 300 << 20), ("d3", 0)])
def test_what_a_gap_leaves_out_of_an_overlong_frame_is_counted(
    selected: str | None, size: int
) -> None:
    collector = ContentCollector(-1)
    if selected is not None:
        collector.select(*parse_stream_key(selected))
    tracker = SessionTracker(collector)
    observer = Observer(create("mplex"), True, tracker)
    stalls = StallDetector(tracker.stream_trackers.empty_slot, -1, [], [], [], [])
    tracker.attach(observer, Timeline(0, 1000), stalls)
    tracker.feed_bytes(0, bytes.fromhex("0800 0a 80808096 01") + b"x" * 10, 0)  # of 300 MiB on id 1
    tracker.feed_gap(0, (300 << 20) - 20, 1)
    tracker.feed_bytes(0, b"y" * 10, 2)
    kept = sum(len(data) for data in collector.rows.data)
    assert (kept, collector.truncated_bytes + kept) == (64 << 20 if size else 0, size)


def test_only_the_stream_that_is_asked_for_is_collected(tmp_path: Path) -> None:
    stage = Stage("mplex")
    first, second = stage.open(0, b"x"), stage.open(0, b"y")
    stage.send(0, first, b"one")
    stage.send(0, second, b"two")
    stage.exchange()
    plan = AnalysisOptions(content_stream=second.label()).with_content()
    found = analyse(stage.save(tmp_path / "a.pcapng"), plan=plan)
    assert [row["data"] for row in found.rows("content")] == [b"two"]


def test_sessions_of_all_protocols_go_into_one_writer(tmp_path: Path) -> None:
    for number, protocol in enumerate(PROTOCOLS):
        recorded(protocol, number, tmp_path / f"{number}.pcapng", 9000 + number)
    out = tmp_path / "out"
    frames = 0
    with read_sessions([str(tmp_path)]) as reading, TableWriter(out) as tables:
        for session in reading:
            frames += analyze_session(session, AnalysisOptions().with_content(), tables.emit).frames
    table = read_table(out, "frames")
    assert table.num_rows == frames
    kinds = set(table.column("kind").to_pylist())
    assert {"NewStream", "Offer", "CREATE_RECEIVE_STREAM", "Initiator", "GiveCredit"} <= kinds
    assert len(set(table.column("session_id").to_pylist())) == len(PROTOCOLS)


def test_stream_keys_are_parsed() -> None:
    assert parse_stream_key("d1") == (0, 1, 1)
    assert parse_stream_key("a2") == (1, 2, 1)
    assert parse_stream_key("d0.2") == (0, 0, 2)
    assert parse_stream_key("s0") == (2, 0, 1)
    assert parse_stream_key("a18446744073709551615") == (1, -1, 1)
    for wrong in ("", "d", "x1", "1", "d1.", "d-1", "d18446744073709551616", "d1 "):
        with pytest.raises(BadStreamKey, match="is not a stream key"):
            parse_stream_key(wrong)
