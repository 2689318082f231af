"""`DiskFullQueue`: keeps packets in memory while the disk is full, without blocking the loop."""

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
    """A sink that raises DiskFull instead of blocking: `PcapngWriter` or `RotatingWriter`."""

    @property
    def comment_epoch(self) -> int: ...

    def offer_burst(self, burst: PacketBurst) -> None: ...


class DiskFullQueue:
    """A packet sink that retries, in order, packets for which the disk has no space.

    The queue is not bounded: users stop writing while it is `full`, or bound what they write by
    `waiting_count`. Actions that must not happen
    before a packet is written go through `call_when_written`.

    Args:
        sink: Where the packets are written.
        on_full_change: Called with True when packets begin to wait, and with False when all of
            them are written.
    """

    def __init__(self, sink: RetryableSink, on_full_change: Callable[[bool], None]) -> None:
        self._sink = sink
        self._on_full_change = on_full_change
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.waiting_bytes = 0
        """Bytes of the packets that wait in memory."""

    @property
    def comment_epoch(self) -> int:
        return self._sink.comment_epoch

    @property
    def waiting_count(self) -> int:
        """How many bursts and callbacks wait in memory."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether packets wait for disk space."""
        return bool(self._waiting)

    def burst(self, burst: PacketBurst) -> None:
        """Write the packets now, or after those that wait."""

        def write() -> None:
            self._sink.offer_burst(burst)
            self.waiting_bytes -= burst.packet_bytes

        self.waiting_bytes += burst.packet_bytes
        self.call_when_written(write)

    def call_when_written(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all earlier packets are written; now, if none wait.

        The callback may raise DiskFull; it is then retried.
        """
        if not self._waiting:
            try:
                callback()
                return
            except DiskFull as full:
                log.warning("%s: traffic waits until there is space to record it", full)
                self._waiting.append(callback)
                self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry)
                self._on_full_change(True)
                return
        self._waiting.append(callback)

    def discard_waiting(self) -> int:
        """Drop everything that waits, packets and callbacks. Return the bytes of the packets."""
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
        log.warning("there is space again: traffic continues")
        self._on_full_change(False)
