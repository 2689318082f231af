"""A capture on a pipe: octets as they come, decompressed if they are compressed."""

from __future__ import annotations

import os
import select
from typing import Final

from polymux.capture.io.decompression import Unpacker, packing_of, unpacker
from polymux.capture.io.sources import ENDS_EARLY
from polymux.core.errors import CaptureError, MissingExtra

CHUNK: Final = 1 << 16
SILENCE: Final = 0.2  # seconds without octets that count as silence


class Pipe:
    """Reads the descriptor `fd`, which stays the caller's. Holds at most a few chunks."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.packing = ""
        """How it is compressed: see `packing_of`."""
        self.torn = ""
        """Why the octets ended early; '' if they did not."""
        self._fd = fd
        self._begun = False
        self._unpacker: Unpacker | None = None
        self._packed = b""
        self._between = True

    def read(self) -> bytes | None:
        """The next octets; b"" at the end, None if nothing came for a while.

        Raises CaptureError if the pipe cannot be read, MissingExtra for zstd without its library.
        """
        if not self._begun:
            return self._begin()
        if self._unpacker is None:
            return self._raw()
        return self._unpacked(self._unpacker)

    def _begin(self) -> bytes | None:
        """The first octets say how the rest is compressed."""
        data = self._raw()
        if data is None:
            return None
        self._packed += data
        if data and len(self._packed) < 4:
            return None
        self._begun = True
        self.packing = packing_of(self._packed[:4])
        if self.packing:
            self._unpacker = unpacker(self.packing)
            return self._unpacked(self._unpacker)
        first, self._packed = self._packed, b""
        return first

    def _unpacked(self, unpacker: Unpacker) -> bytes | None:
        while not self.torn:
            if not self._packed and not unpacker.holds:
                data = self._raw()
                if not data:
                    if data is not None and not self._between:
                        self.torn = ENDS_EARLY
                    return data
                self._packed = data
            try:
                out, self._packed, self._between = unpacker.step(self._packed, CHUNK)
            except MissingExtra:
                raise
            except Exception as failure:  # zlib.error, ZstdError, LZMAError: no common parent
                self.torn = f"the compressed data is damaged: {failure}"
                break
            if out:
                return out
        return b""

    def _raw(self) -> bytes | None:
        try:
            ready, _, _ = select.select([self._fd], [], [], SILENCE)
            return os.read(self._fd, CHUNK) if ready else None
        except OSError as failure:
            raise CaptureError(f"cannot be read: {failure.strerror}", self.path) from None
