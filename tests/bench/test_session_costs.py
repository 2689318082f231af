"""The captures of the benchmark of short sessions contain what their names say."""

from pathlib import Path

import pytest
from bench import session_costs
from bench.harness import Figure
from bench.session_costs import SIDE_BY_SIDE, write_short_sessions

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions


def test_a_short_session_has_seven_packets_and_five_frames(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.pcap") for number in range(2)]
    for number, path in enumerate(paths):
        write_short_sessions(Path(path), 3 * SIDE_BY_SIDE, number)
    with read_sessions(paths) as reading:
        sessions = list(reading)
        found = [
            analyze_session(session, AnalysisOptions(), lambda *_: None) for session in sessions
        ]
    assert len(found) == 6 * SIDE_BY_SIDE
    assert {session.packets for session in sessions} == {7}
    assert {(each.protocol, each.frames, each.ending, each.balanced) for each in found} == {
        ("mplex", 5, "clean", True)
    }


def test_every_figure_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SESSION_COUNTS", "FILE_COUNTS"):
        monkeypatch.setattr(session_costs, name, (SIDE_BY_SIDE, 2 * SIDE_BY_SIDE))
    monkeypatch.setattr(session_costs, "FRAME_COUNTS", (500, 1000))
    for name, few in (("SESSIONS_OF_FILES", 8 * SIDE_BY_SIDE), ("SESSIONS", 2), ("ROUNDS", 1)):
        monkeypatch.setattr(session_costs, name, few)
    assert [type(line) for line in session_costs.costs(tmp_path)] == [Figure] * 2
    assert [line.name.partition(",")[0] for line in session_costs.growth_lines(tmp_path)] == [
        "growth of CPU time"
    ] * 3
