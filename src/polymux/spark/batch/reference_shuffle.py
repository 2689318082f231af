"""How references get from the tasks that find them to the tasks that walk them: through files.

Every worker writes tables under one staging folder, so the references, a few percent of the
captures, go the same way. Measured against Spark's own shuffle: a third of the time, nothing of
it in Java's memory, and a walk can take the references of a huge flow piece by piece.

An index task writes one pair of files: `NAME.refs`, the references as they are, and `NAME.rows`,
an Arrow file with one row for each direction of a flow in a span, saying where they lie. Flows
fall into `BUCKETS` buckets by hash; to the driver go only the weights of the buckets and the
heaviest flows.
"""

from __future__ import annotations

import os
import tempfile
import uuid
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from polymux.capture import FlowRefs
from polymux.capture.packets.packet_refs import CAPTURED_BITS, REF_BYTES
from polymux.core.errors import PolymuxError

if TYPE_CHECKING:
    import pyarrow as pa

INDEX_FOLDER = "index"
BUCKET_COUNT = 4096
MAX_ROW_REF_BYTES = REF_BYTES << 15  # bytes of references of a row; longer ones are cut
OFFSET_SHIFT = int(CAPTURED_BITS)
PACKET_COST = 500
MAX_EAGER_REF_BYTES = (
    256 << 10
)  # bytes of a flow's references that are read at once; more, piece by piece
MAX_HELD_REF_BYTES = (
    4 << 20
)  # bytes that a walk holds of a flow at most: some references, and their order
REF_BYTES_PER_ORDER_BYTE = 4  # bytes of references for each byte of their order
MAX_REPORTED_FLOWS = 16  # flows of a span that the driver is told of one by one


def bucket_of(flow: bytes) -> int:
    return zlib.crc32(flow) % BUCKET_COUNT


def cost_of(row: FlowRefs) -> int:
    """About how much work a row is, in bytes: packets count as 500 each, whatever they carry.

    What a packet carries is in its reference, but adding that up costs more than it tells.
    """
    return row.packets * PACKET_COST


@dataclass
class IndexResult:
    """What an index task tells the driver: where its rows lie and how heavy they are."""

    name: str = ""
    summaries: list[str] = field(default_factory=list)  # one a span, as JSON
    bucket_costs: dict[int, int] = field(default_factory=dict)
    heavy_flow_costs: dict[bytes, int] = field(
        default_factory=dict
    )  # the heaviest, which are also above


@dataclass(frozen=True)
class FlowSelection:
    """The flows of one walk task: those named, or those of some buckets without those named."""

    buckets: frozenset[int] = frozenset()
    flows: frozenset[bytes] = frozenset()


class ReferenceWriter:
    """The pair of files of one attempt; as a context it finishes them, or leaves none behind."""

    def __init__(self, staging: str) -> None:
        self.result = IndexResult(uuid.uuid4().hex)
        self._folder = Path(staging, INDEX_FOLDER)
        self._refs_written = 0
        self._stack = ExitStack()
        self._refs: BinaryIO | None = None
        self._rows: pa.ipc.RecordBatchFileWriter | None = None

    def add(self, rows: Sequence[FlowRefs]) -> None:
        """Rows of a part of a span: those of both directions of a flow together."""
        if not rows:
            return
        weights: dict[bytes, int] = {}
        for row in rows:
            bucket, weight = bucket_of(row.flow), cost_of(row)
            self.result.bucket_costs[bucket] = self.result.bucket_costs.get(bucket, 0) + weight
            weights[row.flow] = weights.get(row.flow, 0) + weight
        for flow in sorted(weights, key=lambda flow: -weights[flow])[:MAX_REPORTED_FLOWS]:
            self.result.heavy_flow_costs[flow] = (
                self.result.heavy_flow_costs.get(flow, 0) + weights[flow]
            )
        self._write([piece for row in _split_long_rows(rows) for piece in row])

    def _write(self, rows: Sequence[FlowRefs]) -> None:
        import pyarrow as pa

        from polymux.analysis.arrow.arrays import make_array

        if self._refs is None:
            self._folder.mkdir(exist_ok=True)
            name = self._folder / self.result.name
            refs = open(f"{name}.refs", "wb", buffering=0)  # noqa: SIM115  # closed by the stack
            self._refs = self._stack.enter_context(refs)
            sink = self._stack.enter_context(pa.OSFile(f"{name}.rows", "wb"))
            self._rows = self._stack.enter_context(pa.ipc.new_file(sink, _schema()))
        starts = []
        for row in rows:
            starts.append(self._refs_written)
            self._refs_written += self._refs.write(row.refs)
        columns: list[Sequence[Any]] = [
            [bucket_of(row.flow) for row in rows],
            [row.flow for row in rows],
            [row.direction for row in rows],
            [row.file for row in rows],
            [row.start for row in rows],
            [row.first_at for row in rows],
            [row.last_at for row in rows],
            [list(row.hints) for row in rows],
            starts,
            [len(row.refs) for row in rows],
        ]
        assert self._rows is not None
        arrays = [make_array(one, each.type) for one, each in zip(columns, _schema(), strict=True)]
        self._rows.write_batch(pa.record_batch(arrays, schema=_schema()))

    def __enter__(self) -> ReferenceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        wrote = self._refs is not None
        self._stack.close()
        if not wrote:
            self.result.name = ""
        elif kind is not None:
            for ending in ("refs", "rows"):
                (self._folder / f"{self.result.name}.{ending}").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ReferenceLocation:
    """Where one row's references lie, and the row without them."""

    row: FlowRefs
    path: Path
    start: int
    size: int

    def read(self, start: int, size: int) -> bytes:
        """Bytes of the references."""
        fd = os.open(self.path, os.O_RDONLY)  # as a file object it would take twice as long
        try:
            refs = os.pread(fd, size, self.start + start)
        finally:
            os.close(fd)
        if len(refs) != size:
            raise PolymuxError(f"{self.path}: is shorter than it was when it was written")
        return refs

    def loaded_row(self) -> FlowRefs:
        """The row with its references."""
        return self.row._replace(refs=self.read(0, self.size))

    def lazy_row(self) -> FlowRefs:
        """The row, whose references are read as a walk needs them."""
        return self.row._replace(stored=self.read, records=self.size // REF_BYTES)


@dataclass(frozen=True, slots=True)
class StoredFlow:
    """One flow, whose references are still in their files."""

    locations: list[ReferenceLocation]

    @property
    def stored_bytes(self) -> int:
        """Of its references."""
        return sum(place.size for place in self.locations)

    @property
    def held_bytes(self) -> int:
        """About how many bytes a walk of it holds of them."""
        if self.stored_bytes <= MAX_EAGER_REF_BYTES:
            return self.stored_bytes
        return min(
            MAX_EAGER_REF_BYTES + self.stored_bytes // REF_BYTES_PER_ORDER_BYTE, MAX_HELD_REF_BYTES
        )

    def rows(self) -> list[FlowRefs]:
        if self.stored_bytes > MAX_EAGER_REF_BYTES:
            return [place.lazy_row() for place in self.locations]
        return [place.loaded_row() for place in self.locations]


class TempSpool:
    """A file for what the walk of a huge flow sets aside: made when it is asked for, never seen
    under a name, gone with the context."""

    def __init__(self, staging: str) -> None:
        self._folder = Path(staging, INDEX_FOLDER)
        self._stack = ExitStack()

    def open(self) -> BinaryIO:
        return self._stack.enter_context(tempfile.TemporaryFile(dir=self._folder))

    def __enter__(self) -> TempSpool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class ReferenceReader:
    """The rows of one walk task, from the files of all index tasks."""

    def __init__(self, staging: str, names: Sequence[str], selection: FlowSelection) -> None:
        self._folder = Path(staging, INDEX_FOLDER)
        self._flows: dict[bytes, list[ReferenceLocation]] = {}
        for name in names:
            for place in self._locations(name, selection):
                self._flows.setdefault(place.row.flow, []).append(place)

    def flows(self) -> list[list[FlowRefs]]:
        """Not yet the references: the rows of each flow, the flow that began first in front."""

        def first(flow: bytes) -> tuple[int, bytes]:
            return min(place.row.first_at for place in self._flows[flow]), flow

        return [
            [place.row for place in self._flows[flow]] for flow in sorted(self._flows, key=first)
        ]

    def __iter__(self) -> Iterator[StoredFlow]:
        """Flow after flow, the one that began first in front."""

        def first(flow: bytes) -> tuple[int, bytes]:
            return min(place.row.first_at for place in self._flows[flow]), flow

        for flow in sorted(self._flows, key=first):
            yield StoredFlow(self._flows[flow])

    def _locations(self, name: str, selection: FlowSelection) -> Iterator[ReferenceLocation]:
        import pyarrow as pa

        path, refs = self._folder / f"{name}.rows", self._folder / f"{name}.refs"
        try:
            source = pa.memory_map(str(path))
        except FileNotFoundError:
            raise PolymuxError(
                f"{path}: another worker wrote it, and here it is not: --out must be on a file "
                "system that the driver and all workers share"
            ) from None
        with source, pa.ipc.open_file(source) as rows:
            for number in range(rows.num_record_batches):
                batch = _filter_batch(rows.get_batch(number), selection)
                for entry in batch.to_pylist():
                    row = FlowRefs(
                        entry["flow"], entry["direction"], entry["file"], entry["start"],
                        entry["first_at"], entry["last_at"], b"", tuple(entry["hints"]),
                    )  # fmt: skip
                    yield ReferenceLocation(row, refs, entry["refs_at"], entry["refs_size"])


def _split_long_rows(rows: Sequence[FlowRefs]) -> Iterator[list[FlowRefs]]:
    """The rows of each flow, both directions cut at the same places if they are long.

    A walk takes references piece by piece, and both directions of a piece together.
    """
    flows: dict[bytes, list[FlowRefs]] = {}
    for row in rows:
        flows.setdefault(row.flow, []).append(row)
    for both in flows.values():
        longest = max(both, key=lambda row: len(row.refs))
        # Before the packet: where one without payload ends, the next part may begin, and two rows
        # with one start would be taken for the same.
        cuts = [
            packet_offset(longest.refs, at) - 1
            for at in range(MAX_ROW_REF_BYTES, len(longest.refs), MAX_ROW_REF_BYTES)
        ]
        yield both if not cuts else [piece for row in both for piece in _split_row(row, cuts)]


def _split_row(row: FlowRefs, boundaries: Sequence[int]) -> Iterator[FlowRefs]:
    """The row in pieces, each with the references before the next of these offsets."""
    begin = 0
    for start, cut in zip([row.start, *boundaries], [*boundaries, 1 << 62], strict=True):
        end = begin
        if begin < len(row.refs) and packet_offset(row.refs, begin) < cut:
            records = range(begin, len(row.refs), REF_BYTES)
            end = begin + REF_BYTES * bisect_left(
                records, cut, key=lambda at: packet_offset(row.refs, at)
            )  # fmt: skip
        if end > begin:
            refs = row.refs[begin:end]
            first_at, last_at = _packet_time(refs, 0), _packet_time(refs, len(refs) - REF_BYTES)
            yield FlowRefs(
                row.flow, row.direction, row.file, start, first_at, last_at, refs, row.hints
            )
        begin = end


def packet_offset(refs: bytes, position: int) -> int:
    """The place in its file of the packet whose record is at `at`: see `hot.references`."""
    return int.from_bytes(refs[position : position + 8], "little") >> OFFSET_SHIFT


def _packet_time(refs: bytes, position: int) -> int:
    return int.from_bytes(refs[position + 8 : position + 16], "little", signed=True)


def _filter_batch(batch: pa.RecordBatch, selection: FlowSelection) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    from polymux.analysis.arrow.arrays import make_array

    flows = pc.is_in(batch.column("flow"), make_array(sorted(selection.flows), pa.binary()))
    if not selection.buckets:
        return batch.filter(flows)
    buckets = pc.is_in(batch.column("bucket"), make_array(sorted(selection.buckets), pa.int32()))
    return batch.filter(pc.and_(buckets, pc.invert(flows)))


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("bucket", pa.int32()),
            ("flow", pa.binary()),
            ("direction", pa.int32()),
            ("file", pa.string()),
            ("start", pa.int64()),
            ("first_at", pa.int64()),
            ("last_at", pa.int64()),
            ("hints", pa.list_(pa.string())),
            ("refs_at", pa.int64()),
            ("refs_size", pa.int64()),
        ]
    )
