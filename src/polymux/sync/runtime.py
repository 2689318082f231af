"""Threads as the runtime of sessions: the thread that waits does the work.

All that happens in the sessions of a runtime happens under its lock. A thread that calls a verb
takes the lock and runs the verb itself. If it has to wait, it leads: it releases the lock, waits
for the sockets, and processes what comes, until what it waits for is done. So a reply does not pass
through another thread. Only one thread leads; others that wait are parked, and the next of them
leads when the leader has what it wanted. When none waits, a thread of the runtime's own leads, so
that peers are answered and timers run. It takes over a moment after the last caller: a caller that
calls again soon does not have to displace it. One that sends and sends, and never has to wait,
looks at the sockets and timers now and then: two threads that take turns would wait for each
other.

A signal handler or a finalizer runs on top of a call of its thread, and may itself call a verb.
While the call below waits, this works as everywhere, even if that call leads. While it works under
the lock, the verb raises RuntimeError: a session is in the middle of something. Therefore calls
that wait for the end of a session or a server, as main threads do, never lead.

A client has a runtime of its own, and so has each server with all its sessions. A runtime begins
with its first use and ends with its last connection, and its thread ends with it.
"""

import contextlib
import os
import selectors
import socket
import threading
from asyncio import CancelledError  # the exception only
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic, sleep
from typing import Any, TypeVar

from polymux.live.stepping import PlainFuture, SteppedTask
from polymux.live.stepping_runtime import HeapTimer, SteppingRuntime

T = TypeVar("T")

TAKE_OVER_SECONDS = 0.005  # from the last caller's wait until the runtime's own thread leads
LOOK_SECONDS = 0.0001  # from then until a call that need not wait looks at the sockets
MAX_WAIT_SECONDS = 3600.0  # at a time: systems have bounds
RELEASED_POLL_SECONDS = 0.005  # between two looks of a call that outlives all connections


class Parking:
    """Where one call waits, for its turn to lead or for its result.

    Not an Event: a signal handler on top of `Event.wait` may find the lock of that one taken.
    """

    __slots__ = ("_gate", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self, seconds: float) -> None:
        """Wait for a `wake` since the last time, or so long; without the runtime's lock."""
        self._gate.acquire(timeout=seconds)

    def wake(self) -> None:
        """Let the thread look again; with the runtime's lock."""
        if self._gate.locked():
            self._gate.release()


class ThreadRuntime(SteppingRuntime):
    """Sockets, timers and tasks under one lock; see the module.

    Args:
        name: What its thread is called.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, monotonic)
        self.poll_loop.spinning = True  # `_lead` polls: no callback has to
        self._process = os.getpid()
        self._lock = threading.RLock()  # a second call of a thread fails, instead of waiting
        self._busy = False  # the thread that has the lock is not waiting
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
        self._selector.register(
            self._wake_receiver, selectors.EVENT_READ, ((self._on_wake, ()), None)
        )
        self._leader: Parking | None = None
        self._selecting_until = 0.0  # while the leader waits for the sockets; else 0.0
        self._parked: deque[Parking] = deque()
        self._idle: list[Parking] = []  # of calls that leave the work to the runtime's own thread
        self._led_at = 0.0  # when a caller last led
        self._users = 0  # connections and servers
        self._unused = False  # the last of them has ended
        self._thread: threading.Thread | None = None
        self._standby = threading.Event()  # wakes the runtime's own thread
        self._asleep = False  # that thread waits without a timeout, because a caller leads
        self._own: Parking | None = None  # stands for that thread as the leader
        self._closed = False
        self._released = False

    # What sessions use

    def call_at(self, when: float, callback: Callable[..., object], /, *args: object) -> HeapTimer:
        timer = super().call_at(when, callback, *args)
        if when < self._selecting_until:
            self._interrupt_select()
        return timer

    # Sockets (`live.transports.sockets.SocketRuntime`)

    def add_reader(self, fd: int, callback: Callable[..., object], /, *args: object) -> None:
        self._change(fd, 0, (callback, args))

    def remove_reader(self, fd: int, /) -> None:
        self._change(fd, 0, None)

    def add_writer(self, fd: int, callback: Callable[..., object], /, *args: object) -> None:
        self._change(fd, 1, (callback, args))

    def remove_writer(self, fd: int, /) -> None:
        self._change(fd, 1, None)

    def _change(self, fd: int, which: int, callback: Any) -> None:
        """Set what is called when a descriptor can be read (0) or written (1)."""
        if self._released:
            return
        key = self._selector.get_map().get(fd)
        both: list[Any] = [None, None] if key is None else list(key.data)
        both[which] = callback
        events = (selectors.EVENT_READ if both[0] else 0) | (
            selectors.EVENT_WRITE if both[1] else 0
        )
        if key is None:
            if events:
                self._selector.register(fd, events, tuple(both))
        elif events:
            self._selector.modify(fd, events, tuple(both))
        else:
            self._selector.unregister(fd)
            if self._unused:  # soon: another callback may be set at once
                self.call_soon(self._close_if_unused)

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_receiver.recv(4096):
                pass

    def _interrupt_select(self) -> None:
        """Let the leader look again: there is something to do before it expected."""
        self._selecting_until = 0.0
        with contextlib.suppress(OSError):  # it is full of them, or closed
            self._wake_sender.send(b"x")

    async def getaddrinfo(
        self, host: Any, port: Any, /, *, type: int = 0, flags: int = 0
    ) -> list[Any]:
        numeric = flags | socket.AI_NUMERICHOST
        try:
            return socket.getaddrinfo(host, port, type=type, flags=numeric)
        except socket.gaierror:  # a name: to look it up may take long
            look_up = partial(socket.getaddrinfo, host, port, type=type, flags=flags)
            return await self.in_thread(look_up, f"{self.name} lookup")

    async def in_thread(
        self,
        function: Callable[[], T],
        name: str,
        on_end: Callable[[], object] = lambda: None,
    ) -> T:
        """Call a function in a thread of its own, and wait for its end; raises what it raises.

        If it is cancelled, the function goes on, and what it returns or raises is ignored.

        Args:
            function: What to call.
            name: What the thread is called.
            on_end: Called under the lock when the function has ended, or could not begin.
        """
        done: PlainFuture[T] = self.create_future()

        def finish(settle: Callable[[], object]) -> None:
            on_end()
            if not done.done():
                settle()

        def run() -> None:
            try:
                result = function()
            except BaseException as problem:
                self.do(finish, partial(done.set_exception, problem))
            else:
                self.do(finish, partial(done.set_result, result))

        try:
            threading.Thread(target=run, name=name, daemon=True).start()
        except BaseException:  # the system has no more threads
            on_end()
            raise
        return await done

    # What callers use

    def check_process(self) -> None:
        """Raise RuntimeError in a process that was forked from the one of this runtime."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self.name} belongs to process {self._process}, and this is one forked from it: "
                "connect again here"
            )

    def do(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function that does not wait, such as a method of a session."""
        self.check_process()
        with self._lock:
            self._begin_work()
            try:
                try:
                    return function(*args, **kwargs)
                finally:
                    self._settle()
            finally:
                self._busy = False

    def call(
        self,
        coroutine: Coroutine[Any, Any, T],
        timeout: float | None = None,
        *,
        may_lead: bool = True,
    ) -> T:
        """Run a coroutine, and wait until it has returned.

        Args:
            coroutine: A verb of a session or a stream of this runtime.
            timeout: Seconds; None: as long as it takes.
            may_lead: Process what comes meanwhile; False: leave that to other threads.

        Raises:
            TimeoutError: It took longer; the coroutine was cancelled.
            RuntimeError: This thread is within a call of this runtime that does not wait.
        """
        task: SteppedTask[T] | None = None
        in_time = True
        try:
            self.check_process()
            deadline = None if timeout is None else monotonic() + timeout
            with self._lock:
                self._begin_work()
                try:
                    task = SteppedTask(self, coroutine)
                    in_time = self._complete(task, deadline, may_lead)
                finally:
                    self._busy = False
        except BaseException:
            if task is None:
                coroutine.close()
            raise
        if not in_time and task.cancelled():
            late = f"no result within {timeout:g} s, the call was cancelled"
            raise TimeoutError(f"{late}; allow more with timeout=...")
        return task.result()

    def _complete(
        self,
        task: SteppedTask[Any],
        deadline: float | None,
        may_lead: bool,
    ) -> bool:
        """Run a task until it is done. Return False if it was cancelled at the deadline."""
        try:
            task.begin()
            self._settle()
            if task.done():
                self._look_at_sockets()
                return True
            self._wait(task, deadline, may_lead)
            in_time = task.done()
            if not in_time:
                task.interrupt(CancelledError())
        except BaseException as problem:  # KeyboardInterrupt
            task.interrupt(problem)
            self._settle()
            raise
        self._settle()
        if not task.done():  # it cleans up
            self._wait(task, None, may_lead)
        return in_time

    def _begin_work(self) -> None:
        """The lock was taken: raise RuntimeError if this thread had it, and works under it."""
        if self._busy:
            raise RuntimeError(
                f"{self.name} was called within a call of its own that does not wait, such as by a "
                "signal handler, a finalizer or a log handler: make this call in another thread"
            )
        self._busy = True

    def _take_lock_again(self) -> None:
        """Take the lock after a wait without it, however often that is interrupted.

        If it raises, KeyboardInterrupt or what a signal handler raises, the lock is held too.
        """
        interruption: BaseException | None = None
        held = False
        while not held:
            try:
                with self._lock:  # a call of `acquire` may be interrupted after it took the lock
                    held = True
                    self._lock.acquire()  # keeps it
            except BaseException as problem:
                interruption = problem
        self._busy = True
        if interruption is not None:
            raise interruption

    # Connections, and the runtime's own thread

    def add_user(self) -> None:
        """A connection or a server begins: the thread runs until the last one has ended.

        Connections of a server that are aborted with it are closed first.
        """
        self._users += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def remove_user(self) -> None:
        """A connection or a server has ended."""
        self._users -= 1
        self._unused = not self._users
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Let the thread end, unless a socket is still watched: it may be being closed."""
        unwatched = self._released or len(self._selector.get_map()) == 1  # that of `_on_wake`
        if self._unused and unwatched:
            self._closed = True
            self._interrupt_select()
            self._standby.set()

    def _run(self) -> None:
        """Lead while no caller does, until the last connection has ended."""
        with self._lock:
            self._busy = True
            self._own = Parking()
            try:
                while not self._closed:
                    self._lead_or_stand_by(self._own)
                for parking in self._idle:
                    parking.wake()  # they lead from now on
                self._release_if_unused()
            finally:
                self._busy = False

    def _lead_or_stand_by(self, own: Parking) -> None:
        remaining = self._led_at + TAKE_OVER_SECONDS - monotonic()
        if self._leader is None and (remaining <= 0 or self._idle):
            self._leader = own
            try:
                self._lead(None, None)
            finally:
                self._leader = None
            if self._parked:
                self._parked.popleft().wake()
            return
        self._standby.clear()
        self._asleep = self._leader is not None
        try:
            self._busy = False
            self._lock.release()
            self._standby.wait(None if self._asleep else remaining)
        finally:
            self._take_lock_again()
        self._asleep = False

    def _release_if_unused(self) -> None:
        """Close what the runtime holds, once the last connection has ended and no call waits."""
        waiting = self._leader is not None or self._parked or self._idle
        if not self._closed or self._released or waiting:
            return
        self._settle()
        self._released = True
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    # Leading

    def _settle(self) -> None:
        """Run what is ready, and what that makes ready; the lock is held."""
        while self.ready:
            self.run_ready()

    def _wait(self, task: SteppedTask[Any], deadline: float | None, may_lead: bool) -> None:
        """Wait until a task is done or the deadline has passed; the lock is released meanwhile."""
        parking = Parking()
        task.on_done = lambda: self._wake(parking)
        below = [other for other in self._parked if other.thread == parking.thread]
        for other in below:  # this call runs in a signal handler on top of theirs
            self._parked.remove(other)
        looked = False  # at the sockets: once at least, so that a timeout of 0 finds what came
        try:
            while not task.done():
                remaining = MAX_WAIT_SECONDS
                if deadline is not None:
                    remaining = min(remaining, deadline - monotonic())
                leader = self._leader
                is_idle = not may_lead and not self._closed
                leads = not is_idle and (leader is None or leader.thread == parking.thread)
                if remaining <= 0 and (looked or not leads):
                    break
                if leads:
                    looked = True
                    self._leader = parking
                    try:
                        self._lead(task, deadline)
                    finally:
                        self._leader = leader
                        if leader is not None:
                            self._interrupt_select()  # its task may be done
                else:
                    self._park(self._idle if is_idle else self._parked, parking, remaining)
        finally:  # after KeyboardInterrupt too: others wait for their turn
            self._led_at = monotonic()
            self._parked.extend(below)
            self._pass_on()

    def _park(
        self, where: "deque[Parking] | list[Parking]", parking: Parking, seconds: float
    ) -> None:
        """Wait for the turn to lead, or for the end of the task."""
        where.append(parking)
        if where is self._idle:
            self._pass_on()  # the runtime's own thread has to lead
        try:
            try:
                self._busy = False
                self._lock.release()
                parking.wait(seconds)
            finally:
                self._take_lock_again()
        finally:
            if parking in where:
                where.remove(parking)

    def _wake(self, parking: Parking) -> None:
        """Let a thread look whether its task is done: another thread may have ended it."""
        parking.wake()
        if parking is self._leader and self._selecting_until:
            self._interrupt_select()

    def _pass_on(self) -> None:
        """Let the next thread lead, unless one does: a caller that waits, or the runtime's own."""
        if self._leader is None:
            if self._parked:
                self._parked.popleft().wake()
            elif self._asleep:
                self._asleep = False
                self._standby.set()
            self._release_if_unused()

    def _look_at_sockets(self) -> None:
        """Process what has come and what is due, unless that was done just now, or another thread
        leads.

        The runtime's own thread, if it leads, ends that after the next event.
        """
        now = monotonic()
        if now - self._led_at < LOOK_SECONDS:
            return
        self._led_at = now
        if self._leader is None and not self._released:
            for key, mask in self._selector.select(0):
                self._dispatch(key.fd, mask)
            self.run_due()
            self._settle()

    def _lead(self, task: SteppedTask[Any] | None, deadline: float | None) -> None:
        """Process what comes until a task is done, or the deadline has passed.

        Without a task: until a caller has got what it waited for, or the runtime is closed.
        """
        poll_loop = self.poll_loop
        while not (self._closed if task is None else task.done()):
            now = monotonic()
            until = min(now + MAX_WAIT_SECONDS, self.next_due())
            if deadline is not None:
                until = min(until, deadline)
            if poll_loop.active_pollers:
                poll_loop.poll()
                poll_loop.spinning = True
                until = now
            self._selecting_until = until
            try:
                try:
                    self._busy = False
                    self._lock.release()
                    if self._released:  # only handlers and timers are left to wait for
                        events = []
                        sleep(min(RELEASED_POLL_SECONDS, max(0.0, until - now)))
                    else:
                        events = self._selector.select(max(0.0, until - now))
                finally:
                    self._take_lock_again()
            finally:
                self._selecting_until = 0.0
            for key, mask in events:
                self._dispatch(key.fd, mask)
            self.run_due()
            self._settle()
            if task is None and not self._idle and self._led_at + TAKE_OVER_SECONDS > monotonic():
                return
            if deadline is not None and monotonic() >= deadline:
                return

    def _dispatch(self, fd: int, mask: int) -> None:
        """Call what watches a descriptor, unless that was changed by what came before."""
        for which, event in enumerate((selectors.EVENT_READ, selectors.EVENT_WRITE)):
            if mask & event:
                key = self._selector.get_map().get(fd)
                watching = None if key is None else key.data[which]
                if watching is not None:
                    self.run_logged(*watching)
