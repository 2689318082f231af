"""Where a capture's octets come from: a plain file, a compressed one, a pipe, stdin.

Two ways of reading. `window(offset, size)` is for the scan: offsets only grow, memory stays one
window. `read_at(offset, size)` is for payload: any offset, which for compressed files needs a
spool on disk, made only when somebody asks for payload.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import IO, Protocol, cast

from polymux.capture.io.decompression import packing_of, unpacker
from polymux.capture.io.mmap_gather import Mapping
from polymux.capture.io.paths import is_glob
from polymux.capture.limits import CaptureLimits
from polymux.core.errors import CaptureError, MissingExtra
from polymux.malloc import settle_allocator

STDIN = "-"
COPY = 1 << 20
ENDS_EARLY = "the compressed file ends early"


class Source(Protocol):
    """One capture file, opened. Errors are `CaptureError` with path and offset."""

    path: str
    packing: str
    """'', 'gzip', 'zstd', 'xz' or 'bzip2'."""

    @property
    def torn(self) -> str:
        """Why the octets ended early (a torn or damaged compressed file); '' if they did not."""

    def window(self, offset: int, size: int) -> bytes:
        """Up to `size` octets at `offset`, fewer only at the end. Going back may be slow."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` octets at `offset`."""

    def close(self) -> None: ...


class PlainSource:
    """A file that can be read at any offset. Its size is taken once, so a growing file ends."""

    packing = ""
    torn = ""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.size = os.fstat(fd).st_size
        self._mapping: Mapping | None = None

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

    def mapping(self) -> Mapping | None:
        """The file mapped, until `close`; None where that cannot be done."""
        if self._mapping is None:
            with contextlib.suppress(OSError):
                self._mapping = Mapping(self._fd, self.size)
        return self._mapping

    def forget(self) -> None:
        """Give up what is in use of the mapping."""
        if self._mapping is not None:
            self._mapping.forget()

    def still_holds(self, end: int) -> bool:
        """Whether the file still reaches up to octet `end`."""
        # (This asks more cheaply than fstat does. Nothing reads from where the descriptor stands.)
        return os.lseek(self._fd, 0, os.SEEK_END) >= end

    def close(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
        os.close(self._fd)


class PackedSource:
    """A compressed file, inflated as it is read and never further than asked for."""

    def __init__(self, path: str, raw: PlainSource, packing: str, limits: CaptureLimits) -> None:
        self.path = path
        self.packing = packing
        self._raw = raw
        self._limits = limits
        self._spool: Spool | None = None
        self._inflation = self._from_start()
        self._kept = b""
        self._kept_at = 0

    def _from_start(self) -> Inflation:
        return Inflation(self.path, self._raw, self.packing, self._limits)

    @property
    def torn(self) -> str:
        return self._inflation.torn

    def window(self, offset: int, size: int) -> bytes:
        if offset < self._kept_at:
            self._inflation = self._from_start()
            self._kept, self._kept_at = b"", 0
        while offset - self._kept_at > len(self._kept):
            self._kept_at += len(self._kept)
            self._kept = self._inflation.read(min(COPY, offset - self._kept_at))
            if not self._kept:
                return b""
        self._kept = self._kept[offset - self._kept_at :]
        self._kept_at = offset
        if len(self._kept) < size:
            self._kept += self._inflation.read(size - len(self._kept))
        return self._kept[:size]

    def read_at(self, offset: int, size: int) -> bytes:
        if self._spool is None:
            self._spool = Spool(self.path, self._from_start())
        return self._spool.read_at(offset, size)

    def close(self) -> None:
        self._raw.close()
        if self._spool is not None:
            self._spool.close()


class Inflation:
    """Inflates a file from its start in bounded steps; guards against bombs and torn ends."""

    def __init__(self, path: str, raw: PlainSource, packing: str, limits: CaptureLimits) -> None:
        self._path = path
        self._raw = raw
        self._limits = limits
        self._unpacker = unpacker(packing)
        self._pending = b""
        self._position = 0
        self._between = True
        self._out = 0
        self.torn = ""
        """Why nothing follows although the file promised more; '' while all is well."""

    def read(self, size: int) -> bytes:
        """Up to `size` octets; fewer only at the end, or where the file is torn or damaged."""
        parts: list[bytes] = []
        while size > 0 and not self.torn:
            if not self._pending and not self._unpacker.holds:
                self._pending = self._raw.window(self._position, 65536)
                self._position += len(self._pending)
                if not self._pending:
                    if not self._between:
                        self.torn = ENDS_EARLY
                    break
            try:
                data, self._pending, self._between = self._unpacker.step(self._pending, size)
            except MissingExtra:
                raise
            except Exception as failure:  # zlib.error, ZstdError, LZMAError: no common parent
                self.torn = f"the compressed data is damaged: {failure}"
                break
            self._out += len(data)
            size -= len(data)
            self._guard()
            parts.append(data)
        return b"".join(parts)

    def _guard(self) -> None:
        limits = self._limits
        if self._out > limits.inflated:
            raise CaptureError(
                f"inflates to more than the limit inflated={limits.inflated}; raise it with "
                "CaptureLimits(inflated=...) if the file is sound",
                self._path,
                self._out,
            )
        consumed = self._position - len(self._pending)
        if self._out > limits.ratio_from and self._out > consumed * limits.ratio:
            raise CaptureError(
                f"inflates {self._out // max(consumed, 1)}:1, more than the limit "
                f"ratio={limits.ratio}; raise it with CaptureLimits(ratio=...) if it is sound",
                self._path,
                self._out,
            )


class Spool:
    """What a compressed file holds, in an unnamed temporary file, as far as it was asked for.

    So a bomb costs no more of the disk than the packets before it.
    """

    def __init__(self, path: str, inflation: Inflation) -> None:
        self._path = path
        self._inflation = inflation
        self._size = 0
        try:
            self._file = tempfile.TemporaryFile(prefix="polymux-")  # noqa: SIM115  # see close
        except OSError as failure:
            raise self._failed(failure) from None

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            while self._size < offset + size and (data := self._inflation.read(COPY)):
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


def spool(path: str, read: Callable[[int], bytes], limits: CaptureLimits) -> PlainSource:
    """Everything `read` gives, in an unnamed temporary file that dies with the process."""
    total = 0
    try:
        with tempfile.TemporaryFile(prefix="polymux-") as file:
            while data := read(COPY):
                total += len(data)
                if total > limits.inflated:
                    raise CaptureError(
                        f"is longer than the limit inflated={limits.inflated}; raise it with "
                        "CaptureLimits(inflated=...) if it is meant to be",
                        path,
                        total,
                    )
                file.write(data)
            file.flush()
            return PlainSource(path, os.dup(file.fileno()))
    except OSError as failure:
        raise CaptureError(f"cannot be spooled to disk: {failure.strerror}", path, total) from None


def open_source(path: str, limits: CaptureLimits) -> Source:
    """Open `path`, or stdin for '-'; pipes are spooled, compression is found by its mark."""
    settle_allocator()
    plain = _open_plain(path, limits)
    packing = packing_of(plain.window(0, 4))
    return PackedSource(path, plain, packing, limits) if packing else plain


def _open_plain(path: str, limits: CaptureLimits) -> PlainSource:
    if path == STDIN:
        if sys.stdin is None:  # as Python has it where the descriptor is closed
            raise CaptureError("standard input is closed", path)
        return spool(path, cast(IO[bytes], sys.stdin.buffer).read, limits)
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
        return spool(path, pipe.read, limits)
