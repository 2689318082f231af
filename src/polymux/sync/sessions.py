"""Sessions that block: the verbs of `polymux.live`, each with `timeout=`."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any, TypeVar

from polymux.core.errors import SessionClosed
from polymux.live import handles
from polymux.live.protocols import minmux, nerdbank, omnistreams, streamux, yamux
from polymux.live.session import session as plain
from polymux.live.stepping import PlainFuture
from polymux.live.streams import duplex
from polymux.sync.runtime import ThreadRuntime
from polymux.sync.streams import (
    BytesLike,
    Call,
    Exchange,
    ItemReceiver,
    ItemSender,
    MessageReceiver,
    MessageSender,
    Stream,
    blocking_stream,
)

Self = TypeVar("Self", bound="Session")
A = TypeVar("A")

StreamHandler = Callable[[Any], object]


class Session(handles.SessionHandle):
    """A connection with many streams; see `polymux.Session`.

    A session may be used from several threads. Every call that can wait takes `timeout=` in
    seconds, and raises TimeoutError when it has passed, with the session still in order; only a
    `close` that takes longer aborts the connection.
    """

    __slots__ = ()
    runtime: ThreadRuntime

    def open(
        self,
        name: str | bytes = b"",
        *,
        window: int = 0,
        weight: int = 1,
        timeout: float | None = None,
    ) -> Stream:
        """Open a stream to the peer."""
        opening = self.live.open(name, window=window, weight=weight)
        stream: Stream = self._opened(opening, timeout)
        return stream

    def accept(self, *, timeout: float | None = None) -> Stream:
        """Wait for the next stream that the peer opens."""
        stream: Stream = self._opened(self.live.accept(), timeout)
        return stream

    @property
    def incoming(self) -> Iterator[Any]:
        """Iterate over what `accept` returns, until the session ends.

        It raises SessionClosed if the session failed.
        """
        return self._each(self.accept)

    def close(self, *, timeout: float | None = None) -> None:
        """Send what is queued, end the connection and wait until it is gone."""
        self.runtime.call(self.live.close(), timeout)

    def wait_closed(self, *, timeout: float | None = None) -> None:
        """Wait until the connection is gone, whichever side ends it."""
        self.runtime.call(self.live.wait_closed(), timeout, may_lead=False)

    def serve_streams(
        self, handler: StreamHandler, *, max_concurrent: int = 64, timeout: float | None = None
    ) -> None:
        """Run `handler(stream)` in a thread for every stream of the peer, until the session ends.

        The stream is closed when its handler returns, and aborted if it raises. If the timeout has
        passed, the streams are aborted, and their handlers find that out at their next call.

        Args:
            handler: A function of one argument, the stream.
            max_concurrent: Handlers, and so threads, that run at the same time. The handler of a
                call that the peer has cancelled counts until it returns.
            timeout: Seconds; None: until the session ends.
        """
        if not callable(handler):
            raise TypeError(f"the handler is a function, not {type(handler).__name__}")
        runtime = self.runtime

        threads = HandlerThreads(runtime, max_concurrent)

        async def handle(stream: duplex.Stream) -> None:
            await threads.run(handler, blocking_stream(runtime, stream))

        serving = self.live.serve_streams(handle, max_concurrent=max_concurrent)
        runtime.call(serving, timeout, may_lead=False)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.runtime.call(self.live.__aexit__(kind, error, trace))

    def _shown(self, stream: duplex.Stream) -> Any:
        return blocking_stream(self.runtime, stream)

    def _each(self, take: Callable[[], A]) -> Iterator[A]:
        """Yield what a call returns, until the session ends; it raises if the session failed."""
        while True:
            try:
                yield take()
            except SessionClosed:
                if self.live.failure is not None:
                    raise
                return

    def _opened(self, coroutine: Any, timeout: float | None) -> Any:
        """Run a verb that returns a stream."""
        return blocking_stream(self.runtime, self.runtime.call(coroutine, timeout))


class NerdbankSession(Session, handles.NerdbankHandle[Stream]):
    """A session of Nerdbank channels; see `polymux.NerdbankSession`."""

    __slots__ = ()
    live: nerdbank.NerdbankSession

    def offer(
        self,
        name: str | bytes = b"",
        *,
        window: int = 0,
        weight: int = 1,
        timeout: float | None = None,
    ) -> Stream:
        """Offer a channel without waiting for its acceptance."""
        offering = self.live.offer(name, window=window, weight=weight)
        stream: Stream = self._opened(offering, timeout)
        return stream

    def accepted(self, stream: Stream, *, timeout: float | None = None) -> None:
        """Wait until the peer accepts a channel that this side has offered."""
        self.runtime.call(self.live.accepted(stream.live), timeout)

    def accept(
        self, name: str | bytes | None = None, *, window: int = 0, timeout: float | None = None
    ) -> Stream:
        """Wait for an offer of this name, or of any name, and accept it."""
        stream: Stream = self._opened(self.live.accept(name, window=window), timeout)
        return stream

    def accept_id(self, stream_id: int, *, window: int = 0, timeout: float | None = None) -> Stream:
        """Accept a channel by its id: an anonymous one the peer has offered, or a seeded one."""
        accepting = self.live.accept_id(stream_id, window=window)
        stream: Stream = self._opened(accepting, timeout)
        return stream


class OmnistreamsSession(Session):
    """A session of one-way message streams; see `polymux.OmnistreamsSession`."""

    __slots__ = ()
    live: omnistreams.OmnistreamsSession

    def open(
        self,
        metadata: object = b"",
        *,
        window: int = 0,
        weight: int = 1,
        timeout: float | None = None,
    ) -> MessageSender:
        """Open a stream to the peer. `metadata`: bytes, text, or what JSON can express."""
        opening = self.live.open(metadata, window=window, weight=weight)
        sender: MessageSender = self._opened(opening, timeout)
        return sender

    def accept(self, *, window: int = 0, timeout: float | None = None) -> MessageReceiver:
        """Wait for the next stream that the peer opens, and request its first messages."""
        receiver: MessageReceiver = self._opened(self.live.accept(window=window), timeout)
        return receiver

    def control(self, message: object, *, timeout: float | None = None) -> None:
        """Send a control message."""
        self.runtime.call(self.live.control(message), timeout)

    def receive_control(self, *, timeout: float | None = None) -> bytes:
        """Wait for the next control message and return it."""
        return self.runtime.call(self.live.receive_control(), timeout)

    @property
    def controls(self) -> Iterator[bytes]:
        """Iterate over the control messages, until the session ends."""
        return self._each(self.receive_control)


class StreamuxSession(Session, handles.StreamuxHandle):
    """A session of requests and replies; see `polymux.StreamuxSession`."""

    __slots__ = ()
    live: streamux.StreamuxSession

    def request(self, data: BytesLike, *, timeout: float | None = None) -> bytes:
        """Send a request and return the complete reply.

        Args:
            data: The request.
            timeout: Seconds for everything; 0 for no limit. None for the timeout that this side has
                announced, counted from when the request begins.
        """
        return self.runtime.call(self.live.request(data, timeout=timeout))

    def exchange(self, *, weight: int = 1, timeout: float | None = None) -> Exchange:
        """Begin a request that is sent and read in steps. Waits for a free id."""
        exchange: Exchange = self._opened(self.live.exchange(weight=weight), timeout)
        return exchange

    def open(
        self,
        name: str | bytes = b"",
        *,
        window: int = 0,
        weight: int = 1,
        timeout: float | None = None,
    ) -> Exchange:
        """The same as `exchange`; Streamux has neither names nor windows."""
        opening = self.live.open(name, window=window, weight=weight)
        exchange: Exchange = self._opened(opening, timeout)
        return exchange

    def accept(self, *, timeout: float | None = None) -> Call:
        """Wait for the next call of the peer."""
        call: Call = self._opened(self.live.accept(), timeout)
        return call

    @property
    def calls(self) -> Iterator[Call]:
        """Iterate over the calls of the peer, until the session ends; the same as `incoming`."""
        return self._each(self.accept)

    def serve_calls(
        self,
        handler: Callable[[Call], object],
        *,
        max_concurrent: int = 64,
        timeout: float | None = None,
    ) -> None:
        """Run `handler(call)` in a thread for every call of the peer, until the session ends."""
        self.serve_streams(handler, max_concurrent=max_concurrent, timeout=timeout)


class MinmuxSession(Session, handles.MinmuxHandle[ItemSender, ItemReceiver]):
    """A session of one-way streams by id; see `polymux.MinmuxSession`."""

    __slots__ = ()
    live: minmux.MinmuxSession


class YamuxSession(Session, handles.YamuxHandle):
    """A session of yamux streams; see `polymux.YamuxSession`."""

    __slots__ = ()
    live: yamux.YamuxSession

    def accept(self, *, window: int = 0, timeout: float | None = None) -> Stream:
        """Wait for the next stream that the peer opens, and acknowledge it."""
        stream: Stream = self._opened(self.live.accept(window=window), timeout)
        return stream

    def ping(self, *, timeout: float | None = None) -> float:
        """Ping the peer; return the round trip in seconds."""
        return self.runtime.call(self.live.ping(), timeout)


SESSION_CLASSES: dict[type[plain.Session], type[Session]] = {
    plain.Session: Session,
    nerdbank.NerdbankSession: NerdbankSession,
    omnistreams.OmnistreamsSession: OmnistreamsSession,
    streamux.StreamuxSession: StreamuxSession,
    minmux.MinmuxSession: MinmuxSession,
    yamux.YamuxSession: YamuxSession,
}


def blocking_session(runtime: ThreadRuntime, live: plain.Session) -> Any:
    """Return the blocking form of a session."""
    return SESSION_CLASSES[type(live)](runtime, live)


class HandlerThreads:
    """Runs each handler in a thread of its own, at most so many at a time.

    Args:
        runtime: Of the session or the server.
        most: How many; further ones wait.
    """

    def __init__(self, runtime: ThreadRuntime, most: float = inf) -> None:
        self._runtime = runtime
        self._free = most
        self._waiting: deque[PlainFuture[None]] = deque()

    async def run(self, function: Callable[[A], object], argument: A) -> None:
        """Call a function in a thread, and wait for its end; raises what it raises.

        If it is cancelled, the function goes on, and so counts until it returns; what it returns or
        raises is ignored.
        """
        await self._wait_for_place()
        runtime = self._runtime
        name = f"{runtime.name} handler"
        await runtime.in_thread(partial(function, argument), name, self._leave_place)

    async def _wait_for_place(self) -> None:
        if self._free >= 1:
            self._free -= 1
            return
        place = self._runtime.create_future()
        self._waiting.append(place)
        try:
            await place
        except BaseException:
            if place in self._waiting:
                self._waiting.remove(place)
            else:  # it was given to this call just now
                self._leave_place()
            raise

    def _leave_place(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._free += 1
