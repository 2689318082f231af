"""The capture files of a run: found, opened when needed, closed again."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Sequence

from polymux.capture.io.mmap_gather import MAX_RESIDENT_BLOCKS, GatherBuffer
from polymux.capture.io.paths import AnyPath, AnyPaths, each_path, expand, one_path
from polymux.capture.io.read_runs import ReadRun, iovecs
from polymux.capture.io.sources import STDIN, PlainSource, Source, open_source
from polymux.capture.limits import CaptureLimits
from polymux.capture.tcp.events import TcpEvents

MAX_OPEN_FILES = 64
_NOT_CAPTURES = (".idx", ".part")


def find_captures(paths: AnyPaths) -> list[str]:
    """Files named, and for directories every file below, each once, sorted within a directory.

    `paths` is one path or several. A path with wildcards (`*`, `?`, `[`, `**` across directories)
    means what it matches; one that matches nothing is kept, so that opening it says so.

    Links to directories are not followed and a file met twice through links counts once. Index
    files, recordings that are still being written (`.part`) and what is no file at all (a pipe
    would have to be waited for) are left out of directories.
    """
    found: dict[str, str] = {}
    matches = [match for each in each_path(paths) for match in expand(each) or [each]]
    for path in matches:
        if path == STDIN or not os.path.isdir(path):
            found.setdefault(path if path == STDIN else os.path.realpath(path), path)
            continue
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                file = os.path.join(folder, name)
                if name.endswith(_NOT_CAPTURES) or name.startswith("."):
                    continue
                if os.path.isfile(file):
                    found.setdefault(os.path.realpath(file), file)
    return list(found.values())


class FilePool:
    """Opens captures on demand and keeps a bounded number of them open.

    Pipes and stdin can be read once only, so they stay open until `close`.
    """

    def __init__(self, limits: CaptureLimits | None = None) -> None:
        self.limits = limits or CaptureLimits()
        self.open_sources: OrderedDict[str, Source] = OrderedDict()
        self._pipe_sources: dict[str, Source] = {}
        self._last_source: Source | None = None  # the one of `_open` that was asked for last
        self._gather_buffer: GatherBuffer | None = None
        self._resident_blocks = 0  # blocks of mapped files that are in use, at most

    def source(self, path: AnyPath) -> Source:
        """The opened file; raises `CaptureError`."""
        path = one_path(path)
        if self._last_source is not None and self._last_source.path == path:
            return self._last_source
        if path in self._pipe_sources:
            return self._pipe_sources[path]
        source = self.open_sources.pop(path, None)
        if source is None:
            source = open_source(path, self.limits)
            if path == STDIN or not os.path.isfile(path):
                self._pipe_sources[path] = source
                return source
        self.open_sources[path] = self._last_source = source
        while len(self.open_sources) > MAX_OPEN_FILES:
            self.open_sources.popitem(last=False)[1].close()
        return source

    def reader(self, path: AnyPath) -> FileReader:
        """Reads the file's bytes, whether or not it was closed since."""
        return FileReader(self, one_path(path))

    def readers(self, paths: Sequence[AnyPath]) -> list[FileReader]:
        return [self.reader(path) for path in paths]

    def gather_buffer(self) -> GatherBuffer | None:
        """Where runs of pieces are joined; None where that cannot be done."""
        if self._gather_buffer is None or self._gather_buffer.owner_pid != os.getpid():
            self._gather_buffer = None
            with contextlib.suppress(OSError):
                self._gather_buffer = GatherBuffer()
        return self._gather_buffer

    def limit_resident_blocks(self, more: int) -> None:
        """So many more blocks of mapped files are in use: keep them all within bounds."""
        self._resident_blocks += more
        if self._resident_blocks > MAX_RESIDENT_BLOCKS:
            self._resident_blocks = 0
            for source in self._all_sources():
                if isinstance(source, PlainSource):
                    source.drop_pages()

    def _all_sources(self) -> list[Source]:
        return [*self.open_sources.values(), *self._pipe_sources.values()]

    def close(self) -> None:
        if self._gather_buffer is not None:
            self._gather_buffer.close()
            self._gather_buffer = None
        for source in self._all_sources():
            source.close()
        self._last_source = None
        self.open_sources.clear()
        self._pipe_sources.clear()

    def __enter__(self) -> FilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileReader:
    """One file of `Files`, for payload: call it for exactly `size` bytes at `offset`."""

    def __init__(self, pool: FilePool, path: str) -> None:
        self._pool = pool
        self._path = path

    def __call__(self, offset: int, size: int) -> bytes:
        return self._pool.source(self._path).read_at(offset, size)

    def gather(self, events: TcpEvents, run: ReadRun) -> bytes | None:
        """The bytes of a run by one call; None if they must be read piece by piece.

        That is so for compressed files too, and where something is wrong with the file: then
        reading it says what.
        """
        source = self._pool.source(self._path)
        if not isinstance(source, PlainSource) or run.end > source.size:
            return None
        mapping = source.mapped_file()
        stage = self._pool.gather_buffer()
        if mapping is None or stage is None:
            return None
        before = mapping.resident_blocks.count
        given = iovecs(events, run, mapping.address, mapping.resident_blocks)
        data = stage.gather(given, run.pieces, run.payload_bytes)
        if mapping.resident_blocks.count > before:
            self._pool.limit_resident_blocks(mapping.resident_blocks.count - before)
        # A page that was cut short still reads as zeros up to its end.
        return data if source.still_reaches(run.end) else None
