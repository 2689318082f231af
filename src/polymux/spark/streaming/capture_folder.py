"""A growing folder of captures: what is new in it, read up to the last whole block.

Only published names are looked at. A file that is still being copied is read as far as it goes,
and read on when there is more of it.
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
    """A file, or more of one, that can be taken in."""

    name: str
    modified_ms: int  # milliseconds
    end_offset: int
    size: int  # how much that is


class CaptureFolder:
    """Looks into a directory, and remembers the indexes of the files it has read."""

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
        self._unusable: dict[
            str, tuple[int, int]
        ] = {}  # size and time when there was nothing to take

    def absolute_path(self, name: str) -> str:
        return os.path.join(self.path, name)

    def file_names(self) -> list[str]:
        return [os.path.relpath(path, self.path) for path in find_captures([self.path])]

    def new_data(
        self, offset: FolderOffset, now_ns: int, max_bytes: int, only: frozenset[str] | None = None
    ) -> list[NewData]:
        """What came since `place`, the oldest first, about `most` bytes of it and one file at
        least; of `only` these names, if they are given."""
        stats = []
        for name in self.file_names():
            if name in offset.forgotten or (only is not None and name not in only):
                continue
            try:
                stat = os.stat(self.absolute_path(name))
            except OSError:
                continue  # gone again
            parts = offset.files.get(name, ())
            if parts and parts[-1].end_offset >= stat.st_size:
                continue
            if self._unusable.get(name) == (stat.st_size, stat.st_mtime_ns):
                settled = now_ns - stat.st_mtime_ns >= self._session_timeout_ns
                if parts or not settled:
                    continue
            stats.append((stat.st_mtime_ns, name, stat.st_size))
        found: list[NewData] = []
        room = max_bytes
        for moved, name, size in sorted(stats):
            if found and room <= 0:
                break
            fresh = self._read_new(name, offset.files.get(name, ()), moved, size, now_ns)
            if fresh is None:
                self._unusable[name] = (size, moved)
            else:
                found.append(fresh)
                room -= fresh.size
        return found

    def rows(self, name: str, parts: tuple[FilePart, ...], number: int) -> list[FlowRefs]:
        return self._part_indexes(name, parts)[number].rows

    def summary(self, name: str, parts: tuple[FilePart, ...]) -> FileSummary:
        """Of everything that was read of the file; a torn end is found out now."""
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
        for name in names:
            self._indexes.pop(name, None)
            self._unusable.pop(name, None)

    # --- inside

    def _read_new(
        self, name: str, parts: tuple[FilePart, ...], modified_ns: int, size: int, now_ns: int
    ) -> NewData | None:
        """Read on from where the parts end; None if no whole block has come yet."""
        before = self._part_indexes(name, parts) if parts else []
        if before and before[-1].resume is None:
            return None  # damaged: nothing behind it can be read
        start = before[-1].resume if before else FileRange()
        assert start is not None
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
            # Read just the whole blocks, as it will be read after a restart.
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
        """The indexes of these parts, read again if they are not at hand."""
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
                    # It has grown, or has a torn end: only as far as was read then.
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
