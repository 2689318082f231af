"""Following a growing directory into a lake: each batch is a run of `append`.

So batch, append and following have one engine: what has been read is in the lake's ledger, packets
of sessions that are not over are in its state, and each batch commits one version of all tables.
Here it is only decided which captures a batch reads, and what becomes of a batch that fails.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from polymux.capture.io.discovery import CaptureFile, find_inputs
from polymux.core.errors import CaptureError, CaptureUnavailable, PolymuxError
from polymux.spark.batch.output_lock import OutputBusy
from polymux.spark.batch.pipeline import Analysis
from polymux.spark.lake.store import ConcurrentCommit
from polymux.spark.runtime.session_jobs import jobs_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_INTERVAL_SECONDS = 60.0
# A capture that grows is read again from its beginning. If it grows steadily, all readings of it
# together are less than five times its size.
GROWTH = 1.25
PATIENCE_SECONDS = 60.0  # for captures that cannot be read
_POLL_SECONDS = 0.2

Append = Callable[[list[str]], Analysis]


class GrowingFolder:
    """The captures of a directory, scan by scan.

    Raises:
        CaptureError: `path` is not a directory.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: dict[str, CaptureFile] = {}  # at the last scan, by path
        self._read: dict[str, CaptureFile] = {}  # as they were when they were read, by path
        self.check()

    def due(self) -> list[CaptureFile]:
        """Return the captures that are to be read now.

        A capture is due when it was found for the first time, when it has grown by a quarter since
        it was read, and when it has changed since then, but not since the last scan.

        Raises:
            CaptureError: The directory is gone.
            CaptureUnavailable: Something in it cannot be looked at.
        """
        self.check()
        try:
            found = {file.path: file for file in find_inputs([self.path])}
        except CaptureUnavailable:
            raise
        except CaptureError:  # it is empty
            found = {}
        before, self._seen = self._seen, found
        return [file for path, file in found.items() if self._is_due(file, before.get(path))]

    def note_read(self, files: list[CaptureFile]) -> None:
        """Say that these captures have been read as they were when they were found."""
        self._read.update((file.path, file) for file in files)

    def _is_due(self, file: CaptureFile, before: CaptureFile | None) -> bool:
        read = self._read.get(file.path)
        if read is None:
            return True
        return file != read and (file == before or file.size >= GROWTH * read.size)

    def check(self) -> None:
        """Raise CaptureError if the directory is gone."""
        if not os.path.isdir(self.path):
            raise CaptureError("no such directory; --watch reads a directory that grows", self.path)


def follow_into_lake(
    folder: GrowingFolder,
    append: Append,
    *,
    wait: Callable[[], bool],
    on_batch: Callable[[Analysis], None],
    on_retry: Callable[[PolymuxError], None],
    available_now: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Append the captures of a growing directory to a lake, scan by scan.

    A batch that another run on the lake has got in the way of is tried again for as long as it
    takes; one whose captures cannot be listed or read for `PATIENCE_SECONDS`: a new capture may
    just have been removed, or its permissions be still to come. Nothing is lost, or read twice: the
    lake has all of a batch or nothing.

    Args:
        folder: The directory.
        append: Makes one run: `pipeline.analyze` with `append`, of the captures of these paths.
        wait: Called between two scans. Waits, and returns whether to stop.
        on_batch: Called after each batch that has read captures, and with `available_now` after one
            that has found nothing new.
        on_retry: Called with the error of a batch that will be tried again, unless it is that of
            the batch before.
        available_now: Stop once the captures that exist now have been read.
        clock: Gives seconds.

    Raises:
        CaptureError: The directory is gone, or captures could not be listed or read for too long.
        PolymuxError: Whatever else `append` raises.
    """
    failing_since, told = None, ""
    while True:
        folder.check()
        try:
            files = folder.due()
            done = append([file.path for file in files]) if files else None
        except (CaptureError, ConcurrentCommit, OutputBusy) as problem:
            if isinstance(problem, CaptureError):
                failing_since = clock() if failing_since is None else failing_since
                if clock() - failing_since >= PATIENCE_SECONDS:
                    raise
            if str(problem) != told:
                on_retry(problem)
            told = str(problem)
        else:
            failing_since, told = None, ""
            folder.note_read(files)
            if done is not None and (done.captures or available_now):
                on_batch(done)
            if available_now:
                return
        if wait():
            return


@contextmanager
def jobs_cancelled_by(spark: SparkSession, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Cancel the jobs that this thread starts in the block once `is_stopped` is true.

    It is called in another thread. The block then ends with Spark's error, or none if it ran no
    more jobs.
    """
    group = jobs_of(spark).group("polymux: follow")
    ended = threading.Event()

    def cancel() -> None:
        while not ended.wait(_POLL_SECONDS):
            if is_stopped():
                group.cancel()

    thread = threading.Thread(target=cancel, name="polymux-follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        group.close()
