"""Captures of any size to tables, on Spark.

Four steps:

1. index: every task scans the packet headers of some file ranges and writes packet references
   (`index_stage`, `reference_shuffle`);
2. plan: the driver assigns flows to tasks by cost (`task_planning`);
3. analyze: every task reads its flows' references and payload, analyzes their sessions and writes
   rows as Parquet files (`analyze_stage`);
4. publish: the driver moves the files of successful attempts into place in one step
   (`atomic_output`).

Neither packets nor rows pass through the JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.parquet import TableWriter, write_empty_tables
from polymux.capture import CaptureLimits, FileSummary, FlowFilter
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.paths import AnyPath, AnyPaths, one_path
from polymux.core.errors import PolymuxError
from polymux.spark.batch.analyze_stage import StageResult, run_analyze_stage
from polymux.spark.batch.atomic_output import StagedOutput
from polymux.spark.batch.index_stage import merge_by_file, run_index_stage, summaries_of
from polymux.spark.batch.task_planning import plan_analyze_tasks, plan_index_tasks
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

    @property
    def conserved(self) -> bool:
        """Whether every byte of every session is accounted for."""
        return self.total.unbalanced_count == 0

    @property
    def unread(self) -> list[FileSummary]:
        """Files that could not be read to their end."""
        return [capture for capture in self.captures if capture.status != "whole"]


def analyze(
    spark: SparkSession,
    paths: AnyPaths,
    out: AnyPath,
    *,
    protocol: str = "auto",
    ports: dict[int, str] | None = None,
    filters: Sequence[str] = (),
    content: bool = False,
    limits: CaptureLimits | None = None,
    max_partition_bytes: int = 0,
    on_stage: Callable[[str], None] | None = None,
) -> Analysis:
    """Analyze captures and write the tables below `out`.

    `out` is replaced as a whole when everything has succeeded. If anything raises, a former output
    stays as it was.

    Args:
        spark: A session with its own driver; Spark Connect clients are not supported.
        paths: A file, directory, glob or URL, or several of them.
        out: A directory that the driver and all workers share.
        protocol: A protocol string, or `auto` to detect the protocol of each session.
        ports: Protocol strings by port.
        filters: Only these flows, each as `host:port`.
        content: Also write the table `content`, which holds the payload.
        limits: Limits for reading captures.
        max_partition_bytes: Target size of a task; 0 chooses one.
        on_stage: Called with the name of each stage as it begins: index, analyze, publish.

    Returns:
        The counters of the run.

    Raises:
        CaptureError: An input cannot be found.
        UnwritableOutput: `out` cannot be written.
        PolymuxError: An option is invalid, or the workers cannot do the work.
    """
    if not hasattr(type(spark), "sparkContext") or "connect" in type(spark).__module__:
        raise PolymuxError(
            "analyze needs a session with its own driver, and this one is a Spark Connect client; "
            "run it on the server, or read captures with spark.read.format('polymux')"
        )
    options = AnalysisOptions(protocol, ports or {})
    options = options.with_content() if content else options
    limits = limits or CaptureLimits()
    try:
        FlowFilter(options.ports, filters)
    except ValueError as problem:
        raise PolymuxError(str(problem)) from None
    files = find_inputs(paths)
    output = StagedOutput(one_path(out))
    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        if on_stage is not None:
            on_stage(name)
        started = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - started

    try:
        staging = str(output.staging)
        check_workers(spark, [file.path for file in files], staging)
        cores = spark.sparkContext.defaultParallelism
        with stage("index"):
            indexed = run_index_stage(
                spark,
                plan_index_tasks(files, cores, max_partition_bytes),
                staging,
                limits,
                tuple(options.ports),
                tuple(filters),
            )
            captures = merge_by_file(summaries_of(indexed))
        with stage("analyze"):
            tasks = plan_analyze_tasks(indexed, cores, max_partition_bytes)
            index_names = [result.name for result in indexed if result.name]
            total = run_analyze_stage(spark, tasks, index_names, staging, options, limits)
        with stage("publish"):
            publish(output, total, captures, content)
    except BaseException:
        output.discard()
        raise
    return Analysis(str(output.final), captures, total, seconds)


def publish(
    output: StagedOutput, total: StageResult, captures: list[FileSummary], content: bool
) -> None:
    """Complete the tables with `captures` and with empty ones, and put them in place."""
    output.collect_files(total.files)
    with TableWriter(output.ready, "part-captures") as writer:
        writer.add_captures(captures)
    write_empty_tables(output.ready)
    if content:
        write_empty_tables(output.ready, ["content"])
    output.publish()
