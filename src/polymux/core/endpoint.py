# mypyc: compiled
"""A live side of a connection, without I/O: calls in, bytes out; bytes in, events out.

The caller passes received bytes to `receive` and writes what `data_to_send` or `chunks_to_send`
returns to its transport. Streams are opened, written, ended and aborted by methods that only queue;
bytes are encoded when the caller asks for them.
"""

from mypy_extensions import i64

from polymux.core.connection import Connection
from polymux.core.errors import (
    LimitExceeded,
    LocalProtocolError,
    NoFreeIds,
    PeerViolation,
    PolymuxError,
    StreamEnded,
)
from polymux.core.events import Aborted, Event
from polymux.core.flood_guard import FloodGuard
from polymux.core.frames import Frame
from polymux.core.limits import Counters, Limits
from polymux.core.protocol import NO_ID, Protocol
from polymux.core.receive_queue import ReceiveQueue
from polymux.core.rules import CROSSED, Certainty, Reaction, Violation, rules_in_mask
from polymux.core.send_scheduler import SendScheduler, check_weight
from polymux.core.side import DIALER, Side
from polymux.core.streams import ABORTED, NEVER, OPEN, StreamBuffers, StreamState
from polymux.core.websocket.layer import WEBSOCKET, MessageProtocol
from polymux.core.websocket.live_layer import LiveWebSocketLayer
from polymux.core.window_budget import next_window

NS_PER_SECOND = 1_000_000_000


class Endpoint:
    """One end of a connection.

    Args:
        protocol: a new protocol instance; it belongs to this endpoint.
        side: the side this endpoint is, DIALER or ACCEPTOR.
        direct: received content is queued in each stream's buffers (see `ReceiveQueue`) instead of
            being returned as `Data` events.
    """

    def __init__(self, protocol: Protocol, side: i64, direct: bool = False) -> None:
        self.protocol = protocol
        self.side: i64 = side
        self.limits: Limits = protocol.limits
        self.receive_queue: ReceiveQueue = ReceiveQueue(side, direct, protocol.content_is_messages)
        self.connection: Connection = Connection(protocol, self.receive_queue, None)
        self.connection.enforced_side = 1 - side
        self.scheduler: SendScheduler = SendScheduler(self.connection, side)
        self.counters: Counters = Counters()
        self.flood_guard: FloodGuard = FloodGuard(self.limits, self.counters)
        self.flood_guard.set_chunk_limits(
            self.receive_queue, self.connection.direction(1 - side), self.connection.head
        )
        self.fatal_violation: Violation | None = None
        self.abort_reasons: dict[str, str] = {}  # by stream label: the rule the peer broke on it
        self.has_deferred_replies: bool = False  # replies that are formed when they can be sent
        self.now: i64 = 0  # timestamp of the last `receive`, in nanoseconds
        self.websocket: LiveWebSocketLayer | None = None
        if isinstance(protocol, MessageProtocol) and protocol.carrier == WEBSOCKET:
            self.websocket = LiveWebSocketLayer(self.connection, protocol, side)

    def __repr__(self) -> str:
        return f"<polymux endpoint of {self.protocol.name}, {Side(self.side).name.lower()}>"

    # Receiving and sending bytes

    def start(self, nonce: bytes = b"") -> None:
        """Queue the handshake frame, if the protocol has one. Call it once, before anything else.

        Args:
            nonce: 16 random bytes or more, for protocols that need randomness.
        """
        if self.websocket is not None:
            self.websocket.seed_masking_keys(nonce)
        frame = self.protocol.handshake_frame(self.side, nonce)
        if frame is not None:
            self.scheduler.send_frame(frame, self.now)

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Process bytes from the peer.

        Args:
            data: the next bytes.
            now: the current time in seconds, of any monotonic clock.

        Returns:
            What happened, in order.

        Raises:
            PeerViolation: the peer broke a rule and the session must end.
            LimitExceeded: the peer exceeded a limit and the session must end.
        """
        if len(self.scheduler.control_queue) >= self.limits.max_queued_replies:
            self.flood_guard.raise_limit_exceeded(
                "max_queued_replies", "the peer does not read our replies"
            )
        self.now = int(now * NS_PER_SECOND)
        if self.websocket is None:
            self.connection.receive(1 - self.side, data, self.now)
        else:
            self.websocket.receive(1 - self.side, data, self.now)
            self.receive_queue.empty_frames += self.websocket.take_empty_frames()
        self._after_receive()
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Remove and return the events since the last call; our own frames cause events too."""
        events = self.receive_queue.events
        self.receive_queue.events = []
        return events

    def _after_receive(self) -> None:
        """After each received chunk: count violations, abort streams with any, queue replies."""
        c = self.connection
        if c.violations or c.has_tolerated:
            self._count_violations()
        queue = self.receive_queue
        if (
            queue.empty_frames > 0
            or queue.peer_opens > 0
            or queue.peer_resets > 0
            or c.closed_stream_frames > 0
            or c.unknown_stream_frames > 0
        ):
            self.flood_guard.charge_chunk(queue, c, self.now)
        queue.content_parts = 0
        d = c.direction(1 - self.side)
        if d.decoding_stopped:
            raise PeerViolation(d.stop_reason)
        if c.streams_to_abort:
            self._abort_violating_streams()
        if self.protocol.pending_replies:
            self._queue_replies(False)
        if queue.discarded_streams:
            self._return_credit_for_discarded()

    def _count_violations(self) -> None:
        """Count the peer's violations; raise PeerViolation if one of them ends the session."""
        c = self.connection
        if c.has_tolerated:
            c.has_tolerated = False
            for i, rule in enumerate(self.protocol.rules):
                if c.tolerated_counts[i] > 0:
                    self.counters.count(rule.name, c.tolerated_counts[i])
                    c.tolerated_counts[i] = 0
        stopped = c.direction(1 - self.side).decoding_stopped
        for violation in c.violations:
            self.counters.count(violation.rule.name)
            if violation.rule.reaction is Reaction.STREAM:
                self.abort_reasons[violation.stream] = f"{violation.rule.name}: {violation.detail}"
            if (
                self.fatal_violation is None
                and stopped
                and violation.rule.reaction is Reaction.SESSION
            ):
                self.fatal_violation = violation
        c.violations.clear()
        if self.fatal_violation is not None:
            raise PeerViolation(str(self.fatal_violation))

    def _abort_violating_streams(self) -> None:
        """Abort the streams on which the peer broke a rule; the event's text names the rule.

        Raises:
            LimitExceeded: there are too many such streams.
        """
        c = self.connection
        for stream in list(c.streams_to_abort.values()):
            own = stream.half(self.side)
            if own.last_frame_index == NEVER and own.state != ABORTED and not stream.over:
                self.flood_guard.charge_forced_abort(self.now)
                reason = self.abort_reasons.get(stream.label(), "protocol error").encode()
                self.abort(stream, reason)
                self.receive_queue.events.append(Aborted(stream, reason))
        c.streams_to_abort.clear()
        self.abort_reasons.clear()

    def reject_stream(self, stream: StreamState, text: bytes = b"") -> None:
        """Reject a stream that the peer opened, by aborting it.

        Raises:
            LimitExceeded: the peer has opened too many streams that were rejected.
        """
        self.flood_guard.charge_forced_abort(self.now)
        self.abort(stream, text)

    def _return_credit_for_discarded(self) -> None:
        """Handle content that the application will not read.

        Where the stream has a window its credit is returned, so that the peer can finish. Where the
        protocol has no credit, the stream is aborted once `stream_buffer_bytes` were discarded.
        """
        for stream in self.receive_queue.discarded_streams:
            buffers = stream.buffers
            if buffers is None:
                continue
            size = buffers.unread_bytes
            buffers.unread_bytes = 0
            theirs = stream.half(1 - self.side)
            if theirs.window >= 0:
                if stream.half(self.side).last_frame_index == NEVER:
                    self.read(stream, size)
            elif theirs.credit_granted < 0:
                buffers.unreturned_credit += size
                if buffers.unreturned_credit > self.limits.stream_buffer_bytes:
                    buffers.unreturned_credit = 0
                    self.abort(stream)
        self.receive_queue.discarded_streams.clear()

    def _queue_replies(self, flushing: bool) -> None:
        """Queue the replies this side is expected to send, while the queue has room.

        A reply that depends on what the application has read is only formed when `flushing`: its
        request may have arrived together with content that could not have been read yet.
        """
        replies = self.protocol.pending_replies
        room: i64 = self.limits.max_queued_replies
        for reply in list(replies.values()):
            if reply.side != self.side:
                if len(replies) > self.limits.closed_streams_remembered:
                    # Bound the memory for replies that a peer never sends.
                    del replies[(reply.side, reply.kind, reply.key)]
                continue
            if not reply.queued and len(self.scheduler.control_queue) < room:
                if not flushing and self.protocol.defers_reply(reply):
                    self.has_deferred_replies = True
                    continue
                frame = self.protocol.reply_frame(reply)
                if frame is None:
                    continue
                reply.queued = True
                stream = self.protocol.streams.find(reply.key)
                if (
                    stream is not None
                    and stream.buffers is not None
                    and self.protocol.reply_discards_queued(reply)
                ):
                    self.scheduler.discard_outgoing(stream.buffers)
                self.scheduler.control_queue.append(frame)

    def data_to_send(self, room: i64 = 262144) -> bytes:
        """The next bytes for the peer; empty if there is nothing to send.

        Call it before `receive` when both are possible: a recording of the connection must not show
        a frame after received data that its sender had not yet processed.

        Args:
            room: content bytes to encode, approximately; 0: only control frames and replies.
        """
        return b"".join(self.chunks_to_send(room))

    def chunks_to_send(self, room: i64 = 262144) -> list[bytes]:
        """As `data_to_send`, in chunks; large payloads are not copied. The caller owns the list."""
        chunks = self.scheduler.flush(self.now, room)
        self.has_deferred_replies = False
        if self.protocol.pending_replies:  # our own frames can require replies too
            self._queue_replies(True)
            if len(self.scheduler.control_queue) > 0:
                chunks.extend(self.scheduler.flush(self.now, 0))
        return chunks if self.websocket is None else self.websocket.encode(chunks)

    def pending(self) -> bool:
        """Whether there is anything that could be sent now."""
        if self.has_deferred_replies or (self.websocket is not None and self.websocket.pending()):
            return True
        return len(self.scheduler.control_queue) > 0 or self.scheduler.ready_count() > 0

    def can_ping(self) -> bool:
        """Whether the peer can be asked for an answer: by WebSocket, or by the protocol."""
        return self.websocket is not None or self.protocol.has_pings

    def queue_ping(self) -> int:
        """Queue a ping, where `can_ping`; return the number that its answer has (WebSocket: 0)."""
        if self.websocket is not None:
            self.websocket.queue_ping()
            return 0
        value = self.protocol.request_ping(self.side)
        self.receive_queue.expected_control += 1  # its answer is no flood
        self._queue_replies(False)
        return value

    def peer_bytes(self) -> int:
        """Bytes received from the peer so far."""
        if self.websocket is not None:
            return self.websocket.direction_decoder(1 - self.side).decoder.offset
        return self.connection.direction(1 - self.side).total_bytes

    def queue_last_frame(self) -> None:
        """Queue the protocol's last frame of a session, if it has one."""
        frame = self.protocol.last_frame(self.side)
        if frame is not None:
            self.scheduler.control_queue.append(frame)

    def close_websocket(self, code: int = 1000, reason: str = "") -> None:
        """Queue a WebSocket close frame after what can be sent now; a no-op without WebSocket."""
        if self.websocket is not None:
            self.websocket.queue_close(code, reason)

    def finish(self) -> bool:
        """The peer has closed its direction. False if it did so in the middle of a frame."""
        if self.websocket is not None:
            return self.websocket.direction_decoder(1 - self.side).decoder.pending() == 0
        d = self.connection.direction(1 - self.side)
        return not d.in_payload and d.buffered_bytes() == 0

    # Streams

    def open(self, name: bytes = b"", window: int = 0, weight: int = 1) -> StreamState:
        """Open a stream. If it raises, nothing was sent or changed.

        Args:
            name: the stream's name, where the protocol has names.
            window: the receive window to announce; 0: `default_window`.
            weight: see `set_weight`.

        Raises:
            ValueError: the weight is out of range.
            LimitExceeded: the name is too long.
            LocalProtocolError: the peer's handshake has not arrived yet, or the peer accepts no
                more streams.
            NoFreeIds: every stream id of this side is taken.
        """
        check_weight(weight)
        if len(name) > self.protocol.max_name_bytes:
            raise LimitExceeded(
                f"a name of {len(name)} bytes is over the limit of {self.protocol.max_name_bytes}; "
                "raise it with Limits(max_name_bytes=...) or, for metadata, "
                "Limits(max_metadata_bytes=...)"
            )
        if not self.protocol.handshake_done:
            raise LocalProtocolError("the peer's handshake has not arrived yet")
        problem = self.protocol.open_error(self.side)
        if problem:
            raise LocalProtocolError(problem)
        key = self.protocol.allocate(self.side)
        if key == NO_ID:
            raise NoFreeIds("every stream id this side may use is taken; use a new connection")
        frame = self.protocol.open_frame(self.side, key, name, window or self.default_window())
        if frame is None:
            stream = self.protocol.reserve_stream(self.side, key)
            stream.buffers = StreamBuffers()
        else:
            self.scheduler.send_frame(frame, self.now)
            opened = self.protocol.streams.find(key)
            assert opened is not None  # applying the frame has just registered it
            stream = opened
        if weight != 1:
            self.set_weight(stream, weight)
        return stream

    def set_weight(self, stream: StreamState, weight: int) -> None:
        """Set this side's weight of a stream: while several streams have content and credit, each
        sends in proportion to its weight. It is not sent to the peer.

        Args:
            stream: the stream; one that is over is left as it is.
            weight: 1 to 256; streams begin with 1.

        Raises:
            ValueError: the weight is out of range.
            TypeError: it is not an int.
        """
        check_weight(weight)
        if stream.buffers is not None:
            self.scheduler.set_weight(stream.buffers, weight)

    def accept(self, stream: StreamState, window: int = 0) -> None:
        """Accept a stream that the peer offered, where the protocol has such a frame.

        Args:
            stream: the offered stream.
            window: the receive window to announce; 0: `default_window`.
        """
        frame = self.protocol.accept_frame(self.side, stream, window or self.default_window())
        if frame is not None:
            self.send_frame(frame)

    def default_window(self) -> int:
        """The receive window for the next stream, in the protocol's unit.

        Where windows are in bytes, it is smaller than `Protocol.receive_window` if the windows of
        the session would otherwise add up to too much; see `window_budget`.
        """
        protocol = self.protocol
        if not protocol.has_credit or protocol.content_is_messages:
            return protocol.receive_window
        committed = self.receive_queue.window_bytes + self.receive_queue.unread_bytes
        return max(
            protocol.min_receive_window,
            next_window(self.limits, committed, protocol.receive_window),
        )

    def send(self, stream: StreamState, data: bytes) -> None:
        """Queue `data`. It is sent when the stream has credit and the scheduler reaches it.

        Raises:
            StreamEnded: this side has ended or aborted the stream.
            LimitExceeded: a message is too long.
            LocalProtocolError: the protocol cannot send this content.
        """
        buffers = self._send_buffers(stream)
        if len(data) == 0 and not self.protocol.content_is_messages:
            return
        self.check_content(stream, data)
        buffers.outgoing.append(data)
        self.scheduler.enqueue(stream, buffers, len(data))

    def send_many(self, stream: StreamState, pieces: list[bytes]) -> None:
        """Queue many pieces, each a frame of its own where it fits: all of them, or none.

        Raises as `send` does.
        """
        buffers = self._send_buffers(stream)
        scheduler = self.scheduler
        before = len(buffers.outgoing)
        size: i64 = 0
        try:
            for data in pieces:  # each is checked with those before it already queued
                if len(data) > 0 or self.protocol.content_is_messages:
                    self.check_content(stream, data)
                    buffers.outgoing.append(data)
                    scheduler.enqueue(stream, buffers, len(data))
                    size += len(data)
        except PolymuxError:
            del buffers.outgoing[before:]
            scheduler.undo_enqueue(buffers, size)
            raise

    def _send_buffers(self, stream: StreamState) -> StreamBuffers:
        """The buffers of a stream on which this side may still send; else raise StreamEnded."""
        buffers = stream.buffers
        own = stream.dialer if self.side == DIALER else stream.acceptor
        if buffers is None or buffers.end_queued or own.state != OPEN:
            raise StreamEnded(f"stream {stream.label()} has ended on this side")
        return buffers

    def check_content(self, stream: StreamState, data: bytes) -> None:
        """Raise LimitExceeded or LocalProtocolError for content that could never be sent."""
        if self.protocol.content_is_messages and len(data) > self.protocol.max_sent_frame_bytes:
            raise LimitExceeded(
                f"a message of {len(data)} bytes: "
                f"limit max_frame_bytes={self.protocol.max_sent_frame_bytes}; "
                "raise it with Limits(max_frame_bytes=...)"
            )
        if self.protocol.restricts_content:
            problem = self.protocol.send_error(self.side, stream, data)
            if problem:
                raise LocalProtocolError(problem)

    def end(self, stream: StreamState) -> None:
        """End this side's half after the queued content was sent. A second call has no effect.

        Raises:
            LocalProtocolError: the protocol cannot end the half here; nothing has changed.
        """
        buffers = stream.buffers
        if buffers is not None and stream.half(self.side).state == OPEN and not buffers.end_queued:
            problem = self.protocol.end_error(self.side, stream)
            if problem:
                raise LocalProtocolError(f"stream {stream.label()}: {problem}")
            buffers.end_queued = True
            self.scheduler.schedule(stream, buffers)

    def abort(self, stream: StreamState, text: bytes = b"") -> None:
        """Abort the stream: drop queued and unread content, queue an abort unless it is over.

        A second call has no effect.

        Args:
            stream: the stream.
            text: the reason, where the protocol can send one.
        """
        buffers = stream.buffers
        if buffers is not None:
            self.scheduler.discard_outgoing(buffers)
            self.receive_queue.discard(buffers)
            if buffers.aborted:
                return
            buffers.aborted = True
        own = stream.half(self.side)
        if own.last_frame_index == NEVER and not stream.over:
            self.queue_frame(stream, self.protocol.abort_frame(self.side, stream, text))

    def stop_reading(self, stream: StreamState) -> None:
        """Drop unread content and all that will arrive; notify the peer where the protocol can."""
        buffers = stream.buffers
        if buffers is None or buffers.discarding:
            return
        units: i64 = len(buffers.received)
        size = self.receive_queue.discard(buffers)
        if stream.half(1 - self.side).state == OPEN and not stream.over:
            self.queue_frame(stream, self.protocol.stop_reading_frame(self.side, stream))
            self.read(stream, units if self.protocol.content_is_messages else size)

    def read(self, stream: StreamState, amount: int) -> None:
        """The application has read `amount` units: return their credit to the peer.

        Credit is collected and granted in one frame when it reaches a share of the window, half of
        it in most protocols.
        """
        buffers = stream.buffers
        half = stream.half(1 - self.side)
        if buffers is None or half.credit_granted < 0 or half.state != OPEN or stream.over:
            return
        buffers.unreturned_credit += amount
        if buffers.unreturned_credit * self.protocol.credit_grants_per_window >= (
            buffers.target_window if buffers.target_window > 0 else half.window
        ):
            amount = buffers.unreturned_credit
            buffers.unreturned_credit = 0
            amount += self.protocol.window_growth(self.side, stream, amount, self.now)
            self.queue_frame(stream, self.protocol.credit_frame(self.side, stream, amount))

    def resume(self, stream: StreamState) -> None:
        """Credit was granted or the stream was accepted: schedule it again."""
        if stream.buffers is not None:
            self.scheduler.schedule(stream, stream.buffers)

    def queue_frame(self, stream: StreamState, frame: Frame | None) -> None:
        """Queue a frame for this incarnation of the stream; it is validated when it is sent."""
        if frame is not None:
            if frame.incarnation < 0:
                frame.incarnation = stream.incarnation
            self.scheduler.control_queue.append(frame)

    def send_frame(self, frame: Frame, force: bool = False) -> None:
        """Encode any frame of the protocol now, after those that were encoded before.

        Args:
            frame: the frame.
            force: send it even if it breaks a rule, for tests and replays.

        Raises:
            LocalProtocolError: it breaks a rule of severity error; nothing has changed.
        """
        mask = self.connection.validate_outgoing(self.side, frame, len(frame.payload))
        if mask & self.protocol.error_mask and not force:
            raise LocalProtocolError(str(self._first_violation(mask & ~CROSSED)))
        self.scheduler.write_validated_frame(frame, self.now)

    def _first_violation(self, violation_mask: i64) -> Violation:
        """The first error in the mask of the frame last validated, as a violation."""
        p = self.protocol
        head = self.connection.head
        bit: i64 = 1
        while not violation_mask & p.error_mask & bit:
            bit <<= 1
        stream = p.streams.find(head.key)
        return Violation(
            rules_in_mask(p.rules, bit)[0],
            Side(self.side),
            p.causality.frames_sent(self.side),
            0,
            self.now,
            stream.label() if stream is not None else "",
            Certainty.CERTAIN,
            p.explain(bit, self.side, head, stream),
        )

    def take_received(self, buffers: StreamBuffers) -> list[bytes | memoryview]:
        """Remove and return all unread content of a stream; the caller owns the list."""
        return self.receive_queue.take_received(buffers)
