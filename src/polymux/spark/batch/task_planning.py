"""Deciding which task does what: ranges of files to index, flows to walk."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from polymux.capture import (
    CaptureLimits,
    FileIndex,
    FileSummary,
    FlowFilter,
    FlowRefs,
    Range,
    index_range,
    plan,
)
from polymux.capture.io.discovery import Capture
from polymux.capture.io.remote import is_url, open_capture
from polymux.capture.packets.file_summary import UNREADABLE
from polymux.core.errors import CaptureError
from polymux.spark.batch.reference_shuffle import Found, Wanted, bucket_of

TASK = 1 << 30  # octets of captures a task has at most: a Python task costs about 40 ms by itself
LEAST = 4 << 20  # below this nothing is worth splitting further
SHARES = 2  # walk tasks for each core at least, beside those of heavy flows
SPARE = 1.25  # a file that is larger than its share by less than this is not cut
HOT = 64 << 20  # weight from which a flow has a task of its own


@dataclass(frozen=True)
class Span:
    """A range of one file, for one task to index."""

    path: str
    range: Range


def index_tasks(captures: Sequence[Capture], cores: int, target: int = 0) -> list[list[Span]]:
    """Spans grouped into tasks of about equal size; large files are cut, small ones share a task.

    `target` octets a task; 0 chooses so that every core has work but no task is too small. Files
    behind URLs are not cut: finding the cuts would mean reading them here.
    """
    total = sum(capture.octets for capture in captures)
    share = target or max(LEAST, _share(total, cores))
    tasks: list[list[Span]] = []
    room = 0
    for capture in captures:
        whole = is_url(capture.path) or capture.octets <= share * SPARE
        for piece in [Range()] if whole else plan(capture.path, target=share):
            size = (piece.end if piece.end >= 0 else capture.octets) - piece.start
            if not tasks or size > 2 * room:  # most of it would not fit
                tasks.append([])
                room = share
            tasks[-1].append(Span(capture.path, piece))
            room -= size
    return tasks


def index_span(
    span: Span,
    limits: CaptureLimits,
    wanted: FlowFilter,
    emit: Callable[[list[FlowRefs]], None] | None = None,
) -> FileIndex:
    """Walk the packet headers of a span, wherever its file lies. Never raises about the file.

    `emit` gets rows as they are found; without it all are in the result.
    """
    if not is_url(span.path):
        return index_range(span.path, span.range, limits=limits, wanted=wanted, emit=emit)
    try:
        source = open_capture(span.path, limits)
    except CaptureError as failure:
        return FileIndex(FileSummary(span.path, None, UNREADABLE, error=str(failure)))
    try:
        return index_range(
            span.path, span.range, limits=limits, wanted=wanted, source=source, emit=emit
        )
    finally:
        source.close()


def walk_tasks(found: Iterable[Found], cores: int, target: int = 0) -> list[Wanted]:
    """Who walks which flows, the heaviest task first: Spark begins them in this order.

    A heavy flow has a task of its own; buckets of the others are shared out by weight, the
    heaviest to whoever has least.
    """
    buckets: dict[int, int] = {}
    flows: dict[bytes, int] = {}
    for each in found:
        for bucket, weight in each.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + weight
        for flow, weight in each.flows.items():
            flows[flow] = flows.get(flow, 0) + weight
    share = target or max(1, _share(sum(buckets.values()), cores))
    hot = {flow: weight for flow, weight in flows.items() if weight >= min(HOT, target or HOT)}
    for flow, weight in hot.items():
        buckets[bucket_of(flow)] -= weight
    left = sum(buckets.values())
    # Those that have no task of their own fill up what the cores have left beside the heavy ones.
    count = max(-(-left // share), SHARES * cores if hot and not target else 1)
    tasks = [(weight, Wanted(flows=frozenset({flow}))) for flow, weight in hot.items()]
    groups = _even(buckets, min(count, len(buckets)))
    names = frozenset(hot)
    tasks += [(weight, Wanted(frozenset(group), names)) for weight, group in groups if weight]
    tasks.sort(key=lambda task: -task[0])
    return [task for _, task in tasks]


def _share(total: int, cores: int) -> int:
    """Of a task: all the same, so few that none has more than it may, and as many for each core."""
    rounds = -(-total // (TASK * cores))
    return -(-total // max(1, rounds * cores))


def _even(weights: dict[int, int], groups: int) -> list[tuple[int, list[int]]]:
    """About equally heavy groups of these keys."""
    heap: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(groups)]
    for key in sorted(weights, key=lambda key: (-weights[key], key)):
        weight, number, keys = heapq.heappop(heap)
        keys.append(key)
        heapq.heappush(heap, (weight + weights[key], number, keys))
    return [(weight, keys) for weight, _, keys in heap]
