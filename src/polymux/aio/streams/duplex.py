"""A duplex stream (mplex, Nerdbank) as the application holds it."""

import asyncio
import re
from collections.abc import AsyncIterator

from polymux.aio.arguments import check_limit
from polymux.aio.streams.base import Ends
from polymux.aio.streams.outlet import LANE_ROOM, ROOM, octets
from polymux.core.errors import LimitExceeded, StreamAborted

Octets = bytes | bytearray | memoryview

NEWLINE = re.compile(b"\n")  # unlike `bytes.find`, also looks into a memoryview without a copy
PARTS = 64  # of a lane; more are joined before they are looked at one by one

__all__ = ["LANE_ROOM", "ROOM", "Octets", "Stream", "octets"]


class Stream(Ends):
    """One stream of a session.

    Reading takes everything that has come; leave goes back to the peer once it was read. A reset by
    the peer is never an end of data: it raises StreamAborted. A stream that is neither read nor
    closed holds its content until the session ends.
    """

    __slots__ = ("__weakref__",)

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
            waiter = self._join_writers(size)
            session._room.join(self, woken)
            session._flush_soon()
            woken = True
            try:
                await waiter
            except asyncio.CancelledError:
                session._flush_soon()  # the room that was meant for this one is another's
                raise
            finally:
                self._leave_writers(waiter)

    async def end(self) -> None:
        """End this side's half: what is queued leaves first. The peer may still send."""
        self._end()

    def abort(self, text: str = "") -> None:
        """Give the stream up both ways: drop what is queued and unread, and tell the peer.

        `text` reaches the peer where the protocol has room for it (Nerdbank v2, v3).
        """
        self.give_up("this side gave the stream up" + (f": {text}" if text else ""), text)

    async def close(self) -> None:
        """End this side and read no more: what is queued still leaves, what was not read is lost.

        The peer is told that nobody reads where the protocol can say so. An offer that nobody has
        accepted yet is withdrawn.
        """
        if self.session._is_offer(self):
            self.give_up("closed before it was accepted")
            return
        self._end()
        self._stop_reading()

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
        check_limit(limit)
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

    async def readline(self, limit: int = 64 * 1024) -> bytes:
        """The next line with its newline; at the end of the data what is left, and then nothing.

        LimitExceeded for a line of more than `limit` bytes. After that, or if cancelled, nothing
        was taken: the next call reads the same bytes. One task at a time may receive.
        """
        taken: list[bytes | memoryview] = []
        room = limit
        try:
            while True:
                while self.lane.inbox:
                    part = self._first()
                    found = NEWLINE.search(part)
                    size = found.end() if found is not None else len(part)
                    if size > room:
                        raise LimitExceeded(
                            f"{self}: a line of more than {limit} bytes; raise readline(limit=...)"
                        )
                    taken.append(self._take_of_first(size))
                    room -= size
                    if found is not None:
                        return b"".join(taken)
                if self._is_over():
                    return b"".join(taken)
                await self._wait_to_receive()
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
                while self.lane.inbox and missing:
                    part = self._take_of_first(min(missing, len(self._first())))
                    taken.append(part)
                    missing -= len(part)
                if missing and self._is_over():
                    break
                if missing:
                    await self._wait_to_receive()
        except BaseException:
            self._put_back(taken)
            raise
        if missing:
            raise asyncio.IncompleteReadError(b"".join(taken), size)
        return b"".join(taken)

    def _first(self) -> bytes | memoryview:
        """The first part that waits; where there are many, all of them as one."""
        lane = self.lane
        if len(lane.inbox) > PARTS:
            lane.inbox = [b"".join(lane.inbox)]
        return lane.inbox[0]

    def _take_of_first(self, size: int) -> bytes | memoryview:
        """The first bytes of the first part; the rest of it waits on."""
        lane = self.lane
        part = lane.inbox[0]
        if size < len(part):
            view = memoryview(part)
            part, lane.inbox[0] = view[:size], view[size:]
        else:
            del lane.inbox[0]
        lane.unread -= size
        self._endpoint.inbox.unread -= size
        self._have_read(size)
        return part

    def _put_back(self, parts: list[bytes | memoryview]) -> None:
        """These bytes were taken and not read after all. Credit for them has been given, or is
        held to be given: when they are read again none is."""
        lane = self.lane
        if parts and not lane.dropped:
            size = sum(map(len, parts))
            lane.inbox[0:0] = parts
            lane.held -= size
            if self.record in self.session._live:  # else its lane is not counted any more
                lane.unread += size
                self._endpoint.inbox.unread += size

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self.lane.inbox:
            if self._is_over():
                raise StopAsyncIteration
            await self._wait_to_receive()
        return self._take()

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort()
