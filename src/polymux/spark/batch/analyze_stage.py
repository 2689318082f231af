"""Stage 2 of the batch pipeline: analyze the flows of a task and write their rows as Parquet.

No captured data passes through the JVM: a task reads the payload that its references point to. Each
attempt of a task writes files of its own; the driver receives their names and the counters, and
publishes only the files of successful attempts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.session.analyzer import analyze_session_steps
from polymux.analysis.session.interleaving import interleave
from polymux.analysis.session.summary import SessionSummary
from polymux.capture import CaptureLimits, sessions_of
from polymux.capture.io.read_ahead import ReadAhead
from polymux.capture.io.remote import UrlFilePool
from polymux.spark.batch.reference_shuffle import (
    FlowSelection,
    ReferenceReader,
    StoredFlow,
    TempSpool,
)
from polymux.spark.runtime.gc_freeze import freeze_gc
from polymux.spark.runtime.worker_memory import release_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_LISTED_SESSIONS = 20  # unbalanced sessions, and failures, that are listed by name


@dataclass
class StageResult:
    """The files and counters of one task, or of the whole run."""

    files: list[str] = field(default_factory=list)  # relative to the staging folder
    sessions: int = 0
    streams: int = 0
    frames: int = 0
    total_bytes: int = 0
    violations: int = 0
    findings: int = 0
    stalls: int = 0  # those that are findings: an idle sender is not one
    unfinished: int = 0  # streams that had not ended when the capture did
    unbalanced: list[str] = field(default_factory=list)  # sessions whose bytes do not add up
    unbalanced_count: int = 0
    failures: list[str] = field(default_factory=list)  # why sessions could not be read to their end

    def add_session(self, summary: SessionSummary) -> None:
        """Count one analyzed session."""
        self.sessions += 1
        self.streams += summary.streams
        self.frames += summary.frames
        self.total_bytes += summary.bytes_dialer + summary.bytes_acceptor
        self.violations += summary.violations
        self.findings += summary.findings
        self.stalls += summary.stalls
        self.unfinished += summary.unfinished
        if not summary.balanced:
            self.unbalanced_count += 1
            self.unbalanced = [*self.unbalanced, summary.session_id][:MAX_LISTED_SESSIONS]
        if summary.read_error:
            self.failures = [*self.failures, summary.read_error][:MAX_LISTED_SESSIONS]

    def add(self, other: StageResult) -> None:
        """Add the result of another task."""
        self.files += other.files
        self.sessions += other.sessions
        self.streams += other.streams
        self.frames += other.frames
        self.total_bytes += other.total_bytes
        self.violations += other.violations
        self.findings += other.findings
        self.stalls += other.stalls
        self.unfinished += other.unfinished
        self.unbalanced_count += other.unbalanced_count
        self.unbalanced = (self.unbalanced + other.unbalanced)[:MAX_LISTED_SESSIONS]
        self.failures = (self.failures + other.failures)[:MAX_LISTED_SESSIONS]


def run_analyze_stage(
    spark: SparkSession,
    tasks: list[FlowSelection],
    index_names: list[str],
    staging: str,
    options: AnalysisOptions,
    limits: CaptureLimits,
) -> StageResult:
    """Run the stage on the workers. Return the sum of its successful attempts."""
    total = StageResult()
    if tasks:
        run_task = analyze_task(tasks, index_names, staging, options, limits)
        numbers = spark.sparkContext.parallelize(range(len(tasks)), len(tasks))
        for result in numbers.mapPartitions(run_task).collect():
            total.add(result)
    return total


def analyze_task(
    tasks: list[FlowSelection],
    index_names: list[str],
    staging: str,
    options: AnalysisOptions,
    limits: CaptureLimits,
) -> Callable[[Iterable[int]], Iterator[StageResult]]:
    """Return the function of a Spark task; each number it receives is an index into `tasks`."""

    def run(numbers: Iterable[int]) -> Iterator[StageResult]:
        freeze_gc("analyze")
        for number in numbers:
            release_memory()
            flows = ReferenceReader(staging, index_names, tasks[number])
            yield analyze_flows(flows, staging, options, limits)

    return run


def analyze_flows(
    flows: Iterable[StoredFlow], staging: str, options: AnalysisOptions, limits: CaptureLimits
) -> StageResult:
    """Analyze all flows, interleaved by timestamp, and write their rows to new files."""
    result = StageResult()
    writer = TableWriter(staging, f"part-{uuid.uuid4().hex}")
    with UrlFilePool(limits) as files, writer:

        def steps(flow: StoredFlow, read_ahead: ReadAhead) -> Iterator[int]:
            with TempSpool(staging) as spool:
                for session in sessions_of(
                    flow.rows(), files.reader, limits=limits, ports=options.ports, spool=spool.open,
                    read_ahead=read_ahead,
                ):  # fmt: skip
                    summary = yield from analyze_session_steps(
                        session, options, writer.emit, writer.batcher
                    )
                    result.add_session(summary)

        for _ in interleave(flows, steps):
            pass
        rows_by_table = writer.row_counts()
        result.files = [
            str(Path(table_name) / f"{writer.name}.parquet") for table_name in rows_by_table
        ]
    return result
