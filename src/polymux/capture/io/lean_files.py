"""Captures of this machine, read through mappings that do not pile up in a worker's memory.

Payload spread over a file is copied out of a mapping of it. Every page touched that way counts
as memory of the process until it is told that it is done with, so a walk over large captures
would seem to need all of them; and where memory is accounted for strictly, would need it.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

from polymux.capture import CaptureLimits, FilePool
from polymux.capture.io.file_pool import FileReader
from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.io.sources import PlainSource
from polymux.malloc import trim

if TYPE_CHECKING:
    from polymux.capture.io.read_runs import ReadRun
    from polymux.capture.tcp.events import TcpEvents

MAX_MAPPED_BYTES = 48 << 20  # bytes of files that may be mapped at a time
FAULT_AROUND_BYTES = 64 << 10  # bytes that the kernel maps around a page that is touched


class MappedExtent:
    """What of one file was looked at since its pages were given back."""

    def __init__(self) -> None:
        self.begin = 1 << 62
        self.end = 0
        self.pieces = 0

    def add(self, run: ReadRun) -> None:
        self.begin = min(self.begin, int(run.begin))
        self.end = max(self.end, int(run.end))
        self.pieces += int(run.pieces)

    def mapped_bytes(self) -> int:
        """An upper bound of what is mapped of it."""
        return max(0, min(self.end - self.begin, self.pieces * FAULT_AROUND_BYTES))


class BoundedFilePool(FilePool):
    """The same files, whose mappings are emptied before too much of them was looked at."""

    def __init__(self, limits: CaptureLimits) -> None:
        super().__init__(limits)
        self._mapped_extents: dict[str, MappedExtent] = {}

    def reader(self, path: AnyPath) -> FileReader:
        return BoundedFileReader(self, one_path(path))

    def make_room(self, path: str, run: ReadRun) -> None:
        """A run is about to be copied out of a file's mapping."""
        self._mapped_extents.setdefault(path, MappedExtent()).add(run)
        if sum(each.mapped_bytes() for each in self._mapped_extents.values()) > MAX_MAPPED_BYTES:
            self._release_pages()
            self._mapped_extents[path] = MappedExtent()
            self._mapped_extents[path].add(run)

    def _release_pages(self) -> None:
        """Give back the pages of all mappings; the next look brings them back from the cache."""
        for name in self._mapped_extents:
            source = self.open_sources.get(name)
            if isinstance(source, PlainSource):
                _release_mapping(source)
        self._mapped_extents.clear()


class BoundedFileReader(FileReader):
    """A reader that says which part of its file it looks at."""

    def __init__(self, pool: BoundedFilePool, path: str) -> None:
        super().__init__(pool, path)
        self._bounded_pool, self._name = pool, path

    def gather(self, events: TcpEvents, run: ReadRun) -> bytes | None:
        if run.end - run.begin > run.pieces * FAULT_AROUND_BYTES:
            return None  # each piece would be a page fault of its own, and reading it costs no more
        self._bounded_pool.make_room(self._name, run)
        return super().gather(events, run)


def release_memory() -> None:
    """Give what is free back to the system: a worker does many tasks, and each begins lean."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim()


def _release_mapping(source: PlainSource) -> None:
    mapping = source.mapped_file()
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        library = ctypes.CDLL(None)
        library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        library.madvise(mapping.address, mapping.size, mmap.MADV_DONTNEED)
