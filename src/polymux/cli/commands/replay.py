"""`polymux replay`: speak one side of a recorded session again, and compare both runs."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import JSON_HELP, keys_option, read_keys
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_FINDINGS
from polymux.cli.support.output import (
    TableColumn,
    is_interactive,
    json_line,
    plural,
    print_table,
    warn,
)
from polymux.cli.support.peer_io import open_recorder
from polymux.cli.support.tls_options import (
    dialing_context,
    dialing_tls_options,
    is_secure,
    listening_context,
    unverified_note,
)
from polymux.core.side import ACCEPTOR, DIALER
from polymux.text.units import duration_text

if TYPE_CHECKING:
    from polymux.relay.replay import Comparison, Recording

MAX_DIFFERENCES = 20  # printed of one run
SIDES = {"dialer": DIALER, "acceptor": ACCEPTOR}


@click.command(
    epilog="Example: polymux replay talk.pcapng tcp://127.0.0.1:9000 --session 9f2c --pace causal. "
    "Exit code 1: the replay differs from the recording.",
    no_args_is_help=True,
)
@click.argument("capture")
@click.argument("url")
@click.option("--session", default="", help="The session: its id, or the first characters.")
@click.option(
    "--as", "speaker", type=click.Choice(list(SIDES)), default="dialer", show_default=True,
    help="The side to speak: the dialer connects to URL, the acceptor listens there.",
)  # fmt: skip
@click.option(
    "--pace", default="recorded", show_default=True,
    help="recorded, causal (as soon as the answers are there), max (without waiting for answers), "
    "or how much faster than recorded.",
)  # fmt: skip
@click.option(
    "--loop", "runs", type=click.IntRange(1, 1_000_000), default=1, show_default=True,
    help="How often, one session after the other.",
)  # fmt: skip
@click.option(
    "--protocol", default="auto", show_default=True, shell_complete=protocol_names,
    help="NAME[:key=value,...] of the session and of the replay, or auto: as it was recorded.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds without any progress after which an answer, or the dialer with --as acceptor, is "
    "not awaited any longer.",
)  # fmt: skip
@click.option("--record", "record_to", help="Also record the replay to this new capture (pcapng).")
@keys_option
@dialing_tls_options
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
@click.pass_context
def replay(
    context: click.Context,
    capture: str,
    url: str,
    session: str,
    speaker: str,
    pace: str,
    runs: int,
    protocol: str,
    timeout: float,
    record_to: str | None,
    key_files: tuple[str, ...],
    ca: str | None,
    server_name: str | None,
    cert: str | None,
    key: str | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Speak one side of a session in CAPTURE again, to a live peer at URL, and compare both runs.

    Not bytes are sent again but content: streams are opened, written, ended and aborted as they
    were, through a session with its own ids and credit. What followed an answer in the recording is
    sent only after that answer has come. Then content, endings and causal order of both runs are
    compared, and their times.
    """
    from polymux.relay.replay import parse_pace
    from polymux.relay.replay import replay as run_replay

    chosen = parse_pace(pace)
    recording = find_recording(capture, protocol, session, key_files)
    tls: ssl.SSLContext | None
    if speaker == "dialer":
        tls = dialing_context(url, ca, server_name, cert, key, insecure)
    else:
        tls = listening_context([url], cert, key, None, None)
        if ca or server_name or insecure:
            raise click.UsageError("--ca, --server-name, --insecure: not with --as acceptor")
    interactive = is_interactive(as_json)
    equal = 0

    async def run_all() -> None:
        nonlocal equal
        with open_recorder(record_to, False, unverified_note(insecure)) as recorder:
            for number in range(1, runs + 1):
                found = await run_replay(
                    recording, url, side=SIDES[speaker], pace=chosen,
                    protocol=None if protocol == "auto" else protocol, answer_timeout=timeout,
                    tls=tls if is_secure(url) else None, server_hostname=server_name,
                    recorder=recorder,
                )  # fmt: skip
                equal += found.is_equal
                if interactive:
                    print_run(number, runs, found)
                else:
                    json_line(run_row(number, recording.session_id, found))

    asyncio.run(run_all())
    if interactive and runs > 1:
        warn(f"{equal} of {plural(runs, 'replay')} equal to the recording")
    if equal < runs:
        context.exit(EXIT_FINDINGS)


def find_recording(
    capture: str, protocol: str, session: str, key_files: tuple[str, ...]
) -> Recording:
    """The one session that is meant.

    Raises:
        click.UsageError: No session, or more than one, is meant.
    """
    from polymux.relay.replay import load_recordings

    found = load_recordings(
        [capture], protocol=protocol, session=session, keys=read_keys(key_files)
    )
    if len(found) == 1:
        return found[0]
    if not found:
        raise click.UsageError(
            f"{capture}: no session id starts with {session!r}; see `polymux ls`"
        )
    ids = ", ".join(each.session_id for each in found[:5])
    raise click.UsageError(
        f"{capture}: {len(found)} sessions; say which one with --session, such as {ids}"
    )


def run_row(number: int, session_id: str, found: Comparison) -> dict[str, object]:
    """One replay as a line of JSON; durations in microseconds."""
    return {
        "session_id": session_id,
        "run": number,
        "equal": found.is_equal,
        "same_content": found.same_content,
        "same_endings": found.same_endings,
        "same_order": found.same_order,
        "differences": found.differences[:MAX_DIFFERENCES],
        "streams": found.streams,
        "sends": found.sends,
        "bytes_sent": found.bytes_sent,
        "bytes_received": found.bytes_received,
        "recorded_us": microseconds(found.recorded_seconds),
        "replayed_us": microseconds(found.seconds),
        "recorded_answer_p50_us": microseconds(found.answer_quantile(0.5, recorded=True)),
        "replayed_answer_p50_us": microseconds(found.answer_quantile(0.5)),
        "recorded_answer_p99_us": microseconds(found.answer_quantile(0.99, recorded=True)),
        "replayed_answer_p99_us": microseconds(found.answer_quantile(0.99)),
        "late_p99_us": microseconds(found.lateness_quantile(0.99)) if found.lateness else None,
    }


def print_run(number: int, runs: int, found: Comparison) -> None:
    """Print the comparison of one replay."""
    rows = [
        ("duration", found.recorded_seconds, found.seconds),
        ("answers, p50", found.answer_quantile(0.5, recorded=True), found.answer_quantile(0.5)),
        ("answers, p99", found.answer_quantile(0.99, recorded=True), found.answer_quantile(0.99)),
    ]
    verdict = "equal to the recording" if found.is_equal else "differs from the recording"
    title = f"replay {number} of {runs}: {verdict}"
    print_table(
        title,
        (TableColumn("measure"), TableColumn("recorded"), TableColumn("replayed")),
        [(name, text_of(one), text_of(other)) for name, one, other in rows],
    )
    warn(
        f"{plural(found.streams, 'stream')}, {plural(found.sends, 'send')}, "
        f"{plural(found.bytes_sent, 'byte')} sent, {found.bytes_received} received"
    )
    if found.lateness:
        warn(f"sends after their time: p99 {text_of(found.lateness_quantile(0.99))}")
    for text in found.differences[:MAX_DIFFERENCES]:
        warn(text)
    if len(found.differences) > MAX_DIFFERENCES:
        warn(f"and {len(found.differences) - MAX_DIFFERENCES} further differences")


def microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def text_of(seconds: float) -> str:
    return duration_text(int(seconds * 1e9))
