"""trio as the runtime of sessions: one task for what is ready and for timers, one for each socket.

The coroutines of sessions are stepped by these tasks (see `live.stepping`). A task of the
application that calls one makes its first step by itself; if it has to wait, it is woken when the
coroutine has ended, however many steps that took. All tasks of a runtime are in one task group,
shielded from its cancellation: they end with the block that opened the runtime, once its sessions
have been closed.

Calls and callbacks are protected from KeyboardInterrupt, which comes at the next checkpoint of the
main task.
"""

from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

import trio
from anyio.abc import TaskGroup
from trio.lowlevel import Abort, RaiseCancelT, enable_ki_protection

from polymux.anyio.runtime import DoorRuntime, HandlerGroup
from polymux.live.stepping import SteppedTask
from polymux.live.stepping_runtime import HeapTimer, SteppingRuntime
from polymux.live.transports.opening import open_connection

T = TypeVar("T")


class TrioRuntime(SteppingRuntime, DoorRuntime):
    """Sockets, timers and tasks in a task group; see the module.

    Args:
        name: What it serves, for messages.
        group: Where its tasks run. `stop` ends them.
    """

    def __init__(self, name: str, group: TaskGroup) -> None:
        super().__init__(name, trio.lowlevel.current_clock().current_time)
        self.live = self
        self.open_connection = open_connection
        self.open_stdio = None
        self._group = group
        self._outside = HandlerGroup(self, group)  # what needs tasks of trio
        self._watches: dict[tuple[int, bool], trio.CancelScope] = {}  # by descriptor and direction
        self._parked: trio.lowlevel.Task | None = None  # the task of `_run` while it waits
        self._sleep = trio.CancelScope()  # its deadline is when the next timer is due
        self._stopped = False
        self._runs_ready = False  # the step in progress belongs to a call that runs what it readies
        group.start_soon(self._run)

    # What sessions use

    def call_soon(
        self, callback: Callable[..., object], /, *args: object, context: Context | None = None
    ) -> None:
        self.ready.append((callback, args))
        if self._parked is not None and not self._runs_ready:
            self._wake()

    def call_at(self, when: float, callback: Callable[..., object], /, *args: object) -> HeapTimer:
        timer = super().call_at(when, callback, *args)
        if when < self._sleep.deadline:
            self._sleep.deadline = when
        return timer

    def add_reader(self, fd: int, callback: Callable[..., object], /, *args: object) -> None:
        self._watch(fd, False, partial(callback, *args))

    def remove_reader(self, fd: int, /) -> None:
        self._forget(fd, False)

    def add_writer(self, fd: int, callback: Callable[..., object], /, *args: object) -> None:
        self._watch(fd, True, partial(callback, *args))

    def remove_writer(self, fd: int, /) -> None:
        self._forget(fd, True)

    async def getaddrinfo(
        self, host: Any, port: Any, /, *, type: int = 0, flags: int = 0
    ) -> list[Any]:
        look_up = partial(trio.socket.getaddrinfo, host, port, type=type, flags=flags)
        found: list[Any] = await self._outside.run(look_up)
        return found

    # What tasks of the application use

    @enable_ki_protection
    def do(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return super().do(function, *args, **kwargs)

    async def before_call(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    async def after_call(self) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    @enable_ki_protection
    async def run(self, verb: Coroutine[Any, Any, T]) -> tuple[bool, T]:
        stepped = SteppedTask(self, verb)
        self._runs_ready = True
        try:
            stepped.begin()
        except BaseException:  # KeyboardInterrupt: nothing more is done here
            self._wake()
            raise
        finally:
            self._runs_ready = False
        if stepped.done():
            return await self._run_readied(), stepped.result()
        if self.ready:
            self._wake()
        cancelled: RaiseCancelT | None = None

        def interrupt(raise_cancel: RaiseCancelT) -> Abort:
            nonlocal cancelled
            cancelled = raise_cancel
            stepped.cancel()  # soon: the session may be in the middle of something
            return Abort.FAILED

        stepped.on_done = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
        await trio.lowlevel.wait_task_rescheduled(interrupt)
        if cancelled is not None and stepped.cancelled():
            cancelled()
        return True, stepped.result()

    async def _run_readied(self) -> bool:
        """Let others run, then run what is ready; False if nothing is.

        Data that a task sends is written so without a turn of the runtime's own task, together with
        what other tasks have sent meanwhile.
        """
        if not self.ready:
            return False
        await trio.lowlevel.cancel_shielded_checkpoint()
        self.run_ready()
        if self.ready:
            self._wake()
        return True

    def run_logged(
        self, callback: Callable[..., object], arguments: tuple[object, ...] = ()
    ) -> None:
        try:
            super().run_logged(callback, arguments)
        except BaseException as problem:  # SystemExit: it ends the group, which closes all in order
            self._group.start_soon(fail, problem)

    def stop(self) -> None:
        """Run what is ready, and end the tasks. Sessions and servers were closed before."""
        while self.ready:
            self.run_ready()
        self._stopped = True
        for scope in self._watches.values():
            scope.cancel()
        self._wake()

    # The tasks

    def _wake(self) -> None:
        """Let the task of `_run` look again."""
        parked, self._parked = self._parked, None
        if parked is not None:
            trio.lowlevel.reschedule(parked)

    @enable_ki_protection
    async def _run(self) -> None:
        """Run what is ready, and timers, until the runtime is stopped."""
        while not self._stopped:
            with trio.CancelScope(shield=True) as self._sleep:  # its end: a timer is due
                while not self._stopped:
                    self.run_due()
                    self.run_ready()
                    if self.ready:
                        await trio.lowlevel.cancel_shielded_checkpoint()
                    else:
                        due = self.next_due()
                        if due != self._sleep.deadline:  # setting it takes microseconds
                            self._sleep.deadline = due
                        await self._park()

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()

        def on_timer(_: RaiseCancelT) -> Abort:
            self._parked = None
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(on_timer)

    def _watch(self, fd: int, write: bool, callback: Callable[[], object]) -> None:
        """Call back whenever a descriptor is ready, instead of what was called before."""
        self._forget(fd, write)
        if not self._stopped:
            scope = self._watches[fd, write] = trio.CancelScope(shield=True)
            self._group.start_soon(self._call_when_ready, fd, write, scope, callback)

    def _forget(self, fd: int, write: bool) -> None:
        scope = self._watches.pop((fd, write), None)
        if scope is not None:
            scope.cancel()

    @enable_ki_protection
    async def _call_when_ready(
        self, fd: int, write: bool, scope: trio.CancelScope, callback: Callable[[], object]
    ) -> None:
        wait = trio.lowlevel.wait_writable if write else trio.lowlevel.wait_readable
        with scope:
            while not scope.cancel_called:
                await wait(fd)
                if not scope.cancel_called:  # else the descriptor may be another's now
                    self.run_logged(callback)


async def fail(problem: BaseException) -> None:
    raise problem
