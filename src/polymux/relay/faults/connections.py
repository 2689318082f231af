"""What the faults of whole connections do to the bytes that one side writes.

`FaultyTransport` stands between a session and its transport. It passes bytes on later, in other
pieces, or not at all, as the faults of its connection say; the names and parameters are those of
toxiproxy. Without a fault it passes them on at once.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from polymux.live.transport import ByteHandler, Transport
from polymux.relay.faults.rules import FaultRule

MAX_WAITING_BYTES: Final = 262_144  # then the session is told to pause
RESUME_BYTES: Final = 65_536
# Given to the transport before it has sent them. Less than its own limit, so that it never pauses
# or resumes the session while bytes wait here.
MAX_UNSENT_BYTES: Final = 131_072
FULL_RETRY_SECONDS: Final = 0.005  # until the transport may have room again
BANDWIDTH_STEP_SECONDS: Final = 0.01

REACHED: Final = -1  # as what a limit still allows: it is behind
CUT: Final = b""  # a fault ends the connection here

Waiting = tuple[float, bytes | None]
"""Bytes, None for the end or CUT, and the loop time at which they go on."""


class ConnectionFault:
    """A fault of one direction of a connection.

    Args:
        number: Of the rule.
        rule: The rule.
    """

    def __init__(self, number: int, rule: FaultRule) -> None:
        self.number = number
        self.rule = rule
        self.began = False
        self._last = 0.0  # when the bytes before these go on

    def shape(self, data: bytes, due: float) -> list[Waiting]:
        """The pieces in which bytes that are due at `due` go on, in order."""
        values, name = self.rule.values, self.rule.kind.name
        if name == "latency":
            jitter = values["jitter"]
            return [(self._after_last(due + values["latency"] + random.uniform(-jitter, jitter)),
                     data)]  # fmt: skip
        if name == "bandwidth":
            return self._spread(data, due, values["rate"] * 1000)
        if name == "slicer":
            return self._slice(data, due)
        if name == "timeout":
            return []
        return [(due, data)]

    def end_delay(self) -> float:
        """By how many seconds the end comes later."""
        return self.rule.values["delay"] if self.rule.kind.name == "slow_close" else 0.0

    def _after_last(self, due: float) -> float:
        self._last = max(self._last, due)
        return self._last

    def _spread(self, data: bytes, due: float, rate: float) -> list[Waiting]:
        step = max(1, int(rate * BANDWIDTH_STEP_SECONDS))
        pieces: list[Waiting] = []
        at = max(due, self._last)
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            at += len(piece) / rate
            pieces.append((at, piece))
        self._last = at
        return pieces

    def _slice(self, data: bytes, due: float) -> list[Waiting]:
        values = self.rule.values
        average, variation = int(values["average_size"]), int(values["size_variation"])
        pieces: list[Waiting] = []
        start, at = 0, max(due, self._last)
        while start < len(data):
            size = max(1, average + random.randint(-variation, variation))
            pieces.append((at, data[start : start + size]))
            at += values["delay"]
            start += size
        self._last = at
        return pieces


class FaultyTransport:
    """Writes to another transport as the faults say; everything else is that transport's.

    Args:
        transport: Where the bytes go in the end.
        on_end: Called when a fault ends the connection: with True for a reset (RST).
        on_effect: Called with a fault when it has its effect for the first time.
    """

    def __init__(
        self,
        transport: Transport,
        on_end: Callable[[bool], None],
        on_effect: Callable[[ConnectionFault], None],
    ) -> None:
        self._transport = transport
        self._on_end = on_end
        self._on_effect = on_effect
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._faults: list[ConnectionFault] = []
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._written = 0  # bytes that the session has written
        self._timer: asyncio.TimerHandle | None = None
        self._fault_timers: dict[int, asyncio.TimerHandle] = {}
        self._paused = False
        self._closing = False
        self._limits: dict[int, int] = {}  # bytes that may still pass, by number of the rule

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    # Faults

    def add(self, number: int, rule: FaultRule) -> None:
        """Add the fault of a rule."""
        fault = ConnectionFault(number, rule)
        self._faults.append(fault)
        select = rule.select
        if select.after_seconds:
            left = self._began_at + select.after_seconds - self._loop.time()
            self._call_later(number, max(0.0, left), lambda: self._begin(fault))
        elif self._written >= select.after_bytes:
            self._begin(fault)

    def remove(self, number: int) -> None:
        """Remove the fault of a rule: bytes that wait go on when they were to."""
        self._faults = [fault for fault in self._faults if fault.number != number]
        self._limits.pop(number, None)
        timer = self._fault_timers.pop(number, None)
        if timer is not None:
            timer.cancel()

    def _begin(self, fault: ConnectionFault) -> None:
        fault.began = True
        values, name = fault.rule.values, fault.rule.kind.name
        if name == "limit_data":
            self._limits[fault.number] = int(values["bytes"])
        elif name in ("timeout", "reset_peer"):
            self._on_effect(fault)
            if name == "reset_peer" or values["timeout"]:
                self._call_later(
                    fault.number, values["timeout"], lambda: self._on_end(name == "reset_peer")
                )

    def _call_later(self, number: int, seconds: float, callback: Callable[[], None]) -> None:
        self._fault_timers[number] = self._loop.call_later(seconds, callback)

    # Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        if not self._faults and not self._waiting:
            self._written += len(data)
            self._transport.write(data)
            return
        pieces: list[Waiting] = [(self._loop.time(), bytes(data))]
        for fault in self._faults:
            select = fault.rule.select
            if not (fault.began or select.after_seconds or self._written < select.after_bytes):
                self._begin(fault)
            if fault.began:
                pieces = self._shaped(fault, pieces)
        self._written += len(data)
        self._queue(pieces)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self._queue_end()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._queue_end()

    def abort(self) -> None:
        self._stop()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    # Passing on

    def _shaped(self, fault: ConnectionFault, pieces: list[Waiting]) -> list[Waiting]:
        if fault.rule.kind.name not in ("slow_close", "timeout", "reset_peer"):
            self._on_effect(fault)
        shaped: list[Waiting] = []
        for due, data in pieces:
            allowed = self._limits.get(fault.number)
            if allowed is not None and allowed < 0:
                continue  # the limit was reached before
            if not data:
                shaped.append((due, data))
                continue
            if allowed is not None:
                data = data[:allowed]
                allowed -= len(data)
                self._limits[fault.number] = allowed or REACHED
            if data:
                shaped += fault.shape(data, due)
            if allowed == 0:
                shaped.append((due, CUT))
        return shaped

    def _queue(self, pieces: list[Waiting]) -> None:
        for due, data in pieces:
            if self._waiting:
                due = max(due, self._waiting[-1][0])
            self._waiting.append((due, data))
            self._waiting_bytes += len(data or b"")
        self._flush()
        if self._waiting_bytes > MAX_WAITING_BYTES:
            # Also if it is paused already: the transport may have resumed it since.
            self._paused = True
            self._protocol().pause_writing()

    def _queue_end(self) -> None:
        """End the transport after what waits, and later by the delays of `slow_close`."""
        due = self._loop.time()
        for fault in self._faults:
            if fault.began and fault.end_delay():
                self._on_effect(fault)
                due += fault.end_delay()
        self._queue([(due, None)])

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            due, data = self._waiting[0]
            if data:
                room = MAX_UNSENT_BYTES - self._transport.get_write_buffer_size()
                if room <= 0:
                    break
                self._waiting_bytes -= min(room, len(data))
                if len(data) > room:
                    self._waiting[0] = due, data[room:]
                else:
                    self._waiting.popleft()
                self._transport.write(data[:room])
                continue
            self._waiting.popleft()
            if data == CUT:
                self._loop.call_soon(self._on_end, False)
            elif self._closing:
                self._stop()
                self._transport.close()
                return
            elif self._transport.can_write_eof():
                self._transport.write_eof()
        if self._waiting:
            due = self._waiting[0][0]
            self._timer = self._loop.call_at(
                due if due > now else now + FULL_RETRY_SECONDS, self._flush
            )
        if self._paused and self._waiting_bytes < RESUME_BYTES:
            self._paused = False
            self._protocol().resume_writing()

    def _protocol(self) -> ByteHandler:
        handler: ByteHandler = self._transport.get_protocol()
        return handler

    def _stop(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        for timer in (self._timer, *self._fault_timers.values()):
            if timer is not None:
                timer.cancel()
        self._fault_timers.clear()

    def release(self) -> None:
        """The connection is gone: cancel all timers."""
        self._closing = True
        self._stop()
