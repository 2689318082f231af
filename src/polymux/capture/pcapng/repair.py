"""Repairing truncated or damaged captures, and publishing recordings of a killed writer."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from polymux.capture.io.atomic_write import PART_SUFFIX, open_locked
from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.io.sources import (
    COPY_BYTES,
    PlainSource,
    Source,
    cannot_be_opened,
    open_source,
)
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.indexer import FileRange, scan_windows, scanner_for
from polymux.capture.pcapng.block_types import SECTION
from polymux.capture.pcapng.new_file import new_capture, publish_capture
from polymux.capture.pcapng.scanner import PCAPNG, Scanner, u32
from polymux.core.errors import CaptureError

# Block types that may follow a damaged region: those of the standard that are in use.
_KNOWN_BLOCKS = frozenset((1, 2, 3, 4, 5, 6, 9, 10, SECTION))
# After a damaged region the next is often near, so windows start small and grow.
_FIRST_WINDOW_BYTES = 512
_WINDOW_GROWTH = 8
_MIN_BLOCK_BYTES = 12


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair kept and what it dropped."""

    packets: int
    bytes_kept: int
    bytes_dropped: int
    resumed: int
    """How often reading resumed after a damaged region."""


def repair(source: AnyPath, target: AnyPath, *, limits: CaptureLimits | None = None) -> Repair:
    """Copy every complete block of `source` to a new file `target`; the source is not changed.

    In a plain pcapng file, reading resumes after a damaged region at the next two blocks that
    follow each other; in other files it ends at the damage. A compressed capture is written
    uncompressed.

    Args:
        source: The damaged capture.
        target: The file to write, readable by its owner only; must not exist.
        limits: By default `CaptureLimits()`.

    Returns:
        What was kept and what was dropped.

    Raises:
        CaptureError: `source` is not a capture or cannot be read, or `target` exists or cannot be
            written.
    """
    source, target = one_path(source), one_path(target)
    limits = limits or CaptureLimits()
    with contextlib.ExitStack() as stack:
        # One to scan and one to copy: going back in a compressed file means starting over.
        scanned, copied = (stack.enter_context(_opened(source, limits)) for _ in range(2))
        fd = stack.enter_context(new_capture(target))
        return _copy(scanned, copied, fd, limits)


def recover(part: AnyPath, *, limits: CaptureLimits | None = None) -> str:
    """Publish a recording left as `NAME.part`, without the incomplete block at its end.

    The file is locked first, so a recorder that still writes it, or dies meanwhile, loses nothing.
    It can be repeated after an interruption.

    Args:
        part: The file, `NAME.part`.
        limits: By default `CaptureLimits()`.

    Returns:
        NAME.

    Raises:
        CaptureError: The file is still being written, NAME exists (it is not replaced), or more
            than the tail is damaged.
    """
    part = one_path(part)
    limits = limits or CaptureLimits()
    name = part.removesuffix(PART_SUFFIX)
    if name == part:
        raise CaptureError(f"is not a recording left behind: those end in {PART_SUFFIX}", part)
    fd = _open_left_behind(part)
    try:
        recover_locked(part, fd, limits)
    finally:
        os.close(fd)
    return name


def recover_locked(part: str, fd: int, limits: CaptureLimits | None = None) -> None:
    """Like `recover`, for a file that the caller has opened with `open_locked`."""
    name = part.removesuffix(PART_SUFFIX)
    limits = limits or CaptureLimits()
    try:
        if os.path.lexists(name):
            if not os.path.samestat(os.lstat(name), os.fstat(fd)):
                raise CaptureError("exists already; move it away first", name)
            os.unlink(part)  # its writer was killed after it had published the file
            return
        with _opened(part, limits) as source:
            scanner = scanner_for(FileRange(), limits)
            scanner.count_only = True
            reached = max(scan_windows(source, scanner, FileRange(), limits), default=0)
            if scanner.aborted or reached == 0:
                text = scanner.abort_reason or "has no complete block"
                raise CaptureError(f"{text}; repair may save the rest", part, reached)
        os.ftruncate(fd, reached)
        os.fsync(fd)
        publish_capture(part, name)
    except OSError as failure:
        raise CaptureError(f"cannot be recovered: {failure.strerror}", part) from None


def _open_left_behind(part: str) -> int:
    """Open and lock a recording. Returns its descriptor."""
    try:
        return open_locked(part)
    except BlockingIOError:
        raise CaptureError("is still being written", part) from None
    except OSError as failure:
        if failure.errno == errno.ELOOP:
            raise CaptureError("is a symbolic link; name the file itself", part) from None
        raise cannot_be_opened(part, failure) from None


@contextlib.contextmanager
def _opened(path: str, limits: CaptureLimits) -> Iterator[Source]:
    source = open_source(path, limits)
    try:
        yield source
    finally:
        source.close()


def _copy(scanned: Source, copied: Source, out: int, limits: CaptureLimits) -> Repair:
    scanner = scanner_for(FileRange(), limits)
    scanner.count_only = True
    plain = scanned if isinstance(scanned, PlainSource) else None
    growing = _growing_windows(limits)
    start = size = dropped = resumed = 0
    while True:
        reached = start
        damaged = False
        for offset in _scan(scanned, scanner, start, growing):
            size += _copy_bytes(copied, out, reached, offset)
            reached = offset
            if (
                plain is not None
                and scanner.file_format == PCAPNG
                and scanner.bytes_needed > _MIN_BLOCK_BYTES
            ):
                # Before reading a large block, check the length at its end by itself.
                end = reached + scanner.bytes_needed
                damaged = end <= plain.size and not _has_length_at(
                    plain, end - 4, scanner.bytes_needed
                )
                if damaged or end > plain.size:
                    break
        if reached == 0:
            raise CaptureError("not a capture: neither pcapng nor pcap", scanned.path, 0)
        following = -1
        # A tail longer than any packet is not a truncated block: its length is damaged.
        damaged = (
            damaged or scanner.aborted or scanner.bytes_needed > limits.max_packet_bytes + 65536
        )
        if damaged and plain is not None and scanner.file_format == PCAPNG:
            following = _next_chain(plain, reached + 4, scanner.big_endian, limits.max_block_bytes)
        if following < 0:
            dropped += _copy_bytes(copied, -1, reached, sys.maxsize)
            return Repair(int(scanner.table.packets), size, dropped, resumed)
        dropped += following - reached
        resumed += 1
        scanner.aborted = False
        scanner.bytes_needed = _MIN_BLOCK_BYTES
        start = following


def _growing_windows(limits: CaptureLimits) -> list[CaptureLimits]:
    """The limits with windows of increasing size, up to their own."""
    growing = []
    window = _FIRST_WINDOW_BYTES
    while window < limits.read_window_bytes:
        growing.append(replace(limits, read_window_bytes=window))
        window *= _WINDOW_GROWTH
    return [*growing, limits]


def _scan(
    source: Source, scanner: Scanner, start: int, growing: list[CaptureLimits]
) -> Iterator[int]:
    """`scan_windows` with the window sizes of `growing`, the last one repeatedly."""
    offset = start
    for limits in growing[:-1]:
        reached = next(scan_windows(source, scanner, FileRange(start=offset), limits), -1)
        if reached < 0:
            return
        offset = reached
        yield offset
    yield from scan_windows(source, scanner, FileRange(start=offset), growing[-1])


def _has_length_at(source: PlainSource, offset: int, size: int) -> bool:
    """Whether the four bytes at `offset` are `size`, in either byte order."""
    tail = source.window(offset, 4)
    return len(tail) == 4 and size in (u32(tail, 0, True), u32(tail, 0, False))


def _copy_bytes(source: Source, out: int, start: int, end: int) -> int:
    """Copy the bytes from `start` to `end`, or only count them if `out` is -1; returns how many."""
    moved = 0
    while data := source.window(start + moved, min(COPY_BYTES, end - start - moved)):
        moved += len(data)
        while out >= 0 and data:
            data = data[os.write(out, data) :]
    return moved


def _next_chain(source: PlainSource, start: int, big: bool, limit: int) -> int:
    """Where two blocks follow each other again, or one ends the file; -1 if nowhere."""
    window = _FIRST_WINDOW_BYTES
    while len(data := source.window(start, window)) >= 8:
        for pos in range(0, len(data) - 7, 4):
            if u32(data, pos, big) in _KNOWN_BLOCKS:
                end = _end_of_block(source, start + pos, big, limit)
                if end == source.size or (end and _end_of_block(source, end, big, limit)):
                    return start + pos
        start += len(data) - 4 & -4
        window = min(window * _WINDOW_GROWTH, COPY_BYTES)
    return -1


def _end_of_block(source: PlainSource, start: int, big: bool, limit: int) -> int:
    """Where the block at `start` ends; 0 if there is no block."""
    head = source.window(start, 8)
    if len(head) < 8 or u32(head, 0, big) not in _KNOWN_BLOCKS:
        return 0
    size = u32(head, 4, big)
    if size < 12 or size % 4 or size > limit:
        return 0
    tail = source.window(start + size - 4, 4)
    return start + size if len(tail) == 4 and u32(tail, 0, big) == size else 0
