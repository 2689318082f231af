"""Rotation: a recording without end as a sequence of published files, by size and by age."""

from __future__ import annotations

import functools
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from polymux.capture.io.atomic_write import PART_SUFFIX
from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.pcapng.comments import recording_comment
from polymux.capture.pcapng.split_index import write_index
from polymux.capture.pcapng.writer import NameTaken, PcapngWriter, WriteLoss
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.core.errors import CaptureError

# Files being published at a time; while there are as many, the current file is not rotated.
MAX_PUBLISHING = 4


class RotatingWriter:
    """Writes `NAME-00001.EXT`, `NAME-00002.EXT`, ... and publishes them in that order.

    Numbers continue after those in the directory, published or left as `.part`. Each file names
    its place in the recording in a comment, so that readers keep the order if the clock steps.

    Args:
        path: `NAME.EXT`. Without `max_bytes`, `max_seconds` and `numbered` it is the only file.
        max_bytes: Size after which the next file is started; 0 for no limit.
        max_seconds: Age after which the next file is started, if this one has packets; 0 for no
            limit.
        comment: As for `PcapngWriter`, like `interface_comment`, `sync`, `on_full`, `clock` and
            `pause`.
        numbered: Number the files also without `max_bytes` and `max_seconds`: several writers then
            may have the same path.
        index: Write `FILE.idx` (see `write_index`) beside each published file.
        background: Sync and publish in a thread of this writer, so that writing does not wait for
            the disk.

    Raises:
        CaptureError: The first file cannot be created.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        max_bytes: int = 0,
        max_seconds: float = 0,
        numbered: bool = False,
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
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._numbered = numbered or bool(max_bytes or max_seconds)
        self._index = index
        self._clock = clock
        self.worker = ThreadPoolExecutor(1, "polymux-publish") if background else None
        self._comment = comment
        self._recording = secrets.token_hex(8)
        self._files = 0
        self._new_writer = functools.partial(
            PcapngWriter,
            interface_comment=interface_comment,
            sync=sync,
            on_full=on_full,
            clock=clock,
            pause=pause,
            worker=self.worker,
        )
        self.published: list[str] = []
        self.failures: list[str] = []
        """Errors of files that could not be published."""
        # Guards `_publishing` and the totals, which the publishing thread changes too.
        self._lock = threading.Lock()
        self._publishing: list[PcapngWriter] = []
        self._earlier_loss = WriteLoss()
        self._earlier_packets = 0
        self._earlier_epochs = 0
        self._sync_error = ""
        self._last_at = 0
        self._closed = False
        self._number = 0
        self.current_writer = self._open()

    @property
    def comment_epoch(self) -> int:
        """Changes when comments must be repeated: in a new file, and after a lost packet."""
        return self._earlier_epochs + self.current_writer.comment_epoch

    @property
    def packets(self) -> int:
        """Packets written to all files."""
        with self._lock:
            written = sum(writer.packets for writer in self._publishing)
            return self._earlier_packets + written + self.current_writer.packets

    @property
    def loss(self) -> WriteLoss:
        """Packets that could not be written to any file."""
        with self._lock:
            total = self._earlier_loss
            for writer in (*self._publishing, self.current_writer):
                total = _add_losses(total, writer.loss)
            return total

    @property
    def sync_error(self) -> str:
        """Why the first sync of a file failed; '' if none did."""
        with self._lock:
            errors = [writer.sync_error for writer in (*self._publishing, self.current_writer)]
        return next((error for error in (self._sync_error, *errors) if error), "")

    def packet(
        self,
        timestamp: int,
        parts: Sequence[bytes | memoryview],
        comment: str = "",
        original_length: int = -1,
    ) -> None:
        """Append one packet; see `PcapngWriter.packet`."""
        self.current_writer.packet(timestamp, parts, comment, original_length)
        self._after_write(timestamp)

    def secrets(self, key_log: bytes) -> None:
        """Append lines of a TLS key log; see `PcapngWriter.secrets`."""
        self.current_writer.secrets(key_log)

    def burst(self, burst: PacketBurst) -> None:
        """Append several packets; see `PcapngWriter.burst`."""
        self.current_writer.burst(burst)
        self._after_write(burst.timestamp)

    def offer_burst(self, burst: PacketBurst) -> None:
        """Append several packets; see `PcapngWriter.offer_burst`."""
        self.current_writer.offer_burst(burst)
        self._after_write(burst.timestamp)

    def tick(self) -> None:
        """Sync or rotate if that is due by time. Call it regularly while no packets are written."""
        self.current_writer.tick()
        if self.current_writer.packets and not self._closed and self._is_rotation_due():
            self.rotate(self._last_at)

    def publish_early(self) -> None:
        """Publish the current file if it has packets, although its rotation is not due."""
        if self.current_writer.packets and not self._closed and self._may_publish():
            self.rotate(self._last_at)

    def sync(self) -> bool:
        """Sync the current file; see `PcapngWriter.sync`."""
        return self.current_writer.sync()

    def submit_sync(self, on_done: Callable[[], object]) -> None:
        """Sync everything written so far in the background thread.

        That thread works in order, so files that were rotated out before are synced first. Needs
        `background=True`.

        Args:
            on_done: Called in the background thread when the sync has ended. `sync_error` and
                `loss` then say whether anything failed.
        """
        assert self.worker is not None, "a sync in the background needs background=True"
        current = self.current_writer
        running = self.worker.submit(current.sync_descriptor, current.fd)
        running.add_done_callback(lambda _: on_done())

    def rotate(self, timestamp: int = 0) -> None:
        """Publish the current file and start the next.

        If the next one cannot be created, the current one continues, since recording must not
        stop the traffic; rotation is tried again after another `max_bytes` or `max_seconds`.
        """
        if not self._max_bytes and not self._max_seconds:
            return
        before = self.current_writer
        try:
            self.current_writer = self._open()
        except CaptureError as failure:
            self._earlier_loss.error = str(failure)
            self._rotate_at_bytes = before.size + self._max_bytes
            self._opened_at = self._clock()
            return
        self._earlier_epochs += before.comment_epoch
        with self._lock:
            self._publishing.append(before)
        if self.worker is None:
            self._publish(before, timestamp)
        else:
            self.worker.submit(self._publish, before, timestamp)

    def close(self, timestamp: int = 0) -> list[str]:
        """Publish the last file, wait for all others, and return the names of the published files.

        A last file without packets is deleted if there are others.

        Raises:
            CaptureError: The last file cannot be published; `failures` has the errors of others.
        """
        if self._closed:
            return self.published
        self._closed = True
        if self.worker is not None:
            self.worker.shutdown()
        failed = len(self.failures)
        if (
            self.published
            and not self.current_writer.packets
            and not self.current_writer.loss.packets
        ):
            self.current_writer.discard()
        else:
            self._publish(self.current_writer, timestamp or self._last_at)
        if len(self.failures) > failed:
            raise CaptureError(self.failures[-1])
        return self.published

    def discard(self) -> None:
        """Delete the current file instead of publishing it: for a recording without packets."""
        self._closed = True
        if self.worker is not None:
            self.worker.shutdown()
        self.current_writer.discard()

    def __enter__(self) -> RotatingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _after_write(self, timestamp: int) -> None:
        """Rotate if that is due.

        After a packet, not before the next one: the caller then sees by `comment_epoch` that its
        next packet is the first of a file.
        """
        self._last_at = timestamp
        if not self._closed and self._is_rotation_due():
            self.rotate(timestamp)

    def _may_publish(self) -> bool:
        """Whether one more file may be published at the same time."""
        return len(self._publishing) < MAX_PUBLISHING

    def _is_rotation_due(self) -> bool:
        if not self._may_publish():
            return False
        if self._max_bytes and self.current_writer.size >= self._rotate_at_bytes:
            return True
        return bool(self._max_seconds) and self._clock() - self._opened_at >= self._max_seconds

    def _publish(self, writer: PcapngWriter, timestamp: int) -> None:
        try:
            self.published.append(writer.close(timestamp))
            if self._index:
                write_index(writer.path, marks=writer.marks)
        except CaptureError as failure:
            writer.loss.error = str(failure)
            self.failures.append(str(failure))
        if writer is not self.current_writer:
            with self._lock:
                self._publishing.remove(writer)
                self._earlier_packets += writer.packets
                self._earlier_loss = _add_losses(self._earlier_loss, writer.loss)
                self._sync_error = self._sync_error or writer.sync_error

    def _open(self) -> PcapngWriter:
        while True:
            # Another recorder may write here too: skip the numbers it has used.
            taken = max((number for number, _ in rotation_files(self._path)), default=0)
            self._number = max(self._number, taken)
            name = self._next_name()
            try:
                writer = self._new_writer(name, comment=self._file_comment(name))
                break
            except NameTaken:
                if name == self._path:
                    raise
                self._number += 1  # taken since the directory was listed
        self._number += 1
        self._files += 1
        self._opened_at = self._clock()
        self._rotate_at_bytes = self._max_bytes
        return writer

    def _file_comment(self, name: str) -> str:
        """The comment of the next file, with its place in the recording if there are others."""
        if name == self._path:
            return self._comment
        place = recording_comment(self._recording, self._files + 1)
        return f"{self._comment}\n{place}" if self._comment else place

    def _next_name(self) -> str:
        if not self._numbered:
            return self._path
        stem, extension = os.path.splitext(self._path)
        return f"{stem}-{self._number + 1:05}{extension}"


def rotation_files(path: str) -> list[tuple[int, str]]:
    """Number and path of the existing files of a rotation, published or left as `.part`."""
    folder, name = os.path.split(path)
    stem, extension = os.path.splitext(name)
    shape = re.compile(re.escape(stem) + r"-(\d+)" + re.escape(extension) + f"({PART_SUFFIX})?$")
    try:
        found = [shape.match(entry) for entry in os.listdir(folder or ".")]
    except OSError:
        return []
    return sorted((int(match[1]), os.path.join(folder, match[0])) for match in found if match)


def _add_losses(one: WriteLoss, other: WriteLoss) -> WriteLoss:
    """The sum of both, with the later error."""
    return WriteLoss(
        one.packets + other.packets,
        one.bytes + other.bytes,
        one.gaps + other.gaps,
        other.error or one.error,
    )
