"""Writing pcapng so that a killed process loses no packet it has written.

A file is written as `NAME.part`, each packet or burst by one system call, and published as `NAME`
by syncing it, giving it that name, which must not exist, and syncing the directory. It is locked
from its creation until it is published, so that `recover` of another process leaves it alone.

A full or failing disk does not stop the recorded traffic, unless the caller wants that: packets
that could not be written are counted, and a gap record in the file reports them. A file that could
not be synced is not published: it stays `NAME.part`, and `recover` publishes what is readable.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Literal

from polymux.capture.io.atomic_write import PART_SUFFIX, create_locked, publish, sync_directory
from polymux.capture.io.paths import PRIVATE_FILE, AnyPath, one_path
from polymux.capture.pcapng import blocks
from polymux.capture.pcapng.split_index import MARK_INTERVAL_BYTES
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.core.errors import CaptureError

# Seconds that on_full="block" waits before it tries again.
RETRY_SECONDS = 0.1
_DISK_FULL_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT))


class NameTaken(CaptureError):
    """The name of a new file is in use by another one."""


class DiskFull(Exception):
    """The disk is full: the packets were neither written nor counted as lost. Try again later."""


@dataclass(slots=True)
class WriteLoss:
    """Packets that could not be written, and their bytes.

    `gaps` are the gap records that report them in the file, `error` is the last reason.
    """

    packets: int = 0
    bytes: int = 0
    gaps: int = 0
    error: str = ""


class PcapngWriter:
    """Writes a pcapng file with one Ethernet interface and timestamps in nanoseconds.

    After construction only `close` raises, if the file cannot be published.

    Args:
        path: Name of the published file. Neither it nor `path` + ".part" may exist.
        comment: Comment of the section.
        interface_comment: Comment of the interface.
        sync: When written data is synced to the disk: "always" after every write, "none" leaves
            it to the system until `close`, a number of seconds syncs at that interval, checked on
            each write and on `tick`.
        on_full: On a full disk, "gap" counts the packet as lost and goes on, "block" waits until
            it can be written.
        clock: Monotonic clock, in seconds.
        pause: Called with the seconds to wait on a full disk.
        worker: An executor of one thread that runs the syncs of the interval, so that writing
            does not wait for the disk.

    Raises:
        NameTaken: The file exists or is being written.
        CaptureError: The file cannot be created.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        comment: str = "",
        interface_comment: str = "",
        sync: float | Literal["none", "always"] = 1.0,
        on_full: Literal["gap", "block"] = "gap",
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        worker: Executor | None = None,
    ) -> None:
        self.path = path = one_path(path)
        self.comment_epoch = 1
        """Changes when comments must be repeated: here, after a packet was lost."""
        self.packets = 0
        self.size = 0
        """Bytes of complete blocks in the file."""
        self.marks: list[int] = []
        """Block boundaries every `MARK_INTERVAL_BYTES`, for `write_index`."""
        self.loss = WriteLoss()
        self.sync_error = ""
        """Why the first sync failed; '' if none did. Data written before may not be on the disk."""
        self.published = False
        self._worker = worker
        self._syncing: Future[None] | None = None
        self._directory_synced = False  # since the file was created
        self._sync = sync
        self._wait_when_full = on_full == "block"
        self._clock = clock
        self._pause = pause
        self._synced_at = clock()
        self._dirty = False
        self._unreported_loss = WriteLoss()
        self._publish_error: CaptureError | None = None
        self.fd = self._create()
        head = blocks.section(comment) + blocks.interface(interface_comment)
        try:
            self._append([head], len(head))
        except OSError as failure:
            os.unlink(path + PART_SUFFIX)
            os.close(self.fd)
            raise CaptureError(f"cannot be written: {failure.strerror}", path) from None

    def _create(self) -> int:
        """Create and lock the file; returns its descriptor."""
        part = self.path + PART_SUFFIX
        try:
            fd = create_locked(part, PRIVATE_FILE)
        except FileExistsError:
            raise NameTaken(
                "is being written, or was left by a killed recorder: see recover", part
            ) from None
        except OSError as failure:
            raise CaptureError(f"cannot be written: {failure.strerror}", self.path) from None
        # After the creation of the other name: from now on only this writer publishes this name.
        if os.path.lexists(self.path):
            os.unlink(part)
            os.close(fd)
            raise NameTaken("exists already; choose another name", self.path)
        return fd

    def packet(
        self,
        timestamp: int,
        parts: Sequence[bytes | memoryview],
        comment: str = "",
        original_length: int = -1,
    ) -> None:
        """Append one packet: written to the system, or counted as lost, when this returns.

        Args:
            timestamp: Nanoseconds since 1970.
            parts: The bytes of the packet.
            comment: Comment of the packet.
            original_length: Length on the wire; by default that of `parts`.
        """
        byte_count = sum(map(len, parts))
        before, after = blocks.packet_ends(byte_count, timestamp, comment, original_length)
        size = len(before) + byte_count + len(after)
        written = [before, *parts, after]
        self._write_or_count(
            lambda: self._try_write(timestamp, written, size, 1, byte_count), 1, byte_count
        )

    def secrets(self, key_log: bytes) -> None:
        """Append lines of a TLS key log, with which readers open the packets that follow.

        On a full disk they are left out: without them the packets are as useful as without TLS
        secrets at all.
        """
        written = blocks.secrets(key_log)
        try:
            self._append([written], len(written))
        except OSError as failure:
            self.loss.error = failure.strerror or str(failure)

    def burst(self, burst: PacketBurst) -> None:
        """Append several packets by one system call: all are written, or all counted as lost."""
        self._write_or_count(lambda: self.offer_burst(burst), burst.packets, burst.packet_bytes)

    def offer_burst(self, burst: PacketBurst) -> None:
        """Like `burst`, but on a full disk raises `DiskFull` instead of waiting or counting."""
        self._try_write(
            burst.timestamp, burst.parts, burst.block_bytes, burst.packets, burst.packet_bytes
        )

    def _write_or_count(self, offer: Callable[[], None], packets: int, packet_bytes: int) -> None:
        while True:
            try:
                offer()
                return
            except DiskFull as full:
                if not self._wait_when_full:
                    self._count_loss(packets, packet_bytes, str(full))
                    return
                self._pause(RETRY_SECONDS)

    def _try_write(
        self,
        timestamp: int,
        written: list[bytes | memoryview],
        size: int,
        packets: int,
        packet_bytes: int,
    ) -> None:
        unreported = self._unreported_loss
        if unreported.packets:
            gap = blocks.gap_statistics(timestamp, unreported.packets, unreported.bytes)
            written = [gap, *written]
            size += len(gap)
        try:
            self._append(written, size)
        except OSError as failure:
            if failure.errno in _DISK_FULL_ERRNOS:
                raise DiskFull(failure.strerror) from None
            self._count_loss(packets, packet_bytes, failure.strerror or str(failure))
            return
        if unreported.packets:
            self._gap_reported()
        self.packets += packets
        if self.size - (self.marks[-1] if self.marks else 0) >= MARK_INTERVAL_BYTES:
            self.marks.append(self.size)
        if self._sync == "always":
            self.sync()
        elif self._sync != "none":
            self.tick()

    def tick(self) -> None:
        """Sync if the sync interval has passed."""
        if isinstance(self._sync, str) or self._clock() - self._synced_at < self._sync:
            return
        if self._worker is None:
            self.sync()
        elif self._dirty and (self._syncing is None or self._syncing.done()):
            self._synced_at = self._clock()
            self._syncing = self._worker.submit(self.sync_descriptor, self.fd)

    def sync(self) -> bool:
        """Sync the file to the disk. Returns False if this or an earlier sync failed."""
        self._synced_at = self._clock()
        if self._dirty and self.fd >= 0:
            self.sync_descriptor(self.fd)
        return not self.sync_error

    def close(self, timestamp: int = 0) -> str:
        """Publish the file under its name and return the name.

        Args:
            timestamp: Timestamp of the gap record, if lost packets are not reported yet.

        Raises:
            CaptureError: The file could not be synced, or its name exists by now, which is not
                replaced; it is left as `.part`.
        """
        if self.fd >= 0:
            try:
                if self._unreported_loss.packets:
                    self._write_gap_record(timestamp)
            except OSError as failure:
                self.loss.error = failure.strerror or str(failure)
            self._publish_error = self._sync_and_publish()
            # After the name was given: it is locked until then. The sync reported disk errors.
            self._release()
        if self._publish_error is not None:
            raise self._publish_error
        self.published = True
        return self.path

    def _sync_and_publish(self) -> CaptureError | None:
        """Cut the file to size, sync it and give it its name. Returns why that failed."""
        part = self.path + PART_SUFFIX
        self._wait_for_sync()
        self._directory_synced = True  # publishing syncs the directory anyway
        try:
            os.ftruncate(self.fd, self.size)  # remove what a failed write may have left
        except OSError as failure:
            self.sync_error = self.sync_error or failure.strerror or str(failure)
        self.sync_descriptor(self.fd)
        if self.sync_error:
            return CaptureError(
                f"is not published: it could not be synced to the disk: {self.sync_error}; "
                "`polymux recover` publishes what can be read of it",
                part,
            )
        try:
            publish(part, self.path)
        except FileExistsError:
            return CaptureError(
                f"has appeared meanwhile and is not replaced: the recording is left as {part}; "
                "move the other file away, then use `polymux recover`",
                self.path,
            )
        except OSError as failure:
            return CaptureError(f"cannot be published: {failure.strerror}", self.path)
        return None

    def discard(self) -> None:
        """Delete the file instead of publishing it: for a file without packets."""
        if self.fd >= 0:
            self._wait_for_sync()
            with contextlib.suppress(OSError):
                os.unlink(self.path + PART_SUFFIX)  # while it is locked
            self._release()

    def _wait_for_sync(self) -> None:
        if self._syncing is not None:
            self._syncing.result()

    def _release(self) -> None:
        """Close the descriptor, which releases the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __enter__(self) -> PcapngWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, parts: list[bytes | memoryview], total: int) -> None:
        """Write all of `parts`, or leave the file as it was and raise OSError."""
        done = 0
        try:
            # At an offset, so that the next write overwrites what a failed one left.
            done = os.pwritev(self.fd, parts, self.size)
            rest = b"".join(parts) if done < total else b""
            while done < total:
                done += os.pwrite(self.fd, rest[done:], self.size + done)
        except OSError:
            if done:
                with contextlib.suppress(OSError):
                    os.ftruncate(self.fd, self.size)
            raise
        self.size += total
        self._dirty = True

    def sync_descriptor(self, fd: int) -> None:
        """Sync `fd`, and the directory once. A failure is stored in `sync_error`."""
        if self.sync_error:
            return  # after a failed sync the system drops the data: a later success proves nothing
        try:
            self._dirty = False  # before the sync: it may not cover data written meanwhile
            os.fsync(fd)
            if not self._directory_synced:
                sync_directory(self.path)  # otherwise a power loss can lose the file's name
                self._directory_synced = True
        except OSError as failure:
            self.sync_error = failure.strerror or str(failure)

    def _write_gap_record(self, timestamp: int) -> None:
        gap = blocks.gap_statistics(
            timestamp, self._unreported_loss.packets, self._unreported_loss.bytes
        )
        self._append([gap], len(gap))
        self._gap_reported()

    def _gap_reported(self) -> None:
        self.loss.gaps += 1
        self._unreported_loss = WriteLoss()

    def _count_loss(self, packets: int, packet_bytes: int, reason: str) -> None:
        self.loss.error = reason
        self.comment_epoch += 1
        for counts in (self.loss, self._unreported_loss):
            counts.packets += packets
            counts.bytes += packet_bytes
