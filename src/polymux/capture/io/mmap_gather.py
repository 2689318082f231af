"""Pieces from all over a file joined by one call to the kernel, instead of one for each piece.

The file is mapped, and the kernel copies the pieces from there into a small file in memory that is
ours alone. Nothing here looks into the mapping itself: where a file shrank or a disk fails, that
would end the process by a signal, while the kernel only says that it could not. Only on 64-bit
Linux; elsewhere, and wherever anything of it fails, pieces are read one by one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

from polymux.capture.io.read_runs import (
    MAX_RUN_BYTES,
    MAX_RUN_PIECES,
    RESIDENT_BLOCK_BITS,
    ResidentBlocks,
)

GATHER_BUFFER_BYTES = int(MAX_RUN_BYTES)
# Blocks of mapped files in use at a time, by all files together. They are the system's cache and
# not our memory, but they count as if they were.
MAX_RESIDENT_BLOCKS = (64 << 20) >> RESIDENT_BLOCK_BITS
_MAP_FAILED = ctypes.c_void_p(-1).value


def _load_libc() -> ctypes.CDLL | None:
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or sys.byteorder != "little":
        return None
    try:
        library = ctypes.CDLL(None)
        number, size, place = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
        library.mmap.argtypes = [place, size, number, number, number, ctypes.c_int64]
        library.mmap.restype = place
        library.munmap.argtypes = [place, size]
        library.madvise.argtypes = [place, size, number]
        library.pwritev.argtypes = [number, ctypes.c_char_p, number, ctypes.c_int64]
        library.pwritev.restype = ctypes.c_ssize_t
        return library if os.sysconf("SC_IOV_MAX") >= MAX_RUN_PIECES else None
    except (AttributeError, OSError, ValueError):
        return None


LIBC = _load_libc()


class MappedFile:
    """An address at which a file's bytes can be found, for the kernel's eyes only."""

    def __init__(self, fd: int, size: int) -> None:
        """Raises OSError if the file cannot be mapped."""
        self.size = size
        self.address = 0
        if LIBC is None or size <= 0:
            raise OSError("no mapping")
        address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address is None or address == _MAP_FAILED:
            raise OSError("no mapping")
        self.address = int(address)
        self.resident_blocks = ResidentBlocks(size)

    def drop_pages(self) -> None:
        """No block of the file is in use any more; looking at one brings it back."""
        if self.resident_blocks.count and LIBC is not None:
            LIBC.madvise(self.address, self.size, mmap.MADV_DONTNEED)
            self.resident_blocks = ResidentBlocks(self.size)

    def close(self) -> None:
        if self.address and LIBC is not None:
            LIBC.munmap(self.address, self.size)
        self.address = 0


class GatherBuffer:
    """The file in memory. It belongs to the process that made it: a fork would share its bytes."""

    def __init__(self) -> None:
        """Raises OSError if there can be none."""
        self.owner_pid = os.getpid()
        if LIBC is None:
            raise OSError("no stage")
        self._fd = os.memfd_create("polymux", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, GATHER_BUFFER_BYTES)
            self._view = memoryview(mmap.mmap(self._fd, GATHER_BUFFER_BYTES))
        except (OSError, ValueError):
            os.close(self._fd)
            raise

    def gather(self, iovecs: bytes, pieces: int, total_bytes: int) -> bytes | None:
        """The pieces in order; None if the kernel could not get at all of them."""
        if LIBC is None or total_bytes > GATHER_BUFFER_BYTES:
            return None
        if LIBC.pwritev(self._fd, iovecs, pieces, 0) != total_bytes:
            return None
        return bytes(self._view[:total_bytes])

    def close(self) -> None:
        self._view.release()
        os.close(self._fd)
