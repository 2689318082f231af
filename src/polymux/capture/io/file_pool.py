"""The open capture files of a run: opened on demand, closed again, and bounded in memory.

Payload spread over a file is copied out of a mapping of it (`mmap_gather`). A mapped page that was
touched counts as memory of the process until the process gives it back, so a pass over large
captures would seem to need memory for all of them, and where memory is strictly limited (a Spark
worker in a container) would be killed for it. `FilePool` therefore counts the 64 KiB blocks that
its reads make resident and gives all of them back (`madvise(MADV_DONTNEED)`) before they exceed
`resident_limit`. The data stays in the page cache, so reading it again costs page faults only.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from polymux.capture.io.mmap_gather import GatherBuffer, MappedFile
from polymux.capture.io.paths import AnyPath, is_url, one_path
from polymux.capture.io.read_runs import RESIDENT_BLOCK_BITS, ReadRun, iovecs, read_run
from polymux.capture.io.remote import open_capture
from polymux.capture.io.sources import (
    STDIN,
    FileIdentity,
    LostInput,
    PlainSource,
    StoredSource,
    open_source,
)
from polymux.capture.limits import CaptureLimits
from polymux.capture.tcp.reassembly import TcpEvents
from polymux.core.errors import CaptureError

MAX_OPEN_FILES = 64
MAX_OPEN_REMOTE_FILES = 16
# Bytes of mapped files that may be resident, in all files of a pool together.
DEFAULT_RESIDENT_LIMIT = 64 << 20
WORKER_RESIDENT_LIMIT = 48 << 20  # in a Spark worker


class FilePool:
    """Opens captures on demand and keeps at most `MAX_OPEN_FILES` of them open.

    Pipes and standard input can be read only once, so they stay open until `close`.

    Args:
        limits: Limits for reading captures; by default `CaptureLimits()`.
        resident_limit: Bytes of mapped files that may be resident at a time. A single read of
            more than that is still made; it then is alone in memory.
        on_open: Called with every file that was opened; it may raise.
        on_close: Called with every file before it is closed.
    """

    def __init__(
        self,
        limits: CaptureLimits | None = None,
        *,
        resident_limit: int = DEFAULT_RESIDENT_LIMIT,
        on_open: Callable[[StoredSource], None] | None = None,
        on_close: Callable[[StoredSource], None] | None = None,
    ) -> None:
        self.limits = limits or CaptureLimits()
        self._max_resident_blocks = resident_limit >> RESIDENT_BLOCK_BITS
        self._resident_blocks = 0  # upper bound: files closed meanwhile are still counted
        self._on_open = on_open
        self._on_close = on_close
        self._open_sources: OrderedDict[str, StoredSource] = OrderedDict()
        self._pipe_sources: dict[str, StoredSource] = {}
        self._last_source: StoredSource | None = None  # of `_open_sources`, the one used last
        self._gather_buffer: GatherBuffer | None = None

    def source(self, path: AnyPath) -> StoredSource:
        """The open file.

        Raises:
            CaptureError: The file cannot be opened.
        """
        path = one_path(path)
        if self._last_source is not None and self._last_source.path == path:
            return self._last_source
        if path in self._pipe_sources:
            return self._pipe_sources[path]
        source = self._open_sources.pop(path, None)
        if source is None:
            source = open_source(path, self.limits)
            if self._on_open is not None:
                try:
                    self._on_open(source)
                except BaseException:
                    source.close()
                    raise
            if path == STDIN or not os.path.isfile(path):
                self._pipe_sources[path] = source
                return source
        self._open_sources[path] = self._last_source = source
        while len(self._open_sources) > MAX_OPEN_FILES:
            self._close(self._open_sources.popitem(last=False)[1])
        return source

    def reader(self, path: AnyPath) -> FileReader:
        """A function that reads the file's bytes. It reopens the file if the pool closed it."""
        return FileReader(self, one_path(path))

    def readers(self, paths: Sequence[AnyPath]) -> list[FileReader]:
        """`reader` for each of `paths`."""
        return [self.reader(path) for path in paths]

    def gather_buffer(self) -> GatherBuffer | None:
        """The buffer that `FileReader.gather` copies to; None if the system has no such buffer."""
        if self._gather_buffer is None or self._gather_buffer.owner_pid != os.getpid():
            self._gather_buffer = None
            with contextlib.suppress(OSError):
                self._gather_buffer = GatherBuffer()
        return self._gather_buffer

    def count_resident(self, mapped: MappedFile, events: TcpEvents, run: ReadRun) -> bytes:
        """The `iovecs` of a run that is about to be copied, its blocks counted as resident.

        If they exceed the limit, the pages of all mapped files are given back first.
        """
        before = mapped.resident_blocks.count
        vectors = iovecs(events, run, mapped.address, mapped.resident_blocks)
        self._resident_blocks += mapped.resident_blocks.count - before
        if self._resident_blocks > self._max_resident_blocks:
            for source in self._all_sources():
                if isinstance(source, PlainSource):
                    source.drop_pages()
            vectors = iovecs(events, run, mapped.address, mapped.resident_blocks)
            self._resident_blocks = mapped.resident_blocks.count
        return vectors

    @property
    def resident_bytes(self) -> int:
        """Upper bound of the mapped bytes that are resident."""
        return self._resident_blocks << RESIDENT_BLOCK_BITS

    def close(self) -> None:
        """Close every file. The pool can be used again; pipes cannot be reread."""
        if self._gather_buffer is not None:
            self._gather_buffer.close()
            self._gather_buffer = None
        sources = self._all_sources()
        self._last_source = None
        self._resident_blocks = 0
        self._open_sources.clear()
        self._pipe_sources.clear()
        with contextlib.ExitStack() as stack:
            for source in sources:
                stack.callback(self._close, source)

    def _close(self, source: StoredSource) -> None:
        try:
            if self._on_close is not None:
                self._on_close(source)
        finally:
            source.close()

    def _all_sources(self) -> list[StoredSource]:
        return [*self._open_sources.values(), *self._pipe_sources.values()]

    def __enter__(self) -> FilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileReader:
    """Reads payload of one file of a `FilePool`: call it for exactly `size` bytes at `offset`.

    Raises:
        CaptureError: The bytes cannot be read, or the file has become shorter.
    """

    def __init__(self, pool: FilePool, path: str) -> None:
        self._pool = pool
        self._path = path

    def __call__(self, offset: int, size: int) -> bytes:
        return self._pool.source(self._path).read_at(offset, size)

    def read_run(self, events: TcpEvents, run: ReadRun) -> bytes:
        """The bytes of a run, in order."""
        return read_run(events, run, self._pool.source(self._path).read_at)

    def can_gather(self) -> bool:
        """Whether `gather` can copy pieces out of the file, as long as nothing is wrong with it."""
        source = self._pool.source(self._path)
        return (
            isinstance(source, PlainSource)
            and source.mapped_file() is not None
            and self._pool.gather_buffer() is not None
        )

    def gather(self, events: TcpEvents, run: ReadRun) -> bytes | None:
        """The bytes of a run by one system call; None if they must be read piece by piece.

        None for compressed files, for pieces so far apart that each would be a page fault of its
        own (reading it costs no more), and if anything is wrong with the file: reading it piece by
        piece then raises the error.
        """
        source = self._pool.source(self._path)
        if not isinstance(source, PlainSource) or run.end > source.size:
            return None
        if run.end - run.begin > run.pieces << RESIDENT_BLOCK_BITS:
            return None
        mapped = source.mapped_file()
        buffer = self._pool.gather_buffer()
        if mapped is None or buffer is None:
            return None
        vectors = self._pool.count_resident(mapped, events, run)
        data = buffer.gather(vectors, run.pieces, run.payload_bytes)
        source.bytes_read += run.payload_bytes
        # If the file was truncated inside a page, the rest of that page reads as zeros.
        return data if source.still_reaches(run.end) else None


class UrlFilePool:
    """Opens indexed captures on demand, by path or URL, for a Spark task.

    Keeps at most `MAX_OPEN_REMOTE_FILES` remote files open; local ones are in a `FilePool`. Every
    error is a `LostInput`: the index has read the same bytes before.

    Args:
        limits: Limits for reading captures.
        identities: What the files were when they were indexed; checked when they are opened and
            closed.
        copies: Plain local copies of captures, which are read in their place.
    """

    def __init__(
        self,
        limits: CaptureLimits,
        identities: Mapping[str, FileIdentity] | None = None,
        copies: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits
        self.bytes_read = 0
        """Bytes read of captures, without their copies, by files that are closed."""
        self._identities = identities or {}
        self._copies = copies or {}
        self._copy_paths = frozenset(self._copies.values())
        self._failed = False  # an error was raised: files are closed without further checks
        self._local_pool = FilePool(
            limits,
            resident_limit=WORKER_RESIDENT_LIMIT,
            on_open=self._opened,
            on_close=self._closing,
        )
        self.remote_sources: OrderedDict[str, StoredSource] = OrderedDict()

    def source(self, path: str) -> StoredSource:
        """The open file, or its copy. Raises `LostInput` if it cannot be opened."""
        path = self._copies.get(path, path)
        try:
            return self._remote_source(path) if is_url(path) else self._local_pool.source(path)
        except CaptureError as problem:
            raise self._lost(problem) from None

    def reader(self, path: str) -> Callable[[int, int], bytes]:
        """A function that reads exactly `size` bytes at `offset`; reopens the file if necessary."""
        path = self._copies.get(path, path)
        if not is_url(path):
            return _IndexedFileReader(self._local_pool, path, self._lost)

        def read(offset: int, size: int) -> bytes:
            try:
                return self._remote_source(path).read_at(offset, size)
            except CaptureError as problem:
                raise self._lost(problem) from None

        return read

    def close(self) -> None:
        """Close all files.

        Raises:
            LostInput: A file has changed since it was opened, so that rows may be wrong.
        """
        sources = list(self.remote_sources.values())
        self.remote_sources.clear()
        try:
            with contextlib.ExitStack() as stack:
                for source in sources:
                    stack.callback(self._close_remote, source)
                stack.callback(self._local_pool.close)
        except CaptureError as problem:
            raise self._lost(problem) from None

    def _remote_source(self, path: str) -> StoredSource:
        source = self.remote_sources.pop(path, None)
        if source is None:
            source = open_capture(path, self.limits)
            self._opened(source)
        self.remote_sources[path] = source
        while len(self.remote_sources) > MAX_OPEN_REMOTE_FILES:
            self._close_remote(self.remote_sources.popitem(last=False)[1])
        return source

    def _opened(self, source: StoredSource) -> None:
        if source.path in self._identities:
            self._identities[source.path].check(source, source.opened_version)

    def _closing(self, source: StoredSource) -> None:
        if source.path in self._copy_paths:
            return
        self.bytes_read += source.bytes_read
        if source.path in self._identities and not self._failed:
            self._identities[source.path].check(source, source.version())

    def _close_remote(self, source: StoredSource) -> None:
        try:
            self._closing(source)
        finally:
            source.close()

    def _lost(self, problem: CaptureError) -> LostInput:
        self._failed = True
        return LostInput(str(problem))

    def __enter__(self) -> UrlFilePool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._failed = self._failed or kind is not None
        self.close()


class _IndexedFileReader(FileReader):
    """The reader of a file in a `UrlFilePool`: errors are raised as `LostInput`."""

    def __init__(
        self, pool: FilePool, path: str, lost: Callable[[CaptureError], LostInput]
    ) -> None:
        super().__init__(pool, path)
        self._lost = lost

    def __call__(self, offset: int, size: int) -> bytes:
        try:
            return super().__call__(offset, size)
        except CaptureError as problem:
            raise self._lost(problem) from None

    def read_run(self, events: TcpEvents, run: ReadRun) -> bytes:
        try:
            return super().read_run(events, run)
        except CaptureError as problem:
            raise self._lost(problem) from None

    def can_gather(self) -> bool:
        try:
            return super().can_gather()
        except CaptureError as problem:
            raise self._lost(problem) from None

    def gather(self, events: TcpEvents, run: ReadRun) -> bytes | None:
        try:
            return super().gather(events, run)
        except CaptureError as problem:
            raise self._lost(problem) from None
