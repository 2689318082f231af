"""Streams that block: the verbs of `polymux.live`, each with `timeout=`."""

import io
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Literal, TypeVar

from polymux.live.streams import duplex, exchanges, items, messages
from polymux.protocols.omnistreams.payloads import DEFAULT_CHUNK_SIZE
from polymux.sync.runtime import ThreadRuntime

L = TypeVar("L")
Self = TypeVar("Self", bound="Handle[Any]")

BytesLike = duplex.BytesLike


class Handle(Generic[L]):
    """Something of a session, used from any thread.

    Attributes:
        live: The object without blocking methods; for its attributes only.
        runtime: What runs it.
    """

    __slots__ = ("live", "runtime")

    def __init__(self, runtime: ThreadRuntime, live: L) -> None:
        self.runtime = runtime
        self.live = live

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self.live is other.live

    def __hash__(self) -> int:
        return hash(self.live)

    def __str__(self) -> str:
        return str(self.live)

    def __repr__(self) -> str:
        return repr(self.live)


class Stream(Handle[duplex.Stream]):
    """A stream of a session; see `polymux.Stream`.

    Every call that can wait takes `timeout=` in seconds, and raises TimeoutError when it has
    passed. It leaves behind what the same call of `polymux.Stream` leaves when it is cancelled.
    One thread may read and any number of threads may send at a time.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name of the stream; bytes that are not UTF-8 are replaced."""
        return self.live.name

    @property
    def stream_id(self) -> int:
        """The id of the stream on the wire."""
        return self.live.stream_id

    @property
    def error(self) -> str | None:
        """The reason sent by the side that aborted the stream; None if it sent none."""
        return self.live.error

    @property
    def weight(self) -> int:
        """The stream's share of the connection; see `polymux.Stream.weight`. It may be set."""
        return self.live.weight

    @weight.setter
    def weight(self, weight: int) -> None:
        self.runtime.do(setattr, self.live, "weight", weight)

    @property
    def usable(self) -> bool:
        """Whether neither side has aborted the stream."""
        return self.live.usable

    # Sending

    def send(self, data: BytesLike, *, timeout: float | None = None) -> None:
        """Queue `data`; wait while there is no credit or a send buffer is full."""
        self.runtime.call(self.live.send(data), timeout)

    def send_nowait(self, data: BytesLike) -> None:
        """Queue `data` without waiting."""
        self.runtime.do(self.live.send_nowait, data)

    def send_many(self, pieces: Iterable[BytesLike]) -> None:
        """Queue several pieces without waiting: all of them, or none if it raises."""
        self.runtime.do(self.live.send_many, list(pieces))

    def drain(self, *, timeout: float | None = None) -> None:
        """Wait until `send` would not have to wait, or would raise."""
        self.runtime.call(self.live.drain(), timeout)

    def end(self, *, timeout: float | None = None) -> None:
        """End this side's half after the data that is queued. The peer may still send."""
        self.runtime.call(self.live.end(), timeout)

    def abort(self, text: str = "") -> None:
        """Abort both directions: discard queued and unread data, and notify the peer."""
        self.runtime.do(self.live.abort, text)

    def close(self, *, timeout: float | None = None) -> None:
        """End this side's half and stop reading."""
        self.runtime.call(self.live.close(), timeout)

    # Receiving

    def receive(self, *, timeout: float | None = None) -> bytes:
        """Return everything received so far; wait if there is nothing. Empty at the end."""
        return self.runtime.call(self.live.receive(), timeout)

    def receive_parts(self, *, timeout: float | None = None) -> list[bytes | memoryview]:
        """Like `receive`, without joining or copying: a list of parts, empty at the end."""
        return self.runtime.call(self.live.receive_parts(), timeout)

    def receive_nowait(self, size: int = -1) -> bytes:
        """Return what was received so far without waiting; empty if there is nothing."""
        return self.runtime.do(self.live.receive_nowait, size)

    def receive_all(self, limit: int = 16 * 1024 * 1024, *, timeout: float | None = None) -> bytes:
        """Return everything up to the end of the data, at most `limit` bytes."""
        return self.runtime.call(self.live.receive_all(limit), timeout)

    def readline(self, limit: int = 64 * 1024, *, timeout: float | None = None) -> bytes:
        """Return the next line with its newline; at the end what is left, then empty bytes."""
        return self.runtime.call(self.live.readline(limit), timeout)

    def readexactly(
        self, size: int, limit: int = 16 * 1024 * 1024, *, timeout: float | None = None
    ) -> bytes:
        """Return exactly `size` bytes."""
        return self.runtime.call(self.live.readexactly(size, limit), timeout)

    def recv_into(
        self, buffer: bytearray | memoryview, nbytes: int = 0, *, timeout: float | None = None
    ) -> int:
        """Read into a buffer, as `socket.recv_into` does; wait if nothing was received.

        Args:
            buffer: Where the bytes go, from its beginning.
            nbytes: How many bytes at most; 0: as many as the buffer has room for.
            timeout: Seconds to wait; None: as long as it takes.

        Returns:
            The number of bytes; 0 at the end of the data.

        Raises:
            TypeError: The buffer cannot be written. Nothing was taken.
            ValueError: `nbytes` is negative.
        """
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise TypeError(f"recv_into fills a buffer, and {type(buffer).__name__} is read-only")
        if nbytes < 0:
            raise ValueError(f"recv_into reads 0 (what there is room for) or more, not {nbytes}")
        size = min(nbytes or len(view), len(view))
        return self.runtime.call(receive_into(self.live, view[:size]), timeout)

    def __iter__(self: Self) -> Self:
        return self

    def __next__(self) -> bytes:
        try:
            return self.runtime.call(self.live.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    # As a file

    def makefile(
        self,
        mode: Literal["r", "w", "rw", "rb", "wb", "rwb"] = "r",
        buffering: int = io.DEFAULT_BUFFER_SIZE,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Return a file object, as `socket.makefile` does.

        Closing it flushes what was written; the stream stays open.
        """
        if set(mode) - set("rwb") or not set(mode) & set("rw"):
            raise ValueError(f"a mode is r, w or rw, with b for bytes, not {mode!r}")
        raw = StreamFile(self, mode)
        if "r" in mode and "w" in mode:
            binary: Any = io.BufferedRWPair(raw, raw, max(1, buffering))
        elif "r" in mode:
            binary = raw if not buffering and "b" in mode else io.BufferedReader(raw)
        else:
            binary = raw if not buffering and "b" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.runtime.call(self.live.__aexit__(kind, error, trace))


async def receive_into(stream: duplex.Stream, view: memoryview) -> int:
    """Move bytes that were received into a buffer; wait if there are none."""
    while len(view) and not stream.has_unread:
        if stream.check_eof():
            return 0
        await stream.wait_readable()
    data = stream.receive_nowait(len(view))
    view[: len(data)] = data
    return len(data)


class StreamFile(io.RawIOBase):
    """The bytes of a stream as a raw file."""

    def __init__(self, stream: Stream, mode: str) -> None:
        super().__init__()
        self._stream = stream
        self._mode = mode

    def readable(self) -> bool:
        return "r" in self._mode

    def writable(self) -> bool:
        return "w" in self._mode

    def readinto(self, buffer: Any) -> int:
        return self._stream.recv_into(buffer)

    def write(self, data: Any) -> int:
        copied = bytes(data)
        self._stream.send(copied)
        return len(copied)


class MessageSender(Stream):
    """A stream of messages to the peer; see `polymux.MessageSender`."""

    __slots__ = ()
    live: messages.MessageSender

    @property
    def metadata(self) -> bytes:
        """The metadata bytes the stream was opened with."""
        return self.live.metadata

    @property
    def credit(self) -> int:
        """Messages that can be sent now without waiting."""
        return self.live.credit

    def send_all(
        self,
        data: BytesLike,
        size: int = DEFAULT_CHUNK_SIZE,
        *,
        timeout: float | None = None,
    ) -> None:
        """Send `data` in messages of `size` bytes; the last one may be shorter."""
        self.runtime.call(self.live.send_all(data, size), timeout)

    def json(self) -> object:
        """Return the metadata decoded as JSON."""
        return self.live.json()

    def cancel(self) -> None:
        """Abort the stream."""
        self.runtime.do(self.live.cancel)


class MessageReceiver(Stream):
    """A stream of messages from the peer; see `polymux.MessageReceiver`."""

    __slots__ = ()
    live: messages.MessageReceiver

    @property
    def metadata(self) -> bytes:
        """The metadata bytes the stream was opened with."""
        return self.live.metadata

    def json(self) -> object:
        """Return the metadata decoded as JSON."""
        return self.live.json()

    def cancel(self) -> None:
        """Abort the stream."""
        self.runtime.do(self.live.cancel)


class ItemSender(Stream):
    """A stream of items to the peer; see `polymux.ItemSender`."""

    __slots__ = ()
    live: items.ItemSender

    @property
    def credit(self) -> int:
        """Items that can be sent now without waiting for credit."""
        return self.live.credit

    def stop(self, after: int = 0, *, timeout: float | None = None) -> None:
        """Announce that at most `after` more items follow those that are queued."""
        self.runtime.call(self.live.stop(after), timeout)

    def last(self, data: BytesLike, *, timeout: float | None = None) -> None:
        """Queue the last item, in its encoding."""
        self.runtime.call(self.live.last(data), timeout)

    def promise(self, amount: int) -> None:
        """Promise that at least `amount` more items will be written, given the credit."""
        self.runtime.do(self.live.promise, amount)

    def forgo(self, amount: int) -> None:
        """Return `amount` of unused credit."""
        self.runtime.do(self.live.forgo, amount)

    def wait_over(self, *, timeout: float | None = None) -> None:
        """Wait until both sides have stopped."""
        self.runtime.call(self.live.wait_over(), timeout)


class ItemReceiver(Stream):
    """A stream of items from the peer; see `polymux.ItemReceiver`."""

    __slots__ = ()
    live: items.ItemReceiver

    @property
    def last(self) -> bytes | None:
        """The last item, once it has arrived and all items before it were read; else None."""
        return self.runtime.do(lambda: self.live.last)

    @property
    def window(self) -> int:
        """Credit in circulation: given and not forgone, in items."""
        return self.live.window

    def grant(self, amount: int) -> None:
        """Give `amount` more credit."""
        self.runtime.do(self.live.grant, amount)

    def stop(self, more: int = 0) -> None:
        """Announce that at most `more` credit will be given from now on."""
        self.runtime.do(self.live.stop, more)

    def oops(self, keep: int = 0) -> None:
        """Ask the writer to return all credit but `keep`."""
        self.runtime.do(self.live.oops, keep)

    def promise(self, amount: int) -> None:
        """Promise that at least `amount` more credit will be given."""
        self.runtime.do(self.live.promise, amount)

    def wait_over(self, *, timeout: float | None = None) -> None:
        """Wait until both sides have stopped."""
        self.runtime.call(self.live.wait_over(), timeout)


class Exchange(Stream):
    """A request of this side and its reply; see `polymux.Exchange`."""

    __slots__ = ()
    live: exchanges.Exchange

    def read(self, limit: int = 0, *, timeout: float | None = None) -> bytes:
        """Wait for the complete reply and return it."""
        return self.runtime.call(self.live.read(limit), timeout)

    def send_message(self, data: BytesLike, *, timeout: float | None = None) -> None:
        """Send the request and end it."""
        self.runtime.call(self.live.send_message(data), timeout)


class Call(Stream):
    """A request of the peer, to be answered by this side; see `polymux.Call`."""

    __slots__ = ()
    live: exchanges.Call

    def read(self, limit: int = 0, *, timeout: float | None = None) -> bytes:
        """Wait for the complete request and return it."""
        return self.runtime.call(self.live.read(limit), timeout)

    def reply(self, data: BytesLike = b"", *, timeout: float | None = None) -> None:
        """Send the reply and close the call."""
        self.runtime.call(self.live.reply(data), timeout)

    def drop(self, reason: str = "this side dropped the call") -> None:
        """Abandon the call without a reply."""
        self.runtime.do(self.live.drop, reason)


STREAM_CLASSES: dict[type[duplex.Stream], type[Stream]] = {
    duplex.Stream: Stream,
    messages.MessageSender: MessageSender,
    messages.MessageReceiver: MessageReceiver,
    items.ItemSender: ItemSender,
    items.ItemReceiver: ItemReceiver,
    exchanges.Exchange: Exchange,
    exchanges.Call: Call,
}


def blocking_stream(runtime: ThreadRuntime, live: duplex.Stream) -> Any:
    """Return the blocking form of a stream."""
    return STREAM_CLASSES[type(live)](runtime, live)


def blocking_streams(runtime: ThreadRuntime, streams: Iterable[duplex.Stream]) -> Iterator[Any]:
    """Return the blocking forms of several streams."""
    return (blocking_stream(runtime, stream) for stream in streams)
