"""Streamux exchanges: `Exchange` for requests of this side, `Call` for requests of the peer.

The header of its last chunk ends the peer's half of the stream, but a message is complete only with
the last byte of that chunk. `on_peer_end` is called at that byte, and `check_eof` waits for it.
"""

from collections.abc import AsyncIterable
from io import BytesIO
from typing import TYPE_CHECKING

from polymux.core.errors import LimitExceeded, PolymuxError, StreamAborted
from polymux.core.streams import OPEN, StreamState
from polymux.live.arguments import check_read_limit
from polymux.live.runtime import Task, Timer
from polymux.live.streams.duplex import BytesLike, Stream

if TYPE_CHECKING:
    from polymux.live.protocols.streamux import StreamuxSession

MAX_IMMEDIATE_MESSAGE_BYTES = 16 * 1024  # a larger message is not written immediately
MAX_JOINED_BYTES = 256 * 1024  # a larger message is written into one buffer as it arrives


class MessageBuffer:
    """Joins the parts of one message.

    A small message is joined at its end. A large one is written into one buffer as it arrives, so
    that it is never in memory twice.
    """

    __slots__ = ("_buffer", "_parts", "size")  # one exists for each exchange being read

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []
        self._buffer: BytesIO | None = None

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self._buffer is not None:
            self._buffer.write(part)
            return
        self._parts.append(part)
        if self.size > MAX_JOINED_BYTES and len(self._parts) > 1:
            self._buffer = BytesIO()
            for early_part in self._parts:
                self._buffer.write(early_part)
            self._parts.clear()

    def getvalue(self) -> bytes:
        if self._buffer is not None:
            return self._buffer.getvalue()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class ExchangeStream(Stream):
    """Common base of `Exchange` and `Call`: one message in each direction."""

    __slots__ = ("_message_complete",)

    def __init__(self, session: "StreamuxSession", state: StreamState) -> None:
        super().__init__(session, state)
        self._message_complete = False

    async def read(self, limit: int = 0) -> bytes:
        """Wait for the complete message of the peer and return it.

        Args:
            limit: Maximum number of bytes; 0 for `Limits.max_message_bytes`.

        Raises:
            LimitExceeded: The message is larger; the exchange was aborted.
            StreamAborted, SessionClosed: The exchange or the session ended before that.
        """
        check_read_limit(limit)
        max_bytes = limit or self.endpoint.limits.max_message_bytes
        message = MessageBuffer()
        waiting = False  # for more of a message that has begun
        try:
            while True:
                if not self.buffers.received:
                    if self.check_eof():
                        break
                    if message.size:
                        self.session.assembly.hold(self, message.size)
                        waiting = True
                elif not self._must_leave_unread():
                    message.add(self._take_received())
                    if message.size > max_bytes:
                        raise self._too_long(max_bytes, limit)
                    continue
                else:
                    waiting = True
                await self.wait_readable()
        finally:
            if waiting:
                self.session.assembly.release(self)
        return message.getvalue()

    def _too_long(self, max_bytes: int, limit: int) -> LimitExceeded:
        """Reject a message of more than `max_bytes`; return the error to raise."""
        reason = f"a message of more than {max_bytes} bytes"
        self.endpoint.counters.count("max_message_bytes")
        self._reject_message(reason)
        described = self.endpoint.limits.describe("max_message_bytes")
        remedy = "raise read(limit=...)" if limit else described
        return LimitExceeded(f"{self}: {reason}; {remedy}")

    async def send_message(self, data: BytesLike | AsyncIterable[BytesLike]) -> None:
        """Send a message, given at once or as an async iterable of pieces, and end it."""
        if self._try_send_now(data):
            return
        if type(data) is bytes or not isinstance(data, AsyncIterable):
            await self.send(data)
        else:
            async for piece in data:
                await self.send(piece)
        await self.end()

    def _try_send_now(self, data: object) -> bool:
        """Write a small message immediately instead of in the next event-loop iteration.

        Only if this is the only stream: with several, one write for all of them is better. False:
        nothing was sent.
        """
        session = self.session
        writer = self.socket_writer
        if (
            type(data) is not bytes
            or len(data) > MAX_IMMEDIATE_MESSAGE_BYTES
            or writer.flush_scheduled
            or len(session.streams) > 1
            or writer.blocked
        ):
            return False
        writer.flush_scheduled = True  # it is flushed below, so nothing is to be scheduled
        try:
            if not self._try_send(data):
                return False
            self.endpoint.end(self.state)
        finally:
            session.flush()
        return True

    def _reject_message(self, reason: str) -> None:
        self.abort_with_reason(reason)

    # Callbacks of the session

    def on_peer_end(self) -> None:
        """The last byte of the peer's message has arrived."""
        self._message_complete = True

    def check_eof(self) -> bool:
        return super().check_eof() and self._message_complete

    def on_connection_lost(self, problem: PolymuxError, can_reply: bool = False) -> None:
        if not self._message_complete and self.read_error is None:
            self.read_error = problem
        super().on_connection_lost(problem, can_reply)


class Exchange(ExchangeStream):
    """A request of this side and its reply; returned by `StreamuxSession.exchange`.

    The last bytes sent are held back until more follow or `end` is called, because the last chunk
    has to be marked as such. An empty request cannot be sent. Leaving an `async with` block before
    the reply was read to its end cancels the request and discards the rest of the reply.
    """

    __slots__ = ("timed_out",)

    def __init__(self, session: "StreamuxSession", state: StreamState) -> None:
        super().__init__(session, state)
        self.timed_out = False

    def __str__(self) -> str:
        return f"request {self.state.label()}"

    def on_timeout(self) -> None:
        """The timeout of the request has passed: cancel it."""
        self.timed_out = True
        self.abort_with_reason("no reply came in time")

    async def close(self) -> None:
        """Cancel the request unless its reply was read to the end."""
        if not self.state.over or self.buffers.unread_bytes:
            self.abort_with_reason("this side no longer waits for the reply")

    async def __aenter__(self) -> "Exchange":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()


class Call(ExchangeStream):
    """A request of the peer, to be answered by this side.

    It may be answered before it has arrived completely; the reply is then sent afterwards. When the
    peer cancels the call, the next await raises StreamAborted. Leaving an `async with` block ends
    the reply (an empty one if nothing was sent); an exception drops the call.
    """

    __slots__ = ("_reply_timer", "task")

    session: "StreamuxSession"

    def __init__(self, session: "StreamuxSession", state: StreamState) -> None:
        super().__init__(session, state)
        self.task: Task | None = None  # the handler; cancelled with the call
        self._reply_timer: Timer | None = None

    def __str__(self) -> str:
        return f"call {self.state.label()}"

    async def reply(self, data: BytesLike | AsyncIterable[BytesLike] = b"") -> None:
        """Send the reply and close the call.

        The unread rest of the request is discarded; to reply in steps and go on reading, use `send`
        and `end`. If cancelled while waiting, `data` was not queued.

        Args:
            data: The reply, or an async iterable of its pieces; empty by default.

        Raises:
            StreamAborted: The peer has cancelled the call, or this side has dropped it.
            SessionClosed: The session has ended.
        """
        await self.send_message(data)
        await self.close()

    async def close(self) -> None:
        """End the reply, and discard the rest of the request."""
        if self._reading_closed:
            return
        await self.end()
        self._close_request()

    def _close_request(self) -> None:
        self._reading_closed = True
        self.wake_reader()
        self.session.on_stream_released(self)

    def drop(self, reason: str = "this side dropped the call") -> None:
        """Abandon the call without a reply: the peer's own timeout ends it there.

        Streamux cannot express failure, and an empty reply means success. A reply that was ended is
        still sent.
        """
        if self.state.over or self.own_half.state != OPEN or self.buffers.end_queued:
            if not self._reading_closed:
                self._close_request()
            return
        self.set_error(StreamAborted(f"{self}: {reason}"))
        self.wake_all()
        self.session.forget_call(self)

    def _reject_message(self, reason: str) -> None:
        self.drop(reason)

    async def __aenter__(self) -> "Call":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.drop("its handler failed")

    # Callbacks of the session

    def on_peer_end(self) -> None:
        """The request is complete: send an early reply, and start the peer's announced timeout."""
        super().on_peer_end()
        session = self.session
        self.endpoint.resume(self.state)
        timeout = session.protocol.timeout_seconds(1 - self.endpoint.side)
        if session.drops_expired_calls and timeout:
            self._reply_timer = session.runtime.call_later(timeout, self._on_peer_timeout, timeout)

    def _on_peer_timeout(self, timeout: float) -> None:
        """The timeout that the peer announced has passed: drop the call unless it is being
        answered."""
        if not self.own_half.credit_spent and not self.buffers.queued_bytes:
            self.drop(f"not answered within the {timeout:g} s the peer waits")

    def wake_reader(self) -> None:
        if self._reading_closed and self.buffers.received:
            self._take_received()
        super().wake_reader()

    def wake_all(self) -> None:
        super().wake_all()
        if self._reply_timer is not None and (self.state.over or self.send_error is not None):
            self._reply_timer.cancel()
        task = self.task
        if (
            task is not None
            and self.send_error is not None
            and task is not self.session.runtime.current_task()
        ):
            self.task = None
            task.cancel()

    def _peer_abort_error(self, text: bytes) -> StreamAborted:
        return StreamAborted(f"{self} was cancelled by the peer")
