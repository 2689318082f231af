"""Dividing a capture into ranges that can be indexed in parallel.

Block boundaries can only be found by following the blocks from the start: payload may itself
contain captures, so searching for a block could find a false one. The boundaries can be stored
beside the capture in `FILE.idx`, JSON with a mark every 16 MiB. The index is used only while the
file is at least as long as it says and its first and last bytes match.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, replace

from polymux.capture.io.atomic_write import DEFAULT_FILE_MODE, write_atomically
from polymux.capture.io.paths import INDEX_SUFFIX, AnyPath, one_path
from polymux.capture.io.sources import CompressedSource, PlainSource, Source, open_source
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.indexer import FileRange, range_at, scan_windows, scanner_for
from polymux.capture.pcapng.block_types import MAGICS
from polymux.capture.pcapng.scanner import MAX_HINT_BYTES
from polymux.core.errors import CaptureError

TARGET_RANGE_BYTES = 256 << 20
MARK_INTERVAL_BYTES = 16 << 20
_INDEX_VERSION = 3
_FINGERPRINT_BYTES = 4096
_MAX_INDEX_BYTES = 256 << 20
# Bounds of the four numbers of an interface in a capture.
_INTERFACE_BOUNDS = ((0, 0x0FFFFFFF), (0, 0xFFFFFFFF), (0, 255), (-(1 << 63), (1 << 63) - 1))


def plan_ranges(
    path: AnyPath,
    *,
    target: int = TARGET_RANGE_BYTES,
    limits: CaptureLimits | None = None,
    source: Source | None = None,
) -> list[FileRange]:
    """Divide a file into ranges of about `target` bytes; uses `FILE.idx` if it matches the file.

    A compressed file, a pipe, and a file that cannot be read are one range: indexing it reports
    the error.

    Args:
        path: The capture.
        target: Bytes of a range, 256 MiB by default.
        limits: By default `CaptureLimits()`.
        source: The capture, if it is open already; it is not closed.
    """
    path = one_path(path)
    limits = limits or CaptureLimits()
    if not os.path.isfile(path):
        return [FileRange()]
    try:
        opened = source or open_source(path, limits)
    except CaptureError:
        return [FileRange()]
    try:
        if isinstance(opened, CompressedSource) or _size(opened) <= target:
            return [FileRange()]
        marks = _read_marks(path, opened, limits) or [FileRange()]
        return _merge_marks(
            _scan_marks(opened, marks, min(MARK_INTERVAL_BYTES, target), limits), target
        )
    except CaptureError:
        return [FileRange()]
    finally:
        if source is None:
            opened.close()


def write_index(
    path: AnyPath, *, limits: CaptureLimits | None = None, marks: Sequence[int] | None = None
) -> str:
    """Scan a capture and write `FILE.idx` beside it, atomically. Returns the name of the index.

    Args:
        path: The capture: a plain file.
        limits: By default `CaptureLimits()`.
        marks: Block boundaries known to the writer of the file, which must have one section and
            one interface. The file is then not scanned.

    Raises:
        CaptureError: The file is not a plain capture, or the index cannot be written.
    """
    path = one_path(path)
    limits = limits or CaptureLimits()
    source = open_source(path, limits)
    try:
        if not isinstance(source, PlainSource) or not os.path.isfile(path):
            raise CaptureError("only plain files can have an index beside them", path)
        if source.window(0, 4) not in MAGICS:
            raise CaptureError("not a capture: neither pcapng nor pcap", path, 0)
        if marks is None:
            ranges = _scan_marks(source, [FileRange()], MARK_INTERVAL_BYTES, limits)
        else:
            ranges = _ranges_between(source, marks, limits)
        written = {
            "polymux-index": _INDEX_VERSION,
            "bytes": source.size,
            "proof": _fingerprint(source, source.size),
            "marks": [asdict(span) for span in ranges],
        }
    finally:
        source.close()
    name = path + INDEX_SUFFIX
    try:
        # As readable as the capture: it holds comments and places of its packets.
        mode = stat.S_IMODE(os.stat(path).st_mode) & DEFAULT_FILE_MODE
        write_atomically(name, json.dumps(written).encode(), mode=mode)
    except OSError as failure:
        raise CaptureError(f"cannot be written: {failure.strerror}", name) from None
    return name


def _size(source: Source) -> int:
    return source.size if isinstance(source, PlainSource) else -1


def _scan_marks(
    source: Source, marks: Sequence[FileRange], every: int, limits: CaptureLimits
) -> list[FileRange]:
    """Marks about `every` bytes apart: those given, then from the last one on to the end."""
    done = list(marks[:-1])
    start = replace(marks[-1], end=-1)
    scanner = scanner_for(start, limits)
    scanner.count_only = True
    for offset in scan_windows(source, scanner, start, limits):
        if offset - start.start >= every and not scanner.aborted:
            done.append(replace(start, end=offset))
            start = range_at(scanner, offset, -1)
    # The last range has an open end, so that reading it reports errors in the tail.
    return [*done, start]


def _ranges_between(
    source: Source, offsets: Sequence[int], limits: CaptureLimits
) -> list[FileRange]:
    """The ranges between known boundaries; the start of the file has the interfaces of each."""
    scanner = scanner_for(FileRange(), limits)
    scanner.count_only = True
    scanner.scan(source.window(0, limits.read_window_bytes), 0)
    ends = [*offsets, -1]
    return [
        FileRange(end=ends[0]),
        *(range_at(scanner, start, end) for start, end in itertools.pairwise(ends)),
    ]


def _merge_marks(marks: Sequence[FileRange], target: int) -> list[FileRange]:
    joined = [marks[0]]
    for mark in marks[1:]:
        if mark.start - joined[-1].start >= target:
            joined.append(mark)
        else:
            joined[-1] = replace(joined[-1], end=mark.end)
    return joined


def _fingerprint(source: PlainSource, size: int) -> str:
    """A digest of the first and last bytes, by which an index is matched to its file."""
    digest = hashlib.sha256(source.window(0, min(_FINGERPRINT_BYTES, size)))
    digest.update(source.window(max(size - _FINGERPRINT_BYTES, 0), min(_FINGERPRINT_BYTES, size)))
    return digest.hexdigest()


def _read_marks(path: str, source: Source, limits: CaptureLimits) -> list[FileRange] | None:
    """The marks of `FILE.idx`; None if there is no index or it does not match the file."""
    name = path + INDEX_SUFFIX
    try:
        if not isinstance(source, PlainSource) or os.path.getsize(name) > _MAX_INDEX_BYTES:
            return None
        with open(name, encoding="utf-8") as file:
            written = json.load(file)
        size = written["bytes"]
        if written["polymux-index"] != _INDEX_VERSION or not _within(size, 0, source.size):
            return None
        if written["proof"] != _fingerprint(source, size):
            return None
        marks = [_parse_mark(mark, limits) for mark in written["marks"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    linked = all(a.start <= a.end == b.start <= size for a, b in itertools.pairwise(marks))
    return marks if marks and marks[0].start == 0 and linked and marks[-1].end == -1 else None


def _parse_mark(mark: dict[str, object], limits: CaptureLimits) -> FileRange:
    """One mark. Raises ValueError if scanning a capture could not have written it."""
    interfaces = mark.pop("interfaces")
    if not isinstance(interfaces, list) or len(interfaces) > limits.max_interfaces:
        raise ValueError("interfaces")
    rows = tuple(_parse_interface(*fields) for fields in interfaces)
    span = FileRange(**mark, interfaces=rows)  # type: ignore[arg-type]  # checked just below
    numbers = (span.start, span.end, span.file_format)
    if not all(type(n) is int for n in numbers) or not 0 <= span.file_format <= 2:
        raise ValueError("range")
    if type(span.big_endian) is not bool or type(span.nanosecond_times) is not bool:
        raise ValueError("range")
    if not _is_hint(span.section_hint) or not _is_hint(span.sensor_hint):
        raise ValueError("range")
    if span.file_format == 1 and not rows:
        raise ValueError("range")
    return span


def _parse_interface(
    link_type: int, snap_length: int, resolution: int, offset: int, hint: str
) -> tuple[int, int, int, int, str]:
    numbers = (link_type, snap_length, resolution, offset)
    fit = all(_within(n, *bounds) for n, bounds in zip(numbers, _INTERFACE_BOUNDS, strict=True))
    if not fit or not _is_hint(hint):
        raise ValueError("interface")
    return link_type, snap_length, resolution, offset, hint


def _within(number: object, minimum: int, maximum: int) -> bool:
    return type(number) is int and minimum <= number <= maximum


def _is_hint(text: object) -> bool:
    return type(text) is str and len(text) <= MAX_HINT_BYTES
