# mypyc: compiled
"""Resuming reader tasks inside `data_received`, without a future and a loop iteration.

The problem: a task that awaits an asyncio Future is resumed one event-loop iteration after the
result was set, because a Future schedules its callbacks with `call_soon`. For a small request that
means another `select` call, and the reply is written one system call later than it could be.

The idea: a task does not need a Future. What it awaits is recognized by the attribute
`_asyncio_future_blocking`; the task calls its `add_done_callback` with a wakeup and, when resumed,
its `result()`. `Waiter` implements just this part of the contract. It calls the task's wakeup
directly, in the task's context, once the received chunk has been processed. The reply is then
flushed in the same `data_received` call.

The contract with what runs the coroutine (see `runtime`; in asyncio a task), all of which
`Waiter` relies on and keeps:

- `__await__` sets `_asyncio_future_blocking`, and its iterator yields the waiter once; the task
  resets the attribute when it has taken the waiter.
- `add_done_callback(wakeup, context=...)` is called exactly once for each await. A `Waiter` is
  reused for the next await once `result()` was called.
- `cancel(msg)` returns True if the task will be resumed with CancelledError. It returns False once
  the waiter has been woken; the task then raises CancelledError at its next step by itself.
- `abandon()` is for a runner that stops waiting by itself. A wakeup that was under way finds no
  task, or resumes the next await too early: what awaits a `Waiter` looks again in a loop.
- The wakeup may be called outside of `call_soon` only while no other task of the loop runs, since a
  task cannot run inside another. `current_task` is checked for that (`close` of a TLS transport can
  call `data_received` from within a task); otherwise the wakeup is scheduled with `call_soon`.
- A context cannot be entered twice. If it is in use, the wakeup is scheduled as well.

Invariants: tasks are resumed only when the whole chunk has been processed, so a reader sees all of
its data and all events of the chunk; a waiter is resumed once for each `wake`; wakeups keep the
order in which the waiters were woken.

Senders that wait for room are woken by the write that makes it, and resumed like readers once it is
over: after a received chunk, and after the flush of a loop iteration. What they queue is written at
once, which makes room again, so `settle` resumes and writes by turns. The writer's quota ends it,
so that the event loop gets to run.
"""

from asyncio import CancelledError  # the exception only
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Final, cast

from mypy_extensions import i64

from polymux.live.runtime import Runtime
from polymux.live.session.socket_writer import SocketWriter

# States of a Waiter.
IDLE: Final[i64] = 0  # no task waits
WAITING: Final[i64] = 1
WOKEN: Final[i64] = 2  # the task is about to be resumed
CANCELLED: Final[i64] = 3  # the task is about to be resumed with CancelledError


class WakeupQueue:
    """The waiters of one session that were woken and not resumed yet."""

    def __init__(self, runtime: Runtime, socket_writer: SocketWriter) -> None:
        self.runtime = runtime
        self.socket_writer = socket_writer
        # Calls in progress at whose end the waiters are resumed, each counted by itself: while
        # there are any, woken waiters are queued. Closing a TLS transport can nest them.
        self.depth: i64 = 0
        self.woken: list[Waiter] = []

    def begin(self) -> None:
        """From here on woken waiters are queued and scheduled flushes wait, both for `settle`."""
        if self.depth == 0:
            self.socket_writer.bytes_since_yield = 0
        self.depth += 1
        self.socket_writer.flush_follows = True

    def settle(self) -> None:
        """Resume the queued waiters and flush, by turns, until neither is left to do.

        If this runs inside a task, or when the writer's quota is used, the rest is left to the next
        event-loop iteration.
        """
        writer = self.socket_writer
        try:
            if self.depth == 1:
                if len(self.woken) == 0:
                    writer.flush_pending()
                if len(self.woken) > 0:
                    if self.runtime.current_task() is None:
                        self.resume_and_flush()
                    else:
                        writer.schedule_pending()
        finally:
            self.depth -= 1
        if self.depth == 0:
            writer.flush_follows = False
            for waiter in self.woken:
                waiter.resume(False)
            self.woken = []
            if writer.flush_scheduled:
                writer.call_soon(writer.on_loop_iteration)

    def resume_and_flush(self) -> None:
        """Resume waiters and write what they have queued, which may wake others."""
        writer = self.socket_writer
        while len(self.woken) > 0 and writer.bytes_since_yield < writer.sender_quota:
            woken = self.woken
            self.woken = []
            for waiter in woken:
                waiter.resume(True)
            writer.flush_pending()


class Waiter:
    """An awaitable for one task at a time, which can be awaited again and again."""

    def __init__(self, wakeup_queue: WakeupQueue) -> None:
        self.wakeup_queue = wakeup_queue
        self.state: i64 = IDLE
        self.wakeup: Callable[[Waiter], object] | None = None  # given by the task
        self.context: Context | None = None  # of the task
        self.cancel_message: object = None
        self._asyncio_future_blocking: bool = False

    def wake(self) -> None:
        """Resume the waiting task, if there is one: after the current chunk, or soon."""
        if self.state == WAITING:
            self.state = WOKEN
            wakeup_queue = self.wakeup_queue
            if wakeup_queue.depth > 0:
                wakeup_queue.woken.append(self)
            else:
                self.resume(False)

    def resume(self, immediately: bool) -> None:
        """Run the task's next step now, or in the next event-loop iteration."""
        wakeup = self.wakeup
        context = self.context
        if wakeup is None or context is None:
            return  # abandoned
        runtime = self.wakeup_queue.runtime
        if immediately:
            try:
                context.run(wakeup, self)
                return
            except RuntimeError:  # the context is in use; a task's own errors do not get here
                pass
            except (SystemExit, KeyboardInterrupt) as problem:
                # Raise it from a loop callback, which ends the program. uvloop would treat it as a
                # failure of the connection.
                runtime.call_soon(throw, problem)
                return
        runtime.call_soon(wakeup, self, context=context)

    # The part of asyncio.Future that a task uses, and those that look at what it waits for

    def done(self) -> bool:
        """Whether the task that waits is about to be resumed."""
        return self.state != WAITING

    def __await__(self) -> Generator[object, None, None]:
        self._asyncio_future_blocking = True
        # A task only calls __next__ of it. The iterator of a tuple ends without an exception, which
        # compiled code could not do.
        return cast(Generator[object, None, None], iter((self,)))

    def get_loop(self) -> object:
        return self.wakeup_queue.runtime.loop

    def add_done_callback(self, wakeup: Callable[["Waiter"], object], *, context: Context) -> None:
        self.wakeup = wakeup
        self.context = context
        self.state = WAITING

    def cancel(self, msg: object = None) -> bool:
        """Resume the task with CancelledError. Return False if it was woken already."""
        if self.state != WAITING:
            return False
        self.state = CANCELLED
        self.cancel_message = msg
        self.resume(False)
        return True

    def abandon(self) -> None:
        """The caller no longer waits: the waiter is ready for the next await."""
        self.state = IDLE
        self.wakeup = None
        self.context = None
        self.cancel_message = None

    def result(self) -> None:
        """Called by the resumed task. Makes the waiter ready for the next await."""
        cancelled = self.state == CANCELLED
        message = self.cancel_message
        self.abandon()
        if cancelled:
            raise CancelledError() if message is None else CancelledError(message)

    def __repr__(self) -> str:
        state = ("idle", "waiting", "woken", "cancelled")[self.state]
        return f"<{state}: data from the peer>"


class SendWaiter(Waiter):
    """A caller that waits until it may queue `size` bytes on a stream."""

    def __init__(self, wakeup_queue: WakeupQueue, size: i64) -> None:
        super().__init__(wakeup_queue)
        self.size: i64 = size

    def __repr__(self) -> str:
        state = ("idle", "waiting", "woken", "cancelled")[self.state]
        return f"<{state}: room to send>"


def throw(problem: BaseException) -> None:
    raise problem
