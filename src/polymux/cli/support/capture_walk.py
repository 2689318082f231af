"""Reading captures in this process, for the commands that do not use Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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
    from polymux.analysis.output.plain_rows import PlainRows
    from polymux.analysis.output.row_sink import RowSink
    from polymux.analysis.output.session_rows import Emit
    from polymux.analysis.session.analyzer import OnMissing, SessionSummary, Steps

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
        quiet: Whether to print no warnings, because an earlier run has.

    Raises:
        click.UsageError: --filter is malformed.
        CaptureError: A file cannot be found.
    """

    def __init__(
        self,
        request: CaptureRequest,
        options: AnalysisOptions,
        printing: bool = False,
        quiet: bool = False,
    ) -> None:
        self.request = request
        self._quiet = quiet
        self.exit_code = 0
        self._mismatch_warnings = ProtocolMismatchWarnings()
        self._progress = ProgressBar(
            "scanning", total_file_size(request.files), bytes_read_counter(), printing=printing
        )
        self._progress.__enter__()
        try:
            self._reader = read_sessions(
                request.files,
                ports=options.ports,
                filters=request.filters,
                sensors=options.sensors,
            )
        except BaseException as problem:
            self._progress.__exit__(None, None, None)  # the context is not entered yet
            if isinstance(problem, ValueError):
                raise click.UsageError(str(problem)) from None
            raise
        self._keys = options.with_secrets(self._reader.secrets).keys
        self._options_with_keys: tuple[AnalysisOptions, AnalysisOptions] | None = None
        for file in self._reader.files:
            if not quiet:
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
            if not self.exit_code and not self._quiet:  # otherwise a warning has given the reason
                warn(no_sessions_reason(self.request, self._reader.files))
            self.exit_code = EXIT_UNREADABLE
        elif not matched:
            raise click.UsageError(
                f"--session {self.request.session_prefix}: no session id starts with that; "
                "see `polymux ls`"
            )

    @property
    def files(self) -> list[FileSummary]:
        """A summary of each file."""
        return self._reader.files

    def analyze(
        self,
        session: TcpSession,
        options: AnalysisOptions,
        emit: Emit,
        on_missing: OnMissing | None = None,
        batcher: RowSink | None = None,
    ) -> SessionSummary:
        """Analyze one session and return its summary.

        A warning about another protocol is printed before the session's first row; the reason why
        it could not be read to its end, after its last. `on_missing` and `batcher` are those of
        `analyze_session`.
        """
        steps = self.analyze_steps(session, options, emit, on_missing, batcher)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                summary: SessionSummary = end.value
                return summary

    def analyze_steps(
        self,
        session: TcpSession,
        options: AnalysisOptions,
        emit: Emit,
        on_missing: OnMissing | None = None,
        batcher: RowSink | None = None,
    ) -> Steps:
        """Do the same in steps: yield the bytes read by each, and return the summary."""
        from polymux.analysis.session.analyzer import analyze_session_steps

        warnings = None if self._quiet else self._mismatch_warnings.on_session_start
        steps = analyze_session_steps(
            session, self._with_keys(options), emit, batcher, warnings, on_missing
        )
        while True:
            try:
                size = next(steps)
            except StopIteration as end:
                summary: SessionSummary = end.value
                self._report(summary)
                return summary
            self._progress.advance(size)
            yield size

    def _with_keys(self, options: AnalysisOptions) -> AnalysisOptions:
        """The same options with the keys of this run, checked once for all sessions."""
        if self._options_with_keys is None or self._options_with_keys[0] is not options:
            self._options_with_keys = options, replace(options, keys=self._keys)
        return self._options_with_keys[1]

    def _report(self, summary: SessionSummary) -> None:
        """Warn about what is wrong with a session."""
        if self._quiet:
            return
        if summary.read_error:
            warn(f"session {summary.session_id}: {summary.read_error}")
            self.exit_code = EXIT_UNREADABLE
        if summary.conflict:
            warn(f"session {summary.session_id}: {summary.conflict}")
        if not summary.balanced:
            warn(f"session {summary.session_id}: {summary.note}")

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
    on_missing: OnMissing | None = None,
) -> int:
    """Analyze every requested session. Return the exit code."""
    with CaptureRun(request, options, printing) as run:
        for session in run.sessions():
            on_session(run.analyze(session, options, emit, on_missing))
    return run.exit_code


def analyze_to_rows(
    request: CaptureRequest,
    options: AnalysisOptions,
    rows: PlainRows,
    on_session: Callable[[SessionSummary], None],
    printing: bool = False,
    on_missing: OnMissing | None = None,
) -> int:
    """The same for a few rows of each session; `options` selects none of frames and content."""
    with CaptureRun(request, options, printing) as run:
        for session in run.sessions():
            on_session(run.analyze(session, options, ignore_batch, on_missing, rows))
    return run.exit_code


def ignore_batch(table: str, batch: object) -> None:
    """For tables that are not selected."""


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
