"""Running the coroutines of sessions for tasks of asyncio or trio.

A session on asyncio is one of `polymux`. On trio it runs in `trio_runtime`. Whatever the event
loop, a call is a checkpoint, as those of anyio and trio are: if the caller is cancelled before it
begins, nothing of it happens, and others get their turn even if it need not wait. On trio they get
it at the end of the call, shielded. On asyncio they get it before: `Task.cancel` and
`asyncio.timeout` know no shields, and a call that they interrupt at its end would lose its result.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import ExitStack, asynccontextmanager
from contextvars import copy_context
from types import coroutine
from typing import Any, TypeVar

from anyio import CancelScope, create_task_group, get_cancelled_exc_class
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from polymux.aio.connect import open_connection
from polymux.aio.runtime import current_runtime
from polymux.aio.transports.stdio import open_stdio_session
from polymux.anyio.errors import RESOURCE_ERRORS, resource_error
from polymux.live.connecting import OpenConnection
from polymux.live.runtime import wait_done
from polymux.live.server import OpenStdio, ServerRuntime

T = TypeVar("T")


class DoorRuntime(ABC):
    """Where sessions run, and how tasks call them.

    Attributes:
        live: The runtime of the sessions themselves.
        open_connection: Connects to an address; see `live.connecting`.
        open_stdio: Opens a session over standard input and output; None: that is not possible.
    """

    live: ServerRuntime
    open_connection: OpenConnection
    open_stdio: OpenStdio | None

    def do(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function that does not wait, such as a method of a session."""
        try:
            return function(*args, **kwargs)
        except RESOURCE_ERRORS as problem:
            raise resource_error(problem) from None

    async def call(self, verb: Coroutine[Any, Any, T], *, closing: bool = False) -> T:
        """Run a coroutine of a session or a stream.

        Args:
            verb: The coroutine.
            closing: It closes something, so it begins even if the caller is cancelled.

        Raises:
            What the coroutine raises; errors that end a stream or a session are those of anyio too.
        """
        if not closing:
            try:
                await self.before_call()
            except BaseException:
                verb.close()
                raise
        try:
            waited, result = await self.run(verb)
        except RESOURCE_ERRORS as problem:
            raise resource_error(problem) from None
        if closing:
            await checkpoint()
        elif not waited:
            await self.after_call()
        return result

    async def finish(self, verb: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that does not wait for long, even if the caller is cancelled."""
        with CancelScope(shield=True):
            await self.run(verb)

    @abstractmethod
    async def before_call(self) -> None:
        """Raise if the caller is cancelled. A call that closes nothing begins with it."""

    @abstractmethod
    async def after_call(self) -> None:
        """Let others run, unless `before_call` has. A call that did not wait ends with it."""

    @abstractmethod
    async def run(self, verb: Coroutine[Any, Any, T]) -> tuple[bool, T]:
        """Run a coroutine. Return whether others could run meanwhile, and its result.

        If the caller is cancelled meanwhile, it is interrupted, and ends itself in order.
        """


class AsyncioDoorRuntime(DoorRuntime):
    """The runtime of `polymux`."""

    def __init__(self) -> None:
        self.live = current_runtime()
        self.open_connection = open_connection
        self.open_stdio = open_stdio_session

    async def before_call(self) -> None:
        await asyncio.sleep(0)

    async def after_call(self) -> None:
        return

    async def run(self, verb: Coroutine[Any, Any, T]) -> tuple[bool, T]:
        return await with_waits(verb)


@coroutine
def with_waits(verb: Coroutine[Any, Any, T]) -> Generator[Any, Any, tuple[bool, T]]:
    """Run a coroutine in the task of the caller. Return whether it had to wait, and its result.

    It is interrupted once. What it has to wait for then, it waits for in a shielded scope: a scope
    that is cancelled interrupts again in every turn of the event loop.
    """
    waited = interrupted = False
    with ExitStack() as shield:
        try:
            waitable = verb.send(None)
            while True:
                waited = True
                try:
                    sent = yield waitable
                except BaseException as problem:
                    waitable = verb.throw(problem)
                    if not interrupted:
                        interrupted = True
                        shield.enter_context(CancelScope(shield=True))
                else:
                    waitable = verb.send(sent)
        except StopIteration as stop:
            return waited, stop.value


@asynccontextmanager
async def open_runtime(name: str) -> AsyncIterator[DoorRuntime]:
    """Return where sessions run on the event loop of the caller, until the end of the block."""
    if in_trio():
        from polymux.anyio.trio_runtime import TrioRuntime

        async with open_group() as group:
            runtime = TrioRuntime(name, group)
            try:
                yield runtime
            finally:
                runtime.stop()
    else:
        yield AsyncioDoorRuntime()


def in_trio() -> bool:
    """Whether the caller is a task of trio."""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()


@asynccontextmanager
async def open_group() -> AsyncIterator[TaskGroup]:
    """Open a task group. What its block raises comes out as it is, in no group of exceptions."""
    failure: BaseException | None = None
    async with create_task_group() as group:
        try:
            yield group
        except get_cancelled_exc_class():
            raise
        except BaseException as problem:
            failure = problem
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


class HandlerGroup:
    """Runs functions of the application as tasks of a group, for coroutines of sessions.

    They run in copies of the context in which it was made.
    """

    def __init__(self, runtime: DoorRuntime, group: TaskGroup) -> None:
        self._runtime = runtime.live
        self._group = group
        self._context = copy_context()

    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Run a function in a task. Return what it returns, or raise what it raises.

        If cancelled, the task is cancelled, its end is waited for, and its result is dropped.
        """
        runtime = self._runtime
        scope = CancelScope()
        done = runtime.create_future()
        self._context.run(self._group.start_soon, self._work, function, arguments, scope, done)
        interruption: BaseException | None = None
        while not done.done():
            try:
                await wait_done(runtime, done)
            except BaseException as problem:
                interruption = problem
                scope.cancel()
        if interruption is not None and (done.cancelled() or done.exception() is None):
            raise interruption
        return done.result()

    async def _work(
        self,
        function: Callable[..., Any],
        arguments: tuple[object, ...],
        scope: CancelScope,
        done: Any,  # a future of the runtime
    ) -> None:
        try:
            with scope:
                done.set_result(await function(*arguments))
        except Exception as problem:
            done.set_exception(problem)
        finally:
            if not done.done():  # it was cancelled, or ends the program
                done.cancel()


@asynccontextmanager
async def open_handlers(runtime: DoorRuntime) -> AsyncIterator[HandlerGroup]:
    """Return a group for handlers that ends with the block."""
    async with open_group() as group:
        yield HandlerGroup(runtime, group)
