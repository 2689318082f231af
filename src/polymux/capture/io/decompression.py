"""Compressed captures: gzip, zstd, xz and bzip2, decompressed in bounded steps."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Protocol

from polymux.core.errors import MissingExtra


def packing_of(head: bytes) -> str:
    """How a file is compressed by its first four octets: '', 'gzip', 'zstd', 'xz' or 'bzip2'."""
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head == b"\x28\xb5\x2f\xfd" or (len(head) == 4 and head[1:] == b"\x2a\x4d\x18"):
        return "zstd"
    if head == b"\xfd7zX":
        return "xz"
    return "bzip2" if head[:3] == b"BZh" else ""


class Unpacker(Protocol):
    """Decompresses a file of one or more members or frames, one after another."""

    @property
    def holds(self) -> bool:
        """Whether `step` can give more octets without any further input."""

    def step(self, data: bytes, size: int) -> tuple[bytes, bytes, bool]:
        """At most `size` octets out; what is left of `data`; whether a member has ended."""


def unpacker(packing: str) -> Unpacker:
    if packing == "gzip":
        return _Gzip()
    return _Zstd() if packing == "zstd" else _Library(packing)


class _Gzip:
    """Members of a gzip file, one after another."""

    holds = False

    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)

    def step(self, data: bytes, size: int) -> tuple[bytes, bytes, bool]:
        out = self._member.decompress(data, size)
        if not self._member.eof:
            return out, self._member.unconsumed_tail, False
        rest = self._member.unused_data
        self._member = zlib.decompressobj(31)
        return out, rest, True


class _Zstd:
    """Frames of a zstd file, one after another."""

    # zstandard cannot bound what one call gives out. A block of 4 octets may become 128 KiB, so
    # this many octets become at most 8 MiB.
    FEED = 256
    WINDOW = 1 << 27

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError:
            raise MissingExtra("captures", "reading zstd files") from None
        self._maker = zstandard.ZstdDecompressor(max_window_size=self.WINDOW)
        self._frame = self._maker.decompressobj()
        self._spare = b""
        self._ended = True

    @property
    def holds(self) -> bool:
        return bool(self._spare)

    def step(self, data: bytes, size: int) -> tuple[bytes, bytes, bool]:
        if not self._spare:
            self._ended = False
            self._spare = self._frame.decompress(data[: self.FEED])
            rest = data[self.FEED :]
            if self._frame.eof:
                rest = self._frame.unused_data + rest
                self._frame = self._maker.decompressobj()
                self._ended = True
            data = rest
        out, self._spare = self._spare[:size], self._spare[size:]
        return out, data, self._ended and not self._spare


class _Library:
    """Streams of an xz or bzip2 file, one after another, by the standard library."""

    MEMORY = 256 << 20  # octets an xz stream may want for its dictionary; `xz -9` wants 65 MiB
    FEED = 65536

    def __init__(self, packing: str) -> None:
        self._packing = packing
        self._stream = self._new()
        self._begun = False  # the stream has had input

    def _new(self) -> lzma.LZMADecompressor | bz2.BZ2Decompressor:
        if self._packing == "bzip2":
            return bz2.BZ2Decompressor()
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=self.MEMORY)

    @property
    def holds(self) -> bool:
        return not self._stream.needs_input

    def step(self, data: bytes, size: int) -> tuple[bytes, bytes, bool]:
        taken = b""
        if self._packing == "xz" and not self._begun:  # zeros may pad the file behind a stream
            data = data.lstrip(b"\0")
            if not data:
                return b"", b"", True
        self._begun = True
        if self._stream.needs_input:
            taken, data = data[: self.FEED], data[self.FEED :]
        out = self._stream.decompress(taken, size)
        if not self._stream.eof:
            return out, data, False
        rest = self._stream.unused_data + data
        self._stream = self._new()
        self._begun = False
        return out, rest, True
