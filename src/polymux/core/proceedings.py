# mypyc: compiled
"""One frame, wherever it came from: judged, applied, told of, and counted.

An observer's frames come from the wire, an endpoint's own come from its verbs; both pass here.
"""

from mypy_extensions import i64

from polymux.core.direction import Direction
from polymux.core.events import Sink
from polymux.core.frames import ACCEPTS, CONTENT, CONTROL, GRANTS, Frame, Head
from polymux.core.protocol import NO_STREAM, Protocol
from polymux.core.rules import CROSSED, Certainty, Violation, broken
from polymux.core.side import ACCEPTOR, DIALER, SIDES, UNORDERED
from polymux.core.streams import ABORTED, ENDED, OPEN, UNSEEN, Half, Stream


class Proceedings:
    """What is known of one connection: the protocol's state, two directions, violations."""

    def __init__(self, protocol: Protocol, sink: Sink) -> None:
        self.protocol = protocol
        self.sink = sink
        self.dialer: Direction = Direction(DIALER)
        self.acceptor: Direction = Direction(ACCEPTOR)
        self.head: Head = Head()
        self.violations: list[Violation] = []
        self.verdicts: i64 = 0  # every rule broken so far
        self.doubt: bool = protocol.sight.beside == UNORDERED
        self.serials: i64 = 0
        self.refuses: i64 = -1  # an endpoint refuses what its peer must not send; -1: an observer
        self.faulted: dict[int, Stream] = {}  # by serial: to abort for what the peer did on them
        # What an endpoint only counts: how often each rule was broken, on no stream, on a dead one.
        self.tallies: list[int] = [0] * len(protocol.rules)
        self.tallied: bool = False
        self.strays: i64 = 0
        self.late: i64 = 0
        self.before: i64 = OPEN  # state of the sender's half before the frame at hand
        self.blind: bool = False  # frames of a side are not seen any more: ledgers stand still

    def direction(self, side: i64) -> Direction:
        return self.dialer if side == DIALER else self.acceptor

    def utter(self, side: i64, frame: Frame, units: i64) -> i64:
        """Judge a frame that this side is about to send, without applying it."""
        p = self.protocol
        head = self.head
        head.clear()
        head.kind = frame.kind
        head.key = frame.key
        head.amount = frame.amount
        head.size = len(frame.payload)
        head.units = units
        head.text_size = head.size
        p.address(side, head)
        p.said = frame.payload
        p.sight.freeze(side)
        stream = p.streams.find(head.key) if head.opener != NO_STREAM else None
        return p.judge(side, head, stream)

    def pass_own(self, side: i64, text: bytes, at: i64) -> Stream | None:
        """Apply the frame that `utter` has just judged: it is being sent."""
        p = self.protocol
        d = self.direction(side)
        effect: i64 = p.effects[self.head.kind]
        size = self.head.size
        units = self.head.units
        self.decide(side, self.head, b"" if effect == CONTENT else text, d.offset, at)
        d.frames += 1
        stream = p.touched
        if stream is not None and effect == CONTENT and p.counted:
            self.count(stream.half(side), size, units, at)
        if stream is not None and effect == CONTENT and p.credit:
            self.measure_content(stream, stream.half(side), at)
        self.conclude(side, stream, text, at)
        return stream

    def decide(self, side: i64, head: Head, text: bytes, offset: i64, at: i64) -> i64:
        """Judge and apply a frame; tell of what it opened, accepted or granted."""
        p = self.protocol
        stream = p.streams.find(head.key) if head.opener != NO_STREAM else None
        if stream is not None and stream.incarnation > 1:
            stream = p.meant(side, head, stream)
        p.said = text
        p.midway = self.direction(1 - side).begun
        verdict = p.judge(side, head, stream)
        if verdict != 0:
            if self.direction(1 - side).partial():
                verdict = p.seen_alone(head, verdict)
            if self.direction(side).missed:
                verdict &= ~(p.mutual | p.sequel)
        verdict |= head.flaws
        blamed = verdict & ~CROSSED
        details: list[str] = []
        serious = True
        if side == self.refuses:
            given_up = stream is not None and stream.serial in self.faulted
            serious = verdict & (p.fatal if given_up else p.fatal | p.faults) != 0
        if blamed != 0 and serious:
            details = self.details(side, head, stream, blamed)
        self.before = stream.half(side).state if stream is not None else OPEN
        ordinal = p.sight.sent(side)
        p.forget()
        if side == self.refuses and verdict & p.fatal:  # not applied: the session is over
            self.blame(side, stream, blamed, details, ordinal, offset, at)
            return verdict
        p.apply(side, head, stream, at)
        p.sight.step(side)
        touched: Stream | None = p.touched
        effect: i64 = p.effects[head.kind]
        if touched is not None:
            if touched is not stream:  # a new use of the id
                self.before = OPEN
            if touched.serial < 0:
                self.born(side, touched, at)
            half = touched.half(side)
            half.frames += 1
            if p.credit and effect != CONTENT:  # content is measured when its last byte has passed
                self.measure(touched, at)
            if effect == ACCEPTS:
                if touched.accepted and touched.accepted_at == UNSEEN:
                    touched.accepted_at = at
                    self.sink.accepted(side, touched)
            elif effect == GRANTS:
                self.sink.granted(side, touched)
            if verdict & CROSSED:
                self.sink.crossed(side, touched)
            displaced = p.displaced
            if displaced is not None:
                displaced.dialer.release(at)
                displaced.acceptor.release(at)
                self.sink.aborted(side, displaced, b"")
        if (
            side == self.refuses and verdict & p.faults
        ):  # the stream is given up, its content dropped
            p.counted = False
            if touched is not None:
                self.faulted[touched.serial] = touched
        if effect == CONTROL:
            self.sink.control(side, touched, head.kind, head.amount, text)
        if blamed != 0:
            if serious:
                self.blame(side, touched, blamed, details, ordinal, offset, at)
            else:
                self.tally(blamed, touched)
                if touched is None and effect != CONTROL and not verdict & p.errors:
                    self.late += 1  # against advice only, but about nothing: as good as empty
        return verdict

    def tally(self, verdict: i64, stream: Stream | None) -> None:
        """Count what an endpoint puts up with; a flood of it must not cost an object a frame."""
        self.verdicts |= verdict
        self.tallied = True
        bit: i64 = 1
        for i in range(len(self.tallies)):
            if verdict & bit:
                self.tallies[i] += 1
            bit <<= 1
        if verdict & self.protocol.errors:
            if stream is None:
                self.strays += 1
            else:
                self.late += 1

    def born(self, side: i64, stream: Stream, at: i64) -> None:
        stream.serial = self.serials
        self.serials += 1
        stream.opened_at = at
        self.sink.opened(side, stream)

    def conclude(self, side: i64, stream: Stream | None, text: bytes, at: i64) -> None:
        """After a frame's last octet: tell of a half that ended or was aborted, and of the end."""
        if stream is None:
            return
        half = stream.half(side)
        if half.state != self.before:
            if half.state == ABORTED:
                self.sink.aborted(side, stream, text)
            elif half.state == ENDED:
                self.sink.ended(side, stream)
        if not stream.over and self.protocol.is_over(stream):
            stream.over = True
            stream.closed_at = at
            self.protocol.streams.retire(stream)
            self.sink.closed(stream)

    def count(self, half: Half, size: i64, units: i64, at: i64) -> None:
        half.octets += size
        half.units += units
        if half.first_at == UNSEEN:
            half.first_at = at
        half.last_at = at

    def measure_content(self, stream: Stream, half: Half, at: i64) -> None:
        """After content: has leave run out, and was never so much outstanding?"""
        granted = half.granted
        if granted >= 0 and not self.blind:
            spent = half.spent
            if spent >= granted:
                half.block(at)
            if half.window >= 0:
                outstanding = spent - (granted - half.window)
                if outstanding > half.peak:
                    half.peak = outstanding
            if half.state != OPEN or stream.over:
                half.release(at)

    def measure(self, stream: Stream, at: i64) -> None:
        """After any other frame: who has leave now?"""
        over = self.protocol.is_over(stream)
        for side in (DIALER, ACCEPTOR):
            each = stream.half(side)
            if each.granted >= 0:
                if each.state != OPEN or each.granted > each.spent or over:
                    each.release(at)
                elif not self.blind and not self.direction(side).fills(stream):
                    each.block(at)

    def stop_measuring(self, at: i64) -> None:
        """Frames were not seen: neither what is spent nor what is granted is known from now on."""
        self.blind = True
        if self.protocol.credit:
            for stream in self.protocol.streams.all():
                stream.dialer.release(at)
                stream.acceptor.release(at)

    # --- findings

    def details(self, side: i64, head: Head, stream: Stream | None, verdict: i64) -> list[str]:
        found: list[str] = []
        bit: i64 = 1
        for _ in self.protocol.rules:
            if verdict & bit:
                found.append(self.protocol.explain(bit, side, head, stream))
            bit <<= 1
        return found

    def blame(
        self, side: i64, stream: Stream | None, verdict: i64, details: list[str], ordinal: i64,
        offset: i64, at: i64,
    ) -> None:  # fmt: skip
        self.verdicts |= verdict
        doubtful = self.doubt or (stream is None and self.protocol.streams.forgot)
        certainty = Certainty.POSSIBLE if doubtful else Certainty.CERTAIN
        where = stream.label() if stream is not None else ""
        for i, rule in enumerate(broken(self.protocol.rules, verdict)):
            self.violations.append(
                Violation(rule, SIDES[side], ordinal, offset, at, where, certainty, details[i])
            )
