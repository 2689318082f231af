"""Captures on other file systems: whatever `pyarrow.fs` opens by URL, read in large pieces."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote, urlsplit

from polymux.capture import CaptureLimits
from polymux.capture.io.decompression import detect_compression
from polymux.capture.io.lean_files import BoundedFilePool
from polymux.capture.io.sources import CompressedSource, PlainSource, Source, open_source
from polymux.core.errors import CaptureError, MissingExtra

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

REQUEST_BYTES = (
    4 << 20
)  # bytes of one request: a request to an object store costs about as much as these
MAX_CACHED_PIECES = 4  # kept of each file
MAX_OPEN_FILES = 16

_HADOOP = (
    "a Hadoop URL needs libhdfs, a Java and CLASSPATH=$(hadoop classpath --glob) on the driver "
    "and on every worker"
)


def is_url(path: str) -> bool:
    """Whether this is read through `pyarrow.fs`; `file://` is an ordinary path written longer."""
    return "://" in path


def local_path(path: str) -> str:
    """The path that a `file://` URL means; everything else as it is."""
    if not path.startswith("file://"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise CaptureError("names another machine; write file:///path", path)
    return unquote(parts.path)


def filesystem(url: str) -> tuple[FileSystem, str]:
    """The file system behind `url` and the path on it; CaptureError says what is missing."""
    try:
        from pyarrow.fs import FileSystem
    except ImportError:
        raise MissingExtra("captures", "reading captures by URL") from None
    try:
        system, path = FileSystem.from_uri(url)
    except (OSError, ValueError, ImportError, RuntimeError) as problem:  # ArrowInvalid is a
        _raise_cannot_open(url, problem)  # ValueError, other Arrow errors are RuntimeErrors
    return system, path


def _raise_cannot_open(url: str, problem: Exception) -> NoReturn:
    reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    if url.startswith(("hdfs:", "viewfs:")):
        reason = f"{reason}; {_HADOOP}"
    raise CaptureError(f"cannot be opened: {reason}", url) from None


class RemoteSource(PlainSource):
    """A file behind a URL, as a capture source.

    Bytes come in pieces of some megabytes, the last few of which are kept: the scan and a walk
    over most of a file request each piece once.
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
        """There is none."""

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
    """Open a capture by path or URL; compression is found by its mark either way."""
    if not is_url(path):
        return open_source(path, limits)
    plain = RemoteSource(path, *filesystem(path))
    packing = detect_compression(plain.window(0, 4))
    return CompressedSource(path, plain, packing, limits) if packing else plain


class UrlFilePool:
    """Opens captures on demand, by path or URL, and keeps a bounded number of them open."""

    def __init__(self, limits: CaptureLimits) -> None:
        self.limits = limits
        self._local_pool = BoundedFilePool(limits)
        self.remote_sources: OrderedDict[str, Source] = OrderedDict()

    def source(self, path: str) -> Source:
        """The opened file; raises `CaptureError`."""
        if not is_url(path):
            return self._local_pool.source(path)
        source = self.remote_sources.pop(path, None) or open_capture(path, self.limits)
        self.remote_sources[path] = source
        while len(self.remote_sources) > MAX_OPEN_FILES:
            self.remote_sources.popitem(last=False)[1].close()
        return source

    def reader(self, path: str) -> Callable[[int, int], bytes]:
        """Reads exactly `size` bytes at `offset`, whether or not the file was closed since."""
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


def size_of(path: str) -> int:
    """Bytes of a capture as it lies there; 0 where that is not known."""
    if is_url(path):
        system, name = filesystem(path)
        return int(system.get_file_info(name).size or 0)
    return os.path.getsize(path) if os.path.isfile(path) else 0
