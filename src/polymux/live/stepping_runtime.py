"""`SteppingRuntime`: what a door without an event loop of asyncio's needs, but for its sockets.

Tasks are stepped by callbacks (see `stepping`). Callbacks that are due soon are in a queue, and
those that are due later on a heap; the door calls `run_ready` and `run_due`, and waits for its
sockets until `next_due` at most.
"""

import heapq
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from math import inf
from socket import socket
from ssl import SSLContext
from typing import Any

from polymux.live.runtime import Task, resolve, wait_done
from polymux.live.session.busy_poll import BusyPollLoop
from polymux.live.stepping import PlainFuture, SteppedTask, SteppedTimeout
from polymux.live.transports.opening import accept_transport

log = logging.getLogger("polymux.aio")

MIN_TIMERS_SWEPT = 64  # from so many on, cancelled ones are looked for


class HeapTimer:
    """A callback of `SteppingRuntime.call_later`."""

    __slots__ = ("_arguments", "_callback", "_when")

    def __init__(
        self, when: float, callback: Callable[..., object], arguments: tuple[object, ...]
    ) -> None:
        self._when = when
        self._callback: Callable[..., object] | None = callback
        self._arguments = arguments

    @property
    def cancelled(self) -> bool:
        return self._callback is None

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._callback = None
        self._arguments = ()

    def run(self) -> None:
        callback = self._callback
        if callback is not None:
            callback(*self._arguments)


class SteppingRuntime(ABC):
    """Callbacks, timers and tasks; the base of the runtimes of doors, see `runtime.Runtime`.

    Args:
        name: What it serves, for messages.
        clock: Returns the time of a monotonic clock, in seconds.
    """

    loop = None

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.time = clock
        self.poll_loop = BusyPollLoop()
        self.running: SteppedTask[Any] | None = None
        self.ready: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._timers: list[tuple[float, int, HeapTimer]] = []
        self._timer_numbers = count()
        self._sweep_at = MIN_TIMERS_SWEPT  # with so many timers, those that were cancelled go

    # What sessions use

    def call_soon(
        self, callback: Callable[..., object], /, *args: object, context: Context | None = None
    ) -> None:
        self.ready.append((callback, args))

    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: object
    ) -> HeapTimer:
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], /, *args: object) -> HeapTimer:
        timer = HeapTimer(when, callback, args)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        if len(self._timers) >= self._sweep_at:
            self._drop_cancelled_timers()
        return timer

    def _drop_cancelled_timers(self) -> None:
        """Forget the timers that were cancelled, such as those of requests with long timeouts."""
        self._timers[:] = [entry for entry in self._timers if not entry[2].cancelled]
        heapq.heapify(self._timers)
        self._sweep_at = max(MIN_TIMERS_SWEPT, 2 * len(self._timers))

    def create_future(self) -> PlainFuture[Any]:
        return PlainFuture(self)

    def create_task(self, coroutine: Coroutine[Any, Any, None], /) -> SteppedTask[None]:
        task: SteppedTask[None] = SteppedTask(self, coroutine)
        self.call_soon(task.begin)
        return task

    def current_task(self) -> SteppedTask[Any] | None:
        return self.running

    async def checkpoint(self) -> None:
        future = self.create_future()
        self.call_soon(resolve, future)
        await future

    async def wait_shielded(self, tasks: list[Task], /) -> None:
        for task in tasks:
            await wait_done(self, task)  # only a second interruption of the caller ends it early

    def timeout_at(self, when: float | None, /) -> SteppedTimeout:
        return SteppedTimeout(self, when)

    # Sockets (`live.transports.sockets.SocketRuntime`): the door has them

    @abstractmethod
    def add_reader(self, fd: int, callback: Callable[..., object], /, *args: object) -> None: ...

    @abstractmethod
    def remove_reader(self, fd: int, /) -> None: ...

    @abstractmethod
    def add_writer(self, fd: int, callback: Callable[..., object], /, *args: object) -> None: ...

    @abstractmethod
    def remove_writer(self, fd: int, /) -> None: ...

    @abstractmethod
    async def getaddrinfo(
        self, host: Any, port: Any, /, *, type: int = 0, flags: int = 0
    ) -> list[Any]: ...

    # Listening (`live.listener.ListenerLoop`)

    @property
    def listener_loop(self) -> "SteppingRuntime":
        return self

    async def connect_accepted_socket(
        self,
        protocol_factory: Callable[[], Any],
        sock: socket,
        *,
        ssl: SSLContext | None = None,
        ssl_handshake_timeout: float | None = None,
    ) -> object:
        return await accept_transport(self, protocol_factory, sock, ssl, ssl_handshake_timeout)

    # What a door calls

    def run_ready(self) -> None:
        """Call what was ready when the call began."""
        ready = self.ready
        for _ in range(len(ready)):
            callback, arguments = ready.popleft()
            self.run_logged(callback, arguments)

    def run_logged(
        self, callback: Callable[..., object], arguments: tuple[object, ...] = ()
    ) -> None:
        """Call something; an exception is logged."""
        try:
            callback(*arguments)
        except Exception:
            log.exception("%s: a callback failed", self.name)

    def next_due(self) -> float:
        """When the next timer is due, by `time`; infinity if there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled:
            heapq.heappop(timers)
        return timers[0][0] if timers else inf

    def run_due(self) -> None:
        """Call the timers that are due."""
        timers = self._timers
        if timers:
            now = self.time()
            while timers and timers[0][0] <= now:
                self.run_logged(heapq.heappop(timers)[2].run)
