"""Streams that the peer opened and the application has not taken yet.

Streams are handed out in order of arrival, to the caller that has waited longest: first to one that
asked for the stream's name, else to one that takes any. A caller can be cancelled at any moment; a
stream that was already handed to it goes back to the front of the queue.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from polymux.core.errors import SessionClosed
from polymux.live.runtime import Future
from polymux.live.session.component import SessionComponent
from polymux.live.session.interface import SessionInterface
from polymux.live.streams.duplex import Stream

S = TypeVar("S")


class AcceptQueue(SessionComponent[SessionInterface]):
    """The queue of one session. Its length does not include `excess`."""

    def __init__(self, session: SessionInterface) -> None:
        super().__init__(session)
        self._runtime = session.runtime
        self._queued: deque[Stream] = deque()
        self.excess: deque[Stream] = deque()  # over a limit, not to be taken yet: `ExcessStreams`
        # Called when a stream has left the queue or the session.
        self.on_stream_removed: Callable[[], None] | None = None
        self._waiters: deque[tuple[bytes | None, Future[Stream | None]]] = deque()
        self._end_waiters: list[Future[Stream | None]] = []  # callers of `wait_ended`

    def __len__(self) -> int:
        return len(self._queued)

    def __contains__(self, stream: Stream) -> bool:
        return stream in self._queued

    def queued_streams(self) -> list[Stream]:
        return list(self._queued)

    # Adding

    def put(self, stream: Stream) -> None:
        """Add a stream that the peer opened."""
        if not self._give_to_waiter(stream):
            self._queued.append(stream)

    def put_back(self, stream: Stream) -> None:
        """Return a stream that was handed out and not used, to the front of the queue."""
        if not stream.usable:
            stream.discard_unread()
        elif not self._give_to_waiter(stream):
            self._queued.appendleft(stream)

    def _give_to_waiter(self, stream: Stream) -> bool:
        """Hand the stream to a waiting caller: the oldest for its name, else the oldest for any."""
        for wanted_name in (stream.state.name or b"", None):
            for name, waiter in self._waiters:
                if name == wanted_name and not waiter.done():
                    waiter.set_result(stream)
                    return True
        return False

    # Taking

    async def take(self, name: bytes | None = None) -> Stream:
        """Wait for the next stream, of this name or (None) of any. If cancelled, none was taken.

        Raises:
            SessionClosed: The session is closed and no such stream is queued.
        """
        while True:
            for stream in self._queued:
                if name is None or stream.state.name == name:
                    self._queued.remove(stream)
                    self._notify_removed()
                    return stream
            self.session.check_open()
            waiter: Future[Stream | None] = self._runtime.create_future()
            entry = (name, waiter)
            self._waiters.append(entry)
            try:
                taken = await waiter
            except BaseException:
                late = waiter.result() if waiter.done() and not waiter.cancelled() else None
                if late is not None:
                    self.put_back(late)
                raise
            finally:
                if entry in self._waiters:
                    self._waiters.remove(entry)
            if taken is not None:
                if taken.usable:
                    return taken
                taken.discard_unread()  # the peer aborted it before this task ran

    def first(self) -> Stream | None:
        """The stream that has waited longest, or None; it stays in the queue."""
        return self._queued[0] if self._queued else None

    def discard(self, stream: Stream) -> bool:
        """Remove this stream. Return False if it is not queued."""
        for queue in (self._queued, self.excess):
            if stream in queue:
                queue.remove(stream)
                self._notify_removed()
                return True
        return False

    def _notify_removed(self) -> None:
        if self.on_stream_removed is not None:
            self.on_stream_removed()

    # Ending

    async def wait_ended(self) -> None:
        """Wait until no more streams can come; then raise SessionClosed with the reason."""
        while True:
            self.session.check_open()
            waiter: Future[Stream | None] = self._runtime.create_future()
            self._end_waiters.append(waiter)
            try:
                await waiter
            finally:
                self._end_waiters.remove(waiter)

    def wake_all(self) -> None:
        """Wake every waiting caller, which then finds the session closed."""
        for waiter in (*(waiter for _, waiter in self._waiters), *self._end_waiters):
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Drop what only an open connection needs. Queued streams can still be taken."""
        self.excess.clear()
        self.on_stream_removed = None


class IncomingStreams(Generic[S]):
    """Iterates over the streams a peer opens. It ends with the session, or raises if that failed.

    Args:
        accept: Waits for the next stream.
        failed: Returns whether the session failed.
    """

    def __init__(self, accept: Callable[[], Awaitable[S]], failed: Callable[[], bool]) -> None:
        self._accept = accept
        self._failed = failed

    def __aiter__(self) -> "IncomingStreams[S]":
        return self

    async def __anext__(self) -> S:
        try:
            return await self._accept()
        except SessionClosed:
            if self._failed():
                raise
            raise StopAsyncIteration from None
