"""Sources of a capture's bytes: a plain file, a compressed one, a pipe, standard input.

There are two ways to read. `window(offset, size)` serves the scan: offsets ascend, and no more
than a window is held in memory. `read_at(offset, size)` serves payload at any offset; a compressed
file then needs a spool on disk, which is written only as far as payload is read.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import Protocol

from polymux.capture.io.decompression import detect_compression, new_decompressor
from polymux.capture.io.mmap_gather import MappedFile
from polymux.capture.io.paths import is_glob
from polymux.capture.limits import CaptureLimits
from polymux.core.errors import CaptureError, MissingExtra
from polymux.malloc import raise_trim_threshold

STDIN = "-"
COPY_BYTES = 1 << 20
ENDS_EARLY = "the compressed file ends early"


class Source(Protocol):
    """An open capture file. Errors are raised as `CaptureError` with path and offset."""

    path: str
    compression: str
    """'', 'gzip', 'zstd', 'xz' or 'bzip2'."""

    @property
    def decompression_error(self) -> str:
        """Why the bytes ended early (a torn or damaged compressed file); '' if they did not."""

    def window(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, fewer only at the end. Lower offsets may be slow."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes at `offset`."""

    def close(self) -> None: ...


class PlainSource:
    """A file that can be read at any offset.

    Its size is read once, when it is opened: bytes appended later are not read.
    """

    compression = ""
    decompression_error = ""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.size = os.fstat(fd).st_size
        self._mapped_file: MappedFile | None = None

    def window(self, offset: int, size: int) -> bytes:
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        try:
            return os.pread(self._fd, size, offset)
        except OSError as failure:
            raise CaptureError(f"cannot be read: {failure.strerror}", self.path, offset) from None

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, offset)
        except OSError as failure:
            raise CaptureError(f"cannot be read: {failure.strerror}", self.path, offset) from None
        if len(data) != size:
            raise CaptureError("the file shrank while it was being read", self.path, offset)
        return data

    def mapped_file(self) -> MappedFile | None:
        """The mapping of the file, valid until `close`; None if it cannot be mapped."""
        if self._mapped_file is None:
            with contextlib.suppress(OSError):
                self._mapped_file = MappedFile(self._fd, self.size)
        return self._mapped_file

    def drop_pages(self) -> None:
        """Give back the resident pages of the mapping."""
        if self._mapped_file is not None:
            self._mapped_file.drop_pages()

    def still_reaches(self, end: int) -> bool:
        """Whether the file is still at least `end` bytes long."""
        # Cheaper than fstat. Every read names its offset, so the file position is free to use.
        return os.lseek(self._fd, 0, os.SEEK_END) >= end

    def close(self) -> None:
        if self._mapped_file is not None:
            self._mapped_file.close()
        os.close(self._fd)


class CompressedSource:
    """A compressed file, decompressed as it is read and never further than requested."""

    def __init__(
        self, path: str, raw: PlainSource, compression: str, limits: CaptureLimits
    ) -> None:
        self.path = path
        self.compression = compression
        self._raw = raw
        self._limits = limits
        self._spool: DecompressedSpool | None = None
        self._stream = self._new_stream()
        self._window = b""
        self._window_offset = 0

    def _new_stream(self) -> DecompressionStream:
        return DecompressionStream(self.path, self._raw, self.compression, self._limits)

    @property
    def decompression_error(self) -> str:
        return self._stream.decompression_error

    def window(self, offset: int, size: int) -> bytes:
        if offset < self._window_offset:
            self._stream = self._new_stream()
            self._window, self._window_offset = b"", 0
        while offset - self._window_offset > len(self._window):
            self._window_offset += len(self._window)
            self._window = self._stream.read(min(COPY_BYTES, offset - self._window_offset))
            if not self._window:
                return b""
        self._window = self._window[offset - self._window_offset :]
        self._window_offset = offset
        if len(self._window) < size:
            self._window += self._stream.read(size - len(self._window))
        return self._window[:size]

    def read_at(self, offset: int, size: int) -> bytes:
        if self._spool is None:
            self._spool = DecompressedSpool(self.path, self._new_stream())
        return self._spool.read_at(offset, size)

    def close(self) -> None:
        self._raw.close()
        if self._spool is not None:
            self._spool.close()


class DecompressionStream:
    """Decompresses a file from its start in bounded steps.

    Enforces the limits against decompression bombs, and reports truncated and damaged files in
    `decompression_error`.
    """

    def __init__(
        self, path: str, raw: PlainSource, compression: str, limits: CaptureLimits
    ) -> None:
        self._path = path
        self._raw = raw
        self._limits = limits
        self._decompressor = new_decompressor(compression)
        self._pending = b""
        self._position = 0
        self._between_members = True
        self._bytes_out = 0
        self.decompression_error = ""
        """Why the stream ended early (truncated or damaged); '' otherwise."""

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end, or where the file is truncated or damaged.

        Raises:
            CaptureError: A limit is exceeded, or the file cannot be read.
        """
        parts: list[bytes] = []
        while size > 0 and not self.decompression_error:
            if not self._pending and not self._decompressor.has_pending_output:
                self._pending = self._raw.window(self._position, 65536)
                self._position += len(self._pending)
                if not self._pending:
                    if not self._between_members:
                        self.decompression_error = ENDS_EARLY
                    break
            try:
                data, self._pending, self._between_members = self._decompressor.decompress_step(
                    self._pending, size
                )
            except MissingExtra:
                raise
            except Exception as failure:  # zlib.error, ZstdError, LZMAError: no common parent
                self.decompression_error = f"the compressed data is damaged: {failure}"
                break
            self._bytes_out += len(data)
            size -= len(data)
            self._check_limits()
            parts.append(data)
        return b"".join(parts)

    def _check_limits(self) -> None:
        limits = self._limits
        if self._bytes_out > limits.max_decompressed_bytes:
            raise CaptureError(
                "inflates to more than the limit "
                f"max_decompressed_bytes={limits.max_decompressed_bytes}; raise it with "
                "CaptureLimits(max_decompressed_bytes=...) if the file is sound",
                self._path,
                self._bytes_out,
            )
        consumed = self._position - len(self._pending)
        if (
            self._bytes_out > limits.ratio_check_min_bytes
            and self._bytes_out > consumed * limits.max_compression_ratio
        ):
            raise CaptureError(
                f"inflates {self._bytes_out // max(consumed, 1)}:1, more than the limit "
                f"max_compression_ratio={limits.max_compression_ratio}; raise it with "
                "CaptureLimits(max_compression_ratio=...) if it is sound",
                self._path,
                self._bytes_out,
            )


class DecompressedSpool:
    """The decompressed bytes of a file in an unnamed temporary file, as far as they were requested.

    So a decompression bomb takes no more disk space than the packets before it.
    """

    def __init__(self, path: str, stream: DecompressionStream) -> None:
        self._path = path
        self._stream = stream
        self._size = 0
        try:
            self._file = tempfile.TemporaryFile(prefix="polymux-")  # noqa: SIM115  # see close
        except OSError as failure:
            raise self._failed(failure) from None

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            while self._size < offset + size and (data := self._stream.read(COPY_BYTES)):
                self._file.write(data)
                self._size += len(data)
            self._file.flush()
            data = os.pread(self._file.fileno(), size, offset)
        except OSError as failure:
            raise self._failed(failure) from None
        if len(data) != size:
            raise CaptureError("the file shrank while it was being read", self._path, offset)
        return data

    def close(self) -> None:
        self._file.close()

    def _failed(self, failure: OSError) -> CaptureError:
        text = f"cannot be spooled to disk: {failure.strerror}"
        return CaptureError(text, self._path, self._size)


def spool_to_disk(path: str, read: Callable[[int], bytes], limits: CaptureLimits) -> PlainSource:
    """Copy everything `read` returns to an unnamed temporary file.

    Raises:
        CaptureError: It is longer than `limits.max_decompressed_bytes`, or the disk is full.
    """
    total = 0
    try:
        with tempfile.TemporaryFile(prefix="polymux-") as file:
            while data := read(COPY_BYTES):
                total += len(data)
                if total > limits.max_decompressed_bytes:
                    raise CaptureError(
                        "is longer than the limit "
                        f"max_decompressed_bytes={limits.max_decompressed_bytes}; raise it with "
                        "CaptureLimits(max_decompressed_bytes=...) if that is intended",
                        path,
                        total,
                    )
                file.write(data)
            file.flush()
            return PlainSource(path, os.dup(file.fileno()))
    except OSError as failure:
        raise CaptureError(f"cannot be spooled to disk: {failure.strerror}", path, total) from None


def open_source(path: str, limits: CaptureLimits) -> Source:
    """Open `path`, or standard input for '-'.

    Pipes are spooled to disk; a compressed file is recognised by its first bytes.

    Raises:
        CaptureError: It cannot be opened or spooled.
    """
    raise_trim_threshold()
    plain = _open_plain(path, limits)
    compression = detect_compression(plain.window(0, 4))
    return CompressedSource(path, plain, compression, limits) if compression else plain


def _open_plain(path: str, limits: CaptureLimits) -> PlainSource:
    if path == STDIN:
        if sys.stdin is None:  # Python sets this if the descriptor is closed
            raise CaptureError("standard input is closed", path)
        return spool_to_disk(path, sys.stdin.buffer.read, limits)
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as failure:
        reason = f"cannot be opened: {failure.strerror}"
        if is_glob(path):
            reason = "no file matches"
        raise CaptureError(reason, path) from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        os.close(fd)
        raise CaptureError("is a directory; name the files in it", path)
    if stat.S_ISREG(mode):
        return PlainSource(path, fd)
    with os.fdopen(fd, "rb") as pipe:
        return spool_to_disk(path, pipe.read, limits)
