"""`polymux analyze --watch`: follow a growing directory of captures into tables, or a lake."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from polymux.capture import SensorNaming
from polymux.cli.commands.analyze_lake import LakeChoice, lake_text, warn_about_kept
from polymux.cli.support.output import plural, warn
from polymux.cli.support.signals import stop_requested
from polymux.core.errors import CaptureError, PolymuxError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polymux.spark.batch.pipeline import Analysis
    from polymux.spark.streaming.query import BatchReport

POLL_SECONDS = 0.2  # seconds between checks of the query
DEFAULT_INTERVAL_SECONDS = 1.0  # of plain tables
# Parameters that say when rows are final, which those of a lake never are.
TIMES_OF_TABLES = ("session_grace", "session_timeout", "idle_timeout", "dedup_window")
Command = TypeVar("Command", bound=Callable[..., object])


def watch_options(command: Command) -> Command:
    """Add `--watch` and the options that only apply with it."""
    for add in (
        click.option("--dedup-window", type=click.FloatRange(0), default=3600.0, show_default=True,
                     help="With --watch: seconds during which data added again is recognised."),
        click.option("--idle-timeout", type=click.FloatRange(0), default=3600.0, show_default=True,
                     help="With --watch: seconds without new data after which all sessions end."),
        click.option("--session-timeout", type=click.FloatRange(0), default=60.0,
                     show_default=True,
                     help="With --watch: seconds without a packet after which a session ends."),
        click.option("--session-grace", type=click.FloatRange(0), default=1.0, show_default=True,
                     help="With --watch: seconds to wait for more packets of a complete session."),
        click.option("--interval", type=click.FloatRange(0.05), show_default="1; of a lake 60",
                     help="With --watch: seconds between scans of the directory."),
        click.option("--available-now", is_flag=True,
                     help="With --watch: stop once the files that exist now have been read."),
        click.option("--watch", is_flag=True,
                     help="Keep running: CAPTURES is one directory to which captures are added."),
    ):  # fmt: skip
        command = add(command)
    return command


def single_directory(captures: Sequence[str]) -> str:
    """Return the one directory of CAPTURES that --watch follows.

    Raises:
        click.UsageError: More than one path was given.
        CaptureError: The path is not a directory.
    """
    if len(captures) != 1:
        raise click.UsageError("--watch takes one directory")
    if not os.path.isdir(captures[0]):
        raise CaptureError("no such directory; --watch reads a directory that grows", captures[0])
    return captures[0]


def check_followed(choice: LakeChoice, context: click.Context) -> None:
    """Check that these options go with `--watch`.

    Raises:
        click.UsageError: They do not.
    """
    if not choice.is_lake:
        return
    if not choice.append:
        raise click.UsageError("--watch adds to a lake: give --append, too")
    if choice.reprocess:
        raise click.UsageError("--reprocess: with --watch it would replace the day in every batch")
    for name in TIMES_OF_TABLES:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(
                f"--{name.replace('_', '-')}: not with a lake, whose rows are replaced when a "
                "session goes on; see --carry-days"
            )


def run_watch(
    spark: SparkSession,
    folder: str,
    out: str,
    *,
    protocol: str,
    ports: Sequence[str],
    filters: Sequence[str],
    content: bool,
    keys: Sequence[str],
    available_now: bool,
    interval: float | None,
    timeouts: tuple[float, float, float, float],
    sensors: SensorNaming,
) -> None:
    """Follow `folder` until SIGINT or SIGTERM, or until everything is read; report every batch.

    `timeouts` are the fields of `SessionTimeouts`, in its order. A batch that is running when the
    command stops is abandoned, and repeated by the next run.

    Raises:
        PolymuxError: The query failed.
    """
    from polymux.spark.runtime.task_errors import raised_in_task
    from polymux.spark.streaming.open_sessions import SessionTimeouts
    from polymux.spark.streaming.query import start_following

    printer = BatchPrinter()
    with stop_requested() as is_stopped:
        query = start_following(
            spark,
            folder,
            out,
            protocol=protocol,
            ports=ports,
            filters=filters,
            content=content,
            keys=keys,
            timeouts=SessionTimeouts(*timeouts),
            available_now=available_now,
            interval=DEFAULT_INTERVAL_SECONDS if interval is None else interval,
            on_batch=printer.print_batch,
            sensors=sensors,
        )
        try:
            warn(f"watching {folder}, tables in {out}")
            while not is_stopped() and query.isActive:
                time.sleep(POLL_SECONDS)
        finally:
            with suppress(Exception):  # it may have ended already, or its JVM may be gone
                query.stop()
            printer.close()
    problem = query.exception()
    if problem is not None:
        error = raised_in_task(str(problem))
        if error is not None:
            raise error
        text = str(problem).strip().splitlines()
        raise PolymuxError(f"watching stopped: {next((line for line in text if line), '')}")


def run_lake_watch(
    spark: SparkSession,
    folder: str,
    append: Callable[[list[str]], Analysis],
    *,
    available_now: bool,
    interval: float | None,
) -> None:
    """Follow `folder` into a lake until SIGINT or SIGTERM, or until everything is read.

    `append` makes one run, of the captures of these paths. A batch that is running when the command
    stops is abandoned, and repeated by the next run; the lake has the version before it.

    Raises:
        PolymuxError: A batch failed for good; see `follow_into_lake`.
    """
    from polymux.spark.incremental import follow

    printer = BatchPrinter()
    seconds = follow.DEFAULT_INTERVAL_SECONDS if interval is None else interval

    def on_batch(done: Analysis) -> None:
        version = 0 if done.lake is None else done.lake.version
        warn_about_kept(done)
        printer.print_line(f"version {version}: {lake_text(done)}")

    with stop_requested() as is_stopped:

        def wait() -> bool:
            limit = time.monotonic() + seconds
            while not is_stopped() and time.monotonic() < limit:
                time.sleep(min(POLL_SECONDS, seconds))
            return is_stopped()

        warn(f"watching {folder}")
        try:
            with follow.jobs_cancelled_by(spark, is_stopped):
                follow.follow_into_lake(
                    follow.GrowingFolder(folder), append, wait=wait, on_batch=on_batch,
                    on_retry=lambda problem: warn(f"{problem}; trying again"),
                    available_now=available_now,
                )  # fmt: skip
        except Exception:
            if not is_stopped():  # otherwise it is Spark's error for jobs that were cancelled
                raise
        finally:
            printer.close()


class BatchPrinter:
    """Prints batches to standard error: on a terminal in one line that is overwritten."""

    def __init__(self) -> None:
        self._rows = self._capture_bytes = 0
        self._is_terminal = sys.stderr.isatty()

    def print_batch(self, report: BatchReport) -> None:
        self._rows += report.rows
        self._capture_bytes += report.capture_bytes
        text = (
            f"batch {report.batch_id}: {plural(report.rows, 'row')}, "
            f"{plural(report.sessions, 'session')} ended, {report.open_sessions} open; "
            f"in all {plural(self._rows, 'row')}, "
            f"{self._capture_bytes / 1e6:.1f} MB; lag {report.lag_seconds:.1f} s"
        )
        if report.late_packets:
            text += f"; {plural(report.late_packets, 'packet')} came too late and were ignored"
        if report.unbalanced:
            text += f"; bytes are unaccounted for in {plural(report.unbalanced, 'session')}"
        self.print_line(text)

    def print_line(self, text: str) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{text}\r")
            sys.stderr.flush()
        else:
            warn(text)

    def close(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\n")
