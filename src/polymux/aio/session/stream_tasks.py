"""Work on every stream the peer opens, each in a task of its own."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from polymux.aio.errors import again
from polymux.aio.session.component import Belonging
from polymux.aio.session.wakeups import WAITING, Waiter
from polymux.aio.streams.duplex import Stream
from polymux.core.errors import PolymuxError, SessionClosed

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

log = logging.getLogger("polymux.aio")

Work = Callable[[Any], Awaitable[None]]


MOST_SPARES = 8  # tasks that stand by, where streams come often


class Spare:
    """A task that is there before its stream: to make one when a stream has come, and to wait for
    its first turn, takes longer than a small piece of work."""

    __slots__ = ("dismissed", "stream", "task", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.stream: Stream | None = None
        self.task: asyncio.Task[None] | None = None
        self.dismissed = False

    @property
    def is_gone(self) -> bool:
        """Has somebody cancelled it?"""
        return self.task is not None and self.task.done()


class Each(Belonging["Session"]):
    """Starts the work as soon as a stream comes; who finds too much under way waits in line.

    Every stream has a task and a context of its own: a copy of the one in which `each` was called.
    """

    def __init__(self, session: "Session", work: Work, at_once: int) -> None:
        super().__init__(session)
        self._work = work
        self._at_once = at_once
        self._under_way: dict[Stream, asyncio.Task[None]] = {}
        self._context = copy_context()
        self._spares: list[Spare] = []
        self._stock = 1  # how many to make when there are none
        self._fresh: list[Stream] = []  # whose tasks have yet to have their first turn

    async def run(self) -> None:
        """Until the session has ended and the work on all its streams is done."""
        session = self.session
        if session._each is not None:
            raise RuntimeError(f"{session}: somebody else works on its streams")
        session._each = self
        try:
            self._take()
            self._keep_spares()
            with contextlib.suppress(SessionClosed):  # told below
                await session._arrivals.ended()
            while self._under_way:  # those still in line have their turn too
                await asyncio.wait(self._under_way.values())
                self._miss(list(self._under_way))
        except asyncio.CancelledError:
            session._each = None
            await self._give_up()
            raise
        finally:
            session._each = None
            self._dismiss()
        if session.failure is not None:
            raise again(session.failure)

    def start(self, stream: Stream) -> bool:
        """Begin to work on a stream that has come; False if it has to wait."""
        if len(self._under_way) >= self._at_once:
            return False
        spare = self._spares[-1] if self._spares else None
        if spare is not None and spare.waiter.state == WAITING and spare.task is not None:
            self._spares.pop()
            spare.stream = stream
            self._under_way[stream] = spare.task
            spare.waiter.wake()
        else:  # there is none, or it has yet to have its first turn, or somebody has cancelled it
            if not self._fresh:
                self.session.loop.call_soon(self._first_turns)
            self._fresh.append(stream)
            self._under_way[stream] = self._begin(self._see_to(stream))
        return True

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._context.run(self.session.loop.create_task, work)

    def _keep_spares(self) -> None:
        """Have tasks stand by. New ones cost a turn of the loop, and several no more than one: the
        more often they run out, the more are made."""
        while self._spares and self._spares[-1].is_gone:
            self._spares.pop()
        session = self._session()
        if not self._spares and session is not None and session._each is self:
            for _ in range(self._stock):
                spare = Spare(Waiter(session._wakings))
                spare.task = self._begin(self._stand_by(spare))
                self._spares.append(spare)
            self._stock = min(2 * self._stock, MOST_SPARES)

    async def _stand_by(self, spare: Spare) -> None:
        if not spare.dismissed:
            try:
                await spare.waiter
            except asyncio.CancelledError:
                if spare.stream is not None:
                    self._drop(spare.stream)
                raise
        if spare.stream is not None:
            await self._see_to(spare.stream)

    def _dismiss(self) -> None:
        """No stream will come."""
        for spare in self._spares:
            spare.dismissed = True
            spare.waiter.wake()
        self._spares.clear()

    def _take(self) -> None:
        """Begin with those in line, as far as there is room."""
        session = self._session()
        while session is not None and session._each is self:
            if len(self._under_way) >= self._at_once:
                return
            stream = session._arrivals.take_nowait()
            if stream is None:
                return
            self.start(stream)

    def _first_turns(self) -> None:
        """Tasks that were made in one go have all had their first turn when the loop comes to what
        it is asked for now."""
        fresh, self._fresh = self._fresh, []
        if fresh:
            fresh[0].session.loop.call_soon(self._miss, fresh)

    def _miss(self, streams: list[Stream]) -> None:
        """Look for work that was cancelled before it had begun."""
        for stream in streams:
            task = self._under_way.get(stream)
            if task is not None and task.done():
                self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        """Nobody has begun with this stream, and nobody will: give it up, and its place."""
        session = self._session()
        if session is not None and session._each is self:
            self._under_way.pop(stream, None)
            stream.abort()
            self._take()

    async def _give_up(self) -> None:
        """End the work that is under way, however often that is interrupted. A stream that nobody
        had begun with waits for whoever asks next."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        while not all(task.done() for task in tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(tasks)
        for stream in reversed(self._under_way):
            self.session._arrivals.put_back(stream)

    async def _see_to(self, stream: Stream) -> None:
        if stream not in self._under_way:
            # A loop with eager tasks begins inside `create_task`, in the middle of what the peer's
            # octets brought: this stream's reset may be among it and not have been told yet.
            await asyncio.sleep(0)
        try:
            try:
                if stream.usable:  # the peer may have given it up already
                    self.session._take_in(stream)
                    await self._work(stream)
            except BaseException:
                stream.abort()
                raise
            await stream.close()
        except PolymuxError as problem:
            log.debug("%s: %s", stream, problem)
        except Exception:
            log.exception("the work on %s failed", stream)
        finally:
            self._done(stream)

    def _done(self, stream: Stream) -> None:
        """There is a place for another."""
        self._under_way.pop(stream, None)
        session = self._session()
        if session is not None and session._each is self:
            if session._arrivals:
                self._take()
            spares = self._spares
            if not spares or spares[-1].waiter.state != WAITING:
                self._keep_spares()
