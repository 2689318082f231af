"""`MinmuxSession`: streams by id, each written by one side under credit from the other.

Nothing opens a Minmux stream, so an id is in one of three states here: not used yet, unclaimed (the
peer has sent a packet on it, but the application has not asked for it) or claimed (a stream object
exists). Unclaimed streams are bounded in number and in bytes.
"""

from typing import Protocol, cast

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, LocalProtocolError, Unsupported
from polymux.core.events import Closed, Control, Credit, Ended, Event, Opened
from polymux.core.limits import Timeouts
from polymux.core.streams import StreamState
from polymux.live.pending import pending
from polymux.live.runtime import Runtime
from polymux.live.session.session import Session
from polymux.live.session.stream_tasks import StreamHandler
from polymux.live.streams.base import StreamBase
from polymux.live.streams.duplex import Stream
from polymux.live.streams.items import (
    ItemReceiver,
    ItemSender,
    ItemStream,
    codec_for,
    default_window,
)
from polymux.protocols.minmux.item_codecs import Codec
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    PROMISE_READ,
    PROMISE_WRITE,
    U64_MAX,
    U64_MODULUS,
)
from polymux.protocols.minmux.protocol import Minmux


class StreamReader(Protocol):
    """Reads the streams that no `receiver` call has asked for, without stream objects."""

    def on_event(self, state: StreamState, event: Event) -> None:
        """Called for what happens on such a stream, after the session has noted it."""

    def on_content(self, state: StreamState) -> None:
        """Called when content of such a stream is in its buffers."""


class MinmuxSession(Session):
    """A session of 2^64 one-way streams.

    Streams are not opened or accepted: `sender` and `receiver` return a stream by its id, before or
    after the peer has used it. The dialer writes the odd ids, the acceptor the even ones.

    The peer may use up to `Limits.max_streams` streams that the application has not asked for; with
    one more the session ends. To stay below the same limit of the peer, this side sends the first
    packet on at most `Limits.max_own_streams` streams at a time: initial credit, `stop` and `last`
    on further streams wait until the peer has sent a packet on one of those. `grant`, `promise`,
    `abort` and closing a receiver that never had credit do not wait.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: Timeouts,
        runtime: Runtime,
        opens_per_second: float = 0.0,
    ) -> None:
        super().__init__(endpoint, timeouts, runtime, opens_per_second)
        protocol = endpoint.protocol
        assert isinstance(protocol, Minmux)  # the session factory pairs the two
        self.protocol = protocol
        # Streams the peer has used and the application has not; whether the peer has ended them.
        self.unclaimed_streams: dict[StreamState, bool] = {}
        self.stream_reader: StreamReader | None = None  # set by a collector
        endpoint.scheduler.report_blocked = True
        # Receivers that give credit once the transport can be written to.
        self.deferred_credit: dict[ItemReceiver, None] = {}
        # Receivers whose initial credit waits for the open allowance, and its amount.
        self.deferred_first_credit: dict[ItemReceiver, int] = {}

    def sender(self, stream_id: int) -> ItemSender:
        """Return the stream with this id for writing.

        Repeated calls return the same object until the stream is over. Where the profile allows
        reuse, the next call then returns a new stream.

        Raises:
            Unsupported: The peer writes this id.
            LocalProtocolError: The profile has no such stream, or it is over.
            SessionClosed: The session has ended.
        """
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
        """Return the stream with this id for reading, and give its initial credit.

        Repeated calls return the same object, with its first window and codec, until the stream is
        over.

        Args:
            stream_id: An id that the peer writes.
            window: Initial credit in items; credit for items read is given again. 0 gives none
                except by `ItemReceiver.grant`. None is `Limits.receive_window` bytes of items, and
                at most 16 items where they carry their own length; less if the credit of all
                streams would exceed `Limits.session_buffer_bytes`.
            codec: Decodes items, which are then received one by one.

        Raises:
            Unsupported: This side writes this id.
            LocalProtocolError: The profile has no such stream, it is over, the window is out of
                range, or the codec does not match the profile.
            LimitExceeded: The last item of the stream is larger than `Limits.max_message_bytes`.
            SessionClosed: The session has ended.
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
        stream_format = self.protocol.profile.format_of(record.key)
        assert stream_format is not None  # `_find_state` raises for ids without a format
        codec = codec_for(stream_format, codec, stream_id)
        limits = self.endpoint.limits
        if stream_format.last_item_size > limits.max_message_bytes:
            # The last item needs no credit, so nothing else bounds it.
            raise LimitExceeded(
                f"stream {stream_id} has a last item of {stream_format.last_item_size} bytes: "
                f"{limits.describe('max_message_bytes')}"
            )
        over = record.serial >= 0 and record.over
        receiver = ItemReceiver(self, record, codec, self.unclaimed_streams.pop(record, over))
        self._register(receiver)
        amount = window
        if amount is None:
            amount = default_window(stream_format, self.endpoint.default_window(), self.protocol)
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
    async def open(self, name: str | bytes = b"", *, window: int = 0, weight: int = 1) -> Stream:
        """Not available: raises Unsupported. Use `sender` and `receiver`."""
        raise Unsupported("Minmux opens no streams: use session.sender(id), session.receiver(id)")

    async def accept(self) -> Stream:
        """Not available: raises Unsupported. Use `receiver` and `sender`."""
        raise Unsupported("Minmux accepts no streams: use session.receiver(id), session.sender(id)")

    async def serve_streams(self, handler: StreamHandler, *, max_concurrent: int = 1024) -> None:
        """Not available: raises Unsupported. Use `receiver` and `sender`."""
        raise Unsupported("Minmux accepts no streams: use session.receiver(id), session.sender(id)")

    def unclaimed_ids(self) -> list[int]:
        """Ids written by the peer that it has used and no `receiver` call has asked for."""
        return [
            state.stream_id % U64_MODULUS
            for state in self.unclaimed_streams
            if state.opener != self.endpoint.side
        ]

    # Streams by state

    def _writing_side(self, stream_id: int) -> str:
        return "dialer" if stream_id % 2 else "acceptor"

    def _find_state(self, stream_id: int) -> StreamState:
        self.check_open()
        try:
            return self.protocol.get_stream(self.endpoint.side, stream_id)
        except ValueError as problem:
            raise LocalProtocolError(str(problem)) from None

    def _stream_of(self, state: StreamState) -> ItemStream | None:
        stream = self.streams.get(state)
        return stream if isinstance(stream, ItemStream) else None

    def _register(self, stream: ItemStream) -> ItemStream:
        """Add a stream to the session until it is over."""
        if stream.state.over:
            stream.state.buffers = None
        else:
            self.streams[stream.state] = stream
        return stream

    def waiting_to_open(self) -> int:
        return super().waiting_to_open() + len(self.deferred_first_credit)

    def grant_deferred(self) -> None:
        """Give deferred initial credit while the open allowance permits."""
        while (
            self.deferred_first_credit
            and self.close_reason is None
            and self.open_allowance.can_open()
        ):
            receiver = next(iter(self.deferred_first_credit))
            receiver.grant_first(self.deferred_first_credit.pop(receiver))

    def remove_if_finished(self, stream: StreamBase) -> None:
        state = stream.state
        if not state.over or not isinstance(stream, ItemStream):
            return
        if stream.awaiting_peer:
            stream.on_peer_activity()
        if stream.is_finished() and state in self.streams:
            del self.streams[state]
            state.buffers = None

    # Callbacks of the base class

    def _handle_event(self, event: Event) -> None:
        record = event.stream
        if record is None:
            return
        # cast: every stream here is one of items.
        stream = cast(ItemStream | None, self.streams.get(record))
        if stream is None:
            self._handle_unclaimed(record, event)
            return
        if stream.awaiting_peer:
            stream.on_peer_activity()
        if (
            self.deferred_first_credit
            and isinstance(stream, ItemReceiver)
            and stream in self.deferred_first_credit
        ):
            # The peer uses the stream already, so it does not count against the allowance.
            stream.grant_first(self.deferred_first_credit.pop(stream))
        kind = type(event)  # none has subclasses
        if kind is Credit:
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
        elif kind is Ended:
            if isinstance(stream, ItemReceiver):
                stream.on_peer_end()
            else:
                if isinstance(stream, ItemSender):
                    stream.drop_undeliverable()
                stream.wake_senders()
        elif kind is Closed:
            stream.on_closed()
            self.remove_if_finished(stream)

    def _handle_unclaimed(self, state: StreamState, event: Event) -> None:
        """Handle an event of a stream that is unclaimed or over."""
        if isinstance(event, Opened):
            limits = self.endpoint.limits
            if len(self.unclaimed_streams) >= limits.max_streams:
                self.endpoint.counters.count("max_streams")
                raise LimitExceeded(
                    "the peer uses too many streams that this side has not asked for: "
                    f"{limits.describe('max_streams')}"
                )
            self.unclaimed_streams[state] = False
        elif isinstance(event, Ended) and state in self.unclaimed_streams:
            self.unclaimed_streams[state] = state.opener != self.endpoint.side
        if self.stream_reader is not None:
            self.stream_reader.on_event(state, event)

    def _on_unclaimed_content(self, state: StreamState) -> None:
        if self.stream_reader is not None:
            self.stream_reader.on_content(state)

    def _process_received(self, data: bytes) -> None:
        if self.socket_writer.flush_scheduled:
            self.flush()  # queued frames are sent before the new data is processed
        super()._process_received(data)
        limits = self.endpoint.limits
        if (
            self.unclaimed_streams
            and self.endpoint.receive_queue.held_bytes > limits.session_buffer_bytes
        ):
            # Last items need no credit: on unclaimed streams this limit bounds them.
            unclaimed = [state.buffers for state in self.unclaimed_streams]
            if (
                sum(buffers.held_bytes for buffers in unclaimed if buffers is not None)
                > limits.session_buffer_bytes
            ):
                self.endpoint.counters.count("session_buffer_bytes")
                self.fail(
                    LimitExceeded(
                        "last items came on streams that this side does not read: "
                        f"{limits.describe('session_buffer_bytes')}"
                    )
                )

    def resume_writing(self) -> None:
        super().resume_writing()
        receivers, self.deferred_credit = self.deferred_credit, {}
        for receiver in receivers:
            receiver.return_credit()

    def _on_blocked_streams(self) -> None:
        for record in self.endpoint.scheduler.blocked_streams:
            stream = self._stream_of(record)
            if isinstance(stream, ItemSender):
                stream.drop_undeliverable()
        super()._on_blocked_streams()

    def is_held_back(self, stream: Stream) -> bool:
        """Whether queued items can never be sent; closing the session does not wait for them."""
        return isinstance(stream, ItemSender) and stream.is_starved()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.unclaimed_streams.clear()
        self.stream_reader = None
        self.deferred_credit.clear()
        self.deferred_first_credit.clear()
