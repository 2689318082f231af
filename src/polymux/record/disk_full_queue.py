"""Waiting for room on the disk without stopping the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from polymux.capture.pcapng.writer import RETRY, DiskFull
from polymux.capture.synthesis.packet_builder import Burst

log = logging.getLogger("polymux.record")


class Offers(Protocol):
    """A sink that can be asked again: `PcapngWriter` or `RotatingWriter`."""

    @property
    def file(self) -> int: ...

    def offer_burst(self, burst: Burst) -> None: ...


class Patience:
    """A sink that keeps what finds no room, in order, and offers it again until there is.

    `when_full(True)` is called when packets begin to wait and `when_full(False)` when all are
    written; whoever writes here should write little in between. What must not happen before a
    packet is in the file goes through `after`.
    """

    def __init__(self, sink: Offers, when_full: Callable[[bool], None]) -> None:
        self._sink = sink
        self._when_full = when_full
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.octets = 0
        """Octets of the packets that wait."""

    @property
    def file(self) -> int:
        return self._sink.file

    @property
    def full(self) -> bool:
        return bool(self._waiting)

    def burst(self, burst: Burst) -> None:
        """Write now, or as soon as there is room and everything before it is written."""

        def write() -> None:
            self._sink.offer_burst(burst)
            self.octets -= burst.octets

        self.octets += burst.octets
        self.after(write)

    def after(self, act: Callable[[], None]) -> None:
        """Do it once everything written before is in the file; now, if nothing waits."""
        if not self._waiting:
            try:
                act()
                return
            except DiskFull as full:
                log.warning("%s: traffic waits until there is room to record it", full)
                self._waiting.append(act)
                self._timer = asyncio.get_running_loop().call_later(RETRY, self._try_again)
                self._when_full(True)
                return
        self._waiting.append(act)

    def give_up(self) -> int:
        """Wait no longer: what waits is neither written nor passed on. Returns its octets."""
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        lost, self.octets = self.octets, 0
        return lost

    def _try_again(self) -> None:
        try:
            while self._waiting:
                self._waiting[0]()
                self._waiting.popleft()
        except DiskFull:
            self._timer = asyncio.get_running_loop().call_later(RETRY, self._try_again)
            return
        log.warning("there is room again: traffic goes on")
        self._when_full(False)
