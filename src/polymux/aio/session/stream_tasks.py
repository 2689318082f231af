"""Work on every stream the peer opens, each in a task of its own."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from polymux.aio.errors import copy_of
from polymux.aio.session.component import SessionComponent
from polymux.aio.session.wakeups import WAITING, Waiter
from polymux.aio.streams.duplex import Stream
from polymux.core.errors import PolymuxError, SessionClosed

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

log = logging.getLogger("polymux.aio")

StreamHandler = Callable[[Any], Awaitable[None]]


MAX_IDLE_TASKS = 8  # tasks that stand by, where streams come often


class IdleTask:
    """A task that is there before its stream: to make one when a stream has come, and to wait for
    its first turn, takes longer than a small piece of work."""

    __slots__ = ("dismissed", "stream", "task", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.stream: Stream | None = None
        self.task: asyncio.Task[None] | None = None
        self.dismissed = False

    @property
    def is_done(self) -> bool:
        """Has somebody cancelled it?"""
        return self.task is not None and self.task.done()


class StreamTaskRunner(SessionComponent["Session"]):
    """Starts the work as soon as a stream comes; who finds too much under way waits in line.

    Every stream has a task and a context of its own: a copy of the one in which `each` was called.
    """

    def __init__(self, session: "Session", handler: StreamHandler, max_concurrent: int) -> None:
        super().__init__(session)
        self._handler = handler
        self._max_concurrent = max_concurrent
        self._tasks: dict[Stream, asyncio.Task[None]] = {}
        self._context = copy_context()
        self._idle_tasks: list[IdleTask] = []
        self._idle_batch_size = 1  # how many to make when there are none
        self._unstarted_streams: list[Stream] = []  # whose tasks have yet to have their first turn

    async def run(self) -> None:
        """Until the session has ended and the work on all its streams is done."""
        session = self.session
        if session.stream_task_runner is not None:
            raise RuntimeError(f"{session}: somebody else works on its streams")
        session.stream_task_runner = self
        try:
            self._start_queued()
            self._refill_idle_tasks()
            with contextlib.suppress(SessionClosed):  # told below
                await session.accept_queue.wait_ended()
            while self._tasks:  # those still in line have their turn too
                await asyncio.wait(self._tasks.values())
                self._reap_cancelled(list(self._tasks))
        except asyncio.CancelledError:
            session.stream_task_runner = None
            await self._cancel_all()
            raise
        finally:
            session.stream_task_runner = None
            self._dismiss_idle_tasks()
        if session.failure is not None:
            raise copy_of(session.failure)

    def start(self, stream: Stream) -> bool:
        """Begin to work on a stream that has come; False if it has to wait."""
        if len(self._tasks) >= self._max_concurrent:
            return False
        spare = self._idle_tasks[-1] if self._idle_tasks else None
        if spare is not None and spare.waiter.state == WAITING and spare.task is not None:
            self._idle_tasks.pop()
            spare.stream = stream
            self._tasks[stream] = spare.task
            spare.waiter.wake()
        else:  # there is none, or it has yet to have its first turn, or somebody has cancelled it
            if not self._unstarted_streams:
                self.session.loop.call_soon(self._schedule_reap)
            self._unstarted_streams.append(stream)
            self._tasks[stream] = self._create_task(self._run_handler(stream))
        return True

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._context.run(self.session.loop.create_task, coroutine)

    def _refill_idle_tasks(self) -> None:
        """Have tasks stand by. New ones cost a turn of the loop, and several no more than one: the
        more often they run out, the more are made."""
        while self._idle_tasks and self._idle_tasks[-1].is_done:
            self._idle_tasks.pop()
        session = self._session_ref()
        if not self._idle_tasks and session is not None and session.stream_task_runner is self:
            for _ in range(self._idle_batch_size):
                spare = IdleTask(Waiter(session.wakeup_queue))
                spare.task = self._create_task(self._wait_for_stream(spare))
                self._idle_tasks.append(spare)
            self._idle_batch_size = min(2 * self._idle_batch_size, MAX_IDLE_TASKS)

    async def _wait_for_stream(self, idle: IdleTask) -> None:
        if not idle.dismissed:
            try:
                await idle.waiter
            except asyncio.CancelledError:
                if idle.stream is not None:
                    self._abort_unstarted(idle.stream)
                raise
        if idle.stream is not None:
            await self._run_handler(idle.stream)

    def _dismiss_idle_tasks(self) -> None:
        """No stream will come."""
        for spare in self._idle_tasks:
            spare.dismissed = True
            spare.waiter.wake()
        self._idle_tasks.clear()

    def _start_queued(self) -> None:
        """Begin with those in line, as far as there is room."""
        session = self._session_ref()
        while session is not None and session.stream_task_runner is self:
            if len(self._tasks) >= self._max_concurrent:
                return
            stream = session.accept_queue.take_nowait()
            if stream is None:
                return
            self.start(stream)

    def _schedule_reap(self) -> None:
        """Tasks that were made in one go have all had their first turn when the loop comes to what
        it is asked for now."""
        fresh, self._unstarted_streams = self._unstarted_streams, []
        if fresh:
            fresh[0].session.loop.call_soon(self._reap_cancelled, fresh)

    def _reap_cancelled(self, streams: list[Stream]) -> None:
        """Look for work that was cancelled before it had begun."""
        for stream in streams:
            task = self._tasks.get(stream)
            if task is not None and task.done():
                self._abort_unstarted(stream)

    def _abort_unstarted(self, stream: Stream) -> None:
        """Nobody has begun with this stream, and nobody will: give it up, and its place."""
        session = self._session_ref()
        if session is not None and session.stream_task_runner is self:
            self._tasks.pop(stream, None)
            stream.abort()
            self._start_queued()

    async def _cancel_all(self) -> None:
        """End the work that is under way, however often that is interrupted. A stream that nobody
        had begun with waits for whoever asks next."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        while not all(task.done() for task in tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(tasks)
        for stream in reversed(self._tasks):
            self.session.accept_queue.put_back(stream)

    async def _run_handler(self, stream: Stream) -> None:
        if stream not in self._tasks:
            # A loop with eager tasks begins inside `create_task`, in the middle of what the peer's
            # bytes brought: this stream's reset may be among it and not have been told yet.
            await asyncio.sleep(0)
        try:
            try:
                if stream.usable:  # the peer may have given it up already
                    self.session.on_stream_claimed(stream)
                    await self._handler(stream)
            except BaseException:
                stream.abort()
                raise
            await stream.close()
        except PolymuxError as problem:
            log.debug("%s: %s", stream, problem)
        except Exception:
            log.exception("the work on %s failed", stream)
        finally:
            self._on_handler_done(stream)

    def _on_handler_done(self, stream: Stream) -> None:
        """There is a place for another."""
        self._tasks.pop(stream, None)
        session = self._session_ref()
        if session is not None and session.stream_task_runner is self:
            if session.accept_queue:
                self._start_queued()
            spares = self._idle_tasks
            if not spares or spares[-1].waiter.state != WAITING:
                self._refill_idle_tasks()
