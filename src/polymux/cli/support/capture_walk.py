"""Captures in, rows out, for the commands that read them without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import click

from polymux.capture import FileSummary, TcpSession, find_captures, read_sessions
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.output import plural, warn
from polymux.cli.support.progress import ProgressBar, bytes_read_counter
from polymux.core.errors import CaptureError

if TYPE_CHECKING:
    from polymux.analysis.options import AnalysisOptions
    from polymux.analysis.output.session_rows import Emit
    from polymux.analysis.session.summary import SessionSummary

EXIT_UNREADABLE = 3
MAX_MISMATCH_WARNINGS = (
    3  # sessions of which it is said that their bytes look like another protocol
)


class ProtocolMismatchWarnings:
    """Says of sessions that their bytes look like another protocol than the one that was named.

    Once, and of the first few only; the rest is counted.
    """

    def __init__(self) -> None:
        self._warned_sessions: list[str] = []
        self._count = 0

    def on_session_start(self, summary: SessionSummary) -> None:
        """A session begins; its summary has a note if there is something to say."""
        if summary.note:
            self.add(summary.session_id, summary.note)

    def add(self, session_id: str, note: str) -> None:
        if session_id not in self._warned_sessions:
            self._count += 1
            if self._count <= MAX_MISMATCH_WARNINGS:
                self._warned_sessions.append(session_id)
                warn(f"session {session_id}: {note}")

    def close(self) -> None:
        if self._count > MAX_MISMATCH_WARNINGS:
            warn(f"so do {self._count - MAX_MISMATCH_WARNINGS} more; see the note of each session")


class CaptureRun:
    """The captures a command was asked to read; use as a context.

    What is wrong with a file is one line on standard error; everything readable is read. `code` is
    the exit code so far. `printing`: lines are printed to a terminal all the while, with `say`.
    """

    def __init__(
        self, request: CaptureRequest, options: AnalysisOptions, printing: bool = False
    ) -> None:
        self.request = request
        self.exit_code = 0
        self._mismatch_warnings = ProtocolMismatchWarnings()
        self._progress = ProgressBar(
            "looking", total_file_size(request.files), bytes_read_counter(), printing=printing
        )
        self._progress.__enter__()
        try:
            self._reader = read_sessions(
                request.files, ports=options.ports, filters=request.filters
            )
        except BaseException as problem:
            self._progress.__exit__(None, None, None)  # the bar must not outlive a failure
            if isinstance(problem, ValueError):
                raise click.UsageError(str(problem)) from None
            raise
        for file in self._reader.files:
            self.exit_code = max(self.exit_code, warn_about_file(file))
        self._progress.start_phase("reading", sum(file.bytes for file in self._reader.files))

    def sessions(self) -> Iterator[TcpSession]:
        """The sessions that are asked for; says so if there are none."""
        from polymux.analysis.output.session_rows import make_session_id

        seen = matched = 0
        for session in self._reader:
            seen += 1
            if make_session_id(session.flow, session.started_at).startswith(
                self.request.session_prefix
            ):
                matched += 1
                yield session
        if not seen:
            if not self.exit_code:  # else it was said why
                warn(no_sessions_reason(self.request, self._reader.files))
            self.exit_code = EXIT_UNREADABLE
        elif not matched:
            raise click.UsageError(
                f"--session {self.request.session_prefix}: no session's id begins so; see `polymux ls`"
            )

    def analyze(self, session: TcpSession, options: AnalysisOptions, emit: Emit) -> SessionSummary:
        """Walk one session. That its bytes look like another protocol than the one named is said
        before its first row; what kept it from being read to its end is said after the last."""
        from polymux.analysis.session.analyzer import analyze_session

        summary = analyze_session(
            session,
            options,
            emit,
            self._progress.advance,
            on_start=self._mismatch_warnings.on_session_start,
        )
        if summary.read_error:
            warn(f"session {summary.session_id}: {summary.read_error}")
            self.exit_code = EXIT_UNREADABLE
        if not summary.balanced:
            warn(f"session {summary.session_id}: {summary.note}")
        return summary

    def __enter__(self) -> CaptureRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        self._reader.close()
        self._mismatch_warnings.close()


def analyze_captures(
    request: CaptureRequest,
    options: AnalysisOptions,
    emit: Emit,
    on_session: Callable[[SessionSummary], None] = lambda summary: None,
    printing: bool = False,
) -> int:
    """Walk every session that is asked for; returns the exit code."""
    with CaptureRun(request, options, printing) as captures:
        for session in captures.sessions():
            on_session(captures.analyze(session, options, emit))
    return captures.exit_code


def no_sessions_reason(request: CaptureRequest, files: Sequence[FileSummary]) -> str:
    """Why there is no session at all."""
    names = ", ".join(request.files)
    if sum(file.tcp_packets for file in files):
        return f"{names}: no connection matches --port and --filter"
    others = sum(file.other_packets for file in files)
    if others:
        return f"{names}: no TCP in it ({plural(others, 'packet')} of other kinds)"
    return f"{names}: no packets that could be read"


def total_file_size(names: tuple[str, ...]) -> int:
    """Bytes of these files as they lie on the disk; 0 if that cannot be told."""
    try:
        return sum(os.path.getsize(path) for path in find_captures(names))
    except (OSError, CaptureError):
        return 0


def warn_about_file(file: FileSummary) -> int:
    """Say what is wrong with a file, if anything; the exit code for it."""
    if file.error is None and file.status == "whole":
        return 0
    text = file.error or ""
    if not text.startswith(file.file):
        place = f" at byte {file.error_offset}" if file.error_offset is not None else ""
        text = f"{file.file}: {file.status}{place}: {text}"
    warn(text)
    return EXIT_UNREADABLE if file.status != "whole" else 0
