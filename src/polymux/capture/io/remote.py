"""Captures on other file systems: every URL that `pyarrow.fs` opens, read in large pieces."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote, urlsplit

from polymux.capture.io.decompression import detect_compression
from polymux.capture.io.file_pool import WORKER_RESIDENT_LIMIT, FilePool
from polymux.capture.io.sources import CompressedSource, PlainSource, Source, open_source
from polymux.capture.limits import CaptureLimits
from polymux.core.errors import CaptureError, MissingExtra

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# Bytes of one request; the fixed cost of a request to an object store is about as high.
REQUEST_BYTES = 4 << 20
MAX_CACHED_PIECES = 4  # of each file
MAX_OPEN_FILES = 16

_HADOOP = (
    "a Hadoop URL needs libhdfs, a Java and CLASSPATH=$(hadoop classpath --glob) on the driver "
    "and on every worker"
)


def is_url(path: str) -> bool:
    """Whether `path` is read through `pyarrow.fs`. Resolve `file://` with `local_path` before."""
    return "://" in path


def local_path(path: str) -> str:
    """The local path of a `file://` URL; any other path or URL unchanged.

    Raises:
        CaptureError: The URL names another machine.
    """
    if not path.startswith("file://"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise CaptureError("names another machine; write file:///path", path)
    return unquote(parts.path)


def filesystem(url: str) -> tuple[FileSystem, str]:
    """The file system of `url` and the path on it.

    Raises:
        CaptureError: The file system cannot be opened; the message says what is missing.
        MissingExtra: pyarrow is not installed.
    """
    try:
        from pyarrow.fs import FileSystem
    except ImportError:
        raise MissingExtra("captures", "reading captures by URL") from None
    try:
        system, path = FileSystem.from_uri(url)
    except (OSError, ValueError, ImportError, RuntimeError) as problem:
        # ArrowInvalid is a ValueError, other Arrow errors are RuntimeErrors.
        _raise_cannot_open(url, problem)
    return system, path


def _raise_cannot_open(url: str, problem: Exception) -> NoReturn:
    reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    if url.startswith(("hdfs:", "viewfs:")):
        reason = f"{reason}; {_HADOOP}"
    raise CaptureError(f"cannot be opened: {reason}", url) from None


class RemoteSource(PlainSource):
    """A file named by a URL, as a capture source.

    It is fetched in pieces of `REQUEST_BYTES`, the last few of which are cached: the scan, and an
    analysis of most flows of a file, request each piece once.
    """

    def __init__(self, url: str, system: FileSystem, path: str) -> None:
        self.path = url
        try:
            self._file = system.open_input_file(path)
            self.size = int(self._file.size())
        except (OSError, ValueError, RuntimeError) as problem:
            _raise_cannot_open(url, problem)
        self._pieces: OrderedDict[int, bytes] = OrderedDict()

    def window(self, offset: int, size: int) -> bytes:
        return self._read(offset, max(0, min(size, self.size - offset)))

    def read_at(self, offset: int, size: int) -> bytes:
        data = self._read(offset, size)
        if len(data) != size:
            raise CaptureError("the file shrank while it was being read", self.path, offset)
        return data

    def mapped_file(self) -> None:
        """None: a remote file cannot be mapped."""

    def close(self) -> None:
        self._file.close()
        self._pieces.clear()

    def _read(self, offset: int, size: int) -> bytes:
        found = []
        while size > 0:
            number, skip = divmod(offset, REQUEST_BYTES)
            part = self._piece(number)[skip : skip + size]
            if not part:
                break
            found.append(part)
            offset += len(part)
            size -= len(part)
        return found[0] if len(found) == 1 else b"".join(found)

    def _piece(self, number: int) -> bytes:
        piece = self._pieces.pop(number, None)
        if piece is None:
            start = number * REQUEST_BYTES
            try:
                piece = bytes(
                    self._file.read_at(min(REQUEST_BYTES, max(0, self.size - start)), start)
                )
            except (OSError, ValueError, RuntimeError) as problem:
                text = f"cannot be read: {str(problem).splitlines()[0]}"
                raise CaptureError(text, self.path, start) from None
        self._pieces[number] = piece
        while len(self._pieces) > MAX_CACHED_PIECES:
            self._pieces.popitem(last=False)
        return piece


def open_capture(path: str, limits: CaptureLimits) -> Source:
    """Open a capture by path or URL, decompressing it if its first bytes say so.

    Raises:
        CaptureError: It cannot be opened.
    """
    if not is_url(path):
        return open_source(path, limits)
    plain = RemoteSource(path, *filesystem(path))
    compression = detect_compression(plain.window(0, 4))
    return CompressedSource(path, plain, compression, limits) if compression else plain


class UrlFilePool:
    """Opens captures on demand, by path or URL, for a Spark worker.

    Keeps at most `MAX_OPEN_FILES` remote files open; local ones are in a `FilePool`.
    """

    def __init__(self, limits: CaptureLimits) -> None:
        self.limits = limits
        self._local_pool = FilePool(limits, resident_limit=WORKER_RESIDENT_LIMIT)
        self.remote_sources: OrderedDict[str, Source] = OrderedDict()

    def source(self, path: str) -> Source:
        """The open file. Raises `CaptureError` if it cannot be opened."""
        if not is_url(path):
            return self._local_pool.source(path)
        source = self.remote_sources.pop(path, None) or open_capture(path, self.limits)
        self.remote_sources[path] = source
        while len(self.remote_sources) > MAX_OPEN_FILES:
            self.remote_sources.popitem(last=False)[1].close()
        return source

    def reader(self, path: str) -> Callable[[int, int], bytes]:
        """A function that reads exactly `size` bytes at `offset`; reopens the file if necessary."""
        if not is_url(path):
            return self._local_pool.reader(path)

        def read(offset: int, size: int) -> bytes:
            return self.source(path).read_at(offset, size)

        return read

    def close(self) -> None:
        self._local_pool.close()
        for source in self.remote_sources.values():
            source.close()
        self.remote_sources.clear()

    def __enter__(self) -> UrlFilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
