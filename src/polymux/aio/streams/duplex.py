"""A duplex stream (mplex, Nerdbank) as the application holds it."""

import asyncio
import re
from collections.abc import AsyncIterator

from polymux.aio.arguments import check_read_limit
from polymux.aio.streams.base import StreamBase
from polymux.aio.streams.outlet import (
    SESSION_SEND_BUFFER_BYTES,
    STREAM_SEND_BUFFER_BYTES,
    copied_bytes,
)
from polymux.core.errors import LimitExceeded, StreamAborted

BytesLike = bytes | bytearray | memoryview

NEWLINE = re.compile(b"\n")  # unlike `bytes.find`, also looks into a memoryview without a copy
MAX_SEPARATE_PARTS = 64  # of a lane; more are joined before they are looked at one by one

__all__ = [
    "SESSION_SEND_BUFFER_BYTES",
    "STREAM_SEND_BUFFER_BYTES",
    "BytesLike",
    "Stream",
    "copied_bytes",
]


class Stream(StreamBase):
    """One stream of a session.

    Reading takes everything that has come; leave goes back to the peer once it was read. A reset by
    the peer is never an end of data: it raises StreamAborted. A stream that is neither read nor
    closed holds its content until the session ends.
    """

    __slots__ = ("__weakref__",)

    @property
    def name(self) -> str:
        """The stream's name; bytes that are not UTF-8 are replaced."""
        return (self.state.name or b"").decode("utf-8", "replace")

    @property
    def stream_id(self) -> int:
        """The id of the stream on the wire."""
        return self.state.stream_id

    @property
    def error(self) -> str | None:
        """What was said by the side that gave the stream up, unchanged; None if nothing was."""
        error = self.state.error
        return None if error is None else error.decode("utf-8", "replace")

    @property
    def usable(self) -> bool:
        """Has nobody given the stream up?"""
        return not isinstance(self.read_error, StreamAborted) and not isinstance(
            self.send_error, StreamAborted
        )

    def __str__(self) -> str:
        return f"stream {self.state.label()}"

    def __repr__(self) -> str:
        return f"<polymux {self} {self.name!r}>"

    # --- sending

    async def send(self, data: BytesLike) -> None:
        """Queue `data`, waiting while the peer has given no leave or too much waits to leave.

        If cancelled while waiting, nothing was queued. Once it returns, order among calls on this
        stream is kept; delivery is not promised. A buffer is copied before the first wait.
        """
        if self._try_send(data):
            return
        if type(data) is not bytes:
            data = copied_bytes(data)
        if self.send_would_block():
            await self._wait_to_send(len(data))
        self.send_nowait(data)

    async def drain(self) -> None:
        """Wait until `send` would not have to wait."""
        if self.send_would_block():
            await self._wait_to_send(0)

    def send_would_block(self) -> bool:
        """Would sending have to wait?"""
        return self.send_error is None and self._is_send_full()

    async def _wait_to_send(self, size: int) -> None:
        session = self.session
        woken = False
        while self.send_would_block():
            if self.socket_writer.flush_for_sender():
                continue
            if (
                self.socket_writer.quota_used() and len(session.streams) == 1
            ):  # only the loop wants its turn
                session.schedule_flush()
                await asyncio.sleep(0)
                continue
            waiter = self._add_waiting_sender(size)
            session.send_waiters.add(self, woken)
            session.schedule_flush()
            woken = True
            try:
                await waiter
            except asyncio.CancelledError:
                session.schedule_flush()  # the room that was meant for this one is another's
                raise
            finally:
                self._remove_waiting_sender(waiter)

    async def end(self) -> None:
        """End this side's half: what is queued leaves first. The peer may still send."""
        self._queue_end()

    def abort(self, text: str = "") -> None:
        """Give the stream up both ways: drop what is queued and unread, and tell the peer.

        `text` reaches the peer where the protocol has room for it (Nerdbank v2, v3).
        """
        self.abort_with_reason("this side gave the stream up" + (f": {text}" if text else ""), text)

    async def close(self) -> None:
        """End this side and read no more: what is queued still leaves, what was not read is lost.

        The peer is told that nobody reads where the protocol can say so. An offer that nobody has
        accepted yet is withdrawn.
        """
        if self.session.is_held_back(self):
            self.abort_with_reason("closed before it was accepted")
            return
        self._queue_end()
        self._stop_reading()

    # --- receiving

    async def receive(self) -> bytes:
        """Everything that has come, joined; waits if nothing has. Empty at the end of the data.

        If cancelled, nothing was taken. One task at a time may receive.
        """
        while True:
            if self.buffers.received:
                return self._take_received()
            if self.check_eof():
                return b""
            await self.wait_readable()

    async def receive_parts(self) -> list[bytes | memoryview]:
        """The same, as the parts that came, not joined and not copied; empty at the end."""
        while True:
            if self.buffers.received:
                size = self.buffers.unread_bytes
                parts = self.endpoint.take_received(self.buffers)
                self.credit_read(size)
                return parts
            if self.check_eof():
                return []
            await self.wait_readable()

    def receive_nowait(self) -> bytes:
        """What has come, or nothing."""
        return self._take_received() if self.buffers.received else b""

    async def receive_all(self, limit: int = 16 * 1024 * 1024) -> bytes:
        """Everything to the end of the data. Past `limit` bytes the stream is given up.

        If cancelled, what it has taken so far is lost; the stream can still be read.
        """
        check_read_limit(limit)
        parts: list[bytes] = []
        size = 0
        while part := await self.receive():
            parts.append(part)
            size += len(part)
            if size > limit:
                text = f"{self}: more than {limit} bytes came; raise receive_all(limit=...)"
                self.abort_with_reason(f"more than {limit} bytes came")
                raise LimitExceeded(text)
        return b"".join(parts)

    async def readline(self, limit: int = 64 * 1024) -> bytes:
        """The next line with its newline; at the end of the data what is left, and then nothing.

        LimitExceeded for a line of more than `limit` bytes. After that, or if cancelled, nothing
        was taken: the next call reads the same bytes. One task at a time may receive.
        """
        taken: list[bytes | memoryview] = []
        room = limit
        try:
            while True:
                while self.buffers.received:
                    part = self._first_part()
                    found = NEWLINE.search(part)
                    size = found.end() if found is not None else len(part)
                    if size > room:
                        raise LimitExceeded(
                            f"{self}: a line of more than {limit} bytes; raise readline(limit=...)"
                        )
                    taken.append(self._take_prefix(size))
                    room -= size
                    if found is not None:
                        return b"".join(taken)
                if self.check_eof():
                    return b"".join(taken)
                await self.wait_readable()
        except BaseException:
            self._put_back(taken)
            raise

    async def readexactly(self, size: int, limit: int = 16 * 1024 * 1024) -> bytes:
        """The next `size` bytes. asyncio.IncompleteReadError, with those there are, if the data
        ends before.

        LimitExceeded if `size`, which may be a peer's word, is more than `limit`; ValueError if it
        is negative. If cancelled, nothing was taken. One task at a time may receive.
        """
        if size < 0:
            raise ValueError(f"readexactly takes 0 or more bytes, not {size}")
        if size > limit:
            raise LimitExceeded(
                f"{self}: {size} bytes asked for, {limit} allowed; raise readexactly(limit=...)"
            )
        taken: list[bytes | memoryview] = []
        missing = size
        try:
            while missing:
                while self.buffers.received and missing:
                    part = self._take_prefix(min(missing, len(self._first_part())))
                    taken.append(part)
                    missing -= len(part)
                if missing and self.check_eof():
                    break
                if missing:
                    await self.wait_readable()
        except BaseException:
            self._put_back(taken)
            raise
        if missing:
            raise asyncio.IncompleteReadError(b"".join(taken), size)
        return b"".join(taken)

    def _first_part(self) -> bytes | memoryview:
        """The first part that waits; where there are many, all of them as one."""
        lane = self.buffers
        if len(lane.received) > MAX_SEPARATE_PARTS:
            lane.received = [b"".join(lane.received)]
        return lane.received[0]

    def _take_prefix(self, size: int) -> bytes | memoryview:
        """The first bytes of the first part; the rest of it waits on."""
        lane = self.buffers
        part = lane.received[0]
        if size < len(part):
            view = memoryview(part)
            part, lane.received[0] = view[:size], view[size:]
        else:
            del lane.received[0]
        lane.unread_bytes -= size
        self.endpoint.receive_queue.unread_bytes -= size
        self.credit_read(size)
        return part

    def _put_back(self, parts: list[bytes | memoryview]) -> None:
        """These bytes were taken and not read after all. Credit for them has been given, or is
        held to be given: when they are read again none is."""
        lane = self.buffers
        if parts and not lane.discarding:
            size = sum(map(len, parts))
            lane.received[0:0] = parts
            lane.unreturned_credit -= size
            if self.state in self.session.streams:  # else its lane is not counted any more
                lane.unread_bytes += size
                self.endpoint.receive_queue.unread_bytes += size

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self.buffers.received:
            if self.check_eof():
                raise StopAsyncIteration
            await self.wait_readable()
        return self._take_received()

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort()
