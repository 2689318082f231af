"""Streamux exchanges: `Exchange` for requests of this side, `Call` for requests of the peer."""

from collections.abc import AsyncIterable
from io import BytesIO
from typing import TYPE_CHECKING

from polymux.core.errors import LimitExceeded, StreamAborted
from polymux.core.streams import OPEN
from polymux.live.arguments import MAX_I64, check_read_limit
from polymux.live.runtime import Task, Timer
from polymux.live.streams.duplex import BytesLike, Stream, join_newest
from polymux.live.streams.fast_paths import take_whole, try_send_whole

if TYPE_CHECKING:
    from polymux.live.protocols.streamux import StreamuxSession

# Parts of a message are joined to blocks of this size or more as they arrive,
BLOCK_BYTES = 256 * 1024
# and blocks at the end of the message, unless it is larger than this.
MAX_JOINED_BYTES = 4 * 1024 * 1024


class MessageBuffer:
    """Joins the parts of one message.

    A message that becomes larger than `MAX_JOINED_BYTES` is written into one buffer as it arrives,
    so that it is never in memory twice. Blocks of smaller ones never grow: many buffers that grow
    side by side leave holes that none of them fits into.
    """

    __slots__ = (  # there is one for each exchange
        "_blocks",
        "_buffer",
        "_joined",
        "_part_bytes",
        "_parts",
        "size",
    )

    def __init__(self) -> None:
        self.size = 0
        self._part_bytes = 0
        self._parts: list[bytes] = []  # the newest ones
        self._joined = 0  # how many of them are not to be joined before the block is full
        self._blocks: list[bytes] = []  # what is before these
        self._buffer: BytesIO | None = None  # all of a large message

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self._buffer is not None:
            self._buffer.write(part)
            return
        self._parts.append(part)
        self._part_bytes += len(part)
        self._joined = join_newest(self._parts, self._joined)
        if self._part_bytes >= BLOCK_BYTES:
            self._blocks.append(joined(self._parts))
            self._parts = []
            self._joined = 0
            self._part_bytes = 0
            if self.size > MAX_JOINED_BYTES:
                self._buffer = BytesIO()
                for block in self._blocks:
                    self._buffer.write(block)
                self._blocks = []

    def getvalue(self) -> bytes:
        if self._buffer is not None:
            return self._buffer.getvalue()
        return joined(self._blocks + self._parts)


def joined(parts: list[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


class ExchangeStream(Stream):
    """Common base of `Exchange` and `Call`: one message in each direction."""

    __slots__ = ()

    async def read(self, limit: int = 0) -> bytes:
        """Wait for the complete message of the peer and return it.

        Args:
            limit: Maximum number of bytes; 0 for `Limits.max_message_bytes`.

        Raises:
            LimitExceeded: The message is larger; the exchange was aborted.
            StreamAborted, SessionClosed: The exchange or the session ended before that.
        """
        max_bytes = self.endpoint.limits.max_message_bytes
        if limit != 0:
            check_read_limit(limit)
            max_bytes = min(limit, MAX_I64)  # compiled code takes no more
        while True:
            whole = take_whole(self, max_bytes)
            if whole is not None:
                return whole
            if self.buffers.received:
                return await self._read_parts(max_bytes, limit)
            if self.check_eof():
                return b""
            await self.wait_readable()

    async def _read_parts(self, max_bytes: int, limit: int) -> bytes:
        """Read a message while it arrives; see `read`."""
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
        if try_send_whole(self, data):
            return
        if type(data) is bytes or not isinstance(data, AsyncIterable):
            await self.send(data)
        else:
            async for piece in data:
                await self.send(piece)
        await self.end()

    def _reject_message(self, reason: str) -> None:
        self.abort_with_reason(reason)


class RequestTimedOut(StreamAborted):
    """A request was cancelled because its timeout has passed."""


class Exchange(ExchangeStream):
    """A request of this side and its reply; returned by `StreamuxSession.exchange`.

    The last bytes sent are held back until more follow or `end` is called, because the last chunk
    has to be marked as such. An empty request cannot be sent. Leaving an `async with` block before
    the reply was read to its end cancels the request and discards the rest of the reply.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return f"request {self.state.label()}"

    def on_timeout(self) -> None:
        """The timeout of the request has passed: cancel it."""
        self.set_error(RequestTimedOut(f"{self}: no reply came in time"))
        self.abort_with_reason("no reply came in time")

    def release(self) -> None:
        """Cancel the request unless its reply was read to the end."""
        if not self.state.over or self.buffers.unread_bytes:
            self.abort_with_reason("this side no longer waits for the reply")

    async def close(self) -> None:
        """Cancel the request unless its reply was read to the end."""
        self.release()

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

    __slots__ = ("_task",)  # not set where there is none: an `__init__` would slow down every call

    session: "StreamuxSession"

    @property
    def task(self) -> Task | None:
        """The task that answers the call; it is cancelled with the call. It can be set."""
        return getattr(self, "_task", None)

    @task.setter
    def task(self, task: Task | None) -> None:
        self._task = task

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
        if not try_send_whole(self, data):
            await self.send_message(data)
        if not self._reading_closed:
            self._close_request()

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

    def start_reply_timer(self, seconds: float) -> Timer:
        """Drop the call in so many seconds, unless it is being answered by then."""
        return self.session.runtime.call_later(seconds, self._on_peer_timeout, seconds)

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
        if self.send_error is not None:
            self.session.stop_call(self)

    def _peer_abort_error(self, text: bytes) -> StreamAborted:
        return StreamAborted(f"{self} was cancelled by the peer")
