"""Indexing: from a capture file, or a range of it, to rows of packet references.

The rows are plain data that can be sent to another process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.io.sources import ENDS_EARLY, Source, open_source
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.file_summary import (
    DAMAGED,
    STOPPED_AT,
    TRUNCATED,
    UNREADABLE,
    WHOLE,
    FileSummary,
)
from polymux.capture.packets.flows import FlowFilter, flow_at_sensor
from polymux.capture.packets.packed_flows import PackedFlows
from polymux.capture.packets.packet_refs import MAX_FILE_OFFSET, REF_BYTES
from polymux.capture.pcapng.block_types import MAGICS, NOT_A_CAPTURE
from polymux.capture.pcapng.comments import read_recording
from polymux.capture.pcapng.scanner import PCAP, PCAPNG, UNKNOWN_FORMAT, Interface, Scanner
from polymux.core.errors import CaptureError
from polymux.core.urls import without_credentials

_unpack_timestamp = struct.Struct("<q").unpack_from
EMIT_PACKETS = 1 << 18  # packets after which `index_range` emits rows
_FORMAT_NAMES = {PCAP: "pcap", PCAPNG: "pcapng"}


@dataclass(frozen=True, slots=True)
class FileRange:
    """A part of a capture between two block boundaries, and the state of the file before it.

    Plain data: it can be pickled or written as JSON. An `end` of -1 means the end of the file.
    `section_hint` has the comments of the section that the range starts in, `sensor_hint` those of
    the first section of the file, which name its sensor; both are read if the range starts at 0.
    Each of `interfaces` is (link type, snap length, if_tsresol, if_tsoffset, hint).
    """

    start: int = 0
    end: int = -1
    file_format: int = UNKNOWN_FORMAT
    big_endian: bool = False
    nanosecond_times: bool = False
    section_hint: str = ""
    interfaces: tuple[tuple[int, int, int, int, str], ...] = ()
    sensor_hint: str = ""


class FlowRefs(NamedTuple):
    """The references of one direction of one flow in one range of a file: a row of the shuffle.

    Group rows by `flow`; `sessions_of` takes all rows of one flow in any order. `flow` is its key
    (see `FlowTable.key` and `flows`), `direction` 0 if the first endpoint sent, `start` the file
    offset of the range, `first_at` and `last_at` the timestamps of the first and last packet,
    `refs` records of 32 bytes (see `packet_refs`), and `hints` the comments that references name
    by number. `recording` and `file_number` are the place of the file in a rotated recording (see
    `comments`), "" and 0 if it names none. The references of a huge flow may be stored elsewhere:
    then `refs` is empty, `stored(offset, size)` reads bytes of them, and `records` is their number.
    """

    flow: bytes
    direction: int
    file: str
    start: int
    first_at: int
    last_at: int
    refs: bytes
    hints: tuple[str, ...] = ("",)
    stored: Callable[[int, int], bytes] | None = None
    records: int = 0
    recording: str = ""
    file_number: int = 0

    @property
    def packets(self) -> int:
        """How many packets the row refers to."""
        return self.records if self.stored is not None else len(self.refs) // REF_BYTES


Emit = Callable[[list[FlowRefs]], None]


@dataclass(slots=True)
class FileIndex:
    """The result of indexing a file, or a range of it."""

    summary: FileSummary
    rows: list[FlowRefs] = field(default_factory=list)
    secrets: list[bytes] = field(default_factory=list, repr=False)
    """TLS key logs from the secrets blocks of the file."""
    resume: FileRange | None = None
    """From where to read on when the file has grown; None if it cannot be read on."""


def index_file(
    path: AnyPath,
    *,
    limits: CaptureLimits | None = None,
    wanted: FlowFilter | None = None,
    source: Source | None = None,
    verify: bool = False,
) -> FileIndex:
    """Index a whole file. Problems with the file do not raise: its summary reports them.

    Args:
        path: The capture: pcapng or pcap, plain or compressed, or "-" for standard input.
        limits: By default `CaptureLimits()`.
        wanted: The flows to keep references of; by default all.
        source: The open file, which stays open; by default `path` is opened.
        verify: Leave out packets with a wrong IP or TCP checksum, and report them. Takes about as
            long as reading the file. Checksums left to the network card count as correct.
    """
    return index_range(
        path, FileRange(), limits=limits, wanted=wanted, source=source, verify=verify
    )


def index_range(
    path: AnyPath,
    span: FileRange,
    *,
    limits: CaptureLimits | None = None,
    wanted: FlowFilter | None = None,
    source: Source | None = None,
    verify: bool = False,
    emit: Emit | None = None,
) -> FileIndex:
    """Index one range of a file. The indexes of all ranges together equal that of the file.

    Args:
        path: The capture.
        span: The range, from `plan_ranges`.
        limits: As for `index_file`, like `wanted`, `source` and `verify`.
        emit: Called with the rows of every `EMIT_PACKETS` packets; the result then has only the
            last ones, and memory does not grow with the range.
    """
    path = one_path(path)
    limits = limits or CaptureLimits()
    opened = source
    try:
        opened = source or open_source(path, limits)
        return _index(opened, span, limits, wanted or FlowFilter(), verify, emit)
    except CaptureError as failure:
        return FileIndex(_unreadable(path, failure, wanted))
    finally:
        if source is None and opened is not None:
            opened.close()


@dataclass(slots=True)
class FlowIndex:
    """The result of indexing a whole file for a reader in this process."""

    summary: FileSummary
    rows: FlowRows | None = None
    """None if the file could not be opened."""
    secrets: list[bytes] = field(default_factory=list)
    """TLS key logs from its secrets blocks."""


def index_flows(
    path: AnyPath,
    *,
    limits: CaptureLimits | None = None,
    wanted: FlowFilter | None = None,
    source: Source | None = None,
    verify: bool = False,
) -> FlowIndex:
    """Index a whole file like `index_file`, in about a hundred bytes for each flow."""
    path = one_path(path)
    limits = limits or CaptureLimits()
    opened = source
    try:
        opened = source or open_source(path, limits)
        scanned = _scan(opened, FileRange(), limits, wanted or FlowFilter(), verify, None)
        rows = FlowRows(path, scanned.scanner, wanted or FlowFilter())
        return FlowIndex(scanned.summary, rows, scanned.scanner.secrets)
    except CaptureError as failure:
        return FlowIndex(_unreadable(path, failure, wanted))
    finally:
        if source is None and opened is not None:
            opened.close()


def _unreadable(path: str, failure: CaptureError, wanted: FlowFilter | None) -> FileSummary:
    offset = failure.offset if failure.offset >= 0 else None
    sensor = (wanted or FlowFilter()).sensors.sensor_of(path, "")
    name = without_credentials(path)
    return FileSummary(
        name, None, UNREADABLE, error=str(failure), error_offset=offset, sensor=sensor
    )


def scanner_for(span: FileRange, limits: CaptureLimits) -> Scanner:
    """A scanner for the bytes from the start of `span` on."""
    scanner = Scanner(
        limits.max_block_bytes, limits.max_packet_bytes, limits.max_interfaces, limits.max_flows
    )
    scanner.file_format = span.file_format
    scanner.big_endian = span.big_endian
    scanner.nanosecond_times = span.nanosecond_times
    scanner.section_hint = span.section_hint
    scanner.sensor_hint = span.sensor_hint
    scanner.secrets_room = limits.max_secrets_bytes
    for interface in span.interfaces:
        scanner.add_interface(Interface(*interface))
    return scanner


def range_at(scanner: Scanner, start: int, end: int) -> FileRange:
    """The range from `start`, the offset that `scanner` has reached, to `end`."""
    return FileRange(
        start,
        end,
        int(scanner.file_format),
        scanner.big_endian,
        scanner.nanosecond_times,
        scanner.section_hint,
        tuple(
            (i.link_type, i.snap_length, i.resolution, i.offset_seconds, i.hint)
            for i in scanner.interfaces
        ),
        scanner.sensor_hint,
    )


def scan_windows(
    source: Source, scanner: Scanner, span: FileRange, limits: CaptureLimits
) -> Iterator[int]:
    """Scan a range window by window; yields the offset reached after each.

    At the end either all bytes were scanned, or `scanner.aborted` is set, or an incomplete block
    is left: the file is truncated.

    Raises:
        CaptureError: The file cannot be read, or is longer than references can express.
    """
    offset = span.start
    while not scanner.aborted:
        size = max(limits.read_window_bytes, scanner.bytes_needed)
        if span.end >= 0:
            size = min(size, span.end - offset)
        data = source.window(offset, size) if size > 0 else b""
        if not data:
            return
        if offset + len(data) > MAX_FILE_OFFSET:
            raise CaptureError("captures over 8 TiB cannot be indexed", source.path, offset)
        read = scanner.scan(data, offset)
        offset += read
        window_bytes = len(data)
        data = b""  # freed before the next is read, which then reuses memory in the caches
        yield offset
        if (
            read == 0
            and scanner.bytes_needed > window_bytes
            and (span.end >= 0 or window_bytes < size)
        ):
            return


@dataclass(slots=True)
class _ScannedRange:
    """What is known after a range was scanned; `rows_start` is where the rows not emitted begin."""

    scanner: Scanner
    summary: FileSummary
    rows_start: int
    resume: FileRange | None


def _index(
    source: Source,
    span: FileRange,
    limits: CaptureLimits,
    wanted: FlowFilter,
    verify: bool,
    emit: Emit | None,
) -> FileIndex:
    scanned = _scan(source, span, limits, wanted, verify, emit)
    rows = list(flow_rows(source.path, scanned.rows_start, scanned.scanner, wanted))
    return FileIndex(scanned.summary, rows, scanned.scanner.secrets, scanned.resume)


def _scan(
    source: Source,
    span: FileRange,
    limits: CaptureLimits,
    wanted: FlowFilter,
    verify: bool,
    emit: Emit | None,
) -> _ScannedRange:
    scanner = scanner_for(span, limits)
    scanner.table.verify_checksums = verify
    reached = rows_start = span.start
    emitted = 0  # packets
    stopped: CaptureError | None = None
    try:
        for offset in scan_windows(source, scanner, span, limits):
            reached = offset
            if emit is not None and scanner.table.tcp_packets() >= EMIT_PACKETS:
                emitted += int(scanner.table.tcp_packets())
                emit(list(flow_rows(source.path, rows_start, scanner, wanted)))
                rows_start = reached
    except CaptureError as failure:
        stopped = failure
    left = b""
    if stopped is None and not scanner.aborted:
        left = source.window(reached, scanner.bytes_needed)
        if span.end >= 0:
            left = left[: span.end - reached]
    summary = summary_of(source, scanner, span, reached, left, stopped, emitted)
    sensor = wanted.sensors.sensor_of(source.path, scanner.sensor_hint)
    summary = replace(summary, sensor=sensor)
    resume = None
    if not scanner.aborted and stopped is None and scanner.file_format != UNKNOWN_FORMAT:
        resume = range_at(scanner, reached, -1)
    return _ScannedRange(scanner, summary, rows_start, resume)


class SourceInfo(Protocol):
    """What a summary needs of a `Source`."""

    @property
    def path(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def compression(self) -> str: ...

    @property
    def decompression_error(self) -> str: ...


def summary_of(
    source: SourceInfo,
    scanner: Scanner,
    span: FileRange,
    reached: int,
    left: bytes,
    stopped: CaptureError | None,
    emitted_packets: int,
) -> FileSummary:
    """The summary of a range that was read up to offset `reached`, with `left` unread.

    `stopped` is the error that ended reading; `emitted_packets` are TCP packets that the scanner's
    table no longer has.
    """
    table = scanner.table
    tcp_packets = emitted_packets + int(table.tcp_packets())
    status, error, offset = _read_status(source, scanner, span, reached, left, stopped)
    if error is None and table.flows.refused_packets > 0:
        error = (
            f"{table.flows.refused_packets} packets of flows beyond the limit "
            f"max_flows={table.flows.limit} were left out; "
            "raise it with CaptureLimits(max_flows=...)"
        )
    form = _FORMAT_NAMES.get(int(scanner.file_format))
    return FileSummary(
        file=source.name,
        format=f"{form}+{source.compression}" if form and source.compression else form,
        status=status,
        packets=int(table.packets),
        tcp_packets=tcp_packets,
        other_packets=int(table.packets) - tcp_packets,
        fragments=int(table.fragments),
        bytes=reached - span.start + len(left),
        error=error,
        error_offset=offset,
    )


def _read_status(
    source: SourceInfo,
    scanner: Scanner,
    span: FileRange,
    reached: int,
    left: bytes,
    stopped: CaptureError | None,
) -> tuple[str, str | None, int | None]:
    """Status, error and error offset of a summary; see `summary_of`."""
    if scanner.file_format == UNKNOWN_FORMAT and stopped is None and not source.decompression_error:
        if not left and not scanner.aborted:
            return UNREADABLE, "the file is empty", 0
        if scanner.aborted or left[:4] not in MAGICS:
            return UNREADABLE, NOT_A_CAPTURE, 0
    stop, at = "", -1
    if stopped is not None:
        stop, at = str(stopped), max(stopped.offset, 0)
    elif scanner.aborted:
        stop, at = scanner.abort_reason, int(scanner.abort_offset)
    elif left and span.end >= 0:
        stop, at = "the index beside the file does not match it; delete the index", reached
    elif source.decompression_error and source.decompression_error != ENDS_EARLY:
        stop, at = source.decompression_error, reached
    if stop:
        stop = f"{STOPPED_AT} {at}: {stop}"
    if scanner.error_count > 0:
        error = f"{scanner.first_error}; {stop}" if stop else scanner.first_error
        return DAMAGED, error, int(scanner.first_error_offset)
    if stop:
        return DAMAGED, stop, at
    if left or source.decompression_error:
        return TRUNCATED, source.decompression_error or "the file ends inside a block", reached
    return WHOLE, None, None


def flow_rows(path: str, start: int, scanner: Scanner, wanted: FlowFilter) -> Iterator[FlowRefs]:
    """Take the references out of the scanner's table, as rows of the wanted flows."""
    flows = scanner.table.flows
    packed = scanner.table.pack()
    sensor = wanted.sensors.sensor_of(path, scanner.sensor_hint)
    maker = RowMaker(path, start, scanner)
    for number in range(flows.count):
        flow = flow_at_sensor(flows.key(number), sensor)
        if not wanted.accepts(flow):
            continue
        for direction in (0, 1):
            refs = packed[number * 2 + direction]
            if refs:
                yield maker.row(flow, direction, refs)


class RowMaker:
    """Makes the rows of one range of a file."""

    def __init__(self, path: str, start: int, scanner: Scanner) -> None:
        self._path = path
        self._start = start
        self._hints = tuple(scanner.hints)
        # Of the first section: the same for every range of the file, and where the file begins.
        self._place = read_recording(scanner.sensor_hint)

    def row(self, flow: bytes, direction: int, refs: bytes) -> FlowRefs:
        used = self._hints
        if len(used) > 2:
            numbers = set(refs[27::REF_BYTES])
            used = tuple(text if n in numbers else "" for n, text in enumerate(used))
        first_at, last_at = (
            _unpack_timestamp(refs, 8)[0],
            _unpack_timestamp(refs, len(refs) - REF_BYTES + 8)[0],
        )
        recording, file_number = self._place
        return FlowRefs(
            flow,
            direction,
            self._path,
            self._start,
            first_at,
            last_at,
            refs,
            used,
            recording=recording,
            file_number=file_number,
        )


class FlowRows:
    """The rows of a whole file, each made when it is asked for.

    Args:
        path: The file.
        scanner: Has scanned it; its table must not be used afterwards.
        wanted: The flows to keep.
    """

    def __init__(self, path: str, scanner: Scanner, wanted: FlowFilter) -> None:
        self._maker = RowMaker(path, 0, scanner)
        self._wanted = wanted
        sensor = wanted.sensors.sensor_of(path, scanner.sensor_hint)
        self.packed = PackedFlows(scanner.table, flow_at_sensor(b"", sensor))

    def directions(self) -> Iterator[int]:
        """The direction indexes of the wanted flows that have packets, ascending."""
        packed = self.packed
        for number in range(packed.count()):
            if self._wanted.accepts(packed.key(number)):
                for direction in (2 * number, 2 * number + 1):
                    if packed.size(direction):
                        yield direction

    def row(self, direction: int) -> FlowRefs:
        """The row of a direction index."""
        key = self.packed.key(direction // 2)
        return self._maker.row(key, direction % 2, self.packed.refs(direction))
