"""Sessions for tasks of asyncio and trio: the verbs of `polymux.live`."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from anyio.abc import AsyncResource

from polymux.anyio.runtime import DoorRuntime, open_group, open_handlers
from polymux.anyio.streams import (
    BytesLike,
    Call,
    Exchange,
    ItemReceiver,
    ItemSender,
    MessageReceiver,
    MessageSender,
    Stream,
    stream_handle,
)
from polymux.live import handles
from polymux.live.arguments import check_concurrent_handler
from polymux.live.pending import Pending, pending
from polymux.live.protocols import minmux, nerdbank, omnistreams, streamux, yamux
from polymux.live.session import session as plain
from polymux.live.session.accept_queue import IncomingStreams
from polymux.live.streams import duplex

Self = TypeVar("Self", bound="Session")

StreamHandler = Callable[[Any], Awaitable[object]]


class Session(handles.SessionHandle, AsyncResource):
    """A connection with many streams; see `polymux.Session`.

    Every call is a checkpoint, and may be cancelled, which leaves the session in order; only a
    `close` that is cancelled aborts the connection. In `async with`, leaving the block closes the
    session, and an exception in the block, or its cancellation, aborts it.
    """

    runtime: DoorRuntime

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0, weight: int = 1) -> Stream:
        """Open a stream to the peer. The call can be awaited, or entered with `async with`."""
        opening = self.live.open(name, window=window, weight=weight)
        stream: Stream = await self._opened(opening)
        return stream

    async def accept(self) -> Stream:
        """Wait for the next stream that the peer opens."""
        stream: Stream = await self._opened(self.live.accept())
        return stream

    @property
    def incoming(self) -> AsyncIterator[Stream]:
        """Iterate over the streams the peer opens, until the session ends.

        It raises SessionClosed if the session failed.
        """
        return IncomingStreams(self.accept, lambda: self.failure is not None)

    async def serve_streams(self, handler: StreamHandler, *, max_concurrent: int = 1024) -> None:
        """Run `handler(stream)` in a task for every stream of the peer, until the session ends.

        The tasks are children of this call: if it is cancelled, so are they, and it ends after
        them. The stream is closed when its handler returns. If the handler raises, the stream is
        aborted and the exception is logged.

        Args:
            handler: An async function of one argument, the stream.
            max_concurrent: Handlers that run at the same time; further streams wait.
        """
        check_concurrent_handler(handler, max_concurrent)
        async with open_handlers(self.runtime) as handlers:

            async def handle(stream: duplex.Stream) -> None:
                await handlers.run(handler, self._shown(stream))

            serving = self.live.serve_streams(handle, max_concurrent=max_concurrent)
            await self.runtime.call(serving)

    async def close(self) -> None:
        """Send what is queued, end the connection and wait until it is gone."""
        await self.runtime.call(self.live.close(), closing=True)

    async def aclose(self) -> None:
        """The same as `close`."""
        await self.close()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone, whichever side ends it."""
        await self.runtime.call(self.live.wait_closed())

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await leave(self.runtime, [self.live], kind is not None)

    def _shown(self, stream: duplex.Stream) -> Any:
        return stream_handle(self.runtime, stream)

    async def _opened(self, opening: Coroutine[Any, Any, duplex.Stream]) -> Any:
        """Run a verb that returns a stream."""
        return self._shown(await self.runtime.call(opening))


class NerdbankSession(Session, handles.NerdbankHandle[Stream]):
    """A session of Nerdbank channels; see `polymux.NerdbankSession`."""

    live: nerdbank.NerdbankSession

    @pending
    async def offer(self, name: str | bytes = b"", *, window: int = 0, weight: int = 1) -> Stream:
        """Offer a channel without waiting for its acceptance."""
        offering = self.live.offer(name, window=window, weight=weight)
        stream: Stream = await self._opened(offering)
        return stream

    async def accepted(self, stream: Stream) -> None:
        """Wait until the peer accepts a channel that this side has offered."""
        await self.runtime.call(self.live.accepted(stream.live))

    async def accept(self, name: str | bytes | None = None, *, window: int = 0) -> Stream:
        """Wait for an offer of this name, or of any name, and accept it."""
        stream: Stream = await self._opened(self.live.accept(name, window=window))
        return stream

    async def accept_id(self, stream_id: int, *, window: int = 0) -> Stream:
        """Accept a channel by its id: an anonymous one the peer has offered, or a seeded one."""
        stream: Stream = await self._opened(self.live.accept_id(stream_id, window=window))
        return stream


class YamuxSession(Session, handles.YamuxHandle):
    """A session of yamux streams; see `polymux.YamuxSession`."""

    live: yamux.YamuxSession

    async def accept(self, *, window: int = 0) -> Stream:
        """Wait for the next stream that the peer opens, and acknowledge it."""
        stream: Stream = await self._opened(self.live.accept(window=window))
        return stream

    async def ping(self) -> float:
        """Ping the peer; return the round trip in seconds."""
        return await self.runtime.call(self.live.ping())


class OmnistreamsSession(Session):
    """A session of one-way message streams; see `polymux.OmnistreamsSession`.

    What it opens and accepts is no `Stream`, whence the overrides that are no subtypes.
    """

    live: omnistreams.OmnistreamsSession

    @pending
    async def open(  # type: ignore[override]
        self, metadata: object = b"", *, window: int = 0, weight: int = 1
    ) -> MessageSender:
        """Open a stream to the peer. `metadata`: bytes, text, or what JSON can express."""
        opening = self.live.open(metadata, window=window, weight=weight)
        sender: MessageSender = await self._opened(opening)
        return sender

    async def accept(  # type: ignore[override]
        self, *, window: int = 0
    ) -> MessageReceiver:
        """Wait for the next stream that the peer opens, and request its first messages."""
        receiver: MessageReceiver = await self._opened(self.live.accept(window=window))
        return receiver

    @property
    def incoming(self) -> AsyncIterator[MessageReceiver]:  # type: ignore[override]
        """Iterate over the streams the peer opens; see `Session.incoming`."""
        return IncomingStreams(self.accept, lambda: self.failure is not None)

    async def control(self, message: object) -> None:
        """Send a control message."""
        await self.runtime.call(self.live.control(message))

    async def receive_control(self) -> bytes:
        """Wait for the next control message and return it."""
        return await self.runtime.call(self.live.receive_control())

    @property
    def controls(self) -> AsyncIterator[bytes]:
        """Iterate over the control messages, until the session ends."""
        return IncomingStreams(self.receive_control, lambda: self.failure is not None)


class StreamuxSession(Session, handles.StreamuxHandle):
    """A session of requests and replies; see `polymux.StreamuxSession`."""

    live: streamux.StreamuxSession

    async def request(self, data: BytesLike, *, timeout: float | None = None) -> bytes:
        """Send a request and return the complete reply. If cancelled, it is cancelled at the peer.

        Args:
            data: The request.
            timeout: Seconds for everything; 0 for no limit. None for the timeout that this side has
                announced, counted from when the request begins.
        """
        return await self.runtime.call(self.live.request(data, timeout=timeout))

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0, weight: int = 1) -> Exchange:
        """Begin a request that is sent and read in steps. Streamux has no names and windows."""
        exchange: Exchange = await self._opened(self.live.open(name, window=window, weight=weight))
        return exchange

    def exchange(self, *, weight: int = 1) -> Pending[Exchange]:
        """The same as `open`."""
        return self.open(weight=weight)

    async def accept(self) -> Call:
        """Wait for the next call of the peer."""
        call: Call = await self._opened(self.live.accept())
        return call

    @property
    def calls(self) -> AsyncIterator[Call]:
        """Iterate over the calls of the peer, until the session ends; the same as `incoming`."""
        return IncomingStreams(self.accept, lambda: self.failure is not None)

    async def serve_calls(
        self, handler: Callable[[Call], Awaitable[object]], *, max_concurrent: int = 64
    ) -> None:
        """Run `handler(call)` in a task for every call of the peer; see `serve_streams`.

        The task is cancelled when the peer cancels the call.
        """
        await self.serve_streams(handler, max_concurrent=max_concurrent)


class MinmuxSession(Session, handles.MinmuxHandle[ItemSender, ItemReceiver]):
    """A session of one-way streams by id; see `polymux.MinmuxSession`."""

    live: minmux.MinmuxSession


SESSION_CLASSES: dict[type[plain.Session], type[Session]] = {
    plain.Session: Session,
    nerdbank.NerdbankSession: NerdbankSession,
    omnistreams.OmnistreamsSession: OmnistreamsSession,
    streamux.StreamuxSession: StreamuxSession,
    minmux.MinmuxSession: MinmuxSession,
    yamux.YamuxSession: YamuxSession,
}


def session_handle(runtime: DoorRuntime, live: plain.Session) -> Any:
    """Return what stands for a session here."""
    return SESSION_CLASSES[type(live)](runtime, live)


async def leave(runtime: DoorRuntime, sessions: Sequence[plain.Session], failed: bool) -> None:
    """Close sessions at the end of a block, or abort them if it failed. They are gone afterwards.

    If it is cancelled while it closes them, they are aborted.
    """
    try:
        if not failed:
            async with open_group() as group:
                for live in sessions:
                    group.start_soon(partial(runtime.call, live.close(), closing=True))
    finally:
        for live in sessions:
            runtime.do(end_at_once, live)
        for live in sessions:
            await runtime.finish(live.wait_closed())


def end_at_once(live: plain.Session) -> None:
    """Abort a session and its connection. No effect on one that is closed."""
    live.abort("the block that used the session was left by an exception")
    if live.transport is not None:
        live.transport.abort()
