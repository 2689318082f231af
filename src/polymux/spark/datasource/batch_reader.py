"""The batch reader of `spark.read.format("polymux")`: index on the driver, analyze in the tasks.

A data source cannot shuffle. The driver therefore scans the packet headers itself (gigabytes per
second) and assigns flows to tasks. While all packet references together are at most
`MAX_INLINE_REF_BYTES` they are sent with the tasks; otherwise a task receives only the file ranges
that contain its flows and scans the headers of those ranges again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from polymux.capture import CaptureLimits, FileSummary, FlowFilter, FlowRefs, sessions_of
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.remote import UrlFilePool
from polymux.spark.batch.index_stage import merge_by_file
from polymux.spark.batch.reference_shuffle import cost_of
from polymux.spark.batch.task_planning import IndexSpan, index_span, plan_index_tasks
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.table_batches import (
    capture_batches,
    session_batches,
    spark_batches,
)

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_PARTITION_BYTES = 256 << 20  # target cost of a partition
MAX_INLINE_REF_BYTES = 64 << 20  # most bytes of references that are sent with the tasks
MIN_PARTITIONS = 8  # fewest partitions, if the captures are large enough


@dataclass
class ReadPartition:
    """The input of one task: flows with their references, or where to find them; or finished rows.

    Exactly one of `flows`, `flow_keys` with `spans`, and `captures` is set; an empty partition has
    none of them.
    """

    flows: list[list[FlowRefs]] = field(default_factory=list)
    flow_keys: frozenset[bytes] = frozenset()
    spans: list[IndexSpan] = field(default_factory=list)
    captures: list[FileSummary] = field(default_factory=list)


class FlowSet(FlowFilter):
    """A flow filter that accepts exactly the given flows."""

    def __init__(self, flow_keys: frozenset[bytes]) -> None:
        super().__init__()
        self._flow_keys = flow_keys

    def accepts(self, flow: bytes) -> bool:
        return flow in self._flow_keys


class TableReader(DataSourceReader):
    """Reader of one table.

    Spark calls `partitions` once per query, on the driver, and `read` once per partition, in a
    task. The reader is pickled in between and keeps no state but its options.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Index the captures and assign their flows to partitions. Runs on the driver.

        Raises:
            CaptureError: A path cannot be found or opened. Damage inside a file does not raise: it
                is a row of the table `captures`.
        """
        options = self.options
        files = find_inputs(options.paths)
        index = FlowIndex(options)
        for spans in plan_index_tasks(files, MIN_PARTITIONS, options.max_partition_bytes):
            for span in spans:
                index.add(span)
        if options.table == "captures":
            return [InputPartition(ReadPartition(captures=merge_by_file(index.summaries)))]
        return [InputPartition(part) for part in index.partitions() or [ReadPartition()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition as the analysis produces them. Runs in a task."""
        options = self.options
        yield from spark_batches(options.table, options.columns, self._batches(partition.value))

    def _batches(self, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        if partition.captures:
            yield from capture_batches(partition.captures)
            return
        limits, options = CaptureLimits(), self.options.analysis_options
        with UrlFilePool(limits) as files:
            for flow in partition.flows or _reindex(partition, limits):
                sessions = sessions_of(flow, files.reader, limits=limits, ports=options.ports)
                yield from session_batches(sessions, options)


class FlowIndex:
    """The spans that contain each flow, its cost and, while there are few, its references."""

    def __init__(self, options: SourceOptions) -> None:
        self.summaries: list[FileSummary] = []
        self._limits = CaptureLimits()
        self._partition_bytes = options.max_partition_bytes or DEFAULT_PARTITION_BYTES
        self._flow_filter = FlowFilter(tuple(options.analysis_options.ports), options.filters)
        self._rows: dict[bytes, list[FlowRefs]] = {}
        self._ref_bytes = 0
        self._spans: list[IndexSpan] = []
        self.span_numbers: dict[bytes, list[int]] = {}  # indexes of the spans that contain a flow
        self.costs: dict[bytes, int] = {}
        self.first_packet_times: dict[bytes, int] = {}

    def add(self, span: IndexSpan) -> None:
        index = index_span(span, self._limits, self._flow_filter)
        self.summaries.append(index.summary)
        number = len(self._spans)
        self._spans.append(span)
        for row in index.rows:
            self.costs[row.flow] = self.costs.get(row.flow, 0) + cost_of(row)
            self.first_packet_times[row.flow] = min(
                self.first_packet_times.get(row.flow, row.first_at), row.first_at
            )
            numbers = self.span_numbers.setdefault(row.flow, [])
            if not numbers or numbers[-1] != number:
                numbers.append(number)
            self._ref_bytes += len(row.refs)
            if self._ref_bytes <= MAX_INLINE_REF_BYTES:
                self._rows.setdefault(row.flow, []).append(row)
        if self._ref_bytes > MAX_INLINE_REF_BYTES:
            self._rows.clear()

    def partitions(self) -> list[ReadPartition]:
        """Divide the flows into partitions of about equal cost.

        A heavy flow has a partition of its own, and these come first. The other flows are grouped
        by the time of their first packet, so that a partition covers few file ranges.
        """
        partitions: list[ReadPartition] = []
        for keys in self._groups():
            if self._rows:
                partitions.append(ReadPartition(flows=[self._rows[key] for key in keys]))
            else:
                numbers = sorted({number for key in keys for number in self.span_numbers[key]})
                spans = [self._spans[number] for number in numbers]
                partitions.append(ReadPartition(flow_keys=frozenset(keys), spans=spans))
        return partitions

    def _groups(self) -> Iterable[list[bytes]]:
        total = sum(self.costs.values())
        share = min(self._partition_bytes, max(1, total // MIN_PARTITIONS))
        heavy = [key for key in self.costs if self.costs[key] >= share]
        yield from ([key] for key in sorted(heavy, key=lambda key: (-self.costs[key], key)))
        group: list[bytes] = []
        room = share
        for key in sorted(
            set(self.costs) - set(heavy), key=lambda key: (self.first_packet_times[key], key)
        ):
            if group and self.costs[key] > room:
                yield group
                group, room = [], share
            group.append(key)
            room -= self.costs[key]
        if group:
            yield group


def _reindex(partition: ReadPartition, limits: CaptureLimits) -> Iterator[Sequence[FlowRefs]]:
    """Scan the headers of the partition's spans again and yield the rows of each of its flows."""
    flow_set = FlowSet(partition.flow_keys)
    flows: dict[bytes, list[FlowRefs]] = {}
    for span in partition.spans:
        for row in index_span(span, limits, flow_set).rows:
            flows.setdefault(row.flow, []).append(row)
    yield from (flows[key] for key in sorted(flows))
