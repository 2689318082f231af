"""Streamux exchanges as the application holds them: our requests, and the peer's calls."""

import asyncio
from collections.abc import AsyncIterable
from io import BytesIO
from typing import TYPE_CHECKING

from polymux.aio.arguments import check_limit
from polymux.aio.streams.duplex import Octets, Stream
from polymux.core.errors import LimitExceeded, PolymuxError, StreamAborted
from polymux.core.streams import OPEN
from polymux.core.streams import Stream as Record

if TYPE_CHECKING:
    from polymux.aio.protocols.streamux import StreamuxSession


SMALL = 16 * 1024  # octets of a message that may leave at once
JOINED = 256 * 1024  # octets of a message up to which its parts are kept and joined at its end


class Whole:
    """Parts that become one message. It is never held twice, as parts and joined: a large one is
    written into one place as it comes."""

    __slots__ = ("_parts", "_place", "size")  # there is one for each call that is under way

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []
        self._place: BytesIO | None = None

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self._place is not None:
            self._place.write(part)
            return
        self._parts.append(part)
        if self.size > JOINED and len(self._parts) > 1:
            self._place = BytesIO()
            for each in self._parts:
                self._place.write(each)
            self._parts.clear()

    def octets(self) -> bytes:
        if self._place is not None:
            return self._place.getvalue()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class Message(Stream):
    """What a request and a call share: whole messages, in and out.

    The header of its last chunk already ends the peer's half; here a message ends with its last
    octet.
    """

    __slots__ = ("_whole",)

    def __init__(self, session: "StreamuxSession", record: Record) -> None:
        super().__init__(session, record)
        self._whole = False

    async def read(self, limit: int = 0) -> bytes:
        """The whole message, once its last chunk has come; waits for it.

        Past `limit` octets (Limits.message if not given) the exchange is given up.
        """
        check_limit(limit)
        limits = self._endpoint.limits
        most = limit or limits.message
        whole = Whole()
        while True:
            if not self.lane.inbox:
                if self._is_over():
                    break
                await self._wait_to_receive()
                continue
            whole.add(self._take())
            if whole.size > most:
                what = f"a message of more than {most} octets"
                self._endpoint.counters.count("message")
                self._refuse_message(what)
                how = "raise read(limit=...)" if limit else limits.describe("message")
                raise LimitExceeded(f"{self}: {what}; {how}")
        return whole.octets()

    async def _send_whole(self, data: Octets | AsyncIterable[Octets]) -> None:
        """Send a message, at once or piece by piece as it comes, and end it."""
        if self._sends_alone(data):
            return
        if type(data) is bytes or not isinstance(data, AsyncIterable):
            await self.send(data)
        else:
            async for piece in data:
                await self.send(piece)
        await self.end()

    def _sends_alone(self, data: object) -> bool:
        """Send a small message now where no other is under way, instead of at the loop's next turn.

        False: nothing was sent. With others under way it is better to leave together.
        """
        session = self.session
        leaving = self._leaving
        if (
            type(data) is not bytes
            or len(data) > SMALL
            or leaving.given
            or len(session._live) > 1
            or leaving.blocked
        ):
            return False
        leaving.given = True  # nothing needs to be scheduled
        try:
            if not self._sends_at_once(data):
                return False
            self._endpoint.end(self.record)
        finally:
            session._flush()
        return True

    def _refuse_message(self, why: str) -> None:
        self.give_up(why)

    # --- what the session tells

    def _ended(self) -> None:
        """The peer's message is whole."""
        self._whole = True

    def _is_over(self) -> bool:
        return super()._is_over() and self._whole

    def _lost(self, problem: PolymuxError, answers: bool = False) -> None:
        if not self._whole and self._no_read is None:
            self._no_read = problem
        super()._lost(problem, answers)


class Exchange(Message):
    """A request of ours and its reply.

    What is sent last is held back until more follows or `end` is called: only the last chunk of a
    request can say that it is the last. An empty request cannot be sent. Leaving the block before
    the reply was read to its end cancels the request; what still comes of the reply is dropped.
    """

    __slots__ = ("_expired",)

    def __init__(self, session: "StreamuxSession", record: Record) -> None:
        super().__init__(session, record)
        self._expired = False

    def __str__(self) -> str:
        return f"request {self.record.label()}"

    def _expire(self) -> None:
        """Nobody waits for the reply any longer."""
        self._expired = True
        self.give_up("no reply came in time")

    async def close(self) -> None:
        """Read no more: a reply that has not been read to its end is not wanted."""
        if not self.record.over or self.lane.unread:
            self.give_up("this side wants no reply any more")

    async def __aenter__(self) -> "Exchange":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()


class Call(Message):
    """A request of the peer, to be answered. It may be answered before it is whole: the answer
    leaves once it is.

    When the peer cancels, the next await raises StreamAborted. Leaving the block ends the answer
    (an empty one if nothing was sent); leaving it with an error drops the call.
    """

    __slots__ = ("_clock", "_task")

    session: "StreamuxSession"

    def __init__(self, session: "StreamuxSession", record: Record) -> None:
        super().__init__(session, record)
        self._task: asyncio.Task[None] | None = None  # who works on it
        self._clock: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return f"call {self.record.label()}"

    async def reply(self, data: Octets | AsyncIterable[Octets] = b"") -> None:
        """Answer, at once or piece by piece, and close; without data it is an empty answer.

        What was not read of the request is lost; `send` and `end` answer in steps and leave it.
        If cancelled while waiting, `data` was not queued.
        """
        await self._send_whole(data)
        await self.close()

    async def close(self) -> None:
        """End the answer; what was not read of the request is lost, what still comes of it too."""
        if self._closed:
            return
        await self.end()
        self._read_no_more()

    def _read_no_more(self) -> None:
        self._closed = True
        self._wake()
        self.session._relieved(self)

    def drop(self, reason: str = "this side dropped the call") -> None:
        """Give the work up and say nothing: the peer learns of it by its own timeout.

        Streamux has no word for failure, and an empty reply means success. An answer that was
        ended stands.
        """
        if self.record.over or self._own.state != OPEN or self.lane.ending:
            if not self._closed:
                self._read_no_more()
            return
        self._stop(StreamAborted(f"{self}: {reason}"))
        self._wake_all()
        self.session._leave(self)

    def _refuse_message(self, why: str) -> None:
        self.drop(why)

    async def __aenter__(self) -> "Call":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.drop("the work on it failed")

    # --- what the session tells

    def _ended(self) -> None:
        """The request is whole: what was answered early can leave, and the peer's clock runs."""
        super()._ended()
        session = self.session
        self._endpoint.resume(self.record)
        patience = session.protocol.timeout(1 - self._endpoint.side)
        if session.preempts and patience:
            self._clock = session.loop.call_later(patience, self._preempt, patience)

    def _preempt(self, patience: float) -> None:
        """The peer waits no longer, by its own word. An answer that has begun stands."""
        if not self._own.spent and not self.lane.queued:
            self.drop(f"not answered within the {patience:g} s the peer waits")

    def _wake(self) -> None:
        if self._closed and self.lane.inbox:
            self._take()
        super()._wake()

    def _wake_all(self) -> None:
        super()._wake_all()
        if self._clock is not None and (self.record.over or self._no_send is not None):
            self._clock.cancel()
        task = self._task
        if task is not None and self._no_send is not None and task is not asyncio.current_task():
            self._task = None
            task.cancel()

    def _peer_aborted(self, text: bytes) -> StreamAborted:
        return StreamAborted(f"{self} was cancelled by the peer")
