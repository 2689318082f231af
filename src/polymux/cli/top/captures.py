"""Watching captures: files that grow, rotations, directories, and pipes."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.schema.tables import SIDES
from polymux.analysis.session.live_tracker import LiveTracker, SessionView
from polymux.analysis.tracking.live_streams import HalfView, StreamView
from polymux.capture import FlowFilter
from polymux.capture.io.growing import CaptureFolder, GrowingCapture, growing_captures
from polymux.capture.io.pipes import CapturePipe
from polymux.capture.io.sources import STDIN
from polymux.capture.live_reader import LiveCapture, LiveSession
from polymux.capture.packets.file_summary import WHOLE
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.live_capture import is_live
from polymux.cli.top.state import (
    MAX_ENDED_SESSIONS,
    MAX_FINDINGS,
    FindingLine,
    HalfLine,
    Rates,
    SessionLine,
    StreamLine,
    TopState,
    Totals,
)
from polymux.report.render.wording import STALL_HEADLINES, Stall, stall_sentence, violation_text

IDLE_SECONDS: Final = 0.2  # without data, after which undecided protocols are decided
LISTING_SECONDS: Final = 0.2  # at least, between two listings of a directory


class _Recording:
    """One recording and the analysis of its sessions."""

    def __init__(
        self,
        source: CapturePipe,
        options: AnalysisOptions,
        request: CaptureRequest,
        watch: CaptureWatch,
    ) -> None:
        self.source = source
        self.capture = LiveCapture(
            source,
            wanted=FlowFilter(options.ports, request.filters, options.sensors),
        )
        self.tracker = LiveTracker(
            options, watch.add_finding, watch.add_warning, request.session_prefix
        )
        self.items: Iterator[LiveSession | None] = iter(self.capture)
        self.ended = False
        self.data_at = 0.0  # when something was last read, on the monotonic clock
        self.last_packet_ns = 0
        self.grew = False  # something was read after everything there was had been read
        self.was_idle = False

    def close(self) -> None:
        if isinstance(self.source, GrowingCapture):
            self.source.close()

    @property
    def problem(self) -> str:
        """Why it was not read to its end; "" if it was, or still is."""
        summary = self.capture.summary
        if not self.ended or summary.status == WHOLE:
            return ""
        return summary.error or summary.status

    def step(self) -> bool:
        """Take the next item. False if there was none."""
        item = next(self.items, False)
        if item is False:
            self.ended = True
            self.close()
            return False
        assert not isinstance(item, bool)  # an iterator of sessions
        now = time.monotonic()
        if item is None:
            if not self.was_idle and now - self.data_at >= IDLE_SECONDS:
                self.was_idle = True
                self.tracker.receive(None)
            return False
        self.grew = self.grew or self.was_idle
        self.was_idle = False
        self.data_at = now
        self.tracker.add_secrets(self.capture.take_secrets())
        self.last_packet_ns = max(self.last_packet_ns, item.ended_at)
        self.tracker.receive(item)
        return True


class CaptureWatch:
    """Reads recordings as they grow, and says what goes on in them.

    Args:
        request: one file, rotation or directory, or `-`; and which sessions.
        options: for the analysis.

    Raises:
        CaptureError: There is nothing to read.
        ValueError: A filter cannot be parsed.
    """

    def __init__(self, request: CaptureRequest, options: AnalysisOptions) -> None:
        path = request.files[0]
        self.title = path
        self.extra = ""
        self._request = request
        self._options = options
        self._folder = CaptureFolder(path) if os.path.isdir(path) else None
        self._listed_at = time.monotonic()
        self._findings: deque[FindingLine] = deque(maxlen=MAX_FINDINGS)
        self._ended: deque[SessionLine] = deque(maxlen=MAX_ENDED_SESSIONS)
        self._ended_totals = Totals()
        self._rates = Rates()
        self._pipe_fd = -1
        if is_live(request.files):
            self._pipe_fd = (
                os.dup(sys.stdin.fileno())
                if path == STDIN
                else os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            )
            sources: list[CapturePipe] = [CapturePipe(path, self._pipe_fd, 0.0)]
        elif self._folder is not None:
            sources = [*self._folder.new_recordings()]
        else:
            sources = [*growing_captures(path)]
        self._recordings = [_Recording(source, options, request, self) for source in sources]

    def close(self) -> None:
        for recording in self._recordings:
            recording.close()
        if self._pipe_fd >= 0:
            os.close(self._pipe_fd)

    def pump(self, seconds: float) -> bool:
        """Read for at most `seconds`. Return whether there is more to read at once."""
        deadline = time.monotonic() + seconds
        if self._folder is not None and time.monotonic() - self._listed_at >= LISTING_SECONDS:
            self._folder.list_again()
            self._listed_at = time.monotonic()
            self._recordings += [
                _Recording(source, self._options, self._request, self)
                for source in self._folder.new_recordings()
            ]
        more = True
        while more:
            more = False
            for recording in self._recordings:
                while not recording.ended and recording.step():
                    if time.monotonic() >= deadline:
                        return True
                    more = True
        return False

    # Called by the trackers

    def add_finding(self, table: str, row: dict[str, Any]) -> None:
        """Keep a row of `violations` or `stalls` if it is a finding."""
        if table == "violations":
            level = str(row["severity"])
            if level == "note":
                return
            text = violation_text(row)
            at = row["time"]
        else:
            if row["cause"] not in STALL_HEADLINES:
                return
            level = "stall"
            text = stall_sentence(Stall.from_row(row))
            at = row["started_at"]
        self._findings.append(
            FindingLine(
                clock_text(at), str(row["session_id"]), str(row["stream"] or ""), level, text
            )
        )

    def add_warning(self, session_id: str, note: str) -> None:
        """Keep a remark about a session that cannot be decoded as it should."""
        self._findings.append(FindingLine("", session_id, "", "warning", note))

    # The state

    def state(self) -> TopState:
        """What goes on now."""
        now_s = time.monotonic()
        state = TopState(self.title, self._status(), self.extra, findings=self._findings)
        totals = state.totals
        counts: dict[object, int] = {}
        for recording in self._recordings:
            now = self._now_of(recording, now_s)
            for view in recording.tracker.take_closed():
                self._ended.append(session_line(view, 0))
                add_view(self._ended_totals, view)
            for view in recording.tracker.open_sessions(now):
                line = session_line(view, now)
                lines = [stream_line(view, stream, now) for stream in view.streams]
                line.stalled_streams = sum(1 for each in lines if each.cause)
                add_view(totals, view)
                totals.stalled_streams += line.stalled_streams
                state.sessions.append(line)
                state.streams += lines
                counts[line.session_id] = line.total_bytes
                for each in lines:
                    counts[each.identity] = each.content_bytes
        totals.open_sessions = len(state.sessions)
        totals.open_streams = len(state.streams)
        add_totals(totals, self._ended_totals)
        counts[None] = totals.total_bytes
        self._rates.update(counts, now_s)
        for each in state.streams:
            each.rate = self._rates.of(each.identity)
        for line in state.sessions:
            line.rate = self._rates.of(line.session_id)
        state.rate = self._rates.of(None)
        state.sessions += self._ended
        if self._recordings and all(r.problem for r in self._recordings) and not totals.sessions:
            first = self._recordings[0]
            state.failure = f"{first.source.path}: {first.problem}"
        return state

    def _now_of(self, recording: _Recording, now_s: float) -> int:
        """The time of the capture's clock: that of its last packet, and what passed since then."""
        if not self._is_live(recording):
            return recording.last_packet_ns
        return recording.last_packet_ns + int((now_s - recording.data_at) * 1e9)

    def _is_live(self, recording: _Recording) -> bool:
        if recording.ended or not recording.data_at:
            return False
        source = recording.source
        return recording.grew or not isinstance(source, GrowingCapture) or source.is_recording

    def _status(self) -> str:
        problem = next((r.problem for r in self._recordings if r.problem), "")
        if problem:
            return f"stopped: {problem}"
        if not self._recordings:
            return "no captures yet"
        if any(map(self._is_live, self._recordings)):
            return "recording"
        return "ended" if all(r.ended for r in self._recordings) else "read to its end"


def clock_text(at: object) -> str:
    """The time of day of a row, in UTC."""
    return at.strftime("%H:%M:%S.%f")[:-3] if isinstance(at, datetime) else ""


def add_view(totals: Totals, view: SessionView) -> None:
    totals.sessions += 1
    totals.streams += view.stream_count
    totals.frames += view.frames
    totals.findings += view.findings
    totals.stalls += view.stalls
    totals.unfinished += view.unfinished
    totals.total_bytes += view.bytes_dialer + view.bytes_acceptor


def add_totals(totals: Totals, other: Totals) -> None:
    for name in (
        "sessions", "streams", "frames", "findings", "stalls", "unfinished", "total_bytes",
    ):  # fmt: skip
        setattr(totals, name, getattr(totals, name) + getattr(other, name))


def session_line(view: SessionView, now: int) -> SessionLine:
    return SessionLine(
        view.session_id,
        view.protocol,
        f"{view.dialer} > {view.acceptor}",
        view.over,
        view.stream_count,
        len(view.streams),
        frames=view.frames,
        total_bytes=view.bytes_dialer + view.bytes_acceptor,
        findings=view.findings,
        stalls=view.stalls,
        lasted_ns=max(now, view.ended_at) - view.started_at,
        note=view.note,
    )


def stream_line(view: SessionView, stream: StreamView, now: int) -> StreamLine:
    dialer, acceptor = stream.dialer, stream.acceptor
    uses = [
        min(1.0, max(0, half.in_use) / half.window)
        for half in (dialer, acceptor)
        if half.window > 0 and not half.ended
    ]
    line = StreamLine(
        view.session_id,
        stream.key,
        None if stream.name is None else stream.name.decode(errors="replace"),
        window_use=max(uses) if uses else None,
        content_bytes=dialer.content_bytes + acceptor.content_bytes,
        frames=dialer.frames + acceptor.frames,
        stalled_ns=dialer.stalled_ns + acceptor.stalled_ns,
        age_ns=now - stream.opened_at if stream.opened_at >= 0 else None,
        halves=(half_line(SIDES[0], dialer), half_line(SIDES[1], acceptor)),
    )
    stall = stream.stall
    if stall is not None:
        line.cause = stall.cause
        line.waits_ns = max(0, now - stall.began)
        line.behind = stall.blocking_stream
        line.detail = f"{SIDES[stall.side]}: {stall.detail}"
    return line


def half_line(title: str, half: HalfView) -> HalfLine:
    return HalfLine(
        title,
        half.content_bytes,
        half.frames,
        half.ended,
        half.window if half.window > 0 else None,
        half.in_use if half.window > 0 else None,
        half.credit if half.credit >= 0 else None,
        half.blocked_ns if half.credit >= 0 else None,
        half.stalled_ns,
        half.hol_blocked_ns,
    )
