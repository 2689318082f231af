"""One-way streams of messages (omnistreams): `MessageSender` and `MessageReceiver`.

`PieceStream` is the base of every receiver that keeps the sender's boundaries, also of the item
receivers in `items`.
"""

from typing import TYPE_CHECKING

from polymux.core.errors import StreamAborted, StreamEnded, Unsupported
from polymux.core.streams import OPEN, StreamState
from polymux.live.arguments import check_read_limit
from polymux.live.errors import AbortedHere
from polymux.live.streams.duplex import BytesLike, Stream, copied_bytes
from polymux.live.streams.fast_paths import message_would_block, pop_message, try_send_message
from polymux.protocols.omnistreams.payloads import (
    DEFAULT_CHUNK_SIZE,
    decode_json,
    split_into_chunks,
)

if TYPE_CHECKING:
    from polymux.live.session.interface import SessionInterface

FLOWS_TO_PEER = Unsupported(
    "the stream flows to the peer: answers come on streams that the peer opens"
)
FLOWS_FROM_PEER = Unsupported("the stream flows from the peer: answer on a stream of your own")


class PieceStream(Stream):
    """A receiver that returns one piece (a message or an item) at a time.

    A piece may be empty, so `receive` raises StreamEnded after the last one instead of returning
    empty bytes.
    """

    __slots__ = ()

    async def receive_parts(self) -> list[bytes | memoryview]:
        """Return the next piece as a list of one; an empty list after the last one."""
        try:
            return [await self.receive()]
        except StreamEnded:
            return []

    def receive_nowait(self, size: int = -1) -> bytes:
        """Return the next piece without waiting, whatever its size; empty if there is none."""
        return self._take_received() if self.buffers.received else b""

    async def receive_all(self, limit: int = 16 * 1024 * 1024) -> bytes:
        """Return all pieces up to the end, joined; see `Stream.receive_all`."""
        check_read_limit(limit)
        parts: list[bytes] = []
        size = 0
        assembly = self.session.assembly
        try:
            async for part in self:
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise self._too_much(limit)
                assembly.hold(self, size)
                while self._must_leave_unread():
                    await self.wait_readable()
        finally:
            assembly.release(self)
        return b"".join(parts)

    async def readline(self, limit: int = 64 * 1024) -> bytes:
        """Not available: raises Unsupported. Use `receive`."""
        raise Unsupported(f"{self} has pieces, not lines: read them with receive()")

    async def readexactly(self, size: int, limit: int = 16 * 1024 * 1024) -> bytes:
        """Not available: raises Unsupported. Use `receive`."""
        raise Unsupported(f"{self} has pieces of their own sizes: read them with receive()")


class MessageStream(Stream):
    """Common base of senders and receivers: metadata and `cancel`."""

    __slots__ = ()

    @property
    def metadata(self) -> bytes:
        """The metadata bytes the stream was opened with."""
        return self.state.name or b""

    def json(self) -> object:
        """Return the metadata decoded as JSON.

        Raises:
            ValueError: The metadata is not JSON. The peer may send anything there.
        """
        return decode_json(self.metadata)

    def cancel(self) -> None:
        """Abort the stream: drop queued and unread messages, and send a cancel to the peer.

        A sender that uses the legacy numbering cannot express a cancel; the peer is not notified.
        """
        self.set_error(AbortedHere(f"{self}: cancelled by this side"))
        self.abort_with_reason("cancelled by this side")

    def abort_with_reason(self, reason: str, text: str = "") -> None:
        """Cancel with `reason` for the callers that wait on this side.

        At most one cancel is sent: omnistreams 0.9.0 (npm) fails on a second one.
        """
        cancel_sent = self.buffers.discarding
        self.set_error(StreamAborted(f"{self}: {reason}"))
        if not cancel_sent:
            self._count_abort()
            self.endpoint.abort(self.state, text.encode())
        self.wake_all()
        self.session.on_stream_released(self)


class MessageSender(MessageStream):
    """A stream of messages to the peer. Leaving an `async with` block ends it."""

    __slots__ = ()

    def __init__(self, session: "SessionInterface", state: StreamState) -> None:
        super().__init__(session, state)
        self.read_error = FLOWS_TO_PEER

    @property
    def credit(self) -> int:
        """Messages that can be sent now without waiting for the next request of the peer."""
        return max(
            0, self.own_half.credit_granted - self.own_half.credit_spent - self._queued_messages()
        )

    async def send(self, data: BytesLike) -> None:
        """Queue one message; wait while the peer requests none or a send buffer is full.

        When it returns, the message is queued after those of earlier calls; it is not yet
        delivered. If cancelled while waiting, nothing was queued.

        Args:
            data: The message; a mutable buffer is copied before the first wait.

        Raises:
            StreamEnded, StreamAborted, SessionClosed: Nothing more can be sent on the stream.
            LimitExceeded: The message is larger than the protocol or the limits allow.
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
        """Send `data` in messages of `size` bytes; the last one may be shorter.

        If cancelled, the messages before the one that was waiting have been queued.
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
    """A stream of messages from the peer.

    More messages are requested once half of the window has been read. Leaving an `async with` block
    before the end cancels the stream.
    """

    __slots__ = ()

    def __init__(self, session: "SessionInterface", state: StreamState) -> None:
        super().__init__(session, state)
        self.send_error = FLOWS_FROM_PEER

    async def receive(self) -> bytes:
        """Return the next message, which may be empty; wait for it if necessary.

        If cancelled, no message was taken.

        Raises:
            StreamEnded: There are no more messages.
            StreamAborted, SessionClosed: The stream or the session ended before its last message.
            RuntimeError: Another task is already reading the stream.
        """
        while not self.buffers.received:
            if self.check_eof():
                raise StreamEnded(f"{self}: the peer has ended it, there are no more messages")
            await self.wait_readable()
        return self._take_received()

    async def __aenter__(self) -> "MessageReceiver":
        return self

    async def close(self) -> None:
        """Discard unread messages, and cancel the stream unless the peer has ended it."""
        if self.peer_half.state == OPEN:
            self.cancel()
        elif self.read_error is None:
            self.read_error = StreamEnded(f"{self} was closed by this side")
            self.endpoint.receive_queue.discard(self.buffers)
            self.session.on_stream_released(self)

    def _take_received(self) -> bytes:
        """Remove and return one message."""
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
