"""A capture that arrives on a pipe, read as it arrives and decompressed if necessary."""

from __future__ import annotations

import os
import select
from typing import Final

from polymux.capture.io.decompression import Decompressor, new_decompressor
from polymux.capture.io.sources import ENDS_EARLY, detect_compression
from polymux.core.errors import CaptureError, MissingExtra

CHUNK_BYTES: Final = 1 << 16
SILENCE_SECONDS: Final = 0.2  # after which, without data, a session waits no longer


class CapturePipe:
    """Reads a capture from the descriptor `fd`; the caller keeps and closes the descriptor.

    Buffers at most a few chunks. `read` waits for data up to `wait_seconds`.
    """

    def __init__(self, path: str, fd: int, wait_seconds: float = SILENCE_SECONDS) -> None:
        self.path = path
        self.name = path
        self.compression = ""
        """How the data is compressed (see `detect_compression`), once the first bytes are read."""
        self.decompression_error = ""
        """Why the decompressed bytes ended early; '' if they did not."""
        self._fd = fd
        self._wait_seconds = wait_seconds
        self._compression_known = False
        self._decompressor: Decompressor | None = None
        self._compressed = b""
        self._between_members = True

    def read(self) -> bytes | None:
        """The next bytes; b"" at the end, None if no data arrived for `wait_seconds`.

        Raises:
            CaptureError: The pipe cannot be read.
            MissingExtra: The data is zstd and its library is not installed.
        """
        if not self._compression_known:
            return self._read_first()
        if self._decompressor is None:
            return self.read_raw()
        return self._read_decompressed(self._decompressor)

    def _read_first(self) -> bytes | None:
        """Detect the compression from the first four bytes."""
        while len(self._compressed) < 4:
            data = self.read_raw()
            if data is None:
                return None
            if not data:
                break
            self._compressed += data
        self._compression_known = True
        self.compression = detect_compression(self._compressed[:4])
        if self.compression:
            self._decompressor = new_decompressor(self.compression)
            return self._read_decompressed(self._decompressor)
        first, self._compressed = self._compressed, b""
        return first

    def _read_decompressed(self, decompressor: Decompressor) -> bytes | None:
        while not self.decompression_error:
            if not self._compressed and not decompressor.has_pending_output:
                data = self.read_raw()
                if not data:
                    if data is not None and not self._between_members:
                        self.decompression_error = ENDS_EARLY
                    return data
                self._compressed = data
            try:
                out, self._compressed, self._between_members = decompressor.decompress_step(
                    self._compressed, CHUNK_BYTES
                )
            except MissingExtra:
                raise
            except Exception as failure:  # zlib.error, ZstdError, LZMAError: no common parent
                self.decompression_error = f"the compressed data is damaged: {failure}"
                break
            if out:
                return out
        return b""

    def read_raw(self) -> bytes | None:
        """The next bytes as they arrive; see `read`."""
        try:
            ready, _, _ = select.select([self._fd], [], [], self._wait_seconds)
            return os.read(self._fd, CHUNK_BYTES) if ready else None
        except OSError as failure:
            raise CaptureError(f"cannot be read: {failure.strerror}", self.path) from None
