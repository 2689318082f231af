"""Streams that have come and wait to be taken: first come, first served, per name.

A taker may be cancelled at any moment: what was already handed to it goes back to the front.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from polymux.aio.errors import again
from polymux.aio.streams.duplex import Stream
from polymux.core.errors import SessionClosed


class Arrivals:
    """A queue of streams. A taker asks for one name, or for whichever comes next."""

    def __init__(self, loop: asyncio.AbstractEventLoop, check: Callable[[], None]) -> None:
        self._loop = loop
        self._check = check  # raises once nothing more can come
        self._waiting: deque[Stream] = deque()
        self.late: deque[Stream] = deque()  # past a limit: nobody can take them yet, see `Crowd`
        self.relief: Callable[[], None] | None = None  # asked when a stream has left the queue
        self._takers: deque[tuple[bytes | None, asyncio.Future[Stream | None]]] = deque()
        self._others: list[asyncio.Future[Stream | None]] = []  # who only wait for the end

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, stream: Stream) -> bool:
        return stream in self._waiting

    def all(self) -> list[Stream]:
        return list(self._waiting)

    def put(self, stream: Stream) -> None:
        """A stream has come."""
        if not self._hand(stream):
            self._waiting.append(stream)

    def put_back(self, stream: Stream) -> None:
        """A stream that was handed out comes back unused: it is the next, if anybody wants it."""
        if not stream.usable:
            stream._set_aside()
        elif not self._hand(stream):
            self._waiting.appendleft(stream)

    def discard(self, stream: Stream) -> bool:
        """Take this very stream out, if it still waits."""
        for queue in (self._waiting, self.late):
            if stream in queue:
                queue.remove(stream)
                self._relieve()
                return True
        return False

    def _relieve(self) -> None:
        if self.relief is not None:
            self.relief()

    def take_nowait(self) -> Stream | None:
        """The stream that has waited longest, if any does."""
        if not self._waiting:
            return None
        self._relieve()
        return self._waiting.popleft()

    async def ended(self) -> None:
        """Wait until nothing more can come, and raise what a taker is told then."""
        while True:
            self._check()
            waiter: asyncio.Future[Stream | None] = self._loop.create_future()
            self._others.append(waiter)
            try:
                await waiter
            finally:
                self._others.remove(waiter)

    async def take(self, name: bytes | None = None) -> Stream:
        """The next stream of this name, or of any. If cancelled, none was taken."""
        while True:
            for stream in self._waiting:
                if name is None or stream.record.name == name:
                    self._waiting.remove(stream)
                    self._relieve()
                    return stream
            self._check()
            waiter: asyncio.Future[Stream | None] = self._loop.create_future()
            entry = (name, waiter)
            self._takers.append(entry)
            try:
                found = await waiter
            except asyncio.CancelledError:
                late = waiter.result() if waiter.done() and not waiter.cancelled() else None
                if late is not None:
                    self.put_back(late)
                raise
            finally:
                if entry in self._takers:
                    self._takers.remove(entry)
            if found is not None:
                if found.usable:
                    return found
                found._set_aside()  # it was withdrawn on the way here

    def _hand(self, stream: Stream) -> bool:
        """Give the stream to who has waited longest: for its name, else for any."""
        for wanted in (stream.record.name or b"", None):
            for name, waiter in self._takers:
                if name == wanted and not waiter.done():
                    waiter.set_result(stream)
                    return True
        return False

    def close(self) -> None:
        """Nothing more will come: those who wait look again and are told so."""
        for waiter in (*(waiter for _, waiter in self._takers), *self._others):
            if not waiter.done():
                waiter.set_result(None)

    def finish(self, problem: SessionClosed | None) -> None:
        """The connection is gone: whoever finds nothing here is told so, without the session."""
        self._check = partial(refuse, problem or SessionClosed("the connection was closed"))
        self.late.clear()
        self.relief = None


def refuse(problem: SessionClosed) -> None:
    raise again(problem)


class Incoming:
    """Iterates over the streams a peer opens; ends with the session, raises if that failed."""

    def __init__(self, accept: Callable[[], Awaitable[Stream]], failed: Callable[[], bool]) -> None:
        self._accept = accept
        self._failed = failed

    def __aiter__(self) -> "Incoming":
        return self

    async def __anext__(self) -> Stream:
        try:
            return await self._accept()
        except SessionClosed:
            if self._failed():
                raise
            raise StopAsyncIteration from None
