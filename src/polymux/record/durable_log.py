"""Captures whose writers learn when what they wrote is on the disk.

Everybody who waits while a sync runs shares the next one, so the number of syncs does not grow
with the number of streams.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal

from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.writer import DiskFull
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.core.errors import PolymuxError
from polymux.record.disk_full_queue import DiskFullQueue

log = logging.getLogger("polymux.record")

TICK_SECONDS = 0.25  # seconds between looks at the age of the current file

SyncPolicy = float | Literal["always", "none"]


class NotDurable(PolymuxError):
    """What was written may be lost: the disk failed. Nobody may be told that it is safe."""


class DurableLog:
    """A sink for recorders, over a rotation of captures.

    `sync`: "always" syncs as soon as somebody waits, a number at most so often (seconds), "none"
    counts as durable what the operating system has: a killed process loses nothing of it, a power
    cut may. While the disk is full packets wait in memory and `when_full(True)` asks for quiet;
    after a write or sync that failed, `failure` says why and nothing is durable any more.
    """

    def __init__(
        self,
        writer: RotatingWriter,
        sync: SyncPolicy,
        on_full_change: Callable[[bool], None],
        on_failure: Callable[[], None],
    ) -> None:
        assert writer.worker is not None, "syncs run beside the event loop"
        self.writer = writer
        self.disk_full_queue = DiskFullQueue(writer, on_full_change)
        self._on_failure = on_failure
        self.failure = ""
        self.syncs = 0
        self.bytes_written = 0
        """Bytes of packets that were handed in, and of those that are durable."""
        self.bytes_durable = 0
        self._sync = sync
        self._loop = asyncio.get_running_loop()
        self._next_sync: asyncio.Future[None] | None = None  # for the sync after the running one
        self._running_sync: asyncio.Future[None] | None = None  # the running one
        self._timer: asyncio.Handle | None = None
        self._synced_at = -1e9
        self._not_durable_since = 0.0
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)

    @property
    def comment_epoch(self) -> int:
        return self.writer.comment_epoch

    @property
    def lag(self) -> float:
        """Seconds since the oldest byte came that is not durable; 0 if all are."""
        return (
            time.monotonic() - self._not_durable_since
            if self.bytes_written > self.bytes_durable
            else 0.0
        )

    def burst(self, burst: PacketBurst) -> None:
        """Append packets; they have reached the system when this returns, or the disk is full."""
        if self.bytes_written == self.bytes_durable:
            self._not_durable_since = time.monotonic()
        self.bytes_written += burst.packet_bytes
        if not self.disk_full_queue.full:
            try:
                self.writer.offer_burst(burst)
                return
            except DiskFull:
                pass  # they were not written, and wait from now on
        self.disk_full_queue.burst(burst)

    async def wait_durable(self) -> None:
        """Wait until everything handed in so far is durable. Raises NotDurable if it never will.

        If cancelled, the sync goes on for the others.
        """
        if self.failure:
            raise NotDurable(self.failure)
        if self._next_sync is None:
            self._next_sync = self._loop.create_future()
            self._next_sync.add_done_callback(_retrieve_exception)
            self._schedule_sync()
        await asyncio.shield(self._next_sync)

    async def close(self) -> list[str]:
        """Publish what is left; returns the names of all files. No sessions may write any more."""
        self._ticker.cancel()
        if self._timer is not None:
            self._timer.cancel()
        lost = self.disk_full_queue.discard_waiting()
        if lost:
            self._fail(f"stopped while the disk was full: {lost} bytes of packets are not there")
        for future in (self._running_sync, self._next_sync):
            if future is not None and not future.done():
                future.set_exception(NotDurable(self.failure or "the journal was closed"))
        self._next_sync = None
        if not self.writer.packets and not self.failure:
            await self._loop.run_in_executor(None, self.writer.discard)
            return []
        names = await self._loop.run_in_executor(None, self.writer.close)
        # Every file was synced before it was published.
        if not (self.failure or self.writer.failures or self.writer.loss.packets):
            self.bytes_durable = self.bytes_written
        return names

    # --- syncing

    def _schedule_sync(self) -> None:
        """Somebody waits: begin now, or when the interval is over."""
        if self._running_sync is not None or self._timer is not None:
            return
        if isinstance(self._sync, str):
            self._timer = self._loop.call_soon(self._start_sync)  # others of this turn come along
        else:
            due = self._synced_at + self._sync - self._loop.time()
            self._timer = self._loop.call_later(max(0.0, due), self._start_sync)

    def _start_sync(self) -> None:
        self._timer = None
        self._running_sync, self._next_sync = self._next_sync, None
        self._synced_at = self._loop.time()
        self.disk_full_queue.call_when_written(self._submit_sync)

    def _submit_sync(self) -> None:
        """Everything that was handed in is written: sync it."""
        mark = self.bytes_written
        if self._sync == "none":
            self._on_sync_done(mark)
            return
        current = self.writer.current_writer
        worker = self.writer.worker
        assert worker is not None
        # One thread, in order: files that were rotated out before this are synced before it.
        running = worker.submit(current.sync_descriptor, current.fd)
        running.add_done_callback(
            lambda _: self._loop.call_soon_threadsafe(self._on_sync_done, mark)
        )

    def _on_sync_done(self, synced_bytes: int) -> None:
        self.syncs += 1
        covered, self._running_sync = self._running_sync, None
        missed = self.writer.loss
        if missed.packets:
            self._fail(f"{missed.packets} packets could not be written: {missed.error}")
        if self.writer.sync_error:
            self._fail(f"a sync failed: {self.writer.sync_error}")
        if not self.failure:
            self.bytes_durable = synced_bytes
            self._not_durable_since = self._sync_started_monotonic()
        if covered is not None and not covered.done():
            if self.failure:
                covered.set_exception(NotDurable(self.failure))
            else:
                covered.set_result(None)
        if self._next_sync is not None:
            self._schedule_sync()

    def _sync_started_monotonic(self) -> float:
        """When the bytes that came since the sync began came at the earliest."""
        return time.monotonic() - (self._loop.time() - self._synced_at)

    def _fail(self, problem: str) -> None:
        if not self.failure:
            self.failure = problem
            log.error("nothing can be promised any more: %s", problem)
            self._on_failure()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)
        if not self.disk_full_queue.full:
            self.writer.tick()


def _retrieve_exception(future: asyncio.Future[None]) -> None:
    """Whoever waited may be gone: a failure that nobody takes is no complaint of the loop's."""
    if not future.cancelled():
        future.exception()
