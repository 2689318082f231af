"""A capture on a pipe, read while it is written: `tcpdump -w - | polymux frames -`."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from polymux.capture import FlowFilter
from polymux.capture.io.pipes import CapturePipe
from polymux.capture.io.sources import STDIN
from polymux.capture.live_reader import LiveCapture
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.capture_walk import (
    EXIT_UNREADABLE,
    ProtocolMismatchWarnings,
    no_sessions_reason,
    warn_about_file,
)
from polymux.cli.support.output import warn
from polymux.core.errors import CaptureError

if TYPE_CHECKING:
    from polymux.analysis.options import AnalysisOptions
    from polymux.analysis.output.session_rows import Emit


def is_live(files: tuple[str, ...]) -> bool:
    """Whether there is one capture, and it is a pipe: standard input, or a path such as a FIFO."""
    if len(files) != 1:
        return False
    try:
        found = os.fstat(sys.stdin.fileno()) if files[0] == STDIN else os.stat(files[0])
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode)


def analyze_live(request: CaptureRequest, options: AnalysisOptions, emit: Emit) -> int:
    """Give the frames of a pipe to `emit` as they become whole; returns the exit code.

    Standard output is flushed whenever the pipe has nothing more at the moment.
    """
    from polymux.analysis.session.live_analyzer import LiveAnalyzer

    try:
        wanted = FlowFilter(options.ports, request.filters)
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    doubts = ProtocolMismatchWarnings()
    frames = LiveAnalyzer(options, emit, request.session_prefix, doubts.add)
    with ExitStack() as stack:
        if request.files[0] == STDIN:
            fd = sys.stdin.fileno()
        else:
            try:
                fd = os.open(request.files[0], os.O_RDONLY)
            except OSError as failure:
                reason = f"cannot be opened: {failure.strerror}"
                raise CaptureError(reason, request.files[0]) from None
            stack.callback(os.close, fd)
        capture = LiveCapture(CapturePipe(request.files[0], fd), wanted=wanted)
        for session in capture:
            frames.receive(session)
            sys.stdout.flush()
    doubts.close()
    code = warn_about_file(capture.summary)
    if not frames.session_count:
        if not code:
            warn(no_sessions_reason(request, [capture.summary]))
        return EXIT_UNREADABLE
    if not frames.matched_count:
        raise click.UsageError(
            f"--session {request.session_prefix}: no session's id begins so; see `polymux ls`"
        )
    return code
