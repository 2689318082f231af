"""Running the coroutines of this package without an event loop: futures, and tasks that step.

For doors that have no futures and tasks of their own. All of it runs in one place at a time, which
the runtime sees to; `runtime` says what a waitable is.
"""

import threading
from asyncio import CancelledError, InvalidStateError  # the exceptions only
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from polymux.live.runtime import Timer

T = TypeVar("T")


class Scheduler(Protocol):
    """The part of a runtime that futures and tasks use."""

    running: "SteppedTask[Any] | None"  # the task that makes a step now

    def call_soon(
        self, callback: Callable[..., object], /, *args: object, context: Context | None = None
    ) -> object: ...

    def call_at(self, when: float, callback: Callable[..., object], /, *args: object) -> Timer: ...


class PlainFuture(Generic[T]):
    """A result that is set once; see `runtime.Future`."""

    __slots__ = (
        "_asyncio_future_blocking",
        "_callbacks",
        "_done",
        "_problem",
        "_result",
        "runtime",
    )

    def __init__(self, runtime: Scheduler) -> None:
        self.runtime = runtime
        self._done = False
        self._result: T | None = None
        self._problem: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []
        self._asyncio_future_blocking = False

    def done(self) -> bool:
        return self._done

    def cancelled(self) -> bool:
        return isinstance(self._problem, CancelledError)

    def set_result(self, result: T, /) -> None:
        self._finish(result, None)

    def set_exception(self, problem: BaseException, /) -> None:
        self._finish(None, problem)

    def cancel(self, msg: object = None) -> bool:
        """Let the result be CancelledError. Return False if it was set before."""
        if self._done:
            return False
        self._finish(None, CancelledError())
        return True

    def abandon(self) -> None:
        """The caller that waits no longer does: its result is not read."""
        self._callbacks.clear()
        if not self._done:
            self._finish(None, CancelledError())

    def _finish(self, result: T | None, problem: BaseException | None) -> None:
        if self._done:
            raise InvalidStateError("the result of this future was set before")
        self._done = True
        self._result = result
        self._problem = problem
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self.runtime.call_soon(callback, self)

    def result(self) -> T:
        if not self._done:
            raise InvalidStateError("the result of this future is not set")
        if self._problem is not None:
            raise self._problem
        return self._result  # type: ignore[return-value]  # T may be None itself

    def exception(self) -> BaseException | None:
        return self._problem

    def add_done_callback(
        self, callback: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        if self._done:
            self.runtime.call_soon(callback, self)
        else:
            self._callbacks.append(callback)

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> int:
        before = len(self._callbacks)
        self._callbacks = [known for known in self._callbacks if known != callback]
        return before - len(self._callbacks)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()


class SteppedTask(PlainFuture[T]):
    """A coroutine that makes its next step when what it waits for is done.

    `begin` makes the first step. All steps run in `context`, which no other code enters.

    Attributes:
        on_done: Called when it is done, at once, before the callbacks are called soon.
    """

    __slots__ = ("_context", "_coroutine", "_waitable", "on_done")

    def __init__(self, runtime: Scheduler, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__(runtime)
        self._coroutine = coroutine
        self._context = Context()
        self._waitable: Any = None
        self.on_done: Callable[[], object] | None = None

    def _finish(self, result: T | None, problem: BaseException | None) -> None:
        super()._finish(result, problem)
        if self.on_done is not None:
            self.on_done()

    def begin(self) -> None:
        """Make the first step."""
        if not self._done:
            self._step(None)

    def cancel(self, msg: object = None) -> bool:
        """Raise CancelledError where it waits, soon. Return False if it is done."""
        if self._done:
            return False
        self.runtime.call_soon(self.interrupt, CancelledError())
        return True

    def interrupt(self, problem: BaseException) -> None:
        """Raise an exception where the task waits, now. No effect if it is done or running."""
        if self._done or self.runtime.running is self:
            return
        waitable, self._waitable = self._waitable, None
        if waitable is not None:
            waitable.abandon()
        self._step(problem)

    def _on_woken(self, waitable: Any) -> None:
        if waitable is not self._waitable or self._done:
            return  # it was interrupted meanwhile
        self._waitable = None
        try:
            waitable.result()
        except BaseException as problem:
            self._step(problem)
        else:
            self._step(None)

    def _step(self, problem: BaseException | None) -> None:
        runtime = self.runtime
        before, runtime.running = runtime.running, self
        coroutine = self._coroutine
        try:
            waitable = coroutine.send(None) if problem is None else coroutine.throw(problem)
        except StopIteration as stop:
            self._finish(stop.value, None)
        except BaseException as raised:
            self._finish(None, raised)
            if raised is not problem and is_interruption(raised):
                raise  # it is for the thread that makes this step, not for the caller of the task
        else:
            waitable._asyncio_future_blocking = False
            self._waitable = waitable
            waitable.add_done_callback(self._on_woken, context=self._context)
        finally:
            runtime.running = before


def is_interruption(problem: BaseException) -> bool:
    """Whether a program was interrupted, which happens in its main thread."""
    return (
        isinstance(problem, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    )


class SteppedTimeout:
    """The bound of a block of code in a `SteppedTask`; see `runtime.Timeout`.

    In the block it raises CancelledError, as asyncio's does: TimeoutError is an OSError, which the
    block may take for a failure of what it does.
    """

    def __init__(self, runtime: Scheduler, when: float | None) -> None:
        self._runtime = runtime
        self._when = when
        self._timer: Timer | None = None
        self._task: SteppedTask[Any] | None = None
        self._expiry: CancelledError | None = None

    def reschedule(self, when: float | None, /) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when is not None:
            self._timer = self._runtime.call_at(when, self._expire)

    def expired(self) -> bool:
        return self._expiry is not None

    def _expire(self) -> None:
        self._timer = None
        if self._task is not None:
            self._expiry = CancelledError()
            self._task.interrupt(self._expiry)

    async def __aenter__(self) -> "SteppedTimeout":
        self._task = self._runtime.running
        self.reschedule(self._when)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.reschedule(None)
        self._task = None
        if error is not None and error is self._expiry:
            raise TimeoutError from error
