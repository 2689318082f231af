"""Captures of any size to tables: index, shuffle of packed references, walk, publish."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..analysis.plan import Plan
from ..analysis.tables_out import TableWriter, fill_empty
from ..capture import CaptureLimits, FileSummary, combine, find_captures
from ..core.errors import PolymuxError
from .index_stage import COLUMNS as INDEX_COLUMNS
from .index_stage import indexer, summaries_of
from .partitions import bucket_count, index_tasks, landing
from .publish import Output
from .walk_stage import COLUMNS as WALK_COLUMNS
from .walk_stage import Outcome, walker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOT = 64 << 20  # octets from which a flow has a task of its own


@dataclass
class Analysis:
    """What a run found, in numbers; the rest stands in the tables under `out`."""

    out: str
    captures: list[FileSummary]
    total: Outcome
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def conserved(self) -> bool:
        """Is every octet of every session accounted for?"""
        return self.total.unbalanced_count == 0

    @property
    def unread(self) -> list[FileSummary]:
        """Files that could not be read to their end."""
        return [capture for capture in self.captures if capture.status != "whole"]


def analyze(
    spark: SparkSession,
    paths: Iterable[str],
    out: str,
    *,
    protocol: str = "auto",
    ports: dict[int, str] | None = None,
    filters: Sequence[str] = (),
    content: bool = False,
    limits: CaptureLimits | None = None,
    task_octets: int = 0,
    stage: Callable[[str], None] | None = None,
) -> Analysis:
    """Turn captures into the tables under `out`, which is replaced as a whole when all is done.

    `paths` are files, directories and globs. `protocol` is a protocol string or `auto`; `ports`
    says what runs behind a port, `filters` which flows are meant (`host:port`). `content` also
    writes the payload. `task_octets` is about how much a task should read; 0 chooses. `stage` is
    told the name of each stage as it begins. Nothing is published if anything raises.
    """
    plan = Plan(protocol, ports or {})
    plan = plan.with_content() if content else plan
    bounds = limits or CaptureLimits()
    files = find_captures(paths)
    if not files:
        raise PolymuxError("no capture: the given directories hold none")
    missing = [path for path in files if "://" not in path and not os.path.exists(path)]
    if missing:
        raise PolymuxError(f"{missing[0]}: no such file or directory")
    output = Output(out)
    seconds: dict[str, float] = {}
    begun = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal begun
        now = time.perf_counter()
        seconds[name] = now - begun
        begun = now

    tell = stage if stage is not None else ignore
    try:
        tell("index")
        cores = spark.sparkContext.defaultParallelism
        tasks = index_tasks(files, cores, task_octets)
        indexed = (
            spark.range(0, len(tasks), 1, len(tasks))
            .mapInArrow(indexer(tasks, bounds, tuple(plan.ports), tuple(filters)), INDEX_COLUMNS)
            .persist()
        )
        try:
            told = indexed.where("summary is not null").select("summary").collect()
            captures = by_file(summaries_of(row[0] for row in told))
            lap("index")
            tell("walk")
            flows = into_buckets(indexed.where("flow is not null"), cores, task_octets)
            told = flows.mapInArrow(
                walker(str(output.staging), plan, bounds), WALK_COLUMNS
            ).collect()
            lap("walk")
        finally:
            indexed.unpersist()
        tell("publish")
        total = Outcome()
        for row in told:
            total.add(Outcome(**json.loads(row[0])))
        output.keep_only(set(total.files))
        with TableWriter(output.staging, "part-captures") as writer:
            writer.captures(captures)
        fill_empty(output.staging)
        if content:
            fill_empty(output.staging, ["content"])
        output.publish()
        lap("publish")
    except BaseException:
        output.abandon()
        raise
    return Analysis(str(output.final), captures, total, seconds)


def into_buckets(flows: DataFrame, cores: int, task_octets: int) -> DataFrame:
    """Bring each flow's rows together: hot flows alone, the others shared out by hash."""
    from pyspark.sql import functions as f

    sizes = flows.groupBy("flow").agg(f.sum("octets").alias("octets"))
    counted = sizes.agg(f.count("*"), f.coalesce(f.sum("octets"), f.lit(0))).first()
    assert counted is not None
    count, octets = int(counted[0]), int(counted[1])
    buckets = bucket_count(octets, count, cores, task_octets)
    hot = [
        bytes(row[0])
        for row in sizes.where(f.col("octets") >= HOT).orderBy(f.desc("octets")).limit(buckets // 2)
        .select("flow").collect()
    ]  # fmt: skip
    numbers = landing(buckets)
    shared = numbers[len(hot) :] or numbers
    place = f.element_at(
        f.array(*[f.lit(number) for number in shared]),
        (f.pmod(f.xxhash64("flow"), f.lit(len(shared))) + 1).cast("int"),
    )
    for flow, number in zip(hot, numbers, strict=False):
        place = f.when(f.col("flow") == f.lit(flow), f.lit(number)).otherwise(place)
    return flows.withColumn("bucket", place).repartition(buckets, "bucket")


def by_file(summaries: Iterable[FileSummary]) -> list[FileSummary]:
    """One summary a file, from the summaries of its ranges."""
    parts: dict[str, list[FileSummary]] = {}
    for summary in summaries:
        parts.setdefault(summary.file, []).append(summary)
    return [combine(parts[name]) for name in sorted(parts)]


def ignore(name: str) -> None:
    """Nobody wants to be told."""
