"""Stage 2 of the batch pipeline: analyze the flows of a task and write their rows as Parquet.

The driver assigns flows to tasks by their cost, the heaviest first (`plan_analyze_tasks`).
No captured data passes through the JVM: a task reads the payload that its references point to. Each
attempt of a task writes files of its own; the driver receives their names and the counters, and
publishes only the files of successful attempts.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.layout import TableLayout
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.output.session_rows import make_session_id
from polymux.analysis.session.analyzer import SessionSummary, analyze_session_steps
from polymux.capture import CaptureLimits, TcpSession, sessions_of
from polymux.capture.io.file_pool import UrlFilePool
from polymux.capture.io.read_ahead import ReadAhead, interleave
from polymux.capture.tcp.flow_order import SpoolFactory
from polymux.capture.tcp.sessions import consume_sessions
from polymux.spark.batch.index_stage import even_task_size
from polymux.spark.batch.reference_shuffle import (
    INDEX_FOLDER,
    FlowSelection,
    IndexTotals,
    ReferenceReader,
    StoredFlow,
    TempSpool,
    bucket_of,
)
from polymux.spark.runtime.session_jobs import Counters, jobs_of
from polymux.spark.runtime.stages import run_stage
from polymux.spark.runtime.worker_memory import freeze_gc, release_memory, use_spark_local_dirs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 2  # fewest tasks per core, beside those of heavy flows
MIN_LOCAL_COST = 256 << 20  # of all flows, for which a second round of tasks pays
HEAVY_FLOW_COST = 64 << 20  # a flow of this cost or more has a task of its own
MAX_INLINE_NAMES = 256  # names of index files that travel with the plan
MAX_LISTED_SESSIONS = 20  # unbalanced sessions that are listed by name


@dataclass
class StageResult:
    """The files and counters of one task, or of the whole run."""

    files: dict[str, int] = field(default_factory=dict)  # rows of each, by path below staging
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
    packets: int = 0  # whose references were analyzed
    read_bytes: int = 0  # of captures
    taken: list[str] = field(default_factory=list)  # files of the flows that were analyzed
    left_packets: int = 0  # of flows that are left to tasks of one index file

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

    def add(self, other: StageResult) -> None:
        """Add the result of another task."""
        self.files |= other.files
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
        self.packets += other.packets
        self.read_bytes += other.read_bytes
        self.taken += other.taken
        self.left_packets += other.left_packets


def plan_analyze_tasks(
    totals: IndexTotals, cores: int, target_cost: int = 0
) -> list[FlowSelection]:
    """Assign all flows to analyze tasks, the most expensive task first: Spark starts them in order.

    A heavy flow has a task of its own. The other flows are divided by their buckets into tasks of
    consecutive buckets and about equal cost. In a large run, or one whose tasks have a given size,
    they leave flows that lie in one index file (`plan_local_tasks`).
    """
    leaves = len(totals.names) > 1 and (target_cost > 0 or totals.cost >= MIN_LOCAL_COST)
    target = target_cost or max(1, even_task_size(totals.cost, cores))
    heavy = {
        flow: cost
        for flow, cost in totals.flow_costs.items()
        if cost >= min(HEAVY_FLOW_COST, target_cost or HEAVY_FLOW_COST)
    }
    costs = totals.cost_of_each_bucket()
    heavy_buckets: dict[int, set[bytes]] = {}
    for flow, cost in heavy.items():
        bucket = bucket_of(flow, totals.buckets)
        costs[bucket] = max(0.0, costs[bucket] - cost)
        heavy_buckets.setdefault(bucket, set()).add(flow)
    remaining = max(sum(costs), totals.cost - sum(heavy.values()))
    # Small tasks fill the cores that the tasks of heavy flows leave idle.
    count = max(
        -(-int(remaining) // target), TASKS_PER_CORE * cores if heavy and not target_cost else 1
    )
    tasks: list[tuple[float, FlowSelection]] = []
    for flow, cost in heavy.items():
        bucket = bucket_of(flow, totals.buckets)
        alone = FlowSelection(range(bucket, bucket + 1), frozenset({flow}), True, leaves)
        tasks.append((cost, alone))
    ranges = _even_ranges(costs, min(count, len(costs))) if remaining > 0 else []
    for share, buckets in ranges:
        excluded = {flow for b, flows in heavy_buckets.items() if b in buckets for flow in flows}
        selection = FlowSelection(buckets, frozenset(excluded), leaves_local=leaves)
        tasks.append((share, selection))
    tasks.sort(key=lambda task: -task[0])
    return [task for _, task in tasks]


def plan_local_tasks(totals: IndexTotals) -> list[FlowSelection]:
    """Return the tasks for what those of `plan_analyze_tasks` have left: one for each index file.

    Index tasks are of about equal size, and so are these.
    """
    every = range(totals.buckets)
    return [
        FlowSelection(every, file=name, number=number) for number, name in enumerate(totals.names)
    ]


def _even_ranges(costs: list[float], count: int) -> list[tuple[float, range]]:
    """Divide the buckets into at most `count` ranges of about equal cost, with the cost of each.

    A range ends at the bucket after which the sum of all costs is nearest to the next equal share.
    The ranges cover all buckets: costs are estimates, and one of 0 may have flows.
    """
    share = sum(costs) / count
    ranges: list[tuple[float, range]] = []
    begin, before, done = 0, 0.0, 0.0
    for bucket, cost in enumerate(costs):
        bound = share * (len(ranges) + 1)
        if bucket > begin and done > before and done + cost - bound > bound - done:
            ranges.append((done - before, range(begin, bucket)))
            begin, before = bucket, done
        done += cost
    if done > before or not ranges:
        ranges.append((done - before, range(begin, len(costs))))
    else:
        cost, last = ranges.pop()
        ranges.append((cost, range(last.start, len(costs))))
    return ranges


def run_analyze_stage(
    spark: SparkSession,
    tasks: list[FlowSelection],
    index_names: list[str],
    staging: str,
    options: AnalysisOptions,
    limits: CaptureLimits,
) -> StageResult:
    """Run the stage on the workers. Return the sum of its successful attempts.

    `index_names` are those of all index files. For the tasks of `plan_local_tasks` they are those
    of what the others have taken (`StageResult.taken`).

    Raises:
        CaptureUnavailable: A capture cannot be read, or has changed since it was indexed.
    """
    total = StageResult()
    if tasks:
        many = len(index_names) > MAX_INLINE_NAMES
        names: IndexNames = (
            StoredNames.write(staging, index_names) if many else FewNames(index_names)
        )
        counters = jobs_of(spark).counters()
        run_task = analyze_task(names, staging, options, limits, counters)
        with counters.kept_current():
            for result in run_stage(spark, run_task, tasks, staging):
                total.add(result)
    return total


class IndexNames(Protocol):
    """The names of the index files, in the plan or in a file."""

    @property
    def value(self) -> list[str]: ...


@dataclass(frozen=True)
class FewNames:
    """Names that travel with the plan."""

    value: list[str]


@dataclass(frozen=True)
class StoredNames:
    """Names in a file beside the index, one in each line."""

    path: str

    @classmethod
    def write(cls, staging: str, names: list[str]) -> StoredNames:
        path = Path(staging, INDEX_FOLDER, "names")
        path.write_text("\n".join(names))
        return cls(str(path))

    @property
    def value(self) -> list[str]:
        return Path(self.path).read_text().split("\n")


def analyze_task(
    index_names: IndexNames,
    staging: str,
    options: AnalysisOptions,
    limits: CaptureLimits,
    counters: Counters | None = None,
) -> Callable[[FlowSelection], StageResult]:
    """Return the function of a Spark task, which analyzes the flows of a selection."""

    def run(selection: FlowSelection) -> StageResult:
        freeze_gc("analyze")
        use_spark_local_dirs()
        release_memory()
        flows = ReferenceReader(staging, index_names.value, selection)
        result = analyze_flows(flows, staging, options, limits)
        result.left_packets = flows.left_packets
        if flows.taken is not None and len(flows) > 0:
            result.taken.append(flows.taken.write(staging))
        if counters is not None:
            counters.add(counts_of(result, staging))
        return result

    return run


def counts_of(result: StageResult, staging: str) -> dict[str, int]:
    """Return what a task adds to the counters of the run; its files must still be in `staging`."""
    return {
        "input_bytes": result.read_bytes,
        "output_rows": sum(result.files.values()),
        "output_bytes": sum(os.path.getsize(os.path.join(staging, name)) for name in result.files),
        "sessions": result.sessions,
        "frames": result.frames,
        "violations": result.violations,
    }


def analyze_flows(
    flows: ReferenceReader, staging: str, options: AnalysisOptions, limits: CaptureLimits
) -> StageResult:
    """Analyze all flows, interleaved by timestamp, and write their rows to new files.

    Raises:
        LostInput: A capture cannot be read, or has changed since it was indexed.
    """
    result = StageResult()
    writer = TableWriter(staging, f"part-{uuid.uuid4().hex}", options.layout)
    # The writer outlives the files: closing these may find that one has changed.
    with writer, UrlFilePool(limits, flows.identities, flows.copies) as files:
        analyze_sessions(flows, files, OneWriter(writer, options.layout), options, result)
        flows.release()  # the writer needs memory to sort the rows
    result.files = {file.name: file.rows for file in writer.files}
    result.read_bytes = files.bytes_read
    return result


class SessionOutput(Protocol):
    """Where the rows of a task's sessions go. Sessions of several flows are analyzed in turns."""

    def begin_flow(self, sessions: Sequence[TcpSession], files: UrlFilePool) -> None:
        """Called with all sessions of a flow before the first of them is analyzed."""

    def begin_session(self, session: TcpSession) -> TableWriter:
        """Return the writer for the rows of a session."""

    def end_session(self, session: TcpSession) -> None:
        """Called when all rows of a session have been written."""


@dataclass(frozen=True)
class OneWriter:
    """The output of tasks that write all sessions to the same files."""

    writer: TableWriter
    layout: TableLayout

    def begin_flow(self, sessions: Sequence[TcpSession], files: UrlFilePool) -> None:
        """Do nothing."""

    def begin_session(self, session: TcpSession) -> TableWriter:
        if self.layout.partition_by:
            name = make_session_id(session.flow, session.started_at)
            self.writer.add_session(name, session.started_at // 1000, session.sensor)
        return self.writer

    def end_session(self, session: TcpSession) -> None:
        """Do nothing."""


def analyze_sessions(
    flows: Iterable[StoredFlow],
    files: UrlFilePool,
    output: SessionOutput,
    options: AnalysisOptions,
    result: StageResult,
) -> None:
    """Analyze the sessions of all flows, interleaved by timestamp, and count them in `result`."""

    def sessions_steps(
        flow: StoredFlow, read_ahead: ReadAhead, spool: SpoolFactory | None
    ) -> Iterator[int]:
        rows = flow.rows()
        for row in rows:
            result.packets += row.packets
        sessions = sessions_of(
            rows, files.reader, limits=files.limits, ports=options.ports, spool=spool,
            read_ahead=read_ahead,
        )  # fmt: skip
        output.begin_flow(sessions, files)
        for session in consume_sessions(sessions):
            writer = output.begin_session(session)
            summary = yield from analyze_session_steps(
                session, options, writer.emit, writer.batcher
            )
            output.end_session(session)
            result.add_session(summary)

    def steps(flow: StoredFlow, read_ahead: ReadAhead) -> Iterator[int]:
        if not flow.is_huge:
            return sessions_steps(flow, read_ahead, None)
        return spooled_steps(flow, read_ahead)

    def spooled_steps(flow: StoredFlow, read_ahead: ReadAhead) -> Iterator[int]:
        with TempSpool() as spool:
            yield from sessions_steps(flow, read_ahead, spool.open)

    for _ in interleave(flows, steps):
        pass
