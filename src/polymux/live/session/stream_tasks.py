"""`Session.serve_streams`: a handler for every stream the peer opens, each in a task of its own.

A handler starts as soon as its stream is opened. Creating a task and waiting for its first
event-loop iteration takes longer than a small request, so where streams come often a few tasks are
created in advance and wait for a stream (`IdleTask`). The wakeup of an idle task runs when the
received chunk has been processed, like that of any reader task (see `wakeups`).

A task can be cancelled by the application before its first step. Its coroutine then never runs, not
even its `finally`, so the runner looks for such tasks by itself and aborts their streams.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, Protocol

from polymux.core.errors import PolymuxError, SessionClosed
from polymux.live.errors import copy_of, only_polymux_errors
from polymux.live.runtime import Task, wait_done
from polymux.live.session.accept_queue import AcceptQueue
from polymux.live.session.component import SessionComponent
from polymux.live.session.interface import SessionInterface
from polymux.live.session.wakeups import WAITING, Waiter
from polymux.live.streams.duplex import Stream

log = logging.getLogger("polymux.aio")

StreamHandler = Callable[[Any], Awaitable[None]]

MAX_IDLE_TASKS = 8


class ServedSession(SessionInterface, Protocol):
    """A session that hands the peer's streams to a `StreamTaskRunner`."""

    stream_task_runner: "StreamTaskRunner | None"


class IdleTask:
    """A task that was created before its stream."""

    __slots__ = ("dismissed", "stream", "task", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.stream: Stream | None = None
        self.task: Task | None = None
        self.dismissed = False  # the session ended: return without a stream

    @property
    def is_done(self) -> bool:
        """Whether the application cancelled the task."""
        return self.task is not None and self.task.done()


class StreamTaskRunner(SessionComponent[ServedSession]):
    """Starts a handler when a stream arrives, up to `max_concurrent` at the same time.

    Further streams wait in the accept queue. Every handler has a task and a context of its own: a
    copy of the context in which `serve_streams` was called.
    """

    def __init__(
        self,
        session: ServedSession,
        accept_queue: AcceptQueue,
        handler: StreamHandler,
        max_concurrent: int,
    ) -> None:
        super().__init__(session)
        self._accept_queue = accept_queue
        self._handler = handler
        self._max_concurrent = max_concurrent
        self._tasks: dict[Stream, Task] = {}
        self._context = copy_context()
        self._idle_tasks: list[IdleTask] = []
        self._idle_batch_size = 1  # how many to create when there are none
        self._unstarted_streams: list[Stream] = []  # whose tasks have not made their first step

    async def run(self) -> None:
        """Run until the session has ended and all handlers have returned.

        If cancelled, the handlers are cancelled too; streams without a started handler go back to
        the accept queue.
        """
        session = self.session
        if session.stream_task_runner is not None:
            raise RuntimeError(f"{session}: another serve_streams handles its streams")
        session.stream_task_runner = self
        try:
            self._start_queued()
            self._refill_idle_tasks()
            with contextlib.suppress(SessionClosed):  # raised below if the session failed
                await self._accept_queue.wait_ended()
            # Streams that are still queued are handled too.
            while self._tasks or await self._wait_to_start():
                for task in list(self._tasks.values()):
                    await wait_done(session.runtime, task)
                self._reap_cancelled(list(self._tasks))
        except BaseException:
            session.stream_task_runner = None
            await self._cancel_all()
            raise
        finally:
            session.stream_task_runner = None
            self._dismiss_idle_tasks()
        if session.failure is not None:
            raise copy_of(session.failure)

    # Starting handlers

    def may_start(self, stream: Stream) -> bool:
        """Return whether the handler of a stream may start now; if not, the stream is queued."""
        return len(self._tasks) < self._max_concurrent

    def start(self, stream: Stream) -> bool:
        """Start the handler of a stream. Return False if it may not start now."""
        if not self.may_start(stream):
            return False
        idle = self._idle_tasks[-1] if self._idle_tasks else None
        if idle is not None and idle.waiter.state == WAITING and idle.task is not None:
            self._idle_tasks.pop()
            idle.stream = stream
            self._tasks[stream] = idle.task
            idle.waiter.wake()
        else:  # there is none, or it has not made its first step, or it was cancelled
            if not self._unstarted_streams:
                self.session.runtime.call_soon(self._schedule_reap)
            self._unstarted_streams.append(stream)
            self._tasks[stream] = self._create_task(self._run_handler(stream))
        return True

    def _start_queued(self) -> None:
        """Start handlers for queued streams, as far as they may start."""
        session = self.session_or_none()
        while session is not None and session.stream_task_runner is self:
            stream = self._accept_queue.first()
            if stream is None or not self.may_start(stream):
                return
            self._accept_queue.discard(stream)
            self.start(stream)

    async def _wait_to_start(self) -> bool:
        """Wait until the next queued stream may start, if more than a running handler stops it.

        Returns:
            Whether it was waited for: look again.
        """
        return False

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        return self._context.run(self.session.runtime.create_task, coroutine)

    async def _run_handler(self, stream: Stream) -> None:
        if stream not in self._tasks:
            # A loop with eager tasks starts inside `create_task`, in the middle of a received
            # chunk: the same chunk may hold this stream's reset, which is not processed yet.
            await self.session.runtime.checkpoint()
        try:
            try:
                if stream.usable:  # the peer may have aborted it already
                    self.session.on_stream_claimed(stream)
                    await self._handler(stream)
            except BaseException:
                self._on_failed(stream)
                raise
            await stream.close()
        except PolymuxError as problem:
            log.debug("%s: %s: %s", stream.session, stream, problem)
        except Exception as problem:
            if only_polymux_errors(problem):
                log.debug("%s: %s: %s", stream.session, stream, problem)
            else:
                log.exception("%s: the handler of %s failed", stream.session, stream)
        finally:
            self._on_handler_done(stream)

    def _on_failed(self, stream: Stream) -> None:
        """The handler of a stream has raised or was cancelled."""
        stream.abort()

    def _on_handler_done(self, stream: Stream) -> None:
        """Start the next queued stream, and create idle tasks if there are none."""
        self._tasks.pop(stream, None)
        session = self.session_or_none()
        if session is not None and session.stream_task_runner is self:
            if self._accept_queue:
                self._start_queued()
            idle_tasks = self._idle_tasks
            if not idle_tasks or idle_tasks[-1].waiter.state != WAITING:
                self._refill_idle_tasks()

    # Idle tasks

    def _refill_idle_tasks(self) -> None:
        """Create idle tasks if there are none. New ones cost an event-loop iteration, and several
        cost no more than one, so the batch doubles every time they run out."""
        while self._idle_tasks and self._idle_tasks[-1].is_done:
            self._idle_tasks.pop()
        session = self.session_or_none()
        if not self._idle_tasks and session is not None and session.stream_task_runner is self:
            for _ in range(self._idle_batch_size):
                idle = IdleTask(Waiter(session.wakeup_queue))
                idle.task = self._create_task(self._wait_for_stream(idle))
                self._idle_tasks.append(idle)
            self._idle_batch_size = min(2 * self._idle_batch_size, MAX_IDLE_TASKS)

    async def _wait_for_stream(self, idle: IdleTask) -> None:
        if not idle.dismissed:
            try:
                await idle.waiter
            except BaseException:
                if idle.stream is not None:
                    self._abort_unstarted(idle.stream)
                raise
        if idle.stream is not None:
            await self._run_handler(idle.stream)

    def _dismiss_idle_tasks(self) -> None:
        """Let the idle tasks return: no more streams will come."""
        for idle in self._idle_tasks:
            idle.dismissed = True
            idle.waiter.wake()
        self._idle_tasks.clear()

    # Cancelled tasks

    def _schedule_reap(self) -> None:
        """Look for cancelled tasks in the next event-loop iteration: all tasks that were created
        together have made their first step by then."""
        unstarted, self._unstarted_streams = self._unstarted_streams, []
        if unstarted:
            unstarted[0].session.runtime.call_soon(self._reap_cancelled, unstarted)

    def _reap_cancelled(self, streams: list[Stream]) -> None:
        """Abort the streams whose tasks were cancelled before their first step."""
        for stream in streams:
            task = self._tasks.get(stream)
            if task is not None and task.done():
                self._abort_unstarted(stream)

    def _abort_unstarted(self, stream: Stream) -> None:
        """Abort a stream whose handler will never start, and start the next queued one."""
        session = self.session_or_none()
        if session is not None and session.stream_task_runner is self:
            self._tasks.pop(stream, None)
            self._on_unstarted(stream)
            self._start_queued()

    def _on_unstarted(self, stream: Stream) -> None:
        """The application has cancelled the task of a stream before its first step."""
        stream.abort()

    async def _cancel_all(self) -> None:
        """Cancel all handlers and wait for them, even if this task is cancelled again. Streams
        whose handler had not started go back to the accept queue."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await self.session.runtime.wait_shielded(tasks)
        for stream in reversed(self._tasks):
            self._accept_queue.put_back(stream)
