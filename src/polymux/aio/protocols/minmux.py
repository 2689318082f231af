"""Minmux's own verbs: streams by their id, each written by one side under the other's credit."""

from polymux.aio.pending import pending
from polymux.aio.session.session import Session
from polymux.aio.session.stream_tasks import StreamHandler
from polymux.aio.streams.duplex import Stream
from polymux.aio.streams.item_receiver import ItemReceiver, codec_for, default_window
from polymux.aio.streams.items import ItemSender, ItemStream
from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, LocalProtocolError, Unsupported
from polymux.core.events import Closed, Control, Credit, Ended, Event, Opened
from polymux.core.limits import Timeouts
from polymux.core.streams import StreamState as Record
from polymux.protocols.minmux.item_codecs import Codec
from polymux.protocols.minmux.packets import FORGO_CREDIT, PROMISE_READ, PROMISE_WRITE, U64_MAX
from polymux.protocols.minmux.protocol import Minmux


class MinmuxSession(Session):
    """A session of 2^64 one-way streams. Nobody opens or accepts: `sender` and `receiver` get
    hold of a stream by its id, before or after the peer has said anything on it.

    The dialer writes the odd ids, the acceptor the even ones. What the peer says on streams that
    nobody here has asked for is remembered for `Limits.max_streams` of them, then the session ends. So
    that no peer comes to that, this side speaks first on `Limits.max_own_streams` at a time: first
    credit, `stop` and `last` on further ones wait until the peer has said something on one of
    those. `grant`, `promise`, `abort` and closing a receiver that never had credit do not wait.
    """

    def __init__(
        self, endpoint: Endpoint, timeouts: Timeouts, opens_per_second: float = 0.0
    ) -> None:
        super().__init__(endpoint, timeouts, opens_per_second)
        protocol = endpoint.protocol
        assert isinstance(protocol, Minmux)
        self.protocol = protocol
        self.unclaimed_streams: dict[
            Record, bool
        ] = {}  # nobody asked for them; has the peer ended it?
        endpoint.scheduler.report_blocked = True
        self.deferred_credit: dict[
            ItemReceiver, None
        ] = {}  # to give credit once the transport has room
        self.deferred_first_credit: dict[
            ItemReceiver, int
        ] = {}  # whose first credit waits, and how much that is

    def sender(self, stream_id: int) -> ItemSender:
        """The stream with this id, for writing. The same object as long as the stream lasts; where
        the profile allows reuse, the next use once it is over."""
        if stream_id % 2 != 1 - self.endpoint.side:
            raise Unsupported(
                f"stream {stream_id} is written by the {self._writing_side(stream_id)}: "
                f"read it with receiver({stream_id})"
            )
        record = self._find_state(stream_id)
        stream = self._stream_of(record)
        if stream is None:
            self.unclaimed_streams.pop(record, None)
            stream = self._register(ItemSender(self, record))
        assert isinstance(stream, ItemSender)
        return stream

    def receiver(
        self, stream_id: int, *, window: int | None = None, codec: Codec | None = None
    ) -> ItemReceiver:
        """The stream with this id, for reading, with credit for `window` items given at once.

        Credit for what was read is given again; with `window=0` none is given but by `grant`. None
        is `Limits.receive_window` bytes of items, or 16 items where they say their own length. With
        `codec`, items are handed on one by one, decoded. A stream that is held already keeps its
        window and codec.
        """
        if stream_id % 2 != self.endpoint.side:
            raise Unsupported(
                f"stream {stream_id} is written by the {self._writing_side(stream_id)}, this side: "
                f"write it with sender({stream_id})"
            )
        if window is not None and not 0 <= window <= U64_MAX:
            raise LocalProtocolError(f"a window is 0 to 2^64-1 items, not {window}")
        record = self._find_state(stream_id)
        stream = self._stream_of(record)
        if stream is not None:
            assert isinstance(stream, ItemReceiver)
            return stream
        shape = self.protocol.profile.format_of(record.key)
        assert shape is not None
        codec = codec_for(shape, codec, stream_id)
        limits = self.endpoint.limits
        if (
            shape.last_item_size > limits.max_message_bytes
        ):  # it needs no credit, so nothing else would bound it
            raise LimitExceeded(
                f"stream {stream_id} has a last item of {shape.last_item_size} bytes: "
                f"{limits.describe('max_message_bytes')}"
            )
        over = record.serial >= 0 and record.over
        receiver = ItemReceiver(self, record, codec, self.unclaimed_streams.pop(record, over))
        self._register(receiver)
        amount = default_window(shape, limits.receive_window) if window is None else window
        receiver.manual_credit = amount == 0
        if receiver.all_received:
            receiver.stop_if_all_read()
        elif amount and record.serial < 0 and not self.open_allowance.can_open():
            self.deferred_first_credit[receiver] = amount
            self.open_waiters.start_stall_check()
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

    async def serve_streams(self, handler: StreamHandler, *, max_concurrent: int = 1024) -> None:
        """There is nothing that comes by itself in Minmux."""
        raise Unsupported("Minmux accepts no streams: use session.receiver(id), session.sender(id)")

    # --- inside

    def _writing_side(self, stream_id: int) -> str:
        return "dialer" if stream_id % 2 else "acceptor"

    def _find_state(self, stream_id: int) -> Record:
        self.check_open()
        try:
            return self.protocol.get_stream(self.endpoint.side, stream_id)
        except ValueError as problem:
            raise LocalProtocolError(str(problem)) from None

    def _stream_of(self, state: Record) -> ItemStream | None:
        stream = self.streams.get(state)
        return stream if isinstance(stream, ItemStream) else None

    def _register(self, stream: ItemStream) -> ItemStream:
        """Keep a stream until it is over."""
        if stream.state.over:
            stream.state.buffers = None
        else:
            self.streams[stream.state] = stream
        return stream

    def waiting_to_open(self) -> int:
        return super().waiting_to_open() + len(self.deferred_first_credit)

    def grant_deferred(self) -> None:
        """Give credit that has waited, as far as there is room now."""
        while (
            self.deferred_first_credit
            and self.close_reason is None
            and self.open_allowance.can_open()
        ):
            receiver = next(iter(self.deferred_first_credit))
            receiver.grant_first(self.deferred_first_credit.pop(receiver))

    def remove_if_finished(self, stream: Stream) -> None:
        if isinstance(stream, ItemStream) and stream.state.over:
            stream.on_peer_activity()
        if isinstance(stream, ItemStream) and stream.is_finished() and stream.state in self.streams:
            del self.streams[stream.state]
            stream.state.buffers = None

    def _handle_event(self, event: Event) -> None:
        record = event.stream
        if record is None:
            return
        stream = self._stream_of(record)
        if stream is None:
            self._handle_unclaimed(record, event)
            return
        stream.on_peer_activity()
        if (
            self.deferred_first_credit
            and isinstance(stream, ItemReceiver)
            and stream in self.deferred_first_credit
        ):
            stream.grant_first(
                self.deferred_first_credit.pop(stream)
            )  # the peer knows of it already
        if isinstance(event, Credit):
            self.endpoint.resume(record)
            stream.wake_senders()
        elif isinstance(event, Control):
            if event.kind == FORGO_CREDIT and isinstance(stream, ItemReceiver):
                stream.on_credit_forgone(event.amount)
            elif event.kind in (PROMISE_READ, PROMISE_WRITE):
                stream.promised = event.amount
            elif isinstance(stream, ItemSender):
                stream.drop_undeliverable()
            stream.wake_senders()
        elif isinstance(event, Ended):
            if isinstance(stream, ItemReceiver):
                stream.on_peer_end()
            else:
                if isinstance(stream, ItemSender):
                    stream.drop_undeliverable()
                stream.wake_senders()
        elif isinstance(event, Closed):
            stream.on_closed()
            self.remove_if_finished(stream)

    def _handle_unclaimed(self, state: Record, event: Event) -> None:
        """Something on a stream that nobody here has asked for, or that is over."""
        if isinstance(event, Opened):
            limits = self.endpoint.limits
            if len(self.unclaimed_streams) >= limits.max_streams:
                self.endpoint.counters.count("max_streams")
                raise LimitExceeded(
                    "the peer uses too many streams that nobody here has asked for: "
                    f"{limits.describe('max_streams')}"
                )
            self.unclaimed_streams[state] = False
        elif isinstance(event, Ended) and state in self.unclaimed_streams:
            self.unclaimed_streams[state] = state.opener != self.endpoint.side

    def _process_received(self, data: bytes) -> None:
        if self.socket_writer.flush_scheduled:
            self.flush()  # what was formed before reading leaves before it
        super()._process_received(data)
        limits = self.endpoint.limits
        if (
            self.unclaimed_streams
            and self.endpoint.receive_queue.unread_bytes > limits.session_buffer_bytes
        ):
            # Last items need no credit: what nobody has asked for is held to a budget.
            lanes = [record.buffers for record in self.unclaimed_streams]
            if (
                sum(lane.unread_bytes for lane in lanes if lane is not None)
                > limits.session_buffer_bytes
            ):
                self.endpoint.counters.count("session_buffer_bytes")
                self.fail(
                    LimitExceeded(
                        "last items came on streams that nobody reads: "
                        f"{limits.describe('session_buffer_bytes')}"
                    )
                )

    def resume_writing(self) -> None:
        super().resume_writing()
        thirsty, self.deferred_credit = self.deferred_credit, {}
        for receiver in thirsty:
            receiver.return_credit()

    def _on_blocked_streams(self) -> None:
        for record in self.endpoint.scheduler.blocked_streams:
            stream = self._stream_of(record)
            if isinstance(stream, ItemSender):
                stream.drop_undeliverable()
        super()._on_blocked_streams()

    def is_held_back(self, stream: Stream) -> bool:
        """A close does not wait for items that the peer will never take."""
        return isinstance(stream, ItemSender) and stream.is_starved()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.unclaimed_streams.clear()
        self.deferred_credit.clear()
        self.deferred_first_credit.clear()
