"""The tables of captures, made in this process: the rows that `polymux analyze` makes on Spark.

`CAPTURES|TABLES` commands take the output directory of an analysis, or captures, which are analyzed
into a directory that is removed when the command ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from polymux.analysis.options import DEFAULT_TABLES
from polymux.capture.io.discovery import find_captures, find_inputs
from polymux.capture.io.sources import STDIN
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.capture_walk import CaptureRun
from polymux.core.errors import CaptureError
from polymux.malloc import ARROW_POOL
from polymux.report.load.tables import is_tables_folder


@dataclass(frozen=True, slots=True)
class TablesFolder:
    """A directory of tables. `exit_code` is that of reading the captures they were made from."""

    path: Path
    exit_code: int = 0


def given_tables(request: CaptureRequest) -> Path | None:
    """The tables that a request names; None if it names captures.

    Raises:
        click.UsageError: Tables are named together with captures, or with options that select
            sessions of captures.
    """
    folders = [name for name in request.files if name != STDIN and is_tables_folder(name)]
    if not folders:
        return None
    if len(request.files) > 1:
        raise click.UsageError(f"{folders[0]}: name one directory of tables, or captures only")
    if replace(request, files=()) != CaptureRequest(()):
        raise click.UsageError(
            f"{folders[0]}: --protocol, --port, --filter, --session and --keys are for captures, "
            "and these tables are made already"
        )
    return Path(folders[0])


@contextmanager
def tables_of(request: CaptureRequest, *tables: str) -> Iterator[TablesFolder]:
    """Yield the tables that a request names or, for captures, a temporary directory with them.

    Args:
        request: What the command was given.
        tables: Those that are made of captures; by default all but `content`.

    Raises:
        click.UsageError: See `given_tables`.
        CaptureError: A capture cannot be found.
        OutputError: The temporary directory cannot be written.
    """
    folder = given_tables(request)
    if folder is not None:
        yield TablesFolder(folder)
        return
    with TemporaryDirectory(prefix="polymux-") as made:
        yield TablesFolder(Path(made), write_tables(request, Path(made), *tables))


def write_tables(request: CaptureRequest, folder: Path, *tables: str) -> int:
    """Analyze the captures into tables below `folder`. Return the exit code."""
    os.environ.setdefault(*ARROW_POOL)
    from polymux.analysis.output.parquet import TableWriter, write_empty_tables

    request = with_absolute_paths(request)
    options = request.analysis_options(*tables)
    with CaptureRun(request, options) as run:
        with TableWriter(folder) as writer:
            for session in run.sessions():
                run.analyze(session, options, writer.emit, batcher=writer.batcher)
            writer.add_captures(run.files)
    write_empty_tables(folder, [*(tables or DEFAULT_TABLES), "captures", "sessions"])
    return run.exit_code


def with_absolute_paths(request: CaptureRequest) -> CaptureRequest:
    """The same request with the name of each file as the tables of an analysis have it.

    Raises:
        CaptureError: A capture cannot be found.
    """
    if STDIN in request.files:
        return request
    first = request.files[0]
    if request.files == (first,) and os.path.isdir(first) and not find_captures(first):
        raise CaptureError(
            "no captures here, and no tables; give the directory that 'polymux analyze --out' "
            "wrote, or captures",
            first,
        )
    return replace(request, files=tuple(file.path for file in find_inputs(request.files)))
