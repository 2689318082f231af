"""Sources of a capture's bytes: a plain file, a compressed one, a pipe, standard input.

There are two ways to read. `window(offset, size)` serves the scan: offsets ascend, and no more
than a window is held in memory. `read_at(offset, size)` serves payload at any offset; a compressed
file then needs a spool on disk, which is written only as far as payload is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from polymux.capture.io.decompression import new_decompressor
from polymux.capture.io.mmap_gather import MappedFile
from polymux.capture.io.paths import is_glob, is_url
from polymux.capture.limits import CaptureLimits
from polymux.capture.pcapng.block_types import MAGICS, NOT_A_CAPTURE
from polymux.core.errors import CaptureError, CaptureUnavailable, MissingExtra, PolymuxError
from polymux.malloc import raise_trim_threshold

STDIN = "-"
COPY_BYTES = 1 << 20
MAGIC_BYTES = 4
ENDS_EARLY = "the compressed file ends early"
SHRANK = "the file shrank while it was being read"
# The samples by which a file is recognised: this many, from the beginning to the end, and bytes.
SAMPLES = 16
SAMPLE_BYTES = 4096


class Source(Protocol):
    """An open capture file. Errors are raised as `CaptureError` with path and offset; those of the
    file system as `CaptureUnavailable`."""

    path: str
    name: str
    """The path; of a URL, what is left without credentials and options."""
    compression: str
    """'', 'gzip', 'zstd', 'xz' or 'bzip2'."""

    @property
    def decompression_error(self) -> str:
        """Why the bytes ended early (truncated or damaged compression); '' if they did not."""

    def window(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, fewer only at the end. Lower offsets may be slow."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes at `offset`."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The size of a stored file in bytes, and a text that changes when its content does.

    The text is the modification time or what the store says instead; "" if it says nothing.
    """

    size: int
    stamp: str


class StoredSource(Source, Protocol):
    """A source that is a file, so that it can be recognised when it is opened again."""

    @property
    def opened_version(self) -> FileVersion:
        """The version of the stored file when it was opened."""

    def version(self) -> FileVersion:
        """The version of the stored file now."""

    def sample_digest(self, size: int) -> str:
        """A digest of samples of the first `size` bytes of the stored file, its edges included."""

    @property
    def bytes_read(self) -> int:
        """Bytes that were read of the stored file."""


class PlainSource:
    """A file that can be read at any offset.

    Its size is read once, when it is opened: bytes appended later are not read.
    """

    compression = ""
    decompression_error = ""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.name = path
        self._fd = fd
        self.opened_version = self.version()
        self.size = self.opened_version.size
        self.bytes_read = 0
        self._mapped_file: MappedFile | None = None

    def window(self, offset: int, size: int) -> bytes:
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        return self._pread(offset, size)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._pread(offset, size)

    def _pread(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, offset)
        except OSError as failure:
            text = f"cannot be read: {failure.strerror}"
            raise CaptureUnavailable(text, self.path, offset) from None
        self.bytes_read += len(data)
        if len(data) != size:
            raise CaptureUnavailable(SHRANK, self.path, offset)
        return data

    def version(self) -> FileVersion:
        try:
            now = os.fstat(self._fd)
        except OSError as failure:
            raise CaptureUnavailable(f"cannot be read: {failure.strerror}", self.path) from None
        return FileVersion(now.st_size, str(now.st_mtime_ns))

    def sample_digest(self, size: int) -> str:
        if size <= SAMPLES * SAMPLE_BYTES:
            return hashlib.sha256(self.read_at(0, size)).hexdigest()
        digest = hashlib.sha256()
        for number in range(SAMPLES):
            start = (size - SAMPLE_BYTES) * number // (SAMPLES - 1)
            digest.update(self.read_at(start, SAMPLE_BYTES))
        return digest.hexdigest()

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
        self.name = raw.name
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

    @property
    def opened_version(self) -> FileVersion:
        return self._raw.opened_version

    def version(self) -> FileVersion:
        return self._raw.version()

    def sample_digest(self, size: int) -> str:
        return self._raw.sample_digest(size)

    @property
    def bytes_read(self) -> int:
        return self._raw.bytes_read

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
            raise CaptureUnavailable(SHRANK, self._path, offset)
        return data

    def close(self) -> None:
        self._file.close()

    def _failed(self, failure: OSError) -> CaptureError:
        text = f"cannot be spooled to disk: {failure.strerror}"
        return CaptureUnavailable(text, self._path, self._size)


def spool_to_disk(path: str, read: Callable[[int], bytes], limits: CaptureLimits) -> PlainSource:
    """Copy everything `read` returns to an unnamed temporary file.

    Raises:
        CaptureError: It does not begin like a capture, is longer than
            `limits.max_decompressed_bytes`, or the disk is full.
    """
    total = 0
    try:
        head = read(MAGIC_BYTES)
        if len(head) == MAGIC_BYTES and head not in MAGICS and not detect_compression(head):
            raise CaptureError(NOT_A_CAPTURE, path, 0)  # before it is copied: it may have no end
        with tempfile.TemporaryFile(prefix="polymux-") as file:
            file.write(head)
            total = len(head)
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
        text = f"cannot be spooled to disk: {failure.strerror}"
        raise CaptureUnavailable(text, path, total) from None


def open_source(path: str, limits: CaptureLimits) -> StoredSource:
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
        raise cannot_be_opened(path, failure) from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        os.close(fd)
        raise CaptureError("is a directory; name the files in it", path)
    if stat.S_ISREG(mode):
        return PlainSource(path, fd)
    with os.fdopen(fd, "rb") as pipe:
        return spool_to_disk(path, pipe.read, limits)


def cannot_be_opened(path: str, failure: OSError) -> CaptureError:
    """The error for a file that the system refuses to open, or for a glob that matches none."""
    reason = f"cannot be opened: {failure.strerror}"
    return CaptureUnavailable("no file matches" if is_glob(path) else reason, path)


def detect_compression(head: bytes) -> str:
    """The compression of a file by its first four bytes: 'gzip', 'zstd', 'xz', 'bzip2' or ''."""
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head == b"\x28\xb5\x2f\xfd" or (len(head) == 4 and head[1:] == b"\x2a\x4d\x18"):
        return "zstd"
    if head == b"\xfd7zX":
        return "xz"
    return "bzip2" if head[:3] == b"BZh" else ""


# Recognising a capture when it is opened again, later or by another process. The references of an
# index point into a file. They are worth nothing if another file has its name by the time the
# payload is read, so an index notes the identity of each file, which is checked after that.


class LostInput(PolymuxError):
    """A capture that was listed or indexed cannot be read any more, or has changed.

    Not a `CaptureError`: an analysis notes those in the rows of a session and goes on, while this
    one fails the task, so that it is tried again elsewhere and no table lacks the rows.
    """


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What a file was when it was indexed: its version, and a digest of samples of it.

    A file behind a URL has no samples, because reading them costs requests, but a digest of its
    `head`, which every reader has read. That is too little to go on reading another version of it
    (`check`), and enough to tell a later one that has grown from another capture (`has_grown`).
    """

    size: int
    stamp: str
    samples: str = ""
    head: str = ""

    @classmethod
    def of(cls, source: StoredSource) -> FileIdentity:
        """The identity of an open file.

        Raises:
            CaptureUnavailable: It cannot be read.
        """
        opened = source.opened_version
        stamp = opened.stamp.replace(" ", "_")
        if is_url(source.path):
            return cls(opened.size, stamp, head=_head_digest(source, opened.size))
        return cls(opened.size, stamp, source.sample_digest(opened.size))

    @classmethod
    def parse(cls, text: str) -> FileIdentity:
        """The identity that `str` gave."""
        size, stamp, samples, *head = text.split(" ")
        return cls(int(size), stamp, samples, *head)

    def __str__(self) -> str:
        head = f" {self.head}" if self.head else ""
        return f"{self.size} {self.stamp} {self.samples}{head}"

    def has_grown(self, source: StoredSource, now: FileVersion) -> bool:
        """Whether an open file behind a URL, whose version is `now`, has grown since.

        Raises:
            CaptureUnavailable: It cannot be read.
        """
        larger = bool(self.head) and now.size > self.size
        return larger and _head_digest(source, self.size) == self.head

    def check(self, source: StoredSource, now: FileVersion) -> None:
        """Check that an open file, whose version is `now`, begins with the file of this identity.

        A capture that is still being written has grown since, and one that was copied once more
        has another modification time: both are the same file.

        Raises:
            CaptureUnavailable: It is another file, or cannot be read.
        """
        if now.size == self.size and now.stamp.replace(" ", "_") == self.stamp:
            return
        comparable = bool(self.samples) and now.size >= self.size
        if comparable and source.sample_digest(self.size) == self.samples:
            return
        what = "it was replaced or written to"
        if now.size != self.size:
            what = f"it had {self.size} bytes and has {now.size}"
        raise CaptureUnavailable(
            f"has changed since it was indexed: {what}; analyze it again", source.path
        )


def _head_digest(source: StoredSource, size: int) -> str:
    """A digest of the head of a file that has, or had, this size."""
    return source.sample_digest(min(size, SAMPLE_BYTES))


Copy = Callable[[bytes, int], None]  # takes bytes and their offset


class IndexedSource:
    """A capture that an index task reads, as a `Source`.

    An error of the file system is a `LostInput`, which fails the task: an index notes other errors
    in the row of the capture. What is read is also handed to `copy`, if there is one.
    """

    def __init__(self, source: Source, copy: Copy | None = None) -> None:
        self._source = source
        self._copy = copy
        self.path = source.path
        self.name = source.name
        self.compression = source.compression

    @property
    def decompression_error(self) -> str:
        return self._source.decompression_error

    def window(self, offset: int, size: int) -> bytes:
        try:
            data = self._source.window(offset, size)
        except CaptureUnavailable as problem:
            raise LostInput(str(problem)) from None
        if self._copy is not None:
            self._copy(data, offset)
        return data

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            return self._source.read_at(offset, size)
        except CaptureUnavailable as problem:
            raise LostInput(str(problem)) from None

    def close(self) -> None:
        self._source.close()
