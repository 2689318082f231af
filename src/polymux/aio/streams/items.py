"""One-way streams of items (Minmux), as the application holds them; and their writing end."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from polymux.aio.arguments import check_amount
from polymux.aio.errors import again
from polymux.aio.streams.duplex import LANE_ROOM, ROOM, Octets, Stream, octets
from polymux.aio.streams.fast_paths import bring
from polymux.core.errors import LocalProtocolError, StreamAborted, StreamEnded, Unsupported
from polymux.core.frames import Frame
from polymux.core.streams import OPEN
from polymux.core.streams import Stream as Record
from polymux.protocols.minmux.item_codecs import ENDLESS
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    OOPS,
    WORD,
    forgo_credit,
    promise_write,
    stop_write,
)
from polymux.protocols.minmux.profile import UNIT, Shape
from polymux.protocols.minmux.protocol import Minmux

if TYPE_CHECKING:
    from polymux.aio.protocols.minmux import MinmuxSession


class ItemStream(Stream):
    """What both ends share. `promised` is what the peer last promised; nothing is kept for it."""

    __slots__ = ("_awaited", "_protocol", "_shape", "promised")
    session: "MinmuxSession"

    def __init__(self, session: "MinmuxSession", record: Record) -> None:
        super().__init__(session, record)
        self._protocol = cast(Minmux, session.endpoint.protocol)
        self._shape = cast(Shape, self._protocol.profile.shape(record.key))
        self.promised = 0
        self._awaited = False  # this side has spoken first, and the peer has said nothing yet

    @property
    def number(self) -> int:
        """The stream's id, 0 to 2^64-1."""
        return self.record.number % WORD

    @property
    def announced(self) -> int | None:
        """What the peer will still do at most: items of a writer, credit of a reader. None: it has
        announced no limit."""
        limit = self._theirs.limit
        return limit if limit >= 0 else None

    async def wait_over(self) -> None:
        """Wait until both sides have stopped. Where the profile allows reuse the id is free then.

        SessionClosed if the session ends before that. Cancelled: nothing has changed.
        """
        while not self.record.over:
            self.session._check_open()
            waiter = self._join_writers(0)
            try:
                await waiter
            finally:
                self._leave_writers(waiter)

    def give_up(self, reason: str, text: str = "") -> None:
        """Drop what is queued and unread, and stop at 0, with `reason` for whoever waits here."""
        self._stop(StreamAborted(f"{self}: {reason}"))
        self._endpoint.outbox.drop(self.lane)
        self._endpoint.inbox.drop(self.lane)
        self._hush()
        self._wake_all()
        self.session._relieved(self)

    def _hush(self) -> None:
        """Announce a limit of 0, unless that was said, cannot be, or reaches nobody."""
        raise NotImplementedError

    def _is_current(self) -> bool:
        """Would a packet on this id now be about this stream, and reach somebody?"""
        return self.session._over is None and not self.record.over

    def _say(self, frame: Frame) -> None:
        """Send a packet now. Refused, and nothing changed, if it breaks a rule."""
        self.session._check_open()
        if not self._is_current():
            raise StreamEnded(f"{self} is over: both sides have stopped")
        if self.record.serial < 0 and frame.kind in (FORGO_CREDIT, OOPS):
            raise LocalProtocolError(f"{self}: no credit was given yet")
        first = self.record.serial < 0
        self._endpoint.put(frame)
        self.session._flush_soon()
        if first:
            self._awaited = True
            self.session._openings.begin()

    async def _may_begin(self) -> None:
        """Wait while the peer has yet to answer on too many streams on which we spoke first."""
        session = self.session
        if self.record.serial < 0 and not session._openings.free():
            try:
                await session._line.turn()
            finally:  # should this stream not begin after all, its room is a receiver's
                session.loop.call_soon(session._grant_late)

    def _answered(self) -> None:
        """The peer has said something on this stream, or the stream is over."""
        if self._awaited:
            self._awaited = False
            self.session._openings.over()
            self.session._grant_late()

    def _is_free(self) -> bool:
        """Is nothing of this stream wanted any more?"""
        return self.record.over and not self.lane.unread


class ItemSender(ItemStream):
    """A stream that flows to the peer. In `async with`, leaving the block stops it.

    What is sent is whole items in their encoding, any number of them at once.
    """

    __slots__ = ("_brought", "_finale", "_since")

    def __init__(self, session: "MinmuxSession", record: Record) -> None:
        super().__init__(session, record)
        self._finale = False  # the last item is queued, or has left
        self._brought = 0  # items queued since the queue was last empty
        self._since = 0  # items that had left by then
        self._no_read = Unsupported(f"{self} flows to the peer: it is read there")

    @property
    def credit(self) -> int:
        """Items that could be sent now without waiting for credit."""
        return max(0, self._own.granted - self._own.spent - self._waiting())

    async def send(self, data: Octets) -> None:
        """Queue items, waiting while there is no credit or too much waits to leave.

        If cancelled while waiting, nothing was queued. Once it returns, order among calls on this
        stream is kept; delivery is not promised. StreamEnded if the peer will not give the credit,
        or this side has announced its end. A buffer is copied before the first wait.
        """
        if bring(self, data, self._shape.item):
            return
        if type(data) is not bytes:
            data = octets(data)
        if self._must_wait():
            self._check(data)
            await self._wait_to_send(len(data))
        self.send_nowait(data)

    def send_nowait(self, data: Octets) -> None:
        """Queue items without waiting. The caller sees to it that not too much piles up."""
        if type(data) is not bytes:
            data = octets(data)
        items = self._check(data)
        if items:
            lane = self.lane
            if not lane.queued:
                self._brought = 0
                self._since = self._own.units
            self._brought += items
            lane.outgoing.append(data)
            self._endpoint.outbox.load(self.record, lane, len(data))
            self._leaving.give()

    def send_many(self, pieces: Iterable[Octets]) -> None:
        """Queue many pieces without waiting, each whole items; all or none."""
        self.send_nowait(b"".join(pieces))

    async def stop(self, after: int = 0) -> None:
        """Announce that what is queued and at most `after` more items are all.

        The stream ends with them, or with the last item where it has one. A limit can be lowered,
        never raised (LocalProtocolError). A stream without end has none.
        """
        if after < 0:
            raise LocalProtocolError(f"{self}: a limit is 0 or more items, not {after}")
        await self._may_begin()
        if self._own.state == OPEN and not self._finale:
            self._limit(after)

    async def last(self, data: Octets) -> None:
        """Send the last item, in its encoding, after what is queued. It needs no credit."""
        data = octets(data)
        await self._may_begin()
        self._check_last(data)
        self._limit(0)
        self._finale = True
        super().send_nowait(data)

    def promise(self, amount: int) -> None:
        """Promise that at least `amount` more items will be written, given the credit."""
        check_amount(amount)
        self._say(promise_write(self.number, amount))

    def forgo(self, amount: int) -> None:
        """Give up credit. Queued items that needed it wait for more."""
        check_amount(amount)
        self._say(forgo_credit(self.number, amount))

    async def end(self) -> None:
        """The same as `stop()`, for a stream that can end and has not."""
        if self._no_send is None and self._shape.last != ENDLESS and self._is_current():
            await self.stop()

    async def close(self) -> None:
        """The same as `end`: what is queued still leaves, as far as the peer takes it."""
        await self.end()
        self._wither()
        self.session._relieved(self)

    async def __aenter__(self) -> "ItemSender":
        return self

    # --- inside

    def _waiting(self) -> int:
        """Items that are queued. Not counted anew at each call: that would be slow where each says
        its own length and many wait."""
        if not self.lane.queued:
            return 0
        if self._shape.item > 0:
            return self._protocol.queued_items(self._endpoint.side, self.record)
        return self._brought - (self._own.units - self._since)

    def _limit(self, after: int) -> None:
        """Announce `after` items beyond what is queued."""
        amount = self._protocol.queued_items(self._endpoint.side, self.record) + after
        if amount != self._own.limit:
            self._say(stop_write(self.number, amount))

    def _check(self, data: bytes) -> int:
        """How many items these are; refused if they could never leave."""
        if self._no_send is not None:
            raise again(self._no_send)
        own = self._own
        if self._shape.item == 0:
            raise Unsupported(f"{self}: its items have no octets: put them with session.endpoint")
        waiting = self._waiting()
        if own.state != OPEN or self._finale or 0 <= own.limit <= waiting:
            raise StreamEnded(f"{self} has announced its end: no more items can follow")
        items = self._protocol.count_items(self._shape, data)
        if items < 0:
            raise LocalProtocolError(f"{self}: {len(data)} octets are no whole items of it")
        if 0 <= own.limit < waiting + items:
            raise LocalProtocolError(
                f"{self} has announced {own.limit - waiting} more items, not {items}"
            )
        if self._theirs.limit >= 0:
            most = own.granted - own.spent + self._theirs.limit - waiting
            if items > most:
                raise StreamEnded(f"{self}: the peer takes {max(0, most)} more items, not {items}")
        return items

    def _check_last(self, data: bytes) -> None:
        if self._no_send is not None:
            raise again(self._no_send)
        if self._shape.last == UNIT:
            raise LocalProtocolError(f"{self}: its last item is the unit: stop() says it all")
        if self._shape.last == ENDLESS:
            raise LocalProtocolError(f"{self} has no last item: it cannot end")
        if not self._protocol.holds(self._shape, True, 1, data):
            raise LocalProtocolError(f"{self}: {len(data)} octets are not its last item")
        if self._own.state != OPEN or self._finale:
            raise StreamEnded(f"{self}: its last item was sent")

    def _is_full(self) -> bool:
        """Does too much wait to leave? Not if it waits for credit that will never come."""
        lane = self.lane
        return (
            self._no_send is None
            and self._own.state == OPEN
            and (lane.queued >= LANE_ROOM or self._endpoint.outbox.queued >= ROOM)
            and not self._is_starved()
        )

    def _must_wait(self) -> bool:
        own = self._own
        if self._no_send is not None or own.state != OPEN or own.limit == 0:
            return False
        if own.granted - own.spent <= self._waiting():
            return self._theirs.state == OPEN
        return self._is_full()

    def _is_starved(self) -> bool:
        """Is there neither credit for what waits nor hope of any?"""
        own = self._own
        return self._theirs.state != OPEN and own.granted <= own.spent and own.limit != 0

    def _wither(self) -> None:
        """Drop queued items that can never leave: the reader has stopped and all credit is used.

        Once this side has announced its end too, nothing else would ever end the stream.
        """
        if self.lane.queued and not self._finale and self._is_starved():
            self._endpoint.outbox.drop(self.lane)
            if self._own.limit > 0:
                self._hush()

    def _hush(self) -> None:
        own = self._own
        endless = self._shape.last == ENDLESS
        if own.state == OPEN and own.limit != 0 and not endless and self._is_current():
            self._endpoint.put(stop_write(self.number))
            self.session._flush_soon()
