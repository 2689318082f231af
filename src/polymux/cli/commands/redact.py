"""`polymux redact`: a copy of a capture without content, to be shared."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import click

from polymux.analysis.session.redaction import (
    RedactedSession,
    is_shareable_protocol,
    redact_session,
)
from polymux.capture.pcapng.redacted_packets import PayloadSpool, RedactedPackets
from polymux.capture.pcapng.rewrite import rewrite
from polymux.cli.commands.annotate import only_capture
from polymux.cli.support.capture_options import PROTOCOL_HELP, CaptureRequest
from polymux.cli.support.capture_walk import CaptureRun
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_UNREADABLE
from polymux.cli.support.output import format_value, plural, warn
from polymux.cli.support.progress import print_line
from polymux.cli.support.redaction_options import (
    make_redaction,
    names_option,
    payload_option,
    redaction_comment,
)
from polymux.core.errors import CaptureError
from polymux.core.redaction import Redaction


@click.command(
    epilog="Example: polymux redact talk.pcapng -o talk-shared.pcapng",
    no_args_is_help=True,
)
@click.argument("capture")
@click.option("-o", "--out", required=True, help="The new file; it must not exist.")
@payload_option("none")
@names_option
@click.option(
    "--strict",
    is_flag=True,
    help="Keep no headers of a side after bytes of it were not captured and the start of a frame "
    "had to be searched for.",
)
@click.option(
    "--protocol",
    default="auto",
    show_default=True,
    shell_complete=protocol_names,
    help=PROTOCOL_HELP,
)
@click.option(
    "--port",
    "ports",
    multiple=True,
    help="Decode only this port, and optionally as its protocol: 9000=mplex. The content of other "
    "ports is left out entirely.",
)
@click.pass_context
def redact(
    context: click.Context,
    capture: str,
    out: str,
    payload: tuple[str, int],
    names: str | None,
    strict: bool,
    protocol: str,
    ports: tuple[str, ...],
) -> None:
    """Copy CAPTURE to a new pcapng file without the content of its streams.

    Times, addresses, sizes and the headers of all frames stay as they are, so the copy has the
    same streams, frames, stalls and violations. Content and names of streams are replaced by as
    many other bytes. What cannot be decoded, sessions inside TLS included, is replaced as a whole;
    packets that are not TCP, comments, TLS secrets and names of hosts and sensors are left out.
    """
    redaction = make_redaction(payload, names, strict)
    if redaction is None:
        raise click.UsageError("--payload full with --names keep changes nothing")
    request = CaptureRequest((only_capture(capture),), protocol, ports)
    if os.path.lexists(out):
        raise CaptureError("exists already; choose another name", out)
    with open_spool(out) as spool:
        payloads = PayloadSpool(spool.fileno())
        counts, hints, code = redact_sessions(request, redaction, payloads)
        edit = RedactedPackets(payloads, redaction_comment(redaction), hints, is_shareable_protocol)
        done = rewrite(request.files[0], out, edit)
    if done.damage:
        warn(f"{capture}: the copy ends at {done.damage}")
        code = EXIT_UNREADABLE
    print_result(out, counts, done.packets, edit.left_out)
    context.exit(code)


@contextmanager
def open_spool(out: str) -> Iterator[IO[bytes]]:
    """Yield a file without a name, beside the output: it needs as much space as that.

    Raises:
        CaptureError: There is no such place.
    """
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(out))) as file:
            yield file
    except OSError as problem:
        raise CaptureError(f"cannot be written: {problem.strerror}", out) from None


def redact_sessions(
    request: CaptureRequest, redaction: Redaction, payloads: PayloadSpool
) -> tuple[Counter[str], dict[int, str], int]:
    """Write the new payload of all sessions.

    Returns:
        Counts, hints for packets by their offsets, and the exit code.
    """
    counts: Counter[str] = Counter()
    hints: dict[int, str] = {}
    options = request.analysis_options("sessions")
    with CaptureRun(request, options) as run:
        for session in run.sessions():
            try:
                done = redact_session(session, options, redaction, payloads)
            except CaptureError as problem:
                warn(f"{session.dialer} to {session.acceptor}: left blank from here on: {problem}")
                run.exit_code = EXIT_UNREADABLE
                continue
            counts[kind_of(done)] += 1
            counts["blanked"] += done.blanked_bytes
            counts["unlike"] += done.unlike_headers
            counts["searched"] += done.searched and not redaction.strict
            place, text = done.hint
            if text:
                hints[place] = text
    return counts, hints, run.exit_code


def kind_of(done: RedactedSession) -> str:
    """Under which word a session is counted."""
    if done.protocol:
        return "decoded"
    return "TLS" if done.tls else "mismatch" if done.mismatch else "undecoded"


def print_result(out: str, counts: Counter[str], packets: int, left_out: int) -> None:
    """Print what the copy has, and what it has not."""
    decoded = plural(counts["decoded"], "session")
    print_line(format_value(f"{out}: {plural(packets, 'packet')}, {decoded} decoded"))
    lines = []
    if counts["TLS"]:
        lines.append(
            f"{plural(counts['TLS'], 'session')} inside TLS: nothing of the payload is left; "
            "record with `polymux record`, which ends TLS, to share its frames"
        )
    if counts["undecoded"]:
        undecoded = plural(counts["undecoded"], "session")
        lines.append(f"{undecoded} of no known protocol: nothing of the payload is left")
    if counts["mismatch"]:
        lines.append(
            f"{plural(counts['mismatch'], 'session')} of another protocol than the one that is "
            "named: nothing of the payload is left"
        )
    if counts["blanked"]:
        lines.append(f"{plural(counts['blanked'], 'byte')} in which no frame was decoded: replaced")
    if counts["searched"]:
        lines.append(
            f"{plural(counts['searched'], 'session')} in which frames were searched for, because "
            "bytes are missing: a few bytes of content may have been taken for a header; --strict "
            "leaves these headers out"
        )
    if counts["unlike"]:
        lines.append(
            f"{plural(counts['unlike'], 'place')} where decoding stops: the copy may show another "
            "violation there"
        )
    if left_out:
        lines.append(f"{plural(left_out, 'packet')} that are not TCP: left out")
    for line in lines:
        warn(line)
