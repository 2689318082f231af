"""A limit on the disk space of a collector's captures.

At the limit a collector does what it does on a full disk: it confirms nothing and waits until files
were removed. It removes none itself: which captures are no longer needed is not its decision.
"""

from __future__ import annotations

import os
import time

from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.writer import DiskFull
from polymux.capture.synthesis.packet_builder import PacketBurst

RECOUNT_SECONDS = 1.0  # how often the files are counted again while packets are written


class QuotaWriter:
    """Passes packets on to a writer as long as the files in its directory are below the limit.

    Args:
        writer: Where the packets are written.
        folder: The directory whose files are counted, with all that is in it.
        max_bytes: The limit.
    """

    def __init__(self, writer: RotatingWriter, folder: str, max_bytes: int) -> None:
        self._writer = writer
        self._folder = folder
        self._max_bytes = max_bytes
        self._used = 0
        self._counted_at = -RECOUNT_SECONDS

    @property
    def comment_epoch(self) -> int:
        return self._writer.comment_epoch

    def offer_burst(self, burst: PacketBurst) -> None:
        """Write packets.

        Raises:
            DiskFull: There is no space, or the limit is reached.
        """
        now = time.monotonic()
        if now - self._counted_at >= RECOUNT_SECONDS:
            self._counted_at = now
            self._used = folder_size(self._folder)
        if self._used + burst.block_bytes > self._max_bytes:
            raise DiskFull(
                f"limit max_disk={self._max_bytes}: {self._folder} has {self._used} bytes"
            )
        self._writer.offer_burst(burst)
        self._used += burst.block_bytes


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
