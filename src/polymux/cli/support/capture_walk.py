"""Reading captures in this process, for the commands that do not use Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import click

from polymux.capture import FileSummary, TcpSession, find_captures, read_sessions
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.exit_codes import EXIT_UNREADABLE
from polymux.cli.support.output import plural, warn
from polymux.cli.support.progress import ProgressBar, bytes_read_counter
from polymux.core.errors import CaptureError

if TYPE_CHECKING:
    from polymux.analysis.options import AnalysisOptions
    from polymux.analysis.output.session_rows import Emit
    from polymux.analysis.session.summary import SessionSummary

MAX_MISMATCH_WARNINGS = 3  # sessions that are named; more are only counted


class ProtocolMismatchWarnings:
    """Warns about sessions whose bytes look like another protocol than the one that was named.

    Each session is named once, up to `MAX_MISMATCH_WARNINGS`; `close` prints how many more there
    are.
    """

    def __init__(self) -> None:
        self._warned_sessions: list[str] = []
        self._count = 0

    def on_session_start(self, summary: SessionSummary) -> None:
        """Warn if the summary of a session that begins has a note."""
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
    """Reads the requested captures, with a progress bar. Use as a context manager.

    Damage in a file is a warning on standard error, and everything readable is read. `exit_code`
    is the code so far.

    Args:
        request: Which sessions of which files.
        options: The ports and the protocol.
        printing: Whether the command prints lines to a terminal meanwhile, with
            `progress.print_line`.

    Raises:
        click.UsageError: --filter is malformed.
        CaptureError: A file cannot be found.
    """

    def __init__(
        self, request: CaptureRequest, options: AnalysisOptions, printing: bool = False
    ) -> None:
        self.request = request
        self.exit_code = 0
        self._mismatch_warnings = ProtocolMismatchWarnings()
        self._progress = ProgressBar(
            "scanning", total_file_size(request.files), bytes_read_counter(), printing=printing
        )
        self._progress.__enter__()
        try:
            self._reader = read_sessions(
                request.files, ports=options.ports, filters=request.filters
            )
        except BaseException as problem:
            self._progress.__exit__(None, None, None)  # the context is not entered yet
            if isinstance(problem, ValueError):
                raise click.UsageError(str(problem)) from None
            raise
        for file in self._reader.files:
            self.exit_code = max(self.exit_code, warn_about_file(file))
        self._progress.start_phase("reading", sum(file.bytes for file in self._reader.files))

    def sessions(self) -> Iterator[TcpSession]:
        """Yield the requested sessions. Warn if the captures contain none at all.

        Raises:
            click.UsageError: There are sessions, but --session matches none.
        """
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
            if not self.exit_code:  # otherwise a warning has given the reason
                warn(no_sessions_reason(self.request, self._reader.files))
            self.exit_code = EXIT_UNREADABLE
        elif not matched:
            raise click.UsageError(
                f"--session {self.request.session_prefix}: no session id starts with that; "
                "see `polymux ls`"
            )

    def analyze(self, session: TcpSession, options: AnalysisOptions, emit: Emit) -> SessionSummary:
        """Analyze one session and return its summary.

        A warning about another protocol is printed before the session's first row; the reason why
        it could not be read to its end, after its last.
        """
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
    """Analyze every requested session. Return the exit code."""
    with CaptureRun(request, options, printing) as run:
        for session in run.sessions():
            on_session(run.analyze(session, options, emit))
    return run.exit_code


def no_sessions_reason(request: CaptureRequest, files: Sequence[FileSummary]) -> str:
    """Explain why the captures contain no session."""
    names = ", ".join(request.files)
    if sum(file.tcp_packets for file in files):
        return f"{names}: no connection matches --port and --filter"
    others = sum(file.other_packets for file in files)
    if others:
        return f"{names}: no TCP in it ({plural(others, 'packet')} of other kinds)"
    return f"{names}: no packets that could be read"


def total_file_size(names: tuple[str, ...]) -> int:
    """Sum of the file sizes in bytes; 0 if a file cannot be found."""
    try:
        return sum(os.path.getsize(path) for path in find_captures(names))
    except (OSError, CaptureError):
        return 0


def warn_about_file(file: FileSummary) -> int:
    """Warn if a file is damaged or unreadable. Return the exit code for it."""
    if file.error is None and file.status == "whole":
        return 0
    text = file.error or ""
    if not text.startswith(file.file):
        position = f" at byte {file.error_offset}" if file.error_offset is not None else ""
        text = f"{file.file}: {file.status}{position}: {text}"
    warn(text)
    return EXIT_UNREADABLE if file.status != "whole" else 0
