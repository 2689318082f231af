"""The shuffle of packet references from index tasks to analyze tasks, through shared files.

A packet reference is a small record with the file offset, time and size of one captured packet
(`capture.packets.packet_refs`). The packets of a flow may be in any file, so the references have to
be regrouped by flow before a task can reassemble it. The workers share one staging folder for the
tables anyway, so the references, a few percent of the captures, use it too. Compared with Spark's
own shuffle this takes a third of the time and no Java memory, and a task can read the references of
a huge flow in pieces.

An index task writes one file: the references, and one row for each direction of a flow in a span,
sorted by bucket. Flows are hashed into buckets, whose number follows the amount
of data (`bucket_count`). The driver receives a few hundred bytes of each task: its costs in all, of
its heaviest buckets and of its heaviest flows (`IndexResult`). It adds them up (`IndexTotals`) and
plans the analyze tasks, each a `FlowSelection` of consecutive buckets.

Layout of a file, little-endian, the parts without padding between them:

    references   32 bytes each, those of a row together, in the order in which they were found
    rows         one for each direction of a flow in a span, sorted by bucket
    bucket table the position of each bucket's first row and the end of the last, 8 bytes each
    names        JSON: the captures and hints that rows name by number, the copies of captures
    footer       the positions of these parts

A task that analyzes some consecutive buckets reads the footer, two entries of the bucket table and
the rows between them: its own part, however many buckets the file has.

Buckets spread the flows of every capture over all tasks, so that every task reads in every capture.
Flows that lie in the captures of one index task alone need not be spread: in large runs a task of
`FlowSelection.leaves_local` leaves them, and writes which flows it has taken of each file
(`TakenFlows`). A second round of tasks, one for each file, analyzes the others from that file's
captures alone.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import struct
import tempfile
import uuid
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from polymux.capture import FlowRefs
from polymux.capture.io.sources import FileIdentity, LostInput
from polymux.capture.packets.packet_refs import CAPTURED_BITS, REF_BYTES
from polymux.core.errors import PolymuxError
from polymux.core.urls import without_credentials

INDEX_FOLDER = "index"
INDEX_SUFFIX = ".refs"
TAKEN_SUFFIX = ".taken"
MIN_BUCKETS, MAX_BUCKETS = 1024, 65536
BUCKETS_PER_TASK = 64  # so that the costs of analyze tasks differ by little
MAX_ROW_REF_BYTES = REF_BYTES << 15  # bytes of references per row; longer rows are split
OFFSET_SHIFT = int(CAPTURED_BITS)
PACKET_COST = 500  # estimated cost of analyzing a packet, in bytes
MAX_EAGER_REF_BYTES = 256 << 10  # a flow with more bytes of references is read in pieces
MAX_HELD_REF_BYTES = 4 << 20  # most bytes that an analysis holds of a flow's references and order
MAX_OPEN_REFERENCE_FILES = 32  # of a task
REF_BYTES_PER_ORDER_BYTE = 4  # bytes of references for each byte of their order
# The heaviest buckets that an index task reports one by one: fewer if there are many tasks, so that
# the driver does not hold more than this many for all of them, or MIN_REPORTED each.
MAX_REPORTED_BUCKETS = 1 << 14
MIN_REPORTED_BUCKETS = 24
BUCKETS_PER_REPORTED_FLOW = 8  # flows are reported one by one too, fewer than buckets
# Flows in one file are left to a task of that file if they have at least one in so many packets.
MIN_LOCAL_SHARE = 8
MAX_TOTAL_FLOWS = 4096  # heaviest flows of all tasks that the driver remembers
# flow bytes, direction, capture, hints, start, first and last timestamp, position and size of refs
ROW = struct.Struct("<HBIIqqqqq")
FOOTER = struct.Struct("<8sIQQQQ")
MAGIC = b"polymux1"


def bucket_count(tasks: int) -> int:
    """Return the number of buckets for this many analyze tasks, a power of two."""
    wanted = max(1, tasks) * BUCKETS_PER_TASK
    return min(MAX_BUCKETS, max(MIN_BUCKETS, 1 << (wanted - 1).bit_length()))


def bucket_of(flow: bytes, buckets: int = MIN_BUCKETS) -> int:
    """Return the bucket of a flow key; the same in every process."""
    return zlib.crc32(flow) % buckets


def reported_buckets(tasks: int) -> int:
    """Return how many buckets each of `tasks` index tasks reports one by one."""
    return max(MIN_REPORTED_BUCKETS, MAX_REPORTED_BUCKETS // max(1, tasks))


def cost_of(row: FlowRefs) -> int:
    """Estimate the cost of analyzing a row, in bytes: `PACKET_COST` for each packet.

    The payload sizes are in the references, but adding them up costs more than it improves the
    estimate.
    """
    return row.packets * PACKET_COST


class CaptureEntry(NamedTuple):
    """A capture that rows name: its path, place in a recording, and identity."""

    path: str
    recording: str
    file_number: int
    identity: str


class RowWriter:
    """Collects the rows of one file, packed, and writes everything behind the references."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._rows = bytearray()
        self._row_at = array("q")
        self._row_buckets = array("I")
        self.copies: dict[str, str] = {}
        """The names of the copies of captures, by path."""
        self._captures: dict[CaptureEntry, int] = {}
        self._hints: dict[tuple[str, ...], int] = {}

    def add(self, row: FlowRefs, bucket: int, refs_at: int, identity: str) -> None:
        """Add a row whose references are at position `refs_at` of the file."""
        capture = CaptureEntry(row.file, row.recording, row.file_number, identity)
        self._row_at.append(len(self._rows))
        self._row_buckets.append(bucket)
        self._rows += ROW.pack(
            len(row.flow),
            row.direction,
            self._captures.setdefault(capture, len(self._captures)),
            self._hints.setdefault(row.hints, len(self._hints)),
            row.start,
            row.first_at,
            row.last_at,
            refs_at,
            len(row.refs),
        )
        self._rows += row.flow

    def finish(self, file: BinaryIO, rows_at: int) -> None:
        """Write the rows and what follows them at `rows_at`, the end of the references."""
        ends = [*self._row_at[1:], len(self._rows)]
        starts = array("q")
        position = rows_at
        buckets = self._row_buckets
        for row in sorted(range(len(buckets)), key=buckets.__getitem__):
            while len(starts) <= buckets[row]:
                starts.append(position)
            file.write(self._rows[self._row_at[row] : ends[row]])
            position += ends[row] - self._row_at[row]
        while len(starts) <= self._buckets:
            starts.append(position)
        file.write(starts.tobytes())
        names = json.dumps([list(self._captures), list(self._hints), self.copies]).encode()
        file.write(names)
        names_at = position + len(starts) * 8
        file.write(FOOTER.pack(MAGIC, self._buckets, rows_at, position, names_at, len(names)))


@dataclass(frozen=True, slots=True)
class FilePart:
    """The rows of consecutive buckets, packed, with what they name by number."""

    rows: bytes
    captures: list[CaptureEntry]
    hints: list[tuple[str, ...]]
    copies: dict[str, str]

    def row(self, position: int) -> tuple[FlowRefs, int, int]:
        """The row at a position that `positions` gave, without its references; and the position
        and size of these."""
        size, direction, capture, hints, start, first_at, last_at, refs_at, refs_size = (
            ROW.unpack_from(self.rows, position)
        )
        flow = self.rows[position + ROW.size : position + ROW.size + size]
        entry = self.captures[capture]
        row = FlowRefs(
            flow, direction, entry.path, start, first_at, last_at, b"", self.hints[hints],
            None, 0, entry.recording, entry.file_number,
        )  # fmt: skip
        return row, refs_at, refs_size

    def packets(self, position: int) -> int:
        """How many packets the row at a position has."""
        refs_size: int = ROW.unpack_from(self.rows, position)[-1]
        return refs_size // REF_BYTES

    def positions(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield the position of each row, its flow, and the timestamp of its first packet."""
        position = 0
        while position < len(self.rows):
            size, _, _, _, _, first_at, _, _, _ = ROW.unpack_from(self.rows, position)
            end = position + ROW.size + size
            yield position, self.rows[position + ROW.size : end], first_at
            position = end


def read_part(path: str, buckets: range) -> FilePart:
    """Read the rows of these buckets from a file.

    Raises:
        FileNotFoundError: The file is not there.
        PolymuxError: It is not complete.
    """
    fd = os.open(path, os.O_RDONLY)  # a file object would take twice as long
    try:
        end = os.lseek(fd, 0, os.SEEK_END)
        footer = os.pread(fd, FOOTER.size, max(0, end - FOOTER.size))
        if len(footer) != FOOTER.size or footer[:8] != MAGIC:
            raise PolymuxError(f"{path}: is not complete")
        _, _, _, table_at, names_at, names_size = FOOTER.unpack(footer)
        table = os.pread(fd, (len(buckets) + 1) * 8, table_at + buckets.start * 8)
        first = int.from_bytes(table[:8], "little")
        rows = os.pread(fd, int.from_bytes(table[-8:], "little") - first, first)
        if not rows:
            return FilePart(b"", [], [], {})
        captures, hints, copies = json.loads(os.pread(fd, names_size, names_at))
    finally:
        os.close(fd)
    entries = [CaptureEntry(*entry) for entry in captures]
    return FilePart(rows, entries, [tuple(texts) for texts in hints], copies)


@dataclass
class IndexResult:
    """What an index task returns to the driver: the name of its file, its spans, and costs."""

    name: str = ""  # empty if there were no rows
    summaries: list[str] = field(default_factory=list)  # one per span, as JSON
    packets: int = 0  # that the references stand for
    cost: int = 0
    bucket_costs: dict[int, int] = field(default_factory=dict)  # of the heaviest, part of `cost`
    heavy_flow_costs: dict[bytes, int] = field(default_factory=dict)  # part of `cost`
    read_bytes: int = 0  # of captures
    secrets: list[bytes] = field(default_factory=list, repr=False)  # TLS key logs in the captures

    def pack(self) -> bytes:
        """Encode the result for the way to the driver."""
        flows = [[flow.hex(), cost] for flow, cost in self.heavy_flow_costs.items()]
        fields = (
            self.name, self.summaries, self.packets, self.cost, list(self.bucket_costs.items()),
            flows, self.read_bytes, [text.hex() for text in self.secrets],
        )  # fmt: skip
        return zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), 1)

    @classmethod
    def unpack(cls, data: bytes) -> IndexResult:
        """Decode what `pack` returned."""
        fields = json.loads(zlib.decompress(data))
        name, summaries, packets, cost, buckets, flows, read, secrets = fields
        flow_costs = {bytes.fromhex(flow): cost for flow, cost in flows}
        texts = [bytes.fromhex(text) for text in secrets]
        return cls(name, summaries, packets, cost, dict(buckets), flow_costs, read, texts)


@dataclass
class IndexTotals:
    """The sum of all index tasks. Of each task only its name and its summaries are kept."""

    buckets: int = MIN_BUCKETS
    names: list[str] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    packets: int = 0
    cost: int = 0
    bucket_costs: dict[int, int] = field(default_factory=dict)
    flow_costs: dict[bytes, int] = field(default_factory=dict)
    read_bytes: int = 0
    secrets: list[bytes] = field(default_factory=list, repr=False)

    def add(self, result: IndexResult) -> None:
        """Add the result of one task."""
        if result.name:
            self.names.append(result.name)
        self.summaries += result.summaries
        self.packets += result.packets
        self.cost += result.cost
        self.read_bytes += result.read_bytes
        self.secrets += result.secrets
        for bucket, cost in result.bucket_costs.items():
            self.bucket_costs[bucket] = self.bucket_costs.get(bucket, 0) + cost
        for flow, cost in result.heavy_flow_costs.items():
            self.flow_costs[flow] = self.flow_costs.get(flow, 0) + cost
        if len(self.flow_costs) > 2 * MAX_TOTAL_FLOWS:
            self.flow_costs = _heaviest(self.flow_costs, MAX_TOTAL_FLOWS)

    def merge(self, other: IndexTotals) -> None:
        """Add the totals of another stage, whose tasks wrote to the same folder and buckets."""
        self.names += other.names
        self.summaries += other.summaries
        self.packets += other.packets
        self.cost += other.cost
        self.read_bytes += other.read_bytes
        self.secrets += other.secrets
        for bucket, cost in other.bucket_costs.items():
            self.bucket_costs[bucket] = self.bucket_costs.get(bucket, 0) + cost
        for flow, cost in other.flow_costs.items():
            self.flow_costs[flow] = self.flow_costs.get(flow, 0) + cost

    def cost_of_each_bucket(self) -> list[float]:
        """Return the cost of each bucket; what no task reported one by one is spread evenly."""
        even = (self.cost - sum(self.bucket_costs.values())) / self.buckets
        return [even + self.bucket_costs.get(bucket, 0) for bucket in range(self.buckets)]


def _heaviest(costs: dict[bytes, int], count: int) -> dict[bytes, int]:
    return dict(heapq.nlargest(count, costs.items(), key=lambda item: (item[1], item[0])))


@dataclass(frozen=True)
class FlowSelection:
    """The flows of one analyze task.

    All flows of `buckets` except `flows`; or exactly `flows`, if `only_flows` is set. With
    `leaves_local` the task leaves flows that lie in one index file, if they are many. With `file`
    it has what other tasks have left of that index file, the one of this `number` in their list.
    """

    buckets: range = range(0)
    flows: frozenset[bytes] = frozenset()
    only_flows: bool = False
    leaves_local: bool = False
    file: str = ""
    number: int = 0

    def accepts(self, flow: bytes) -> bool:
        """Whether a flow of `buckets` belongs to the task."""
        return (flow in self.flows) == self.only_flows


class ReferenceWriter:
    """Writes the file of one attempt. Use as a context manager.

    The file is complete when the context ends, and removed if it ends with an exception. Without
    any row no file is written, and `result.name` is empty.
    """

    def __init__(
        self, staging: str, buckets: int = MIN_BUCKETS, reported: int = MAX_REPORTED_BUCKETS
    ) -> None:
        self.result = IndexResult(uuid.uuid4().hex)
        self._buckets = buckets
        self._reported = reported
        self._bucket_costs: dict[int, int] = {}
        self._path = Path(staging, INDEX_FOLDER, self.result.name + INDEX_SUFFIX)
        self._refs_written = 0
        self._file: BinaryIO | None = None
        self._rows = RowWriter(buckets)

    def add(self, rows: Sequence[FlowRefs], identity: str = "") -> None:
        """Add the rows of a part of a span; both directions of a flow must be in the same call.

        `identity` is that of the capture.
        """
        if not rows:
            return
        if self._file is None:
            self._path.parent.mkdir(exist_ok=True)
            self._file = open(self._path, "wb", buffering=1 << 20)  # noqa: SIM115  # see __exit__
        costs: dict[bytes, int] = {}
        for row in rows:
            bucket, cost = bucket_of(row.flow, self._buckets), cost_of(row)
            self._bucket_costs[bucket] = self._bucket_costs.get(bucket, 0) + cost
            costs[row.flow] = costs.get(row.flow, 0) + cost
            self.result.cost += cost
            self.result.packets += row.packets
        heavy = self.result.heavy_flow_costs
        for flow, cost in _heaviest(costs, self._most_flows()).items():
            heavy[flow] = heavy.get(flow, 0) + cost
        for group in _split_long_rows(rows):
            for row in group:
                bucket = bucket_of(row.flow, self._buckets)
                self._rows.add(row, bucket, self._refs_written, identity)
                self._refs_written += self._file.write(row.refs)

    def add_copy(self, path: str, name: str) -> None:
        """Note the copy of a capture, a file beside this one."""
        self._rows.copies[path] = name

    def _most_flows(self) -> int:
        return max(2, min(64, self._reported // BUCKETS_PER_REPORTED_FLOW))

    def __enter__(self) -> ReferenceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            self.result.name = ""
            return
        try:
            with self._file:
                if kind is None:
                    self._rows.finish(self._file, self._refs_written)
        except BaseException:
            kind = OSError
            raise
        finally:
            if kind is not None:
                self._path.unlink(missing_ok=True)
        result = self.result
        costs = self._bucket_costs.items()
        result.bucket_costs = dict(heapq.nlargest(self._reported, costs, key=lambda item: item[1]))
        result.heavy_flow_costs = _heaviest(result.heavy_flow_costs, self._most_flows())


class ReferenceFiles:
    """The files of references that a task reads, the last of them kept open."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}  # descriptors

    def read(self, path: Path, position: int, size: int) -> bytes:
        """Read exactly `size` bytes at a position of a file.

        Raises:
            PolymuxError: The file is shorter than that.
        """
        fd = self._open.get(path)
        if fd is None:
            if len(self._open) >= MAX_OPEN_REFERENCE_FILES:
                self.close()
            fd = self._open[path] = os.open(path, os.O_RDONLY)
        refs = os.pread(fd, size, position)
        if len(refs) != size:
            raise PolymuxError(f"{path}: is shorter than it was when it was written")
        return refs

    def close(self) -> None:
        """Close the files; they are opened again when they are read."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        self.close()


class ReferenceLocation:
    """A row without its references, and the position of these in a file."""

    __slots__ = ("row", "path", "size", "_start", "_files")

    def __init__(
        self, row: FlowRefs, path: Path, start: int, size: int, files: ReferenceFiles
    ) -> None:
        self.row = row
        self.path = path
        self.size = size
        self._start = start
        self._files = files

    def read(self, start: int, size: int) -> bytes:
        """Read `size` bytes of the row's references, from `start` bytes behind the first."""
        return self._files.read(self.path, self._start + start, size)

    def loaded_row(self) -> FlowRefs:
        """Return the row with its references."""
        row = self.row
        refs = self.read(0, self.size)
        return FlowRefs(
            row.flow, row.direction, row.file, row.start, row.first_at, row.last_at, refs,
            row.hints, None, 0, row.recording, row.file_number,
        )  # fmt: skip

    def lazy_row(self) -> FlowRefs:
        """Return the row with a function that reads its references as they are needed."""
        return self.row._replace(stored=self.read, records=self.size // REF_BYTES)


class HeldLocation(ReferenceLocation):
    """A row some of whose references were removed; the others are in memory."""

    __slots__ = ("_refs",)

    def __init__(self, row: FlowRefs, refs: bytes) -> None:
        super().__init__(row, Path(), 0, len(refs), ReferenceFiles())
        self._refs = refs

    def read(self, start: int, size: int) -> bytes:
        return self._refs[start : start + size]


class StoredFlow:
    """A flow whose references are still in their files.

    `stored_bytes` are those of its references, `held_bytes` the estimated memory that an analysis
    of the flow needs for them.
    """

    __slots__ = ("locations", "stored_bytes", "held_bytes")

    def __init__(self, locations: list[ReferenceLocation]) -> None:
        self.locations = locations
        stored = 0
        for location in locations:
            stored += location.size
        self.stored_bytes = self.held_bytes = stored
        if stored > MAX_EAGER_REF_BYTES:
            self.held_bytes = min(
                MAX_EAGER_REF_BYTES + stored // REF_BYTES_PER_ORDER_BYTE, MAX_HELD_REF_BYTES
            )

    @property
    def is_huge(self) -> bool:
        """Whether its references are read as they are needed."""
        return self.stored_bytes > MAX_EAGER_REF_BYTES

    def rows(self) -> list[FlowRefs]:
        """Return its rows, with references that are read now or, if there are many, later."""
        if self.is_huge:
            return [location.lazy_row() for location in self.locations]
        return [location.loaded_row() for location in self.locations]


class TempSpool:
    """Unnamed temporary files for the analysis of a huge flow.

    `open` creates one; all are removed when the context ends.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def open(self) -> BinaryIO:
        return self._stack.enter_context(tempfile.TemporaryFile(prefix="polymux-"))

    def __enter__(self) -> TempSpool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class TakenFlows:
    """The flows of each index file that a task has taken, in a file beside those.

    Layout, little-endian: where the flows of each index file begin and the last ones end, 8 bytes
    each; the flows, each behind its size in 2 bytes.
    """

    def __init__(self, files: int) -> None:
        self._flows = [bytearray() for _ in range(files)]

    def add(self, number: int, flow: bytes) -> None:
        """Add a flow that has rows in the index file of this number."""
        self._flows[number] += len(flow).to_bytes(2, "little") + flow

    def write(self, staging: str) -> str:
        """Write the file, and return its name."""
        name = uuid.uuid4().hex
        sizes = (len(flows) for flows in self._flows)
        starts = array("q", itertools.accumulate(sizes, initial=8 * (len(self._flows) + 1)))
        with open(Path(staging, INDEX_FOLDER, name + TAKEN_SUFFIX), "wb") as file:
            file.write(starts.tobytes())
            file.writelines(self._flows)
        return name

    @staticmethod
    def read(staging: str, names: Sequence[str], number: int) -> frozenset[bytes]:
        """Return the flows of the index file of this number in the files of these names."""
        taken: list[bytes] = []
        for name in names:
            path = str(Path(staging, INDEX_FOLDER, name + TAKEN_SUFFIX))
            try:
                fd = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                raise _not_shared(path) from None
            try:
                bounds = os.pread(fd, 16, 8 * number)
                start, end = (int.from_bytes(bounds[at : at + 8], "little") for at in (0, 8))
                flows = os.pread(fd, end - start, start)
            finally:
                os.close(fd)
            if len(bounds) != 16 or len(flows) != end - start:
                raise PolymuxError(f"{path}: is not complete")
            position = 0
            while position < len(flows):
                begin = position + 2
                position = begin + int.from_bytes(flows[position:begin], "little")
                taken.append(flows[begin:position])
        return frozenset(taken)


class ReferenceReader:
    """Reads the flows of one analyze task from the files of all index tasks.

    The rows stay packed, about 200 bytes for each flow, until it is their turn. `identities` and
    `copies` are those of the captures that the task reads, by path. `names` are those of all index
    files; for a selection of one file, those of what other tasks have taken.

    Raises:
        PolymuxError: A file is missing, because the workers do not share a file system.
        LostInput: A capture changed while it was being indexed.
    """

    def __init__(self, staging: str, names: Sequence[str], selection: FlowSelection) -> None:
        self._folder = Path(staging, INDEX_FOLDER)
        self.identities: dict[str, FileIdentity] = {}
        self.copies: dict[str, str] = {}
        self._parts: list[FilePart] = []
        self._paths: list[Path] = []
        self._files = ReferenceFiles()
        # By row: its part, its position in that, and the next row of the same flow (-1: none).
        self._part_of = array("i")
        self._position_of = array("q")
        self._next_row = array("q")
        self.taken: TakenFlows | None = None
        """The flows of the task, if it has left others."""
        self.left_packets = 0
        """Packets of the flows that it has left."""
        first_rows: dict[bytes, int] = {}
        first_at = array("q")
        excluded: frozenset[bytes] = frozenset()
        files = names
        if selection.file:
            files, excluded = [selection.file], TakenFlows.read(staging, names, selection.number)
        numbers = array("i")  # of the files that parts are of
        for number, name in enumerate(files):
            if self._add_file(name, selection, excluded, first_rows, first_at):
                numbers.append(number)
        if selection.leaves_local:
            self._leave_local_flows(selection, first_rows, TakenFlows(len(files)), numbers)
        # By time, then by flow; without a tuple for each of perhaps 300,000 flows.
        by_flow = [first_rows[flow] for flow in sorted(first_rows)]
        first_rows.clear()
        self._first_rows = array("q", sorted(by_flow, key=first_at.__getitem__))

    def __len__(self) -> int:
        return len(self._first_rows)

    def release(self) -> None:
        """Forget the rows, once the flows have been analyzed; their number stays."""
        self._parts.clear()
        for rows in (self._part_of, self._position_of, self._next_row):
            del rows[:]

    def flows(self) -> list[list[FlowRefs]]:
        """Return the rows of each flow without references, in the order of `__iter__`."""
        return [[location.row for location in flow.locations] for flow in self]

    def __iter__(self) -> Iterator[StoredFlow]:
        """Yield the flows by the time of their first packet."""
        for first in self._first_rows:
            yield StoredFlow([self._location(row) for row in self._rows_from(first)])

    def _add_file(
        self,
        name: str,
        selection: FlowSelection,
        excluded: frozenset[bytes],
        first_rows: dict[bytes, int],
        first_at: array[int],
    ) -> bool:
        """Add the rows of the task's flows. Return whether the file has any of its buckets."""
        path = self._folder / (name + INDEX_SUFFIX)
        try:
            part = read_part(str(path), selection.buckets)
        except FileNotFoundError:
            raise _not_shared(str(path)) from None
        if not part.rows:
            return False
        for entry in part.captures:
            self._add_capture(entry)
        self.copies.update((file, str(self._folder / copy)) for file, copy in part.copies.items())
        number = len(self._parts)
        self._parts.append(part)
        self._paths.append(path)
        for position, flow, at in part.positions():
            if not selection.accepts(flow) or flow in excluded:
                continue
            row = len(self._next_row)
            first = first_rows.setdefault(flow, row)
            self._part_of.append(number)
            self._position_of.append(position)
            first_at.append(at)
            if first == row:
                self._next_row.append(-1)
            else:  # behind the first row: the order of a flow's rows does not matter
                self._next_row.append(self._next_row[first])
                self._next_row[first] = row
                first_at[first] = min(first_at[first], at)
        return True

    def _leave_local_flows(
        self,
        selection: FlowSelection,
        first_rows: dict[bytes, int],
        taken: TakenFlows,
        numbers: array[int],
    ) -> None:
        """Leave the flows that lie in one file, unless they are few, and note the others."""
        local: list[bytes] = []
        packets = local_packets = 0
        for flow, first in first_rows.items():
            rows = list(self._rows_from(first))
            size = sum(self._packets(row) for row in rows)
            packets += size
            if len({self._part_of[row] for row in rows}) == 1:
                local.append(flow)
                local_packets += size
        if not selection.only_flows and local_packets * MIN_LOCAL_SHARE >= packets:
            self.left_packets = local_packets
            for flow in local:
                del first_rows[flow]
        for flow, first in first_rows.items():
            for part in {self._part_of[row] for row in self._rows_from(first)}:
                taken.add(numbers[part], flow)
        self.taken = taken

    def _rows_from(self, row: int) -> Iterator[int]:
        while row >= 0:
            yield row
            row = self._next_row[row]

    def _packets(self, row: int) -> int:
        return self._parts[self._part_of[row]].packets(self._position_of[row])

    def _add_capture(self, entry: CaptureEntry) -> None:
        if not entry.identity:
            return
        found = FileIdentity.parse(entry.identity)
        known = self.identities.get(entry.path, found)
        same_size = known.size == found.size
        if (same_size and known.samples != found.samples) or (known != found and not found.samples):
            name = without_credentials(entry.path)
            raise LostInput(f"{name}: has changed while it was indexed; analyze it again")
        # A capture that is still being written: the index saw at least the smaller one.
        self.identities[entry.path] = min(known, found, key=lambda identity: identity.size)

    def _location(self, row: int) -> ReferenceLocation:
        number, position = self._part_of[row], self._position_of[row]
        found, start, size = self._parts[number].row(position)
        return ReferenceLocation(found, self._paths[number], start, size, self._files)


def _not_shared(path: str) -> PolymuxError:
    return PolymuxError(
        f"{path}: another worker wrote it, but it is not here: --out must be on a file system that "
        "the driver and all workers share"
    )


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
            first_at, last_at = packet_time(refs, 0), packet_time(refs, len(refs) - REF_BYTES)
            yield row._replace(start=start, first_at=first_at, last_at=last_at, refs=refs)
        begin = end


def packet_offset(refs: bytes, position: int) -> int:
    """Return the file offset of the packet whose reference is at `position`.

    The layout of a reference is in `capture.packets.packet_refs`.
    """
    return int.from_bytes(refs[position : position + 8], "little") >> OFFSET_SHIFT


def packet_time(refs: bytes, position: int) -> int:
    """Return the timestamp of the same packet, in nanoseconds."""
    return int.from_bytes(refs[position + 8 : position + 16], "little", signed=True)
