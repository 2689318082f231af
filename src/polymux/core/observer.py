# mypyc: compiled
"""A watcher of a conversation: octets of both sides in, rows, streams and violations out."""

from mypy_extensions import i64

from polymux.core.connection import Conversation
from polymux.core.events import Sink
from polymux.core.frames import Frames
from polymux.core.protocol import Protocol
from polymux.core.rules import Certainty, Violation, octets_text
from polymux.core.side import DIALER
from polymux.core.streams import Stream, load_stream
from polymux.core.varint import HOLD
from polymux.core.websocket.layer import LENGTH, Carrier, Enveloped


class Observer:
    """Notes what breaks a rule and goes on, as long as the start of the next frame is known."""

    def __init__(self, protocol: Protocol, rows: bool = True, sink: Sink | None = None) -> None:
        self.protocol = protocol
        self.rows: Frames | None = Frames() if rows else None
        self.conversation: Conversation = Conversation(protocol, sink, self.rows)
        protocol.streams.keep = True
        self.carrier: Carrier | None = None
        if isinstance(protocol, Enveloped) and protocol.carrier != LENGTH:
            self.carrier = Carrier(self.conversation, protocol, True)

    def __repr__(self) -> str:
        sight = self.protocol.sight
        seen = sight.sent(0) + sight.sent(1)
        return f"<polymux observer of {self.protocol.name}, {seen} frames seen>"

    def feed(self, sender: i64, data: bytes, at: i64) -> None:
        """The next octets of one side; `at` in nanoseconds."""
        if self.carrier is None:
            self.conversation.feed(sender, data, at)
        else:
            self.carrier.feed(sender, data, at)

    def gap(self, sender: i64, size: i64, at: i64) -> None:
        """Octets that were not captured."""
        if self.carrier is None:
            self.conversation.gap(sender, size, at)
        else:
            self.carrier.gap(sender, size, at)

    def doubt(self) -> None:
        """What was not seen (a start, an order) could excuse what is found from now on."""
        self.conversation.doubt = True

    def finish(self, at: i64, ended0: bool, ended1: bool) -> None:
        """No more will come. `ended`: that side was seen to close its direction."""
        c = self.conversation
        p = self.protocol
        if self.carrier is not None:
            self.carrier.finish(at)
        for side in (0, 1):
            d = c.direction(side)
            d.gather()
            if d.lost or not (d.open or len(d.pending) > 0):
                continue
            if not d.open and p.header(side, d.pending, 0, len(d.pending), c.head) == HOLD:
                c.lose(d, 0, d.offset, at, "the other direction's handshake never came")
                continue
            left = len(d.pending) + (d.done if d.open else 0)
            d.undecoded += left
            began = d.began if d.open else d.offset
            stream = d.stream if d.open else None
            ordinal = d.ordinal if d.open else p.sight.sent(side)
            d.open = False
            d.pending = b""
            if p.truncated:
                detail = f"{octets_text(left)} of an unfinished frame"
                c.blame(side, stream, p.truncated, [detail], ordinal, began, at)
        ended = ended0 and ended1
        certainty = Certainty.CERTAIN if ended and not c.doubt else Certainty.POSSIBLE
        for duty in p.finish(ended):
            if c.direction(duty.side).partial():
                continue  # it may have been paid where nothing was read
            stream = p.streams.find(duty.key)
            c.overdue(duty, stream.label() if stream is not None else "", certainty,
                      c.direction(duty.side).offset, at)  # fmt: skip
        for stream in p.streams.all():
            for half in (stream.dialer, stream.acceptor):
                half.release(at)

    def take_violations(self) -> list[Violation]:
        """Violations found since the last call."""
        found = self.conversation.violations
        self.conversation.violations = []
        return found

    def take_gone(self) -> list[Stream]:
        """Streams that left the table for good since the last call, and have no frame under way."""
        streams = self.protocol.streams
        gone: list[Stream] = []
        held: list[Stream] = []
        for stream in streams.gone:
            (held if self.protocol.may_be_meant(stream) else gone).append(stream)
        streams.gone = held
        for d in (self.conversation.dialer, self.conversation.acceptor):
            passing = d.stream
            if d.open and passing is not None and passing in gone:  # it still counts there
                gone.remove(passing)
                held.append(passing)
        return gone

    def balanced(self) -> bool:
        """Is every octet accounted for?"""
        c = self.conversation
        return c.dialer.balanced() and c.acceptor.balanced()

    def snapshot(self) -> dict[str, object]:
        """Everything needed to go on elsewhere, as plain data. Rows and findings must be taken."""
        c = self.conversation
        return {
            "protocol": self.protocol.save(),
            "gone": [stream.save() for stream in self.protocol.streams.gone],
            "dialer": c.dialer.save(),
            "acceptor": c.acceptor.save(),
            "verdicts": c.verdicts,
            "doubt": c.doubt,
            "filled": int(c.filled),
            "serials": c.serials,
            "carrier": self.carrier.save() if self.carrier is not None else None,
        }

    def restore(self, saved: dict[str, object]) -> None:
        """Go on from a snapshot; the observer must be fresh and of the same protocol."""
        c = self.conversation
        state, verdicts, serials = saved["protocol"], saved["verdicts"], saved["serials"]
        gone, filled = saved["gone"], saved["filled"]
        assert isinstance(filled, int)
        assert isinstance(state, dict)
        assert isinstance(gone, list)
        assert isinstance(verdicts, int)
        assert isinstance(serials, int)
        self.protocol.load(state)
        c.verdicts = verdicts
        c.serials = serials
        c.doubt = bool(saved["doubt"])
        c.filled = filled
        carried = saved["carrier"]
        if self.carrier is not None and isinstance(carried, list):
            self.carrier.load(carried)
        table = self.protocol.streams
        table.gone = [load_stream(entry) for entry in gone]
        self.protocol.relink(table.gone)
        streams = {stream.serial: stream for stream in [*table.all(), *table.gone]}
        for side, name in ((DIALER, "dialer"), (1 - DIALER, "acceptor")):
            kept = saved[name]
            assert isinstance(kept, dict)
            serial = kept["stream"]
            assert isinstance(serial, int)
            c.direction(side).load(kept, streams.get(serial))
        c.blind = c.dialer.partial() or c.acceptor.partial()
