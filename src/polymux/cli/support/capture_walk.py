"""Captures in, rows out, for the commands that read them without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import click

from polymux.capture import FileSummary, TcpSession, find_captures, read_sessions
from polymux.cli.support.capture_options import Asked
from polymux.cli.support.output import counted, warn
from polymux.cli.support.progress import Waiting, octets_read
from polymux.core.errors import CaptureError

if TYPE_CHECKING:
    from polymux.analysis.options import Plan
    from polymux.analysis.output.session_rows import Emit
    from polymux.analysis.session.summary import SessionSummary

UNREADABLE = 3
DOUBTS = 3  # sessions of which it is said that their bytes look like another protocol


class Doubts:
    """Says of sessions that their bytes look like another protocol than the one that was named.

    Once, and of the first few only; the rest is counted.
    """

    def __init__(self) -> None:
        self._told: list[str] = []
        self._count = 0

    def begun(self, summary: SessionSummary) -> None:
        """A session begins; its summary has a note if there is something to say."""
        if summary.note:
            self.tell(summary.session_id, summary.note)

    def tell(self, session: str, note: str) -> None:
        if session not in self._told:
            self._count += 1
            if self._count <= DOUBTS:
                self._told.append(session)
                warn(f"session {session}: {note}")

    def close(self) -> None:
        if self._count > DOUBTS:
            warn(f"so do {self._count - DOUBTS} more; see the note of each session")


class Captures:
    """The captures a command was asked to read; use as a context.

    What is wrong with a file is one line on standard error; everything readable is read. `code` is
    the exit code so far. `printing`: lines are printed to a terminal all the while, with `say`.
    """

    def __init__(self, asked: Asked, plan: Plan, printing: bool = False) -> None:
        self.asked = asked
        self.code = 0
        self._doubts = Doubts()
        self._waiting = Waiting("looking", sizes(asked.files), octets_read(), printing=printing)
        self._waiting.__enter__()
        try:
            self._reading = read_sessions(asked.files, ports=plan.ports, filters=asked.filters)
        except BaseException as problem:
            self._waiting.__exit__(None, None, None)  # the bar must not outlive a failure
            if isinstance(problem, ValueError):
                raise click.UsageError(str(problem)) from None
            raise
        for file in self._reading.files:
            self.code = max(self.code, report_file(file))
        self._waiting.phase("reading", sum(file.octets for file in self._reading.files))

    def sessions(self) -> Iterator[TcpSession]:
        """The sessions that are asked for; says so if there are none."""
        from polymux.analysis.output.session_rows import session_id

        seen = matched = 0
        for session in self._reading:
            seen += 1
            if session_id(session.flow, session.started_at).startswith(self.asked.session):
                matched += 1
                yield session
        if not seen:
            if not self.code:  # else it was said why
                warn(nothing(self.asked, self._reading.files))
            self.code = UNREADABLE
        elif not matched:
            raise click.UsageError(
                f"--session {self.asked.session}: no session's id begins so; see `polymux ls`"
            )

    def walk(self, session: TcpSession, plan: Plan, emit: Emit) -> SessionSummary:
        """Walk one session. That its bytes look like another protocol than the one named is said
        before its first row; what kept it from being read to its end is said after the last."""
        from polymux.analysis.session.analyzer import walk

        summary = walk(session, plan, emit, self._waiting.advance, begun=self._doubts.begun)
        if summary.failure:
            warn(f"session {summary.session_id}: {summary.failure}")
            self.code = UNREADABLE
        if not summary.balanced:
            warn(f"session {summary.session_id}: {summary.note}")
        return summary

    def __enter__(self) -> Captures:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waiting.__exit__(kind, error, trace)
        self._reading.close()
        self._doubts.close()


def walk_captures(
    asked: Asked,
    plan: Plan,
    emit: Emit,
    finished: Callable[[SessionSummary], None] = lambda summary: None,
    printing: bool = False,
) -> int:
    """Walk every session that is asked for; returns the exit code."""
    with Captures(asked, plan, printing) as captures:
        for session in captures.sessions():
            finished(captures.walk(session, plan, emit))
    return captures.code


def nothing(asked: Asked, files: Sequence[FileSummary]) -> str:
    """Why there is no session at all."""
    names = ", ".join(asked.files)
    if sum(file.tcp_packets for file in files):
        return f"{names}: no connection matches --port and --filter"
    others = sum(file.other_packets for file in files)
    if others:
        return f"{names}: no TCP in it ({counted(others, 'packet')} of other kinds)"
    return f"{names}: no packets that could be read"


def sizes(names: tuple[str, ...]) -> int:
    """Octets of these files as they lie on the disk; 0 if that cannot be told."""
    try:
        return sum(os.path.getsize(path) for path in find_captures(names))
    except (OSError, CaptureError):
        return 0


def report_file(file: FileSummary) -> int:
    """Say what is wrong with a file, if anything; the exit code for it."""
    if file.error is None and file.status == "whole":
        return 0
    text = file.error or ""
    if not text.startswith(file.file):
        place = f" at octet {file.offset}" if file.offset is not None else ""
        text = f"{file.file}: {file.status}{place}: {text}"
    warn(text)
    return UNREADABLE if file.status != "whole" else 0
