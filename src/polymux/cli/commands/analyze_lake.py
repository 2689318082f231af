"""`polymux analyze --append`: the options of a lake of tables, and what a run has done to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, TypeVar

import click

from polymux.cli.support.output import console as standard_output
from polymux.cli.support.output import format_value, plural, warn

if TYPE_CHECKING:
    from polymux.spark.batch.pipeline import Analysis, LakeOptions

FORMATS = ("parquet", "delta", "iceberg")  # those of `spark.lake`, which takes long to import
DEFAULT_CARRY_DAYS = 7.0
MAX_CARRY_DAYS = 36_500  # in nanoseconds it is stored in 64 bits
Command = TypeVar("Command", bound=Callable[..., object])


def lake_options(command: Command) -> Command:
    """Add `--append` and the options of a lake."""
    for add in (
        click.option("--exchange", default="", metavar="DIR",
                     help="Lake on an object store: a directory that all workers share."),
        click.option("--catalog", default="", metavar="URI",
                     help="Lake: SQL catalog of Iceberg tables; by default a file of SQLite."),
        click.option("--carry-days", type=click.FloatRange(0, MAX_CARRY_DAYS),
                     default=DEFAULT_CARRY_DAYS,
                     show_default=True,
                     help="Lake: days without a packet after which a session is over."),
        click.option("--by-sensor", is_flag=True,
                     help="Lake: divide tables by sensor too, not only by date."),
        click.option("--format", "lake_format", type=click.Choice(FORMATS),
                     help="Lake: the format of its tables; --out is a lake then."),
        click.option("--reprocess", type=click.DateTime(["%Y-%m-%d"]), multiple=True,
                     metavar="DATE",
                     help="Lake: read the captures of this day again and replace its rows."),
        click.option("--forget", is_flag=True,
                     help="Lake: with --reprocess: forget captures of the day that are gone."),
        click.option("--append", is_flag=True,
                     help="Lake: --out is one; add what it was not made from yet."),
    ):  # fmt: skip
        command = add(command)
    return command


@dataclass(frozen=True)
class LakeChoice:
    """What the options of a lake say."""

    append: bool
    reprocess: tuple[date, ...]
    format: str | None
    by_sensor: bool
    carry_days: float
    catalog: str
    exchange: str
    forget: bool

    @property
    def is_lake(self) -> bool:
        """Whether `--out` is a lake."""
        return bool(self.append or self.reprocess or self.format or self.by_sensor or self.catalog)

    @property
    def adds(self) -> bool:
        """Whether it may be one that exists."""
        return bool(self.append or self.reprocess)

    def options(self) -> LakeOptions | None:
        """The options for the analysis; None for plain tables."""
        from polymux.spark.batch.pipeline import LakeOptions

        if not self.is_lake:
            return None
        return LakeOptions(
            self.format,
            self.by_sensor,
            self.reprocess,
            self.carry_days,
            self.catalog,
            self.exchange,
            self.forget,
        )


def lake_choice(
    append: bool,
    reprocess: Sequence[datetime],
    lake_format: str | None,
    by_sensor: bool,
    carry_days: float,
    catalog: str,
    exchange: str,
    forget: bool,
) -> LakeChoice:
    """Return what the options of a lake say.

    Raises:
        click.UsageError: `--forget` is given without `--reprocess`.
    """
    if forget and not reprocess:
        raise click.UsageError("--forget: name the day, with --reprocess DATE")
    return LakeChoice(
        append,
        tuple(sorted({day.date() for day in reprocess})),
        lake_format,
        by_sensor,
        carry_days,
        catalog,
        exchange,
        forget,
    )


def lake_text(analysis: Analysis) -> str:
    """What a run has done to a lake, on one line."""
    run = analysis.lake
    if run is None or not (analysis.captures or run.forgotten):
        return f"nothing new: {plural(run.skipped if run else 0, 'capture')} as before"
    forgotten = f", {run.forgotten} forgotten" if run.forgotten else ""
    return (
        f"{plural(len(analysis.captures), 'capture')} read, {run.skipped} as before{forgotten}; "
        f"{plural(run.replaced, 'session')} replaced, {run.open} not over"
    )


def warn_about_kept(analysis: Analysis) -> None:
    """Say which sessions should have been replaced, and stay because their captures are gone."""
    run = analysis.lake
    if run is None or not run.kept:
        return
    more = f" and {len(run.gone) - 1} more" if len(run.gone) > 1 else ""
    left_out = f"; {plural(run.left_out, 'packet')} of their time left out" if run.left_out else ""
    warn(
        f"{plural(run.kept, 'session')} not replaced: {format_value(run.gone[0])}{more} gone or "
        f"changed, but needed for that{left_out}; other packets are sessions of their own"
    )


def print_lake(analysis: Analysis) -> None:
    """Print what a run has done to a lake."""
    if analysis.lake is None:
        return
    warn_about_kept(analysis)
    out = standard_output()
    out.print(lake_text(analysis))
    place = f"lake: {format_value(analysis.out)}, version {analysis.lake.version}"
    out.print(place, markup=False, soft_wrap=True)
