"""Reading a capture from a pipe while it is written: `tcpdump -w - | polymux frames -`."""

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
    ProtocolMismatchWarnings,
    no_sessions_reason,
    warn_about_file,
)
from polymux.cli.support.exit_codes import EXIT_UNREADABLE
from polymux.cli.support.output import warn
from polymux.core.errors import CaptureError

if TYPE_CHECKING:
    from polymux.analysis.options import AnalysisOptions
    from polymux.analysis.output.session_rows import Emit


def is_live(files: tuple[str, ...]) -> bool:
    """Whether there is one capture and it is a pipe or socket: standard input, or a FIFO."""
    if len(files) != 1:
        return False
    try:
        status = os.fstat(sys.stdin.fileno()) if files[0] == STDIN else os.stat(files[0])
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)


def analyze_live(request: CaptureRequest, options: AnalysisOptions, emit: Emit) -> int:
    """Emit the frames of a pipe as they complete. Return the exit code.

    Standard output is flushed whenever the pipe is empty.

    Raises:
        click.UsageError: --filter is malformed, or --session matches none of the sessions.
        CaptureError: The pipe cannot be opened.
    """
    from polymux.analysis.session.live_analyzer import LiveAnalyzer

    try:
        flow_filter = FlowFilter(options.ports, request.filters, options.sensors)
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    warnings = ProtocolMismatchWarnings()
    analyzer = LiveAnalyzer(options, emit, request.session_prefix, warnings.add)
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
        capture = LiveCapture(CapturePipe(request.files[0], fd), wanted=flow_filter)
        for session in capture:
            analyzer.add_secrets(capture.take_secrets())
            analyzer.receive(session)
            sys.stdout.flush()
        analyzer.add_secrets(capture.take_secrets())
        analyzer.finish()
    warnings.close()
    code = warn_about_file(capture.summary)
    if not analyzer.session_count:
        if not code:
            warn(no_sessions_reason(request, [capture.summary]))
        return EXIT_UNREADABLE
    if not analyzer.matched_count:
        raise click.UsageError(
            f"--session {request.session_prefix}: no session id starts with that; see `polymux ls`"
        )
    return code
