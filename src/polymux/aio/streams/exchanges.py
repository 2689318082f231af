"""Streamux exchanges as the application holds them: our requests, and the peer's calls."""

import asyncio
from collections.abc import AsyncIterable
from io import BytesIO
from typing import TYPE_CHECKING

from polymux.aio.arguments import check_read_limit
from polymux.aio.streams.duplex import BytesLike, Stream
from polymux.core.errors import LimitExceeded, PolymuxError, StreamAborted
from polymux.core.streams import OPEN
from polymux.core.streams import StreamState as Record

if TYPE_CHECKING:
    from polymux.aio.protocols.streamux import StreamuxSession


MAX_IMMEDIATE_MESSAGE_BYTES = 16 * 1024  # bytes of a message that may leave at once
MAX_JOINED_BYTES = (
    256 * 1024
)  # bytes of a message up to which its parts are kept and joined at its end


class MessageBuffer:
    """Parts that become one message. It is never held twice, as parts and joined: a large one is
    written into one place as it comes."""

    __slots__ = ("_parts", "_buffer", "size")  # there is one for each call that is under way

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
            for each in self._parts:
                self._buffer.write(each)
            self._parts.clear()

    def getvalue(self) -> bytes:
        if self._buffer is not None:
            return self._buffer.getvalue()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class ExchangeStream(Stream):
    """What a request and a call share: whole messages, in and out.

    The header of its last chunk already ends the peer's half; here a message ends with its last
    byte.
    """

    __slots__ = ("_message_complete",)

    def __init__(self, session: "StreamuxSession", state: Record) -> None:
        super().__init__(session, state)
        self._message_complete = False

    async def read(self, limit: int = 0) -> bytes:
        """The whole message, once its last chunk has come; waits for it.

        Past `limit` bytes (Limits.max_message_bytes if not given) the exchange is given up.
        """
        check_read_limit(limit)
        limits = self.endpoint.limits
        most = limit or limits.max_message_bytes
        whole = MessageBuffer()
        while True:
            if not self.buffers.received:
                if self.check_eof():
                    break
                await self.wait_readable()
                continue
            whole.add(self._take_received())
            if whole.size > most:
                what = f"a message of more than {most} bytes"
                self.endpoint.counters.count("max_message_bytes")
                self._reject_message(what)
                how = "raise read(limit=...)" if limit else limits.describe("max_message_bytes")
                raise LimitExceeded(f"{self}: {what}; {how}")
        return whole.getvalue()

    async def send_message(self, data: BytesLike | AsyncIterable[BytesLike]) -> None:
        """Send a message, at once or piece by piece as it comes, and end it."""
        if self._try_send_now(data):
            return
        if type(data) is bytes or not isinstance(data, AsyncIterable):
            await self.send(data)
        else:
            async for piece in data:
                await self.send(piece)
        await self.end()

    def _try_send_now(self, data: object) -> bool:
        """Send a small message now where no other is under way, instead of at the loop's next turn.

        False: nothing was sent. With others under way it is better to leave together.
        """
        session = self.session
        leaving = self.socket_writer
        if (
            type(data) is not bytes
            or len(data) > MAX_IMMEDIATE_MESSAGE_BYTES
            or leaving.flush_scheduled
            or len(session.streams) > 1
            or leaving.blocked
        ):
            return False
        leaving.flush_scheduled = True  # nothing needs to be scheduled
        try:
            if not self._try_send(data):
                return False
            self.endpoint.end(self.state)
        finally:
            session.flush()
        return True

    def _reject_message(self, reason: str) -> None:
        self.abort_with_reason(reason)

    # --- what the session tells

    def on_peer_end(self) -> None:
        """The peer's message is whole."""
        self._message_complete = True

    def check_eof(self) -> bool:
        return super().check_eof() and self._message_complete

    def on_connection_lost(self, problem: PolymuxError, can_reply: bool = False) -> None:
        if not self._message_complete and self.read_error is None:
            self.read_error = problem
        super().on_connection_lost(problem, can_reply)


class Exchange(ExchangeStream):
    """A request of ours and its reply.

    What is sent last is held back until more follows or `end` is called: only the last chunk of a
    request can say that it is the last. An empty request cannot be sent. Leaving the block before
    the reply was read to its end cancels the request; what still comes of the reply is dropped.
    """

    __slots__ = ("timed_out",)

    def __init__(self, session: "StreamuxSession", state: Record) -> None:
        super().__init__(session, state)
        self.timed_out = False

    def __str__(self) -> str:
        return f"request {self.state.label()}"

    def on_timeout(self) -> None:
        """Nobody waits for the reply any longer."""
        self.timed_out = True
        self.abort_with_reason("no reply came in time")

    async def close(self) -> None:
        """Read no more: a reply that has not been read to its end is not wanted."""
        if not self.state.over or self.buffers.unread_bytes:
            self.abort_with_reason("this side wants no reply any more")

    async def __aenter__(self) -> "Exchange":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()


class Call(ExchangeStream):
    """A request of the peer, to be answered. It may be answered before it is whole: the answer
    leaves once it is.

    When the peer cancels, the next await raises StreamAborted. Leaving the block ends the answer
    (an empty one if nothing was sent); leaving it with an error drops the call.
    """

    __slots__ = ("_reply_timer", "task")

    session: "StreamuxSession"

    def __init__(self, session: "StreamuxSession", state: Record) -> None:
        super().__init__(session, state)
        self.task: asyncio.Task[None] | None = None  # who works on it
        self._reply_timer: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return f"call {self.state.label()}"

    async def reply(self, data: BytesLike | AsyncIterable[BytesLike] = b"") -> None:
        """Answer, at once or piece by piece, and close; without data it is an empty answer.

        What was not read of the request is lost; `send` and `end` answer in steps and leave it.
        If cancelled while waiting, `data` was not queued.
        """
        await self.send_message(data)
        await self.close()

    async def close(self) -> None:
        """End the answer; what was not read of the request is lost, what still comes of it too."""
        if self._reading_closed:
            return
        await self.end()
        self._close_request()

    def _close_request(self) -> None:
        self._reading_closed = True
        self.wake_reader()
        self.session.on_stream_released(self)

    def drop(self, reason: str = "this side dropped the call") -> None:
        """Give the work up and say nothing: the peer learns of it by its own timeout.

        Streamux has no word for failure, and an empty reply means success. An answer that was
        ended stands.
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
            self.drop("the work on it failed")

    # --- what the session tells

    def on_peer_end(self) -> None:
        """The request is whole: what was answered early can leave, and the peer's clock runs."""
        super().on_peer_end()
        session = self.session
        self.endpoint.resume(self.state)
        patience = session.protocol.timeout_seconds(1 - self.endpoint.side)
        if session.drops_expired_calls and patience:
            self._reply_timer = session.loop.call_later(patience, self._on_peer_timeout, patience)

    def _on_peer_timeout(self, timeout: float) -> None:
        """The peer waits no longer, by its own word. An answer that has begun stands."""
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
        if task is not None and self.send_error is not None and task is not asyncio.current_task():
            self.task = None
            task.cancel()

    def _peer_abort_error(self, text: bytes) -> StreamAborted:
        return StreamAborted(f"{self} was cancelled by the peer")
