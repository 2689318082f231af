"""Indexes of new captures that tasks have made, for the driver to read.

The driver decides which sessions have ended, from the packet references of new files. A backlog of
large files is indexed in the tasks of a micro-batch of its own, which write what they found to a
folder that the driver and all workers share; the driver takes it from there. It is only a cache: an
index that is missing or damaged, or of another version of the file, is made by the driver.

An index has the TLS secrets of its capture: only the user who follows may read it, and at most one
version of each capture is kept.

Layout of a file: the size of the header (8 bytes, little-endian), the header as JSON, and the
references of its rows behind each other.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from polymux.capture import CaptureLimits, FileIndex, FileRange, FileSummary, FlowFilter, FlowRefs
from polymux.capture.io.atomic_write import write_atomically
from polymux.capture.io.paths import PRIVATE_FILE
from polymux.capture.io.sources import FileIdentity, LostInput
from polymux.spark.batch.index_stage import IndexSpan, index_span

SUFFIX = ".index"
PRIVATE_FOLDER = 0o700
Indexed = tuple[FileIndex, FileIdentity | None]


class _Damaged(Exception):
    """A file is not a whole index."""


class IndexStore:
    """The indexes below `folder`, by the path, size and modification time of the capture."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def add(self, path: str, limits: CaptureLimits, flow_filter: FlowFilter) -> None:
        """Index a whole capture, instead of its other versions.

        Does nothing if the capture cannot be read, or the index not be written: the driver indexes
        it then, and finds out why.
        """
        try:
            before = os.stat(path)
            index, identity = index_span(IndexSpan(path, FileRange()), limits, flow_filter)
            self._folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
            os.chmod(self._folder, PRIVATE_FOLDER)  # it may have been there
            self.discard(path)
            target = self._file(path, before.st_size, before.st_mtime_ns)
            write_atomically(target, _pack(index, identity), sync=False, mode=PRIVATE_FILE)
        except (OSError, LostInput):
            return

    def has(self, path: str, size: int, modified_ns: int) -> bool:
        """Whether there is an index of this version of a capture."""
        return self._file(path, size, modified_ns).exists()

    def take(self, path: str, size: int, modified_ns: int) -> Indexed | None:
        """Return the index of this version of a capture; None if there is none that can be used.

        The indexes of all versions are removed.
        """
        try:
            return _unpack(self._file(path, size, modified_ns).read_bytes(), path)
        except (OSError, _Damaged):
            return None
        finally:
            self.discard(path)

    def discard(self, path: str) -> None:
        """Remove the indexes of all versions of a capture."""
        for file in self._folder.glob(f"{_digest(path)}-*{SUFFIX}"):
            with suppress(OSError):
                file.unlink()

    def _file(self, path: str, size: int, modified_ns: int) -> Path:
        return self._folder / f"{_digest(path)}-{size}-{modified_ns}{SUFFIX}"


def _digest(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def _pack(index: FileIndex, identity: FileIdentity | None) -> bytes:
    rows = [
        (row.flow.hex(), row.direction, row.start, row.first_at, row.last_at, len(row.refs),
         row.hints, row.recording, row.file_number)
        for row in index.rows
    ]  # fmt: skip
    header = {
        "summary": asdict(index.summary),
        "identity": "" if identity is None else str(identity),
        "resume": None if index.resume is None else asdict(index.resume),
        "secrets": [text.hex() for text in index.secrets],
        "rows": rows,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(row.refs for row in index.rows)])


def _unpack(data: bytes, path: str) -> Indexed:
    """Decode the result of `_pack`.

    Raises:
        _Damaged: It is something else, or a part of it.
    """
    try:
        return _decode(data, path)
    except (ValueError, TypeError, LookupError, AttributeError) as problem:
        raise _Damaged from problem


def _decode(data: bytes, path: str) -> Indexed:
    position = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:position])
    rows: list[FlowRefs] = []
    for flow, direction, start, first_at, last_at, size, hints, recording, number in header["rows"]:
        refs = data[position : position + size]
        position += size
        rows.append(
            FlowRefs(
                bytes.fromhex(flow), direction, path, start, first_at, last_at, refs, tuple(hints),
                recording=recording, file_number=number,
            )
        )  # fmt: skip
    if position != len(data):
        raise ValueError(f"the file has {len(data)} bytes, not {position}")
    resume = header["resume"]
    if resume is not None:
        resume = FileRange(
            **{**resume, "interfaces": tuple(tuple(each) for each in resume["interfaces"])}
        )
    index = FileIndex(
        FileSummary(**header["summary"]),
        rows,
        [bytes.fromhex(text) for text in header["secrets"]],
        resume,
    )
    return index, FileIdentity.parse(header["identity"]) if header["identity"] else None
