"""`polymux diff`: what changed between two captures or analyses; a gate for CI."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import (
    JSON_HELP,
    PROTOCOL_HELP,
    CaptureRequest,
    keys_option,
)
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_FINDINGS
from polymux.report.compare.measurements import GROUPINGS

if TYPE_CHECKING:
    from polymux.report.compare.comparison import Change

TABLES_READ = ("sessions", "streams", "stalls", "violations")


@click.command(
    epilog="Example: polymux diff yesterday.pcapng today.pcapng --by name "
    '--fail-if "stalled_us > +10%". Exit code 1: a condition holds.',
    no_args_is_help=True,
)
@click.argument("before")
@click.argument("after")
@click.option("--by", type=click.Choice(GROUPINGS), help="Compare streams in groups.")
@click.option(
    "--fail-if", "conditions", multiple=True, metavar="CONDITION",
    help='Exit with code 1 if this holds for any group: "latency_p99_us > +10%", '
    '"violations > +0", "resets > 5".',
)  # fmt: skip
@click.option("--junit", metavar="FILE", help="Write a JUnit file: a test for each --fail-if.")
@click.option("-o", "--out", metavar="FILE", help="Write an HTML page with all measures.")
@click.option("--all", "show_all", is_flag=True, help="Print all measures, not only changes.")
@click.option(
    "--protocol", default="auto", show_default=True, shell_complete=protocol_names,
    help=PROTOCOL_HELP,
)  # fmt: skip
@click.option(
    "--port", "ports", multiple=True,
    help="Only this port, and optionally its protocol: 9000=mplex.",
)  # fmt: skip
@keys_option
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
@click.pass_context
def diff(
    context: click.Context,
    before: str,
    after: str,
    by: str | None,
    conditions: tuple[str, ...],
    junit: str | None,
    out: str | None,
    show_all: bool,
    protocol: str,
    ports: tuple[str, ...],
    key_files: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print what changed from BEFORE to AFTER: violations, stalls, resets, latency, throughput.

    BEFORE and AFTER are captures (a file, directory or glob) or the output directories of `polymux
    analyze`. Changes are printed that chance does not explain, and that are at least 10 %; two
    recordings of the same show none in 98 of 100 comparisons. Rules that are broken only before or
    only after are always printed. The interval is that of the relative change.
    """
    from polymux.cli.support.capture_tables import tables_of
    from polymux.report.compare.comparison import compare
    from polymux.report.compare.conditions import Condition
    from polymux.report.compare.measurements import measure
    from polymux.report.compare.output import html_page, junit_xml
    from polymux.report.load.tables import Tables

    parsed = [Condition.parse(text) for text in conditions]
    code = 0
    measured = []
    for name in (before, after):
        request = CaptureRequest((name,), protocol, ports, key_files=key_files)
        with tables_of(request, *TABLES_READ) as folder:
            code = max(code, folder.exit_code)
            measured.append(measure(Tables(folder.path), by))
    changes = compare(measured[0], measured[1])
    if out is not None:
        write_file(out, html_page(before, after, changes).encode())
    if junit is not None:
        write_file(junit, junit_xml(parsed, changes))
    print_changes(changes, show_all, as_json)
    failed = [condition for condition in parsed if condition.violating(changes)]
    for condition in failed:
        click.echo(f"fails: {condition.text}", err=True)
    context.exit(EXIT_FINDINGS if failed else code)


def write_file(path: str, data: bytes) -> None:
    """Write a file, replacing it at once.

    Raises:
        UnwritableOutput: It cannot be written.
    """
    from polymux.capture.io.atomic_write import DEFAULT_FILE_MODE, write_atomically
    from polymux.core.errors import UnwritableOutput

    try:
        write_atomically(Path(path), data, sync=False, mode=DEFAULT_FILE_MODE)
    except OSError as problem:
        raise UnwritableOutput(f"{path}: cannot be written: {problem.strerror}") from None


def print_changes(changes: list[Change], show_all: bool, as_json: bool) -> None:
    """Print the reported changes, or all measures, as a table or as JSON lines."""
    from polymux.cli.support.output import TableColumn, is_interactive, json_line, print_table
    from polymux.report.compare.output import change_cells

    shown = [change for change in changes if change.reported or show_all]
    if not is_interactive(as_json):
        for change in shown:
            json_line(change_json(change))
    elif shown:
        columns = (
            TableColumn("group", min_width=8),
            TableColumn("measure"),
            TableColumn("before", right_aligned=True),
            TableColumn("after", right_aligned=True),
            TableColumn("change", right_aligned=True),
            TableColumn("interval", 1),
        )
        print_table("", columns, map(change_cells, shown))
    else:
        click.echo("no difference that chance does not explain")


def change_json(change: Change) -> dict[str, object]:
    """One line of --json; change and interval are null where there was nothing before."""
    found = change.difference
    is_new = math.isinf(found.change)
    return {
        "group": change.group,
        "measure": change.measure,
        "before": found.before,
        "after": found.after,
        "change": None if is_new else round(found.change, 6),
        "low": None if is_new else round(found.low, 6),
        "high": None if is_new else round(found.high, 6),
        "reported": change.reported,
        "worse": change.worse,
    }
