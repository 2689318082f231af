"""The state of sessions that are still going on: their streams, and what was found so far.

The same observer, trackers and stall detector as of a complete capture run on the packets as they
arrive, so that the counts of a session that is over are those of its row in the tables. A session
that is open has the counts that it would have if the capture ended here, without the stalls that
only the end of a capture shows: those are what its streams wait for (`StreamView.stall`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.plain_rows import PlainRows
from polymux.analysis.output.session_rows import SessionRows
from polymux.analysis.session.analyzer import has_requests
from polymux.analysis.session.live_analyzer import LiveAnalyzer, LiveSessionAnalyzer, OnWarning
from polymux.analysis.tracking.live_streams import StreamView, open_streams
from polymux.capture.live_reader import LiveSession

OnFinding = Callable[[str, dict[str, Any]], None]
_TABLES = frozenset(("streams", "stalls", "violations"))
_STREAM_COLUMNS = ("stream", "ending")


@dataclass(slots=True)
class SessionView:
    """One session at one moment. Times are nanoseconds since 1970.

    The counts are those of the `sessions` table; `findings` and `stalls` those of `SessionSummary`.
    `streams` are the open streams. `unfinished` are the streams that were not seen to end, once the
    session is over.
    """

    session_id: str
    protocol: str
    dialer: str
    acceptor: str
    started_at: int
    ended_at: int
    over: bool = False
    stream_count: int = 0
    frames: int = 0
    bytes_dialer: int = 0
    bytes_acceptor: int = 0
    findings: int = 0
    stalls: int = 0
    unfinished: int = 0
    note: str = ""
    streams: list[StreamView] = field(default_factory=list)


class LiveTracker(LiveAnalyzer):
    """Measures all sessions of a live capture. Feed it with `receive`, as a `LiveAnalyzer`.

    Args:
        options: the protocol.
        on_finding: called with "violations" or "stalls" and the row of that table, for every
            violation, and every stall that has ended.
        on_warning: as for `LiveAnalyzer`.
        id_prefix: measure only sessions whose id begins with this.
    """

    def __init__(
        self,
        options: AnalysisOptions,
        on_finding: OnFinding,
        on_warning: OnWarning = lambda session, note: None,
        id_prefix: str = "",
    ) -> None:
        super().__init__(options, lambda table, batch: None, id_prefix, on_warning)
        self.tracks = True
        self.awaits_late_secrets = False  # sessions that ended are shown as ended
        self._on_finding = on_finding
        self._rows: dict[LiveSessionAnalyzer, SessionRows] = {}
        self._shown: dict[LiveSessionAnalyzer, None] = {}
        self._batcher = PlainRows(self._add_rows, {"streams": _STREAM_COLUMNS})
        self._closed: list[SessionView] = []

    def emit_session_rows(self, analyzer: LiveSessionAnalyzer) -> None:
        self._shown.setdefault(analyzer)
        observer, tracker = analyzer.observer, analyzer.tracker
        session = analyzer.session
        if observer is not None and tracker is not None:
            analyzer.limit_streams()
            rows = self._rows.get(analyzer)
            if rows is None:
                rows = self._rows[analyzer] = SessionRows(
                    analyzer.session_id,
                    lambda table, batch: None,
                    self._batcher,
                    _TABLES,
                    has_requests(observer.protocol),
                )
            if session.over:
                rows.close(observer, tracker, session.ended_at)
            else:
                rows.collect(observer, tracker, session.ended_at)
                tracker.forget_removed(session.ended_at)
        if session.over:
            self._closed.append(self._view(analyzer, session.ended_at, True))
            self._rows.pop(analyzer, None)
            del self._shown[analyzer]

    def take_closed(self) -> list[SessionView]:
        """Remove and return the sessions that ended since the last call."""
        closed, self._closed = self._closed, []
        return closed

    def open_sessions(self, now: int, with_streams: bool = True) -> list[SessionView]:
        """The sessions that are open at `now`, in the order in which they began."""
        return [self._view(analyzer, now, with_streams) for analyzer in self._shown]

    def _view(self, analyzer: LiveSessionAnalyzer, now: int, with_streams: bool) -> SessionView:
        session, tracker, observer = analyzer.session, analyzer.tracker, analyzer.observer
        view = self._new_view(analyzer, session)
        rows = self._rows.get(analyzer)
        if tracker is None or observer is None or rows is None:
            # Its bytes are counted when it is over.
            seen = zip(session.reassembled_bytes, session.missing_bytes, strict=True)
            view.bytes_dialer, view.bytes_acceptor = (sum(counts) for counts in seen)
            return view
        connection = observer.connection
        table = observer.protocol.streams
        view.stream_count = rows.stream_count + (0 if session.over else int(table.used_slots))
        view.frames = int(tracker.frame_count)
        view.bytes_dialer = int(connection.dialer.total_bytes)
        view.bytes_acceptor = int(connection.acceptor.total_bytes)
        view.stalls = rows.stall_findings
        view.findings = rows.violation_findings + rows.stall_findings
        view.unfinished = rows.unfinished_streams
        if with_streams and not session.over:
            view.streams = open_streams(tracker, max(now, session.ended_at))
        return view

    def _new_view(self, analyzer: LiveSessionAnalyzer, session: LiveSession) -> SessionView:
        detection = analyzer.detection
        protocol = ""
        note = ""
        if detection is not None:
            protocol = (detection.protocol or "?").partition(":")[0]
            if detection.protocol is None:
                note = detection.evidence
        return SessionView(
            analyzer.session_id,
            protocol,
            session.dialer,
            session.acceptor,
            session.started_at,
            session.ended_at,
            session.over,
            note=note,
        )

    def _add_rows(self, table: str, rows: list[dict[str, Any]]) -> None:
        if table != "streams":
            for row in rows:
                self._on_finding(table, row)
