"""`DurableLog`: capture files that report when written packets are durable.

Group commit: all callers that start to wait while a sync is running share the next one, so the
number of syncs does not grow with the number of streams. A sync covers exactly the bytes written
before it started. While the disk is full, packets wait in a `DiskFullQueue`, and a sync waits
behind them; the current file is published, since only published files can be removed.

After a failed write or sync nothing is reported as durable any more: the kernel may have dropped
the pages that it could not write, so a later sync that succeeds proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.writer import DiskFull
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.core.errors import PolymuxError
from polymux.record.disk_full_queue import DiskFullQueue, RetryableSink

log = logging.getLogger("polymux.record")

TICK_SECONDS = 0.25  # how often the age of the current file is checked
EARLY_SECONDS = 1.0  # at least, between two files that are published because the disk is full

SyncPolicy = float | Literal["always", "none"]


class NotDurable(PolymuxError):
    """Written data may be lost, because the disk failed or the log was closed."""


class DurableLog:
    """A packet sink over a `RotatingWriter`, with `wait_durable` for its users.

    After a failed write or sync, `failure` has the reason and `wait_durable` raises NotDurable.
    Must be created in a running event loop.

    Args:
        writer: The capture files; created with `background=True`.
        sync: "always" syncs as soon as a caller waits; a number is the minimum number of seconds
            between syncs; "none" counts data as durable once the operating system has it: it
            survives a killed process, but not a power failure.
        on_full_change: Called with True when the disk is full and packets wait in memory, with
            False when all of them are written. The caller should write little in between.
        on_failure: Called once, at the first failure.
        sink: Passes packets on to `writer`, such as a `QuotaWriter`; None: they go there directly.
    """

    def __init__(
        self,
        writer: RotatingWriter,
        sync: SyncPolicy,
        on_full_change: Callable[[bool], None],
        on_failure: Callable[[], None],
        sink: RetryableSink | None = None,
    ) -> None:
        assert writer.worker is not None, "syncs run in the background thread of the writer"
        self.writer = writer
        self._sink: RetryableSink = writer if sink is None else sink
        self.disk_full_queue = DiskFullQueue(self._sink, on_full_change)
        self._on_failure = on_failure
        self.failure = ""
        self.syncs = 0
        self.bytes_written = 0
        """Bytes of all packets given to the log."""
        self.bytes_durable = 0
        """Bytes of the packets that are durable."""
        self._sync = sync
        self._loop = asyncio.get_running_loop()
        self._next_sync: asyncio.Future[None] | None = (
            None  # resolved by the next sync, not the running one
        )
        self._running_sync: asyncio.Future[None] | None = None  # resolved by the running sync
        self._timer: asyncio.Handle | None = None
        self._synced_at = -1e9
        self._not_durable_since = 0.0
        self._published_early_at = -1e9
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)

    @property
    def comment_epoch(self) -> int:
        return self.writer.comment_epoch

    @property
    def lag(self) -> float:
        """Age in seconds of the oldest data that is not durable; 0 if everything is."""
        return (
            time.monotonic() - self._not_durable_since
            if self.bytes_written > self.bytes_durable
            else 0.0
        )

    def burst(self, burst: PacketBurst) -> None:
        """Append packets. When it returns, the operating system has them or the disk is full."""
        if self.bytes_written == self.bytes_durable:
            self._not_durable_since = time.monotonic()
        self.bytes_written += burst.packet_bytes
        if not self.disk_full_queue.full:
            try:
                self._sink.offer_burst(burst)
                return
            except DiskFull:
                pass  # nothing was written: the packets wait below
        self.disk_full_queue.burst(burst)

    async def wait_durable(self) -> None:
        """Wait until everything written so far is durable.

        If cancelled, the sync goes on for other callers.

        Raises:
            NotDurable: It will not become durable.
        """
        if self.failure:
            raise NotDurable(self.failure)
        if self._next_sync is None:
            self._next_sync = self._loop.create_future()
            self._next_sync.add_done_callback(_retrieve_exception)
            self._schedule_sync()
        await asyncio.shield(self._next_sync)

    async def close(self) -> list[str]:
        """Publish the last file. Nothing may be written any more.

        Returns:
            The names of all published files.

        Raises:
            CaptureError: The last file could not be published.
        """
        self._ticker.cancel()
        if self._timer is not None:
            self._timer.cancel()
        lost = self.disk_full_queue.discard_waiting()
        if lost:
            self._fail(f"stopped while the disk was full: {lost} bytes of packets were not written")
        for future in (self._running_sync, self._next_sync):
            if future is not None and not future.done():
                future.set_exception(NotDurable(self.failure or "the log was closed"))
        self._next_sync = None
        if not self.writer.packets and not self.failure:
            await self._loop.run_in_executor(None, self.writer.discard)
            return []
        names = await self._loop.run_in_executor(None, self.writer.close)
        # Every file was synced before it was published.
        if not (self.failure or self.writer.failures or self.writer.loss.packets):
            self.bytes_durable = self.bytes_written
        return names

    # Syncing

    def _schedule_sync(self) -> None:
        """Start a sync in this event-loop iteration, or when the sync interval is over."""
        if self._running_sync is not None or self._timer is not None:
            return
        if isinstance(self._sync, str):
            # Not immediately: callers of the same iteration share the sync.
            self._timer = self._loop.call_soon(self._start_sync)
        else:
            due = self._synced_at + self._sync - self._loop.time()
            self._timer = self._loop.call_later(max(0.0, due), self._start_sync)

    def _start_sync(self) -> None:
        self._timer = None
        self._running_sync, self._next_sync = self._next_sync, None
        self._synced_at = self._loop.time()
        self.disk_full_queue.call_when_written(self._submit_sync)

    def _submit_sync(self) -> None:
        """Everything given to the log is written: sync it."""
        size = self.bytes_written
        if self._sync == "none":
            self._on_sync_done(size)
            return
        # The callback runs in the writer's thread, and only passes the result to the loop.
        self.writer.submit_sync(partial(self._loop.call_soon_threadsafe, self._on_sync_done, size))

    def _on_sync_done(self, synced_bytes: int) -> None:
        self.syncs += 1
        finished, self._running_sync = self._running_sync, None
        loss = self.writer.loss
        if loss.packets:
            self._fail(f"{loss.packets} packets could not be written: {loss.error}")
        if self.writer.sync_error:
            self._fail(f"a sync failed: {self.writer.sync_error}")
        if not self.failure:
            self.bytes_durable = synced_bytes
            self._not_durable_since = self._sync_started_monotonic()
        if finished is not None and not finished.done():
            if self.failure:
                finished.set_exception(NotDurable(self.failure))
            else:
                finished.set_result(None)
        if self._next_sync is not None:
            self._schedule_sync()

    def _sync_started_monotonic(self) -> float:
        """When the finished sync started: no byte that it does not cover is older."""
        return time.monotonic() - (self._loop.time() - self._synced_at)

    def _fail(self, problem: str) -> None:
        if not self.failure:
            self.failure = problem
            log.error("received data is no longer confirmed: %s", problem)
            self._on_failure()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)
        now = self._loop.time()
        if self.disk_full_queue.full and now - self._published_early_at >= EARLY_SECONDS:
            self._published_early_at = now
            self.writer.publish_early()
        self.writer.tick()


def _retrieve_exception(future: asyncio.Future[None]) -> None:
    """Retrieve the exception, so that asyncio does not log "exception was never retrieved" when
    the waiter was cancelled."""
    if not future.cancelled():
        future.exception()
