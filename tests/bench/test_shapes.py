"""Captures of every shape contain the frames they claim to."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench.pipeline_captures import Conversations
from bench.pipeline_shapes import SHAPES, Shape, write_captures

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_frames_of_a_shape_are_all_there(shape: Shape, tmp_path: Path) -> None:
    few = replace(shape, sessions=min(shape.sessions, 64))
    paths, frames = write_captures(tmp_path / "captures", few, 400_000)
    assert len(paths) == shape.files
    with read_sessions(paths) as reading:
        found = [
            analyze_session(session, AnalysisOptions(), lambda *_: None) for session in reading
        ]
    assert len(found) == few.sessions
    assert {(summary.protocol, summary.balanced) for summary in found} == {("mplex", True)}
    assert sum(summary.frames for summary in found) == frames


def test_a_capture_may_have_few_packets(tmp_path: Path) -> None:
    """So few that only one side sends."""
    talks = Conversations(8)
    talks.write(tmp_path / "few.pcap", 8_000, last=True)
    with read_sessions([str(tmp_path / "few.pcap")]) as reading:
        found = [
            analyze_session(session, AnalysisOptions(), lambda *_: None) for session in reading
        ]
    assert sum(summary.frames for summary in found) == talks.frames
