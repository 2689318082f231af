"""`NerdbankSession`: offering and accepting channels by name, seeded channels, window growth.

A channel is offered by one side and exists for the application once the other side has accepted it.
Data sent before the acceptance waits. `WindowGrowth` asks the peer for larger windows (v2, v3).
"""

from dataclasses import dataclass

from polymux.core.endpoint import Endpoint
from polymux.core.errors import (
    LocalProtocolError,
    PolymuxError,
    SessionClosed,
    StreamAborted,
)
from polymux.core.events import Control
from polymux.core.frames import Frame
from polymux.core.limits import Timeouts
from polymux.core.streams import OPEN, StreamBuffers, StreamState
from polymux.live.arguments import check_stream_window, encode_name
from polymux.live.errors import PeerStoppedReading, copy_of
from polymux.live.pending import pending
from polymux.live.runtime import Runtime
from polymux.live.session.session import Session
from polymux.live.streams.duplex import Stream
from polymux.protocols.nerdbank.codec import GROWTH_REQUEST, READING_COMPLETED, WINDOW_ADJUST
from polymux.protocols.nerdbank.protocol import Nerdbank

MAX_STALLS_REQUIRED = 1024  # stalls between two window requests at most


class NerdbankSession(Session):
    """A session of Nerdbank channels.

    Offers and `accept` calls of the same name are matched in order. `incoming` and `accept()`
    without a name accept every channel that is offered.
    """

    reset_discards_unread = False  # data received before a termination can still be read
    pauses_at_stream_limit = False  # an offer can be rejected with a reason

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: Timeouts,
        runtime: Runtime,
        opens_per_second: float = 0.0,
    ) -> None:
        super().__init__(endpoint, timeouts, runtime, opens_per_second)
        self._window_growth = WindowGrowth(endpoint)

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0, weight: int = 1) -> Stream:
        """Offer a channel and wait until the peer accepts it.

        If cancelled while waiting, the offer is withdrawn.

        Args:
            name: Name of the channel; empty for an anonymous one.
            window: Receive window in bytes; 0 for `Limits.receive_window`, less if there are many
                channels.
            weight: The stream's share of the connection; see `Stream.weight`.

        Raises:
            StreamAborted: The peer rejected the offer.
            SessionClosed: The session has ended.
        """
        stream = self._open_if_possible(name, window, weight)
        if stream is None:
            await self._wait_to_open()
            stream = self._open_now(encode_name(name), window, weight)
        try:
            await self.accepted(stream)
        except PolymuxError:
            raise  # there is nothing left to withdraw
        except BaseException:
            stream.abort_with_reason("the offer was withdrawn")  # even if just accepted
            raise
        return stream

    @pending
    async def offer(self, name: str | bytes = b"", *, window: int = 0, weight: int = 1) -> Stream:
        """Offer a channel without waiting for its acceptance; see `accepted`.

        Data sent on the channel is held until the peer accepts. If cancelled, nothing was offered.

        Args:
            name: Name of the channel; empty for an anonymous one.
            window: Receive window in bytes; 0 for `Limits.receive_window`, less if there are many
                channels.
            weight: The stream's share of the connection; see `Stream.weight`.
        """
        return await super().open(name, window=window, weight=weight)

    async def accepted(self, stream: Stream) -> None:
        """Wait until the peer accepts a channel that this side has offered.

        If cancelled, the offer stays valid.

        Raises:
            StreamAborted: The peer rejected the offer, or the channel was aborted.
            SessionClosed: The session has ended.
        """
        while not stream.state.accepted and stream.send_error is None:
            await stream.wait_for_change()
        if not stream.state.accepted and stream.send_error is not None:
            if stream.state.ending == "rejected":
                reason = f": {stream.error}" if stream.error else ""
                raise StreamAborted(f"{stream} was rejected by the peer{reason}")
            raise copy_of(stream.send_error)

    async def accept(self, name: str | bytes | None = None, *, window: int = 0) -> Stream:
        """Wait for an offer of this name, or of any name, and accept it.

        If cancelled while waiting, no offer was taken.

        Args:
            name: Name to accept; None for any.
            window: Receive window in bytes; 0 for `Limits.receive_window`, less if there are many
                channels.

        Raises:
            SessionClosed: The session has ended.
        """
        check_stream_window(self.endpoint.protocol, window)
        text = None if name is None else encode_name(name)
        return self._accept_offer(await self.accept_queue.take(text), window)

    async def next_offer(self) -> Stream:
        """Wait for an offer of any name without accepting it: `accept_offer` does, `abort` of the
        channel rejects it.

        If cancelled while waiting, no offer was taken.

        Raises:
            SessionClosed: The session has ended.
        """
        return await self.accept_queue.take()

    def accept_offer(self, stream: Stream, *, window: int = 0) -> None:
        """Accept an offer that `next_offer` returned. No effect if it was withdrawn.

        Args:
            stream: The offered channel.
            window: Receive window in bytes; 0 for `Limits.receive_window`, less if there are many
                channels.
        """
        check_stream_window(self.endpoint.protocol, window)
        if stream.usable:
            self._accept_offer(stream, window)

    async def accept_id(self, stream_id: int, *, window: int = 0) -> Stream:
        """Accept a channel by its id: an anonymous one the peer has offered, or a seeded one.

        Raises:
            LocalProtocolError: There is no such offer and no such seeded channel.
            SessionClosed: The session has ended.
        """
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
        """Reject an offer of the peer; see `offers`.

        Args:
            stream: The offered channel.
            text: Reason sent to the peer (v2, v3).

        Raises:
            LocalProtocolError: The channel is not waiting to be accepted.
        """
        if not self.accept_queue.discard(stream):
            raise LocalProtocolError(f"{stream} is not waiting to be accepted")
        stream.abort_with_reason("rejected by this side", text)

    def seeded(self, stream_id: int) -> Stream:
        """Return a seeded channel: one that both sides configure and no side offers (v3).

        Raises:
            LocalProtocolError: There is no such seeded channel, or it is over.
        """
        protocol = self.endpoint.protocol
        assert isinstance(protocol, Nerdbank)  # the session factory pairs the two
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
        """Channels that the peer has offered and this side has not accepted yet, oldest first."""
        return self.accept_queue.queued_streams()

    def seeded_count(self) -> int:
        """Number of seeded channels, with ids from 0 (v3)."""
        protocol = self.endpoint.protocol
        assert isinstance(protocol, Nerdbank)  # the session factory pairs the two
        return len(protocol.seeded_windows or ())

    # Callbacks of the base class

    def _accept_offer(self, stream: Stream, window: int) -> Stream:
        self.endpoint.accept(stream.state, window)
        self.schedule_flush()
        return stream

    def on_stream_claimed(self, stream: Stream) -> None:
        self._accept_offer(stream, 0)

    def _on_stream_frame(self, state: StreamState, event: Control) -> None:
        stream = self.streams.get(state)
        if event.kind == READING_COMPLETED and stream is not None:
            stream.set_send_error(PeerStoppedReading(f"{stream}: the peer reads no more"))

    def _send_limit_notice(self, text: str) -> bool:
        """Abort every open channel with the text (v2, v3): Nerdbank has no session-wide message."""
        if self.socket_writer.blocked or not self.endpoint.protocol.has_credit:
            return False
        self.endpoint.take_events()  # the session is failing: drop its last events
        for record in list(self.streams):
            self.endpoint.abort(record, text.encode())
        before = self.bytes_sent
        self.flush()
        return self.bytes_sent > before

    def _end_receiving(self, problem: SessionClosed, can_reply: bool = False) -> None:
        for stream in self.accept_queue.queued_streams():
            self.accept_queue.discard(stream)  # an offer cannot be accepted any more
        super()._end_receiving(problem, can_reply)

    def is_held_back(self, stream: Stream) -> bool:
        return not stream.state.accepted

    def _on_blocked_streams(self) -> None:
        if self._window_growth.request_where_due():
            self.schedule_flush()


@dataclass(slots=True)
class GrowthRequest:
    """The last window request for one channel."""

    window: int = 0  # bytes, when it was sent
    stalls_required: int = 1  # stalls before the next request
    stalls: int = 0  # stalls since the last request


class WindowGrowth:
    """Asks the peer for larger windows when channels of this session run out of credit (v2, v3).

    At most one request per channel is outstanding. After a refusal, the number of stalls before the
    next request doubles, up to `MAX_STALLS_REQUIRED`. A peer that does not know the request never
    answers, and is not asked again.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._requests: dict[int, GrowthRequest] = {}
        endpoint.scheduler.report_blocked = endpoint.protocol.has_credit

    def request_where_due(self) -> bool:
        """Queue requests for blocked streams that are due for one. True if any was queued."""
        scheduler = self._endpoint.scheduler
        stalled, scheduler.blocked_streams = scheduler.blocked_streams, []
        requested = [self._request_if_due(record) for record in stalled]
        if len(self._requests) > 2 * self._endpoint.limits.max_streams:
            self._requests.clear()  # mostly of closed channels
        return any(requested)

    def _request_if_due(self, state: StreamState) -> bool:
        endpoint = self._endpoint
        own = state.half(endpoint.side)
        if not state.accepted or state.over or own.state != OPEN or own.window <= 0:
            return False
        if (1 - endpoint.side, WINDOW_ADJUST, state.key) in endpoint.protocol.pending_replies:
            return False  # a request is outstanding
        entry = self._requests.setdefault(state.serial, GrowthRequest())
        if entry.window and own.window <= entry.window:  # the last request was refused
            entry.stalls += 1
            if entry.stalls < entry.stalls_required:
                return False
            entry.stalls_required = min(2 * entry.stalls_required, MAX_STALLS_REQUIRED)
        else:
            entry.stalls_required = 2
        entry.window = own.window
        entry.stalls = 0
        endpoint.queue_frame(state, Frame(GROWTH_REQUEST, state.key))
        return True
