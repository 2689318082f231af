"""Minmux's own verbs: streams by their id, each written by one side under the other's credit."""

from polymux.aio.pending import pending
from polymux.aio.session.session import Session
from polymux.aio.session.stream_tasks import Work
from polymux.aio.streams.duplex import Stream
from polymux.aio.streams.item_receiver import ItemReceiver, codec_for, usual_window
from polymux.aio.streams.items import ItemSender, ItemStream
from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, LocalProtocolError, Unsupported
from polymux.core.events import Closed, Control, Credit, Ended, Event, Opened
from polymux.core.limits import Policy
from polymux.core.streams import Stream as Record
from polymux.protocols.minmux.item_codecs import Codec
from polymux.protocols.minmux.packets import FORGO_CREDIT, MOST, PROMISE_READ, PROMISE_WRITE
from polymux.protocols.minmux.protocol import Minmux


class MinmuxSession(Session):
    """A session of 2^64 one-way streams. Nobody opens or accepts: `sender` and `receiver` get
    hold of a stream by its id, before or after the peer has said anything on it.

    The dialer writes the odd ids, the acceptor the even ones. What the peer says on streams that
    nobody here has asked for is remembered for `Limits.streams` of them, then the session ends. So
    that no peer comes to that, this side speaks first on `Limits.own_streams` at a time: first
    credit, `stop` and `last` on further ones wait until the peer has said something on one of
    those. `grant`, `promise`, `abort` and closing a receiver that never had credit do not wait.
    """

    def __init__(self, endpoint: Endpoint, policy: Policy, opens_per_second: float = 0.0) -> None:
        super().__init__(endpoint, policy, opens_per_second)
        protocol = endpoint.protocol
        assert isinstance(protocol, Minmux)
        self.protocol = protocol
        self._strangers: dict[Record, bool] = {}  # nobody asked for them; has the peer ended it?
        endpoint.outbox.noting = True
        self._thirsty: dict[ItemReceiver, None] = {}  # to give credit once the transport has room
        self._late: dict[ItemReceiver, int] = {}  # whose first credit waits, and how much that is

    def sender(self, number: int) -> ItemSender:
        """The stream with this id, for writing. The same object as long as the stream lasts; where
        the profile allows reuse, the next use once it is over."""
        if number % 2 != 1 - self.endpoint.side:
            raise Unsupported(
                f"stream {number} is written by the {self._writer(number)}: "
                f"read it with receiver({number})"
            )
        record = self._reach(number)
        stream = self._owner(record)
        if stream is None:
            self._strangers.pop(record, None)
            stream = self._hold(ItemSender(self, record))
        assert isinstance(stream, ItemSender)
        return stream

    def receiver(
        self, number: int, *, window: int | None = None, codec: Codec | None = None
    ) -> ItemReceiver:
        """The stream with this id, for reading, with credit for `window` items given at once.

        Credit for what was read is given again; with `window=0` none is given but by `grant`. None
        is `Limits.window` octets of items, or 16 items where they say their own length. With
        `codec`, items are handed on one by one, decoded. A stream that is held already keeps its
        window and codec.
        """
        if number % 2 != self.endpoint.side:
            raise Unsupported(
                f"stream {number} is written by the {self._writer(number)}, this side: "
                f"write it with sender({number})"
            )
        if window is not None and not 0 <= window <= MOST:
            raise LocalProtocolError(f"a window is 0 to 2^64-1 items, not {window}")
        record = self._reach(number)
        stream = self._owner(record)
        if stream is not None:
            assert isinstance(stream, ItemReceiver)
            return stream
        shape = self.protocol.profile.shape(record.key)
        assert shape is not None
        codec = codec_for(shape, codec, number)
        limits = self.endpoint.limits
        if shape.last > limits.message:  # it needs no credit, so nothing else would bound it
            raise LimitExceeded(
                f"stream {number} has a last item of {shape.last} octets: "
                f"{limits.describe('message')}"
            )
        over = record.serial >= 0 and record.over
        receiver = ItemReceiver(self, record, codec, self._strangers.pop(record, over))
        self._hold(receiver)
        amount = usual_window(shape, limits.window) if window is None else window
        receiver._manual = amount == 0
        if receiver._done:
            receiver._settle()
        elif amount and record.serial < 0 and not self._openings.free():
            self._late[receiver] = amount
            self._line.watch()
        elif amount:
            receiver.grant(amount)
        return receiver

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """There is no opening in Minmux."""
        raise Unsupported("Minmux opens no streams: use session.sender(id), session.receiver(id)")

    async def accept(self) -> Stream:
        """There is no accepting in Minmux."""
        raise Unsupported("Minmux accepts no streams: use session.receiver(id), session.sender(id)")

    async def each(self, work: Work, *, at_once: int = 1024) -> None:
        """There is nothing that comes by itself in Minmux."""
        raise Unsupported("Minmux accepts no streams: use session.receiver(id), session.sender(id)")

    # --- inside

    def _writer(self, number: int) -> str:
        return "dialer" if number % 2 else "acceptor"

    def _reach(self, number: int) -> Record:
        self._check_open()
        try:
            return self.protocol.reach(self.endpoint.side, number)
        except ValueError as problem:
            raise LocalProtocolError(str(problem)) from None

    def _owner(self, record: Record) -> ItemStream | None:
        stream = self._live.get(record)
        return stream if isinstance(stream, ItemStream) else None

    def _hold(self, stream: ItemStream) -> ItemStream:
        """Keep a stream until it is over."""
        if stream.record.over:
            stream.record.lane = None
        else:
            self._live[stream.record] = stream
        return stream

    def _in_line(self) -> int:
        return super()._in_line() + len(self._late)

    def _grant_late(self) -> None:
        """Give credit that has waited, as far as there is room now."""
        while self._late and self._over is None and self._openings.free():
            receiver = next(iter(self._late))
            receiver._begin(self._late.pop(receiver))

    def _forget(self, stream: Stream) -> None:
        if isinstance(stream, ItemStream) and stream.record.over:
            stream._answered()
        if isinstance(stream, ItemStream) and stream._is_free() and stream.record in self._live:
            del self._live[stream.record]
            stream.record.lane = None

    def _handle(self, event: Event) -> None:
        record = event.stream
        if record is None:
            return
        stream = self._owner(record)
        if stream is None:
            self._hear_stranger(record, event)
            return
        stream._answered()
        if self._late and isinstance(stream, ItemReceiver) and stream in self._late:
            stream._begin(self._late.pop(stream))  # the peer knows of it already
        if isinstance(event, Credit):
            self.endpoint.resume(record)
            stream._wake_writers()
        elif isinstance(event, Control):
            if event.kind == FORGO_CREDIT and isinstance(stream, ItemReceiver):
                stream._forgone(event.amount)
            elif event.kind in (PROMISE_READ, PROMISE_WRITE):
                stream.promised = event.amount
            elif isinstance(stream, ItemSender):
                stream._wither()
            stream._wake_writers()
        elif isinstance(event, Ended):
            if isinstance(stream, ItemReceiver):
                stream._ended()
            else:
                if isinstance(stream, ItemSender):
                    stream._wither()
                stream._wake_writers()
        elif isinstance(event, Closed):
            stream._over()
            self._forget(stream)

    def _hear_stranger(self, record: Record, event: Event) -> None:
        """Something on a stream that nobody here has asked for, or that is over."""
        if isinstance(event, Opened):
            limits = self.endpoint.limits
            if len(self._strangers) >= limits.streams:
                self.endpoint.counters.count("streams")
                raise LimitExceeded(
                    "the peer uses too many streams that nobody here has asked for: "
                    f"{limits.describe('streams')}"
                )
            self._strangers[record] = False
        elif isinstance(event, Ended) and record in self._strangers:
            self._strangers[record] = record.opener != self.endpoint.side

    def _received(self, data: bytes) -> None:
        if self._leaving.given:
            self._flush()  # what was formed before reading leaves before it
        super()._received(data)
        limits = self.endpoint.limits
        if self._strangers and self.endpoint.inbox.unread > limits.session_buffer:
            # Last items need no credit: what nobody has asked for is held to a budget.
            lanes = [record.lane for record in self._strangers]
            if sum(lane.unread for lane in lanes if lane is not None) > limits.session_buffer:
                self.endpoint.counters.count("session_buffer")
                self._fail(
                    LimitExceeded(
                        "last items came on streams that nobody reads: "
                        f"{limits.describe('session_buffer')}"
                    )
                )

    def resume_writing(self) -> None:
        super().resume_writing()
        thirsty, self._thirsty = self._thirsty, {}
        for receiver in thirsty:
            receiver._give_back()

    def _stalled(self) -> None:
        for record in self.endpoint.outbox.stalled:
            stream = self._owner(record)
            if isinstance(stream, ItemSender):
                stream._wither()
        super()._stalled()

    def _is_offer(self, stream: Stream) -> bool:
        """A close does not wait for items that the peer will never take."""
        return isinstance(stream, ItemSender) and stream._is_starved()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._strangers.clear()
        self._thirsty.clear()
        self._late.clear()
