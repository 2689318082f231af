"""Work on every call of a Streamux peer, each in a task of its own: it ends if the peer cancels."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from polymux.aio.errors import again
from polymux.aio.session.component import Belonging
from polymux.aio.streams.exchanges import Call
from polymux.core.errors import PolymuxError, SessionClosed

if TYPE_CHECKING:
    from polymux.aio.protocols.streamux import StreamuxSession

log = logging.getLogger("polymux.aio")

Worker = Callable[[Call], Awaitable[None]]


class Answering(Belonging["StreamuxSession"]):
    """Takes calls as they come, as long as there is room and the peer takes what is done."""

    def __init__(self, session: "StreamuxSession", work: Worker, at_once: int) -> None:
        super().__init__(session)
        self._work = work
        self._free = asyncio.Semaphore(at_once)
        self._tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        """Until the session ends and the work on its calls is done."""
        session = self.session
        async with self._tasks:
            with contextlib.suppress(SessionClosed):  # told below, and not as one of a group
                async for call in session.calls:
                    await self._begin(call)
        if session.failure is not None:
            raise again(session.failure)

    async def _begin(self, call: Call) -> None:
        try:
            await self._free.acquire()
            await call.drain()  # no new work while the peer does not take what is done
        except asyncio.CancelledError:
            self.session._arrivals.put_back(call)
            raise
        task = self._tasks.create_task(self._see_to(call))
        task.add_done_callback(partial(self._done, call))
        call._task = task
        call._wake_all()  # it may have been cancelled while it waited

    def _done(self, call: Call, task: asyncio.Task[None]) -> None:
        self._free.release()
        if call._task is task:  # it was cancelled before it had begun
            call._task = None
            self.session._arrivals.put_back(call)

    async def _see_to(self, call: Call) -> None:
        session = self.session
        if call._task is None:  # a loop with eager tasks: `_begin` has yet to learn of this one
            await asyncio.sleep(0)
        try:
            async with call:
                await self._work(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            withdrawn = call._task is None
            if not withdrawn or task is None or task.uncancel() > 0:
                raise
        except PolymuxError as problem:
            log.debug("%s: %s", session, problem)
        except Exception:
            log.exception("%s: the work on %s failed", session, call)
        finally:
            call._task = None
