"""Recordings that go on for ever: one published file after another, by size and by age."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Literal

from polymux.capture.writer import PART, Missed, PcapngWriter
from polymux.core.errors import CaptureError


class RotatingWriter:
    """Writes `NAME-00001.EXT`, `NAME-00002.EXT`, ... each closed and published before the next.

    A file is followed by another once it holds `octets` or is `seconds` old, whichever comes
    first; 0 means no such bound. With neither there is one file, `NAME.EXT` itself. Numbers go on
    after those found in the directory, finished or left behind as `.part`.
    """

    def __init__(
        self,
        path: str,
        *,
        octets: int = 0,
        seconds: float = 0,
        comment: str = "",
        interface_comment: str = "",
        sync: float | Literal["none", "each"] = 1.0,
        on_full: Literal["gap", "block"] = "gap",
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._octets = octets
        self._seconds = seconds
        self._clock = clock
        self._begin = functools.partial(
            PcapngWriter,
            comment=comment,
            interface_comment=interface_comment,
            sync=sync,
            on_full=on_full,
            clock=clock,
            pause=pause,
        )
        self.published: list[str] = []
        self.file = 1
        """Number of the current file among those of this writer: grows when one is begun."""
        self._past = Missed()
        self._past_packets = 0
        self._sync_error = ""
        self._number = self._last_number()
        self._writer = self._open()

    @property
    def packets(self) -> int:
        return self._past_packets + self._writer.packets

    @property
    def missed(self) -> Missed:
        now, past = self._writer.missed, self._past
        return Missed(
            now.packets + past.packets,
            now.octets + past.octets,
            now.gaps + past.gaps,
            now.error or past.error,
        )

    @property
    def sync_error(self) -> str:
        return self._sync_error or self._writer.sync_error

    def packet(
        self, at: int, parts: Sequence[bytes | memoryview], comment: str = "", wire: int = -1
    ) -> None:
        """Append one packet; see `PcapngWriter.packet`."""
        if self._is_over():
            self.rotate(at)
        self._writer.packet(at, parts, comment, wire)

    def tick(self) -> None:
        self._writer.tick()

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
        self.file += 1
        self._past_packets += before.packets
        self._past = Missed(
            self._past.packets + before.missed.packets,
            self._past.octets + before.missed.octets,
            self._past.gaps + before.missed.gaps,
            before.missed.error or self._past.error,
        )
        self._sync_error = self._sync_error or before.sync_error
        try:
            self.published.append(before.close(at))
        except CaptureError as failure:
            self._past.error = str(failure)

    def close(self, at: int = 0) -> list[str]:
        """Publish the last file; returns the names of all."""
        if self._writer.path not in self.published:
            self.published.append(self._writer.close(at))
        return self.published

    def __enter__(self) -> RotatingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_over(self) -> bool:
        if self._octets and self._writer.size >= self._full_at:
            return True
        return bool(self._seconds) and self._clock() - self._began >= self._seconds

    def _open(self) -> PcapngWriter:
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

    def _last_number(self) -> int:
        folder, name = os.path.split(self._path)
        stem, extension = os.path.splitext(name)
        shape = re.compile(re.escape(stem) + r"-(\d+)" + re.escape(extension) + f"({PART})?$")
        try:
            found = [shape.match(entry) for entry in os.listdir(folder or ".")]
        except OSError:
            return 0
        return max((int(match[1]) for match in found if match), default=0)
