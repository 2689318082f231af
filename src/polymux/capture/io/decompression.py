"""Compressed captures: gzip, zstd, xz and bzip2, decompressed in bounded steps."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Protocol

from polymux.core.errors import MissingExtra


class Decompressor(Protocol):
    """Decompresses a file of one or more concatenated members (gzip), frames (zstd) or streams."""

    @property
    def has_pending_output(self) -> bool:
        """Whether `decompress_step` can return more bytes without further input."""

    def decompress_step(self, data: bytes, size: int) -> tuple[bytes, bytes, bool]:
        """Returns at most `size` bytes, the unused rest of `data`, and whether a member has ended.

        Damaged data raises the exception of the decompression library.
        """


def new_decompressor(compression: str) -> Decompressor:
    """A decompressor for a compression that `sources.detect_compression` returned.

    Raises MissingExtra for zstd without its library.
    """
    if compression == "gzip":
        return _GzipDecompressor()
    return _ZstdDecompressor() if compression == "zstd" else _StdlibDecompressor(compression)


class _GzipDecompressor:
    """Concatenated members of a gzip file."""

    has_pending_output = False

    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)

    def decompress_step(self, data: bytes, size: int) -> tuple[bytes, bytes, bool]:
        out = self._member.decompress(data, size)
        if not self._member.eof:
            return out, self._member.unconsumed_tail, False
        rest = self._member.unused_data
        self._member = zlib.decompressobj(31)
        return out, rest, True


class _ZstdDecompressor:
    """Concatenated frames of a zstd file."""

    # zstandard cannot bound the output of one call. A block of 4 bytes may expand to 128 KiB, so
    # this many bytes expand to at most 8 MiB.
    FEED_BYTES = 256
    MAX_WINDOW_BYTES = 1 << 27

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError:
            raise MissingExtra("captures", "reading zstd files") from None
        self._factory = zstandard.ZstdDecompressor(max_window_size=self.MAX_WINDOW_BYTES)
        self._frame = self._factory.decompressobj()
        self._pending = b""
        self._ended = True

    @property
    def has_pending_output(self) -> bool:
        return bool(self._pending)

    def decompress_step(self, data: bytes, size: int) -> tuple[bytes, bytes, bool]:
        if not self._pending:
            self._ended = False
            self._pending = self._frame.decompress(data[: self.FEED_BYTES])
            rest = data[self.FEED_BYTES :]
            if self._frame.eof:
                rest = self._frame.unused_data + rest
                self._frame = self._factory.decompressobj()
                self._ended = True
            data = rest
        out, self._pending = self._pending[:size], self._pending[size:]
        return out, data, self._ended and not self._pending


class _StdlibDecompressor:
    """Concatenated streams of an xz or bzip2 file, decompressed by the standard library."""

    MAX_MEMORY_BYTES = 256 << 20  # for the dictionary of an xz stream; `xz -9` needs 65 MiB
    FEED_BYTES = 65536

    def __init__(self, compression: str) -> None:
        self._compression = compression
        self._stream = self._new_stream()
        self._has_input = False  # of the current stream

    def _new_stream(self) -> lzma.LZMADecompressor | bz2.BZ2Decompressor:
        if self._compression == "bzip2":
            return bz2.BZ2Decompressor()
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=self.MAX_MEMORY_BYTES)

    @property
    def has_pending_output(self) -> bool:
        return not self._stream.needs_input

    def decompress_step(self, data: bytes, size: int) -> tuple[bytes, bytes, bool]:
        taken = b""
        if self._compression == "xz" and not self._has_input:
            # Zeros may pad the file after a stream.
            data = data.lstrip(b"\0")
            if not data:
                return b"", b"", True
        self._has_input = True
        if self._stream.needs_input:
            taken, data = data[: self.FEED_BYTES], data[self.FEED_BYTES :]
        out = self._stream.decompress(taken, size)
        if not self._stream.eof:
            return out, data, False
        rest = self._stream.unused_data + data
        self._stream = self._new_stream()
        self._has_input = False
        return out, rest, True
