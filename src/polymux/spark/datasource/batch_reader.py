"""The batch reader behind `format("polymux")`: index on the driver, walk in the tasks.

A data source cannot shuffle. So the driver walks the packet headers, gigabytes a second, and gives
each task its flows. As long as the references are few they travel with the task; otherwise the
task is told where its flows lie, and walks the headers of those ranges once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from polymux.analysis.arrow.batches import decode_dictionaries, make_batch
from polymux.analysis.session.analyzer import analyze_session_steps
from polymux.capture import CaptureLimits, FileSummary, FlowFilter, FlowRefs, sessions_of
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.remote import UrlFilePool
from polymux.spark.batch.reference_shuffle import cost_of
from polymux.spark.batch.summaries import merge_by_file
from polymux.spark.batch.task_planning import IndexSpan, index_span, plan_index_tasks
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.types import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_PARTITION_BYTES = 256 << 20  # bytes of captures a task should have
MAX_BATCH_ROWS = 8192  # of a batch: the quickest between Python and Java
MAX_INLINE_REF_BYTES = 64 << 20  # bytes of references that go with the tasks
MIN_PARTITIONS = 8  # tasks that captures are cut into at least, if they are large enough


@dataclass
class ReadPartition:
    """One task's part: flows with their references, or where to find them; or finished rows."""

    flows: list[list[FlowRefs]] = field(default_factory=list)
    flow_keys: frozenset[bytes] = frozenset()
    spans: list[IndexSpan] = field(default_factory=list)
    captures: list[FileSummary] = field(default_factory=list)


class FlowSet(FlowFilter):
    """These flows and no others."""

    def __init__(self, flow_keys: frozenset[bytes]) -> None:
        super().__init__()
        self._flow_keys = flow_keys

    def accepts(self, flow: bytes) -> bool:
        return flow in self._flow_keys


class TableReader(DataSourceReader):
    """Reads one table. `partitions` runs on the driver, `read` in a task; no state between."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Index the captures and share out their flows. Errors about the options and the paths
        are raised here; what is wrong inside a file is a row of the table `captures`."""
        asked = self.options
        found = find_inputs(asked.paths)
        index = FlowIndex(asked)
        for spans in plan_index_tasks(found, MIN_PARTITIONS, asked.max_partition_bytes):
            for span in spans:
                index.add(span)
        if asked.table == "captures":
            return [InputPartition(ReadPartition(captures=merge_by_file(index.summaries)))]
        return [InputPartition(share) for share in index.partitions() or [ReadPartition()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share, batch by batch as the walk finds them."""
        for batch in self._batches(partition.value):
            exact = self._cast_to_schema(batch)
            for start in range(0, exact.num_rows, MAX_BATCH_ROWS):
                yield exact.slice(start, MAX_BATCH_ROWS)

    def _batches(self, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        if partition.captures:
            rows = [asdict(summary) for summary in partition.captures]
            yield make_batch("captures", {name: [row[name] for row in rows] for name in rows[0]})
            return
        limits = CaptureLimits()
        waiting: list[pa.RecordBatch] = []

        def emit(table: str, batch: pa.RecordBatch) -> None:
            waiting.append(batch)

        with UrlFilePool(limits) as files:
            for flow in partition.flows or _reindex(partition, limits):
                plan = self.options.analysis_options
                for session in sessions_of(flow, files.reader, limits=limits, ports=plan.ports):
                    for _ in analyze_session_steps(session, plan, emit):
                        yield from waiting
                        waiting.clear()
                    yield from waiting
                    waiting.clear()

    def _cast_to_schema(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns asked for, in just the types that Spark reads them as."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        asked = self.options
        schema = to_arrow_schema(spark_schema(asked.table, asked.columns), timezone="UTC")
        chosen = decode_dictionaries(asked.table, batch).select(list(asked.columns))
        columns = [
            column.cast(wanted.type) for column, wanted in zip(chosen.columns, schema, strict=True)
        ]
        return pa.record_batch(columns, schema=schema)


class FlowIndex:
    """Where every flow lies, and its references while they are few."""

    def __init__(self, options: SourceOptions) -> None:
        self.summaries: list[FileSummary] = []
        self._limits = CaptureLimits()
        self._partition_bytes = options.max_partition_bytes or DEFAULT_PARTITION_BYTES
        self._flow_filter = FlowFilter(tuple(options.analysis_options.ports), options.filters)
        self._rows: dict[bytes, list[FlowRefs]] = {}
        self._ref_bytes = 0
        self._spans: list[IndexSpan] = []
        self.span_numbers: dict[bytes, list[int]] = {}  # numbers of the spans a flow is in
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
            places = self.span_numbers.setdefault(row.flow, [])
            if not places or places[-1] != number:
                places.append(number)
            self._ref_bytes += len(row.refs)
            if self._ref_bytes <= MAX_INLINE_REF_BYTES:
                self._rows.setdefault(row.flow, []).append(row)
        if self._ref_bytes > MAX_INLINE_REF_BYTES:
            self._rows.clear()

    def partitions(self) -> list[ReadPartition]:
        """Flows in groups of about one task's work, the heaviest first, and among the others
        those together that began together: they lie in the same ranges."""
        shares: list[ReadPartition] = []
        for keys in self._groups():
            if self._rows:
                shares.append(ReadPartition(flows=[self._rows[key] for key in keys]))
            else:
                numbers = sorted({number for key in keys for number in self.span_numbers[key]})
                spans = [self._spans[number] for number in numbers]
                shares.append(ReadPartition(flow_keys=frozenset(keys), spans=spans))
        return shares

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
    """The flows of a share, from the headers of its spans."""
    wanted = FlowSet(partition.flow_keys)
    flows: dict[bytes, list[FlowRefs]] = {}
    for span in partition.spans:
        for row in index_span(span, limits, wanted).rows:
            flows.setdefault(row.flow, []).append(row)
    yield from (flows[key] for key in sorted(flows))
