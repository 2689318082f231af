"""Recordings that go on for ever: one published file after another, by size and by age."""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.pcapng.split_index import write_index
from polymux.capture.pcapng.writer import PART, Missed, PcapngWriter
from polymux.capture.synthesis.packet_builder import Burst
from polymux.core.errors import CaptureError

# Files that are being published at a time; while there are so many, the current one grows.
LEAVING = 4


class RotatingWriter:
    """Writes `NAME-00001.EXT`, `NAME-00002.EXT`, ... and publishes them in that order.

    A file is followed by another once it holds `octets` or is `seconds` old and holds something,
    whichever comes first; 0 means no such bound. With neither there is one file, `NAME.EXT`
    itself. Numbers go on after those found in the directory, finished or left behind as `.part`.

    With `index`, `FILE.idx` is written beside each published file. With `background`, syncing and
    publishing are done by a thread of this writer, in order, and nobody waits for the disk.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        octets: int = 0,
        seconds: float = 0,
        comment: str = "",
        interface_comment: str = "",
        sync: float | Literal["none", "always"] = 1.0,
        on_full: Literal["gap", "block"] = "gap",
        index: bool = False,
        background: bool = False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path = one_path(path)
        self._octets = octets
        self._seconds = seconds
        self._index = index
        self._clock = clock
        self._worker = ThreadPoolExecutor(1, "polymux-publish") if background else None
        self._begin = functools.partial(
            PcapngWriter,
            comment=comment,
            interface_comment=interface_comment,
            sync=sync,
            on_full=on_full,
            clock=clock,
            pause=pause,
            worker=self._worker,
        )
        self.published: list[str] = []
        self.failures: list[str] = []
        """What could not be published or begun, and why."""
        self._lock = threading.Lock()  # guards what the publishing thread moves
        self._leaving: list[PcapngWriter] = []
        self._past = Missed()
        self._past_packets = 0
        self._past_file = 0
        self._sync_error = ""
        self._last_at = 0
        self._closed = False
        self._number = 0
        self._writer = self._open()

    @property
    def file(self) -> int:
        """Changes when comments have to be said again: in a new file, after a missed packet."""
        return self._past_file + self._writer.file

    @property
    def packets(self) -> int:
        with self._lock:
            written = sum(writer.packets for writer in self._leaving)
            return self._past_packets + written + self._writer.packets

    @property
    def missed(self) -> Missed:
        with self._lock:
            total = self._past
            for writer in (*self._leaving, self._writer):
                total = _sum(total, writer.missed)
            return total

    @property
    def sync_error(self) -> str:
        with self._lock:
            errors = [writer.sync_error for writer in (*self._leaving, self._writer)]
        return next((error for error in (self._sync_error, *errors) if error), "")

    def packet(
        self, at: int, parts: Sequence[bytes | memoryview], comment: str = "", wire: int = -1
    ) -> None:
        """Append one packet; see `PcapngWriter.packet`."""
        self._writer.packet(at, parts, comment, wire)
        self._after(at)

    def burst(self, burst: Burst) -> None:
        """Append several packets; see `PcapngWriter.burst`."""
        self._writer.burst(burst)
        self._after(burst.at)

    def offer_burst(self, burst: Burst) -> None:
        """Append several packets; see `PcapngWriter.offer_burst`."""
        self._writer.offer_burst(burst)
        self._after(burst.at)

    def tick(self) -> None:
        """Sync if the interval is over, and rotate if the file is old: call it now and then."""
        self._writer.tick()
        if self._writer.packets and not self._closed and self._is_over():
            self.rotate(self._last_at)

    def sync(self) -> bool:
        return self._writer.sync()

    def rotate(self, at: int = 0) -> None:
        """Publish the current file and begin the next.

        If no next one can be begun the current one goes on and another try is made when it has
        grown by as much, or is as old, again: recording must not stop the traffic.
        """
        if not self._octets and not self._seconds:
            return
        before = self._writer
        try:
            self._writer = self._open()
        except CaptureError as failure:
            self._past.error = str(failure)
            self._full_at = before.size + self._octets
            self._began = self._clock()
            return
        self._past_file += before.file
        with self._lock:
            self._leaving.append(before)
        if self._worker is None:
            self._publish(before, at)
        else:
            self._worker.submit(self._publish, before, at)

    def close(self, at: int = 0) -> list[str]:
        """Publish the last file, wait for all, and return their names.

        A last file that holds nothing is left out if there are others. Raises `CaptureError` if
        the last one cannot be published; `failures` has the others.
        """
        if self._closed:
            return self.published
        self._closed = True
        if self._worker is not None:
            self._worker.shutdown()
        failed = len(self.failures)
        if self.published and not self._writer.packets and not self._writer.missed.packets:
            self._writer.discard()
        else:
            self._publish(self._writer, at or self._last_at)
        if len(self.failures) > failed:
            raise CaptureError(self.failures[-1])
        return self.published

    def discard(self) -> None:
        """Give up a recording in which nothing was written: no file is left of it."""
        self._closed = True
        if self._worker is not None:
            self._worker.shutdown()
        self._writer.discard()

    def __enter__(self) -> RotatingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _after(self, at: int) -> None:
        """A packet was written. Rotating now, not before the next one, lets who writes that see
        by `file` that it is the first."""
        self._last_at = at
        if not self._closed and self._is_over():
            self.rotate(at)

    def _is_over(self) -> bool:
        if len(self._leaving) >= LEAVING:
            return False
        if self._octets and self._writer.size >= self._full_at:
            return True
        return bool(self._seconds) and self._clock() - self._began >= self._seconds

    def _publish(self, writer: PcapngWriter, at: int) -> None:
        try:
            self.published.append(writer.close(at))
            if self._index:
                write_index(writer.path, marks=writer.marks)
        except CaptureError as failure:
            writer.missed.error = str(failure)
            self.failures.append(str(failure))
        if writer is not self._writer:
            with self._lock:
                self._leaving.remove(writer)
                self._past_packets += writer.packets
                self._past = _sum(self._past, writer.missed)
                self._sync_error = self._sync_error or writer.sync_error

    def _open(self) -> PcapngWriter:
        # Another recorder may write here too: numbers that it has taken are passed over.
        taken = max((number for number, _ in numbered(self._path)), default=0)
        self._number = max(self._number, taken)
        writer = self._begin(self._next_name())
        self._number += 1
        self._began = self._clock()
        self._full_at = self._octets
        return writer

    def _next_name(self) -> str:
        if not self._octets and not self._seconds:
            return self._path
        stem, extension = os.path.splitext(self._path)
        return f"{stem}-{self._number + 1:05}{extension}"


def numbered(path: str) -> list[tuple[int, str]]:
    """Number and path of the files of a rotation that are there, finished or left as `.part`."""
    folder, name = os.path.split(path)
    stem, extension = os.path.splitext(name)
    shape = re.compile(re.escape(stem) + r"-(\d+)" + re.escape(extension) + f"({PART})?$")
    try:
        found = [shape.match(entry) for entry in os.listdir(folder or ".")]
    except OSError:
        return []
    return sorted((int(match[1]), os.path.join(folder, match[0])) for match in found if match)


def _sum(one: Missed, other: Missed) -> Missed:
    """Both, with the later error."""
    return Missed(
        one.packets + other.packets,
        one.octets + other.octets,
        one.gaps + other.gaps,
        other.error or one.error,
    )
