"""Captures of any size to tables, on Spark.

Four steps:

1. index: every task scans the packet headers of some file ranges and writes packet references
   (`index_stage`, `reference_shuffle`);
2. plan: the driver assigns flows to tasks by cost (`analyze_stage.plan_analyze_tasks`);
3. analyze: every task reads its flows' references and payload, analyzes their sessions and writes
   rows as Parquet files (`analyze_stage`);
4. publish: the driver names the files of successful attempts in a manifest and puts them into
   place in one step (`atomic_output`).

Neither packets nor rows pass through the JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.layout import TableLayout
from polymux.analysis.output.parquet import TableWriter, write_empty_tables
from polymux.analysis.tls.key_files import read_key_option
from polymux.capture import CaptureLimits, FileSummary, FlowFilter, SensorNaming
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.paths import AnyPath, AnyPaths, one_path
from polymux.core.errors import PolymuxError
from polymux.spark.batch.analyze_stage import (
    StageResult,
    plan_analyze_tasks,
    plan_local_tasks,
    run_analyze_stage,
)
from polymux.spark.batch.atomic_output import StagedOutput
from polymux.spark.batch.index_stage import (
    cut_in_tasks,
    merge_by_file,
    plan_index_tasks,
    run_index_stage,
    summaries_of,
    total_bytes,
)
from polymux.spark.runtime.job_progress import job_description
from polymux.spark.runtime.session_jobs import jobs_of
from polymux.spark.runtime.worker_checks import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Analysis:
    """Counters of a finished run; the rows are in the tables below `out`."""

    out: str
    captures: list[FileSummary]
    total: StageResult
    seconds: dict[str, float] = field(default_factory=dict)  # by stage: index, analyze, publish
    indexed_packets: int = 0  # TCP packets that the index found
    capture_bytes: int = 0  # size of the captures, as they are stored
    read_bytes: int = 0  # bytes that were read of them, in all stages
    lake: LakeRun | None = None  # what was done to the lake, if `out` is one

    @property
    def conserved(self) -> bool:
        """Whether every packet of the index was analyzed, and every byte of every session is
        accounted for."""
        return self.total.unbalanced_count == 0 and self.total.packets == self.indexed_packets

    @property
    def unread(self) -> list[FileSummary]:
        """Files that could not be read to their end."""
        return [capture for capture in self.captures if capture.status != "whole"]


@dataclass(frozen=True)
class LakeOptions:
    """How a lake of tables is written.

    Args:
        format: `parquet`, `delta` or `iceberg`; None: that of the lake, `parquet` for a new one.
        by_sensor: Divide tables by the sensor of their sessions too, not only by date.
        reprocess: Days, in UTC: the captures with their packets are read again, and the rows of the
            sessions that began on them are replaced.
        carry_days: For how many days without a packet a session that has not ended is not over.
        catalog: Iceberg: URI of the SQL catalog; "" for a file of SQLite.
        exchange: A directory that the driver and all workers share, through which tasks exchange
            references. "": in the lake; of a lake on an object store, the temporary directory of
            this machine, which is enough for local sessions only.
        forget: Forget the captures of the days of `reprocess` that are gone, with their rows.
    """

    format: str | None = None
    by_sensor: bool = False
    reprocess: tuple[date, ...] = ()
    carry_days: float = 7.0
    catalog: str = ""
    exchange: str = ""
    forget: bool = False


@dataclass(frozen=True)
class LakeRun:
    """What a run has done to a lake.

    `version` is its version after the run. `skipped` captures were as they had been read before.
    `replaced` sessions had been over, and were analyzed again; `open` ones are not over, and their
    rows are provisional. `kept` sessions should have been replaced, and stay as they were written,
    because the captures `gone` with their packets are gone, or are others now: `left_out` packets
    of their time are in no session. `forgotten` captures were gone, and their rows were removed.
    """

    version: int
    skipped: int
    replaced: int
    open: int
    kept: int = 0
    left_out: int = 0
    gone: tuple[str, ...] = ()
    forgotten: int = 0


def analyze(
    spark: SparkSession,
    paths: AnyPaths,
    out: AnyPath,
    *,
    protocol: str = "auto",
    ports: dict[int, str] | None = None,
    filters: Sequence[str] = (),
    content: bool = False,
    keys: str | Sequence[str] = (),
    limits: CaptureLimits | None = None,
    max_partition_bytes: int = 0,
    on_stage: Callable[[str], None] | None = None,
    sensors: SensorNaming | None = None,
    partition_by: Sequence[str] = (),
    lake: LakeOptions | None = None,
    append: bool = False,
) -> Analysis:
    """Analyze captures and write the tables below `out`.

    The tables of `out` are replaced all at once when everything has succeeded. If anything raises,
    the former ones stay as they were.

    With `append` or `lake`, `out` is a lake: tables by date, on a directory or an object store. To
    a lake that exists captures can only be added, with `append`: those that it was made from are
    skipped, and sessions that were not over are finished. See `incremental.append`, which says what
    else is raised then.

    Args:
        spark: A session, classic or of Spark Connect.
        paths: A file, directory, glob or URL, or several of them.
        out: A directory that the driver and all workers share; of a lake also a URL.
        protocol: A protocol string, or `auto` to detect the protocol of each session.
        ports: Protocol strings by port.
        filters: Only these flows, each as `host:port`.
        content: Also write the table `content`, which holds the payload.
        keys: TLS key logs: a file, directory or glob, or several of them. They are read by the
            driver and sent to the tasks; secrets in the captures themselves are used anyway.
        limits: Limits for reading captures.
        max_partition_bytes: Target size of a task; 0 chooses one.
        on_stage: Called with the name of each stage as it begins: index, analyze, publish.
        sensors: How the sensor of each capture is found.
        partition_by: `("date",)` or `("date", "sensor")`: the files of each table but `captures`
            are in a folder for each date (UTC) of a session's start, and for each sensor. Those of
            a lake are anyway.
        lake: How a lake is written; None, without `append`: plain tables.
        append: Add to the lake.

    Returns:
        The counters of the run.

    Raises:
        CaptureError: An input cannot be found.
        CaptureUnavailable: An input cannot be read, or changed during the run. Damage inside a file
            does not raise: it is in the table `captures`.
        OutputBusy: Another run writes to `out`.
        UnwritableOutput: `out` cannot be written.
        BadKeyLog: A key log cannot be used.
        BadLayout: `partition_by` is something else.
        PolymuxError: An option is invalid, or the workers cannot do the work.
    """
    options = _analysis_options(protocol, ports, filters, content, keys, sensors)
    options = replace(options, layout=TableLayout(tuple(partition_by)))
    limits = limits or CaptureLimits()
    if append or lake is not None:
        from polymux.spark.incremental.append import analyze_into_lake

        return analyze_into_lake(
            spark, paths, one_path(out), options, tuple(filters), limits, max_partition_bytes,
            lake or LakeOptions(), append, on_stage,
        )  # fmt: skip
    files = find_inputs(paths)
    output = StagedOutput(one_path(out))
    options = options.with_run(output.run)
    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        if on_stage is not None:
            on_stage(name)
        started = time.perf_counter()
        with job_description(spark, f"polymux: {name} {plural_captures(len(files))} to {out}"):
            yield
        seconds[name] = time.perf_counter() - started

    try:
        staging = str(output.staging)
        check_workers(spark, [file.path for file in files], staging)
        cores = jobs_of(spark).parallelism()
        with stage("index"):
            spans = plan_index_tasks(
                files, cores, max_partition_bytes, cut_in_tasks(spark, staging)
            )
            indexed = run_index_stage(
                spark,
                spans,
                staging,
                limits,
                tuple(options.ports),
                tuple(filters),
                sensors=options.sensors,
            )
            captures = merge_by_file(summaries_of(indexed))
        options = options.with_secrets(indexed.secrets)
        with stage("analyze"):
            tasks = plan_analyze_tasks(indexed, cores, max_partition_bytes)
            total = run_analyze_stage(spark, tasks, indexed.names, staging, options, limits)
            if total.left_packets:
                tasks = plan_local_tasks(indexed)
                local = run_analyze_stage(spark, tasks, total.taken, staging, options, limits)
                total.add(local)
            check_packets(total.packets, indexed.packets)
        with stage("publish"):
            publish(output, total, captures, content)
    except BaseException:
        output.discard()
        raise
    return Analysis(
        str(output.final),
        captures,
        total,
        seconds,
        indexed.packets,
        total_bytes(files),
        indexed.read_bytes + total.read_bytes,
    )


def _analysis_options(
    protocol: str,
    ports: dict[int, str] | None,
    filters: Sequence[str],
    content: bool,
    keys: str | Sequence[str],
    sensors: SensorNaming | None,
) -> AnalysisOptions:
    """Check the arguments of `analyze`; return what they say of the analysis.

    Raises:
        BadKeyLog: A key log cannot be used.
        PolymuxError: An argument cannot be used.
    """
    options = AnalysisOptions(
        protocol, ports or {}, keys=read_key_option(keys), sensors=sensors or SensorNaming()
    )
    try:
        FlowFilter(options.ports, filters)
    except ValueError as problem:
        raise PolymuxError(str(problem)) from None
    return options.with_content() if content else options


def plural_captures(count: int) -> str:
    return "1 capture" if count == 1 else f"{count} captures"


def check_packets(analyzed: int, indexed: int) -> None:
    """Check that the analysis has seen every packet of the index.

    Raises:
        PolymuxError: It has not; nothing may be published.
    """
    if analyzed != indexed:
        raise PolymuxError(
            f"the analysis saw {analyzed} of the {indexed} packets that the index found: nothing "
            "was published; this is a bug in polymux, please report it"
        )


def publish(
    output: StagedOutput, total: StageResult, captures: list[FileSummary], content: bool
) -> None:
    """Complete the tables with `captures` and with empty ones, and put them in place."""
    output.collect_files(total.files)
    layout = TableLayout(run=output.run)
    with TableWriter(output.ready, f"part-captures-{output.run}", layout) as writer:
        writer.add_captures(captures)
    output.count_rows("captures", f"{writer.name}.parquet", len(captures))
    write_empty_tables(output.ready)
    if content:
        write_empty_tables(output.ready, ["content"])
    output.publish()
