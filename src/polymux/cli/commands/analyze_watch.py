"""`polymux analyze --watch`: a growing folder of captures into tables, until it is stopped."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import click

from polymux.cli.support.output import counted, warn
from polymux.cli.support.signals import told
from polymux.core.errors import CaptureError, PolymuxError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polymux.spark.streaming.query import BatchDone

LOOK = 0.2  # seconds between looks at the query
Command = TypeVar("Command", bound=Callable[..., object])


def follow_options(command: Command) -> Command:
    """Add `--watch` and the options that only apply with it."""
    for add in (
        click.option("--dedup-window", type=click.FloatRange(0), default=3600.0, show_default=True,
                     help="With --watch: seconds for which a file that was read is recognised."),
        click.option("--idle-timeout", type=click.FloatRange(0), default=3600.0, show_default=True,
                     help="With --watch: seconds without any new file until all sessions end."),
        click.option("--session-timeout", type=click.FloatRange(0), default=60.0,
                     show_default=True,
                     help="With --watch: seconds without a packet until a session ends."),
        click.option("--session-grace", type=click.FloatRange(0), default=1.0, show_default=True,
                     help="With --watch: seconds to wait for more of a session that is complete."),
        click.option("--interval", type=click.FloatRange(0.05), default=1.0, show_default=True,
                     help="With --watch: seconds between scans of the directory."),
        click.option("--available-now", is_flag=True,
                     help="With --watch: stop once the files that are there now have been read."),
        click.option("--watch", is_flag=True,
                     help="Keep running: CAPTURES is one directory to which captures are added."),
    ):  # fmt: skip
        command = add(command)
    return command


def the_folder(captures: Sequence[str]) -> str:
    """The one directory that can be followed."""
    if len(captures) != 1:
        raise click.UsageError("--watch takes one directory")
    if not os.path.isdir(captures[0]):
        raise CaptureError("no such directory; --watch reads a directory that grows", captures[0])
    return captures[0]


def run_following(
    spark: SparkSession,
    folder: str,
    out: str,
    *,
    protocol: str,
    ports: Sequence[str],
    filters: Sequence[str],
    content: bool,
    available_now: bool,
    interval: float,
    waits: tuple[float, float, float, float],
) -> None:
    """Follow until interrupted or terminated, or all is read; every batch is told.

    `waits` are the seconds of `Waits`, in its order.
    """
    from polymux.spark.streaming.open_sessions import Waits
    from polymux.spark.streaming.query import start_following

    telling = Telling()
    with told() as is_told:
        query = start_following(
            spark, folder, out, protocol=protocol, ports=ports, filters=filters, content=content,
            waits=Waits(*waits), available_now=available_now, every=interval, tell=telling.batch,
        )  # fmt: skip
        try:
            warn(f"watching {folder}, tables in {out}")
            while not is_told() and query.isActive:
                time.sleep(LOOK)
        finally:  # the running batch is given up, and done again the next time
            with suppress(Exception):  # it may be over already, or its Java gone
                query.stop()
            telling.close()
    problem = query.exception()
    if problem is not None:
        text = str(problem).strip().splitlines()
        raise PolymuxError(f"watching stopped: {next((line for line in text if line), '')}")


class Telling:
    """Batches on standard error: one line that changes on a terminal, else one a batch."""

    def __init__(self) -> None:
        self._rows = self._octets = 0
        self._live = sys.stderr.isatty()

    def batch(self, done: BatchDone) -> None:
        self._rows += done.rows
        self._octets += done.octets
        text = (
            f"batch {done.batch}: {counted(done.rows, 'row')}, {counted(done.sessions, 'session')} "
            f"over, {done.open} open; in all {counted(self._rows, 'row')}, "
            f"{self._octets / 1e6:.1f} MB; lag {done.lag:.1f} s"
        )
        if done.late_packets:
            text += f"; {counted(done.late_packets, 'packet')} came too late and are left out"
        if done.unbalanced:
            text += f"; conservation FAILS in {counted(done.unbalanced, 'session')}"
        if self._live:
            sys.stderr.write(f"\r\x1b[K{text}\r")
            sys.stderr.flush()
        else:
            warn(text)

    def close(self) -> None:
        if self._live:
            sys.stderr.write("\n")
