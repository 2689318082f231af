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

from polymux.analysis.arrow.batches import batch_of, plain
from polymux.analysis.session.analyzer import walk_steps
from polymux.capture import CaptureLimits, FileSummary, FlowFilter, FlowRefs, sessions_of
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.remote import CaptureFiles
from polymux.spark.batch.reference_shuffle import weight_of
from polymux.spark.batch.summaries import by_file
from polymux.spark.batch.task_planning import Span, index_span, index_tasks
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.types import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

SHARE = 256 << 20  # octets of captures a task should have
ROWS = 8192  # of a batch: the quickest between Python and Java
TRAVELLING = 64 << 20  # octets of references that go with the tasks
CORES = 8  # tasks that captures are cut into at least, if they are large enough


@dataclass
class Share:
    """One task's part: flows with their references, or where to find them; or finished rows."""

    flows: list[list[FlowRefs]] = field(default_factory=list)
    keys: frozenset[bytes] = frozenset()
    spans: list[Span] = field(default_factory=list)
    captures: list[FileSummary] = field(default_factory=list)


class OnlyFlows(FlowFilter):
    """These flows and no others."""

    def __init__(self, keys: frozenset[bytes]) -> None:
        super().__init__()
        self._keys = keys

    def accepts(self, flow: bytes) -> bool:
        return flow in self._keys


class TableReader(DataSourceReader):
    """Reads one table. `partitions` runs on the driver, `read` in a task; no state between."""

    def __init__(self, asked: SourceOptions) -> None:
        self.asked = asked

    def partitions(self) -> list[InputPartition]:
        """Index the captures and share out their flows. Errors about the options and the paths
        are raised here; what is wrong inside a file is a row of the table `captures`."""
        asked = self.asked
        found = find_inputs(asked.paths)
        index = Index(asked)
        for spans in index_tasks(found, CORES, asked.task_octets):
            for span in spans:
                index.add(span)
        if asked.table == "captures":
            return [InputPartition(Share(captures=by_file(index.summaries)))]
        return [InputPartition(share) for share in index.shares() or [Share()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share, batch by batch as the walk finds them."""
        for batch in self._batches(partition.value):
            exact = self._exact(batch)
            for start in range(0, exact.num_rows, ROWS):
                yield exact.slice(start, ROWS)

    def _batches(self, share: Share) -> Iterator[pa.RecordBatch]:
        if share.captures:
            rows = [asdict(summary) for summary in share.captures]
            yield batch_of("captures", {name: [row[name] for row in rows] for name in rows[0]})
            return
        limits = CaptureLimits()
        waiting: list[pa.RecordBatch] = []

        def emit(table: str, batch: pa.RecordBatch) -> None:
            waiting.append(batch)

        with CaptureFiles(limits) as files:
            for flow in share.flows or _found_again(share, limits):
                plan = self.asked.plan
                for session in sessions_of(flow, files.reader, limits=limits, ports=plan.ports):
                    for _ in walk_steps(session, plan, emit):
                        yield from waiting
                        waiting.clear()
                    yield from waiting
                    waiting.clear()

    def _exact(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns asked for, in just the types that Spark reads them as."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        asked = self.asked
        schema = to_arrow_schema(spark_schema(asked.table, asked.columns), timezone="UTC")
        chosen = plain(asked.table, batch).select(list(asked.columns))
        columns = [
            column.cast(wanted.type) for column, wanted in zip(chosen.columns, schema, strict=True)
        ]
        return pa.record_batch(columns, schema=schema)


class Index:
    """Where every flow lies, and its references while they are few."""

    def __init__(self, asked: SourceOptions) -> None:
        self.summaries: list[FileSummary] = []
        self._limits = CaptureLimits()
        self._share = asked.task_octets or SHARE
        self._wanted = FlowFilter(tuple(asked.plan.ports), asked.filters)
        self._rows: dict[bytes, list[FlowRefs]] = {}
        self._kept = 0
        self._spans: list[Span] = []
        self._places: dict[bytes, list[int]] = {}  # numbers of the spans a flow is in
        self._weights: dict[bytes, int] = {}
        self._first: dict[bytes, int] = {}

    def add(self, span: Span) -> None:
        index = index_span(span, self._limits, self._wanted)
        self.summaries.append(index.summary)
        number = len(self._spans)
        self._spans.append(span)
        for row in index.rows:
            self._weights[row.flow] = self._weights.get(row.flow, 0) + weight_of(row)
            self._first[row.flow] = min(self._first.get(row.flow, row.first_at), row.first_at)
            places = self._places.setdefault(row.flow, [])
            if not places or places[-1] != number:
                places.append(number)
            self._kept += len(row.refs)
            if self._kept <= TRAVELLING:
                self._rows.setdefault(row.flow, []).append(row)
        if self._kept > TRAVELLING:
            self._rows.clear()

    def shares(self) -> list[Share]:
        """Flows in groups of about one task's work, the heaviest first, and among the others
        those together that began together: they lie in the same ranges."""
        shares: list[Share] = []
        for keys in self._groups():
            if self._rows:
                shares.append(Share(flows=[self._rows[key] for key in keys]))
            else:
                numbers = sorted({number for key in keys for number in self._places[key]})
                spans = [self._spans[number] for number in numbers]
                shares.append(Share(keys=frozenset(keys), spans=spans))
        return shares

    def _groups(self) -> Iterable[list[bytes]]:
        total = sum(self._weights.values())
        share = min(self._share, max(1, total // CORES))
        heavy = [key for key in self._weights if self._weights[key] >= share]
        yield from ([key] for key in sorted(heavy, key=lambda key: (-self._weights[key], key)))
        group: list[bytes] = []
        room = share
        for key in sorted(set(self._weights) - set(heavy), key=lambda key: (self._first[key], key)):
            if group and self._weights[key] > room:
                yield group
                group, room = [], share
            group.append(key)
            room -= self._weights[key]
        if group:
            yield group


def _found_again(share: Share, limits: CaptureLimits) -> Iterator[Sequence[FlowRefs]]:
    """The flows of a share, from the headers of its spans."""
    wanted = OnlyFlows(share.keys)
    flows: dict[bytes, list[FlowRefs]] = {}
    for span in share.spans:
        for row in index_span(span, limits, wanted).rows:
            flows.setdefault(row.flow, []).append(row)
    yield from (flows[key] for key in sorted(flows))
