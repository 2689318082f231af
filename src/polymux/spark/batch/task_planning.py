"""Planning of tasks: which file ranges to index, and which flows to analyze, in each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from polymux.capture import (
    CaptureLimits,
    FileIndex,
    FileRange,
    FileSummary,
    FlowFilter,
    FlowRefs,
    index_range,
    plan_ranges,
)
from polymux.capture.io.discovery import CaptureFile
from polymux.capture.io.remote import is_url, open_capture
from polymux.capture.packets.file_summary import UNREADABLE
from polymux.core.errors import CaptureError
from polymux.spark.batch.reference_shuffle import FlowSelection, IndexResult, bucket_of

MAX_TASK_BYTES = 1 << 30  # most bytes of captures per task
MIN_TASK_BYTES = 4 << 20  # a smaller task does not pay for its overhead of about 40 ms
TASKS_PER_CORE = 2  # fewest analyze tasks per core, beside those of heavy flows
SPLIT_TOLERANCE = 1.25  # a file up to this factor larger than the target is not split
HEAVY_FLOW_COST = 64 << 20  # a flow of this cost or more has a task of its own


@dataclass(frozen=True)
class IndexSpan:
    """A range of one file, for one task to index."""

    path: str
    file_range: FileRange


def plan_index_tasks(
    captures: Sequence[CaptureFile], cores: int, target_bytes: int = 0
) -> list[list[IndexSpan]]:
    """Group file ranges into index tasks of about equal size.

    Large files are split, small ones share a task. Files behind URLs are not split: finding the
    boundaries would mean reading them on the driver.

    Args:
        captures: The files and their sizes.
        cores: The number of tasks that run at a time.
        target_bytes: Target size of a task; 0 chooses one that keeps every core busy.
    """
    total = sum(capture.size for capture in captures)
    target = target_bytes or max(MIN_TASK_BYTES, _task_size(total, cores))
    tasks: list[list[IndexSpan]] = []
    room = 0
    for capture in captures:
        unsplit = is_url(capture.path) or capture.size <= target * SPLIT_TOLERANCE
        for piece in [FileRange()] if unsplit else plan_ranges(capture.path, target=target):
            size = (piece.end if piece.end >= 0 else capture.size) - piece.start
            if not tasks or size > 2 * room:  # less than half of it fits
                tasks.append([])
                room = target
            tasks[-1].append(IndexSpan(capture.path, piece))
            room -= size
    return tasks


def index_span(
    span: IndexSpan,
    limits: CaptureLimits,
    flow_filter: FlowFilter,
    emit: Callable[[list[FlowRefs]], None] | None = None,
) -> FileIndex:
    """Scan the packet headers of a span of a local file or URL.

    Problems with the file are in the summary of the result; they do not raise. `emit` receives rows
    as they are found; without it all are in the result.
    """
    if not is_url(span.path):
        return index_range(span.path, span.file_range, limits=limits, wanted=flow_filter, emit=emit)
    try:
        source = open_capture(span.path, limits)
    except CaptureError as failure:
        return FileIndex(FileSummary(span.path, None, UNREADABLE, error=str(failure)))
    try:
        return index_range(
            span.path, span.file_range, limits=limits, wanted=flow_filter, source=source, emit=emit
        )
    finally:
        source.close()


def plan_analyze_tasks(
    results: Iterable[IndexResult], cores: int, target_cost: int = 0
) -> list[FlowSelection]:
    """Assign all flows to analyze tasks, the most expensive task first: Spark starts them in order.

    A heavy flow has a task of its own. The buckets of the other flows are distributed by cost, the
    heaviest first, each to the task with the lowest cost so far.
    """
    buckets: dict[int, int] = {}
    flows: dict[bytes, int] = {}
    for result in results:
        for bucket, cost in result.bucket_costs.items():
            buckets[bucket] = buckets.get(bucket, 0) + cost
        for flow, cost in result.heavy_flow_costs.items():
            flows[flow] = flows.get(flow, 0) + cost
    target = target_cost or max(1, _task_size(sum(buckets.values()), cores))
    heavy = {
        flow: cost
        for flow, cost in flows.items()
        if cost >= min(HEAVY_FLOW_COST, target_cost or HEAVY_FLOW_COST)
    }
    for flow, cost in heavy.items():
        buckets[bucket_of(flow)] -= cost
    remaining = sum(buckets.values())
    # Small tasks fill the cores that the tasks of heavy flows leave idle.
    count = max(-(-remaining // target), TASKS_PER_CORE * cores if heavy and not target_cost else 1)
    tasks = [(cost, FlowSelection(flows=frozenset({flow}))) for flow, cost in heavy.items()]
    groups = _balanced_groups(buckets, min(count, len(buckets)))
    excluded = frozenset(heavy)
    tasks += [(cost, FlowSelection(frozenset(group), excluded)) for cost, group in groups if cost]
    tasks.sort(key=lambda task: -task[0])
    return [task for _, task in tasks]


def _task_size(total: int, cores: int) -> int:
    """Size of equal tasks: as few rounds over all cores as `MAX_TASK_BYTES` allows."""
    rounds = -(-total // (MAX_TASK_BYTES * cores))
    return -(-total // max(1, rounds * cores))


def _balanced_groups(costs: dict[int, int], groups: int) -> list[tuple[int, list[int]]]:
    """Divide the keys into groups of about equal cost; return the cost and keys of each."""
    heap: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(groups)]
    for key in sorted(costs, key=lambda key: (-costs[key], key)):
        cost, number, keys = heapq.heappop(heap)
        keys.append(key)
        heapq.heappush(heap, (cost + costs[key], number, keys))
    return [(cost, keys) for cost, _, keys in heap]
