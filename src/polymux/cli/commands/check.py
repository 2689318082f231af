"""`polymux check`: list the violations in captures; fails if there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import CaptureRequest, capture_options, format_option
from polymux.cli.support.capture_walk import analyze_captures
from polymux.cli.support.exit_codes import EXIT_FINDINGS
from polymux.cli.support.output import (
    TABLE,
    console,
    format_value,
    line_writer,
    plural,
    rows_of,
)
from polymux.cli.support.progress import print_line
from polymux.report.render.wording import violation_text

if TYPE_CHECKING:
    import pyarrow as pa

SEVERITIES = ("note", "warning", "error")


@click.command(
    epilog="Example: polymux check talk.pcapng --severity error. Exit code 1: there are "
    "violations; 3: there are none, but a capture could not be read to its end.",
    no_args_is_help=True,
)
@capture_options
@format_option
@click.option(
    "--severity", type=click.Choice(SEVERITIES), default="warning", show_default=True,
    help="List violations of this severity or worse.",
)  # fmt: skip
@click.pass_context
def check(
    context: click.Context,
    request: CaptureRequest,
    output_format: str,
    severity: str,
) -> None:
    """List the violations in CAPTURES. Exit code 1 if there are any."""
    as_table = output_format == TABLE
    write = print_violation if as_table else line_writer(output_format)
    severities = SEVERITIES[SEVERITIES.index(severity) :]
    violations = sessions = 0

    def emit(table: str, batch: pa.RecordBatch) -> None:
        nonlocal violations
        for row in rows_of(table, batch):
            if row["severity"] in severities:
                violations += 1
                write(row)

    def count(summary: object) -> None:
        nonlocal sessions
        sessions += 1

    options = request.analysis_options("violations")
    code = analyze_captures(request, options, emit, count, as_table)
    if as_table:
        where = plural(sessions, "session")
        console().print(f"{plural(violations, 'violation')} ({severity} or worse) in {where}")
    context.exit(EXIT_FINDINGS if violations else code)


def print_violation(row: dict[str, object]) -> None:
    position = f"frame {row['frame_index']}, byte {row['byte_offset']}"
    print_line(
        format_value(f"{row['session_id']} {row['severity']}: {violation_text(row)} ({position})")
    )
