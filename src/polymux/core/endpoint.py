# mypyc: compiled
"""A live side of a conversation, without I/O: verbs in, octets out; octets in, events out."""

from mypy_extensions import i64

from polymux.core.connection import Conversation
from polymux.core.errors import (
    LimitExceeded,
    LocalProtocolError,
    NoFreeIds,
    PeerViolation,
    PolymuxError,
    StreamEnded,
)
from polymux.core.events import Aborted, Event
from polymux.core.flood_guard import Guard
from polymux.core.frames import Frame
from polymux.core.limits import Counters, Limits
from polymux.core.protocol import NO_ID, Protocol
from polymux.core.receive_queue import Inbox
from polymux.core.rules import CROSSED, Certainty, Reaction, Violation, broken
from polymux.core.send_scheduler import Outbox
from polymux.core.side import Side
from polymux.core.streams import ABORTED, NEVER, OPEN, Lane, Stream
from polymux.core.websocket.layer import WEBSOCKET, Enveloped
from polymux.core.websocket.live_layer import LiveCarrier

NANO = 1_000_000_000


class Endpoint:
    """One end of a connection. `now` is seconds on any clock that does not go back.

    With `direct`, content waits in each stream's lane (see `Inbox`) instead of `Data` events.
    """

    def __init__(self, protocol: Protocol, side: i64, direct: bool = False) -> None:
        self.protocol = protocol
        self.side: i64 = side
        self.limits: Limits = protocol.limits
        self.inbox: Inbox = Inbox(side, direct, protocol.messages)
        self.conversation: Conversation = Conversation(protocol, self.inbox, None)
        self.conversation.refuses = 1 - side
        self.outbox: Outbox = Outbox(self.conversation, side)
        self.counters: Counters = Counters()
        self.guard: Guard = Guard(self.limits, self.counters)
        self.guard.watch(self.inbox, self.conversation.direction(1 - side), self.conversation.head)
        self.failure: Violation | None = None
        self.faults: dict[str, str] = {}  # stream label to what the peer broke on it just now
        self.owing: bool = False  # something is owed that is answered when it can leave
        self.now: i64 = 0
        self.carrier: LiveCarrier | None = None
        if isinstance(protocol, Enveloped) and protocol.carrier == WEBSOCKET:
            self.carrier = LiveCarrier(self.conversation, protocol, side)

    # --- octets

    def __repr__(self) -> str:
        return f"<polymux endpoint of {self.protocol.name}, {Side(self.side).name.lower()}>"

    def start(self, nonce: bytes = b"") -> None:
        """Say the first words the protocol asks for. `nonce`: 16 random octets or more."""
        if self.carrier is not None:
            self.carrier.sow(nonce)
        hello = self.protocol.hello(self.side, nonce)
        if hello is not None:
            self.outbox.say(hello, self.now)

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Octets from the peer; what happened.

        PeerViolation or LimitExceeded when the session must end; nothing more can come of it then.
        """
        self.guard.answers(len(self.outbox.control))
        self.now = int(now * NANO)
        if self.carrier is None:
            self.conversation.feed(1 - self.side, data, self.now)
        else:
            self.carrier.feed(1 - self.side, data, self.now)
            self.inbox.idle += self.carrier.hollow()
        self.settle()
        return self.take_events()

    def take_events(self) -> list[Event]:
        """What happened since the last call; our own frames can end streams too."""
        events = self.inbox.events
        self.inbox.events = []
        return events

    def settle(self) -> None:
        """See what the peer broke, give up faulted streams, and pay what is owed."""
        c = self.conversation
        if c.violations or c.tallied:
            self.note_violations()
        self.guard.weigh(self.inbox, c, self.now)
        d = c.direction(1 - self.side)
        if d.lost:
            raise PeerViolation(d.reason)
        if c.faulted:
            self.give_up_faulted()
        if self.protocol.duties:
            self.pay(False)
        if self.inbox.shed:
            self.acknowledge_shed()

    def note_violations(self) -> None:
        """Count what was broken; PeerViolation if it cannot be put up with."""
        c = self.conversation
        if c.tallied:
            c.tallied = False
            for i, rule in enumerate(self.protocol.rules):
                if c.tallies[i] > 0:
                    self.counters.count(rule.name, c.tallies[i])
                    c.tallies[i] = 0
        lost = c.direction(1 - self.side).lost
        for violation in c.violations:
            self.counters.count(violation.rule.name)
            if violation.rule.reaction is Reaction.STREAM:
                self.faults[violation.stream] = f"{violation.rule.name}: {violation.detail}"
            if self.failure is None and lost and violation.rule.reaction is Reaction.SESSION:
                self.failure = violation
        c.violations.clear()
        if self.failure is not None:
            raise PeerViolation(str(self.failure))

    def give_up_faulted(self) -> None:
        """Abort the streams on which the peer broke a rule; the event's text names the rule."""
        c = self.conversation
        for stream in list(c.faulted.values()):
            own = stream.half(self.side)
            if own.final == NEVER and own.state != ABORTED and not stream.over:
                self.guard.provoke(self.now)
                reason = self.faults.get(stream.label(), "protocol error").encode()
                self.abort(stream, reason)
                self.inbox.events.append(Aborted(stream, reason))
        c.faulted.clear()
        self.faults.clear()

    def turn_away(self, stream: Stream, text: bytes = b"") -> None:
        """Refuse a stream the peer has opened. LimitExceeded if it opens too many such."""
        self.guard.provoke(self.now)
        self.abort(stream, text)

    def acknowledge_shed(self) -> None:
        """Content came that nobody will read. A peer with leave gets it back, so that it can come
        to its end; one without is stopped once it has sent a stream's share for nothing."""
        for stream in self.inbox.shed:
            lane = stream.lane
            if lane is None:
                continue
            size = lane.unread
            lane.unread = 0
            theirs = stream.half(1 - self.side)
            if theirs.window >= 0:
                if stream.half(self.side).final == NEVER:
                    self.read(stream, size)
            elif theirs.granted < 0:
                lane.held += size
                if lane.held > self.limits.stream_buffer:
                    lane.held = 0
                    self.abort(stream)
        self.inbox.shed.clear()

    def pay(self, leaving: bool) -> None:
        """Queue what this side owes, as far as it may be sent now and the queue has room.

        What depends on who reads here is answered only when it is `leaving`: it may have come
        together with octets that nobody could have read yet.
        """
        duties = self.protocol.duties
        room: i64 = self.limits.control_queue
        for duty in list(duties.values()):
            if duty.side != self.side:
                if len(duties) > self.limits.remembered:  # the peer owes without end: let it
                    del duties[(duty.side, duty.kind, duty.key)]
                continue
            if not duty.due and len(self.outbox.control) < room:
                if not leaving and self.protocol.hesitates(duty):
                    self.owing = True
                    continue
                frame = self.protocol.paying(duty)
                if frame is None:
                    continue
                duty.due = True
                stream = self.protocol.streams.find(duty.key)
                if stream is not None and stream.lane is not None and self.protocol.silences(duty):
                    self.outbox.drop(stream.lane)
                self.outbox.control.append(frame)

    def data_to_send(self, room: i64 = 262144) -> bytes:
        """The next octets for the peer; empty when there is nothing to send.

        Take them before handing in what the peer has sent: a frame that was formed before reading
        must leave before it. `room=0` gives only what is formed already, and answers.
        """
        return b"".join(self.chunks_to_send(room))

    def chunks_to_send(self, room: i64 = 262144) -> list[bytes]:
        """The same in pieces, large payloads not copied; the caller owns the list."""
        chunks = self.outbox.flush(self.now, room)
        self.owing = False
        if self.protocol.duties:  # what has just been formed can oblige us too
            self.pay(True)
            if len(self.outbox.control) > 0:
                chunks.extend(self.outbox.flush(self.now, 0))
        return chunks if self.carrier is None else self.carrier.wrap(chunks)

    def pending(self) -> bool:
        """Is anything waiting that could be sent now?"""
        if self.owing or (self.carrier is not None and self.carrier.pending()):
            return True
        return len(self.outbox.control) > 0 or self.outbox.turn < len(self.outbox.turns)

    def hang_up(self, code: int = 1000, reason: str = "") -> None:
        """Close the carrier, where it has a way to say so, after what can be sent now."""
        if self.carrier is not None:
            self.carrier.hang_up(code, reason)

    def finish(self) -> bool:
        """The peer will send no more. False if it stopped in the middle of a frame."""
        if self.carrier is not None:
            return self.carrier.course(1 - self.side).decoder.pending() == 0
        d = self.conversation.direction(1 - self.side)
        return not d.open and d.waiting() == 0

    # --- verbs

    def open(self, name: bytes = b"", window: int = 0) -> Stream:
        """Open a stream. Nothing is sent or changed if it is refused."""
        if len(name) > self.protocol.max_name:
            raise LimitExceeded(
                f"a name of {len(name)} octets is over the limit of {self.protocol.max_name}; "
                "raise it with Limits(name=...) or, for metadata, Limits(metadata=...)"
            )
        if not self.protocol.handshaken:
            raise LocalProtocolError("the peer's handshake has not come yet")
        key = self.protocol.allocate(self.side)
        if key == NO_ID:
            raise NoFreeIds("every stream id this side may use is taken; use a new connection")
        frame = self.protocol.opening(self.side, key, name, window or self.protocol.window)
        if frame is None:
            stream = self.protocol.prepare(self.side, key)
            stream.lane = Lane()
            return stream
        self.outbox.say(frame, self.now)
        opened = self.protocol.streams.find(key)
        assert opened is not None
        return opened

    def accept(self, stream: Stream, window: int = 0) -> None:
        """Accept a stream the peer offered, where the protocol asks for it."""
        frame = self.protocol.accepting(self.side, stream, window or self.protocol.window)
        if frame is not None:
            self.put(frame)

    def send(self, stream: Stream, data: bytes) -> None:
        """Queue content; it leaves when the peer gives leave and it is this stream's turn."""
        lane = self.open_lane(stream)
        if len(data) == 0 and not self.protocol.messages:
            return
        self.check(stream, data)
        lane.outgoing.append(data)
        self.outbox.load(stream, lane, len(data))

    def send_many(self, stream: Stream, pieces: list[bytes]) -> None:
        """Queue many pieces, each a frame of its own where it fits; all of them, or none."""
        lane = self.open_lane(stream)
        outbox = self.outbox
        before = len(lane.outgoing)
        size: i64 = 0
        try:
            for data in pieces:  # each is judged with those before it already queued
                if len(data) > 0 or self.protocol.messages:
                    self.check(stream, data)
                    lane.outgoing.append(data)
                    outbox.load(stream, lane, len(data))
                    size += len(data)
        except PolymuxError:
            del lane.outgoing[before:]
            outbox.unload(lane, size)
            raise

    def open_lane(self, stream: Stream) -> Lane:
        """The lane of a stream on which this side may still send."""
        lane = stream.lane
        if lane is None or lane.ending or stream.half(self.side).state != OPEN:
            raise StreamEnded(f"stream {stream.label()} has ended on this side")
        return lane

    def check(self, stream: Stream, data: bytes) -> None:
        """Refuse content that could never leave."""
        if self.protocol.messages and len(data) > self.protocol.send_frame:
            raise LimitExceeded(
                f"a message of {len(data)} octets: limit frame={self.protocol.send_frame}; raise "
                f"it with Limits(frame=...)"
            )
        problem = self.protocol.refuse(self.side, stream, data)
        if problem:
            raise LocalProtocolError(problem)

    def end(self, stream: Stream) -> None:
        """End this side's half after what is queued has left. Ending twice changes nothing."""
        lane = stream.lane
        if lane is not None and stream.half(self.side).state == OPEN and not lane.ending:
            problem = self.protocol.refuse_end(self.side, stream)
            if problem:
                raise LocalProtocolError(f"stream {stream.label()}: {problem}")
            lane.ending = True
            self.outbox.add(stream, lane)

    def abort(self, stream: Stream, text: bytes = b"") -> None:
        """Give the stream up: drop what is queued and unread, and tell the peer unless it is over.

        Aborting twice changes nothing.
        """
        lane = stream.lane
        if lane is not None:
            self.outbox.drop(lane)
            self.inbox.drop(lane)
            if lane.given_up:
                return
            lane.given_up = True
        own = stream.half(self.side)
        if own.final == NEVER and not stream.over:
            self.answer(stream, self.protocol.aborting(self.side, stream, text))

    def stop_reading(self, stream: Stream) -> None:
        """Drop what waits and what will come; the peer is told where the protocol can say so."""
        lane = stream.lane
        if lane is None or lane.dropped:
            return
        units: i64 = len(lane.inbox)
        size = self.inbox.drop(lane)
        if stream.half(1 - self.side).state == OPEN and not stream.over:
            self.answer(stream, self.protocol.refusing(self.side, stream))
            self.read(stream, units if self.protocol.messages else size)

    def read(self, stream: Stream, amount: int) -> None:
        """The application has read `amount` units: give leave back at half the window."""
        lane = stream.lane
        half = stream.half(1 - self.side)
        if lane is None or half.granted < 0 or half.state != OPEN or stream.over:
            return
        lane.held += amount
        if lane.held * 2 >= (lane.window if lane.window > 0 else half.window):
            amount = lane.held
            lane.held = 0
            self.answer(stream, self.protocol.granting(self.side, stream, amount))

    def resume(self, stream: Stream) -> None:
        """Leave has come or the stream was accepted: let it have its turn again."""
        if stream.lane is not None:
            self.outbox.add(stream, stream.lane)

    def answer(self, stream: Stream, frame: Frame | None) -> None:
        """Queue a frame about this use of the stream's id; it is judged when it leaves."""
        if frame is not None:
            if frame.use < 0:
                frame.use = stream.incarnation
            self.outbox.control.append(frame)

    def put(self, frame: Frame, force: bool = False) -> None:
        """Send any frame of the protocol now, after what was put before.

        Refused if it breaks a rule of severity error: nothing has changed then. `force` is for
        testers, attacks and replays.
        """
        verdict = self.conversation.utter(self.side, frame, len(frame.payload))
        if verdict & self.protocol.errors and not force:
            raise LocalProtocolError(str(self.complaint(verdict & ~CROSSED)))
        self.outbox.write(frame, self.now)

    def complaint(self, verdict: i64) -> Violation:
        """The first rule of a verdict on the frame at hand, as a violation."""
        p = self.protocol
        head = self.conversation.head
        bit: i64 = 1
        while not verdict & p.errors & bit:
            bit <<= 1
        stream = p.streams.find(head.key)
        return Violation(
            broken(p.rules, bit)[0],
            Side(self.side),
            p.sight.sent(self.side),
            0,
            self.now,
            stream.label() if stream is not None else "",
            Certainty.CERTAIN,
            p.explain(bit, self.side, head, stream),
        )

    def take(self, lane: Lane) -> list[bytes | memoryview]:
        """Everything that waits in a stream's lane."""
        return self.inbox.take(lane)
