"""Captures on other file systems: every URL that `pyarrow.fs` opens, read in large pieces."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NoReturn

from polymux.capture.io.paths import is_url
from polymux.capture.io.sources import (
    SHRANK,
    CompressedSource,
    FileVersion,
    PlainSource,
    StoredSource,
    detect_compression,
    open_source,
)
from polymux.capture.limits import CaptureLimits
from polymux.core.errors import CaptureUnavailable, MissingExtra
from polymux.core.urls import without_credentials

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

# Bytes of one request; the fixed cost of a request to an object store is about as high.
REQUEST_BYTES = 4 << 20
MAX_CACHED_PIECES = 4  # of each file

_HADOOP = (
    "a Hadoop URL needs libhdfs, a Java and CLASSPATH=$(hadoop classpath --glob) on the driver "
    "and on every worker"
)


def filesystem(url: str) -> tuple[FileSystem, str]:
    """The file system of `url` and the path on it.

    Raises:
        CaptureUnavailable: The file system cannot be opened; the message says what is missing.
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
    reason = reason.replace(url, without_credentials(url))
    if url.startswith(("hdfs:", "viewfs:")):
        reason = f"{reason}; {_HADOOP}"
    raise CaptureUnavailable(f"cannot be opened: {reason}", url) from None


class RemoteSource(PlainSource):
    """A file named by a URL, as a capture source.

    It is fetched in pieces of `REQUEST_BYTES`, the last few of which are cached: the scan, and an
    analysis of most flows of a file, request each piece once.
    """

    def __init__(self, url: str, system: FileSystem, path: str) -> None:
        self.path = url
        self.name = without_credentials(url)
        self.bytes_read = 0
        self._system = system
        self._path_there = path
        try:
            self._file = system.open_input_file(path)
            self.opened_version = self._version_of(self._file)
            self.size = self.opened_version.size
        except (OSError, ValueError, RuntimeError) as problem:
            _raise_cannot_open(url, problem)
        self._pieces: OrderedDict[int, bytes] = OrderedDict()

    def window(self, offset: int, size: int) -> bytes:
        return self._read(offset, max(0, min(size, self.size - offset)))

    def read_at(self, offset: int, size: int) -> bytes:
        data = self._read(offset, size)
        if len(data) != size:
            raise CaptureUnavailable(SHRANK, self.path, offset)
        return data

    def version(self) -> FileVersion:
        try:
            with self._system.open_input_file(self._path_there) as file:
                return self._version_of(file)
        except (OSError, ValueError, RuntimeError) as problem:
            _raise_cannot_open(self.path, problem)

    def _version_of(self, file: NativeFile) -> FileVersion:
        """Its entity tag, where the store has one; otherwise its modification time."""
        try:
            tags = {str(name): str(value) for name, value in (file.metadata() or {}).items()}
        except NotImplementedError:
            tags = {}
        stamp = tags.get("ETag") or self._system.get_file_info(self._path_there).mtime_ns
        return FileVersion(int(file.size()), str(stamp or ""))

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
            size = min(REQUEST_BYTES, max(0, self.size - start))
            try:
                piece = bytes(self._file.read_at(size, start))
            except (OSError, ValueError, RuntimeError) as problem:
                text = f"cannot be read: {str(problem).splitlines()[0]}"
                raise CaptureUnavailable(text, self.path, start) from None
            self.bytes_read += len(piece)
            if len(piece) != size:
                raise CaptureUnavailable(SHRANK, self.path, start + len(piece))
        self._pieces[number] = piece
        while len(self._pieces) > MAX_CACHED_PIECES:
            self._pieces.popitem(last=False)
        return piece


def open_capture(path: str, limits: CaptureLimits) -> StoredSource:
    """Open a capture by path or URL, decompressing it if its first bytes say so.

    Raises:
        CaptureUnavailable: It cannot be opened.
        CaptureError: It is a directory.
    """
    if not is_url(path):
        return open_source(path, limits)
    plain = RemoteSource(path, *filesystem(path))
    compression = detect_compression(plain.window(0, 4))
    return CompressedSource(path, plain, compression, limits) if compression else plain
