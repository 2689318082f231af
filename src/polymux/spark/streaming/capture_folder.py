"""A growing folder of captures: what is new in it, indexed up to the last complete block.

Only published names are considered, not those of files that a recorder is still writing. A file
that is being copied is read up to its last complete block, and further when it has grown.
"""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from polymux.capture import (
    CaptureLimits,
    FileIndex,
    FileRange,
    FileSummary,
    FlowFilter,
    FlowRefs,
    merge_summaries,
)
from polymux.capture.io.sources import FileIdentity, LostInput, open_source
from polymux.core.errors import CaptureError, CaptureUnavailable, PolymuxError
from polymux.spark.batch.index_stage import IndexSpan, index_span
from polymux.spark.streaming.folder_listing import FolderListing
from polymux.spark.streaming.index_store import Indexed, IndexStore
from polymux.spark.streaming.offset import FilePart, FolderOffset, NameRanges
from polymux.spark.streaming.reused_names import ReusedNames

_INCOMPLETE_STATUSES = ("truncated", "unreadable")
# New files of fewer bytes are indexed in this process: a batch of Spark costs more than that takes.
MIN_PARALLEL_BYTES = 128 << 20


class ChangedFile(NamedTuple):
    """A file that is new or has grown, as it was found."""

    modified_ns: int
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class NewData:
    """A new file, or a new part of one, that is ready to be read."""

    name: str
    modified_ms: int  # since the epoch
    end_offset: int  # in the file
    size: int  # bytes of captured data


class CaptureFolder:
    """Scans a directory, and caches the indexes of the files it has read.

    A file that has not changed for `session_timeout` seconds is assumed to be complete. New files
    are indexed by tasks, if there is a `store` to which these can write (`files_for_tasks`), else
    by as many processes as there are cores.

    Raises:
        PolymuxError: `path` is not a directory.
        LostInput: From any method: a file that was read before, or has been there for
            `session_timeout`, cannot be read, or has changed.
    """

    def __init__(
        self,
        path: str,
        flow_filter: FlowFilter,
        limits: CaptureLimits,
        session_timeout: float,
        store: IndexStore | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        if not os.path.isdir(self.path):
            raise PolymuxError(f"{path}: no such directory; watching reads a directory that grows")
        self._flow_filter = flow_filter
        self._limits = limits
        self._index_store = store
        self._session_timeout_ns = int(session_timeout * 1e9)
        self._indexes: dict[str, list[FileIndex]] = {}
        self._identities: dict[str, FileIdentity] = {}  # by path, of the files in `_indexes`
        self._ahead: dict[str, Indexed] = {}  # whole files that were indexed by other processes
        self._listing = FolderListing(self.path)
        self._reused = ReusedNames(self.path)
        # Size and modification time of files that have changed and are the same file.
        self._same: dict[str, tuple[int, int]] = {}
        self.replaced: set[str] = set()
        """Files that were read and that the last look found to be others now."""
        # Size and modification time of files in which no new complete block was found.
        self._unusable: dict[str, tuple[int, int]] = {}
        # Names of new files that tasks have indexed when they could not be read yet.
        self._indexed_in_vain: set[str] = set()

    def absolute_path(self, name: str) -> str:
        return os.path.join(self.path, name)

    def all_names(self) -> frozenset[str]:
        """Return the names of all captures in the folder and below it, within the folder."""
        return frozenset(self._listing.all_names())

    def look_anew(self) -> None:
        """Forget what earlier looks have found: the next offset does not follow the last one."""
        self._listing = FolderListing(self.path)
        self._reused = ReusedNames(self.path)

    def remaining(self, offset: FolderOffset, newly_forgotten: Collection[str]) -> NameRanges:
        """Return the names of forgotten files that are still there, as far as a look has found.

        To those of `offset` come the `newly_forgotten` ones of its files.
        """
        still_there = {
            name: self._file_time_ms(name, offset.files[name])
            for name in newly_forgotten
            if self._listing.has(name)
        }
        forgotten = offset.forgotten
        gone = self._listing.vanished | self._reused.found
        if gone:
            forgotten = forgotten.without_names(gone)
        return forgotten.with_files(still_there) if still_there else forgotten

    def changed_files(
        self, offset: FolderOffset, now_ns: int, only: frozenset[str] | None = None
    ) -> list[ChangedFile]:
        """Return the files that are new or have grown since `offset`, by modification time.

        Args:
            offset: What has been read.
            now_ns: The current time in nanoseconds.
            only: Consider only these names.
        """
        changed = []
        self.replaced = set()
        self._listing.take_back(self._reused.look(offset.forgotten))
        reused = self._reused.found
        present = self._listing.look(
            offset.forgotten.without_names(reused) if reused else offset.forgotten
        )
        self._indexed_in_vain = set(filter(self._listing.has, self._indexed_in_vain))
        for name in present:
            if only is not None and name not in only:
                continue
            try:
                found = os.stat(self.absolute_path(name))
            except OSError:
                continue  # removed meanwhile, or a link to nothing
            parts = offset.files.get(name, ())
            if parts and self._is_another(name, parts, found):
                self.replaced.add(name)
            if not stat.S_ISREG(found.st_mode) or (parts and parts[-1].end_offset >= found.st_size):
                continue
            if self._unusable.get(name) == (found.st_size, found.st_mtime_ns):
                settled = now_ns - found.st_mtime_ns >= self._session_timeout_ns
                if parts or not settled:
                    continue
            changed.append(ChangedFile(found.st_mtime_ns, name, found.st_size))
        return sorted(changed)

    def files_for_tasks(
        self, changed: list[ChangedFile], offset: FolderOffset, max_bytes: int
    ) -> frozenset[str]:
        """Return the new files, of about `max_bytes`, that tasks should index before they are read.

        None if there is no store, or if they are so small that this process is quicker. A file that
        could not be read when tasks had indexed it is not among them again, even if it has grown:
        as long as it grows, every micro-batch would only index it.
        """
        if self._index_store is None:
            return frozenset()
        known = offset.files.keys() | self._indexed_in_vain
        chosen = _first_bytes([file for file in changed if file.name not in known], max_bytes)
        total = sum(file.size for file in chosen)
        return frozenset(file.name for file in chosen if total >= MIN_PARALLEL_BYTES)

    def divide_indexed(
        self, offset: FolderOffset, changed: list[ChangedFile]
    ) -> tuple[list[ChangedFile], list[ChangedFile]]:
        """Divide the files that have changed, after a micro-batch that has indexed new ones.

        Returns:
            Those that it has indexed and those that were read before, to be read next; and others.
        """
        expected = offset.indexing | offset.files.keys()
        if self._index_store is not None:
            for name in offset.indexing - {file.name for file in changed}:  # removed meanwhile
                self._index_store.discard(self.absolute_path(name))
        return (
            [file for file in changed if file.name in expected],
            [file for file in changed if file.name not in expected],
        )

    def new_data(
        self, offset: FolderOffset, changed: list[ChangedFile], now_ns: int, max_bytes: int
    ) -> list[NewData]:
        """Return the new data since `offset` in the files that have changed.

        Args:
            offset: What has been read.
            changed: What `changed_files` returned, or some of it.
            now_ns: The current time in nanoseconds.
            max_bytes: Stop after about this many bytes, but not before one file.
        """
        parts_found: list[NewData] = []
        room = max_bytes
        self._index_ahead([file for file in changed if file.name not in offset.files], max_bytes)
        for modified_ns, name, size in changed:
            if parts_found and room <= 0:
                break
            part = None
            try:
                part = self._read_new(name, offset.files.get(name, ()), modified_ns, size, now_ns)
            except LostInput:
                # Perhaps it has just been removed, or its permissions are still to come.
                if name in offset.files or now_ns - modified_ns >= self._session_timeout_ns:
                    raise
            else:
                if part is None:
                    self._unusable[name] = (size, modified_ns)
            if part is not None:
                parts_found.append(part)
                room -= part.size
            elif name in offset.indexing:
                self._indexed_in_vain.add(name)
        self._ahead.clear()
        return parts_found

    def rows(self, name: str, parts: tuple[FilePart, ...], number: int) -> list[FlowRefs]:
        """Return the packet references of one part of a file."""
        return self._part_indexes(name, parts)[number].rows

    def secrets(self, name: str, parts: tuple[FilePart, ...]) -> list[bytes]:
        """Return the TLS key logs in the secrets blocks of these parts of a file."""
        return [text for index in self._part_indexes(name, parts) for text in index.secrets]

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

    def identity(self, path: str) -> FileIdentity | None:
        """Return what a file was when it was indexed, by its absolute path."""
        return self._identities.get(path)

    def forget(self, names: set[str]) -> None:
        """Drop what is cached of these files."""
        for name in names:
            self._indexes.pop(name, None)
            self._identities.pop(self.absolute_path(name), None)
            self._unusable.pop(name, None)
            self._same.pop(name, None)
            self._indexed_in_vain.discard(name)
            if self._index_store is not None:
                self._index_store.discard(self.absolute_path(name))

    # Private helpers

    def _is_another(self, name: str, parts: tuple[FilePart, ...], found: os.stat_result) -> bool:
        """Whether a file that was read is another one now; it may have grown, or been copied."""
        version = found.st_size, found.st_mtime_ns
        if found.st_size < parts[-1].end_offset:
            return True
        path = self.absolute_path(name)
        unchanged = found.st_mtime_ns // 1_000_000 <= parts[-1].file_time_ms
        identity = self._identities.get(path)
        if unchanged or identity is None or self._same.get(name) == version:
            return False
        if found.st_size >= identity.size:  # else only what follows the last block was cut off
            try:
                source = open_source(path, self._limits)
            except CaptureError:
                return False  # reading it says why
            with closing(source):
                try:
                    identity.check(source, source.version())
                except CaptureUnavailable:
                    return True
        self._same[name] = version
        return False

    def _file_time_ms(self, name: str, parts: tuple[FilePart, ...]) -> int:
        """The last modification of a file that was read, not that of another with its name."""
        return max(parts[-1].file_time_ms, self._same.get(name, (0, 0))[1] // 1_000_000)

    def _index(
        self, name: str, span: FileRange, version: tuple[int, int] | None = None
    ) -> FileIndex:
        """Index a range of a file and note what the file is.

        `version` is its size and modification time, if an index that a task made may be used.

        Raises:
            LostInput: It cannot be read, or is not the file that was read before.
        """
        path = self.absolute_path(name)
        ahead = self._ahead.pop(name, None) if span == FileRange() else None
        if ahead is None and version is not None and span == FileRange() and self._index_store:
            ahead = self._index_store.take(path, *version)
        index, identity = ahead or index_span(
            IndexSpan(path, span), self._limits, self._flow_filter, self._identities.get(path)
        )
        if identity is not None:
            self._identities[path] = identity
        return index

    def _index_ahead(self, files: list[ChangedFile], max_bytes: int) -> None:
        """Index whole new files, of about `max_bytes`, in several processes at a time."""
        missing = [file for file in _first_bytes(files, max_bytes) if not self._is_stored(file)]
        chosen = [file.name for file in missing]
        total = sum(file.size for file in missing)
        workers = min(len(chosen), os.cpu_count() or 1)
        if workers < 2 or total < MIN_PARALLEL_BYTES:
            return
        if self._index_store is not None:
            for name in chosen:  # what tasks have made of other versions
                self._index_store.discard(self.absolute_path(name))
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, mp_context=fork) as pool:
            spans = [IndexSpan(self.absolute_path(name), FileRange()) for name in chosen]
            tasks = [
                pool.submit(index_span, span, self._limits, self._flow_filter) for span in spans
            ]
            for name, task in zip(chosen, tasks, strict=True):
                if not isinstance(task.exception(), LostInput):  # then it is raised again below
                    self._ahead[name] = task.result()

    def _is_stored(self, file: ChangedFile) -> bool:
        path = self.absolute_path(file.name)
        store = self._index_store
        return store is not None and store.has(path, file.size, file.modified_ns)

    def _read_new(
        self, name: str, parts: tuple[FilePart, ...], modified_ns: int, size: int, now_ns: int
    ) -> NewData | None:
        """Index the file from the end of its parts on; None if there is no new complete block."""
        before = self._part_indexes(name, parts) if parts else []
        if before and before[-1].resume is None:
            return None  # damaged: nothing after that can be read
        start = before[-1].resume if before else FileRange()
        assert start is not None  # checked above
        index = self._index(name, replace(start, end=-1), (size, modified_ns))
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
            index = self._index(name, span)
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
                found = self._index(name, replace(span, end=-1 if last else part.end_offset))
                if last and found.resume is not None and found.resume.start != part.end_offset:
                    # It has grown, or is truncated: stop where it was read up to before.
                    exact = replace(span, end=part.end_offset)
                    if "+" not in (found.summary.format or ""):
                        found = self._index(name, exact)
                known.append(found)
                if found.resume is None:
                    known += [FileIndex(found.summary) for _ in parts[number + 1 :]]
                    break
                span = found.resume
            self._indexes[name] = known
        return known[: len(parts)]


def _first_bytes(files: list[ChangedFile], max_bytes: int) -> list[ChangedFile]:
    """Return the first of these files, until they have `max_bytes`."""
    chosen: list[ChangedFile] = []
    total = 0
    for file in files:
        if total >= max_bytes:
            break
        chosen.append(file)
        total += file.size
    return chosen
