"""Indexing: from a capture file, or a range of it, to rows of packet references.

The rows are plain data that can be sent to another process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
from polymux.capture.packets.flow_filter import FlowFilter
from polymux.capture.packets.packet_refs import MAX_FILE_OFFSET, REF_BYTES
from polymux.capture.pcapng.interfaces import Interface
from polymux.capture.pcapng.scanner import PCAP, PCAPNG, UNKNOWN_FORMAT, Scanner
from polymux.core.errors import CaptureError

_unpack_timestamp = struct.Struct("<q").unpack_from
EMIT_PACKETS = 1 << 18  # packets after which `index_range` emits rows
_FORMAT_NAMES = {PCAP: "pcap", PCAPNG: "pcapng"}
MAGICS = (
    b"\x0a\x0d\x0d\x0a",
    b"\xa1\xb2\xc3\xd4",
    b"\xd4\xc3\xb2\xa1",
    b"\xa1\xb2\x3c\x4d",
    b"\x4d\x3c\xb2\xa1",
)


@dataclass(frozen=True, slots=True)
class FileRange:
    """A part of a capture between two block boundaries, and the state of the file before it.

    Plain data: it can be pickled or written as JSON. An `end` of -1 means the end of the file.
    Each of `interfaces` is (link type, snap length, if_tsresol, if_tsoffset, hint).
    """

    start: int = 0
    end: int = -1
    file_format: int = UNKNOWN_FORMAT
    big_endian: bool = False
    nanosecond_times: bool = False
    section_hint: str = ""
    interfaces: tuple[tuple[int, int, int, int, str], ...] = ()


class FlowRefs(NamedTuple):
    """The references of one direction of one flow in one range of a file: a row of the shuffle.

    Group rows by `flow`; `sessions_of` takes all rows of one flow in any order. `flow` is the
    36-byte key (see `FlowTable.key`), `direction` 0 if the first endpoint sent, `start` the file
    offset of the range, `first_at` and `last_at` the timestamps of the first and last packet,
    `refs` records of 32 bytes (see `packet_refs`), and `hints` the comments that references name
    by number. The references of a huge flow may be stored elsewhere: then `refs` is empty,
    `stored(offset, size)` reads bytes of them, and `records` is their number.
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
        offset = failure.offset if failure.offset >= 0 else None
        return FileIndex(
            FileSummary(path, None, UNREADABLE, error=str(failure), error_offset=offset)
        )
    finally:
        if source is None and opened is not None:
            opened.close()


def scanner_for(span: FileRange, limits: CaptureLimits) -> Scanner:
    """A scanner for the bytes from the start of `span` on."""
    scanner = Scanner(
        limits.max_block_bytes, limits.max_packet_bytes, limits.max_interfaces, limits.max_flows
    )
    scanner.file_format = span.file_format
    scanner.big_endian = span.big_endian
    scanner.nanosecond_times = span.nanosecond_times
    scanner.section_hint = span.section_hint
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
        held = len(data)
        data = b""  # freed before the next is read, which then reuses memory in the caches
        yield offset
        if read == 0 and scanner.bytes_needed > held and (span.end >= 0 or held < size):
            return


def _index(
    source: Source,
    span: FileRange,
    limits: CaptureLimits,
    wanted: FlowFilter,
    verify: bool,
    emit: Emit | None,
) -> FileIndex:
    scanner = scanner_for(span, limits)
    scanner.table.verify_checksums = verify
    reached = begun = span.start
    emitted = 0  # packets
    stopped: CaptureError | None = None
    try:
        for offset in scan_windows(source, scanner, span, limits):
            reached = offset
            if emit is not None and scanner.table.tcp_packets() >= EMIT_PACKETS:
                emitted += int(scanner.table.tcp_packets())
                emit(list(flow_rows(source.path, begun, scanner, wanted)))
                begun = reached
    except CaptureError as failure:
        stopped = failure
    left = b""
    if stopped is None and not scanner.aborted:
        left = source.window(reached, scanner.bytes_needed)
        if span.end >= 0:
            left = left[: span.end - reached]
    summary = summary_of(source, scanner, span, reached, left, stopped, emitted)
    resume = None
    if not scanner.aborted and stopped is None and scanner.file_format != UNKNOWN_FORMAT:
        resume = range_at(scanner, reached, -1)
    return FileIndex(summary, list(flow_rows(source.path, begun, scanner, wanted)), resume)


class SourceInfo(Protocol):
    """What a summary needs of a `Source`."""

    @property
    def path(self) -> str: ...

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
        file=source.path,
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
            return UNREADABLE, "not a capture: neither pcapng nor pcap", 0
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
    hints = used = tuple(scanner.hints)
    for number in range(flows.count):
        flow = flows.key(number)
        if not wanted.accepts(flow):
            continue
        for direction in (0, 1):
            refs = packed[number * 2 + direction]
            if not refs:
                continue
            if len(hints) > 2:
                numbers = set(refs[27::REF_BYTES])
                used = tuple(text if n in numbers else "" for n, text in enumerate(hints))
            first_at, last_at = (
                _unpack_timestamp(refs, 8)[0],
                _unpack_timestamp(refs, len(refs) - REF_BYTES + 8)[0],
            )
            yield FlowRefs(flow, direction, path, start, first_at, last_at, refs, used)
