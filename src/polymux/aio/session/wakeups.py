# mypyc: compiled
"""Waiting for what the peer sends, without a future and without a turn of the loop.

asyncio knows what can be waited for by the attribute `_asyncio_future_blocking`: a task that awaits
it leaves its wake-up there. A future hands that to the loop, for its next turn. Here it is called
as soon as the bytes that came have been dealt with: the answer leaves a system call earlier.
"""

from asyncio import AbstractEventLoop, CancelledError, current_task
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Final, cast

from mypy_extensions import i64

from polymux.aio.session.socket_writer import SocketWriter

IDLE: Final[i64] = 0  # nobody waits
WAITING: Final[i64] = 1
WOKEN: Final[i64] = 2  # and on its way
CANCELLED: Final[i64] = 3


class WakeupQueue:
    """Who goes on once what has just come was dealt with. There is one for each session."""

    def __init__(self, loop: AbstractEventLoop, socket_writer: SocketWriter) -> None:
        self.loop = loop
        self.socket_writer = socket_writer
        self.depth: i64 = 0  # bytes may come while others are dealt with, when TLS is closed
        self.woken: list[Waiter] = []

    def begin_receive(self) -> None:
        """Bytes have come: who is woken by them waits for the last of them."""
        self.depth += 1
        self.socket_writer.in_receive = True

    def end_receive(self) -> None:
        """They have been dealt with. A task cannot be run by another one: then it is the loop's
        turn, and what is to leave waits for it as well."""
        self.depth -= 1
        if self.depth > 0:
            return
        woken = self.woken
        directly = True
        if len(woken) > 0:
            self.woken = []
            directly = current_task(self.loop) is None
            for waiter in woken:
                waiter.resume(directly)
        self.socket_writer.end_receive(directly)


class Waiter:
    """What one task at a time waits for, again and again."""

    def __init__(self, wakeup_queue: WakeupQueue) -> None:
        self.wakeup_queue = wakeup_queue
        self.state: i64 = IDLE
        self.wakeup: Callable[[Waiter], object] | None = None  # the task's
        self.context: Context | None = None
        self.cancel_message: object = None  # of a cancellation
        self._asyncio_future_blocking: bool = False

    def wake(self) -> None:
        """Let who waits go on; nothing if nobody does."""
        if self.state == WAITING:
            self.state = WOKEN
            wakings = self.wakeup_queue
            if wakings.depth > 0:
                wakings.woken.append(self)
            else:
                self.resume(False)

    def resume(self, immediately: bool) -> None:
        """Have the task run, now or at the loop's next turn."""
        wakeup = self.wakeup
        context = self.context
        assert wakeup is not None
        assert context is not None
        loop = self.wakeup_queue.loop
        if immediately:
            try:
                context.run(wakeup, self)
                return
            except RuntimeError:  # not the task's: somebody is in its context just now
                pass
            except (SystemExit, KeyboardInterrupt) as problem:
                # The loop's, to end the program: uvloop would take it for the connection's end.
                loop.call_soon(throw, problem)
                return
        loop.call_soon(wakeup, self, context=context)

    # --- what `await` and a task ask for

    def __await__(self) -> Generator[object, None, None]:
        self._asyncio_future_blocking = True
        return cast(Generator[object, None, None], self)

    def __next__(self) -> "Waiter":
        if self._asyncio_future_blocking:  # the task takes that back
            return self
        raise StopIteration

    def get_loop(self) -> AbstractEventLoop:
        return self.wakeup_queue.loop

    def add_done_callback(self, wakeup: Callable[["Waiter"], object], *, context: Context) -> None:
        self.wakeup = wakeup
        self.context = context
        self.state = WAITING

    def cancel(self, msg: object = None) -> bool:
        """The task is to be cancelled; False if it is on its way, and will find out by itself."""
        if self.state != WAITING:
            return False
        self.state = CANCELLED
        self.cancel_message = msg
        self.resume(False)
        return True

    def result(self) -> None:
        """A task asks for it on its way from here: the next one may come."""
        cancelled = self.state == CANCELLED
        message = self.cancel_message
        self.state = IDLE
        self.wakeup = None
        self.context = None
        self.cancel_message = None
        if cancelled:
            raise CancelledError() if message is None else CancelledError(message)

    def __repr__(self) -> str:
        state = ("idle", "waiting", "woken", "cancelled")[self.state]
        return f"<{state}: what a peer sends>"


def throw(problem: BaseException) -> None:
    raise problem
