"""Runs a handler task for every Streamux call; the task is cancelled with the call."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from polymux.core.errors import PolymuxError, SessionClosed
from polymux.live.errors import copy_of
from polymux.live.runtime import Future, Task, resolve, wait_done
from polymux.live.session.component import SessionComponent
from polymux.live.streams.exchanges import Call

if TYPE_CHECKING:
    from polymux.live.protocols.streamux import StreamuxSession

log = logging.getLogger("polymux.aio")

CallHandler = Callable[[Call], Awaitable[None]]


class CallTaskRunner(SessionComponent["StreamuxSession"]):
    """Accepts calls while a task slot is free and the peer reads the replies."""

    def __init__(
        self, session: "StreamuxSession", handler: CallHandler, max_concurrent: int
    ) -> None:
        super().__init__(session)
        self._handler = handler
        self._max_concurrent = max_concurrent
        self._slot_freed: Future[None] | None = None  # a call waits for another one to end
        self._tasks: set[Task] = set()

    async def run(self) -> None:
        """Run until the session has ended and all handlers are finished.

        If cancelled, the handlers are cancelled too.

        Raises:
            SessionClosed: The session failed.
        """
        session = self.session
        try:
            with contextlib.suppress(SessionClosed):  # raised below
                async for call in session.calls:
                    await self._start(call)
            while self._tasks:
                task = next(iter(self._tasks))
                await wait_done(session.runtime, task)
                self._tasks.discard(task)  # its callback may not have run yet
        except BaseException:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await session.runtime.wait_shielded(tasks)
            raise
        if session.failure is not None:
            raise copy_of(session.failure)

    async def _start(self, call: Call) -> None:
        runtime = self.session.runtime
        try:
            while len(self._tasks) >= self._max_concurrent:
                self._slot_freed = runtime.create_future()
                await self._slot_freed
            await call.drain()  # no new handler while the peer does not read replies
        except BaseException:
            self.session.accept_queue.put_back(call)
            raise
        task = runtime.create_task(self._run_handler(call))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_task_done, call))
        call.task = task
        call.wake_all()  # cancels the task if the call was cancelled meanwhile

    def _on_task_done(self, call: Call, task: Task) -> None:
        self._tasks.discard(task)
        resolve(self._slot_freed)
        if call.task is task:  # the task was cancelled before it started
            call.task = None
            self.session.accept_queue.put_back(call)

    async def _run_handler(self, call: Call) -> None:
        session = self.session
        if call.task is None:  # eager tasks: `_start` has not stored this task yet
            await session.runtime.checkpoint()
        try:
            async with call:
                await self._handler(call)
        except PolymuxError as problem:
            log.debug("%s: %s", session, problem)
        except Exception:
            log.exception("%s: the handler of %s failed", session, call)
        finally:
            call.task = None
