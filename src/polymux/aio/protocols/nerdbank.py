"""Nerdbank's own verbs: offers and acceptors by name, anonymous and seeded channels, rejection."""

import asyncio

from polymux.aio.arguments import check_stream_window, encode_name
from polymux.aio.errors import copy_of
from polymux.aio.pending import pending
from polymux.aio.protocols.nerdbank_growth import WindowGrowth
from polymux.aio.session.session import Session
from polymux.aio.streams.duplex import Stream
from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, SessionClosed, StreamAborted, StreamEnded
from polymux.core.events import Control, Event
from polymux.core.limits import Timeouts
from polymux.core.side import NEITHER_SIDE
from polymux.core.streams import StreamBuffers
from polymux.core.streams import StreamState as Record
from polymux.protocols.nerdbank.codec import READING_COMPLETED
from polymux.protocols.nerdbank.protocol import Nerdbank


class NerdbankSession(Session):
    """A session of Nerdbank channels.

    Offers and acceptors meet first come first served, per name. `incoming` and `accept()` without a
    name take whatever is offered, and accept it.
    """

    reset_discards_unread = False  # what came before a termination can still be read
    pauses_at_stream_limit = False  # an offer can be turned away, with a word

    def __init__(
        self, endpoint: Endpoint, timeouts: Timeouts, opens_per_second: float = 0.0
    ) -> None:
        super().__init__(endpoint, timeouts, opens_per_second)
        self._window_growth = WindowGrowth(endpoint)

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """Offer a channel and wait until the peer accepts it.

        Rejected: StreamAborted. Cancelled while waiting: the offer is withdrawn.
        """
        stream = await self.offer(name, window=window)
        try:
            await self.accepted(stream)
        except asyncio.CancelledError:
            stream.abort_with_reason(
                "the offer was withdrawn"
            )  # also if the acceptance has just come
            raise
        return stream

    @pending
    async def offer(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """Offer a channel without waiting for its acceptance; an empty name makes it anonymous.

        `window`: bytes the peer may send before we have read them; 0 for the usual. What is sent
        before the acceptance waits for it. If cancelled, nothing was offered.
        """
        return await super().open(name, window=window)

    async def accepted(self, stream: Stream) -> None:
        """Wait until the peer accepts an offer of ours. Cancelled: the offer stands."""
        while not stream.state.accepted and stream.send_error is None:
            if stream.acceptance is None or stream.acceptance.done():
                stream.acceptance = self.loop.create_future()
            await asyncio.shield(stream.acceptance)
        if not stream.state.accepted and stream.send_error is not None:
            if stream.state.ending == "rejected":
                said = f": {stream.error}" if stream.error else ""
                raise StreamAborted(f"{stream} was rejected by the peer{said}")
            raise copy_of(stream.send_error)

    async def accept(self, name: str | bytes | None = None, *, window: int = 0) -> Stream:
        """Accept the next channel offered under this name, or under any name.

        Cancelled while waiting: no offer was taken.
        """
        check_stream_window(self.endpoint.protocol, window)
        text = None if name is None else encode_name(name)
        return self._accept_offer(await self.accept_queue.take(text), window)

    async def accept_id(self, stream_id: int, *, window: int = 0) -> Stream:
        """Accept a channel by its id: an anonymous one the peer offered, or a seeded one."""
        check_stream_window(self.endpoint.protocol, window)
        self.check_open()
        record = self.endpoint.protocol.streams.find(stream_id * 4 + 1 - self.endpoint.side)
        if record is None:
            return self.seeded(stream_id)
        stream = self.streams.get(record)
        if stream is None or not self.accept_queue.discard(stream):
            raise LocalProtocolError(f"channel {stream_id} is not waiting to be accepted")
        return self._accept_offer(stream, window)

    def reject(self, stream: Stream, text: str = "") -> None:
        """Turn an offer away; see `offers`."""
        if not self.accept_queue.discard(stream):
            raise LocalProtocolError(f"{stream} is not waiting to be accepted")
        stream.abort_with_reason("rejected by this side", text)

    def seeded(self, stream_id: int) -> Stream:
        """A channel both sides were configured with; it needs no offer (v3)."""
        protocol = self.endpoint.protocol
        assert isinstance(protocol, Nerdbank)
        if protocol.seeded_windows is None or not 0 <= stream_id < len(protocol.seeded_windows):
            raise LocalProtocolError(f"channel {stream_id} is neither offered nor seeded")
        record = protocol.open_seeded_channel(stream_id)
        if record.serial < 0:
            self.endpoint.connection.register_stream(self.endpoint.side, record, self.endpoint.now)
        stream = self.streams.get(record)
        if stream is not None:
            return stream
        if record.over or self.close_reason is not None:
            raise LocalProtocolError(f"seeded channel {stream_id} is over")
        if record.buffers is None:
            record.buffers = StreamBuffers()
        return self.create_stream(record)

    def offers(self) -> list[Stream]:
        """Channels the peer has offered and nobody has taken yet, oldest first."""
        return self.accept_queue.queued_streams()

    # --- inside

    def _accept_offer(self, stream: Stream, window: int) -> Stream:
        self.endpoint.accept(stream.state, window)
        self.schedule_flush()
        return stream

    def on_stream_claimed(self, stream: Stream) -> None:
        self._accept_offer(stream, 0)

    def _on_peer_opened(self, state: Record) -> None:
        if state.opener == NEITHER_SIDE:
            self.create_stream(state)  # seeded: its owner asks for it
        else:
            super()._on_peer_opened(state)

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, Control) and event.kind == READING_COMPLETED and event.stream:
            stream = self.streams.get(event.stream)
            if stream is not None:
                stream.set_send_error(StreamEnded(f"{stream}: the peer reads no more"))
        super()._handle_event(event)

    def _send_limit_notice(self, text: str) -> bool:
        """A word with each channel that is open (v2, v3): the session itself has none."""
        if self.socket_writer.blocked or not self.endpoint.protocol.has_credit:
            return False
        self.endpoint.take_events()  # nobody looks at what came last
        for record in list(self.streams):
            self.endpoint.abort(record, text.encode())
        before = self.bytes_sent
        self.flush()
        return self.bytes_sent > before

    def _end_receiving(self, problem: SessionClosed, can_reply: bool = False) -> None:
        for stream in self.accept_queue.queued_streams():
            self.accept_queue.discard(stream)  # nobody is there any more to be accepted
        super()._end_receiving(problem, can_reply)

    def is_held_back(self, stream: Stream) -> bool:
        return not stream.state.accepted

    def _on_blocked_streams(self) -> None:
        if self._window_growth.request_where_due():
            self.schedule_flush()
