"""Stage 1: walk packet headers. One row for each direction of a flow in a range of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..capture import CaptureLimits, FileIndex, FileSummary, FlowFilter, FlowRefs, index_range
from .partitions import Span

if TYPE_CHECKING:
    import pyarrow as pa

# `summary` is set in a file's own rows, the rest in the rows of flows.
COLUMNS = (
    "summary string, flow binary, direction int, file string, start long, first_at long, "
    "last_at long, refs binary, hints array<string>, octets long"
)


def indexer(
    tasks: list[list[Span]], limits: CaptureLimits, ports: tuple[int, ...], filters: tuple[str, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function a task runs: each number it is given names its spans."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = FlowFilter(ports, filters)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for span in tasks[number]:
                    index = index_range(span.path, span.range, limits=limits, wanted=wanted)
                    yield rows_of(index, span)

    return run


def rows_of(index: FileIndex, span: Span) -> pa.RecordBatch:
    import pyarrow as pa

    summary = json.dumps({**asdict(index.summary), "start": span.range.start})
    rows = index.rows
    none: list[None] = [None]
    return pa.record_batch(
        {
            "summary": pa.array([summary] + none * len(rows), pa.string()),
            "flow": pa.array(none + [row.flow for row in rows], pa.binary()),
            "direction": pa.array(none + [row.direction for row in rows], pa.int32()),
            "file": pa.array(none + [row.file for row in rows], pa.string()),
            "start": pa.array(none + [row.start for row in rows], pa.int64()),
            "first_at": pa.array(none + [row.first_at for row in rows], pa.int64()),
            "last_at": pa.array(none + [row.last_at for row in rows], pa.int64()),
            "refs": pa.array(none + [row.refs for row in rows], pa.binary()),
            "hints": pa.array(none + [list(row.hints) for row in rows], pa.list_(pa.string())),
            "octets": pa.array(none + [payload_octets(row) for row in rows], pa.int64()),
        }
    )


def payload_octets(row: FlowRefs) -> int:
    """About how much work a row is: its packets, whatever they carry, weigh as 500 octets."""
    return row.packets * 500


def summaries_of(rows: Iterable[str]) -> list[FileSummary]:
    """The summaries of all spans, file by file and in the order of their places."""
    found = [json.loads(row) for row in rows]
    found.sort(key=lambda entry: (entry["file"], entry["start"]))
    return [FileSummary(**{k: v for k, v in entry.items() if k != "start"}) for entry in found]


def flow_rows(table: pa.Table) -> dict[bytes, list[FlowRefs]]:
    """The rows of a shuffled partition, by flow, the flow that began first in front."""
    flows: dict[bytes, list[FlowRefs]] = {}
    for entry in table.to_pylist():
        row = FlowRefs(
            entry["flow"], entry["direction"], entry["file"], entry["start"], entry["first_at"],
            entry["last_at"], entry["refs"], tuple(entry["hints"]),
        )  # fmt: skip
        flows.setdefault(row.flow, []).append(row)
    first = {flow: min(row.first_at for row in rows) for flow, rows in flows.items()}
    return {flow: flows[flow] for flow in sorted(flows, key=lambda flow: (first[flow], flow))}
