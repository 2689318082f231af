"""Captures of any size to tables: index, exchange of packed references, walk, publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
from polymux.spark.batch.index_stage import run_index_stage, summaries_of
from polymux.spark.batch.summaries import merge_by_file
from polymux.spark.batch.task_planning import plan_analyze_tasks, plan_index_tasks
from polymux.spark.runtime.worker_checks import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Analysis:
    """What a run found, in numbers; the rest stands in the tables under `out`."""

    out: str
    captures: list[FileSummary]
    total: StageResult
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def conserved(self) -> bool:
        """Is every byte of every session accounted for?"""
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
    """Turn captures into the tables under `out`, which is replaced as a whole when all is done.

    `paths` is one file, directory or glob, or several. `protocol` is a protocol string or `auto`;
    `ports` says what runs behind a port, `filters` which flows are meant (`host:port`). `content`
    also writes the payload. `task_bytes` is about how much a task should read; 0 chooses. `stage`
    is told the name of each stage as it begins. Nothing is published if anything raises.
    """
    if not hasattr(type(spark), "sparkContext") or "connect" in type(spark).__module__:
        raise PolymuxError(
            "analyze needs a session with its own driver, and this one is a Spark Connect client; "
            "run it on the server, or read captures with spark.read.format('polymux')"
        )
    plan = AnalysisOptions(protocol, ports or {})
    plan = plan.with_content() if content else plan
    bounds = limits or CaptureLimits()
    try:
        FlowFilter(plan.ports, filters)
    except ValueError as problem:
        raise PolymuxError(str(problem)) from None
    files = find_inputs(paths)
    output = StagedOutput(one_path(out))
    seconds: dict[str, float] = {}
    begun = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal begun
        now = time.perf_counter()
        seconds[name] = now - begun
        begun = now

    tell = on_stage if on_stage is not None else ignore_stage
    try:
        check_workers(spark, [file.path for file in files], str(output.staging))
        tell("index")
        staging = str(output.staging)
        cores = spark.sparkContext.defaultParallelism
        found = run_index_stage(
            spark,
            plan_index_tasks(files, cores, max_partition_bytes),
            staging,
            bounds,
            tuple(plan.ports),
            tuple(filters),
        )
        captures = merge_by_file(summaries_of(found))
        lap("index")
        tell("walk")
        tasks = plan_analyze_tasks(found, cores, max_partition_bytes)
        names = [each.name for each in found if each.name]
        total = run_analyze_stage(spark, tasks, names, staging, plan, bounds)
        lap("walk")
        tell("publish")
        output.collect_files(total.files)
        with TableWriter(output.ready, "part-captures") as writer:
            writer.add_captures(captures)
        write_empty_tables(output.ready)
        if content:
            write_empty_tables(output.ready, ["content"])
        output.publish()
        lap("publish")
    except BaseException:
        output.discard()
        raise
    return Analysis(str(output.final), captures, total, seconds)


def ignore_stage(name: str) -> None:
    """Nobody wants to be told."""
