"""`polymux analyze`: captures to tables and a report, on Spark.

The options have four groups, which the help texts name: what to analyze, how to run Spark
("Spark:"), following a growing directory ("With --watch:"), and a lake of tables ("Lake:").
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from polymux.analysis.options import AnalysisOptions, parse_ports
from polymux.capture import FlowFilter, SensorNaming
from polymux.capture.io.discovery import find_inputs
from polymux.cli.commands.analyze_lake import lake_choice, lake_options, print_lake
from polymux.cli.commands.analyze_watch import (
    check_followed,
    run_lake_watch,
    run_watch,
    single_directory,
    watch_options,
)
from polymux.cli.support.capture_options import (
    PROTOCOL_HELP,
    fail_on_option,
    keys_option,
    read_keys,
    sensor_options,
)
from polymux.cli.support.capture_walk import warn_about_file
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.exit_codes import EXIT_UNREADABLE, fail_on_exit_code
from polymux.cli.support.output import console as standard_output
from polymux.cli.support.output import format_value, plural, warn
from polymux.core.errors import PolymuxError
from polymux.text.units import MIB, size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polymux.spark.batch.pipeline import Analysis
    from polymux.spark.runtime.job_progress import Progress as StageProgress

SMALL_INPUT_BYTES = 256 * MIB  # one process has analyzed this before Spark has started


@click.command(
    epilog="Example: polymux analyze captures/ --out tables --port 9000=mplex", no_args_is_help=True
)
@click.argument("captures", nargs=-1, required=True)
@click.option(
    "--out",
    required=True,
    help="Directory for the tables; replaced all at once. A lake: also a URL.",
)
@click.option(
    "--protocol", default="auto", show_default=True, shell_complete=protocol_names,
    help=PROTOCOL_HELP,
)  # fmt: skip
@click.option(
    "--port", "ports", multiple=True,
    help="Only this port, and optionally its protocol: 9000=mplex.",
)  # fmt: skip
@click.option("--filter", "filters", multiple=True, help="Only these flows: host:port.")
@sensor_options
@keys_option
@click.option("--content", is_flag=True, help="Also write the payload, as the table content.")
@click.option(
    "--report/--no-report", "with_report", default=True, show_default=True,
    help="Also write report.html below --out.",
)  # fmt: skip
@fail_on_option
@click.option(
    "--master", default="local[*]", show_default=True,
    help="Spark: the master, such as local[4] or spark://host:7077.",
)  # fmt: skip
@click.option(
    "--remote", default="", help="Spark: a server of Spark Connect, sc://host:15002, not a master."
)
@click.option(
    "--memory", default="1g", show_default=True, help="Spark: heap of the driver, such as 512m."
)
@click.option("--conf", "confs", multiple=True, help="Spark: a setting, spark.NAME=VALUE.")
@lake_options
@watch_options
@click.pass_context
def analyze(
    context: click.Context,
    captures: tuple[str, ...],
    out: str,
    protocol: str,
    ports: tuple[str, ...],
    filters: tuple[str, ...],
    key_files: tuple[str, ...],
    content: bool,
    master: str,
    remote: str,
    confs: tuple[str, ...],
    memory: str,
    with_report: bool,
    fail_on: str | None,
    watch: bool,
    available_now: bool,
    interval: float | None,
    session_grace: float,
    session_timeout: float,
    idle_timeout: float,
    dedup_window: float,
    sensor: str,
    sensor_from: str,
    append: bool,
    forget: bool,
    reprocess: tuple[datetime, ...],
    lake_format: str | None,
    by_sensor: bool,
    carry_days: float,
    catalog: str,
    exchange: str,
) -> None:
    """Analyze captures and write tables: sessions, streams, frames, violations, stalls, timeline.

    CAPTURES are files, directories, globs and URLs (s3://, hdfs://, gs://, file://). With --watch
    the command keeps running and adds the sessions of new captures to the tables. With --append,
    --out is a lake of tables by date, a directory or URL: each run adds what is new, and with
    --watch each batch is such a run.
    """
    from polymux.spark.batch.atomic_output import check_output
    from polymux.spark.batch.pipeline import analyze as run
    from polymux.spark.runtime.session import spark_session

    port_map, sensors = parse_selection(ports, filters, sensor, sensor_from)
    check_one_driver(context, remote)
    AnalysisOptions(protocol, port_map)  # validate before Spark starts, which takes seconds
    read_keys(key_files)
    choice = lake_choice(
        append, reprocess, lake_format, by_sensor, carry_days, catalog, exchange, forget
    )
    settings = parse_spark_conf(confs)
    start = partial(spark_session, master, remote=remote, memory=memory, conf=settings)

    def run_analysis(
        spark: SparkSession, paths: Sequence[str], on_stage: Callable[[str], None] | None = None
    ) -> Analysis:
        return run(
            spark, paths, out, protocol=protocol, ports=port_map, filters=filters, content=content,
            keys=key_files, on_stage=on_stage, sensors=sensors, lake=choice.options(),
            append=choice.adds,
        )  # fmt: skip

    if watch:
        folder = watched_directory(captures, fail_on)
        check_followed(choice, context)
        with start() as spark:
            if choice.is_lake:
                run_lake_watch(
                    spark, folder, partial(run_analysis, spark), available_now=available_now,
                    interval=interval,
                )  # fmt: skip
                return
            run_watch(
                spark, folder, out, protocol=protocol, ports=ports, filters=filters,
                content=content, keys=key_files, available_now=available_now, interval=interval,
                timeouts=(session_grace, session_timeout, idle_timeout, dedup_window),
                sensors=sensors,
            )  # fmt: skip
        return
    with_report = with_report and not choice.is_lake
    with tables_named(out, choice.is_lake):
        size = sum(file.size for file in find_inputs(captures))
        if not choice.is_lake:
            check_output(out)
        with started(start) as (spark, on_stage):
            mention_report(captures, size, with_report)
            done = run_analysis(spark, captures, on_stage)
    print_summary(done, write_html_report(done.out) if with_report else "")
    context.exit(exit_code(done, fail_on))


def check_one_driver(context: click.Context, remote: str) -> None:
    """Check that no master is named beside a server of Spark Connect.

    Raises:
        click.UsageError: Both are.
    """
    if remote and context.get_parameter_source("master") is not ParameterSource.DEFAULT:
        raise click.UsageError("--remote and --master: give one of them")


def exit_code(done: Analysis, fail_on: str | None) -> int:
    """Return the exit code for tables that were published: 0 only if nothing is missing in them."""
    left_out = done.lake is not None and done.lake.left_out > 0
    code = EXIT_UNREADABLE if done.unread or left_out or not done.conserved else 0
    return fail_on_exit_code(fail_on, done.total.findings, done.total.stalls, code)


def parse_selection(
    ports: Sequence[str], filters: Sequence[str], sensor: str, sensor_from: str
) -> tuple[dict[int, str], SensorNaming]:
    """Return the protocol of each port of `--port`, and who names sensors.

    Raises:
        click.UsageError: One of these options is malformed.
    """
    try:
        port_map = parse_ports(ports)
        FlowFilter(port_map, filters)
        return port_map, SensorNaming(sensor, sensor_from)
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None


@contextmanager
def started(
    start: Callable[[], AbstractContextManager[SparkSession]],
) -> Iterator[tuple[SparkSession, Callable[[str], None]]]:
    """Start Spark; yield its session and the callback for the name of each new stage.

    On a terminal both the start and the stages are shown.
    """
    console = Console(stderr=True)
    with ExitStack() as stack:
        with console.status("starting Spark") if console.is_terminal else nullcontext():
            spark = stack.enter_context(start())
        yield spark, stack.enter_context(stage_progress(spark, console))


@contextmanager
def tables_named(out: str, is_lake: bool) -> Iterator[None]:
    """If the block fails, say which tables are in `out`: the exit code does not.

    Says nothing where there are none, nor of a lake, whose versions are numbered.
    """
    before = None if is_lake else published_run(out)
    try:
        yield
    except Exception:
        after = None if is_lake else published_run(out)
        if after is not None and after == before:
            warn(f"nothing was published: the tables in {out} are those of before")
        elif after is not None:
            warn(f"the tables in {out} are those of this run")
        raise


def published_run(out: str) -> str | None:
    """Return the run whose tables are in a directory, "" if they do not say; None without any."""
    from polymux.analysis.output.manifest import read_manifest
    from polymux.capture.io.paths import local_path

    with suppress(PolymuxError):
        path = local_path(out)
        manifest = read_manifest(path)
        if manifest is not None:
            return manifest.run if manifest.tables else None
        return "" if Path(path, "sessions").is_dir() else None
    return None


def watched_directory(captures: Sequence[str], fail_on: str | None) -> str:
    """Return the one directory that `--watch` follows. Raise click.UsageError for other uses."""
    if fail_on is not None:
        raise click.UsageError("--fail-on: with --watch the command runs until it is stopped")
    return single_directory(captures)


def mention_report(captures: Sequence[str], size: int, with_report: bool) -> None:
    """Say that a small input needs no Spark for its report."""
    if with_report and 0 < size <= SMALL_INPUT_BYTES:
        command = " ".join(map(shlex.quote, ("polymux", "report", *captures)))
        warn(f"{size_text(size)} are quick without Spark: {command}")


def parse_spark_conf(pairs: Sequence[str]) -> dict[str, str]:
    """Parse the settings of `--conf`. Raise click.UsageError for one that is malformed."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.UsageError(f"--conf {pair}: write spark.name=value")
        if name == "spark.master":
            raise click.UsageError(f"--conf {pair}: write --master {value}")
        settings[name] = value
    return settings


class TaskRateColumn(ProgressColumn):
    """Tasks per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} tasks/s" if task.speed else "")


@contextmanager
def stage_progress(spark: SparkSession, console: Console) -> Iterator[Callable[[str], None]]:
    """Show a progress bar, on a terminal. Yield the callback for the name of each new stage."""
    from polymux.spark.runtime.job_progress import progress

    if not console.is_terminal:
        yield lambda name: None
        return
    bar = Progress(
        TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TaskRateColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        console=console, transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("index", total=None)

        def on_stage(name: str) -> None:
            bar.reset(task, description=name, total=None)

        def on_progress(stage: StageProgress) -> None:
            bar.update(task, completed=stage.done, total=stage.total)

        with progress(spark, on_progress):
            yield on_stage


def write_html_report(out: str) -> str:
    """Write report.html and return its path; if its extra is missing, warn and return ""."""
    from polymux.core.errors import MissingExtra
    from polymux.report import write_report

    path = str(Path(out) / "report.html")
    try:
        write_report(out, path)
    except MissingExtra as missing:
        click.echo(str(missing), err=True)
        return ""
    return path


def print_summary(analysis: Analysis, report_path: str) -> None:
    """Print the findings, the totals and where the tables are."""
    from polymux.cli.support.findings_table import print_findings
    from polymux.report.render.wording import findings_sentence

    out = standard_output()
    total = analysis.total
    if analysis.lake is None:
        print_findings(analysis.out)
    sums = (
        (total.sessions, "session"), (total.streams, "stream"), (total.frames, "frame"),
        (total.total_bytes, "byte"),
    )  # fmt: skip
    out.print(", ".join(plural(*count) for count in sums))
    violations = total.findings - total.stalls
    out.print(findings_sentence(violations, total.stalls, total.unfinished))
    if analysis.conserved:
        out.print("conservation: every byte of every session is accounted for")
    if not analysis.conserved:
        warn("the tables are incomplete: this is a bug in polymux, please report it")
    if total.unbalanced_count:
        names = ", ".join(total.unbalanced[:3])
        sessions = plural(total.unbalanced_count, "session")
        out.print(f"conservation: bytes are unaccounted for in {sessions}: {names}")
    if total.packets != analysis.indexed_packets:
        indexed = plural(analysis.indexed_packets, "packet")
        out.print(f"conservation: {total.packets:,} were analyzed of {indexed} of the index")
    for capture in analysis.unread:
        warn_about_file(capture)
    if analysis.capture_bytes:
        ratio = analysis.read_bytes / analysis.capture_bytes
        out.print(f"read: {ratio:.2f} bytes for each byte of the captures")
    if analysis.lake is not None:
        print_lake(analysis)
    else:
        out.print(f"tables: {relative_path(analysis.out)}", markup=False, soft_wrap=True)
    if report_path:
        out.print(f"report: {relative_path(report_path)}", markup=False, soft_wrap=True)


def relative_path(path: str) -> str:
    """Format a path for printing: relative if it is below the working directory."""
    short = os.path.relpath(path)
    return format_value(path if short.startswith("..") else short)
