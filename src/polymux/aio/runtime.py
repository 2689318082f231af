"""asyncio as the runtime of sessions."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

from polymux.aio.transports.tls import AsyncioListenerLoop
from polymux.live.runtime import Task, Timeout
from polymux.live.session.busy_poll import BusyPollLoop


class AsyncioRuntime:
    """One event loop, of asyncio or uvloop. `current_runtime` makes it.

    Most of it are the loop's own methods, so that nothing comes between a session and its loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.poll_loop = BusyPollLoop()
        self.time = loop.time
        self.call_soon = loop.call_soon
        self.call_later = loop.call_later
        self.call_at = loop.call_at
        self.create_future: Callable[[], asyncio.Future[Any]] = loop.create_future
        self.current_task = partial(asyncio.current_task, loop)

    @property
    def listener_loop(self) -> AsyncioListenerLoop:
        return AsyncioListenerLoop(self.loop)

    def create_task(self, coroutine: Coroutine[Any, Any, None], /) -> asyncio.Task[None]:
        return self.loop.create_task(coroutine)

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)

    async def wait_shielded(self, tasks: list[Task], /) -> None:
        waiting = [task for task in tasks if isinstance(task, asyncio.Task)]
        while not all(task.done() for task in waiting):
            with suppress(asyncio.CancelledError):
                await asyncio.wait(waiting)

    def timeout_at(self, when: float | None, /) -> Timeout:
        return asyncio.timeout_at(when)


# The runtime of each loop, as long as a session or server holds it. Neither is held here: a loop
# that was closed with callbacks left is freed with all that they refer to.
runtimes: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[AsyncioRuntime]] = WeakKeyDictionary()


def current_runtime() -> AsyncioRuntime:
    """Return the runtime of the running event loop.

    Raises:
        RuntimeError: No event loop runs.
    """
    loop = asyncio.get_running_loop()
    known = runtimes.get(loop)
    runtime = None if known is None else known()
    if runtime is None:
        runtime = AsyncioRuntime(loop)
        runtimes[loop] = ref(runtime)
    return runtime
