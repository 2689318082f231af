"""A duplex stream (mplex, Nerdbank) as the application holds it."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ..core.errors import LimitExceeded, PolymuxError, StreamAborted, StreamEnded
from ..core.streams import ABORTED, OPEN
from ..core.streams import Stream as Record
from .failures import again, plain
from .hot.outlet import LANE_ROOM, ROOM, Outlet, octets

if TYPE_CHECKING:
    from .session import Session

Octets = bytes | bytearray | memoryview

__all__ = ["LANE_ROOM", "ROOM", "Octets", "Stream", "octets"]


class Stream(Outlet):
    """One stream of a session.

    Reading takes everything that has come; leave goes back to the peer once it was read. A reset by
    the peer is never an end of data: it raises StreamAborted. A stream that is neither read nor
    closed holds its content until the session ends.
    """

    __slots__ = (
        "__weakref__", "_acceptance", "_closed", "_no_read", "_reader", "_writers", "session",
    )  # fmt: skip

    def __init__(self, session: "Session", record: Record) -> None:
        super().__init__(session.endpoint, record, session._leaving)
        self.session = session
        self._no_read: PolymuxError | None = None  # why nothing can be read, after what is there
        self._closed = False  # this side reads no more
        self._reader: asyncio.Future[None] | None = None
        self._writers: dict[asyncio.Future[None], int] = {}  # and the octets they bring
        self._acceptance: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        """The stream's name; octets that are not UTF-8 are replaced."""
        return (self.record.name or b"").decode("utf-8", "replace")

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def error(self) -> str | None:
        """What was said by the side that gave the stream up, unchanged; None if nothing was."""
        error = self.record.error
        return None if error is None else error.decode("utf-8", "replace")

    @property
    def usable(self) -> bool:
        """Has nobody given the stream up?"""
        return not isinstance(self._no_read, StreamAborted) and not isinstance(
            self._no_send, StreamAborted
        )

    def __str__(self) -> str:
        return f"stream {self.record.label()}"

    def __repr__(self) -> str:
        return f"<polymux {self} {self.name!r}>"

    # --- sending

    async def send(self, data: Octets) -> None:
        """Queue `data`, waiting while the peer has given no leave or too much waits to leave.

        If cancelled while waiting, nothing was queued. Once it returns, order among calls on this
        stream is kept; delivery is not promised. A buffer is copied before the first wait.
        """
        if self._sends_at_once(data):
            return
        if type(data) is not bytes:
            data = octets(data)
        if self._must_wait():
            await self._wait_to_send(len(data))
        self.send_nowait(data)

    async def drain(self) -> None:
        """Wait until `send` would not have to wait."""
        if self._must_wait():
            await self._wait_to_send(0)

    def _must_wait(self) -> bool:
        """Would sending have to wait?"""
        return self._no_send is None and self._is_full()

    async def _wait_to_send(self, size: int) -> None:
        session = self.session
        woken = False
        while self._must_wait():
            if self._leaving.push():
                continue
            if self._leaving.spent() and len(session._live) == 1:  # only the loop wants its turn
                session._flush_soon()
                await asyncio.sleep(0)
                continue
            waiter = session.loop.create_future()
            self._writers[waiter] = size
            session._room.join(self, woken)
            session._flush_soon()
            woken = True
            try:
                await waiter
            except asyncio.CancelledError:
                session._flush_soon()  # the room that was meant for this one is another's
                raise
            finally:
                del self._writers[waiter]

    async def end(self) -> None:
        """End this side's half: what is queued leaves first. The peer may still send."""
        if self._no_send is None:
            self._endpoint.end(self.record)
            if len(self.session._live) == 1:  # nothing to leave together with
                self._leaving.flush()
            else:
                self._leaving.give_part()

    def abort(self, text: str = "") -> None:
        """Give the stream up both ways: drop what is queued and unread, and tell the peer.

        `text` reaches the peer where the protocol has room for it (Nerdbank v2, v3).
        """
        self.give_up("this side gave the stream up" + (f": {text}" if text else ""), text)

    def give_up(self, reason: str, text: str = "") -> None:
        """Abort, with `reason` for whoever still waits here and `text` for the peer."""
        self._stop(StreamAborted(f"{self}: {reason}"))
        self._endpoint.abort(self.record, text.encode())
        self._wake_all()
        self.session._relieved(self)

    async def close(self) -> None:
        """End this side and read no more: what is queued still leaves, what was not read is lost.

        The peer is told that nobody reads where the protocol can say so. An offer that nobody has
        accepted yet is withdrawn.
        """
        if self.session._is_offer(self):
            self.give_up("closed before it was accepted")
            return
        await self.end()
        if not self._closed:
            self._closed = True
            self._endpoint.stop_reading(self.record)
            self._wake()
        self.session._relieved(self)

    # --- receiving

    async def receive(self) -> bytes:
        """Everything that has come, joined; waits if nothing has. Empty at the end of the data.

        If cancelled, nothing was taken. One task at a time may receive.
        """
        while True:
            if self.lane.inbox:
                return self._take()
            if self._is_over():
                return b""
            await self._wait_to_receive()

    async def receive_parts(self) -> list[bytes | memoryview]:
        """The same, as the parts that came, not joined and not copied; empty at the end."""
        while True:
            if self.lane.inbox:
                size = self.lane.unread
                parts = self._endpoint.take(self.lane)
                self._have_read(size)
                return parts
            if self._is_over():
                return []
            await self._wait_to_receive()

    def receive_nowait(self) -> bytes:
        """What has come, or nothing."""
        return self._take() if self.lane.inbox else b""

    async def receive_all(self, limit: int = 16 * 1024 * 1024) -> bytes:
        """Everything to the end of the data. Past `limit` octets the stream is given up.

        If cancelled, what it has taken so far is lost; the stream can still be read.
        """
        parts: list[bytes] = []
        size = 0
        while part := await self.receive():
            parts.append(part)
            size += len(part)
            if size > limit:
                text = f"{self}: more than {limit} octets came; raise receive_all(limit=...)"
                self.give_up(f"more than {limit} octets came")
                raise LimitExceeded(text)
        return b"".join(parts)

    def _is_over(self) -> bool:
        """Is this the end of the data? Raises if it is an end of another kind."""
        if self._no_read is not None:
            raise again(self._no_read)
        if self._closed:
            raise StreamEnded(f"{self} was closed by this side")
        if self._theirs.state == OPEN:
            return False
        if self.record.error is not None and self.record.reset_by != self._endpoint.side:
            raise self._peer_aborted(self.record.error)
        return True

    async def _wait_to_receive(self) -> None:
        if self._reader is not None:
            raise RuntimeError(f"{self} is already being read by another task")
        self._reader = self.session.loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _take(self) -> bytes:
        parts = self._endpoint.take(self.lane)
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        self._have_read(len(data))
        return data

    def _have_read(self, size: int) -> None:
        self._endpoint.read(self.record, size)
        session = self.session
        if session._pacing.paused_at:
            session._pacing.look()
        if self._endpoint.outbox.control:
            self._leaving.give()
        if self.record.over:
            session._forget(self)

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

    def _wake_writers(self) -> int:
        """Let those who wait to send look again; returns the octets they bring."""
        size = 0
        for waiter, amount in self._writers.items():
            if not waiter.done():
                waiter.set_result(None)
                size += amount
        return size

    def _wake_all(self) -> None:
        if self._acceptance is not None and not self._acceptance.done():
            self._acceptance.set_result(None)
        self._wake()
        if self._writers:
            self._wake_writers()

    def _stop(self, problem: PolymuxError) -> None:
        """Neither way any more; the first reason stands."""
        if self._no_read is None:
            self._no_read = problem
        if self._no_send is None:
            self._no_send = problem

    def _refuse(self, problem: PolymuxError) -> None:
        """This side can send no more; it may still read."""
        if self._no_send is None:
            self._no_send = problem
        self._wake_writers()

    def _aborted(self, text: bytes) -> None:
        """The peer gave the stream up."""
        self._stop(self._peer_aborted(text))
        self._endpoint.outbox.drop(self.lane)
        if self.session.drops_unread:
            self._endpoint.inbox.drop(self.lane)
        self._wake_all()
        self.session._relieved(self)

    def _set_aside(self) -> None:
        """Nobody will read what has come, nor what is yet to come."""
        self._endpoint.inbox.drop(self.lane)
        self.session._relieved(self)

    def _over(self) -> None:
        """Both halves are over. If ours was cut short, that was the peer's doing."""
        self._endpoint.outbox.drop(self.lane)
        if self._own.state == ABORTED:
            self._refuse(self._peer_aborted(self.record.error or b""))
        self._wake_all()

    def _lost(self, problem: PolymuxError, answers: bool = False) -> None:
        """No more octets come. With `answers`, a stream that the peer has ended can still send."""
        if self._theirs.state == OPEN and self._no_read is None:
            self._no_read = problem
        if self._no_send is None and not (answers and self._theirs.state != OPEN):
            self._no_send = problem
        self._wake_all()

    def _peer_aborted(self, text: bytes) -> StreamAborted:
        said = f": {plain(text)}" if text else ""
        return StreamAborted(f"{self} was aborted by the peer{said}")
