"""A duplex stream (mplex, Nerdbank) as the application holds it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from ..core.errors import PolymuxError, SessionClosed, StreamAborted, StreamEnded
from ..core.streams import OPEN
from ..core.streams import Stream as Record

if TYPE_CHECKING:
    from .session import Session

LANE_ROOM = 128 * 1024  # octets one stream may have waiting before its senders wait


class Stream:
    """One stream of a session.

    Reading takes everything that has come; leave goes back to the peer once it was read. A reset by
    the peer is never an end of data: it raises StreamAborted.
    """

    __slots__ = ("__weakref__", "_accept_waiter", "_endpoint", "_problem", "_reader", "_writers",
                 "lane", "record", "session")  # fmt: skip

    def __init__(self, session: "Session", record: Record) -> None:
        assert record.lane is not None
        self.session = session
        self.record = record
        self.lane = record.lane
        self.lane.owner = self
        self._endpoint = session.endpoint
        self._problem: PolymuxError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self._accept_waiter: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        """The stream's name; octets that are not UTF-8 are replaced."""
        return (self.record.name or b"").decode("utf-8", "replace")

    @property
    def number(self) -> int:
        return self.record.number

    def __str__(self) -> str:
        return f"stream {self.record.label()}"

    def __repr__(self) -> str:
        return f"<polymux {self} {self.name!r}>"

    # --- sending

    async def send(self, data: bytes) -> None:
        """Queue `data`, waiting while the peer has given no leave or too much waits to leave.

        If cancelled while waiting, nothing was queued. Once it returns, order among calls on this
        stream is kept; delivery is not promised.
        """
        if self._must_wait():
            await self._wait_to_send()
        self.send_nowait(data)

    def send_nowait(self, data: bytes) -> None:
        """Queue `data` without waiting. The caller sees to it that not too much piles up."""
        if self._problem is not None:
            self._raise()
        endpoint = self._endpoint
        endpoint.send(self.record, data)
        session = self.session
        if not session._flushing:
            session._flush_soon()

    def send_many(self, pieces: Iterable[bytes]) -> None:
        """Queue many pieces, each a frame of its own where it fits, without waiting."""
        for data in pieces:
            self.send_nowait(data)

    async def drain(self) -> None:
        """Wait until `send` would not have to wait."""
        if self._must_wait():
            await self._wait_to_send()

    def _must_wait(self) -> bool:
        """Too much waits to leave, or nothing is known of leave for more."""
        lane = self.lane
        if lane.queued >= LANE_ROOM or self._endpoint.outbox.queued >= 2 * LANE_ROOM:
            return self._problem is None
        half = self.record.half(self._endpoint.side)
        return (
            half.granted >= 0
            and half.granted - half.spent <= lane.queued
            and half.state == OPEN
            and self._problem is None
        )

    async def _wait_to_send(self) -> None:
        while self._must_wait():
            waiter = self.session.loop.create_future()
            self._writers.append(waiter)
            self.session._room_waiters.append(waiter)
            self.session._flush_soon()
            try:
                await waiter
            finally:
                if waiter in self._writers:
                    self._writers.remove(waiter)

    async def end(self) -> None:
        """End this side's half: what is queued leaves first. The peer may still send."""
        self._endpoint.end(self.record)
        self.session._flush_soon()

    def abort(self, text: str = "") -> None:
        """Give the stream up both ways: drop what is queued and unread, and tell the peer."""
        self.give_up(text or "this side gave the stream up", text)

    def give_up(self, reason: str, text: str = "") -> None:
        """Abort, with `reason` for whoever still waits here and `text` for the peer."""
        if self._problem is None:
            self._problem = StreamAborted(f"{self}: {reason}")
        self._endpoint.take(self.lane)
        self._endpoint.abort(self.record, text.encode())
        self._wake()
        self._wake_writers()
        self.session._pacing.look()
        self.session._flush_soon()

    async def close(self) -> None:
        """End this side and read no more; the peer is told so where the protocol can say it."""
        if self._problem is None and not self.record.over:
            await self.end()
            self.lane.dropped = True
            self._endpoint.read(self.record, sum(len(p) for p in self._endpoint.take(self.lane)))
            other = self.record.half(1 - self._endpoint.side)
            if other.state == OPEN:
                frame = self._endpoint.protocol.refusing(self._endpoint.side, self.record)
                if frame is not None:
                    self._endpoint.queue(frame)
            self.session._flush_soon()

    # --- receiving

    async def receive(self) -> bytes:
        """Everything that has come, joined; waits if nothing has. Empty at the end of the data."""
        while True:
            lane = self.lane
            if lane.inbox:
                return self._take()
            if self._problem is not None:
                self._raise()
            if self.record.half(1 - self._endpoint.side).state != OPEN:
                return b""
            if self._reader is not None:
                raise RuntimeError(f"{self} is already being read by another task")
            self._reader = self.session.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def receive_nowait(self) -> bytes:
        """What has come, or nothing."""
        return self._take() if self.lane.inbox else b""

    async def receive_all(self, limit: int = 16 * 1024 * 1024) -> bytes:
        """Everything to the end of the data; StreamAborted past `limit` octets."""
        parts: list[bytes] = []
        size = 0
        while part := await self.receive():
            parts.append(part)
            size += len(part)
            if size > limit:
                self.give_up(f"more than {limit} octets came; raise receive_all(limit=...)")
        return b"".join(parts)

    def _take(self) -> bytes:
        parts = self._endpoint.take(self.lane)
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        self._endpoint.read(self.record, len(data))
        session = self.session
        if session._pacing.paused_at:
            session._pacing.look()
        if self._endpoint.outbox.control:
            session._flush_soon()
        return data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        data = await self.receive()
        if not data:
            raise StopAsyncIteration
        return data

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort()

    # --- what the session tells

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writers(self) -> None:
        for waiter in self._writers:
            if not waiter.done():
                waiter.set_result(None)

    def _accepted(self) -> None:
        if self._accept_waiter is not None and not self._accept_waiter.done():
            self._accept_waiter.set_result(None)

    def _aborted(self, text: bytes) -> None:
        if self._problem is None:
            said = f": {text.decode('utf-8', 'replace')}" if text else ""
            self._problem = StreamAborted(f"{self} was aborted by the peer{said}")
        self._endpoint.outbox.drop(self.lane)
        self._wake_all()

    def _lost(self, problem: PolymuxError) -> None:
        if self._problem is None and not self.record.over:
            self._problem = SessionClosed(str(problem))
        self._wake_all()

    def _wake_all(self) -> None:
        self._accepted()
        self._wake()
        self._wake_writers()

    def _raise(self) -> None:
        problem = self._problem
        if problem is not None:
            raise type(problem)(str(problem))
        raise StreamEnded(f"{self} has ended")
