"""Cutting one capture into ranges that can be indexed side by side.

Only walking the chain of blocks finds a place where a packet really starts: payload may hold
captures itself. The walk can be kept beside the capture as `FILE.idx`, JSON with a mark every
few megabytes; it is trusted only while the file's size and its ends still fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace

from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.io.sources import PackedSource, PlainSource, Source, open_source
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.indexer import MAGICS, Range, range_at, scan_windows, scanner_for
from polymux.capture.pcapng.scanner import HINT_OCTETS
from polymux.core.errors import CaptureError

TARGET = 256 << 20
MARK = 16 << 20
_VERSION = 1
_PROOF = 4096
_LARGEST_INDEX = 256 << 20
# What the four numbers of an interface can be in a capture.
_NUMBERS = ((0, 0x0FFFFFFF), (0, 0xFFFFFFFF), (0, 255), (-(1 << 63), (1 << 63) - 1))


def plan(
    path: AnyPath, *, target: int = TARGET, limits: CaptureLimits | None = None
) -> list[Range]:
    """Ranges of about `target` octets that together are the file; uses `FILE.idx` if it fits.

    Compressed files, pipes and files that cannot be read are one range: reading it says why.
    """
    path = one_path(path)
    limits = limits or CaptureLimits()
    if not os.path.isfile(path):
        return [Range()]
    try:
        source = open_source(path, limits)
    except CaptureError:
        return [Range()]
    try:
        if isinstance(source, PackedSource) or _size(source) <= target:
            return [Range()]
        marks = _read_marks(path, source, limits) or [Range()]
        return _join(_walk(source, marks, min(MARK, target), limits), target)
    except CaptureError:
        return [Range()]
    finally:
        source.close()


def write_index(
    path: AnyPath, *, limits: CaptureLimits | None = None, marks: Sequence[int] | None = None
) -> str:
    """Walk a capture and write `FILE.idx` beside it, whole or not at all; returns its name.

    `marks`: offsets between blocks, from the writer of a file with one section and one interface;
    the file is then not walked.
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
            ranges = _walk(source, [Range()], MARK, limits)
        else:
            ranges = _ranges_between(source, marks, limits)
        written = {
            "polymux-index": _VERSION,
            "bytes": source.size,
            "proof": _proof(source, source.size),
            "marks": [asdict(span) for span in ranges],
        }
    finally:
        source.close()
    name = f"{path}.idx"
    try:
        with open(f"{name}.part", "w", encoding="utf-8") as file:
            json.dump(written, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{name}.part", name)
    except OSError as failure:
        with contextlib.suppress(OSError):
            os.unlink(f"{name}.part")
        raise CaptureError(f"cannot be written: {failure.strerror}", name) from None
    return name


def _size(source: Source) -> int:
    return source.size if isinstance(source, PlainSource) else -1


def _walk(source: Source, marks: Sequence[Range], every: int, limits: CaptureLimits) -> list[Range]:
    """Marks about `every` octets apart: those given, and on from the last one to the end."""
    done = list(marks[:-1])
    start = replace(marks[-1], end=-1)
    scanner = scanner_for(start, limits)
    scanner.walk_only = True
    for offset in scan_windows(source, scanner, start, limits):
        if offset - start.start >= every and not scanner.broken:
            done.append(replace(start, end=offset))
            start = range_at(scanner, offset, -1)
    # The tail keeps its open end: whatever is wrong with it, its reader will find and say.
    return [*done, start]


def _ranges_between(source: Source, offsets: Sequence[int], limits: CaptureLimits) -> list[Range]:
    """The ranges that known offsets cut; the head of the file says what comes before each."""
    scanner = scanner_for(Range(), limits)
    scanner.walk_only = True
    scanner.scan(source.window(0, limits.window), 0)
    ends = [*offsets, -1]
    return [
        Range(end=ends[0]),
        *(range_at(scanner, start, end) for start, end in itertools.pairwise(ends)),
    ]


def _join(marks: Sequence[Range], target: int) -> list[Range]:
    joined = [marks[0]]
    for mark in marks[1:]:
        if mark.start - joined[-1].start >= target:
            joined.append(mark)
        else:
            joined[-1] = replace(joined[-1], end=mark.end)
    return joined


def _proof(source: PlainSource, size: int) -> str:
    """What shows that an index belongs to a file: its first and last octets."""
    digest = hashlib.sha256(source.window(0, min(_PROOF, size)))
    digest.update(source.window(max(size - _PROOF, 0), min(_PROOF, size)))
    return digest.hexdigest()


def _read_marks(path: str, source: Source, limits: CaptureLimits) -> list[Range] | None:
    """The marks of `FILE.idx`, or None if there are none or they do not fit the file."""
    name = f"{path}.idx"
    try:
        if not isinstance(source, PlainSource) or os.path.getsize(name) > _LARGEST_INDEX:
            return None
        with open(name, encoding="utf-8") as file:
            written = json.load(file)
        octets = written["bytes"]
        if written["polymux-index"] != _VERSION or not _within(octets, 0, source.size):
            return None
        if written["proof"] != _proof(source, octets):
            return None
        marks = [_range(mark, limits) for mark in written["marks"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    linked = all(a.start <= a.end == b.start <= octets for a, b in itertools.pairwise(marks))
    return marks if marks and marks[0].start == 0 and linked and marks[-1].end == -1 else None


def _range(mark: dict[str, object], limits: CaptureLimits) -> Range:
    """One mark; ValueError if no walk of a capture could have written it."""
    interfaces = mark.pop("interfaces")
    if not isinstance(interfaces, list) or len(interfaces) > limits.interfaces:
        raise ValueError("interfaces")
    rows = tuple(_interface(*each) for each in interfaces)
    span = Range(**mark, interfaces=rows)  # type: ignore[arg-type]  # checked just below
    numbers = (span.start, span.end, span.form)
    if not all(type(n) is int for n in numbers) or not 0 <= span.form <= 2:
        raise ValueError("range")
    if type(span.big) is not bool or type(span.nano) is not bool:
        raise ValueError("range")
    if not _is_hint(span.section_hint) or (span.form == 1 and not rows):
        raise ValueError("range")
    return span


def _interface(
    link: int, snap: int, resolution: int, offset: int, hint: str
) -> tuple[int, int, int, int, str]:
    numbers = (link, snap, resolution, offset)
    fit = all(_within(n, *bounds) for n, bounds in zip(numbers, _NUMBERS, strict=True))
    if not fit or not _is_hint(hint):
        raise ValueError("interface")
    return link, snap, resolution, offset, hint


def _within(number: object, least: int, most: int) -> bool:
    return type(number) is int and least <= number <= most


def _is_hint(text: object) -> bool:
    return type(text) is str and len(text) <= HINT_OCTETS
