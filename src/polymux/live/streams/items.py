"""One-way streams of items (Minmux): `ItemSender` and `ItemReceiver`.

A Minmux stream has an id that both sides know; it is never opened. One side writes items under
credit that the other side gives. Either side may announce a limit: a writer how many more items
come, a reader how much more credit it gives. A limit of 0 stops that side, and the stream is over
when both sides have stopped. A stream may have one last item of another type, which needs no
credit.

Two counts have to be consistent: `ItemReceiver.window` is the credit in circulation (given and not
forgone), and every item returned to the application adds one to `_items_to_credit` until credit for
it is given again.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from polymux.core.errors import (
    LocalProtocolError,
    PolymuxError,
    StreamAborted,
    StreamEnded,
    Unsupported,
)
from polymux.core.frames import Frame
from polymux.core.streams import OPEN, StreamState
from polymux.live.arguments import check_amount
from polymux.live.errors import copy_of
from polymux.live.streams.duplex import (
    BytesLike,
    Stream,
    copied_bytes,
)
from polymux.live.streams.fast_paths import items_would_block, try_send_items
from polymux.live.streams.messages import PieceStream
from polymux.protocols.minmux.item_codecs import ENDLESS, Codec, ItemDecoder, Prefixed
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    OOPS,
    U64_MODULUS,
    forgo_credit,
    give_credit,
    oops,
    promise_read,
    promise_write,
    stop_read,
    stop_write,
)
from polymux.protocols.minmux.profile import UNIT_LAST_ITEM, StreamFormat

if TYPE_CHECKING:
    from polymux.live.protocols.minmux import MinmuxSession
    from polymux.protocols.minmux.protocol import Minmux

FLOWS_TO_PEER = Unsupported("the stream flows to the peer: it is read there")
FLOWS_FROM_PEER = Unsupported("the stream flows from the peer: only it can write there")
# Initial credit, in items, for streams whose items carry their own length: one may be 64 KiB long.
LENGTH_PREFIXED_CREDIT_ITEMS = 16


class ItemStream(Stream):
    """Common base of senders and receivers.

    `promised` is the last amount the peer promised to write or to give; it is only informative.
    """

    __slots__ = ("awaiting_peer", "_protocol", "stream_format", "promised")
    session: "MinmuxSession"

    def __init__(self, session: "MinmuxSession", state: StreamState) -> None:
        super().__init__(session, state)
        self._protocol = session.protocol
        # cast: `MinmuxSession` creates streams only for ids that the profile describes.
        self.stream_format = cast(StreamFormat, self._protocol.profile.format_of(state.key))
        self.promised = 0
        self.awaiting_peer = False  # this side sent the first packet; none of the peer came yet

    @property
    def stream_id(self) -> int:
        """The stream's id, 0 to 2^64-1."""
        return self.state.stream_id % U64_MODULUS

    @property
    def announced(self) -> int | None:
        """The limit the peer has announced: items it still writes, or credit it still gives.

        None if it has announced no limit.
        """
        limit = self.peer_half.promised_limit
        return limit if limit >= 0 else None

    async def wait_over(self) -> None:
        """Wait until both sides have stopped. Where the profile allows reuse, the id is then free.

        Cancellation has no effect on the stream.

        Raises:
            SessionClosed: The session ended before that.
        """
        while not self.state.over:
            self.session.check_open()
            await self.wait_for_change()

    def abort_with_reason(self, reason: str, text: str = "") -> None:
        """Drop queued and unread items and announce a limit of 0.

        `reason` goes into the StreamAborted that callers waiting on this side receive.
        """
        self.set_error(StreamAborted(f"{self}: {reason}"))
        self.endpoint.scheduler.discard_outgoing(self.buffers)
        self.endpoint.receive_queue.discard(self.buffers)
        self._announce_stop()
        self.wake_all()
        self.session.on_stream_released(self)

    def _announce_stop(self) -> None:
        """Send StopWrite or StopRead 0 unless already sent, not allowed, or not deliverable."""
        raise NotImplementedError

    def is_current(self) -> bool:
        """Whether a packet on this id would refer to this stream and could still be sent."""
        return self.session.close_reason is None and not self.state.over

    def _send_packet(self, frame: Frame) -> None:
        """Send a control packet at once.

        Raises:
            LocalProtocolError, StreamEnded: The packet is not allowed; nothing was changed.
            SessionClosed: The session has ended.
        """
        self.session.check_open()
        if not self.is_current():
            raise StreamEnded(f"{self} is over: both sides have stopped")
        if self.state.serial < 0 and frame.kind in (FORGO_CREDIT, OOPS):
            raise LocalProtocolError(f"{self}: no credit was given yet")
        first = self.state.serial < 0
        self.endpoint.send_frame(frame)
        self.session.schedule_flush()
        if first:
            self.awaiting_peer = True
            self.session.open_allowance.on_stream_opened()

    async def _wait_to_begin(self) -> None:
        """Before a first packet, wait while too many streams of this side have no packet from the
        peer yet."""
        session = self.session
        if self.state.serial < 0 and not session.open_allowance.can_open():
            try:
                await session.open_waiters.wait()
            finally:  # if this stream is not begun after all, a deferred receiver takes its place
                session.runtime.call_soon(session.grant_deferred)

    def on_peer_activity(self) -> None:
        """The peer has sent a packet on this stream, or the stream is over."""
        if self.awaiting_peer:
            self.awaiting_peer = False
            self.session.open_allowance.on_stream_closed()
            self.session.grant_deferred()

    def is_finished(self) -> bool:
        """Whether the stream is over and everything received has been read."""
        return self.state.over and not self.buffers.unread_bytes


class ItemSender(ItemStream):
    """A stream of items to the peer. Leaving an `async with` block stops it.

    Each send takes any number of complete items in their encoding.
    """

    __slots__ = ("_queued_since_empty", "_last_item_queued", "_sent_when_empty")

    def __init__(self, session: "MinmuxSession", state: StreamState) -> None:
        super().__init__(session, state)
        self._last_item_queued = False  # the last item is queued or has been sent
        self._queued_since_empty = 0  # items queued since the queue was last empty
        self._sent_when_empty = 0  # items sent by then
        self.read_error = FLOWS_TO_PEER

    @property
    def credit(self) -> int:
        """Items that can be sent now without waiting for credit."""
        return max(
            0, self.own_half.credit_granted - self.own_half.credit_spent - self._queued_items()
        )

    async def send(self, data: BytesLike) -> None:
        """Queue items; wait while there is no credit or a send buffer is full.

        When it returns, the items are queued after those of earlier calls; they are not yet
        delivered. If cancelled while waiting, nothing was queued.

        Args:
            data: Complete items in their encoding; a mutable buffer is copied before the first
                wait.

        Raises:
            StreamEnded: The peer will not give the credit, or this side has announced its end.
            LocalProtocolError: `data` is not a whole number of items, or exceeds the limit this
                side has announced.
            StreamAborted, SessionClosed: The stream or the session has ended.
        """
        if try_send_items(self, data, self.stream_format.item_size):
            return
        if type(data) is not bytes:
            data = copied_bytes(data)
        if self.send_would_block():
            self._check_items(data)
            await self._wait_to_send(len(data))
        if not try_send_items(self, data, self.stream_format.item_size):
            self.send_nowait(data)

    def send_nowait(self, data: BytesLike) -> None:
        """Queue items without waiting; raises like `send`. The caller limits what it queues."""
        if type(data) is not bytes:
            data = copied_bytes(data)
        items = self._check_items(data)
        if items:
            buffers = self.buffers
            if not buffers.queued_bytes:
                self._queued_since_empty = 0
                self._sent_when_empty = self.own_half.content_units
            self._queued_since_empty += items
            buffers.outgoing.append(data)
            self.endpoint.scheduler.enqueue(self.state, buffers, len(data))
            self.socket_writer.schedule_flush()

    def send_many(self, pieces: Iterable[BytesLike]) -> None:
        """Queue several pieces without waiting, all or none; each is a whole number of items."""
        self.send_nowait(b"".join(pieces))

    async def stop(self, after: int = 0) -> None:
        """Announce that at most `after` more items follow those that are queued.

        The stream ends after them, or with the last item where it has one.

        Raises:
            LocalProtocolError: `after` is negative, is more than a limit announced before, or the
                profile says that the stream is endless.
        """
        if after < 0:
            raise LocalProtocolError(f"{self}: a limit is 0 or more items, not {after}")
        await self._wait_to_begin()
        if self.own_half.state == OPEN and not self._last_item_queued:
            self._announce_limit(after)

    async def last(self, data: BytesLike) -> None:
        """Queue the last item, in its encoding. It needs no credit.

        Raises:
            LocalProtocolError: `data` is not the last item of this stream, or it has none.
            StreamEnded: The last item was sent before.
        """
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
        """Return `amount` of unused credit. Queued items that needed it wait for new credit."""
        check_amount(amount)
        self._send_packet(forgo_credit(self.stream_id, amount))

    async def end(self) -> None:
        """Like `stop()`; no effect on a stream that is endless or has ended."""
        if (
            self.send_error is None
            and self.stream_format.last_item_size != ENDLESS
            and self.is_current()
        ):
            await self.stop()

    async def close(self) -> None:
        """Like `end`. Queued items are still sent as far as the peer gives credit."""
        await self.end()
        self.drop_undeliverable()
        self.session.on_stream_released(self)

    async def __aenter__(self) -> "ItemSender":
        return self

    # Private helpers

    def _queued_items(self) -> int:
        """Number of queued items, by subtraction: walking over queued length-prefixed items would
        be slow."""
        if not self.buffers.queued_bytes:
            return 0
        if self.stream_format.item_size > 0:
            return self._protocol.queued_items(self.endpoint.side, self.state)
        return self._queued_since_empty - (self.own_half.content_units - self._sent_when_empty)

    def _announce_limit(self, after: int) -> None:
        """Announce a limit of `after` items beyond those queued."""
        amount = self._protocol.queued_items(self.endpoint.side, self.state) + after
        if amount != self.own_half.promised_limit:
            self._send_packet(stop_write(self.stream_id, amount))
            self.wake_senders()

    def _check_items(self, data: bytes) -> int:
        """Return the number of items in `data`; raise if they can never be sent."""
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
        """Whether a send buffer is full; not if queued items wait for credit that cannot come."""
        return (
            self.send_error is None
            and self.own_half.state == OPEN
            and self.endpoint.scheduler.lacks_room(self.buffers)
            and not self.is_starved()
        )

    def send_would_block(self) -> bool:
        own = self.own_half
        item_size = self.stream_format.item_size
        if item_size > 0 and own.promised_limit < 0 and self.peer_half.promised_limit < 0:
            return items_would_block(self, item_size)
        waiting = self._queued_items()
        if self.send_error is not None or own.state != OPEN or 0 <= own.promised_limit <= waiting:
            return False
        if own.credit_granted - own.credit_spent <= waiting:
            return self.peer_half.state == OPEN
        return self._is_send_full()

    def is_starved(self) -> bool:
        """Whether there is no credit and the peer will give no more."""
        own = self.own_half
        return (
            self.peer_half.state != OPEN
            and own.credit_granted <= own.credit_spent
            and own.promised_limit != 0
        )

    def drop_undeliverable(self) -> None:
        """Drop queued items that can never be sent: the reader has stopped, all credit is used.

        Otherwise a stream whose end this side has announced would never be over.
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


class ItemReceiver(ItemStream, PieceStream):
    """A stream of items from the peer, under credit that this side gives.

    Credit for items read is given again once it amounts to half of `window`. With a codec, or where
    items carry their own length, `receive` returns one decoded item; otherwise it returns the bytes
    received so far. Once everything was read, this side stops the stream too. Leaving an
    `async with` block earlier stops it and discards unread items.
    """

    __slots__ = (
        "all_received",
        "_decoded_items",
        "manual_credit",
        "_bytes_taken",
        "item_decoder",
        "_items_to_credit",
        "_last_item_parts",
        "items_delivered",
        "window",
    )

    def __init__(
        self, session: "MinmuxSession", state: StreamState, codec: Codec | None, all_received: bool
    ) -> None:
        super().__init__(session, state)
        self.send_error = FLOWS_FROM_PEER
        self.item_decoder: ItemDecoder | None = None
        self._decoded_items: deque[bytes] | None = None  # with a codec: decoded, and not yet read
        if codec is not None:
            max_item_bytes = max(self._protocol.max_frame_bytes, self.stream_format.item_size) + 16
            self.item_decoder = ItemDecoder(codec, max_item_bytes)
        # The peer's half ends with the header of its last packet; this is set at its last byte.
        self.all_received = all_received
        self._bytes_taken = 0  # content bytes taken from the receive buffer
        self.items_delivered = 0  # items among them that were returned to the caller
        self._items_to_credit = 0  # items read for which no credit was given again
        self._last_item_parts: list[bytes] = []
        self.manual_credit = False  # give credit only by `grant`
        self.window = 0  # credit in circulation: given and not forgone

    @property
    def last(self) -> bytes | None:
        """The last item, once it has arrived and all items before it were read; else None."""
        if (
            not self.all_received
            or self.buffers.received
            or self._protocol.last_item_offset(self.state) < 0
        ):
            return None
        return b"".join(self._last_item_parts)

    async def receive(self) -> bytes:
        """Return the next item, or the bytes received so far (see the class); wait for them.

        If cancelled, nothing was taken.

        Raises:
            StreamEnded: There are no more regular items; see `last`.
            StreamAborted, SessionClosed: The stream or the session ended before that.
            LocalProtocolError: The codec cannot decode an item.
            RuntimeError: Another task is already reading the stream.
        """
        while True:
            item = self._next_item()
            if item is not None:
                return item
            if self.check_eof():
                raise StreamEnded(f"{self}: the peer has ended it, there are no more items")
            await self.wait_readable()

    def receive_nowait(self, size: int = -1) -> bytes:
        """Return what `receive` would return without waiting; empty if there is nothing."""
        return self._next_item() or b""

    def grant(self, amount: int) -> None:
        """Give `amount` more credit, in addition to the credit given again for items read."""
        check_amount(amount)
        self._send_packet(give_credit(self.stream_id, amount))
        self.window += amount
        peer = self.peer_half
        outstanding = max(0, peer.credit_granted - peer.credit_spent)
        if not self.state.over:  # else nothing of it counts any more
            self.endpoint.receive_queue.set_window(
                self.buffers, outstanding * max_item_bytes(self.stream_format, self._protocol)
            )

    def stop(self, more: int = 0) -> None:
        """Announce that at most `more` credit will be given from now on.

        Credit already given stays valid, and items that arrive can still be read.
        """
        check_amount(more)
        if self.own_half.state == OPEN and self.own_half.promised_limit != more:
            self._send_packet(stop_read(self.stream_id, more))

    def oops(self, keep: int = 0) -> None:
        """Ask the writer to return all credit but `keep`.

        Credit that it returns is subtracted from the window; only `grant` gives it again.
        """
        check_amount(keep)
        self._send_packet(oops(self.stream_id, keep))

    def promise(self, amount: int) -> None:
        """Promise that at least `amount` more credit will be given."""
        check_amount(amount)
        self._send_packet(promise_read(self.stream_id, amount))

    def abort_with_reason(self, reason: str, text: str = "") -> None:
        """Discard unread items and announce a limit of 0; see `ItemStream.abort_with_reason`."""
        self._decoded_items = None
        super().abort_with_reason(reason, text)

    async def end(self) -> None:
        """Like `close`."""
        await self.close()

    async def close(self) -> None:
        """Announce a limit of 0; discard unread items and those that still arrive."""
        if not self._reading_closed:
            self._reading_closed = True
            self._decoded_items = None
            self.endpoint.receive_queue.discard(self.buffers)
            self._announce_stop()
            self.wake_reader()
        self.session.on_stream_released(self)

    async def __aenter__(self) -> "ItemReceiver":
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self.receive()
        except StreamEnded:
            if self._reading_closed:
                raise
            raise StopAsyncIteration from None

    # Private helpers

    def _next_item(self) -> bytes | None:
        """One decoded item, or all bytes received; None if there is nothing to return."""
        if (
            self.stream_format.item_size == 0
            and self.peer_half.content_units > self.items_delivered
        ):
            self.items_delivered += 1
            self.credit_read(1)
            return b""
        while self.buffers.received and not self._decoded_items:
            data = self._take_content()
            if self.item_decoder is None and data:
                regular = self._bytes_taken
                if self._last_item_parts:
                    regular -= sum(map(len, self._last_item_parts))
                items = regular // self.stream_format.item_size - self.items_delivered
                self.items_delivered += items
                self.credit_read(items)
                return data
            if self.item_decoder is not None and data:
                self._decoded_items = deque(self._decode_items(data))
        if self._decoded_items:
            item = self._decoded_items.popleft()
            self.credit_read(1)
            return item
        self.stop_if_all_read()
        return None

    def _take_content(self) -> bytes:
        """Take everything received; bytes of the last item are kept for `last`."""
        if self.awaiting_peer:
            self.on_peer_activity()
        parts = self.endpoint.take_received(self.buffers)
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        before = self._bytes_taken
        self._bytes_taken += len(data)
        last_item_offset = self._protocol.last_item_offset(self.state)
        if 0 <= last_item_offset < self._bytes_taken:
            cut = max(0, last_item_offset - before)
            self._last_item_parts.append(data[cut:])
            data = data[:cut]
        return data

    def _decode_items(self, data: bytes) -> list[bytes]:
        assert self.item_decoder is not None
        try:
            return self.item_decoder.feed(data)
        except ValueError as problem:
            raise LocalProtocolError(f"{self}: the codec cannot read it: {problem}") from None

    def credit_read(self, size: int) -> None:
        self._items_to_credit += size
        self.return_credit()
        self.stop_if_all_read()

    def return_credit(self) -> None:
        """Give credit for items read, if due. While the transport is full it accumulates, so that
        one packet covers all of it."""
        if (
            self.manual_credit
            or not self._items_to_credit
            or self._items_to_credit * 2 < self.window
        ):
            return
        session = self.session
        if session.socket_writer.blocked:
            session.deferred_credit[self] = None
            return
        amount = self._items_to_credit
        self._items_to_credit = 0
        peer = self.peer_half
        if peer.promised_limit >= 0:  # the writer cannot use more than it has announced
            amount = min(amount, peer.promised_limit - (peer.credit_granted - peer.credit_spent))
        frame = self._protocol.credit_frame(self.endpoint.side, self.state, amount)
        if frame is not None and self.is_current():
            self.endpoint.send_frame(frame)
            session.schedule_flush()

    def on_credit_forgone(self, amount: int) -> None:
        self.window = max(0, self.window - amount)
        self.return_credit()

    def on_peer_end(self) -> None:
        """The last byte of the peer's half has arrived."""
        self.all_received = True
        self.stop_if_all_read()
        self.wake_reader()

    def stop_if_all_read(self) -> None:
        """Announce a limit of 0 once everything was received and read."""
        if self.all_received and not self.buffers.unread_bytes and not self._decoded_items:
            self._announce_stop()
            self.session.remove_if_finished(self)

    def grant_first(self, window: int) -> None:
        """Give the initial credit; if the receiver was closed meanwhile, only announce its end."""
        if self.own_half.state == OPEN and self.is_current():
            if self.read_error is not None or self._reading_closed:
                self._send_packet(stop_read(self.stream_id))
            elif not self.all_received:
                self.grant(window)

    def _announce_stop(self) -> None:
        if self in self.session.deferred_first_credit:  # not begun: `grant_first` announces it
            return
        if self.own_half.state == OPEN and self.is_current():
            self.endpoint.send_frame(stop_read(self.stream_id))
            self.session.schedule_flush()

    def is_finished(self) -> bool:
        return super().is_finished() and not self._decoded_items

    def check_eof(self) -> bool:
        if self.read_error is not None:
            raise copy_of(self.read_error)
        if self._reading_closed:
            raise StreamEnded(f"{self} was closed by this side")
        return self.all_received

    def on_connection_lost(self, problem: PolymuxError, can_reply: bool = False) -> None:
        if not self.all_received and self.read_error is None:
            self.read_error = problem
        self.wake_all()


def codec_for(stream_format: StreamFormat, codec: Codec | None, stream_id: int) -> Codec | None:
    """Return the codec that splits received bytes into items; None to return bytes as received.

    Raises:
        LocalProtocolError: `codec` has another item size than the profile.
    """
    if codec is not None:
        if codec.item_size != stream_format.item_size:
            raise LocalProtocolError(
                f"stream {stream_id}: that codec is not the one of its profile"
            )
        return codec
    if stream_format.item_size >= 0:
        return None
    return stream_format.item_codec if stream_format.item_codec is not None else Prefixed()


def max_item_bytes(stream_format: StreamFormat, protocol: "Minmux") -> int:
    """Return the bytes that an item of a stream has at most."""
    size = stream_format.item_size
    return max(1, protocol.max_frame_bytes if size < 0 else size)


def default_window(stream_format: StreamFormat, window_bytes: int, protocol: "Minmux") -> int:
    """Default credit in items: about `window_bytes`, at most 16 items that carry their own
    length."""
    items = max(1, window_bytes // max_item_bytes(stream_format, protocol))
    return min(items, LENGTH_PREFIXED_CREDIT_ITEMS) if stream_format.item_size < 0 else items
