"""`polymux sql`: queries about captures, or the tables of an analysis, with DuckDB."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from polymux.cli.support.capture_options import JSON_HELP, CaptureRequest, selection_options
from polymux.cli.support.output import CSV, JSON, chosen_format, warn

if TYPE_CHECKING:
    from polymux.cli.sql.capture_source import CaptureSource
    from polymux.cli.sql.database import Database
    from polymux.report.load.tables import Tables


def print_examples(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    """Print the ready questions and end, if --examples was given."""
    if not wanted:
        return
    from polymux.cli.sql.questions import QUESTIONS

    for question in QUESTIONS:
        click.echo(f"-- {question.title}\n{question.query};\n")
    context.exit(0)


@click.command(
    epilog="Example: polymux sql talk.pcapng \"select stream, bytes_dialer from streams\"",
    no_args_is_help=True,
)  # fmt: skip
@partial(selection_options, metavar="CAPTURES|TABLES... [QUERY]")
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("-o", "--out", help="Write the rows to this Parquet file instead.")
@click.option(
    "--memory", default="1GB", show_default=True,
    help="Most memory a query may use, besides that of reading the captures.",
)  # fmt: skip
@click.option(
    "--examples", is_flag=True, is_eager=True, expose_value=False, callback=print_examples,
    help="Print ready questions and exit.",
)  # fmt: skip
@click.pass_context
def sql(
    context: click.Context,
    request: CaptureRequest,
    as_json: bool,
    as_csv: bool,
    out: str | None,
    memory: str,
) -> None:
    """Answer QUERY about CAPTURES, or about TABLES, the output directory of `polymux analyze`.

    Each table of an analysis is a table of the query, and why('d1') and waterfall('3f2a') are
    tables too: what happened to a stream, and the streams of a session. Captures are analyzed while
    the query runs, only for the tables it names, and nothing is written. Without QUERY, a prompt
    reads queries from the terminal, or one query is read from a pipe.

    Queries cannot write, read other files or open connections.
    """
    from polymux.cli.sql.capture_source import CaptureSource
    from polymux.cli.sql.database import Database
    from polymux.report.load.tables import Tables

    if as_csv and as_json:
        raise click.UsageError("--json and --csv contradict each other")
    if out is not None and not out.endswith(".parquet"):
        raise click.UsageError(f"-o {out}: the rows are written as Parquet; name it FILE.parquet")
    form = chosen_format(as_json, CSV if as_csv else JSON if as_json else None)
    request, query = split_query(request)
    if not request.files:
        raise click.UsageError("name captures or tables before the query")
    source = open_source(request)
    captured = source if isinstance(source, CaptureSource) else None
    tables = source.datasets() if isinstance(source, Tables) else source.tables
    # The analysis is one thread, and more of them for the query would only take memory.
    with Database(tables, memory, threads=1 if captured else 0) as database:
        if query:
            run_query(database, source, query, form, out)
        elif sys.stdin.isatty():
            from polymux.cli.sql.prompt import run_prompt

            run_prompt(lambda text: run_query(database, source, text, form, out), tables)
        else:
            run_query(database, source, sys.stdin.read(), form, out)
    context.exit(captured.exit_code if captured else 0)


def split_query(request: CaptureRequest) -> tuple[CaptureRequest, str]:
    """Take the query, the last argument if it has spaces and names no file, from the files."""
    from polymux.capture.io.listing import expand
    from polymux.capture.io.paths import is_glob

    *files, last = request.files
    if len(last.split()) < 2 or os.path.exists(last) or (is_glob(last) and expand(last)):
        return request, ""
    return replace(request, files=tuple(files)), last


def open_source(request: CaptureRequest) -> CaptureSource | Tables:
    """The captures or tables that a request names."""
    from polymux.cli.sql.capture_source import CaptureSource
    from polymux.cli.support.capture_tables import given_tables
    from polymux.report.load.tables import Tables

    folder = given_tables(request)
    return CaptureSource(request) if folder is None else Tables(folder)


def run_query(
    database: Database, source: CaptureSource | Tables, text: str, form: str, out: str | None
) -> None:
    """Run a query and print its rows, or write them to `out`.

    Raises:
        QueryFailed: It is wrong or refused.
        CaptureError: A capture cannot be read at all.
        UnreadableTables: A table is damaged.
    """
    from polymux.cli.sql.capture_source import CaptureSource
    from polymux.cli.sql.results import print_rows, write_parquet

    captured = source if isinstance(source, CaptureSource) else None
    if captured is not None:
        captured.begin_query()
    try:
        with database.explained():
            rows = database.query(text)
            if out is None:
                print_rows(rows, form)
            else:
                warn(f"{out}: {write_parquet(rows, out)} rows")
    except click.ClickException:
        if captured is not None and captured.failure is not None:
            raise captured.failure from None
        if not isinstance(source, CaptureSource):
            source.check_readable()
        raise
