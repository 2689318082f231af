# mypyc: compiled
"""A live side of a conversation, without I/O: verbs in, bytes out; bytes in, events out."""

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
from polymux.core.send_scheduler import SendScheduler
from polymux.core.side import Side
from polymux.core.streams import ABORTED, NEVER, OPEN, StreamBuffers, StreamState
from polymux.core.websocket.layer import WEBSOCKET, MessageProtocol
from polymux.core.websocket.live_layer import LiveWebSocketLayer

NS_PER_SECOND = 1_000_000_000


class Endpoint:
    """One end of a connection. `now` is seconds on any clock that does not go back.

    With `direct`, content waits in each stream's lane (see `Inbox`) instead of `Data` events.
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
        self.abort_reasons: dict[
            str, str
        ] = {}  # stream label to what the peer broke on it just now
        self.has_deferred_replies: bool = (
            False  # something is owed that is answered when it can leave
        )
        self.now: i64 = 0
        self.websocket: LiveWebSocketLayer | None = None
        if isinstance(protocol, MessageProtocol) and protocol.carrier == WEBSOCKET:
            self.websocket = LiveWebSocketLayer(self.connection, protocol, side)

    # --- bytes

    def __repr__(self) -> str:
        return f"<polymux endpoint of {self.protocol.name}, {Side(self.side).name.lower()}>"

    def start(self, nonce: bytes = b"") -> None:
        """Say the first words the protocol asks for. `nonce`: 16 random bytes or more."""
        if self.websocket is not None:
            self.websocket.seed_masking_keys(nonce)
        hello = self.protocol.handshake_frame(self.side, nonce)
        if hello is not None:
            self.scheduler.send_frame(hello, self.now)

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Bytes from the peer; what happened.

        PeerViolation or LimitExceeded when the session must end; nothing more can come of it then.
        """
        self.flood_guard.check_reply_queue(len(self.scheduler.control_queue))
        self.now = int(now * NS_PER_SECOND)
        if self.websocket is None:
            self.connection.receive(1 - self.side, data, self.now)
        else:
            self.websocket.receive(1 - self.side, data, self.now)
            self.receive_queue.empty_frames += self.websocket.take_empty_frames()
        self._after_receive()
        return self.take_events()

    def take_events(self) -> list[Event]:
        """What happened since the last call; our own frames can end streams too."""
        events = self.receive_queue.events
        self.receive_queue.events = []
        return events

    def _after_receive(self) -> None:
        """See what the peer broke, give up faulted streams, and pay what is owed."""
        c = self.connection
        if c.violations or c.has_tolerated:
            self._count_violations()
        self.flood_guard.charge_chunk(self.receive_queue, c, self.now)
        d = c.direction(1 - self.side)
        if d.decoding_stopped:
            raise PeerViolation(d.stop_reason)
        if c.streams_to_abort:
            self._abort_violating_streams()
        if self.protocol.pending_replies:
            self._queue_replies(False)
        if self.receive_queue.discarded_streams:
            self._return_credit_for_discarded()

    def _count_violations(self) -> None:
        """Count what was broken; PeerViolation if it cannot be put up with."""
        c = self.connection
        if c.has_tolerated:
            c.has_tolerated = False
            for i, rule in enumerate(self.protocol.rules):
                if c.tolerated_counts[i] > 0:
                    self.counters.count(rule.name, c.tolerated_counts[i])
                    c.tolerated_counts[i] = 0
        lost = c.direction(1 - self.side).decoding_stopped
        for violation in c.violations:
            self.counters.count(violation.rule.name)
            if violation.rule.reaction is Reaction.STREAM:
                self.abort_reasons[violation.stream] = f"{violation.rule.name}: {violation.detail}"
            if (
                self.fatal_violation is None
                and lost
                and violation.rule.reaction is Reaction.SESSION
            ):
                self.fatal_violation = violation
        c.violations.clear()
        if self.fatal_violation is not None:
            raise PeerViolation(str(self.fatal_violation))

    def _abort_violating_streams(self) -> None:
        """Abort the streams on which the peer broke a rule; the event's text names the rule."""
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
        """Refuse a stream the peer has opened. LimitExceeded if it opens too many such."""
        self.flood_guard.charge_forced_abort(self.now)
        self.abort(stream, text)

    def _return_credit_for_discarded(self) -> None:
        """Content came that nobody will read. A peer with leave gets it back, so that it can come
        to its end; one without is stopped once it has sent a stream's share for nothing."""
        for stream in self.receive_queue.discarded_streams:
            lane = stream.buffers
            if lane is None:
                continue
            size = lane.unread_bytes
            lane.unread_bytes = 0
            theirs = stream.half(1 - self.side)
            if theirs.window >= 0:
                if stream.half(self.side).last_frame_index == NEVER:
                    self.read(stream, size)
            elif theirs.credit_granted < 0:
                lane.unreturned_credit += size
                if lane.unreturned_credit > self.limits.stream_buffer_bytes:
                    lane.unreturned_credit = 0
                    self.abort(stream)
        self.receive_queue.discarded_streams.clear()

    def _queue_replies(self, flushing: bool) -> None:
        """Queue what this side owes, as far as it may be sent now and the queue has room.

        What depends on who reads here is answered only when it is `leaving`: it may have come
        together with bytes that nobody could have read yet.
        """
        duties = self.protocol.pending_replies
        room: i64 = self.limits.max_queued_replies
        for duty in list(duties.values()):
            if duty.side != self.side:
                if (
                    len(duties) > self.limits.closed_streams_remembered
                ):  # the peer owes without end: let it
                    del duties[(duty.side, duty.kind, duty.key)]
                continue
            if not duty.queued and len(self.scheduler.control_queue) < room:
                if not flushing and self.protocol.defers_reply(duty):
                    self.has_deferred_replies = True
                    continue
                frame = self.protocol.reply_frame(duty)
                if frame is None:
                    continue
                duty.queued = True
                stream = self.protocol.streams.find(duty.key)
                if (
                    stream is not None
                    and stream.buffers is not None
                    and self.protocol.reply_discards_queued(duty)
                ):
                    self.scheduler.discard_outgoing(stream.buffers)
                self.scheduler.control_queue.append(frame)

    def data_to_send(self, room: i64 = 262144) -> bytes:
        """The next bytes for the peer; empty when there is nothing to send.

        Take them before handing in what the peer has sent: a frame that was formed before reading
        must leave before it. `room=0` gives only what is formed already, and answers.
        """
        return b"".join(self.chunks_to_send(room))

    def chunks_to_send(self, room: i64 = 262144) -> list[bytes]:
        """The same in pieces, large payloads not copied; the caller owns the list."""
        chunks = self.scheduler.flush(self.now, room)
        self.has_deferred_replies = False
        if self.protocol.pending_replies:  # what has just been formed can oblige us too
            self._queue_replies(True)
            if len(self.scheduler.control_queue) > 0:
                chunks.extend(self.scheduler.flush(self.now, 0))
        return chunks if self.websocket is None else self.websocket.encode(chunks)

    def pending(self) -> bool:
        """Is anything waiting that could be sent now?"""
        if self.has_deferred_replies or (self.websocket is not None and self.websocket.pending()):
            return True
        return len(self.scheduler.control_queue) > 0 or self.scheduler.next_ready < len(
            self.scheduler.ready_streams
        )

    def close_websocket(self, code: int = 1000, reason: str = "") -> None:
        """Close the carrier, where it has a way to say so, after what can be sent now."""
        if self.websocket is not None:
            self.websocket.queue_close(code, reason)

    def finish(self) -> bool:
        """The peer will send no more. False if it stopped in the middle of a frame."""
        if self.websocket is not None:
            return self.websocket.direction_decoder(1 - self.side).decoder.pending() == 0
        d = self.connection.direction(1 - self.side)
        return not d.in_payload and d.buffered_bytes() == 0

    # --- verbs

    def open(self, name: bytes = b"", window: int = 0) -> StreamState:
        """Open a stream. Nothing is sent or changed if it is refused."""
        if len(name) > self.protocol.max_name_bytes:
            raise LimitExceeded(
                f"a name of {len(name)} bytes is over the limit of {self.protocol.max_name_bytes}; "
                "raise it with Limits(max_name_bytes=...) or, for metadata, Limits(max_metadata_bytes=...)"
            )
        if not self.protocol.handshake_done:
            raise LocalProtocolError("the peer's handshake has not come yet")
        key = self.protocol.allocate(self.side)
        if key == NO_ID:
            raise NoFreeIds("every stream id this side may use is taken; use a new connection")
        frame = self.protocol.open_frame(
            self.side, key, name, window or self.protocol.receive_window
        )
        if frame is None:
            stream = self.protocol.reserve_stream(self.side, key)
            stream.buffers = StreamBuffers()
            return stream
        self.scheduler.send_frame(frame, self.now)
        opened = self.protocol.streams.find(key)
        assert opened is not None
        return opened

    def accept(self, stream: StreamState, window: int = 0) -> None:
        """Accept a stream the peer offered, where the protocol asks for it."""
        frame = self.protocol.accept_frame(
            self.side, stream, window or self.protocol.receive_window
        )
        if frame is not None:
            self.send_frame(frame)

    def send(self, stream: StreamState, data: bytes) -> None:
        """Queue content; it leaves when the peer gives leave and it is this stream's turn."""
        lane = self._send_buffers(stream)
        if len(data) == 0 and not self.protocol.content_is_messages:
            return
        self.check_content(stream, data)
        lane.outgoing.append(data)
        self.scheduler.enqueue(stream, lane, len(data))

    def send_many(self, stream: StreamState, pieces: list[bytes]) -> None:
        """Queue many pieces, each a frame of its own where it fits; all of them, or none."""
        lane = self._send_buffers(stream)
        outbox = self.scheduler
        before = len(lane.outgoing)
        size: i64 = 0
        try:
            for data in pieces:  # each is judged with those before it already queued
                if len(data) > 0 or self.protocol.content_is_messages:
                    self.check_content(stream, data)
                    lane.outgoing.append(data)
                    outbox.enqueue(stream, lane, len(data))
                    size += len(data)
        except PolymuxError:
            del lane.outgoing[before:]
            outbox.undo_enqueue(lane, size)
            raise

    def _send_buffers(self, stream: StreamState) -> StreamBuffers:
        """The lane of a stream on which this side may still send."""
        lane = stream.buffers
        if lane is None or lane.end_queued or stream.half(self.side).state != OPEN:
            raise StreamEnded(f"stream {stream.label()} has ended on this side")
        return lane

    def check_content(self, stream: StreamState, data: bytes) -> None:
        """Refuse content that could never leave."""
        if self.protocol.content_is_messages and len(data) > self.protocol.max_sent_frame_bytes:
            raise LimitExceeded(
                f"a message of {len(data)} bytes: limit max_frame_bytes={self.protocol.max_sent_frame_bytes}; raise "
                f"it with Limits(max_frame_bytes=...)"
            )
        problem = self.protocol.send_error(self.side, stream, data)
        if problem:
            raise LocalProtocolError(problem)

    def end(self, stream: StreamState) -> None:
        """End this side's half after what is queued has left. Ending twice changes nothing."""
        lane = stream.buffers
        if lane is not None and stream.half(self.side).state == OPEN and not lane.end_queued:
            problem = self.protocol.end_error(self.side, stream)
            if problem:
                raise LocalProtocolError(f"stream {stream.label()}: {problem}")
            lane.end_queued = True
            self.scheduler.schedule(stream, lane)

    def abort(self, stream: StreamState, text: bytes = b"") -> None:
        """Give the stream up: drop what is queued and unread, and tell the peer unless it is over.

        Aborting twice changes nothing.
        """
        lane = stream.buffers
        if lane is not None:
            self.scheduler.discard_outgoing(lane)
            self.receive_queue.discard(lane)
            if lane.aborted:
                return
            lane.aborted = True
        own = stream.half(self.side)
        if own.last_frame_index == NEVER and not stream.over:
            self.queue_frame(stream, self.protocol.abort_frame(self.side, stream, text))

    def stop_reading(self, stream: StreamState) -> None:
        """Drop what waits and what will come; the peer is told where the protocol can say so."""
        lane = stream.buffers
        if lane is None or lane.discarding:
            return
        units: i64 = len(lane.received)
        size = self.receive_queue.discard(lane)
        if stream.half(1 - self.side).state == OPEN and not stream.over:
            self.queue_frame(stream, self.protocol.stop_reading_frame(self.side, stream))
            self.read(stream, units if self.protocol.content_is_messages else size)

    def read(self, stream: StreamState, amount: int) -> None:
        """The application has read `amount` units: give leave back at half the window."""
        lane = stream.buffers
        half = stream.half(1 - self.side)
        if lane is None or half.credit_granted < 0 or half.state != OPEN or stream.over:
            return
        lane.unreturned_credit += amount
        if lane.unreturned_credit * 2 >= (
            lane.target_window if lane.target_window > 0 else half.window
        ):
            amount = lane.unreturned_credit
            lane.unreturned_credit = 0
            self.queue_frame(stream, self.protocol.credit_frame(self.side, stream, amount))

    def resume(self, stream: StreamState) -> None:
        """Leave has come or the stream was accepted: let it have its turn again."""
        if stream.buffers is not None:
            self.scheduler.schedule(stream, stream.buffers)

    def queue_frame(self, stream: StreamState, frame: Frame | None) -> None:
        """Queue a frame about this use of the stream's id; it is judged when it leaves."""
        if frame is not None:
            if frame.incarnation < 0:
                frame.incarnation = stream.incarnation
            self.scheduler.control_queue.append(frame)

    def send_frame(self, frame: Frame, force: bool = False) -> None:
        """Send any frame of the protocol now, after what was put before.

        Refused if it breaks a rule of severity error: nothing has changed then. `force` is for
        testers, attacks and replays.
        """
        verdict = self.connection.validate_outgoing(self.side, frame, len(frame.payload))
        if verdict & self.protocol.error_mask and not force:
            raise LocalProtocolError(str(self._first_violation(verdict & ~CROSSED)))
        self.scheduler.write_validated_frame(frame, self.now)

    def _first_violation(self, violation_mask: i64) -> Violation:
        """The first rule of a verdict on the frame at hand, as a violation."""
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
        """Everything that waits in a stream's lane."""
        return self.receive_queue.take_received(buffers)
