"""What sessions need of the door through which they are used: time, timers, tasks and waiting.

The contract, in both directions:

- Everything of a session runs in one place at a time. In asyncio and trio that is the event loop's
  thread; with threads it is the thread that holds the lock of the runtime.
- The coroutines of this package await only what yields a *waitable*: a `Future` of
  `Runtime.create_future`, or a `session.wakeups.Waiter`. (`checkpoint`, `wait_shielded` and
  `timeout_at` of the runtime may await what they like.)
- A waitable yields itself once for each await, with `_asyncio_future_blocking` set. Who runs the
  coroutine resets that, calls `add_done_callback(wakeup, context=...)` once, and waits until
  `wakeup(waitable)` was called. Then it calls `waitable.result()`, and resumes the coroutine with
  `send(None)`, or with `throw` if `result` raised. asyncio's tasks do exactly this; `stepping` does
  it for other doors.
- To cancel a call that waits, its runner calls `waitable.abandon()` and throws CancelledError or
  KeyboardInterrupt into the coroutine, which leaves its session in order. It throws no subclass of
  Exception, such as TimeoutError: the coroutine may take that for a failure of what it waits for.
  asyncio's tasks call `waitable.cancel()` instead, with the same effect.
- Callbacks (`call_soon`, timers, callbacks of futures) are called with the session free: never
  within another call into it. Only a `Waiter` may resume its task directly (see `wakeups`).
"""

from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from types import TracebackType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    """A callback that was scheduled for later."""

    def cancel(self) -> None:
        """Do not call it. No effect if it was called or cancelled before."""

    def when(self) -> float:
        """When it is due, by the clock of its runtime."""


class Completion(Protocol):
    """Something that is done at some time: a future or a task."""

    def done(self) -> bool:
        """Whether it is done, however it ended."""

    def cancelled(self) -> bool:
        """Whether it was cancelled."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Call `callback` with this object, soon after it is done."""

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> int:
        """Do not call `callback`."""


class Future(Completion, Awaitable[T], Protocol[T]):
    """A result that is set once. Awaiting it returns or raises the result.

    If a call that awaits it is cancelled, the future itself may be cancelled: it is for one waiter.
    Several wait with `wait_done`.
    """

    def set_result(self, result: T, /) -> None:
        """Set the result and schedule the callbacks."""

    def set_exception(self, problem: BaseException, /) -> None:
        """Let the result be an exception."""

    def result(self) -> T:
        """Return the result, or raise."""

    def exception(self) -> BaseException | None:
        """Return the exception that is the result, or None."""


class Task(Completion, Protocol):
    """A coroutine that runs by itself."""

    def cancel(self) -> object:
        """Cancel it at its next await. No effect on one that is done."""


class Timeout(Protocol):
    """An asynchronous context manager that raises TimeoutError from its block when it expires."""

    def reschedule(self, when: float | None, /) -> None:
        """Let it expire at another time; None: never."""

    def expired(self) -> bool:
        """Whether the block was left because the time had come."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None: ...


class Runtime(Protocol):
    """Where sessions run. A door makes it.

    Attributes:
        loop: The event loop, where the door has one of asyncio; else None.
        poll_loop: The busy polling of all its sessions.
    """

    @property
    def loop(self) -> Any: ...
    @property
    def poll_loop(self) -> Any: ...

    def time(self) -> float:
        """The time of a monotonic clock, in seconds."""

    def call_soon(
        self, callback: Callable[..., object], /, *args: object, context: Context | None = None
    ) -> object:
        """Call `callback` soon, after what was scheduled before; in `context` if one is given."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: object) -> Timer:
        """Call `callback` in `delay` seconds."""

    def call_at(self, when: float, callback: Callable[..., object], /, *args: object) -> Timer:
        """Call `callback` when `time` is `when`."""

    def create_future(self) -> Any:
        """Return a new `Future`."""

    def create_task(self, coroutine: Coroutine[Any, Any, None], /) -> Task:
        """Run a coroutine by itself, in a copy of the current context.

        It may take its first step before the call returns.
        """

    def current_task(self) -> Task | None:
        """The task that runs now; None in a callback."""

    async def checkpoint(self) -> None:
        """Let others run."""

    async def wait_shielded(self, tasks: list[Task], /) -> None:
        """Wait until all are done, even if the caller is cancelled (again) meanwhile."""

    def timeout_at(self, when: float | None, /) -> Timeout:
        """Bound a block of code by a time of `time`; None: no bound."""


def resolve(future: "Future[None] | None") -> None:
    """Set the result of a future that is not done yet."""
    if future is not None and not future.done():
        future.set_result(None)


async def wait_done(
    runtime: Runtime, completion: Completion, deadline: float | None = None
) -> bool:
    """Wait until something is done. Cancelling the caller has no effect on it.

    Args:
        runtime: Where it is.
        completion: What to wait for; any number of callers may wait for it.
        deadline: Wait until this time at most, by the runtime's clock; None: as long as it takes.

    Returns:
        Whether it is done.
    """
    if completion.done():
        return True
    waiter = runtime.create_future()

    def wake(_: object = None) -> None:
        resolve(waiter)

    completion.add_done_callback(wake)
    timer = None if deadline is None else runtime.call_at(deadline, wake)
    try:
        await waiter
    finally:
        completion.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
    return completion.done()


async def sleep(runtime: Runtime, seconds: float) -> None:
    """Wait for some time."""
    waiter = runtime.create_future()
    timer = runtime.call_later(seconds, resolve, waiter)
    try:
        await waiter
    finally:
        timer.cancel()
