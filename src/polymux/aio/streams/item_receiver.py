"""The reading end of a stream of items (Minmux): credit out, items in."""

from collections import deque
from typing import TYPE_CHECKING

from polymux.aio.arguments import check_amount
from polymux.aio.errors import again
from polymux.aio.streams.items import ItemStream
from polymux.aio.streams.piecewise import Piecewise
from polymux.core.errors import LocalProtocolError, PolymuxError, StreamEnded, Unsupported
from polymux.core.streams import OPEN
from polymux.core.streams import Stream as Record
from polymux.protocols.minmux.item_codecs import Codec, Items, Prefixed
from polymux.protocols.minmux.packets import give_credit, oops, promise_read, stop_read
from polymux.protocols.minmux.profile import Shape

if TYPE_CHECKING:
    from polymux.aio.protocols.minmux import MinmuxSession

SIZED = 16  # items of credit where each says its own length: it may be 64 KiB


class ItemReceiver(ItemStream, Piecewise):
    """A stream that flows from the peer, under the credit that this side gives.

    Credit for what was read is given again once it is half the `window`. With a codec, or where
    items say their own length, each item is handed on by itself, decoded; else octets as they come.
    When everything was read, this side stops the stream too. Leaving an `async with` block before
    that stops it and drops what was not read.
    """

    __slots__ = ("_done", "_items", "_manual", "_octets", "_parts", "_read", "_tail",
                 "_whole", "window")  # fmt: skip

    def __init__(
        self, session: "MinmuxSession", record: Record, codec: Codec | None, done: bool
    ) -> None:
        super().__init__(session, record)
        self._no_send = Unsupported(f"{self} flows from the peer: only it can write there")
        self._items: deque[bytes] = deque()  # taken apart, and not yet read
        most = max(self._protocol.max_frame, self._shape.item) + 16
        self._parts = Items(codec, most) if codec is not None else None
        self._done = done  # the last octet has come: the half ends at the header before it
        self._octets = 0  # of content taken from the lane
        self._whole = 0  # items among them that were handed on
        self._read = 0  # items to give credit for again
        self._tail: list[bytes] = []  # of the last item
        self._manual = False
        self.window = 0  # credit in circulation: given, and not forgone

    @property
    def last(self) -> bytes | None:
        """The octets of the last item, once it has come and all before it was read; else None."""
        if not self._done or self.lane.inbox or self._protocol.last_item_at(self.record) < 0:
            return None
        return b"".join(self._tail)

    async def receive(self) -> bytes:
        """The next item, or octets; StreamEnded after the last regular one.

        If cancelled, nothing was taken. One task at a time may receive.
        """
        while True:
            found = self._next()
            if found is not None:
                return found
            if self._is_over():
                raise StreamEnded(f"{self}: the peer has ended it, there are no more items")
            await self._wait_to_receive()

    def receive_nowait(self) -> bytes:
        """What has come, or nothing."""
        return self._next() or b""

    def grant(self, amount: int) -> None:
        """Give `amount` more credit, beside what is given for items that were read."""
        check_amount(amount)
        self._say(give_credit(self.number, amount))
        self.window += amount

    def stop(self, more: int = 0) -> None:
        """Announce that at most `more` credit will be given from now on. What was given stands,
        and what comes can still be read."""
        check_amount(more)
        if self._own.state == OPEN and self._own.limit != more:
            self._say(stop_read(self.number, more))

    def oops(self, keep: int = 0) -> None:
        """Ask the writer to give up all credit but `keep`. What it gives up leaves the window and
        is not given again, except by `grant`."""
        check_amount(keep)
        self._say(oops(self.number, keep))

    def promise(self, amount: int) -> None:
        """Promise that at least `amount` more credit will be given some day."""
        check_amount(amount)
        self._say(promise_read(self.number, amount))

    def give_up(self, reason: str, text: str = "") -> None:
        """Drop what is unread, and stop at 0, with `reason` for whoever waits here."""
        self._items.clear()
        super().give_up(reason, text)

    async def end(self) -> None:
        """The same as `close`."""
        await self.close()

    async def close(self) -> None:
        """Stop at 0, and drop what was not read and what still comes."""
        if not self._closed:
            self._closed = True
            self._items.clear()
            self._endpoint.inbox.drop(self.lane)
            self._hush()
            self._wake()
        self.session._relieved(self)

    async def __aenter__(self) -> "ItemReceiver":
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self.receive()
        except StreamEnded:
            if self._closed:
                raise
            raise StopAsyncIteration from None

    # --- inside

    def _next(self) -> bytes | None:
        """One item, or everything that has come; None if that is nothing."""
        if self._shape.item == 0 and self._theirs.units > self._whole:
            self._whole += 1
            self._have_read(1)
            return b""
        while self.lane.inbox and not self._items:
            data = self._pull()
            if self._parts is None and data:
                regular = self._octets - sum(map(len, self._tail))
                items = regular // self._shape.item - self._whole
                self._whole += items
                self._have_read(items)
                return data
            if self._parts is not None and data:
                self._items.extend(self._take_apart(data))
        if self._items:
            item = self._items.popleft()
            self._have_read(1)
            return item
        self._settle()
        return None

    def _pull(self) -> bytes:
        """Everything in the lane; the last item's octets go to `last`."""
        if self._awaited:
            self._answered()
        parts = self._endpoint.take(self.lane)
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        before = self._octets
        self._octets += len(data)
        at = self._protocol.last_item_at(self.record)
        if 0 <= at < self._octets:
            cut = max(0, at - before)
            self._tail.append(data[cut:])
            data = data[:cut]
        return data

    def _take_apart(self, data: bytes) -> list[bytes]:
        assert self._parts is not None
        try:
            return self._parts.feed(data)
        except ValueError as problem:
            raise LocalProtocolError(f"{self}: the codec cannot read it: {problem}") from None

    def _have_read(self, size: int) -> None:
        self._read += size
        self._give_back()
        self._settle()

    def _give_back(self) -> None:
        """Credit for what was read. While the transport is full it adds up, one packet for all."""
        if self._manual or not self._read or self._read * 2 < self.window:
            return
        session = self.session
        if session._leaving.blocked:
            session._thirsty[self] = None
            return
        amount = self._read
        self._read = 0
        theirs = self._theirs
        if theirs.limit >= 0:  # the writer has no use for more than it has announced
            amount = min(amount, theirs.limit - (theirs.granted - theirs.spent))
        frame = self._protocol.granting(self._endpoint.side, self.record, amount)
        if frame is not None and self._is_current():
            self._endpoint.put(frame)
            session._flush_soon()

    def _forgone(self, amount: int) -> None:
        self.window = max(0, self.window - amount)
        self._give_back()

    def _ended(self) -> None:
        """The peer's half is over, to its last octet."""
        self._done = True
        self._settle()
        self._wake()

    def _settle(self) -> None:
        """When everything has come and was read, nothing more is wanted: say so."""
        if self._done and not self.lane.unread and not self._items:
            self._hush()
            self.session._forget(self)

    def _begin(self, window: int) -> None:
        """Give the first credit; nothing but the end, if that was announced meanwhile."""
        if self._own.state == OPEN and self._is_current():
            if self._no_read is not None or self._closed:
                self._say(stop_read(self.number))
            elif not self._done:
                self.grant(window)

    def _hush(self) -> None:
        if self in self.session._late:  # it has not begun: that is said in its turn
            return
        if self._own.state == OPEN and self._is_current():
            self._endpoint.put(stop_read(self.number))
            self.session._flush_soon()

    def _is_free(self) -> bool:
        return super()._is_free() and not self._items

    def _is_over(self) -> bool:
        if self._no_read is not None:
            raise again(self._no_read)
        if self._closed:
            raise StreamEnded(f"{self} was closed by this side")
        return self._done

    def _lost(self, problem: PolymuxError, answers: bool = False) -> None:
        if not self._done and self._no_read is None:
            self._no_read = problem
        self._wake_all()


def codec_for(shape: Shape, codec: Codec | None, number: int) -> Codec | None:
    """What takes a stream's items apart; None: nobody asked, and one size is as good as another."""
    if codec is not None:
        if codec.form != shape.item:
            raise LocalProtocolError(f"stream {number}: that codec is not the one of its profile")
        return codec
    if shape.item >= 0:
        return None
    return shape.items if shape.items is not None else Prefixed()


def usual_window(shape: Shape, octets: int) -> int:
    """Items of credit for a receiver of which nothing else was said: about so many octets."""
    if shape.item < 0:
        return SIZED
    return max(1, octets // max(1, shape.item))
