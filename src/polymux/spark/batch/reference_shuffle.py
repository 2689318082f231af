"""The shuffle of packet references from index tasks to analyze tasks, through shared files.

A packet reference is a small record with the file offset, time and size of one captured packet
(`capture.packets.packet_refs`). The packets of a flow may be in any file, so the references have to
be regrouped by flow before a task can reassemble it. The workers share one staging folder for the
tables anyway, so the references, a few percent of the captures, use it too. Compared with Spark's
own shuffle this takes a third of the time and no Java memory, and a task can read the references of
a huge flow in pieces.

An index task writes one pair of files: `NAME.refs` has the references themselves, and `NAME.rows`,
an Arrow file, has one row for each direction of a flow in a span, with the position of its
references. Flows are hashed into `BUCKET_COUNT` buckets. The driver receives only the cost of each
bucket and of the heaviest flows; from these it plans the analyze tasks, each a `FlowSelection`.
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
MAX_ROW_REF_BYTES = REF_BYTES << 15  # bytes of references per row; longer rows are split
OFFSET_SHIFT = int(CAPTURED_BITS)
PACKET_COST = 500  # estimated cost of analyzing a packet, in bytes
MAX_EAGER_REF_BYTES = 256 << 10  # a flow with more bytes of references is read in pieces
MAX_HELD_REF_BYTES = 4 << 20  # most bytes that an analysis holds of a flow's references and order
REF_BYTES_PER_ORDER_BYTE = 4  # bytes of references for each byte of their order
MAX_REPORTED_FLOWS = 16  # heaviest flows of a span that the driver receives one by one


def bucket_of(flow: bytes) -> int:
    """Return the bucket of a flow key; the same in every process."""
    return zlib.crc32(flow) % BUCKET_COUNT


def cost_of(row: FlowRefs) -> int:
    """Estimate the cost of analyzing a row, in bytes: `PACKET_COST` for each packet.

    The payload sizes are in the references, but adding them up costs more than it improves the
    estimate.
    """
    return row.packets * PACKET_COST


@dataclass
class IndexResult:
    """What an index task returns to the driver: the name of its files, and costs."""

    name: str = ""  # without suffix; empty if there were no rows
    summaries: list[str] = field(default_factory=list)  # one per span, as JSON
    bucket_costs: dict[int, int] = field(default_factory=dict)
    heavy_flow_costs: dict[bytes, int] = field(default_factory=dict)  # included in `bucket_costs`


@dataclass(frozen=True)
class FlowSelection:
    """The flows of one analyze task: without `buckets`, exactly `flows`; otherwise all flows of
    those buckets except `flows`."""

    buckets: frozenset[int] = frozenset()
    flows: frozenset[bytes] = frozenset()


class ReferenceWriter:
    """Writes the pair of files of one attempt. Use as a context manager.

    The files are complete when the context ends, and removed if it ends with an exception. Without
    any row no file is written, and `result.name` is empty.
    """

    def __init__(self, staging: str) -> None:
        self.result = IndexResult(uuid.uuid4().hex)
        self._folder = Path(staging, INDEX_FOLDER)
        self._refs_written = 0
        self._stack = ExitStack()
        self._refs: BinaryIO | None = None
        self._rows: pa.ipc.RecordBatchFileWriter | None = None

    def add(self, rows: Sequence[FlowRefs]) -> None:
        """Add the rows of a part of a span; both directions of a flow must be in the same call."""
        if not rows:
            return
        costs: dict[bytes, int] = {}
        for row in rows:
            bucket, cost = bucket_of(row.flow), cost_of(row)
            self.result.bucket_costs[bucket] = self.result.bucket_costs.get(bucket, 0) + cost
            costs[row.flow] = costs.get(row.flow, 0) + cost
        for flow in sorted(costs, key=lambda flow: -costs[flow])[:MAX_REPORTED_FLOWS]:
            self.result.heavy_flow_costs[flow] = (
                self.result.heavy_flow_costs.get(flow, 0) + costs[flow]
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
        assert self._rows is not None  # opened together with `_refs`
        arrays = [
            make_array(values, column.type)
            for values, column in zip(columns, _schema(), strict=True)
        ]
        self._rows.write_batch(pa.record_batch(arrays, schema=_schema()))

    def __enter__(self) -> ReferenceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        wrote = self._refs is not None
        self._stack.close()
        if not wrote:
            self.result.name = ""
        elif kind is not None:
            for suffix in ("refs", "rows"):
                (self._folder / f"{self.result.name}.{suffix}").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ReferenceLocation:
    """A row without its references, and the position of these in a file."""

    row: FlowRefs
    path: Path
    start: int
    size: int

    def read(self, start: int, size: int) -> bytes:
        """Read `size` bytes of the row's references, from `start` bytes behind the first."""
        fd = os.open(self.path, os.O_RDONLY)  # a file object would take twice as long
        try:
            refs = os.pread(fd, size, self.start + start)
        finally:
            os.close(fd)
        if len(refs) != size:
            raise PolymuxError(f"{self.path}: is shorter than it was when it was written")
        return refs

    def loaded_row(self) -> FlowRefs:
        """Return the row with its references."""
        return self.row._replace(refs=self.read(0, self.size))

    def lazy_row(self) -> FlowRefs:
        """Return the row with a function that reads its references as they are needed."""
        return self.row._replace(stored=self.read, records=self.size // REF_BYTES)


@dataclass(frozen=True, slots=True)
class StoredFlow:
    """A flow whose references are still in their files."""

    locations: list[ReferenceLocation]

    @property
    def stored_bytes(self) -> int:
        """Bytes of its references."""
        return sum(location.size for location in self.locations)

    @property
    def held_bytes(self) -> int:
        """Estimated memory that an analysis of the flow needs for them, in bytes."""
        if self.stored_bytes <= MAX_EAGER_REF_BYTES:
            return self.stored_bytes
        return min(
            MAX_EAGER_REF_BYTES + self.stored_bytes // REF_BYTES_PER_ORDER_BYTE, MAX_HELD_REF_BYTES
        )

    def rows(self) -> list[FlowRefs]:
        """Return its rows, with references that are read now or, if there are many, later."""
        if self.stored_bytes > MAX_EAGER_REF_BYTES:
            return [location.lazy_row() for location in self.locations]
        return [location.loaded_row() for location in self.locations]


class TempSpool:
    """Unnamed temporary files for the analysis of a huge flow.

    `open` creates one below the staging folder; all are removed when the context ends.
    """

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
    """Reads the flows of one analyze task from the files of all index tasks.

    Raises:
        PolymuxError: A file is missing, because the workers do not share a file system.
    """

    def __init__(self, staging: str, names: Sequence[str], selection: FlowSelection) -> None:
        self._folder = Path(staging, INDEX_FOLDER)
        self._flows: dict[bytes, list[ReferenceLocation]] = {}
        for name in names:
            for location in self._locations(name, selection):
                self._flows.setdefault(location.row.flow, []).append(location)

    def flows(self) -> list[list[FlowRefs]]:
        """Return the rows of each flow without references, in the order of `__iter__`."""
        return [[location.row for location in flow.locations] for flow in self]

    def __iter__(self) -> Iterator[StoredFlow]:
        """Yield the flows by the time of their first packet."""
        for flow in sorted(self._flows, key=self._sort_key):
            yield StoredFlow(self._flows[flow])

    def _sort_key(self, flow: bytes) -> tuple[int, bytes]:
        return min(location.row.first_at for location in self._flows[flow]), flow

    def _locations(self, name: str, selection: FlowSelection) -> Iterator[ReferenceLocation]:
        import pyarrow as pa

        path, refs = self._folder / f"{name}.rows", self._folder / f"{name}.refs"
        try:
            source = pa.memory_map(str(path))
        except FileNotFoundError:
            raise PolymuxError(
                f"{path}: another worker wrote it, but it is not here: --out must be on a file "
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
    """Yield the rows of each flow; long ones are split, both directions at the same file offsets.

    An analysis reads references in pieces, and both directions of a piece together.
    """
    flows: dict[bytes, list[FlowRefs]] = {}
    for row in rows:
        flows.setdefault(row.flow, []).append(row)
    for both in flows.values():
        longest = max(both, key=lambda row: len(row.refs))
        # One byte before the packet: an empty packet may end exactly where the next piece starts,
        # and two rows with the same start would count as duplicates.
        boundaries = [
            packet_offset(longest.refs, position) - 1
            for position in range(MAX_ROW_REF_BYTES, len(longest.refs), MAX_ROW_REF_BYTES)
        ]
        if boundaries:
            yield [piece for row in both for piece in _split_row(row, boundaries)]
        else:
            yield both


def _split_row(row: FlowRefs, boundaries: Sequence[int]) -> Iterator[FlowRefs]:
    """Split a row at these file offsets; pieces without references are left out."""
    begin = 0
    for start, boundary in zip([row.start, *boundaries], [*boundaries, 1 << 62], strict=True):
        end = begin
        if begin < len(row.refs) and packet_offset(row.refs, begin) < boundary:
            records = range(begin, len(row.refs), REF_BYTES)
            end = begin + REF_BYTES * bisect_left(
                records, boundary, key=lambda position: packet_offset(row.refs, position)
            )
        if end > begin:
            refs = row.refs[begin:end]
            first_at, last_at = _packet_time(refs, 0), _packet_time(refs, len(refs) - REF_BYTES)
            yield FlowRefs(
                row.flow, row.direction, row.file, start, first_at, last_at, refs, row.hints
            )
        begin = end


def packet_offset(refs: bytes, position: int) -> int:
    """Return the file offset of the packet whose reference is at `position`.

    The layout of a reference is in `capture.packets.packet_refs`.
    """
    return int.from_bytes(refs[position : position + 8], "little") >> OFFSET_SHIFT


def _packet_time(refs: bytes, position: int) -> int:
    """Return the timestamp of the same packet, in nanoseconds."""
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
