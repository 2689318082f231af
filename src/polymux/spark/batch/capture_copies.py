"""Plain copies of captures that are slow to read twice: behind a URL, or compressed.

The packets of a flow lie anywhere in a capture, and each analyze task has flows of its own. If
every task fetched or decompressed the captures again, the work would grow with their number. The
index task reads such a capture from front to back anyway; it writes what it has read beside the
references, and the analyze tasks map that copy. A capture is so read from its store once, whatever
the number of tasks.

References and tables are written to the same disk, and a run fails without room for them, but not
without copies. So copies leave half of what was free when the run began
(`index_stage.room_to_leave`).
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

COPY_SUFFIX = ".copy"
MIN_FREE_BYTES = 256 << 20  # of the disk of the copies; it is never filled further than that


class CaptureCopy:
    """The copy of one capture, written in the order of its offsets; its name is `name`.

    If fewer than `leave` bytes of the disk are free, the copy is given up and removed, `name` is
    "", and tasks read the capture itself.
    """

    def __init__(self, folder: Path, leave: int = MIN_FREE_BYTES) -> None:
        self._leave = leave
        self.name = uuid.uuid4().hex + COPY_SUFFIX
        folder.mkdir(exist_ok=True)
        self._path = folder / self.name
        self._written = 0
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, data: bytes, offset: int) -> None:
        """Add the bytes of a window that have not been written yet."""
        new = memoryview(data)[max(0, self._written - offset) :]
        if not self.name or not new:
            return
        try:
            if offset > self._written or shutil.disk_usage(self._path).free < self._leave:
                self.discard()
                return
            while new:
                done = os.write(self._fd, new)
                self._written += done
                new = new[done:]
        except OSError:
            self.discard()

    def close(self) -> None:
        """Complete the copy."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.close(fd)
            except OSError:  # a network file system reports a full disk here
                self.discard()

    def discard(self) -> None:
        """Remove the copy."""
        self.name = ""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with suppress(OSError):
                os.close(fd)
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
