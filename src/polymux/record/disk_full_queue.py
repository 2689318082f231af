"""Waiting for room on the disk without stopping the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from polymux.capture.pcapng.writer import RETRY_SECONDS, DiskFull
from polymux.capture.synthesis.packet_builder import PacketBurst

log = logging.getLogger("polymux.record")


class RetryableSink(Protocol):
    """A sink that can be asked again: `PcapngWriter` or `RotatingWriter`."""

    @property
    def comment_epoch(self) -> int: ...

    def offer_burst(self, burst: PacketBurst) -> None: ...


class DiskFullQueue:
    """A sink that keeps what finds no room, in order, and offers it again until there is.

    `when_full(True)` is called when packets begin to wait and `when_full(False)` when all are
    written; whoever writes here should write little in between. What must not happen before a
    packet is in the file goes through `after`.
    """

    def __init__(self, sink: RetryableSink, on_full_change: Callable[[bool], None]) -> None:
        self._sink = sink
        self._on_full_change = on_full_change
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.waiting_bytes = 0
        """Bytes of the packets that wait."""

    @property
    def comment_epoch(self) -> int:
        return self._sink.comment_epoch

    @property
    def full(self) -> bool:
        return bool(self._waiting)

    def burst(self, burst: PacketBurst) -> None:
        """Write now, or as soon as there is room and everything before it is written."""

        def write() -> None:
            self._sink.offer_burst(burst)
            self.waiting_bytes -= burst.packet_bytes

        self.waiting_bytes += burst.packet_bytes
        self.call_when_written(write)

    def call_when_written(self, callback: Callable[[], None]) -> None:
        """Do it once everything written before is in the file; now, if nothing waits."""
        if not self._waiting:
            try:
                callback()
                return
            except DiskFull as full:
                log.warning("%s: traffic waits until there is room to record it", full)
                self._waiting.append(callback)
                self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry)
                self._on_full_change(True)
                return
        self._waiting.append(callback)

    def discard_waiting(self) -> int:
        """Wait no longer: what waits is neither written nor passed on. Returns its bytes."""
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        lost, self.waiting_bytes = self.waiting_bytes, 0
        return lost

    def _retry(self) -> None:
        try:
            while self._waiting:
                self._waiting[0]()
                self._waiting.popleft()
        except DiskFull:
            self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry)
            return
        log.warning("there is room again: traffic goes on")
        self._on_full_change(False)
