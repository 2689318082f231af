"""`polymux lake`: the versions of a lake, and its maintenance."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

import click

from polymux.cli.support.capture_options import JSON_HELP
from polymux.cli.support.output import (
    TableColumn,
    format_value,
    is_interactive,
    json_line,
    plural,
    print_table,
)
from polymux.core.urls import without_credentials
from polymux.text.units import parse_bytes, size_text

if TYPE_CHECKING:
    from polymux.spark.lake.lake import Lake
    from polymux.spark.lake.store import DataFile

Command = TypeVar("Command", bound=Callable[..., object])

DEFAULT_GRACE_DAYS: Final = 7
MIN_TARGET_BYTES: Final = 1 << 20
HISTORY_COLUMNS: Final = (
    TableColumn("version", right_aligned=True),
    TableColumn("time"),
    TableColumn("operation"),
    TableColumn("added", right_aligned=True),
    TableColumn("removed", right_aligned=True),
    TableColumn("run", rank=1),
    TableColumn("polymux", rank=2),
)


def lake_options(command: Command) -> Command:
    """The argument and the options of every command of a lake."""
    for add in (  # the last is shown first
        click.option("--json", "as_json", is_flag=True, help=JSON_HELP),
        click.option(
            "--catalog", default="", metavar="URI",
            help="Iceberg: the SQL catalog, such as sqlite:////data/catalog.db or "
            "postgresql+psycopg2://host/db (default: a SQLite file in the lake, or in the user's "
            "data directory for a lake on an object store).",
        ),
        click.argument("lake"),
    ):  # fmt: skip
        command = add(command)
    return command


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only say what would be done; nothing is written."
)


@click.group(epilog="Example: polymux lake history s3://bucket/lake")
def lake() -> None:
    """List the versions of LAKE, join its small files, drop old days, free its space.

    LAKE is the directory or URL of a lake: tables that grow by runs of `analyze`. Readers are never
    disturbed, and runs that write it meanwhile go on.
    """


@lake.command(epilog="Example: polymux lake history LAKE --json", no_args_is_help=True)
@lake_options
def history(lake: str, catalog: str, as_json: bool) -> None:
    """List the versions of LAKE, the oldest first.

    Each is what one run has made of the one before: files added and removed, of all tables at once.
    A Delta or Iceberg lake has in `tables` (with --json) the Delta version or the Iceberg metadata
    of each table.
    """
    rows: list[dict[str, object]] = [
        {
            "version": version.number,
            "time": version.time,
            "operation": version.operation,
            "added": version.added_files,
            "removed": version.removed_files,
            "run": version.run,
            "polymux": version.polymux_version,
            "options": dict(version.options),
            "tables": dict(version.tables),
        }
        for version in _open(lake, catalog).history()
    ]
    if not is_interactive(as_json):
        for row in rows:
            json_line(row)
        return
    cells = [[format_value(row.get(column.name)) for column in HISTORY_COLUMNS] for row in rows]
    print_table(f"versions of {without_credentials(lake)}", list(HISTORY_COLUMNS), cells)


@lake.command(epilog="Example: polymux lake compact LAKE --date 2026-11-03", no_args_is_help=True)
@lake_options
@click.option(
    "--target", default="128MB", show_default=True, metavar="SIZE",
    help="Size of the files to make. Those of half that size and more are left alone.",
)  # fmt: skip
@click.option(
    "--date", "dates", multiple=True, type=click.DateTime(["%Y-%m-%d"]),
    help="Only the sessions of this day; repeatable. Several commands may work on different days.",
)  # fmt: skip
@dry_run_option
def compact(
    lake: str, catalog: str, target: str, dates: tuple[date, ...], dry_run: bool, as_json: bool
) -> None:
    """Join the small files of LAKE that have the same table and partition.

    The rows stay the same; those of a joined file are sorted by session and time. The small files
    stay in the store for readers of older versions, until `vacuum`.
    """
    size = parse_bytes(target)
    if size is None or size < MIN_TARGET_BYTES:
        raise click.UsageError(f"--target {target}: write a size of at least 1MB, such as 128MB")
    days = [day.strftime("%Y-%m-%d") for day in dates]
    done = _open(lake, catalog).compact(size, dates=days, dry_run=dry_run)
    version = None if done.version is None else done.version.number
    if not is_interactive(as_json):
        json_line({**_counts("joined", done.joined), **_counts("made", done.added),
                   "version": version})  # fmt: skip
    elif version is None:
        would = "would join" if dry_run else "nothing to do: joined"
        click.echo(f"{would} {_text(done.joined)}")
    else:
        click.echo(f"version {version}: joined {_text(done.joined)} into {_text(done.added)}")


@lake.command(epilog="Example: polymux lake expire LAKE --keep 30", no_args_is_help=True)
@lake_options
@click.option(
    "--keep", "keep_days", required=True, type=click.IntRange(1), metavar="DAYS",
    help="Keep the sessions that started on the last DAYS days, today included (UTC).",
)  # fmt: skip
@click.option(
    "--today", type=click.DateTime(["%Y-%m-%d"]), help="The last of these days, if not today."
)
@dry_run_option
def expire(
    lake: str, catalog: str, keep_days: int, today: date | None, dry_run: bool, as_json: bool
) -> None:
    """Remove old days from LAKE.

    A new version is without their files. The files stay in the store until `vacuum`. Tables that
    have no sessions (`captures`) are not divided by day, and keep all rows.
    """
    last = None if today is None else date(today.year, today.month, today.day)
    opened = _open(lake, catalog)
    gone = opened.expire(keep_days, today=last, dry_run=dry_run)
    days = sorted({file.date for file in gone})
    if not is_interactive(as_json):
        json_line({**_counts("removed", gone), "days": days})
    else:
        what = f"{_text(gone)} of {plural(len(days), 'day')}"
        click.echo(f"{'would remove' if dry_run else 'removed'} {what}")


@lake.command(epilog="Example: polymux lake vacuum LAKE --dry-run", no_args_is_help=True)
@lake_options
@click.option(
    "--grace", "grace_days", default=float(DEFAULT_GRACE_DAYS), show_default=True,
    type=click.FloatRange(0), metavar="DAYS",
    help="How long a version stays readable after the next one, and how old a file is at least "
    "that no version names. No run and no query may take longer.",
)  # fmt: skip
@dry_run_option
def vacuum(lake: str, catalog: str, grace_days: float, dry_run: bool, as_json: bool) -> None:
    """Delete old versions of LAKE, and files that none of the others names.

    Such files are left by `compact`, `expire`, later runs, and runs that failed or were killed.
    """
    gone = _open(lake, catalog).vacuum(timedelta(days=grace_days), dry_run=dry_run)
    size = sum(file.size for file in gone)
    if not is_interactive(as_json):
        for file in gone:
            json_line({"file": file.name, "bytes": file.size, "modified": file.modified})
    else:
        what = f"{plural(len(gone), 'file')}, {size_text(size)}"
        click.echo(f"{'would delete' if dry_run else 'deleted'} {what}")


def _open(url: str, catalog: str) -> Lake:
    from polymux.spark.lake.lake import is_lake, open_lake
    from polymux.spark.lake.store import NoLake

    if not is_lake(url):
        raise NoLake(f"{without_credentials(url)}: there is no lake")
    return open_lake(url, catalog=catalog)


def _counts(name: str, files: list[DataFile]) -> dict[str, object]:
    return {
        f"{name}_files": len(files),
        f"{name}_rows": sum(file.rows for file in files),
        f"{name}_bytes": sum(file.size for file in files),
    }


def _text(files: list[DataFile]) -> str:
    return f"{plural(len(files), 'file')}, {size_text(sum(file.size for file in files))}"
