"""Stage 1 of the batch pipeline: scan packet headers and write packet references.

The references stay in files under the staging folder. The driver receives only where they are, how
much work each group of flows is, and a summary of each file range.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from polymux.capture import CaptureLimits, FileSummary, FlowFilter, merge_summaries
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
    """Run the stage on the workers. Return one result per task, in the order of `tasks`."""
    numbers = spark.sparkContext.parallelize(range(len(tasks)), len(tasks))
    return numbers.mapPartitions(index_task(tasks, staging, limits, ports, filters)).collect()


def index_task(
    tasks: list[list[IndexSpan]],
    staging: str,
    limits: CaptureLimits,
    ports: tuple[int, ...],
    filters: tuple[str, ...],
) -> Callable[[Iterable[int]], Iterator[IndexResult]]:
    """Return the function of a Spark task; each number it receives is an index into `tasks`."""

    def run(numbers: Iterable[int]) -> Iterator[IndexResult]:
        freeze_gc("index")
        flow_filter = FlowFilter(ports, filters)
        for number in numbers:
            with ReferenceWriter(staging) as writer:
                for span in tasks[number]:
                    index = index_span(span, limits, flow_filter, writer.add)
                    writer.add(index.rows)
                    summary = {**asdict(index.summary), "start": span.file_range.start}
                    writer.result.summaries.append(json.dumps(summary))
            yield writer.result

    return run


def summaries_of(results: Iterable[IndexResult]) -> list[FileSummary]:
    """Return the summaries of all spans, sorted by file and offset."""
    entries = [json.loads(text) for result in results for text in result.summaries]
    entries.sort(key=lambda entry: (entry["file"], entry["start"]))
    return [FileSummary(**{k: v for k, v in entry.items() if k != "start"}) for entry in entries]


def merge_by_file(summaries: Iterable[FileSummary]) -> list[FileSummary]:
    """Merge the summaries of each file's ranges into one, sorted by file name.

    The summaries of one file must be in the order of their offsets.
    """
    ranges: dict[str, list[FileSummary]] = {}
    for summary in summaries:
        ranges.setdefault(summary.file, []).append(summary)
    return [merge_summaries(ranges[name]) for name in sorted(ranges)]
