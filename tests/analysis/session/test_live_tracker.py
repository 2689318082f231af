"""Sessions measured while they are captured: the stalls of the tables, and pauses that last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.analysis.constructed_stall_cases import all_cases, without_credit
from tests.analysis.recorded_conversation import analyse

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.live_tracker import LiveTracker, SessionView
from polymux.capture.io.growing import growing_captures
from polymux.capture.live_reader import LiveCapture

MS = 1_000_000


class Watched:
    """A capture read by a tracker, up to its end: findings, sessions that ended, and the rest."""

    def __init__(self, path: str, protocol: str) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.tracker = LiveTracker(
            AnalysisOptions(protocol), lambda table, row: self.found.append((table, row))
        )
        (source,) = growing_captures(path)
        self.capture = LiveCapture(source)
        self.last_at = 0
        for session in self.capture:
            self.tracker.receive(session)
            if session is None:
                break
            self.last_at = max(self.last_at, session.ended_at)
        source.close()

    def stalls(self) -> list[tuple[object, ...]]:
        """The stalls that have ended, but for those of an idle sender."""
        return sorted(
            tuple(str(row[name]) for name in ("stream", "sender", "cause", "duration_us"))
            for table, row in self.found
            if table == "stalls" and row["cause"] != "sender-idle"
        )

    def open_session(self, later_ms: float) -> SessionView:
        (session,) = self.tracker.open_sessions(self.last_at + int(later_ms * MS))
        return session


def test_constructed_stalls_are_the_same_live_as_in_the_tables(tmp_path: Path) -> None:
    cases = all_cases()
    different = []
    for number, case in enumerate(cases):
        path = case.write(tmp_path / f"{number}.pcapng")
        rows = analyse(path, plan=AnalysisOptions(case.protocol)).rows("stalls")
        wanted = sorted(
            tuple(str(row[name]) for name in ("stream", "sender", "cause", "duration_us"))
            for row in rows
            if row["cause"] != "sender-idle"
        )
        watched = Watched(path, case.protocol)
        ended = watched.tracker.take_closed()
        found = watched.stalls()
        if ended and found != wanted:
            different.append(f"{case.name}: {found} and not {wanted}")
        elif not ended:  # the capture has no end of it: what lasts to the end is not reported yet
            assert set(found) <= set(wanted), case.name
    assert not different, "\n".join(different)


def test_a_pause_without_credit_is_seen_while_it_lasts(tmp_path: Path) -> None:
    for number, case in enumerate(without_credit()):
        ((stream, side, _, lasts),) = case.rows
        case.events = [event for event in case.events if event[0] < 2.9 + lasts]
        watched = Watched(case.write(tmp_path / f"{number}.pcapng"), case.protocol)
        assert watched.stalls() == []
        early = watched.open_session(5)
        assert all(view.stall is None for view in early.streams), case.name
        session = watched.open_session(lasts)
        (view,) = [view for view in session.streams if view.key == stream]
        assert view.stall is not None, case.name
        assert (view.stall.cause, view.stall.side) == ("no-credit", side), case.name
        assert abs(watched.last_at - int(view.stall.began)) <= 2 * MS
        half = view.dialer if side == 0 else view.acceptor
        assert half.credit == 0
