"""`polymux check`: list the violations in captures; fails if there are any."""

from __future__ import annotations

import click

from polymux.cli.support.capture_options import CaptureRequest, capture_options, format_option
from polymux.cli.support.capture_walk import analyze_to_rows
from polymux.cli.support.exit_codes import EXIT_FINDINGS
from polymux.cli.support.missing_report import MissingReport
from polymux.cli.support.output import (
    JSON,
    TABLE,
    console,
    format_value,
    json_line,
    line_writer,
    plural,
)
from polymux.cli.support.progress import print_line
from polymux.report.render.wording import violation_text

SEVERITIES = ("note", "warning", "error")


@click.command(
    epilog="Example: polymux check talk.pcapng --severity error. Exit code 1: there are "
    "violations; 3: there are none, but a capture could not be read to its end, or bytes of a "
    "session are missing from it.",
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
    """List the violations in CAPTURES. Exit code 1 if there are any.

    Bytes that are missing from a session are described on standard error, and in JSON by an object
    in their place.
    """
    from polymux.analysis.output.plain_rows import PlainRows

    as_table = output_format == TABLE
    write = print_violation if as_table else line_writer(output_format)
    severities = SEVERITIES[SEVERITIES.index(severity) :]
    report = MissingReport(json_line if output_format == JSON else None)
    violations = sessions = 0

    def emit(table: str, rows: list[dict[str, object]]) -> None:
        nonlocal violations
        for row in rows:
            if row["severity"] in severities:
                violations += 1
                report.before_row(row)
                write(row)

    def count(summary: object) -> None:
        nonlocal sessions
        sessions += 1
        report.end_session()

    options = request.analysis_options("violations")
    rows = PlainRows(emit)
    code = analyze_to_rows(request, options, rows, count, as_table, report.on_missing)
    report.close()
    if as_table:
        where = plural(sessions, "session")
        console().print(f"{plural(violations, 'violation')} ({severity} or worse) in {where}")
    context.exit(EXIT_FINDINGS if violations else report.exit_code(code))


def print_violation(row: dict[str, object]) -> None:
    position = f"frame {row['frame_index']}, byte {row['byte_offset']}"
    print_line(
        format_value(f"{row['session_id']} {row['severity']}: {violation_text(row)} ({position})")
    )
