"""`polymux report`: write the tables of an analysis as one HTML file."""

from __future__ import annotations

import click


@click.command(epilog="Example: polymux report tables -o report.html", no_args_is_help=True)
@click.argument("tables")
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
def report(tables: str, out: str, title: str, payload: str) -> None:
    """Write an HTML report of TABLES, the output directory of `polymux analyze`."""
    from polymux.cli.support.output import format_value, plural
    from polymux.cli.support.progress import ProgressBar
    from polymux.report import rows_to_read, write_report

    with ProgressBar("reading tables", unit="rows") as bar:
        bar.total = rows_to_read(tables)
        info = write_report(tables, out, title=title, payload=payload, progress=bar.advance)
    counts = (
        (info.sessions, "session"), (info.errors, "error"), (info.warnings, "warning"),
        (info.stalls, "stall"),
    )  # fmt: skip
    listed = ", ".join(plural(*count) for count in counts)
    click.echo(f"{format_value(info.path)}: {info.size_bytes} bytes; {listed}")
