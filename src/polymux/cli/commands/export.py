"""`polymux export`: captures as Perfetto traces or qlog files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from polymux.capture.io.paths import PRIVATE_FILE
from polymux.cli.support.capture_options import CaptureRequest, selection_options
from polymux.cli.support.capture_walk import analyze_captures
from polymux.cli.support.output import format_value, rows_of
from polymux.cli.support.progress import print_line
from polymux.cli.support.trace_files import PerfettoWriter, QlogWriter, TraceWriter

if TYPE_CHECKING:
    import pyarrow as pa

PERFETTO, QLOG = "perfetto", "qlog"
TABLES = ("frames", "violations", "stalls", "streams")


@click.command(
    epilog="Example: polymux export talk.pcapng --format perfetto -o talk.perfetto-trace",
    no_args_is_help=True,
)
@selection_options
@click.option(
    "--format",
    "form",
    type=click.Choice((PERFETTO, QLOG)),
    required=True,
    help="perfetto opens in ui.perfetto.dev; qlog is JSON text sequences.",
)
@click.option("-o", "--out", required=True, help="The new file; it must not exist.")
@click.pass_context
def export(context: click.Context, request: CaptureRequest, form: str, out: str) -> None:
    """Write the sessions, streams, frames, violations and stalls of CAPTURES as a trace.

    The file has names and numbers, no content; only its owner may read it.
    """
    if os.path.lexists(out):
        raise click.UsageError(f"-o {out}: is there already; name a new file")
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        with os.fdopen(fd, "wb") as file:
            title = ", ".join(request.files)
            writer: TraceWriter = (
                PerfettoWriter(file) if form == PERFETTO else QlogWriter(file, title)
            )

            def emit(table: str, batch: pa.RecordBatch) -> None:
                for row in rows_of(table, batch):
                    writer.row(table, row)

            options = request.analysis_options(*TABLES)
            code = analyze_captures(request, options, emit, writer.session)
    except BaseException:
        os.unlink(out)
        raise
    print_line(format_value(f"{out}: {os.path.getsize(out)} bytes"))
    context.exit(code)
