"""Gathering pieces from all over a file with one system call instead of one for each piece.

The file is mapped, and `pwritev` copies the pieces from the mapping into a small memory file
(memfd). Nothing here dereferences the mapping itself: if the file shrank or the disk fails, that
would raise SIGBUS and end the process, while the kernel only returns an error. Available on 64-bit
little-endian Linux; elsewhere, and whenever a step fails, pieces are read one by one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

from polymux.capture.io.read_runs import MAX_RUN_BYTES, MAX_RUN_PIECES, ResidentBlocks

GATHER_BUFFER_BYTES = int(MAX_RUN_BYTES)
_MAP_FAILED = ctypes.c_void_p(-1).value


def _load_libc() -> ctypes.CDLL | None:
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or sys.byteorder != "little":
        return None
    try:
        library = ctypes.CDLL(None)
        number, size, address = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
        library.mmap.argtypes = [address, size, number, number, number, ctypes.c_int64]
        library.mmap.restype = address
        library.munmap.argtypes = [address, size]
        library.madvise.argtypes = [address, size, number]
        library.pwritev.argtypes = [number, ctypes.c_char_p, number, ctypes.c_int64]
        library.pwritev.restype = ctypes.c_ssize_t
        return library if os.sysconf("SC_IOV_MAX") >= MAX_RUN_PIECES else None
    except (AttributeError, OSError, ValueError):
        return None


LIBC = _load_libc()


class MappedFile:
    """Read-only mapping of a capture, used only as a source address for `pwritev`.

    It is never dereferenced in Python: a truncated file would raise SIGBUS. `resident_blocks`
    are the blocks that were read through it since `drop_pages`.
    """

    def __init__(self, fd: int, size: int) -> None:
        """Raises OSError if the file cannot be mapped."""
        self.size = size
        self.address = 0
        if LIBC is None or size <= 0:
            raise OSError("cannot map the file")
        address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address is None or address == _MAP_FAILED:
            raise OSError("cannot map the file")
        self.address = int(address)
        self.resident_blocks = ResidentBlocks(size)

    def drop_pages(self) -> None:
        """Give back the resident pages; the next read faults them in from the page cache."""
        if self.resident_blocks.count and LIBC is not None:
            LIBC.madvise(self.address, self.size, mmap.MADV_DONTNEED)
            self.resident_blocks = ResidentBlocks(self.size)

    def close(self) -> None:
        if self.address and LIBC is not None:
            LIBC.munmap(self.address, self.size)
        self.address = 0


class GatherBuffer:
    """The memory file that pieces are copied to.

    It belongs to the process that made it (`owner_pid`): a forked child shares its bytes.
    """

    def __init__(self) -> None:
        """Raises OSError if the system cannot make one."""
        self.owner_pid = os.getpid()
        if LIBC is None:
            raise OSError("no gather buffer on this system")
        self._fd = os.memfd_create("polymux", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, GATHER_BUFFER_BYTES)
            self._view = memoryview(mmap.mmap(self._fd, GATHER_BUFFER_BYTES))
        except (OSError, ValueError):
            os.close(self._fd)
            raise

    def gather(self, iovecs: bytes, pieces: int, total_bytes: int) -> bytes | None:
        """The pieces joined in order; None if the kernel could not read all of them."""
        if LIBC is None or total_bytes > GATHER_BUFFER_BYTES:
            return None
        if LIBC.pwritev(self._fd, iovecs, pieces, 0) != total_bytes:
            return None
        return bytes(self._view[:total_bytes])

    def close(self) -> None:
        self._view.release()
        os.close(self._fd)
