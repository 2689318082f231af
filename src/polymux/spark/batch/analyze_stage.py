"""Stage 2: walk the flows of a task, one after another, and write their rows as Parquet.

Nothing of the captures travels through the JVM: the walk reads what the references point to. Rows
go to files of this attempt's own; back to the driver go counts and file names.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from polymux.analysis.options import Plan
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.session.analyzer import walk_steps
from polymux.analysis.session.interleaving import together
from polymux.analysis.session.summary import SessionSummary
from polymux.capture import CaptureLimits, sessions_of
from polymux.capture.io.lean_files import release_memory
from polymux.capture.io.read_ahead import Companion
from polymux.capture.io.remote import CaptureFiles
from polymux.spark.batch.reference_shuffle import RowsReader, Spool, StoredFlow, Wanted
from polymux.spark.runtime.gc_freeze import keep_imports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOLD = 20  # sessions of each kind that are named one by one


@dataclass
class Outcome:
    """What one task, or the whole run, came to."""

    files: list[str] = field(default_factory=list)  # written, relative to the staging folder
    sessions: int = 0
    streams: int = 0
    frames: int = 0
    octets: int = 0
    violations: int = 0
    findings: int = 0
    stalls: int = 0  # that are findings: an idle sender is none
    unfinished: int = 0  # streams not over at the end
    unbalanced: list[str] = field(default_factory=list)  # sessions whose octets do not add up
    unbalanced_count: int = 0
    failures: list[str] = field(default_factory=list)  # files that could not be read on

    def count(self, summary: SessionSummary) -> None:
        """One more session."""
        self.sessions += 1
        self.streams += summary.streams
        self.frames += summary.frames
        self.octets += summary.bytes_dialer + summary.bytes_acceptor
        self.violations += summary.violations
        self.findings += summary.findings
        self.stalls += summary.stalls
        self.unfinished += summary.unfinished
        if not summary.balanced:
            self.unbalanced_count += 1
            self.unbalanced = [*self.unbalanced, summary.session_id][:TOLD]
        if summary.failure:
            self.failures = [*self.failures, summary.failure][:TOLD]

    def add(self, other: Outcome) -> None:
        self.files += other.files
        self.sessions += other.sessions
        self.streams += other.streams
        self.frames += other.frames
        self.octets += other.octets
        self.violations += other.violations
        self.findings += other.findings
        self.stalls += other.stalls
        self.unfinished += other.unfinished
        self.unbalanced_count += other.unbalanced_count
        self.unbalanced = (self.unbalanced + other.unbalanced)[:TOLD]
        self.failures = (self.failures + other.failures)[:TOLD]


def walk(
    spark: SparkSession,
    tasks: list[Wanted],
    names: list[str],
    staging: str,
    plan: Plan,
    limits: CaptureLimits,
) -> Outcome:
    """Run the stage; what all its tasks came to. Only what attempts that won have told counts."""
    total = Outcome()
    if tasks:
        numbers = spark.sparkContext.parallelize(range(len(tasks)), len(tasks))
        for told in numbers.mapPartitions(walker(tasks, names, staging, plan, limits)).collect():
            total.add(told)
    return total


def walker(
    tasks: list[Wanted], names: list[str], staging: str, plan: Plan, limits: CaptureLimits
) -> Callable[[Iterable[int]], Iterator[Outcome]]:
    """The function a task runs: each number it is given names its flows."""

    def run(numbers: Iterable[int]) -> Iterator[Outcome]:
        keep_imports("walk")
        for number in numbers:
            release_memory()
            flows = RowsReader(staging, names, tasks[number])
            yield walk_flows(flows, staging, plan, limits)

    return run


def walk_flows(
    flows: Iterable[StoredFlow], staging: str, plan: Plan, limits: CaptureLimits
) -> Outcome:
    """Walk all flows; the files are this attempt's own, whatever else runs."""
    outcome = Outcome()
    writer = TableWriter(staging, f"part-{uuid.uuid4().hex}")
    with CaptureFiles(limits) as files, writer:

        def steps(flow: StoredFlow, companion: Companion) -> Iterator[int]:
            with Spool(staging) as spool:
                for session in sessions_of(
                    flow.rows(), files.reader, limits=limits, ports=plan.ports, spool=spool.open,
                    shared=companion,
                ):  # fmt: skip
                    outcome.count(
                        (yield from walk_steps(session, plan, writer.emit, writer.gathering))
                    )

        for _ in together(flows, steps):
            pass
        rows_by_table = writer.rows()
        outcome.files = [
            str(Path(table_name) / f"{writer.name}.parquet") for table_name in rows_by_table
        ]
    return outcome
