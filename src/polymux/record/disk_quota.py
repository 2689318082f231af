"""A limit on the disk space of a collector's captures.

At the limit a collector does what it does on a full disk: it confirms nothing and waits until files
were removed. It removes none itself: which captures are no longer needed is not its decision.

Collectors that are several processes have one limit for their common directory. They count together
in a small file that they all have mapped, and lock it from the look at the count until the packets
are written.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator

from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.writer import DiskFull
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.live.process_lock import process_lock, unnamed_file

RECOUNT_SECONDS = 1.0  # how often the files are counted again while packets are written
COUNT_LAYOUT = struct.Struct("=qd")  # the bytes, and when they were counted


class FolderUse:
    """The bytes of the files in a directory: counted now and then, and added to meanwhile.

    Args:
        folder: The directory; all that is in it counts.
        descriptor: Of a file that `shared_count_file` has made, for processes that count together.
            None: only this process writes there.
    """

    def __init__(self, folder: str, descriptor: int | None = None) -> None:
        self.folder = folder
        self._descriptor = descriptor
        size = COUNT_LAYOUT.size
        self._memory = bytearray(size) if descriptor is None else mmap.mmap(descriptor, size)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the other processes from reading and changing the count within the block."""
        if self._descriptor is None:
            yield
            return
        with process_lock(self._descriptor):
            yield

    def current(self) -> int:
        """Return the bytes. The files are counted if that was not done for RECOUNT_SECONDS."""
        used, counted_at = COUNT_LAYOUT.unpack_from(self._memory)
        now = time.monotonic()  # the same clock in all processes
        if not counted_at or now - counted_at >= RECOUNT_SECONDS:
            used = folder_size(self.folder)
            COUNT_LAYOUT.pack_into(self._memory, 0, used, now)
        return int(used)

    def add(self, size: int) -> None:
        """Count bytes that are about to be written; negative ones were not written after all."""
        used, counted_at = COUNT_LAYOUT.unpack_from(self._memory)
        COUNT_LAYOUT.pack_into(self._memory, 0, used + size, counted_at)


def shared_count_file() -> int:
    """Return the descriptor of a new file, without a name, for a `FolderUse` of several processes.

    Raises:
        OSError: It cannot be created.
    """
    return unnamed_file(COUNT_LAYOUT.size)


class QuotaWriter:
    """Passes packets on to a writer as long as the files in its directory are below the limit.

    Args:
        writer: Where the packets are written.
        use: Counts the files of the directory.
        max_bytes: The limit.
    """

    def __init__(self, writer: RotatingWriter, use: FolderUse, max_bytes: int) -> None:
        self._writer = writer
        self._use = use
        self._max_bytes = max_bytes

    @property
    def comment_epoch(self) -> int:
        return self._writer.comment_epoch

    def offer_burst(self, burst: PacketBurst) -> None:
        """Write packets.

        Raises:
            DiskFull: There is no space, or the limit is reached.
        """
        size = burst.block_bytes
        with self._use.locked():
            used = self._use.current()
            if used + size > self._max_bytes:
                raise DiskFull(
                    f"limit max_disk={self._max_bytes}: {self._use.folder} has {used} bytes"
                )
            self._use.add(size)
            try:
                self._writer.offer_burst(burst)
            except DiskFull:
                self._use.add(-size)
                raise


def folder_size(folder: str) -> int:
    """Return the bytes of the files in a directory; those that vanish meanwhile do not count."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                total += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total
