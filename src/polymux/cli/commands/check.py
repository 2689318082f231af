"""`polymux check`: the rules that were broken; fails if there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import (
    CaptureRequest,
    capture_options,
    format_option,
    session_option,
)
from polymux.cli.support.capture_walk import analyze_captures
from polymux.cli.support.output import (
    TABLE,
    chosen_format,
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

EXIT_FINDINGS = 1
SEVERITIES = ("note", "warning", "error")


@click.command(
    epilog="Example: polymux check talk.pcapng --severity error. Exit code 1: something was "
    "found; 3: nothing was, but a capture could not be read to its end.",
    no_args_is_help=True,
)
@capture_options
@format_option
@session_option
@click.option(
    "--severity", type=click.Choice(SEVERITIES), default="warning", show_default=True,
    help="The least that counts.",
)  # fmt: skip
@click.pass_context
def check(
    context: click.Context,
    captures: tuple[str, ...],
    protocol: str,
    ports: tuple[str, ...],
    filters: tuple[str, ...],
    session: str,
    as_json: bool,
    form: str | None,
    severity: str,
) -> None:
    """List the violations in CAPTURES. Exit code 1 if there are any."""
    asked = CaptureRequest(captures, protocol, ports, filters, session)
    form = chosen_format(as_json, form)
    put = print_violation if form == TABLE else line_writer(form)
    wanted = SEVERITIES[SEVERITIES.index(severity) :]
    found = sessions = 0

    def emit(table: str, batch: pa.RecordBatch) -> None:
        nonlocal found
        for row in rows_of(table, batch):
            if row["severity"] in wanted:
                found += 1
                put(row)

    def count(summary: object) -> None:
        nonlocal sessions
        sessions += 1

    code = analyze_captures(asked, asked.analysis_options("violations"), emit, count, form == TABLE)
    if form == TABLE:
        where = plural(sessions, "session")
        console().print(f"{plural(found, 'violation')} ({severity} or worse) in {where}")
    context.exit(EXIT_FINDINGS if found else code)


def print_violation(row: dict[str, object]) -> None:
    place = f"frame {row['frame_index']}, byte {row['byte_offset']}"
    print_line(
        format_value(f"{row['session_id']} {row['severity']}: {violation_text(row)} ({place})")
    )
