"""The batch reader of `spark.read.format("polymux")`: index on the driver, analyze in the tasks.

A data source cannot shuffle. The driver therefore scans the packet headers itself (gigabytes per
second) and assigns flows to tasks. While all packet references together are at most
`MAX_INLINE_REF_BYTES` they are sent with the tasks; otherwise a task receives only the file ranges
that contain its flows and scans the headers of those ranges again, as far as the driver did: a
capture may have grown since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from polymux.capture import (
    CaptureLimits,
    FileSummary,
    FlowFilter,
    FlowRefs,
    SensorNaming,
    TcpSession,
    sessions_of,
)
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.file_pool import UrlFilePool
from polymux.capture.io.read_ahead import ReadAhead
from polymux.capture.io.sources import FileIdentity, LostInput
from polymux.capture.tcp.sessions import consume_sessions
from polymux.spark.batch.index_stage import IndexSpan, index_span, merge_by_file, plan_index_tasks
from polymux.spark.batch.reference_shuffle import PACKET_COST, cost_of
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.table_batches import (
    capture_batches,
    session_batches,
    spark_batches,
)
from polymux.spark.runtime.worker_memory import use_spark_local_dirs

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_PARTITION_BYTES = 256 << 20  # target cost of a partition
MAX_INLINE_REF_BYTES = 64 << 20  # most bytes of references that are sent with the tasks
MIN_PARTITIONS = 8  # fewest partitions, if the captures are large enough


@dataclass
class ReadPartition:
    """The input of one task: flows with their references, or where to find them; or finished rows.

    Exactly one of `flows`, `flow_keys` with `spans`, and `captures` is set; an empty partition has
    none of them. `identities` are those of the captures when the driver read them, by path, and
    `packets` is how many the flows had then.
    """

    flows: list[list[FlowRefs]] = field(default_factory=list)
    flow_keys: frozenset[bytes] = frozenset()
    spans: list[IndexSpan] = field(default_factory=list)
    captures: list[FileSummary] = field(default_factory=list)
    secrets: list[bytes] = field(default_factory=list, repr=False)  # TLS key logs in the captures
    identities: dict[str, FileIdentity] = field(default_factory=dict)
    packets: int = 0


class ReadFlow:
    """A flow of a partition, with all its references."""

    def __init__(self, rows: Sequence[FlowRefs]) -> None:
        self.rows = rows
        self.packets = sum(row.packets for row in rows)
        self.held_bytes = sum(len(row.refs) for row in rows)
        self.first_packet_at = min(row.first_at for row in rows)


class FlowSet(FlowFilter):
    """A flow filter that accepts exactly the given flows."""

    def __init__(self, flow_keys: frozenset[bytes], sensors: SensorNaming) -> None:
        super().__init__(sensors=sensors)
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
        self.read_bytes = 0
        """Bytes of captures that `read` has read in this process, after their index."""

    def partitions(self) -> list[InputPartition]:
        """Index the captures and assign their flows to partitions. Runs on the driver.

        Raises:
            CaptureError: A path cannot be found.
            LostInput: A file cannot be read. Damage inside a file does not raise: it is a row of
                the table `captures`.
        """
        options = self.options
        files = find_inputs(options.paths)
        index = FlowIndex(options)
        for spans in plan_index_tasks(files, MIN_PARTITIONS, options.max_partition_bytes):
            for span in spans:
                index.add(span)
        if options.table == "captures":
            return [InputPartition(ReadPartition(captures=merge_by_file(index.summaries)))]
        parts = index.partitions() or [ReadPartition()]
        for part in parts:
            part.secrets = index.secrets
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition as the analysis produces them. Runs in a task.

        Raises:
            LostInput: A capture cannot be read, or is not the file that the driver has indexed.
        """
        options = self.options
        yield from spark_batches(options.selection, options.columns, self._batches(partition.value))

    def _batches(self, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        if partition.captures:
            yield from capture_batches(partition.captures)
            return
        limits = CaptureLimits()
        options = self.options.analysis_options.with_secrets(partition.secrets)
        use_spark_local_dirs()
        rows = partition.flows or _reindex(partition, limits, options.sensors)
        flows = sorted(map(ReadFlow, rows), key=lambda flow: flow.first_packet_at)
        packets = sum(flow.packets for flow in flows)
        if packets != partition.packets:
            raise LostInput(
                f"{packets} packets were read, but the driver found {partition.packets} in the "
                "same captures: they have changed meanwhile; run the query again"
            )
        with UrlFilePool(limits, partition.identities) as files:

            def sessions(flow: ReadFlow, read_ahead: ReadAhead) -> Iterator[TcpSession]:
                return consume_sessions(
                    sessions_of(
                        flow.rows, files.reader, limits=limits, ports=options.ports,
                        read_ahead=read_ahead,
                    )
                )  # fmt: skip

            yield from session_batches(flows, sessions, options, self.options.selection)
        self.read_bytes += files.bytes_read


class FlowIndex:
    """The spans that contain each flow, its cost and, while there are few, its references."""

    def __init__(self, options: SourceOptions) -> None:
        self.summaries: list[FileSummary] = []
        self.secrets: list[bytes] = []
        self._limits = CaptureLimits()
        self._partition_bytes = options.max_partition_bytes or DEFAULT_PARTITION_BYTES
        analysis = options.analysis_options
        self._flow_filter = FlowFilter(tuple(analysis.ports), options.filters, analysis.sensors)
        self._selection = options.selection
        self._rows: dict[bytes, list[FlowRefs]] = {}
        self._ref_bytes = 0
        self._spans: list[IndexSpan] = []
        self.span_numbers: dict[bytes, list[int]] = {}  # indexes of the spans that contain a flow
        self.costs: dict[bytes, int] = {}
        self.identities: dict[str, FileIdentity] = {}
        self.first_packet_times: dict[bytes, int] = {}

    def add(self, span: IndexSpan) -> None:
        known = self.identities.get(span.path)
        index, identity = index_span(span, self._limits, self._flow_filter, known)
        if identity is not None:
            self.identities.setdefault(span.path, identity)
        self.summaries.append(index.summary)
        self.secrets += index.secrets
        number = len(self._spans)
        if index.resume is not None:  # if it is None, the scan stops at the same damage again
            span = replace(span, file_range=replace(span.file_range, end=index.resume.start))
        self._spans.append(span)
        for row in index.rows:
            if not self._selection.accepts_flow(row.flow):
                continue
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
            numbers = sorted({number for key in keys for number in self.span_numbers[key]})
            spans = [self._spans[number] for number in numbers]
            part = ReadPartition(packets=sum(self.costs[key] for key in keys) // PACKET_COST)
            part.identities = {
                span.path: self.identities[span.path]
                for span in spans
                if span.path in self.identities
            }
            if self._rows:
                part.flows = [self._rows[key] for key in keys]
            else:
                part.flow_keys, part.spans = frozenset(keys), spans
            partitions.append(part)
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


def _reindex(
    partition: ReadPartition, limits: CaptureLimits, sensors: SensorNaming
) -> Iterator[Sequence[FlowRefs]]:
    """Scan the headers of the partition's spans again and yield the rows of each of its flows."""
    flow_set = FlowSet(partition.flow_keys, sensors)
    flows: dict[bytes, list[FlowRefs]] = {}
    for span in partition.spans:
        index, _ = index_span(span, limits, flow_set, partition.identities.get(span.path))
        for row in index.rows:
            flows.setdefault(row.flow, []).append(row)
    yield from (flows[key] for key in sorted(flows))
