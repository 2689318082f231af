"""Streams for tasks of asyncio and trio: the verbs of `polymux.live` with anyio's interfaces."""

from typing import Any, TypeVar

from anyio import EndOfStream
from anyio.abc import ByteStream, ObjectReceiveStream, ObjectSendStream

from polymux.anyio.runtime import DoorRuntime
from polymux.live import handles
from polymux.live.arguments import check_max_bytes
from polymux.live.streams import duplex, exchanges, items, messages
from polymux.protocols.omnistreams.payloads import DEFAULT_CHUNK_SIZE

Self = TypeVar("Self", bound="AnyStream")

BytesLike = duplex.BytesLike


class AnyStream(handles.StreamHandle):
    """What streams of every kind have.

    Every call is a checkpoint, and may be cancelled: what it leaves behind then is what the same
    call of `polymux.Stream` leaves. One task may read and any number of tasks may send at a time.
    Leaving `async with` closes the stream; an exception in the block, or its cancellation, aborts
    it.
    """

    runtime: DoorRuntime

    async def drain(self) -> None:
        """Wait until `send` would not have to wait, or would raise."""
        await self.runtime.call(self.live.drain())

    async def end(self) -> None:
        """End this side's half after the data that is queued. The peer may still send."""
        await self.runtime.call(self.live.end())

    async def close(self) -> None:
        """End this side's half and stop reading; see the `close` of this kind in `polymux`."""
        await self.runtime.call(self.live.close(), closing=True)

    async def aclose(self) -> None:
        """The same as `close`."""
        await self.close()

    async def receive_parts(self) -> list[bytes | memoryview]:
        """Return everything received so far as a list of parts; empty at the end."""
        return await self.runtime.call(self.live.receive_parts())

    async def receive_all(self, limit: int = 16 * 1024 * 1024) -> bytes:
        """Return everything up to the end of the data, at most `limit` bytes."""
        return await self.runtime.call(self.live.receive_all(limit))

    def __aiter__(self: Self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await self.runtime.call(self.live.__anext__())

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.runtime.call(self.live.__aexit__(kind, error, trace), closing=True)


class Stream(AnyStream, ByteStream):
    """A stream of bytes in both directions, and an `anyio.abc.ByteStream`; see `polymux.Stream`."""

    async def send(self, item: BytesLike) -> None:
        """Queue bytes; wait while there is no credit or a send buffer is full."""
        await self.runtime.call(self.live.send(item))

    async def send_eof(self) -> None:
        """The same as `end`."""
        await self.end()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return at most `max_bytes` of what was received; wait if there is nothing.

        Raises:
            EndOfStream: The data has ended.
            StreamAborted: The peer reset the stream, or this side aborted it.
            SessionClosed: The session ended before the end of the data.
            TypeError, ValueError: `max_bytes` is not an int, or less than 1.
        """
        check_max_bytes(max_bytes)
        data = await self.runtime.call(duplex.receive_some(self.live, max_bytes))
        if not data:
            raise EndOfStream
        return data

    async def readline(self, limit: int = 64 * 1024) -> bytes:
        """Return the next line with its newline; at the end what is left, then empty bytes."""
        return await self.runtime.call(self.live.readline(limit))

    async def readexactly(self, size: int, limit: int = 16 * 1024 * 1024) -> bytes:
        """Return exactly `size` bytes."""
        return await self.runtime.call(self.live.readexactly(size, limit))


class ObjectSender(AnyStream, ObjectSendStream[bytes]):
    """A stream of messages or items to the peer."""

    async def send(self, item: BytesLike) -> None:
        """Queue a message, or items; wait while the peer gives no credit or a buffer is full."""
        await self.runtime.call(self.live.send(item))


class ObjectReceiver(AnyStream, ObjectReceiveStream[bytes]):
    """A stream of messages or items from the peer."""

    async def receive(self) -> bytes:
        """Return the next message, or item; wait for it if necessary.

        Raises:
            EndOfStream: There are no more.
            StreamAborted, SessionClosed: The stream or the session ended before its last one.
        """
        try:
            return await self.runtime.call(self.live.__anext__())
        except StopAsyncIteration:
            raise EndOfStream from None


class MessageSender(ObjectSender, handles.MessageSenderHandle):
    """A stream of messages to the peer; see `polymux.MessageSender`."""

    live: messages.MessageSender

    async def send_all(self, data: BytesLike, size: int = DEFAULT_CHUNK_SIZE) -> None:
        """Send `data` in messages of `size` bytes; the last one may be shorter."""
        await self.runtime.call(self.live.send_all(data, size))


class MessageReceiver(ObjectReceiver, handles.MessageHandle):
    """A stream of messages from the peer; see `polymux.MessageReceiver`."""

    live: messages.MessageReceiver


class ItemStream(AnyStream, handles.ItemHandle):
    """A stream of items."""

    live: items.ItemStream

    async def wait_over(self) -> None:
        """Wait until both sides have stopped."""
        await self.runtime.call(self.live.wait_over())


class ItemSender(ItemStream, ObjectSender, handles.ItemSenderHandle):
    """A stream of items to the peer; see `polymux.ItemSender`."""

    live: items.ItemSender

    async def stop(self, after: int = 0) -> None:
        """Announce that at most `after` more items follow those that are queued."""
        await self.runtime.call(self.live.stop(after))

    async def last(self, data: BytesLike) -> None:
        """Queue the last item, in its encoding."""
        await self.runtime.call(self.live.last(data))


class ItemReceiver(ItemStream, ObjectReceiver, handles.ItemReceiverHandle):
    """A stream of items from the peer; see `polymux.ItemReceiver`."""

    live: items.ItemReceiver


class ExchangeStream(Stream):
    """A request and its reply: one message in each direction."""

    live: exchanges.ExchangeStream

    async def read(self, limit: int = 0) -> bytes:
        """Wait for the complete message of the peer and return it."""
        return await self.runtime.call(self.live.read(limit))

    async def send_message(self, data: BytesLike) -> None:
        """Send a message and end it."""
        await self.runtime.call(self.live.send_message(data))


class Exchange(ExchangeStream):
    """A request of this side and its reply; see `polymux.Exchange`."""

    live: exchanges.Exchange


class Call(ExchangeStream, handles.CallHandle):
    """A request of the peer, to be answered by this side; see `polymux.Call`."""

    live: exchanges.Call

    async def reply(self, data: BytesLike = b"") -> None:
        """Send the reply and close the call."""
        await self.runtime.call(self.live.reply(data))


STREAM_CLASSES: dict[type[duplex.Stream], type[AnyStream]] = {
    duplex.Stream: Stream,
    messages.MessageSender: MessageSender,
    messages.MessageReceiver: MessageReceiver,
    items.ItemSender: ItemSender,
    items.ItemReceiver: ItemReceiver,
    exchanges.Exchange: Exchange,
    exchanges.Call: Call,
}


def stream_handle(runtime: DoorRuntime, live: duplex.Stream) -> Any:
    """Return what stands for a stream here."""
    return STREAM_CLASSES[type(live)](runtime, live)
