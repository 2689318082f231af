"""Nerdbank's own verbs: offers and acceptors by name, anonymous and seeded channels, rejection."""

import asyncio

from polymux.aio.arguments import check_opening, octets_of_name
from polymux.aio.errors import again
from polymux.aio.pending import pending
from polymux.aio.protocols.nerdbank_growth import Growth
from polymux.aio.session.session import Session
from polymux.aio.streams.duplex import Stream
from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, SessionClosed, StreamAborted, StreamEnded
from polymux.core.events import Control, Event
from polymux.core.limits import Policy
from polymux.core.side import NOBODY
from polymux.core.streams import Lane
from polymux.core.streams import Stream as Record
from polymux.protocols.nerdbank.codec import READING_COMPLETED
from polymux.protocols.nerdbank.protocol import Nerdbank


class NerdbankSession(Session):
    """A session of Nerdbank channels.

    Offers and acceptors meet first come first served, per name. `incoming` and `accept()` without a
    name take whatever is offered, and accept it.
    """

    drops_unread = False  # what came before a termination can still be read
    waits_for_room = False  # an offer can be turned away, with a word

    def __init__(self, endpoint: Endpoint, policy: Policy, opens_per_second: float = 0.0) -> None:
        super().__init__(endpoint, policy, opens_per_second)
        self._growth = Growth(endpoint)

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """Offer a channel and wait until the peer accepts it.

        Rejected: StreamAborted. Cancelled while waiting: the offer is withdrawn.
        """
        stream = await self.offer(name, window=window)
        try:
            await self.accepted(stream)
        except asyncio.CancelledError:
            stream.give_up("the offer was withdrawn")  # also if the acceptance has just come
            raise
        return stream

    @pending
    async def offer(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """Offer a channel without waiting for its acceptance; an empty name makes it anonymous.

        `window`: octets the peer may send before we have read them; 0 for the usual. What is sent
        before the acceptance waits for it. If cancelled, nothing was offered.
        """
        return await super().open(name, window=window)

    async def accepted(self, stream: Stream) -> None:
        """Wait until the peer accepts an offer of ours. Cancelled: the offer stands."""
        while not stream.record.accepted and stream._no_send is None:
            if stream._acceptance is None or stream._acceptance.done():
                stream._acceptance = self.loop.create_future()
            await asyncio.shield(stream._acceptance)
        if not stream.record.accepted and stream._no_send is not None:
            if stream.record.ending == "rejected":
                said = f": {stream.error}" if stream.error else ""
                raise StreamAborted(f"{stream} was rejected by the peer{said}")
            raise again(stream._no_send)

    async def accept(self, name: str | bytes | None = None, *, window: int = 0) -> Stream:
        """Accept the next channel offered under this name, or under any name.

        Cancelled while waiting: no offer was taken.
        """
        check_opening(self.endpoint.protocol, window)
        text = None if name is None else octets_of_name(name)
        return self._accept(await self._arrivals.take(text), window)

    async def accept_id(self, number: int, *, window: int = 0) -> Stream:
        """Accept a channel by its id: an anonymous one the peer offered, or a seeded one."""
        check_opening(self.endpoint.protocol, window)
        self._check_open()
        record = self.endpoint.protocol.streams.find(number * 4 + 1 - self.endpoint.side)
        if record is None:
            return self.seeded(number)
        stream = self._live.get(record)
        if stream is None or not self._arrivals.discard(stream):
            raise LocalProtocolError(f"channel {number} is not waiting to be accepted")
        return self._accept(stream, window)

    def reject(self, stream: Stream, text: str = "") -> None:
        """Turn an offer away; see `offers`."""
        if not self._arrivals.discard(stream):
            raise LocalProtocolError(f"{stream} is not waiting to be accepted")
        stream.give_up("rejected by this side", text)

    def seeded(self, number: int) -> Stream:
        """A channel both sides were configured with; it needs no offer (v3)."""
        protocol = self.endpoint.protocol
        assert isinstance(protocol, Nerdbank)
        if protocol.seeded is None or not 0 <= number < len(protocol.seeded):
            raise LocalProtocolError(f"channel {number} is neither offered nor seeded")
        record = protocol.sow(number)
        if record.serial < 0:
            self.endpoint.conversation.born(self.endpoint.side, record, self.endpoint.now)
        stream = self._live.get(record)
        if stream is not None:
            return stream
        if record.over or self._over is not None:
            raise LocalProtocolError(f"seeded channel {number} is over")
        if record.lane is None:
            record.lane = Lane()
        return self._adopt(record)

    def offers(self) -> list[Stream]:
        """Channels the peer has offered and nobody has taken yet, oldest first."""
        return self._arrivals.all()

    # --- inside

    def _accept(self, stream: Stream, window: int) -> Stream:
        self.endpoint.accept(stream.record, window)
        self._flush_soon()
        return stream

    def _take_in(self, stream: Stream) -> None:
        self._accept(stream, 0)

    def _arrived(self, record: Record) -> None:
        if record.opener == NOBODY:
            self._adopt(record)  # seeded: its owner asks for it
        else:
            super()._arrived(record)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Control) and event.kind == READING_COMPLETED and event.stream:
            stream = self._live.get(event.stream)
            if stream is not None:
                stream._refuse(StreamEnded(f"{stream}: the peer reads no more"))
        super()._handle(event)

    def _tell_limit(self, text: str) -> bool:
        """A word with each channel that is open (v2, v3): the session itself has none."""
        if self._leaving.blocked or not self.endpoint.protocol.credit:
            return False
        self.endpoint.take_events()  # nobody looks at what came last
        for record in list(self._live):
            self.endpoint.abort(record, text.encode())
        before = self.written
        self._flush()
        return self.written > before

    def _end(self, problem: SessionClosed, answers: bool = False) -> None:
        for stream in self._arrivals.all():
            self._arrivals.discard(stream)  # nobody is there any more to be accepted
        super()._end(problem, answers)

    def _is_offer(self, stream: Stream) -> bool:
        return not stream.record.accepted

    def _stalled(self) -> None:
        if self._growth.ask():
            self._flush_soon()
