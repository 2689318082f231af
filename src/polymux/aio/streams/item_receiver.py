"""The reading end of a stream of items (Minmux): credit out, items in."""

from collections import deque
from typing import TYPE_CHECKING

from polymux.aio.arguments import check_amount
from polymux.aio.errors import copy_of
from polymux.aio.streams.items import ItemStream
from polymux.aio.streams.piecewise import PieceStream
from polymux.core.errors import LocalProtocolError, PolymuxError, StreamEnded, Unsupported
from polymux.core.streams import OPEN
from polymux.core.streams import StreamState as Record
from polymux.protocols.minmux.item_codecs import Codec, ItemDecoder, Prefixed
from polymux.protocols.minmux.packets import give_credit, oops, promise_read, stop_read
from polymux.protocols.minmux.profile import StreamFormat

if TYPE_CHECKING:
    from polymux.aio.protocols.minmux import MinmuxSession

LENGTH_PREFIXED_CREDIT_ITEMS = (
    16  # items of credit where each says its own length: it may be 64 KiB
)


class ItemReceiver(ItemStream, PieceStream):
    """A stream that flows from the peer, under the credit that this side gives.

    Credit for what was read is given again once it is half the `window`. With a codec, or where
    items say their own length, each item is handed on by itself, decoded; else bytes as they come.
    When everything was read, this side stops the stream too. Leaving an `async with` block before
    that stops it and drops what was not read.
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
        self, session: "MinmuxSession", state: Record, codec: Codec | None, all_received: bool
    ) -> None:
        super().__init__(session, state)
        self.send_error = Unsupported(f"{self} flows from the peer: only it can write there")
        self._decoded_items: deque[bytes] = deque()  # taken apart, and not yet read
        most = max(self._protocol.max_frame_bytes, self.stream_format.item_size) + 16
        self.item_decoder = ItemDecoder(codec, most) if codec is not None else None
        self.all_received = (
            all_received  # the last byte has come: the half ends at the header before it
        )
        self._bytes_taken = 0  # of content taken from the lane
        self.items_delivered = 0  # items among them that were handed on
        self._items_to_credit = 0  # items to give credit for again
        self._last_item_parts: list[bytes] = []  # of the last item
        self.manual_credit = False
        self.window = 0  # credit in circulation: given, and not forgone

    @property
    def last(self) -> bytes | None:
        """The bytes of the last item, once it has come and all before it was read; else None."""
        if (
            not self.all_received
            or self.buffers.received
            or self._protocol.last_item_offset(self.state) < 0
        ):
            return None
        return b"".join(self._last_item_parts)

    async def receive(self) -> bytes:
        """The next item, or bytes; StreamEnded after the last regular one.

        If cancelled, nothing was taken. One task at a time may receive.
        """
        while True:
            found = self._next_item()
            if found is not None:
                return found
            if self.check_eof():
                raise StreamEnded(f"{self}: the peer has ended it, there are no more items")
            await self.wait_readable()

    def receive_nowait(self) -> bytes:
        """What has come, or nothing."""
        return self._next_item() or b""

    def grant(self, amount: int) -> None:
        """Give `amount` more credit, beside what is given for items that were read."""
        check_amount(amount)
        self._send_packet(give_credit(self.stream_id, amount))
        self.window += amount

    def stop(self, more: int = 0) -> None:
        """Announce that at most `more` credit will be given from now on. What was given stands,
        and what comes can still be read."""
        check_amount(more)
        if self.own_half.state == OPEN and self.own_half.promised_limit != more:
            self._send_packet(stop_read(self.stream_id, more))

    def oops(self, keep: int = 0) -> None:
        """Ask the writer to give up all credit but `keep`. What it gives up leaves the window and
        is not given again, except by `grant`."""
        check_amount(keep)
        self._send_packet(oops(self.stream_id, keep))

    def promise(self, amount: int) -> None:
        """Promise that at least `amount` more credit will be given some day."""
        check_amount(amount)
        self._send_packet(promise_read(self.stream_id, amount))

    def abort_with_reason(self, reason: str, text: str = "") -> None:
        """Drop what is unread, and stop at 0, with `reason` for whoever waits here."""
        self._decoded_items.clear()
        super().abort_with_reason(reason, text)

    async def end(self) -> None:
        """The same as `close`."""
        await self.close()

    async def close(self) -> None:
        """Stop at 0, and drop what was not read and what still comes."""
        if not self._reading_closed:
            self._reading_closed = True
            self._decoded_items.clear()
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

    # --- inside

    def _next_item(self) -> bytes | None:
        """One item, or everything that has come; None if that is nothing."""
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
                regular = self._bytes_taken - sum(map(len, self._last_item_parts))
                items = regular // self.stream_format.item_size - self.items_delivered
                self.items_delivered += items
                self.credit_read(items)
                return data
            if self.item_decoder is not None and data:
                self._decoded_items.extend(self._decode_items(data))
        if self._decoded_items:
            item = self._decoded_items.popleft()
            self.credit_read(1)
            return item
        self.stop_if_all_read()
        return None

    def _take_content(self) -> bytes:
        """Everything in the lane; the last item's bytes go to `last`."""
        if self._awaiting_peer:
            self.on_peer_activity()
        parts = self.endpoint.take_received(self.buffers)
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        before = self._bytes_taken
        self._bytes_taken += len(data)
        at = self._protocol.last_item_offset(self.state)
        if 0 <= at < self._bytes_taken:
            cut = max(0, at - before)
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
        """Credit for what was read. While the transport is full it adds up, one packet for all."""
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
        theirs = self.peer_half
        if theirs.promised_limit >= 0:  # the writer has no use for more than it has announced
            amount = min(
                amount, theirs.promised_limit - (theirs.credit_granted - theirs.credit_spent)
            )
        frame = self._protocol.credit_frame(self.endpoint.side, self.state, amount)
        if frame is not None and self.is_current():
            self.endpoint.send_frame(frame)
            session.schedule_flush()

    def on_credit_forgone(self, amount: int) -> None:
        self.window = max(0, self.window - amount)
        self.return_credit()

    def on_peer_end(self) -> None:
        """The peer's half is over, to its last byte."""
        self.all_received = True
        self.stop_if_all_read()
        self.wake_reader()

    def stop_if_all_read(self) -> None:
        """When everything has come and was read, nothing more is wanted: say so."""
        if self.all_received and not self.buffers.unread_bytes and not self._decoded_items:
            self._announce_stop()
            self.session.remove_if_finished(self)

    def grant_first(self, window: int) -> None:
        """Give the first credit; nothing but the end, if that was announced meanwhile."""
        if self.own_half.state == OPEN and self.is_current():
            if self.read_error is not None or self._reading_closed:
                self._send_packet(stop_read(self.stream_id))
            elif not self.all_received:
                self.grant(window)

    def _announce_stop(self) -> None:
        if self in self.session.deferred_first_credit:  # it has not begun: that is said in its turn
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


def codec_for(shape: StreamFormat, codec: Codec | None, stream_id: int) -> Codec | None:
    """What takes a stream's items apart; None: nobody asked, and one size is as good as another."""
    if codec is not None:
        if codec.item_size != shape.item_size:
            raise LocalProtocolError(
                f"stream {stream_id}: that codec is not the one of its profile"
            )
        return codec
    if shape.item_size >= 0:
        return None
    return shape.item_codec if shape.item_codec is not None else Prefixed()


def default_window(shape: StreamFormat, window_bytes: int) -> int:
    """Items of credit for a receiver of which nothing else was said: about so many bytes."""
    if shape.item_size < 0:
        return LENGTH_PREFIXED_CREDIT_ITEMS
    return max(1, window_bytes // max(1, shape.item_size))
