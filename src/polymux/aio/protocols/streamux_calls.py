"""Runs a handler task for every Streamux call; the task is cancelled with the call."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from polymux.aio.errors import copy_of
from polymux.aio.session.component import SessionComponent
from polymux.aio.streams.exchanges import Call
from polymux.core.errors import PolymuxError, SessionClosed

if TYPE_CHECKING:
    from polymux.aio.protocols.streamux import StreamuxSession

log = logging.getLogger("polymux.aio")

CallHandler = Callable[[Call], Awaitable[None]]


class CallTaskRunner(SessionComponent["StreamuxSession"]):
    """Accepts calls while a task slot is free and the peer reads the replies."""

    def __init__(
        self, session: "StreamuxSession", handler: CallHandler, max_concurrent: int
    ) -> None:
        super().__init__(session)
        self._handler = handler
        self._free_slots = asyncio.Semaphore(max_concurrent)
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Run until the session has ended and all handlers are finished.

        Raises:
            SessionClosed: The session failed.
        """
        session = self.session
        async with self._tasks:
            with contextlib.suppress(SessionClosed):  # raised below, outside the task group
                async for call in session.calls:
                    await self._start(call)
        if session.failure is not None:
            raise copy_of(session.failure)

    async def _start(self, call: Call) -> None:
        try:
            await self._free_slots.acquire()
            await call.drain()  # no new handler while the peer does not read replies
        except asyncio.CancelledError:
            self.session.accept_queue.put_back(call)
            raise
        task = self._tasks.create_task(self._run_handler(call))
        task.add_done_callback(partial(self._on_task_done, call))
        call.task = task
        call.wake_all()  # cancels the task if the call was cancelled meanwhile

    def _on_task_done(self, call: Call, task: asyncio.Task[None]) -> None:
        self._free_slots.release()
        if call.task is task:  # the task was cancelled before it started
            call.task = None
            self.session.accept_queue.put_back(call)

    async def _run_handler(self, call: Call) -> None:
        session = self.session
        if call.task is None:  # eager tasks: `_start` has not stored this task yet
            await asyncio.sleep(0)
        try:
            async with call:
                await self._handler(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            call_cancelled = call.task is None
            if not call_cancelled or task is None or task.uncancel() > 0:
                raise
        except PolymuxError as problem:
            log.debug("%s: %s", session, problem)
        except Exception:
            log.exception("%s: the handler of %s failed", session, call)
        finally:
            call.task = None
