"""`polymux report`: write captures, or the tables of an analysis, as one HTML file."""

from __future__ import annotations

from functools import partial

import click

from polymux.cli.support.capture_options import CaptureRequest, selection_options


@click.command(epilog="Example: polymux report talk.pcapng -o report.html", no_args_is_help=True)
@partial(selection_options, metavar="CAPTURES|TABLES...")
@click.option(
    "-o", "--out", default="report.html", show_default=True, help="The HTML file to write."
)
@click.option("--title", default="polymux report", show_default=True, help="Title of the page.")
@click.option(
    "--payload",
    default="none",
    show_default=True,
    help="Payload to include: none, hash, head:N (the first N bytes) or full.",
)
@click.pass_context
def report(
    context: click.Context, request: CaptureRequest, out: str, title: str, payload: str
) -> None:
    """Write an HTML report of CAPTURES, or of TABLES, the output directory of `polymux analyze`.

    The page is the same for captures as for their tables. Captures are analyzed in this process,
    without Spark, into a temporary directory; for many gigabytes, `polymux analyze` uses all cores.
    """
    from polymux.analysis.options import DEFAULT_TABLES
    from polymux.cli.support.capture_tables import tables_of
    from polymux.cli.support.output import format_value, plural
    from polymux.cli.support.progress import ProgressBar
    from polymux.report import rows_to_read, write_report
    from polymux.report.load.payloads import PayloadOption

    content = PayloadOption.parse(payload).mode != "none"
    with tables_of(request, *DEFAULT_TABLES, *(["content"] if content else [])) as tables:
        with ProgressBar("reading tables", unit="rows") as bar:
            bar.total = rows_to_read(tables.path)
            info = write_report(
                tables.path, out, title=title, payload=payload, progress=bar.advance
            )
    counts = (
        (info.sessions, "session"), (info.errors, "error"), (info.warnings, "warning"),
        (info.stalls, "stall"),
    )  # fmt: skip
    listed = ", ".join(plural(*count) for count in counts)
    click.echo(f"{format_value(info.path)}: {info.size_bytes} bytes; {listed}")
    context.exit(tables.exit_code)
