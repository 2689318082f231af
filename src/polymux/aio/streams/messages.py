"""One-way streams of messages (omnistreams), as the application holds them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from polymux.aio.streams.duplex import Octets, Stream, octets
from polymux.aio.streams.fast_paths import fetch, must_wait, post
from polymux.aio.streams.piecewise import Piecewise
from polymux.core.errors import StreamAborted, StreamEnded, Unsupported
from polymux.core.streams import OPEN
from polymux.core.streams import Stream as Record
from polymux.protocols.omnistreams.payloads import CHUNK, chunks, json_value

if TYPE_CHECKING:
    from polymux.aio.session.session import Session


class MessageStream(Stream):
    """What both ends share: metadata, and a cancel."""

    __slots__ = ()

    @property
    def metadata(self) -> bytes:
        """What the stream was opened with, unchanged."""
        return self.record.name or b""

    def json(self) -> object:
        """The metadata as JSON. ValueError if it is none; the peer may have sent anything."""
        return json_value(self.metadata)

    def cancel(self) -> None:
        """Give the stream up: what is queued or unread is dropped, and the peer is told.

        A writer of the legacy numbering has no word for it: the peer hears nothing.
        """
        self.give_up("cancelled by this side")

    def give_up(self, reason: str, text: str = "") -> None:
        """Cancel, with `reason` for whoever still waits here. The peer is told once.

        npm 0.9.0 falls over a second cancel, and one may be on its way already.
        """
        told = self.lane.dropped
        self._stop(StreamAborted(f"{self}: {reason}"))
        if not told:
            self._count_given_up()
            self._endpoint.abort(self.record, text.encode())
        self._wake_all()
        self.session._relieved(self)


class Sender(MessageStream):
    """A stream that flows to the peer. In `async with`, leaving the block ends it."""

    __slots__ = ()

    def __init__(self, session: "Session", record: Record) -> None:
        super().__init__(session, record)
        self._no_read = Unsupported(f"{self} flows to the peer: answers come on streams it opens")

    @property
    def credit(self) -> int:
        """Messages that could be sent now without waiting for the peer's next request."""
        return max(0, self._own.granted - self._own.spent - self._waiting())

    async def send(self, data: Octets) -> None:
        """Queue one message, waiting while the peer asks for none or too much waits to leave.

        If cancelled while waiting, nothing was queued. Once it returns, order among calls on this
        stream is kept; delivery is not promised. A buffer is copied before the first wait.
        """
        if post(self, data):
            return
        if type(data) is not bytes:
            data = octets(data)
        if self._must_wait():
            self._endpoint.check(self.record, data)
            await self._wait_to_send(len(data))
        self.send_nowait(data)

    async def send_all(self, data: Octets, size: int = CHUNK) -> None:
        """Send a byte stream, cut into messages of `size` octets, the last one shorter.

        If cancelled, the messages before the one that waited were queued.
        """
        for message in chunks(octets(data), size):
            await self.send(message)

    async def __aenter__(self) -> "Sender":
        return self

    async def close(self) -> None:
        """The same as `end`."""
        await self.end()

    def _waiting(self) -> int:
        return len(self.lane.outgoing) - self.lane.next

    def _must_wait(self) -> bool:
        return self._no_send is None and must_wait(self)


class Receiver(MessageStream, Piecewise):
    """A stream that flows from the peer, message by message.

    Each message that is read makes room for another: more are asked for once half the window has
    been read. Leaving an `async with` block before the end cancels the stream.
    """

    __slots__ = ()

    def __init__(self, session: "Session", record: Record) -> None:
        super().__init__(session, record)
        self._no_send = Unsupported(f"{self} flows from the peer: answer on a stream of your own")

    async def receive(self) -> bytes:
        """The next message, which may be empty; StreamEnded after the last one.

        If cancelled, nothing was taken. One task at a time may receive.
        """
        while not self.lane.inbox:
            if self._is_over():
                raise StreamEnded(f"{self}: the peer has ended it, there are no more messages")
            await self._wait_to_receive()
        return self._take()

    def send_many(self, pieces: Iterable[Octets]) -> None:
        self.send_nowait(b"")  # raises: this side cannot send

    async def __aenter__(self) -> "Receiver":
        return self

    async def close(self) -> None:
        """Cancel the stream unless the peer has ended it; what was not read is lost."""
        if self._theirs.state == OPEN:
            self.cancel()
        elif self._no_read is None:
            self._no_read = StreamEnded(f"{self} was closed by this side")
            self._endpoint.inbox.drop(self.lane)
            self.session._relieved(self)

    def _take(self) -> bytes:
        """One message."""
        message = fetch(self)
        session = self.session
        if session._pacing.paused_at:
            session._pacing.look()
        if self.record.over and not self.lane.inbox:
            session._forget(self)
        return message

    async def __anext__(self) -> bytes:
        while not self.lane.inbox:
            if self._is_over():
                raise StopAsyncIteration
            await self._wait_to_receive()
        return self._take()
