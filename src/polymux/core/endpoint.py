"""A live side of a conversation, without I/O: verbs in, octets out; octets in, events out."""

from mypy_extensions import i64

from .carrier import WEBSOCKET, Enveloped
from .carrier_live import LiveCarrier
from .conversation import Conversation
from .errors import LimitExceeded, LocalProtocolError, NoFreeIds, PeerViolation, StreamEnded
from .events import Event
from .frames import Frame
from .inbox import Inbox
from .limits import Counters, Limits
from .outbox import Outbox
from .protocol import NO_ID, Protocol
from .rules import CROSSED, Certainty, Reaction, Violation, broken
from .side import Side
from .streams import NEVER, OPEN, Lane, Stream

NANO = 1_000_000_000


class Endpoint:
    """One end of a connection. `now` is seconds on any clock that does not go back.

    With `direct`, content waits in each stream's lane (see `Inbox`) instead of `Data` events.
    """

    def __init__(self, protocol: Protocol, side: i64, direct: bool = False) -> None:
        self.protocol = protocol
        self.side: i64 = side
        self.limits: Limits = protocol.limits
        self.inbox: Inbox = Inbox(side, direct)
        self.conversation: Conversation = Conversation(protocol, self.inbox, None)
        self.conversation.refuses = 1 - side
        self.outbox: Outbox = Outbox(self.conversation, side)
        self.counters: Counters = Counters()
        self.failure: Violation | None = None
        self.now: i64 = 0
        self.live: i64 = 0  # streams the peer opened that are not over
        self.carrier: LiveCarrier | None = None
        if isinstance(protocol, Enveloped) and protocol.carrier == WEBSOCKET:
            self.carrier = LiveCarrier(self.conversation, protocol, side)

    # --- octets

    def start(self, nonce: bytes = b"") -> None:
        """Say the first words the protocol asks for. `nonce`: 16 random octets or more."""
        if self.carrier is not None:
            self.carrier.sow(nonce)
        hello = self.protocol.hello(self.side, nonce)
        if hello is not None:
            self.outbox.say(hello, self.now)

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Octets from the peer; what happened. Raises PeerViolation when the session must end."""
        self.now = int(now * NANO)
        if self.carrier is None:
            self.conversation.feed(1 - self.side, data, self.now)
        else:
            self.carrier.feed(1 - self.side, data, self.now)
        self.settle()
        events = self.inbox.events
        self.inbox.events = []
        return events

    def settle(self) -> None:
        """Pay what is owed, give up faulted streams, and see whether the peer broke a rule."""
        c = self.conversation
        if c.violations:
            self.note_violations()
        if len(c.faulted) > 0:
            for stream in c.faulted:
                self.abort(stream, b"protocol error")
            c.faulted.clear()
        if self.protocol.duties:
            self.pay()

    def note_violations(self) -> None:
        c = self.conversation
        lost = c.direction(1 - self.side).lost
        for violation in c.violations:
            self.counters.count(violation.rule.name)
            if self.failure is None and lost and violation.rule.reaction is Reaction.SESSION:
                self.failure = violation
        c.violations.clear()
        if self.failure is not None:
            raise PeerViolation(str(self.failure))

    def pay(self) -> None:
        """Queue what this side owes, as far as it may be sent now."""
        for duty in list(self.protocol.duties.values()):
            if duty.side == self.side and not duty.due:
                frame = self.protocol.paying(duty)
                if frame is None:
                    continue
                duty.due = True
                stream = self.protocol.streams.find(duty.key)
                if stream is not None and stream.lane is not None and self.protocol.silences(duty):
                    self.outbox.drop(stream.lane)
                self.queue(frame)

    def data_to_send(self, room: i64 = 262144) -> bytes:
        """The next octets for the peer; empty when there is nothing to send.

        Take them before handing in what the peer has sent: a frame that was formed before reading
        must leave before it. `room=0` gives only what is formed already, and answers.
        """
        return b"".join(self.chunks_to_send(room))

    def chunks_to_send(self, room: i64 = 262144) -> list[bytes]:
        """The same in pieces, large payloads not copied; the caller owns the list."""
        chunks = self.outbox.flush(self.now, room)
        return chunks if self.carrier is None else self.carrier.wrap(chunks)

    def pending(self) -> bool:
        """Is anything waiting that could be sent now?"""
        if self.carrier is not None and self.carrier.pending():
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
            stream.lane = Lane(stream)
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
        lane = stream.lane
        if lane is None or lane.ending or stream.half(self.side).state != OPEN:
            raise StreamEnded(f"stream {stream.label()} has ended on this side")
        if len(data) == 0 and not self.protocol.messages:
            return
        if self.protocol.messages and len(data) > self.protocol.send_frame:
            raise LimitExceeded(f"a message of {len(data)} octets: {self.limits.describe('frame')}")
        problem = self.protocol.refuse(self.side, stream, data)
        if problem:
            raise LocalProtocolError(problem)
        lane.outgoing.append(data)
        lane.queued += len(data)
        self.outbox.queued += len(data)
        if not lane.turn:
            self.outbox.add(lane)

    def end(self, stream: Stream) -> None:
        """End this side's half after what is queued has left. Ending twice changes nothing."""
        lane = stream.lane
        if lane is not None and stream.half(self.side).state == OPEN and not lane.ending:
            problem = self.protocol.refuse_end(self.side, stream)
            if problem:
                raise LocalProtocolError(f"stream {stream.label()}: {problem}")
            lane.ending = True
            self.outbox.add(lane)

    def abort(self, stream: Stream, text: bytes = b"") -> None:
        """Give the stream up: drop what is queued and tell the peer, unless it is over."""
        lane = stream.lane
        if lane is not None:
            self.outbox.drop(lane)
            lane.dropped = True
        own = stream.half(self.side)
        if own.final == NEVER and not stream.over:
            frame = self.protocol.aborting(self.side, stream, text)
            if frame is not None:
                self.queue(frame)

    def read(self, stream: Stream, amount: int) -> None:
        """The application has read `amount` units: give leave back at half the window."""
        lane = stream.lane
        half = stream.half(1 - self.side)
        if lane is None or half.granted < 0 or half.state != OPEN or stream.over:
            return
        lane.held += amount
        if lane.held * 2 >= (lane.window if lane.window > 0 else half.window):
            frame = self.protocol.granting(self.side, stream, lane.held)
            lane.held = 0
            if frame is not None:
                self.queue(frame)

    def resume(self, stream: Stream) -> None:
        """Leave has come or the stream was accepted: let it have its turn again."""
        if stream.lane is not None:
            self.outbox.add(stream.lane)

    def queue(self, frame: Frame) -> None:
        """An answer; it is judged when it leaves."""
        if len(self.outbox.control) >= self.limits.control_queue:
            self.counters.count("control_queue")
            raise LimitExceeded(
                f"the peer does not read our answers: {self.limits.describe('control_queue')}"
            )
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
