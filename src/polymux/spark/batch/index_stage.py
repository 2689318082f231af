"""Stage 1: walk packet headers. References stay in files; the driver hears where and how heavy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from polymux.capture import CaptureLimits, FileSummary, FlowFilter
from polymux.spark.batch.reference_shuffle import IndexResult, ReferenceWriter
from polymux.spark.batch.task_planning import IndexSpan, index_span
from polymux.spark.runtime.gc_freeze import freeze_gc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_index_stage(
    spark: SparkSession,
    tasks: list[list[IndexSpan]],
    staging: str,
    limits: CaptureLimits,
    ports: tuple[int, ...] = (),
    filters: tuple[str, ...] = (),
) -> list[IndexResult]:
    """Run the stage; one answer a task."""
    numbers = spark.sparkContext.parallelize(range(len(tasks)), len(tasks))
    return numbers.mapPartitions(index_task(tasks, staging, limits, ports, filters)).collect()


def index_task(
    tasks: list[list[IndexSpan]],
    staging: str,
    limits: CaptureLimits,
    ports: tuple[int, ...],
    filters: tuple[str, ...],
) -> Callable[[Iterable[int]], Iterator[IndexResult]]:
    """The function a task runs: each number it is given names its spans."""

    def run(numbers: Iterable[int]) -> Iterator[IndexResult]:
        freeze_gc("index")
        wanted = FlowFilter(ports, filters)
        for number in numbers:
            with ReferenceWriter(staging) as writer:
                for span in tasks[number]:
                    found = index_span(span, limits, wanted, writer.add)
                    writer.add(found.rows)
                    told = {**asdict(found.summary), "start": span.file_range.start}
                    writer.result.summaries.append(json.dumps(told))
            yield writer.result

    return run


def summaries_of(results: Iterable[IndexResult]) -> list[FileSummary]:
    """The summaries of all spans, file by file and in the order of their places."""
    told = [json.loads(text) for each in results for text in each.summaries]
    told.sort(key=lambda entry: (entry["file"], entry["start"]))
    return [FileSummary(**{k: v for k, v in entry.items() if k != "start"}) for entry in told]
