"""One-way streams of items (Minmux), as the application holds them; and their writing end."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from polymux.aio.arguments import check_amount
from polymux.aio.errors import copy_of
from polymux.aio.streams.duplex import (
    SESSION_SEND_BUFFER_BYTES,
    STREAM_SEND_BUFFER_BYTES,
    BytesLike,
    Stream,
    copied_bytes,
)
from polymux.aio.streams.fast_paths import try_send_items
from polymux.core.errors import LocalProtocolError, StreamAborted, StreamEnded, Unsupported
from polymux.core.frames import Frame
from polymux.core.streams import OPEN
from polymux.core.streams import StreamState as Record
from polymux.protocols.minmux.item_codecs import ENDLESS
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    OOPS,
    U64_MODULUS,
    forgo_credit,
    promise_write,
    stop_write,
)
from polymux.protocols.minmux.profile import UNIT_LAST_ITEM, StreamFormat
from polymux.protocols.minmux.protocol import Minmux

if TYPE_CHECKING:
    from polymux.aio.protocols.minmux import MinmuxSession


class ItemStream(Stream):
    """What both ends share. `promised` is what the peer last promised; nothing is kept for it."""

    __slots__ = ("_awaiting_peer", "_protocol", "stream_format", "promised")
    session: "MinmuxSession"

    def __init__(self, session: "MinmuxSession", state: Record) -> None:
        super().__init__(session, state)
        self._protocol = cast(Minmux, session.endpoint.protocol)
        self.stream_format = cast(StreamFormat, self._protocol.profile.format_of(state.key))
        self.promised = 0
        self._awaiting_peer = False  # this side has spoken first, and the peer has said nothing yet

    @property
    def stream_id(self) -> int:
        """The stream's id, 0 to 2^64-1."""
        return self.state.stream_id % U64_MODULUS

    @property
    def announced(self) -> int | None:
        """What the peer will still do at most: items of a writer, credit of a reader. None: it has
        announced no limit."""
        limit = self.peer_half.promised_limit
        return limit if limit >= 0 else None

    async def wait_over(self) -> None:
        """Wait until both sides have stopped. Where the profile allows reuse the id is free then.

        SessionClosed if the session ends before that. Cancelled: nothing has changed.
        """
        while not self.state.over:
            self.session.check_open()
            waiter = self._add_waiting_sender(0)
            try:
                await waiter
            finally:
                self._remove_waiting_sender(waiter)

    def abort_with_reason(self, reason: str, text: str = "") -> None:
        """Drop what is queued and unread, and stop at 0, with `reason` for whoever waits here."""
        self.set_error(StreamAborted(f"{self}: {reason}"))
        self.endpoint.scheduler.discard_outgoing(self.buffers)
        self.endpoint.receive_queue.discard(self.buffers)
        self._announce_stop()
        self.wake_all()
        self.session.on_stream_released(self)

    def _announce_stop(self) -> None:
        """Announce a limit of 0, unless that was said, cannot be, or reaches nobody."""
        raise NotImplementedError

    def is_current(self) -> bool:
        """Would a packet on this id now be about this stream, and reach somebody?"""
        return self.session.close_reason is None and not self.state.over

    def _send_packet(self, frame: Frame) -> None:
        """Send a packet now. Refused, and nothing changed, if it breaks a rule."""
        self.session.check_open()
        if not self.is_current():
            raise StreamEnded(f"{self} is over: both sides have stopped")
        if self.state.serial < 0 and frame.kind in (FORGO_CREDIT, OOPS):
            raise LocalProtocolError(f"{self}: no credit was given yet")
        first = self.state.serial < 0
        self.endpoint.send_frame(frame)
        self.session.schedule_flush()
        if first:
            self._awaiting_peer = True
            self.session.open_allowance.on_stream_opened()

    async def _wait_to_begin(self) -> None:
        """Wait while the peer has yet to answer on too many streams on which we spoke first."""
        session = self.session
        if self.state.serial < 0 and not session.open_allowance.can_open():
            try:
                await session.open_waiters.wait()
            finally:  # should this stream not begin after all, its room is a receiver's
                session.loop.call_soon(session.grant_deferred)

    def on_peer_activity(self) -> None:
        """The peer has said something on this stream, or the stream is over."""
        if self._awaiting_peer:
            self._awaiting_peer = False
            self.session.open_allowance.on_stream_closed()
            self.session.grant_deferred()

    def is_finished(self) -> bool:
        """Is nothing of this stream wanted any more?"""
        return self.state.over and not self.buffers.unread_bytes


class ItemSender(ItemStream):
    """A stream that flows to the peer. In `async with`, leaving the block stops it.

    What is sent is whole items in their encoding, any number of them at once.
    """

    __slots__ = ("_queued_since_empty", "_last_item_queued", "_sent_when_empty")

    def __init__(self, session: "MinmuxSession", state: Record) -> None:
        super().__init__(session, state)
        self._last_item_queued = False  # the last item is queued, or has left
        self._queued_since_empty = 0  # items queued since the queue was last empty
        self._sent_when_empty = 0  # items that had left by then
        self.read_error = Unsupported(f"{self} flows to the peer: it is read there")

    @property
    def credit(self) -> int:
        """Items that could be sent now without waiting for credit."""
        return max(
            0, self.own_half.credit_granted - self.own_half.credit_spent - self._queued_items()
        )

    async def send(self, data: BytesLike) -> None:
        """Queue items, waiting while there is no credit or too much waits to leave.

        If cancelled while waiting, nothing was queued. Once it returns, order among calls on this
        stream is kept; delivery is not promised. StreamEnded if the peer will not give the credit,
        or this side has announced its end. A buffer is copied before the first wait.
        """
        if try_send_items(self, data, self.stream_format.item_size):
            return
        if type(data) is not bytes:
            data = copied_bytes(data)
        if self.send_would_block():
            self._check_items(data)
            await self._wait_to_send(len(data))
        self.send_nowait(data)

    def send_nowait(self, data: BytesLike) -> None:
        """Queue items without waiting. The caller sees to it that not too much piles up."""
        if type(data) is not bytes:
            data = copied_bytes(data)
        items = self._check_items(data)
        if items:
            lane = self.buffers
            if not lane.queued_bytes:
                self._queued_since_empty = 0
                self._sent_when_empty = self.own_half.content_units
            self._queued_since_empty += items
            lane.outgoing.append(data)
            self.endpoint.scheduler.enqueue(self.state, lane, len(data))
            self.socket_writer.schedule_flush()

    def send_many(self, pieces: Iterable[BytesLike]) -> None:
        """Queue many pieces without waiting, each whole items; all or none."""
        self.send_nowait(b"".join(pieces))

    async def stop(self, after: int = 0) -> None:
        """Announce that what is queued and at most `after` more items are all.

        The stream ends with them, or with the last item where it has one. A limit can be lowered,
        never raised (LocalProtocolError). A stream without end has none.
        """
        if after < 0:
            raise LocalProtocolError(f"{self}: a limit is 0 or more items, not {after}")
        await self._wait_to_begin()
        if self.own_half.state == OPEN and not self._last_item_queued:
            self._announce_limit(after)

    async def last(self, data: BytesLike) -> None:
        """Send the last item, in its encoding, after what is queued. It needs no credit."""
        data = copied_bytes(data)
        await self._wait_to_begin()
        self._check_last_item(data)
        self._announce_limit(0)
        self._last_item_queued = True
        super().send_nowait(data)

    def promise(self, amount: int) -> None:
        """Promise that at least `amount` more items will be written, given the credit."""
        check_amount(amount)
        self._send_packet(promise_write(self.stream_id, amount))

    def forgo(self, amount: int) -> None:
        """Give up credit. Queued items that needed it wait for more."""
        check_amount(amount)
        self._send_packet(forgo_credit(self.stream_id, amount))

    async def end(self) -> None:
        """The same as `stop()`, for a stream that can end and has not."""
        if (
            self.send_error is None
            and self.stream_format.last_item_size != ENDLESS
            and self.is_current()
        ):
            await self.stop()

    async def close(self) -> None:
        """The same as `end`: what is queued still leaves, as far as the peer takes it."""
        await self.end()
        self.drop_undeliverable()
        self.session.on_stream_released(self)

    async def __aenter__(self) -> "ItemSender":
        return self

    # --- inside

    def _queued_items(self) -> int:
        """Items that are queued. Not counted anew at each call: that would be slow where each says
        its own length and many wait."""
        if not self.buffers.queued_bytes:
            return 0
        if self.stream_format.item_size > 0:
            return self._protocol.queued_items(self.endpoint.side, self.state)
        return self._queued_since_empty - (self.own_half.content_units - self._sent_when_empty)

    def _announce_limit(self, after: int) -> None:
        """Announce `after` items beyond what is queued."""
        amount = self._protocol.queued_items(self.endpoint.side, self.state) + after
        if amount != self.own_half.promised_limit:
            self._send_packet(stop_write(self.stream_id, amount))

    def _check_items(self, data: bytes) -> int:
        """How many items these are; refused if they could never leave."""
        if self.send_error is not None:
            raise copy_of(self.send_error)
        own = self.own_half
        if self.stream_format.item_size == 0:
            raise Unsupported(f"{self}: its items have no bytes: put them with session.endpoint")
        waiting = self._queued_items()
        if own.state != OPEN or self._last_item_queued or 0 <= own.promised_limit <= waiting:
            raise StreamEnded(f"{self} has announced its end: no more items can follow")
        items = self._protocol.count_items(self.stream_format, data)
        if items < 0:
            raise LocalProtocolError(f"{self}: {len(data)} bytes are no whole items of it")
        if 0 <= own.promised_limit < waiting + items:
            raise LocalProtocolError(
                f"{self} has announced {own.promised_limit - waiting} more items, not {items}"
            )
        if self.peer_half.promised_limit >= 0:
            most = own.credit_granted - own.credit_spent + self.peer_half.promised_limit - waiting
            if items > most:
                raise StreamEnded(f"{self}: the peer takes {max(0, most)} more items, not {items}")
        return items

    def _check_last_item(self, data: bytes) -> None:
        if self.send_error is not None:
            raise copy_of(self.send_error)
        if self.stream_format.last_item_size == UNIT_LAST_ITEM:
            raise LocalProtocolError(f"{self}: its last item is the unit: stop() says it all")
        if self.stream_format.last_item_size == ENDLESS:
            raise LocalProtocolError(f"{self} has no last item: it cannot end")
        if not self._protocol.holds_items(self.stream_format, True, 1, data):
            raise LocalProtocolError(f"{self}: {len(data)} bytes are not its last item")
        if self.own_half.state != OPEN or self._last_item_queued:
            raise StreamEnded(f"{self}: its last item was sent")

    def _is_send_full(self) -> bool:
        """Does too much wait to leave? Not if it waits for credit that will never come."""
        lane = self.buffers
        return (
            self.send_error is None
            and self.own_half.state == OPEN
            and (
                lane.queued_bytes >= STREAM_SEND_BUFFER_BYTES
                or self.endpoint.scheduler.ready_bytes >= SESSION_SEND_BUFFER_BYTES
            )
            and not self.is_starved()
        )

    def send_would_block(self) -> bool:
        own = self.own_half
        if self.send_error is not None or own.state != OPEN or own.promised_limit == 0:
            return False
        if own.credit_granted - own.credit_spent <= self._queued_items():
            return self.peer_half.state == OPEN
        return self._is_send_full()

    def is_starved(self) -> bool:
        """Is there neither credit for what waits nor hope of any?"""
        own = self.own_half
        return (
            self.peer_half.state != OPEN
            and own.credit_granted <= own.credit_spent
            and own.promised_limit != 0
        )

    def drop_undeliverable(self) -> None:
        """Drop queued items that can never leave: the reader has stopped and all credit is used.

        Once this side has announced its end too, nothing else would ever end the stream.
        """
        if self.buffers.queued_bytes and not self._last_item_queued and self.is_starved():
            self.endpoint.scheduler.discard_outgoing(self.buffers)
            if self.own_half.promised_limit > 0:
                self._announce_stop()

    def _announce_stop(self) -> None:
        own = self.own_half
        endless = self.stream_format.last_item_size == ENDLESS
        if own.state == OPEN and own.promised_limit != 0 and not endless and self.is_current():
            self.endpoint.send_frame(stop_write(self.stream_id))
            self.session.schedule_flush()
