"""Watching a process: the sessions of a meter, or the files that a recorder writes.

A recorder says where it writes, and the capture is read as any other: what is shown is what is
recorded. A meter has no capture, and says itself what its streams wait for.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any, Final

from polymux.aio import Unreachable
from polymux.analysis.options import AnalysisOptions
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.output import plural
from polymux.cli.top.captures import CaptureWatch
from polymux.cli.top.state import (
    MAX_FINDINGS,
    FindingLine,
    HalfLine,
    Rates,
    SessionLine,
    StreamLine,
    TopState,
    Totals,
)
from polymux.cli.top.state_client import StateClient
from polymux.core.errors import CaptureError
from polymux.text.units import size_text

ASK_SECONDS: Final = 1.0  # between two requests to a recorder


class RecorderWatch:
    """Watches the captures that a recorder writes, and its own counters.

    Args:
        client: connected to the recorder.
        state: its first answer.
        request, options: as for `CaptureWatch`, but for the file.
    """

    def __init__(
        self,
        client: StateClient,
        state: dict[str, Any],
        request: CaptureRequest,
        options: AnalysisOptions,
    ) -> None:
        self._client: StateClient | None = client
        self._asked_at = time.monotonic()
        path = str(state.get("capture"))
        try:
            self._captures = CaptureWatch(replace(request, files=(path,)), options)
        except CaptureError as problem:
            raise CaptureError(
                f"{problem}; the recorder at {client.url} says that it writes there, and top has "
                "to read it"
            ) from None
        self._captures.title = f"{client.url} ({path})"
        self._captures.extra = recorder_text(state)

    def close(self) -> None:
        self._captures.close()
        if self._client is not None:
            self._client.close()

    def pump(self, seconds: float) -> bool:
        now = time.monotonic()
        if self._client is not None and now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            try:
                self._captures.extra = recorder_text(self._client.request())
            except Unreachable:
                self._captures.extra += "; the recorder has ended"
                self._client.close()
                self._client = None
        return self._captures.pump(seconds)

    def state(self) -> TopState:
        return self._captures.state()


def recorder_text(state: dict[str, Any]) -> str:
    """The counters of a recorder in one line."""
    counters = state.get("counters")
    if not isinstance(counters, dict):
        return ""
    parts = []
    for name, value in counters.items():
        text = size_text(value) if name.endswith("bytes") and isinstance(value, int) else value
        parts.append(f"{name.removesuffix('_bytes').replace('_', ' ')} {text}")
    return ", ".join(parts)


class MeterWatch:
    """Watches the sessions of a program that serves the state of its meter.

    Args:
        client: connected to the program.
    """

    def __init__(self, client: StateClient) -> None:
        self._client = client
        self._rates = Rates()
        self._stalled_since: dict[tuple[str, str], float] = {}
        self._violations: dict[str, dict[str, int]] = {}  # of the last answer, by session
        self._all_listed = True  # whether the last answer had every open session
        self._findings: deque[FindingLine] = deque(maxlen=MAX_FINDINGS)
        self._gone = ""
        self._last = TopState(client.url)

    def close(self) -> None:
        self._client.close()

    def pump(self, seconds: float) -> bool:
        return False

    def state(self) -> TopState:
        """Ask the program. Once it is gone, its last state."""
        if not self._gone:
            try:
                self._last = self._build(self._client.request())
            except Unreachable as problem:
                self._gone = str(problem)
                self._last.status = "ended"
                self._last.extra = self._gone
        return self._last

    def _build(self, answer: dict[str, Any]) -> TopState:
        now = time.monotonic()
        state = TopState(self._client.url, "live", findings=self._findings)
        counts: dict[object, int] = {}
        stalled: dict[tuple[str, str], float] = {}
        violations: dict[str, dict[str, int]] = {}
        for session in answer["sessions"]:
            line = meter_session(session)
            streams = [meter_stream(line.session_id, stream) for stream in session["streams"]]
            violations[line.session_id] = session["violations"]
            self._note_violations(line, session["violations"])
            for stream in streams:
                if stream.cause:
                    since = self._stalled_since.get(stream.identity, now)
                    stalled[stream.identity] = since
                    stream.waits_ns = int((now - since) * 1e9)
                counts[stream.identity] = stream.content_bytes
            counts[line.session_id] = line.total_bytes
            state.sessions.append(line)
            state.streams += streams
        left_out = answer["left_out"]
        state.totals = meter_totals(answer)
        self._stalled_since = stalled
        self._violations, self._all_listed = violations, not left_out["sessions"]
        counts[None] = state.totals.total_bytes
        self._rates.update(counts, float(answer["made_at"]), not any(left_out.values()))
        for stream in state.streams:
            stream.rate = self._rates.of(stream.identity)
        for line in state.sessions:
            line.rate = self._rates.of(line.session_id)
        state.rate = self._rates.of(None)
        state.extra = f"{plural(state.totals.open_sessions, 'open session')} of this program"
        if any(left_out.values()):
            sessions = plural(left_out["sessions"], "session")
            state.extra += f"; not listed: {sessions}, {plural(left_out['streams'], 'stream')}"
        return state

    def _note_violations(self, line: SessionLine, violations: dict[str, int]) -> None:
        """Add a finding for each rule that was broken since the last answer.

        Of a session that the last answer may have left out, it is not known what is new.
        """
        before = self._violations.get(line.session_id)
        if before is None:
            before = {} if self._all_listed else violations
        clock = time.strftime("%H:%M:%S", time.gmtime())
        for rule, count in violations.items():
            new = count - before.get(rule, 0)
            if new > 0:
                times = f" ({new} times)" if new > 1 else ""
                text = f"the peer broke {rule}{times}"
                self._findings.append(FindingLine(clock, line.session_id, "", "error", text))


def meter_totals(answer: dict[str, Any]) -> Totals:
    """The sums over all open sessions, listed or not; of ended ones, their number."""
    totals = answer["totals"]
    return Totals(
        sessions=int(answer["ended_sessions"]) + int(totals["sessions"]),
        streams=int(totals["streams"]),
        frames=int(totals["frames"]),
        findings=int(totals["violations"]),
        open_sessions=int(totals["sessions"]),
        open_streams=int(totals["open_streams"]),
        stalled_streams=int(totals["waiting_streams"]),
        total_bytes=int(totals["bytes"]),
    )


def meter_session(session: dict[str, Any]) -> SessionLine:
    return SessionLine(
        str(session["id"]),
        str(session["protocol"]),
        f"{session['side']} with {session['peer']}",
        False,
        int(session["stream_count"]),
        int(session["open_streams"]),
        int(session["waiting_streams"]),
        findings=sum(session["violations"].values()),
        frames=int(session["frames_sent"]) + int(session["frames_received"]),
        total_bytes=int(session["bytes_sent"]) + int(session["bytes_received"]),
    )


def meter_stream(session_id: str, stream: dict[str, Any]) -> StreamLine:
    """A stream as its own process sees it: what waits in it is known, not concluded."""
    window, credit = stream["window"], stream["credit"]
    queued, unread = int(stream["queued_bytes"]), int(stream["unread_bytes"])
    in_use = None if window is None or credit is None else max(0, window - credit)
    line = StreamLine(
        session_id,
        str(stream["key"]),
        stream["name"],
        window_use=None if in_use is None or not window else min(1.0, in_use / window),
        content_bytes=int(stream["bytes_sent"]) + int(stream["bytes_received"]),
        frames=int(stream["frames"]),
        halves=(
            HalfLine(
                "this side", int(stream["bytes_sent"]), ended=bool(stream["ended"]),
                window=window, in_use=in_use, credit=credit, queued_bytes=queued,
            ),
            HalfLine(
                "the peer", int(stream["bytes_received"]), ended=bool(stream["peer_ended"]),
                unread_bytes=unread,
            ),
        ),
    )  # fmt: skip
    if stream["no_credit"]:
        line.cause, line.detail = "no-credit", f"{size_text(queued)} wait for credit"
    elif unread:
        line.cause, line.detail = "slow-reader", f"{size_text(unread)} are not read by this program"
    return line
