"""`Stream`: a duplex byte stream (mplex, Nerdbank), and the base of all other kinds of streams.

Waiting is always a loop: check, wait for a wakeup, check again. A wakeup carries no data, so a
waiter that is cancelled loses nothing. `readline` and `readexactly` take parts as they arrive, so
that credit returns while they wait, and put them back if they cannot finish.
"""

import re
from asyncio import IncompleteReadError  # the exception only
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context

from polymux.core.errors import LimitExceeded, StreamAborted
from polymux.core.send_scheduler import check_weight
from polymux.core.streams import OPEN
from polymux.live.arguments import check_read_limit
from polymux.live.errors import AbortedHere
from polymux.live.streams.base import StreamBase, copied_bytes

BytesLike = bytes | bytearray | memoryview

NEWLINE = re.compile(b"\n")  # unlike `bytes.find`, searches a memoryview without a copy
MAX_SEPARATE_PARTS = 64  # more received parts are joined before they are searched
SMALL_PART_BYTES = 512  # parts of an unfinished message that are smaller on average are joined

__all__ = ["BytesLike", "Stream", "copied_bytes", "receive_some"]


class Stream(StreamBase):
    """One stream of a session.

    Created by `Session.open`, `Session.accept` and their like. Reading data returns credit to the
    peer. A reset by the peer never looks like the end of the data: it raises StreamAborted. A
    stream that is neither read nor closed keeps its received data until the session ends. In
    `async with`, leaving the block closes the stream, and an exception aborts it.

    Only one task may read and any number of tasks may send at a time. All methods must be called
    from the event loop of the session.
    """

    __slots__ = ("__weakref__",)

    @property
    def name(self) -> str:
        """The name of the stream; bytes that are not UTF-8 are replaced."""
        return (self.state.name or b"").decode("utf-8", "replace")

    @property
    def stream_id(self) -> int:
        """The id of the stream on the wire."""
        return self.state.stream_id

    @property
    def error(self) -> str | None:
        """The reason sent by the side that aborted the stream; None if it sent none."""
        error = self.state.error
        return None if error is None else error.decode("utf-8", "replace")

    @property
    def weight(self) -> int:
        """The stream's share of what this side sends: 1, the default, to 256.

        While several streams of a session have data to send and credit, they share the connection
        in proportion to their weights. It may be set at any time, on streams that the peer opened
        too. The peer is not told; its own weights decide what it sends.

        Raises:
            ValueError: The weight is out of range.
            TypeError: It is not an int.
        """
        return self.buffers.weight

    @weight.setter
    def weight(self, weight: int) -> None:
        self.endpoint.set_weight(self.state, check_weight(weight))

    @property
    def usable(self) -> bool:
        """Whether neither side has aborted the stream."""
        return not isinstance(self.read_error, StreamAborted) and not isinstance(
            self.send_error, StreamAborted
        )

    def __str__(self) -> str:
        return f"stream {self.state.label()}"

    def __repr__(self) -> str:
        return f"<polymux {self} {self.name!r}>"

    # Sending

    async def send(self, data: BytesLike) -> None:
        """Queue `data`; wait while there is no credit or a send buffer is full.

        When it returns, the data is queued after that of earlier calls; it is not yet delivered. If
        cancelled while waiting, nothing was queued.

        Args:
            data: Bytes of any length; a mutable buffer is copied before the first wait.

        Raises:
            StreamEnded: This side has ended or closed the stream, or the peer reads no more.
            StreamAborted: One of the sides has aborted the stream.
            SessionClosed: The session has ended.
            TypeError: `data` is not a bytes-like object.
        """
        if self._try_send(data):
            return
        if type(data) is not bytes:
            data = copied_bytes(data)
        await self._wait_to_send(len(data))
        self.send_nowait(data)

    async def drain(self) -> None:
        """Wait until `send` would not have to wait, or would raise."""
        if self.send_would_block():
            await self._wait_to_send(0)

    async def _wait_to_send(self, size: int) -> None:
        session = self.session
        woken = False
        while self.send_would_block():
            if self.socket_writer.quota_used() and len(session.streams) == 1:
                # Nothing is full: the writer only yields to the event loop.
                session.schedule_flush()
                await session.runtime.checkpoint()
                continue
            waiter = self._wait_for_room(size, woken)
            if waiter is None:
                continue
            woken = True
            try:
                await waiter
            except BaseException:
                session.schedule_flush()  # lets another waiting sender have the space
                raise
            finally:
                self._remove_waiting_sender(waiter)

    def call_when_writable(self, callback: Callable[[], None], size: int = 0) -> None:
        """Call `callback` once in the event loop, when `send` may no longer have to wait.

        It is also called when the stream or the session ends.

        Args:
            callback: What to call.
            size: How many bytes will be sent then. Of the streams that wait for room in the
                session's send buffer, only as many are called at a time as have room.
        """
        session = self.session
        if not self.send_would_block():
            session.runtime.call_soon(callback)
            return
        waiter = self._add_waiting_sender(size)

        def woken(_: object) -> None:
            self._remove_waiting_sender(waiter)
            session.runtime.call_soon(callback)

        waiter.add_done_callback(woken, context=copy_context())
        session.send_waiters.add(self, False)
        session.schedule_flush()

    async def wait_for_change(self) -> None:
        """Wait until the stream is accepted, gets credit or is over; the caller looks at it.

        Internal interface. If cancelled, nothing has changed.
        """
        waiter = self._add_waiting_sender(0)
        try:
            await waiter
        finally:
            self._remove_waiting_sender(waiter)

    async def end(self) -> None:
        """End this side's half after the data that is queued. The peer may still send."""
        self._queue_end()

    def end_nowait(self) -> None:
        """Like `end`, for callers that cannot wait. Not for items of Minmux."""
        self._queue_end()

    def abort(self, text: str = "") -> None:
        """Abort both directions: discard queued and unread data, and notify the peer.

        Args:
            text: Reason sent to the peer where the protocol has a field for it (Nerdbank v2, v3).
        """
        reason = "this side aborted the stream" + (f": {text}" if text else "")
        self.set_error(AbortedHere(f"{self}: {reason}"))
        self.abort_with_reason(reason, text)

    async def close(self) -> None:
        """End this side's half and stop reading.

        Queued data is still sent; unread data is discarded. The peer is notified that this side no
        longer reads where the protocol can express it. An offer that was not accepted yet is
        withdrawn.
        """
        if self.session.is_held_back(self):
            self.set_error(AbortedHere(f"{self}: closed before it was accepted"))
            self.abort_with_reason("closed before it was accepted")
            return
        self._queue_end()
        self.stop_reading()

    # Receiving

    async def receive(self) -> bytes:
        """Return everything received so far; wait if there is nothing.

        If cancelled, nothing was taken.

        Returns:
            The data in one piece; empty at the end of the data.

        Raises:
            StreamAborted: The peer reset the stream, or this side aborted it.
            StreamEnded: This side has closed the stream.
            SessionClosed: The session ended before the end of the data.
            RuntimeError: Another task is already reading the stream.
        """
        while True:
            data = self._take_next()
            if data is not None:
                return data
            await self.wait_readable()

    async def receive_parts(self) -> list[bytes | memoryview]:
        """Like `receive`, without joining or copying: a list of parts, empty at the end."""
        while True:
            if self.buffers.received:
                size = self.buffers.unread_bytes
                parts = self.endpoint.take_received(self.buffers)
                self.credit_read(size)
                return parts
            if self.check_eof():
                return []
            await self.wait_readable()

    def receive_nowait(self, size: int = -1) -> bytes:
        """Return what was received so far without waiting; empty if there is nothing.

        Args:
            size: Maximum number of bytes; -1 for all. Messages and items are returned whole, one
                at a time.
        """
        if not self.buffers.received:
            return b""
        if size < 0 or size >= self.buffers.unread_bytes:
            return self._take_received()
        taken: list[bytes | memoryview] = []
        while size:
            taken.append(self._take_prefix(min(size, len(self._first_part()))))
            size -= len(taken[-1])
        return b"".join(taken)

    async def receive_all(self, limit: int = 16 * 1024 * 1024) -> bytes:
        """Return everything up to the end of the data.

        If cancelled, the data taken so far is lost; the stream can still be read.

        Args:
            limit: Maximum number of bytes. The stream is aborted when more arrive.

        Raises:
            LimitExceeded: More than `limit` bytes arrived.
            StreamAborted, StreamEnded, SessionClosed: As for `receive`.
        """
        check_read_limit(limit)
        parts: list[bytes | memoryview] = []
        size = 0
        joined = 0
        waiting = False  # for more, after some was taken
        try:
            while True:
                if not self.buffers.received:
                    if self.check_eof():
                        break
                    if size:
                        joined = join_newest(parts, joined)
                        self.session.assembly.hold(self, size)
                        waiting = True
                elif not self._must_leave_unread():
                    parts.append(self._take_received())
                    size += len(parts[-1])
                    if size > limit:
                        raise self._too_much(limit)
                    continue
                else:
                    waiting = True
                await self.wait_readable()
        finally:
            if waiting:
                self.session.assembly.release(self)
        return b"".join(parts)

    def _too_much(self, limit: int) -> LimitExceeded:
        """Abort the stream, on which more than `limit` bytes came; return the error to raise."""
        self.abort_with_reason(f"more than {limit} bytes came")
        return LimitExceeded(f"{self}: more than {limit} bytes came; raise receive_all(limit=...)")

    def _must_leave_unread(self) -> bool:
        """Whether what was received of an unfinished message must stay unread for now."""
        return (
            self.peer_half.state == OPEN
            and self.read_error is None
            and self.session.assembly.must_wait(self)
        )

    async def readline(self, limit: int = 64 * 1024) -> bytes:
        """Return the next line with its newline.

        At the end of the data, returns what is left without a newline, then empty bytes. If it
        raises or is cancelled, nothing was taken: the next call reads the same bytes.

        Args:
            limit: Maximum length of the line in bytes.

        Raises:
            LimitExceeded: The line is longer than `limit`.
            StreamAborted, StreamEnded, SessionClosed: As for `receive`.
        """
        taken: list[bytes | memoryview] = []
        room = limit
        joined = 0
        waiting = False  # for more, after some was taken
        try:
            while True:
                while self.buffers.received:
                    part = self._first_part()
                    newline = NEWLINE.search(part)
                    size = newline.end() if newline is not None else len(part)
                    if size > room:
                        raise LimitExceeded(
                            f"{self}: a line of more than {limit} bytes; raise readline(limit=...)"
                        )
                    taken.append(self._take_prefix(size))
                    room -= size
                    if newline is not None:
                        return b"".join(taken)
                if self.check_eof():
                    return b"".join(taken)
                if taken:
                    joined = join_newest(taken, joined)
                    self.session.assembly.hold(self, limit - room)
                    waiting = True
                await self.wait_readable()
        except BaseException:
            self._put_back(taken)
            raise
        finally:
            if waiting:
                self.session.assembly.release(self)

    async def readexactly(self, size: int, limit: int = 16 * 1024 * 1024) -> bytes:
        """Return exactly `size` bytes.

        If cancelled, nothing was taken.

        Args:
            size: Number of bytes.
            limit: Bound for `size`, for sizes that a peer has sent.

        Raises:
            asyncio.IncompleteReadError: The data ended before; `partial` has what there was.
            LimitExceeded: `size` is more than `limit`.
            ValueError: `size` is negative.
            StreamAborted, StreamEnded, SessionClosed: As for `receive`.
        """
        if size < 0:
            raise ValueError(f"readexactly takes 0 or more bytes, not {size}")
        if size > limit:
            raise LimitExceeded(
                f"{self}: {size} bytes asked for, {limit} allowed; raise readexactly(limit=...)"
            )
        taken: list[bytes | memoryview] = []
        missing = size
        joined = 0
        waiting = False
        try:
            while missing:
                while (
                    self.buffers.received
                    and missing
                    and (missing <= self.buffers.unread_bytes or not self._must_leave_unread())
                ):
                    part = self._take_prefix(min(missing, len(self._first_part())))
                    taken.append(part)
                    missing -= len(part)
                if missing and not self.buffers.received and self.check_eof():
                    break
                if missing:
                    if taken:
                        joined = join_newest(taken, joined)
                        self.session.assembly.hold(self, size - missing)
                    waiting = True
                    await self.wait_readable()
        except BaseException:
            self._put_back(taken)
            raise
        finally:
            if waiting:
                self.session.assembly.release(self)
        if missing:
            raise IncompleteReadError(b"".join(taken), size)
        return b"".join(taken)

    def _first_part(self) -> bytes | memoryview:
        """The first received part; if there are many, all of them joined."""
        buffers = self.buffers
        if len(buffers.received) > MAX_SEPARATE_PARTS:
            whole = b"".join(buffers.received)
            self.endpoint.receive_queue.replace_received(buffers, [whole])
        return buffers.received[0]

    def _take_prefix(self, size: int) -> bytes | memoryview:
        """Take the first `size` bytes of the first part; the rest of it stays."""
        buffers = self.buffers
        part = buffers.received[0]
        if size < len(part):
            view = memoryview(part)
            part, buffers.received[0] = view[:size], view[size:]
            parts = 0
        else:
            del buffers.received[0]
            parts = 1
        self.endpoint.receive_queue.count_taken(buffers, size, parts)
        self.credit_read(size)
        return part

    def _put_back(self, parts: list[bytes | memoryview]) -> None:
        """Return parts to the front of the receive buffer.

        Their credit was returned when they were taken, so it is subtracted here: reading them again
        returns none.
        """
        buffers = self.buffers
        if parts and not buffers.discarding:
            size = sum(map(len, parts))
            buffers.received[0:0] = parts
            buffers.unreturned_credit -= size
            if self.state in self.session.streams:  # else its buffers are no longer counted
                self.endpoint.receive_queue.count_returned(buffers, size, len(parts))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            data = self._take_next()
            if data:
                return data
            if data is not None:
                raise StopAsyncIteration
            await self.wait_readable()

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort()


def join_newest(parts: list[bytes] | list[bytes | memoryview], start: int) -> int:
    """Join the parts from `start` on if they are many, and small: each costs memory of its own.

    Returns:
        From where on to look the next time.
    """
    count = len(parts) - start
    if count < MAX_SEPARATE_PARTS:
        return start
    newest = parts[start:]
    if sum(map(len, newest)) < SMALL_PART_BYTES * count:
        parts[start:] = [b"".join(newest)]
    return len(parts)


async def receive_some(stream: Stream, size: int) -> bytes:
    """Return at most `size` bytes; wait if there are none. Empty at the end of the data.

    If cancelled, nothing was taken. Raises like `Stream.receive`.
    """
    while not stream.has_unread:
        if stream.check_eof():
            return b""
        await stream.wait_readable()
    return stream.receive_nowait(size)
