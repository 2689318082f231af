"""Deciding which task does what: ranges of files to index, flows to walk."""

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

MAX_TASK_BYTES = (
    1 << 30
)  # bytes of captures a task has at most: a Python task costs about 40 ms by itself
MIN_TASK_BYTES = 4 << 20  # below this nothing is worth splitting further
TASKS_PER_CORE = 2  # walk tasks for each core at least, beside those of heavy flows
SPLIT_TOLERANCE = 1.25  # a file that is larger than its share by less than this is not cut
HEAVY_FLOW_COST = 64 << 20  # weight from which a flow has a task of its own


@dataclass(frozen=True)
class IndexSpan:
    """A range of one file, for one task to index."""

    path: str
    file_range: FileRange


def plan_index_tasks(
    captures: Sequence[CaptureFile], cores: int, target_bytes: int = 0
) -> list[list[IndexSpan]]:
    """Spans grouped into tasks of about equal size; large files are cut, small ones share a task.

    `target` bytes a task; 0 chooses so that every core has work but no task is too small. Files
    behind URLs are not cut: finding the cuts would mean reading them here.
    """
    total = sum(capture.size for capture in captures)
    share = target_bytes or max(MIN_TASK_BYTES, _task_size(total, cores))
    tasks: list[list[IndexSpan]] = []
    room = 0
    for capture in captures:
        whole = is_url(capture.path) or capture.size <= share * SPLIT_TOLERANCE
        for piece in [FileRange()] if whole else plan_ranges(capture.path, target=share):
            size = (piece.end if piece.end >= 0 else capture.size) - piece.start
            if not tasks or size > 2 * room:  # most of it would not fit
                tasks.append([])
                room = share
            tasks[-1].append(IndexSpan(capture.path, piece))
            room -= size
    return tasks


def index_span(
    span: IndexSpan,
    limits: CaptureLimits,
    flow_filter: FlowFilter,
    emit: Callable[[list[FlowRefs]], None] | None = None,
) -> FileIndex:
    """Walk the packet headers of a span, wherever its file lies. Never raises about the file.

    `emit` gets rows as they are found; without it all are in the result.
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
    """Who walks which flows, the heaviest task first: Spark begins them in this order.

    A heavy flow has a task of its own; buckets of the others are shared out by weight, the
    heaviest to whoever has least.
    """
    buckets: dict[int, int] = {}
    flows: dict[bytes, int] = {}
    for each in results:
        for bucket, weight in each.bucket_costs.items():
            buckets[bucket] = buckets.get(bucket, 0) + weight
        for flow, weight in each.heavy_flow_costs.items():
            flows[flow] = flows.get(flow, 0) + weight
    share = target_cost or max(1, _task_size(sum(buckets.values()), cores))
    hot = {
        flow: weight
        for flow, weight in flows.items()
        if weight >= min(HEAVY_FLOW_COST, target_cost or HEAVY_FLOW_COST)
    }
    for flow, weight in hot.items():
        buckets[bucket_of(flow)] -= weight
    left = sum(buckets.values())
    # Those that have no task of their own fill up what the cores have left beside the heavy ones.
    count = max(-(-left // share), TASKS_PER_CORE * cores if hot and not target_cost else 1)
    tasks = [(weight, FlowSelection(flows=frozenset({flow}))) for flow, weight in hot.items()]
    groups = _balanced_groups(buckets, min(count, len(buckets)))
    names = frozenset(hot)
    tasks += [
        (weight, FlowSelection(frozenset(group), names)) for weight, group in groups if weight
    ]
    tasks.sort(key=lambda task: -task[0])
    return [task for _, task in tasks]


def _task_size(total: int, cores: int) -> int:
    """Of a task: all the same, so few that none has more than it may, and as many for each core."""
    rounds = -(-total // (MAX_TASK_BYTES * cores))
    return -(-total // max(1, rounds * cores))


def _balanced_groups(costs: dict[int, int], groups: int) -> list[tuple[int, list[int]]]:
    """About equally heavy groups of these keys."""
    heap: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(groups)]
    for key in sorted(costs, key=lambda key: (-costs[key], key)):
        weight, number, keys = heapq.heappop(heap)
        keys.append(key)
        heapq.heappush(heap, (weight + costs[key], number, keys))
    return [(weight, keys) for weight, _, keys in heap]
