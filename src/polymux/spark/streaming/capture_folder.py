"""A growing folder of captures: what is new in it, indexed up to the last complete block.

Only published names are considered, not those of files that a recorder is still writing. A file
that is being copied is read up to its last complete block, and further when it has grown.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from polymux.capture import (
    CaptureLimits,
    FileIndex,
    FileRange,
    FileSummary,
    FlowFilter,
    FlowRefs,
    find_captures,
    index_range,
    merge_summaries,
)
from polymux.core.errors import PolymuxError
from polymux.spark.streaming.offset import FilePart, FolderOffset

_INCOMPLETE_STATUSES = ("truncated", "unreadable")


@dataclass(frozen=True, slots=True)
class NewData:
    """A new file, or a new part of one, that is ready to be read."""

    name: str
    modified_ms: int  # since the epoch
    end_offset: int  # in the file
    size: int  # bytes of captured data


class CaptureFolder:
    """Scans a directory, and caches the indexes of the files it has read.

    A file that has not changed for `session_timeout` seconds is assumed to be complete.

    Raises:
        PolymuxError: `path` is not a directory.
    """

    def __init__(
        self, path: str, flow_filter: FlowFilter, limits: CaptureLimits, session_timeout: float
    ) -> None:
        self.path = os.path.abspath(path)
        if not os.path.isdir(self.path):
            raise PolymuxError(f"{path}: no such directory; watching reads a directory that grows")
        self._flow_filter = flow_filter
        self._limits = limits
        self._session_timeout_ns = int(session_timeout * 1e9)
        self._indexes: dict[str, list[FileIndex]] = {}
        # Size and modification time of files in which no new complete block was found.
        self._unusable: dict[str, tuple[int, int]] = {}

    def absolute_path(self, name: str) -> str:
        return os.path.join(self.path, name)

    def file_names(self) -> list[str]:
        return [os.path.relpath(path, self.path) for path in find_captures([self.path])]

    def new_data(
        self, offset: FolderOffset, now_ns: int, max_bytes: int, only: frozenset[str] | None = None
    ) -> list[NewData]:
        """Return the new data since `offset`, by modification time.

        Args:
            offset: What has been read.
            now_ns: The current time in nanoseconds.
            max_bytes: Stop after about this many bytes, but not before one file.
            only: Consider only these names.
        """
        stats = []
        for name in self.file_names():
            if name in offset.forgotten or (only is not None and name not in only):
                continue
            try:
                stat = os.stat(self.absolute_path(name))
            except OSError:
                continue  # removed meanwhile
            parts = offset.files.get(name, ())
            if parts and parts[-1].end_offset >= stat.st_size:
                continue
            if self._unusable.get(name) == (stat.st_size, stat.st_mtime_ns):
                settled = now_ns - stat.st_mtime_ns >= self._session_timeout_ns
                if parts or not settled:
                    continue
            stats.append((stat.st_mtime_ns, name, stat.st_size))
        parts_found: list[NewData] = []
        room = max_bytes
        for modified_ns, name, size in sorted(stats):
            if parts_found and room <= 0:
                break
            part = self._read_new(name, offset.files.get(name, ()), modified_ns, size, now_ns)
            if part is None:
                self._unusable[name] = (size, modified_ns)
            else:
                parts_found.append(part)
                room -= part.size
        return parts_found

    def rows(self, name: str, parts: tuple[FilePart, ...], number: int) -> list[FlowRefs]:
        """Return the packet references of one part of a file."""
        return self._part_indexes(name, parts)[number].rows

    def summary(self, name: str, parts: tuple[FilePart, ...]) -> FileSummary:
        """Summarize all parts of a file; a truncated end is detected here."""
        summary = merge_summaries([index.summary for index in self._part_indexes(name, parts)])
        size = (
            os.path.getsize(self.absolute_path(name))
            if os.path.exists(self.absolute_path(name))
            else 0
        )
        if summary.status == "whole" and parts[-1].end_offset < size:
            text = "the file ends inside a block"
            return replace(
                summary, status="truncated", error=text, error_offset=parts[-1].end_offset
            )
        return summary

    def is_incomplete(self, name: str, parts: tuple[FilePart, ...]) -> bool:
        return self.summary(name, parts).status in _INCOMPLETE_STATUSES

    def forget(self, names: set[str]) -> None:
        """Drop what is cached of these files."""
        for name in names:
            self._indexes.pop(name, None)
            self._unusable.pop(name, None)

    # Private helpers

    def _read_new(
        self, name: str, parts: tuple[FilePart, ...], modified_ns: int, size: int, now_ns: int
    ) -> NewData | None:
        """Index the file from the end of its parts on; None if there is no new complete block."""
        before = self._part_indexes(name, parts) if parts else []
        if before and before[-1].resume is None:
            return None  # damaged: nothing after that can be read
        start = before[-1].resume if before else FileRange()
        assert start is not None  # checked above
        index = index_range(
            self.absolute_path(name),
            replace(start, end=-1),
            limits=self._limits,
            wanted=self._flow_filter,
        )
        young = now_ns - modified_ns < self._session_timeout_ns
        status = index.summary.status
        plain = "+" not in (index.summary.format or "")
        if status == "truncated" and plain and index.resume is not None:
            if index.resume.start <= start.start:
                return (
                    None if young or parts else self._store(name, before, index, modified_ns, size)
                )
            # Index exactly the complete blocks, as it will be done after a restart.
            span = replace(start, end=index.resume.start)
            index = index_range(
                self.absolute_path(name), span, limits=self._limits, wanted=self._flow_filter
            )
            return self._store(name, before, index, modified_ns, span.end)
        if status in _INCOMPLETE_STATUSES and young:
            return None
        whole = index.resume is not None and status == "whole" and plain
        end = index.resume.start if whole and index.resume is not None else size
        return self._store(name, before, index, modified_ns, end)

    def _store(
        self, name: str, before: list[FileIndex], index: FileIndex, modified_ns: int, end: int
    ) -> NewData:
        self._indexes[name] = [*before, index]
        return NewData(name, modified_ns // 1_000_000, end, index.summary.bytes)

    def _part_indexes(self, name: str, parts: tuple[FilePart, ...]) -> list[FileIndex]:
        """Return the indexes of these parts; after a restart they are read again."""
        known = self._indexes.get(name, [])
        if len(known) < len(parts):
            known = []
            span = FileRange()
            for number, part in enumerate(parts):
                last = number + 1 == len(parts)
                found = index_range(
                    self.absolute_path(name),
                    replace(span, end=-1 if last else part.end_offset),
                    limits=self._limits,
                    wanted=self._flow_filter,
                )
                if last and found.resume is not None and found.resume.start != part.end_offset:
                    # It has grown, or is truncated: stop where it was read up to before.
                    exact = replace(span, end=part.end_offset)
                    if "+" not in (found.summary.format or ""):
                        found = index_range(
                            self.absolute_path(name),
                            exact,
                            limits=self._limits,
                            wanted=self._flow_filter,
                        )
                known.append(found)
                if found.resume is None:
                    known += [FileIndex(found.summary) for _ in parts[number + 1 :]]
                    break
                span = found.resume
            self._indexes[name] = known
        return known[: len(parts)]
