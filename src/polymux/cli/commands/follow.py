"""`polymux follow`: the bytes of one stream, or of all streams as files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import CaptureRequest, capture_options, session_option
from polymux.cli.support.capture_walk import CaptureRun
from polymux.cli.support.output import format_value, is_interactive, json_line, rows_of, warn
from polymux.cli.support.progress import print_line
from polymux.cli.support.stream_files import StreamFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from polymux.analysis.options import AnalysisOptions

SIDES = ("dialer", "acceptor")


@click.command(
    epilog="Example: polymux follow talk.pcapng --stream d1 --sender dialer > upload.bin",
    no_args_is_help=True,
)
@capture_options
@session_option
@click.option("--stream", default="", help="The stream, as `polymux ls` lists it: d1, a2, d0.2.")
@click.option("--sender", type=click.Choice(SIDES), help="Only what this side sent.")
@click.option("-o", "--out", help="Write files to this directory instead, and a manifest.json.")
@click.pass_context
def follow(
    context: click.Context,
    captures: tuple[str, ...],
    protocol: str,
    ports: tuple[str, ...],
    filters: tuple[str, ...],
    session: str,
    as_json: bool,
    stream: str,
    sender: str | None,
    out: str | None,
) -> None:
    """Give the content of a stream of CAPTURES, byte for byte, in the order it passed.

    A terminal gets it escaped, a pipe gets the bytes, --json a line for each frame. With --out
    every stream (or the one named) becomes a file `stream-000017.bin` for each side that sent;
    names never become file names.
    """
    from polymux.analysis.schema.stream_keys import parse_stream_key

    if stream:
        parse_stream_key(stream)
    elif out is None:
        raise click.UsageError("say which stream with --stream d1, or --out DIR for all of them")
    asked = CaptureRequest(captures, protocol, ports, filters, session)
    senders = (sender,) if sender else SIDES
    plan = asked.analysis_options("streams", "content", stream=stream)
    people = is_interactive(as_json)
    with CaptureRun(asked, plan, printing=people and out is None) as reading:
        if out is not None:
            with StreamFiles(out, senders) as files:
                for each in reading.sessions():
                    files.add_session(reading.analyze(each, plan, files.emit))
            warn(files.summary_text())
        else:
            put = json_line if as_json else write_text if people else write_raw
            _print_stream(reading, asked, plan, stream, senders, put)
    context.exit(reading.exit_code)


def _print_stream(
    run: CaptureRun,
    request: CaptureRequest,
    options: AnalysisOptions,
    stream: str,
    senders: tuple[str, ...],
    put: Callable[[dict[str, object]], None],
) -> None:
    """One stream to standard output."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from polymux.analysis.arrow.arrays import make_scalar

    holders = []
    wanted = make_scalar(stream, pa.string())
    for session in run.sessions():
        labels: set[str] = set()

        def note(table: str, batch: pa.RecordBatch, labels: set[str] = labels) -> None:
            if pc.any(pc.equal(batch.column("stream"), wanted)).as_py():
                labels.add(stream)

        summary = run.analyze(session, request.analysis_options("streams"), note)
        if labels:
            holders.append((summary.session_id, session))
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
                put(row)

    run.analyze(holders[0][1], options, emit)
    sys.stdout.flush()


def write_raw(row: dict[str, object]) -> None:
    """The bytes as they are."""
    data = row["data"]
    assert isinstance(data, bytes)
    sys.stdout.buffer.write(data)


def write_text(row: dict[str, object]) -> None:
    """Lines that a terminal cannot be harmed by, with an arrow for the direction."""
    data = row["data"]
    assert isinstance(data, bytes)
    arrow = ">" if row["sender"] == "dialer" else "<"
    for line in data.decode("utf-8", "backslashreplace").splitlines():
        print_line(f"{arrow} {format_value(line)}")
