"""Streams that have come and wait to be taken: first come, first served, per name.

A taker may be cancelled at any moment: what was already handed to it goes back to the front.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from polymux.aio.errors import copy_of
from polymux.aio.streams.duplex import Stream
from polymux.core.errors import SessionClosed


class AcceptQueue:
    """A queue of streams. A taker asks for one name, or for whichever comes next."""

    def __init__(self, loop: asyncio.AbstractEventLoop, check_open: Callable[[], None]) -> None:
        self._loop = loop
        self._check_open = check_open  # raises once nothing more can come
        self._queued: deque[Stream] = deque()
        self.excess: deque[Stream] = deque()  # past a limit: nobody can take them yet, see `Crowd`
        self.on_stream_removed: Callable[[], None] | None = (
            None  # asked when a stream has left the queue
        )
        self._waiters: deque[tuple[bytes | None, asyncio.Future[Stream | None]]] = deque()
        self._end_waiters: list[asyncio.Future[Stream | None]] = []  # who only wait for the end

    def __len__(self) -> int:
        return len(self._queued)

    def __contains__(self, stream: Stream) -> bool:
        return stream in self._queued

    def queued_streams(self) -> list[Stream]:
        return list(self._queued)

    def put(self, stream: Stream) -> None:
        """A stream has come."""
        if not self._give_to_waiter(stream):
            self._queued.append(stream)

    def put_back(self, stream: Stream) -> None:
        """A stream that was handed out comes back unused: it is the next, if anybody wants it."""
        if not stream.usable:
            stream.discard_unread()
        elif not self._give_to_waiter(stream):
            self._queued.appendleft(stream)

    def discard(self, stream: Stream) -> bool:
        """Take this very stream out, if it still waits."""
        for queue in (self._queued, self.excess):
            if stream in queue:
                queue.remove(stream)
                self._notify_removed()
                return True
        return False

    def _notify_removed(self) -> None:
        if self.on_stream_removed is not None:
            self.on_stream_removed()

    def take_nowait(self) -> Stream | None:
        """The stream that has waited longest, if any does."""
        if not self._queued:
            return None
        self._notify_removed()
        return self._queued.popleft()

    async def wait_ended(self) -> None:
        """Wait until nothing more can come, and raise what a taker is told then."""
        while True:
            self._check_open()
            waiter: asyncio.Future[Stream | None] = self._loop.create_future()
            self._end_waiters.append(waiter)
            try:
                await waiter
            finally:
                self._end_waiters.remove(waiter)

    async def take(self, name: bytes | None = None) -> Stream:
        """The next stream of this name, or of any. If cancelled, none was taken."""
        while True:
            for stream in self._queued:
                if name is None or stream.state.name == name:
                    self._queued.remove(stream)
                    self._notify_removed()
                    return stream
            self._check_open()
            waiter: asyncio.Future[Stream | None] = self._loop.create_future()
            entry = (name, waiter)
            self._waiters.append(entry)
            try:
                found = await waiter
            except asyncio.CancelledError:
                late = waiter.result() if waiter.done() and not waiter.cancelled() else None
                if late is not None:
                    self.put_back(late)
                raise
            finally:
                if entry in self._waiters:
                    self._waiters.remove(entry)
            if found is not None:
                if found.usable:
                    return found
                found.discard_unread()  # it was withdrawn on the way here

    def _give_to_waiter(self, stream: Stream) -> bool:
        """Give the stream to who has waited longest: for its name, else for any."""
        for wanted in (stream.state.name or b"", None):
            for name, waiter in self._waiters:
                if name == wanted and not waiter.done():
                    waiter.set_result(stream)
                    return True
        return False

    def wake_all(self) -> None:
        """Nothing more will come: those who wait look again and are told so."""
        for waiter in (*(waiter for _, waiter in self._waiters), *self._end_waiters):
            if not waiter.done():
                waiter.set_result(None)

    def detach(self, problem: SessionClosed | None) -> None:
        """The connection is gone: whoever finds nothing here is told so, without the session."""
        self._check_open = partial(
            raise_copy_of, problem or SessionClosed("the connection was closed")
        )
        self.excess.clear()
        self.on_stream_removed = None


def raise_copy_of(problem: SessionClosed) -> None:
    raise copy_of(problem)


class IncomingStreams:
    """Iterates over the streams a peer opens; ends with the session, raises if that failed."""

    def __init__(self, accept: Callable[[], Awaitable[Stream]], failed: Callable[[], bool]) -> None:
        self._accept = accept
        self._failed = failed

    def __aiter__(self) -> "IncomingStreams":
        return self

    async def __anext__(self) -> Stream:
        try:
            return await self._accept()
        except SessionClosed:
            if self._failed():
                raise
            raise StopAsyncIteration from None
