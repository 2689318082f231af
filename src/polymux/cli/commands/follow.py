"""`polymux follow`: print the content of one stream, or write all streams to files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from polymux.analysis.schema.tables import SIDES
from polymux.cli.support.capture_options import CaptureRequest, capture_options
from polymux.cli.support.capture_walk import CaptureRun
from polymux.cli.support.exit_codes import EXIT_UNREADABLE
from polymux.cli.support.missing_report import MissingReport
from polymux.cli.support.output import format_value, is_interactive, json_line, rows_of, warn
from polymux.cli.support.progress import print_line
from polymux.cli.support.stream_files import CapturedStreams

if TYPE_CHECKING:
    import pyarrow as pa

    from polymux.analysis.options import AnalysisOptions

MAX_INCOMPLETE_SESSIONS = 3  # described, if none of the sessions has the stream


@click.command(
    epilog="Example: polymux follow talk.pcapng --stream d1 --sender dialer > upload.bin",
    no_args_is_help=True,
)
@capture_options
@click.option("--stream", default="", help="The stream, as `polymux ls` lists it: d1, a2, d0.2.")
@click.option("--sender", type=click.Choice(SIDES), help="Only what this side sent.")
@click.option("-o", "--out", help="Write files and a manifest.jsonl to this new directory instead.")
@click.pass_context
def follow(
    context: click.Context,
    request: CaptureRequest,
    as_json: bool,
    stream: str,
    sender: str | None,
    out: str | None,
) -> None:
    """Print the content of a stream of CAPTURES, in the order it was sent.

    A terminal shows it escaped, a pipe receives the bytes, and --json prints one line per frame.
    With --out every stream (or the one named with --stream) becomes one file per sender, such as
    stream-000017.bin, and manifest.jsonl describes them; names never become file names.

    Content that is missing from the capture is described on standard error, with exit code 3, and
    in --json by an object in its place. Inside a frame, zeros take its place.
    """
    from polymux.analysis.schema.stream_keys import parse_stream_key

    if stream:
        parse_stream_key(stream)
    elif out is None:
        raise click.UsageError("say which stream with --stream d1, or --out DIR for all of them")
    senders = (sender,) if sender else SIDES
    options = request.analysis_options("streams", "content", stream=stream)
    interactive = is_interactive(as_json)
    report = MissingReport(
        json_line if as_json and out is None else None, senders, only_content=True, stream=stream
    )
    with CaptureRun(request, options, printing=interactive and out is None) as run:
        if out is not None:
            with CapturedStreams(out, senders) as files:
                for session in run.sessions():
                    summary = run.analyze(session, options, files.emit, report.on_missing)
                    report.end_session()
                    files.add_session(summary)
            warn(files.summary_text())
        else:
            write = json_line if as_json else write_text if interactive else write_raw
            _print_stream(run, request, options, stream, senders, write, report)
    report.close()
    context.exit(report.exit_code(run.exit_code))


def _print_stream(
    run: CaptureRun,
    request: CaptureRequest,
    options: AnalysisOptions,
    stream: str,
    senders: tuple[str, ...],
    write: Callable[[dict[str, object]], None],
    report: MissingReport,
) -> None:
    """Write one stream to standard output.

    If no session has it, and it may be among what was not captured, that is said instead.

    Raises:
        click.UsageError: None of the sessions has the stream, or several have it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from polymux.analysis.output.arrow_batches import make_scalar

    holders = []
    incomplete: list[str] = []
    key = make_scalar(stream, pa.string())
    for session in run.sessions():
        matches: list[bool] = []

        def note(table: str, batch: pa.RecordBatch, matches: list[bool] = matches) -> None:
            matches.append(bool(pc.any(pc.equal(batch.column("stream"), key)).as_py()))

        summary = run.analyze(session, request.analysis_options("streams"), note)
        if any(matches):
            holders.append((summary.session_id, session))
        if len(incomplete) < MAX_INCOMPLETE_SESSIONS and (
            summary.ending == "gap" or not session.saw_syn
        ):
            incomplete.append(f"session {summary.session_id}: {summary.note}")
    if incomplete and not holders:
        for text in incomplete:
            warn(text)
        warn(f"--stream {stream}: no session has it, as far as the sessions were captured")
        run.exit_code = EXIT_UNREADABLE
    if run.exit_code and not holders:
        return
    if len(holders) != 1:
        ids = ", ".join(name for name, _ in holders[:5])
        what = f"{len(holders)} sessions have it; add --session, one of {ids}"
        what = what if holders else "no session has it; `polymux ls` lists the streams"
        raise click.UsageError(f"--stream {stream}: {what}")

    def emit(table: str, batch: pa.RecordBatch) -> None:
        if table != "content":
            return
        for row in rows_of(table, batch):
            if row["sender"] in senders:
                report.before_row(row)
                write(row)

    run.analyze(holders[0][1], options, emit, report.on_missing)
    report.end_session()
    sys.stdout.flush()


def write_raw(row: dict[str, object]) -> None:
    """Write the bytes unchanged."""
    data = row["data"]
    assert isinstance(data, bytes)  # the type of the column
    sys.stdout.buffer.write(data)


def write_text(row: dict[str, object]) -> None:
    """Print escaped lines, with an arrow for the direction: `>` is sent by the dialer."""
    data = row["data"]
    assert isinstance(data, bytes)  # the type of the column
    arrow = ">" if row["sender"] == "dialer" else "<"
    for line in data.decode("utf-8", "backslashreplace").splitlines():
        print_line(f"{arrow} {format_value(line)}")
