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
from polymux.capture.synthesis.packet_builder import Burst
from polymux.core.errors import PolymuxError
from polymux.record.disk_full_queue import Patience

log = logging.getLogger("polymux.record")

TICK = 0.25  # seconds between looks at the age of the current file

Sync = float | Literal["always", "none"]


class NotDurable(PolymuxError):
    """What was written may be lost: the disk failed. Nobody may be told that it is safe."""


class Journal:
    """A sink for recorders, over a rotation of captures.

    `sync`: "always" syncs as soon as somebody waits, a number at most so often (seconds), "none"
    counts as durable what the operating system has: a killed process loses nothing of it, a power
    cut may. While the disk is full packets wait in memory and `when_full(True)` asks for quiet;
    after a write or sync that failed, `failure` says why and nothing is durable any more.
    """

    def __init__(
        self,
        writer: RotatingWriter,
        sync: Sync,
        when_full: Callable[[bool], None],
        when_failed: Callable[[], None],
    ) -> None:
        assert writer._worker is not None, "syncs run beside the event loop"
        self.writer = writer
        self.patience = Patience(writer, when_full)
        self._when_failed = when_failed
        self.failure = ""
        self.syncs = 0
        self.octets = 0
        """Octets of packets that were handed in, and of those that are durable."""
        self.safe = 0
        self._sync = sync
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None  # for the sync after the running one
        self._covered: asyncio.Future[None] | None = None  # the running one
        self._timer: asyncio.Handle | None = None
        self._synced_at = -1e9
        self._unsafe_since = 0.0
        self._ticker = self._loop.call_later(TICK, self._tick)

    @property
    def file(self) -> int:
        return self.writer.file

    @property
    def lag(self) -> float:
        """Seconds since the oldest octet came that is not durable; 0 if all are."""
        return time.monotonic() - self._unsafe_since if self.octets > self.safe else 0.0

    def burst(self, burst: Burst) -> None:
        """Append packets; they have reached the system when this returns, or the disk is full."""
        if self.octets == self.safe:
            self._unsafe_since = time.monotonic()
        self.octets += burst.octets
        if not self.patience.full:
            try:
                self.writer.offer_burst(burst)
                return
            except DiskFull:
                pass  # they were not written, and wait from now on
        self.patience.burst(burst)

    async def durable(self) -> None:
        """Wait until everything handed in so far is durable. Raises NotDurable if it never will.

        If cancelled, the sync goes on for the others.
        """
        if self.failure:
            raise NotDurable(self.failure)
        if self._waiting is None:
            self._waiting = self._loop.create_future()
            self._waiting.add_done_callback(_heard)
            self._ask()
        await asyncio.shield(self._waiting)

    async def close(self) -> list[str]:
        """Publish what is left; returns the names of all files. No sessions may write any more."""
        self._ticker.cancel()
        if self._timer is not None:
            self._timer.cancel()
        lost = self.patience.give_up()
        if lost:
            self._fail(f"stopped while the disk was full: {lost} octets of packets are not there")
        for future in (self._covered, self._waiting):
            if future is not None and not future.done():
                future.set_exception(NotDurable(self.failure or "the journal was closed"))
        self._waiting = None
        if not self.writer.packets and not self.failure:
            await self._loop.run_in_executor(None, self.writer.discard)
            return []
        names = await self._loop.run_in_executor(None, self.writer.close)
        # Every file was synced before it was published.
        if not (self.failure or self.writer.failures or self.writer.missed.packets):
            self.safe = self.octets
        return names

    # --- syncing

    def _ask(self) -> None:
        """Somebody waits: begin now, or when the interval is over."""
        if self._covered is not None or self._timer is not None:
            return
        if isinstance(self._sync, str):
            self._timer = self._loop.call_soon(self._begin)  # others of this turn come along
        else:
            due = self._synced_at + self._sync - self._loop.time()
            self._timer = self._loop.call_later(max(0.0, due), self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._covered, self._waiting = self._waiting, None
        self._synced_at = self._loop.time()
        self.patience.after(self._submit)

    def _submit(self) -> None:
        """Everything that was handed in is written: sync it."""
        mark = self.octets
        if self._sync == "none":
            self._done(mark)
            return
        current = self.writer._writer
        worker = self.writer._worker
        assert worker is not None
        # One thread, in order: files that were rotated out before this are synced before it.
        running = worker.submit(current._sync_now, current._fd)
        running.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._done, mark))

    def _done(self, mark: int) -> None:
        self.syncs += 1
        covered, self._covered = self._covered, None
        missed = self.writer.missed
        if missed.packets:
            self._fail(f"{missed.packets} packets could not be written: {missed.error}")
        if self.writer.sync_error:
            self._fail(f"a sync failed: {self.writer.sync_error}")
        if not self.failure:
            self.safe = mark
            self._unsafe_since = self._synced_at_clock()
        if covered is not None and not covered.done():
            if self.failure:
                covered.set_exception(NotDurable(self.failure))
            else:
                covered.set_result(None)
        if self._waiting is not None:
            self._ask()

    def _synced_at_clock(self) -> float:
        """When the octets that came since the sync began came at the earliest."""
        return time.monotonic() - (self._loop.time() - self._synced_at)

    def _fail(self, problem: str) -> None:
        if not self.failure:
            self.failure = problem
            log.error("nothing can be promised any more: %s", problem)
            self._when_failed()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK, self._tick)
        if not self.patience.full:
            self.writer.tick()


def _heard(future: asyncio.Future[None]) -> None:
    """Whoever waited may be gone: a failure that nobody takes is no complaint of the loop's."""
    if not future.cancelled():
        future.exception()
