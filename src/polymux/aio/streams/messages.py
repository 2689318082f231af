"""One-way streams of messages (omnistreams), as the application holds them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from polymux.aio.streams.duplex import BytesLike, Stream, copied_bytes
from polymux.aio.streams.fast_paths import message_would_block, pop_message, try_send_message
from polymux.aio.streams.piecewise import PieceStream
from polymux.core.errors import StreamAborted, StreamEnded, Unsupported
from polymux.core.streams import OPEN
from polymux.core.streams import StreamState as Record
from polymux.protocols.omnistreams.payloads import (
    DEFAULT_CHUNK_SIZE,
    decode_json,
    split_into_chunks,
)

if TYPE_CHECKING:
    from polymux.aio.session.interface import SessionInterface


class MessageStream(Stream):
    """What both ends share: metadata, and a cancel."""

    __slots__ = ()

    @property
    def metadata(self) -> bytes:
        """What the stream was opened with, unchanged."""
        return self.state.name or b""

    def json(self) -> object:
        """The metadata as JSON. ValueError if it is none; the peer may have sent anything."""
        return decode_json(self.metadata)

    def cancel(self) -> None:
        """Give the stream up: what is queued or unread is dropped, and the peer is told.

        A writer of the legacy numbering has no word for it: the peer hears nothing.
        """
        self.abort_with_reason("cancelled by this side")

    def abort_with_reason(self, reason: str, text: str = "") -> None:
        """Cancel, with `reason` for whoever still waits here. The peer is told once.

        npm 0.9.0 falls over a second cancel, and one may be on its way already.
        """
        told = self.buffers.discarding
        self.set_error(StreamAborted(f"{self}: {reason}"))
        if not told:
            self._count_abort()
            self.endpoint.abort(self.state, text.encode())
        self.wake_all()
        self.session.on_stream_released(self)


class MessageSender(MessageStream):
    """A stream that flows to the peer. In `async with`, leaving the block ends it."""

    __slots__ = ()

    def __init__(self, session: "SessionInterface", state: Record) -> None:
        super().__init__(session, state)
        self.read_error = Unsupported(f"{self} flows to the peer: answers come on streams it opens")

    @property
    def credit(self) -> int:
        """Messages that could be sent now without waiting for the peer's next request."""
        return max(
            0, self.own_half.credit_granted - self.own_half.credit_spent - self._queued_messages()
        )

    async def send(self, data: BytesLike) -> None:
        """Queue one message, waiting while the peer asks for none or too much waits to leave.

        If cancelled while waiting, nothing was queued. Once it returns, order among calls on this
        stream is kept; delivery is not promised. A buffer is copied before the first wait.
        """
        if try_send_message(self, data):
            return
        if type(data) is not bytes:
            data = copied_bytes(data)
        if self.send_would_block():
            self.endpoint.check_content(self.state, data)
            await self._wait_to_send(len(data))
        self.send_nowait(data)

    async def send_all(self, data: BytesLike, size: int = DEFAULT_CHUNK_SIZE) -> None:
        """Send a byte stream, cut into messages of `size` bytes, the last one shorter.

        If cancelled, the messages before the one that waited were queued.
        """
        for message in split_into_chunks(copied_bytes(data), size):
            await self.send(message)

    async def __aenter__(self) -> "MessageSender":
        return self

    async def close(self) -> None:
        """The same as `end`."""
        await self.end()

    def _queued_messages(self) -> int:
        return len(self.buffers.outgoing) - self.buffers.next_piece

    def send_would_block(self) -> bool:
        return self.send_error is None and message_would_block(self)


class MessageReceiver(MessageStream, PieceStream):
    """A stream that flows from the peer, message by message.

    Each message that is read makes room for another: more are asked for once half the window has
    been read. Leaving an `async with` block before the end cancels the stream.
    """

    __slots__ = ()

    def __init__(self, session: "SessionInterface", state: Record) -> None:
        super().__init__(session, state)
        self.send_error = Unsupported(f"{self} flows from the peer: answer on a stream of your own")

    async def receive(self) -> bytes:
        """The next message, which may be empty; StreamEnded after the last one.

        If cancelled, nothing was taken. One task at a time may receive.
        """
        while not self.buffers.received:
            if self.check_eof():
                raise StreamEnded(f"{self}: the peer has ended it, there are no more messages")
            await self.wait_readable()
        return self._take_received()

    def send_many(self, pieces: Iterable[BytesLike]) -> None:
        self.send_nowait(b"")  # raises: this side cannot send

    async def __aenter__(self) -> "MessageReceiver":
        return self

    async def close(self) -> None:
        """Cancel the stream unless the peer has ended it; what was not read is lost."""
        if self.peer_half.state == OPEN:
            self.cancel()
        elif self.read_error is None:
            self.read_error = StreamEnded(f"{self} was closed by this side")
            self.endpoint.receive_queue.discard(self.buffers)
            self.session.on_stream_released(self)

    def _take_received(self) -> bytes:
        """One message."""
        message = pop_message(self)
        session = self.session
        if session.read_backpressure.paused_at:
            session.read_backpressure.update()
        if self.state.over and not self.buffers.received:
            session.remove_if_finished(self)
        return message

    async def __anext__(self) -> bytes:
        while not self.buffers.received:
            if self.check_eof():
                raise StopAsyncIteration
            await self.wait_readable()
        return self._take_received()
