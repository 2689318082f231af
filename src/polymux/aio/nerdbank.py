"""Nerdbank's own verbs: offers and acceptors by name, anonymous and seeded channels, rejection."""

import asyncio
from collections import deque

from ..core.endpoint import Endpoint
from ..core.errors import LocalProtocolError, PolymuxError, SessionClosed, StreamAborted
from ..core.limits import Policy
from ..core.side import NOBODY
from ..core.streams import Lane
from ..protocols.nerdbank import Nerdbank
from .duplex import Stream
from .session import Session


class NerdbankSession(Session):
    """A session of Nerdbank channels.

    Offers and acceptors meet first come first served, per name. `incoming` and `accept()` without a
    name take whatever is offered.
    """

    def __init__(self, endpoint: Endpoint, policy: Policy, opens_per_second: float = 0.0) -> None:
        super().__init__(endpoint, policy, opens_per_second)
        self._offers: dict[bytes, deque[Stream]] = {}
        self._acceptors: dict[bytes, deque[asyncio.Future[Stream]]] = {}

    async def open(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """Offer a channel and wait until the peer accepts it.

        Rejected: StreamAborted. Cancelled while waiting: the offer is withdrawn.
        """
        stream = await self.offer(name, window=window)
        await self.accepted(stream)
        return stream

    async def offer(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """Offer a channel without waiting for its acceptance; an empty name makes it anonymous."""
        return await super().open(name, window=window)

    async def accepted(self, stream: Stream) -> None:
        """Wait until the peer accepts an offer of ours."""
        try:
            while not stream.record.accepted and stream._problem is None:
                stream._accept_waiter = self.loop.create_future()
                await stream._accept_waiter
        except asyncio.CancelledError:
            stream.give_up("the offer was withdrawn")
            raise
        if stream._problem is not None:
            if stream.record.ending == "rejected":
                raise StreamAborted(f"{stream} was rejected by the peer")
            stream._raise()

    async def accept(self, name: str | bytes | None = None, *, window: int = 0) -> Stream:
        """Accept the next channel offered under this name, or under any name.

        Cancelled while waiting: no offer was taken.
        """
        if name is None:
            while True:
                stream = await super().accept()
                if self._claim(stream):
                    return self._take_offer(stream, window)
        text = name.encode() if isinstance(name, str) else name
        queue = self._offers.setdefault(text, deque())
        while queue:
            stream = queue.popleft()
            if self._claim(stream):
                return self._take_offer(stream, window)
        self._check_open()
        waiter: asyncio.Future[Stream] = self.loop.create_future()
        waiters = self._acceptors.setdefault(text, deque())
        waiters.append(waiter)
        try:
            return self._take_offer(await waiter, window)
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._arrive(waiter.result())  # handed to us too late: back to the queue
            raise
        finally:
            if waiter in waiters:
                waiters.remove(waiter)

    async def accept_id(self, number: int, *, window: int = 0) -> Stream:
        """Accept a channel by its id: an anonymous one the peer offered, or a seeded one."""
        protocol = self.endpoint.protocol
        record = protocol.streams.find(number * 4 + 1 - self.endpoint.side)
        if record is None:
            return self.seeded(number)
        stream = self._live.get(record.serial)
        if stream is None or not self._claim(stream):
            raise LocalProtocolError(f"channel {number} is not waiting to be accepted")
        return self._take_offer(stream, window)

    def reject(self, stream: Stream) -> None:
        """Turn an offer away."""
        if stream.record.accepted:
            raise LocalProtocolError(f"{stream} has been accepted already")
        self._claim(stream)
        stream.give_up("rejected by this side")

    def seeded(self, number: int) -> Stream:
        """A channel both sides were configured with; it needs no offer (v3)."""
        protocol = self.endpoint.protocol
        assert isinstance(protocol, Nerdbank)
        if protocol.seeded is None or not 0 <= number < len(protocol.seeded):
            raise LocalProtocolError(f"channel {number} is neither offered nor seeded")
        record = protocol.sow(number)
        if record.serial < 0:
            self.endpoint.conversation.born(self.endpoint.side, record, self.endpoint.now)
        if record.lane is None:
            record.lane = Lane(record)
        return self._live.get(record.serial) or self._adopt(record)

    def offers(self) -> list[Stream]:
        """Channels the peer has offered and nobody has taken yet."""
        return list(self._arrivals)

    # --- inside

    def _arrive(self, stream: Stream) -> None:
        if stream.record.opener == NOBODY:
            return  # seeded: its owner asks for it
        name = stream.record.name or b""
        waiters = self._acceptors.get(name)
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(stream)
                return
        self._offers.setdefault(name, deque()).append(stream)
        super()._arrive(stream)

    def _claim(self, stream: Stream) -> bool:
        """Take an offer out of every queue; False if it is gone or taken."""
        for queue in (self._arrivals, self._offers.get(stream.record.name or b"", deque())):
            if stream in queue:
                queue.remove(stream)
        return not stream.record.accepted and stream._problem is None

    def _take_offer(self, stream: Stream, window: int) -> Stream:
        if stream._problem is None and not stream.record.accepted:
            self.endpoint.accept(stream.record, window)
            self._flush_soon()
        return stream

    def _lose(self, problem: PolymuxError) -> None:
        for waiters in self._acceptors.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(SessionClosed(str(problem)))
        super()._lose(problem)
