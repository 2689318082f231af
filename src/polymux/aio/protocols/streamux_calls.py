"""Work on every call of a Streamux peer, each in a task of its own: it ends if the peer cancels."""

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
    """Takes calls as they come, as long as there is room and the peer takes what is done."""

    def __init__(
        self, session: "StreamuxSession", handler: CallHandler, max_concurrent: int
    ) -> None:
        super().__init__(session)
        self._handler = handler
        self._free_slots = asyncio.Semaphore(max_concurrent)
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Until the session ends and the work on its calls is done."""
        session = self.session
        async with self._tasks:
            with contextlib.suppress(SessionClosed):  # told below, and not as one of a group
                async for call in session.calls:
                    await self._start(call)
        if session.failure is not None:
            raise copy_of(session.failure)

    async def _start(self, call: Call) -> None:
        try:
            await self._free_slots.acquire()
            await call.drain()  # no new work while the peer does not take what is done
        except asyncio.CancelledError:
            self.session.accept_queue.put_back(call)
            raise
        task = self._tasks.create_task(self._run_handler(call))
        task.add_done_callback(partial(self._on_task_done, call))
        call.task = task
        call.wake_all()  # it may have been cancelled while it waited

    def _on_task_done(self, call: Call, task: asyncio.Task[None]) -> None:
        self._free_slots.release()
        if call.task is task:  # it was cancelled before it had begun
            call.task = None
            self.session.accept_queue.put_back(call)

    async def _run_handler(self, call: Call) -> None:
        session = self.session
        if call.task is None:  # a loop with eager tasks: `_begin` has yet to learn of this one
            await asyncio.sleep(0)
        try:
            async with call:
                await self._handler(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            withdrawn = call.task is None
            if not withdrawn or task is None or task.uncancel() > 0:
                raise
        except PolymuxError as problem:
            log.debug("%s: %s", session, problem)
        except Exception:
            log.exception("%s: the work on %s failed", session, call)
        finally:
            call.task = None
