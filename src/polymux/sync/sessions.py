"""Sessions that block: the verbs of `polymux.live`, each with `timeout=`."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from polymux.core.errors import SessionClosed
from polymux.live.peer_identity import PeerIdentity
from polymux.live.protocols import minmux, nerdbank, omnistreams, streamux, yamux
from polymux.live.session import session as plain
from polymux.live.streams import duplex
from polymux.protocols.minmux.item_codecs import Codec
from polymux.sync.runtime import ThreadRuntime
from polymux.sync.streams import (
    BytesLike,
    Call,
    Exchange,
    Handle,
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


class Session(Handle[plain.Session]):
    """A connection with many streams; see `polymux.Session`.

    A session may be used from several threads. Every call that can wait takes `timeout=` in
    seconds, and raises TimeoutError when it has passed, with the session still in order; only a
    `close` that takes longer aborts the connection.
    """

    __slots__ = ()

    @property
    def peer(self) -> str:
        """Address or URL of the peer."""
        return self.live.peer

    @property
    def peer_identity(self) -> PeerIdentity | None:
        """The names in the peer's certificate, if it was verified."""
        return self.live.peer_identity

    @property
    def failure(self) -> SessionClosed | None:
        """Why the session ended, or None while it is open and after an orderly end."""
        return self.live.failure

    @property
    def open_streams(self) -> int:
        """Number of streams that are open, or closed with data that was not read."""
        return self.live.open_streams

    @property
    def bytes_sent(self) -> int:
        """Number of bytes handed to the transport."""
        return self.live.bytes_sent

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        return bool(self.live.closed.done())

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
        while True:
            try:
                yield self.accept()
            except SessionClosed:
                if self.live.failure is not None:
                    raise
                return

    def close(self, *, timeout: float | None = None) -> None:
        """Send what is queued, end the connection and wait until it is gone."""
        self.runtime.call(self.live.close(), timeout)

    def wait_closed(self, *, timeout: float | None = None) -> None:
        """Wait until the connection is gone, whichever side ends it."""
        self.runtime.call(self.live.wait_closed(), timeout, may_lead=False)

    def abort(self, reason: str = "this side aborted the session") -> None:
        """End the connection at once; queued data is not sent."""
        self.runtime.do(self.live.abort, reason)

    def serve_streams(
        self, handler: StreamHandler, *, max_concurrent: int = 64, timeout: float | None = None
    ) -> None:
        """Run `handler(stream)` in a thread for every stream of the peer, until the session ends.

        The stream is closed when its handler returns, and aborted if it raises. If the timeout has
        passed, the streams are aborted, and their handlers find that out at their next call.

        Args:
            handler: A function of one argument, the stream.
            max_concurrent: Handlers, and so threads, that run at the same time.
            timeout: Seconds; None: until the session ends.
        """
        if not callable(handler):
            raise TypeError(f"the handler is a function, not {type(handler).__name__}")
        runtime = self.runtime

        async def handle(stream: duplex.Stream) -> None:
            await in_thread(runtime, handler, blocking_stream(runtime, stream))

        serving = self.live.serve_streams(handle, max_concurrent=max_concurrent)
        runtime.call(serving, timeout, may_lead=False)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.runtime.call(self.live.__aexit__(kind, error, trace))

    def _opened(self, coroutine: Any, timeout: float | None) -> Any:
        """Run a verb that returns a stream."""
        return blocking_stream(self.runtime, self.runtime.call(coroutine, timeout))


class NerdbankSession(Session):
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

    def reject(self, stream: Stream, text: str = "") -> None:
        """Reject an offer of the peer; see `offers`."""
        self.runtime.do(self.live.reject, stream.live, text)

    def offers(self) -> list[Stream]:
        """Channels that the peer has offered and this side has not accepted yet, oldest first."""
        offered = self.runtime.do(self.live.offers)
        return [blocking_stream(self.runtime, stream) for stream in offered]

    def seeded(self, stream_id: int) -> Stream:
        """Return a seeded channel: one that both sides configure and no side offers (v3)."""
        found = self.runtime.do(self.live.seeded, stream_id)
        stream: Stream = blocking_stream(self.runtime, found)
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


class StreamuxSession(Session):
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

    def serve_calls(
        self,
        handler: Callable[[Call], object],
        *,
        max_concurrent: int = 64,
        timeout: float | None = None,
    ) -> None:
        """Run `handler(call)` in a thread for every call of the peer, until the session ends."""
        self.serve_streams(handler, max_concurrent=max_concurrent, timeout=timeout)


class MinmuxSession(Session):
    """A session of one-way streams by id; see `polymux.MinmuxSession`."""

    __slots__ = ()
    live: minmux.MinmuxSession

    def sender(self, stream_id: int) -> ItemSender:
        """Return the stream with this id for writing."""
        return ItemSender(self.runtime, self.runtime.do(self.live.sender, stream_id))

    def receiver(
        self, stream_id: int, *, window: int | None = None, codec: Codec | None = None
    ) -> ItemReceiver:
        """Return the stream with this id for reading, and give its initial credit."""
        live = self.runtime.do(self.live.receiver, stream_id, window=window, codec=codec)
        return ItemReceiver(self.runtime, live)

    def unclaimed_ids(self) -> list[int]:
        """Ids written by the peer that it has used and no `receiver` call has asked for."""
        return self.runtime.do(self.live.unclaimed_ids)


class YamuxSession(Session):
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

    def go_away(self, code: int = yamux.NORMAL) -> None:
        """Tell the peer to open no more streams. Those that are open go on."""
        self.runtime.do(self.live.go_away, code)

    def reset(self, stream: Stream, code: int = 0) -> None:
        """Reset a stream: `Stream.abort` with an error code."""
        self.runtime.do(self.live.reset, stream.live, code)


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


async def in_thread(runtime: ThreadRuntime, function: Callable[[A], object], argument: A) -> None:
    """Call a function in a thread of its own, and wait for its end; raises what it raises.

    If it is cancelled, the function goes on, and what it returns or raises is ignored.
    """
    done = runtime.create_future()

    def finish(problem: BaseException | None) -> None:
        if done.done():
            return
        if problem is None:
            done.set_result(None)
        else:
            done.set_exception(problem)

    def run() -> None:
        try:
            function(argument)
        except BaseException as problem:
            runtime.do(finish, problem)
        else:
            runtime.do(finish, None)

    threading.Thread(target=run, name=f"{runtime.name} handler", daemon=True).start()
    await done
