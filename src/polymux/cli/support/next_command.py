"""The one command that `polymux ls` proposes after its tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from polymux.analysis.options import AUTO
from polymux.analysis.session.analyzer import SessionSummary
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.output import format_value
from polymux.cli.support.stream_ranking import RankedStream


def next_command(
    request: CaptureRequest, sessions: Sequence[SessionSummary], streams: Sequence[RankedStream]
) -> str:
    """Return the command that fits what was found, as text to be copied into a shell.

    In this order: opening TLS, naming a protocol that was not detected, the violations of the worst
    session, the report if there are stalls, and otherwise the content of a stream.

    Args:
        request: What `ls` was given; its options are repeated.
        sessions: At least one, worst first.
        streams: The streams that are listed.
    """
    closed = [session for session in sessions if session.protocol is None]
    if any(session.tls for session in closed):
        return _command("ls", request, "--keys", "KEYLOG")
    unknown = [session for session in closed if session.ending == "undecodable"]
    if len(unknown) == len(sessions):
        port = unknown[0].acceptor.rpartition(":")[2]
        return _command("ls", request, "--port", f"{port}=PROTOCOL")
    for session in sessions:
        if session.findings > session.stalls:
            return _command("check", request, "--session", session.session_id)
    if any(session.stalls for session in sessions):
        return _command("report", request)
    if streams:
        row = streams[0].row
        session_id, stream = str(row["session_id"]), str(row["stream"])
        return _command("follow", request, "--session", session_id, "--stream", stream)
    return _command("frames", request)


def _command(name: str, request: CaptureRequest, *options: str) -> str:
    words = ["polymux", name, *request.files]
    if request.protocol != AUTO:
        words += ["--protocol", request.protocol]
    for option, values in (
        ("--port", request.ports),
        ("--filter", request.filters),
        ("--keys", request.key_files),
        ("--sensor", (request.sensor,)),
        ("--sensor-from", (request.sensor_from,)),
    ):
        for value in filter(None, values):
            words += [option, value]
    if request.session_prefix and "--session" not in options:
        words += ["--session", request.session_prefix]
    return format_value(" ".join(map(shlex.quote, [*words, *options])))
