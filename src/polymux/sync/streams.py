"""Streams that block: the verbs of `polymux.live`, each with `timeout=`."""

import io
from typing import Any, Literal, NoReturn, TypeVar

from polymux.core.errors import Unsupported
from polymux.live import handles
from polymux.live.streams import duplex, exchanges, items, messages
from polymux.protocols.omnistreams.payloads import DEFAULT_CHUNK_SIZE
from polymux.sync.runtime import ThreadRuntime

Self = TypeVar("Self", bound="Stream")

BytesLike = duplex.BytesLike


class Stream(handles.StreamHandle):
    """A stream of a session; see `polymux.Stream`.

    Every call that can wait takes `timeout=` in seconds, and raises TimeoutError when it has
    passed. It leaves behind what the same call of `polymux.Stream` leaves when it is cancelled.
    One thread may read and any number of threads may send at a time.
    """

    __slots__ = ()
    runtime: ThreadRuntime

    # Sending

    def send(self, data: BytesLike, *, timeout: float | None = None) -> None:
        """Queue `data`; wait while there is no credit or a send buffer is full."""
        self.runtime.call(self.live.send(data), timeout)

    def drain(self, *, timeout: float | None = None) -> None:
        """Wait until `send` would not have to wait, or would raise."""
        self.runtime.call(self.live.drain(), timeout)

    def end(self, *, timeout: float | None = None) -> None:
        """End this side's half after the data that is queued. The peer may still send."""
        self.runtime.call(self.live.end(), timeout)

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
            Unsupported: The stream has messages or items: use `receive`. Nothing was taken.
        """
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise TypeError(f"recv_into fills a buffer, and {type(buffer).__name__} is read-only")
        if nbytes < 0:
            raise ValueError(f"recv_into reads 0 (what there is room for) or more, not {nbytes}")
        size = min(nbytes or len(view), len(view))
        if not size:
            return 0
        data = self.runtime.call(duplex.receive_some(self.live, size), timeout)
        view[: len(data)] = data
        return len(data)

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

        Args:
            mode: What it is for; with `b` it has bytes, else text.
            buffering: Bytes buffered in each direction; 0, only for bytes: none; -1: the default.
            encoding, errors, newline: Those of `io.TextIOWrapper`.

        Raises:
            ValueError: There is no such mode, or a text is not to be buffered.
            Unsupported: The stream has messages or items from the peer: use `receive`.
        """
        if set(mode) - set("rwb") or not set(mode) & set("rw"):
            raise ValueError(f"a mode is r, w or rw, with b for bytes, not {mode!r}")
        if not buffering and "b" not in mode:
            raise ValueError("a file of text is buffered: buffering=0 is for bytes")
        raw = StreamFile(self, mode)
        size = io.DEFAULT_BUFFER_SIZE if buffering < 0 else buffering
        if not size:
            binary: Any = raw
        elif "r" in mode and "w" in mode:
            binary = io.BufferedRWPair(raw, raw, size)
        elif "r" in mode:
            binary = io.BufferedReader(raw, size)
        else:
            binary = io.BufferedWriter(raw, size)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.runtime.call(self.live.__aexit__(kind, error, trace))


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


class PieceReceiver(Stream):
    """A stream of messages or items from the peer: a buffer or a file would lose where they end."""

    __slots__ = ()

    def recv_into(
        self, buffer: bytearray | memoryview, nbytes: int = 0, *, timeout: float | None = None
    ) -> NoReturn:
        """Not available: raises Unsupported. Use `receive`."""
        raise Unsupported(f"{self} has pieces, and recv_into reads bytes: read it with receive()")

    def makefile(self, *arguments: object, **options: object) -> NoReturn:
        """Not available: raises Unsupported. Iterate over the stream, or use `receive`."""
        raise Unsupported(
            f"{self} has pieces, and a file reads bytes: iterate over it, or use receive()"
        )


class MessageSender(Stream, handles.MessageSenderHandle):
    """A stream of messages to the peer; see `polymux.MessageSender`."""

    __slots__ = ()
    live: messages.MessageSender

    def send_all(
        self,
        data: BytesLike,
        size: int = DEFAULT_CHUNK_SIZE,
        *,
        timeout: float | None = None,
    ) -> None:
        """Send `data` in messages of `size` bytes; the last one may be shorter."""
        self.runtime.call(self.live.send_all(data, size), timeout)


class MessageReceiver(PieceReceiver, handles.MessageHandle):
    """A stream of messages from the peer; see `polymux.MessageReceiver`."""

    __slots__ = ()
    live: messages.MessageReceiver


class ItemStream(Stream, handles.ItemHandle):
    """A stream of items."""

    __slots__ = ()
    live: items.ItemStream

    def wait_over(self, *, timeout: float | None = None) -> None:
        """Wait until both sides have stopped."""
        self.runtime.call(self.live.wait_over(), timeout)


class ItemSender(ItemStream, handles.ItemSenderHandle):
    """A stream of items to the peer; see `polymux.ItemSender`."""

    __slots__ = ()
    live: items.ItemSender

    def stop(self, after: int = 0, *, timeout: float | None = None) -> None:
        """Announce that at most `after` more items follow those that are queued."""
        self.runtime.call(self.live.stop(after), timeout)

    def last(self, data: BytesLike, *, timeout: float | None = None) -> None:
        """Queue the last item, in its encoding."""
        self.runtime.call(self.live.last(data), timeout)


class ItemReceiver(ItemStream, PieceReceiver, handles.ItemReceiverHandle):
    """A stream of items from the peer; see `polymux.ItemReceiver`."""

    __slots__ = ()
    live: items.ItemReceiver


class ExchangeStream(Stream):
    """A request and its reply: one message in each direction."""

    __slots__ = ()
    live: exchanges.ExchangeStream

    def read(self, limit: int = 0, *, timeout: float | None = None) -> bytes:
        """Wait for the complete message of the peer and return it."""
        return self.runtime.call(self.live.read(limit), timeout)

    def send_message(self, data: BytesLike, *, timeout: float | None = None) -> None:
        """Send a message and end it."""
        self.runtime.call(self.live.send_message(data), timeout)


class Exchange(ExchangeStream):
    """A request of this side and its reply; see `polymux.Exchange`."""

    __slots__ = ()
    live: exchanges.Exchange


class Call(ExchangeStream, handles.CallHandle):
    """A request of the peer, to be answered by this side; see `polymux.Call`."""

    __slots__ = ()
    live: exchanges.Call

    def reply(self, data: BytesLike = b"", *, timeout: float | None = None) -> None:
        """Send the reply and close the call."""
        self.runtime.call(self.live.reply(data), timeout)


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
