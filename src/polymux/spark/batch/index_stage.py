"""Stage 1: walk packet headers. References stay in files; the driver hears where and how heavy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from polymux.capture import CaptureLimits, FileSummary, FlowFilter
from polymux.spark.batch.reference_shuffle import Found, RowsWriter
from polymux.spark.batch.task_planning import Span, index_span
from polymux.spark.runtime.gc_freeze import keep_imports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def index(
    spark: SparkSession,
    tasks: list[list[Span]],
    staging: str,
    limits: CaptureLimits,
    ports: tuple[int, ...] = (),
    filters: tuple[str, ...] = (),
) -> list[Found]:
    """Run the stage; one answer a task."""
    numbers = spark.sparkContext.parallelize(range(len(tasks)), len(tasks))
    return numbers.mapPartitions(indexer(tasks, staging, limits, ports, filters)).collect()


def indexer(
    tasks: list[list[Span]],
    staging: str,
    limits: CaptureLimits,
    ports: tuple[int, ...],
    filters: tuple[str, ...],
) -> Callable[[Iterable[int]], Iterator[Found]]:
    """The function a task runs: each number it is given names its spans."""

    def run(numbers: Iterable[int]) -> Iterator[Found]:
        keep_imports("index")
        wanted = FlowFilter(ports, filters)
        for number in numbers:
            with RowsWriter(staging) as writer:
                for span in tasks[number]:
                    found = index_span(span, limits, wanted, writer.add)
                    writer.add(found.rows)
                    told = {**asdict(found.summary), "start": span.range.start}
                    writer.found.summaries.append(json.dumps(told))
            yield writer.found

    return run


def summaries_of(found: Iterable[Found]) -> list[FileSummary]:
    """The summaries of all spans, file by file and in the order of their places."""
    told = [json.loads(text) for each in found for text in each.summaries]
    told.sort(key=lambda entry: (entry["file"], entry["start"]))
    return [FileSummary(**{k: v for k, v in entry.items() if k != "start"}) for entry in told]
