# mypyc: compiled
"""One frame, wherever it came from: judged, applied, told of, and counted.

An observer's frames come from the wire, an endpoint's own come from its verbs; both pass here.
"""

from mypy_extensions import i64

from polymux.core.direction import Direction
from polymux.core.events import EventSink
from polymux.core.frames import ACCEPTS, CONTENT, CONTROL, GRANTS, Frame, FrameHeader
from polymux.core.protocol import NO_STREAM, Protocol
from polymux.core.rules import CROSSED, Certainty, Violation, rules_in_mask
from polymux.core.side import ACCEPTOR, DIALER, SIDES, UNORDERED
from polymux.core.streams import ABORTED, ENDED, NOT_YET, OPEN, HalfStream, StreamState


class Proceedings:
    """What is known of one connection: the protocol's state, two directions, violations."""

    def __init__(self, protocol: Protocol, sink: EventSink) -> None:
        self.protocol = protocol
        self.sink = sink
        self.dialer: Direction = Direction(DIALER)
        self.acceptor: Direction = Direction(ACCEPTOR)
        self.head: FrameHeader = FrameHeader()
        self.violations: list[Violation] = []
        self.violation_mask: i64 = 0  # every rule broken so far
        self.uncertain: bool = protocol.causality.vantage == UNORDERED
        self.next_serial: i64 = 0
        self.enforced_side: i64 = (
            -1
        )  # an endpoint refuses what its peer must not send; -1: an observer
        self.streams_to_abort: dict[
            int, StreamState
        ] = {}  # by serial: to abort for what the peer did on them
        # What an endpoint only counts: how often each rule was broken, on no stream, on a dead one.
        self.tolerated_counts: list[int] = [0] * len(protocol.rules)
        self.has_tolerated: bool = False
        self.unknown_stream_frames: i64 = 0
        self.closed_stream_frames: i64 = 0
        self.state_before: i64 = OPEN  # state of the sender's half before the frame at hand
        self.credit_unknown: bool = (
            False  # frames of a side are not seen any more: ledgers stand still
        )

    def direction(self, side: i64) -> Direction:
        return self.dialer if side == DIALER else self.acceptor

    def validate_outgoing(self, side: i64, frame: Frame, credit_cost: i64) -> i64:
        """Judge a frame that this side is about to send, without applying it."""
        p = self.protocol
        head = self.head
        head.clear()
        head.kind = frame.kind
        head.key = frame.key
        head.amount = frame.amount
        head.payload_size = len(frame.payload)
        head.credit_cost = credit_cost
        head.text_size = head.payload_size
        p.resolve_ids(side, head)
        p.frame_text = frame.payload
        p.causality.snapshot_seen(side)
        stream = p.streams.find(head.key) if head.opener != NO_STREAM else None
        return p.validate(side, head, stream)

    def apply_outgoing(self, side: i64, text: bytes, timestamp: i64) -> StreamState | None:
        """Apply the frame that `utter` has just judged: it is being sent."""
        p = self.protocol
        d = self.direction(side)
        effect: i64 = p.effects[self.head.kind]
        size = self.head.payload_size
        units = self.head.credit_cost
        self.validate_and_apply(
            side, self.head, b"" if effect == CONTENT else text, d.offset, timestamp
        )
        d.frames += 1
        stream = p.frame_stream
        if stream is not None and effect == CONTENT and p.content_counts:
            self.count_content(stream.half(side), size, units, timestamp)
        if stream is not None and effect == CONTENT and p.has_credit:
            self.update_credit_after_content(stream, stream.half(side), timestamp)
        self.finish_frame(side, stream, text, timestamp)
        return stream

    def validate_and_apply(
        self, side: i64, head: FrameHeader, text: bytes, offset: i64, timestamp: i64
    ) -> i64:
        """Judge and apply a frame; tell of what it opened, accepted or granted."""
        p = self.protocol
        stream = p.streams.find(head.key) if head.opener != NO_STREAM else None
        if stream is not None and stream.incarnation > 1:
            stream = p.resolve_incarnation(side, head, stream)
        p.frame_text = text
        p.peer_frame_started = self.direction(1 - side).frame_started
        verdict = p.validate(side, head, stream)
        if verdict != 0:
            if self.direction(1 - side).has_unseen_frames():
                verdict = p.drop_peer_dependent(head, verdict)
            if self.direction(side).frames_missing:
                verdict &= ~(p.peer_dependent_rules | p.history_dependent_rules)
        verdict |= head.format_violations
        blamed = verdict & ~CROSSED
        details: list[str] = []
        serious = True
        if side == self.enforced_side:
            given_up = stream is not None and stream.serial in self.streams_to_abort
            serious = (
                verdict & (p.fatal_mask if given_up else p.fatal_mask | p.stream_abort_mask) != 0
            )
        if blamed != 0 and serious:
            details = self.explain_violations(side, head, stream, blamed)
        self.state_before = stream.half(side).state if stream is not None else OPEN
        ordinal = p.causality.frames_sent(side)
        p.reset_frame_state()
        if (
            side == self.enforced_side and verdict & p.fatal_mask
        ):  # not applied: the session is over
            self.record_violations(side, stream, blamed, details, ordinal, offset, timestamp)
            return verdict
        p.apply(side, head, stream, timestamp)
        p.causality.record_sent(side)
        touched: StreamState | None = p.frame_stream
        effect: i64 = p.effects[head.kind]
        if touched is not None:
            if touched is not stream:  # a new use of the id
                self.state_before = OPEN
            if touched.serial < 0:
                self.register_stream(side, touched, timestamp)
            half = touched.half(side)
            half.frames += 1
            if (
                p.has_credit and effect != CONTENT
            ):  # content is measured when its last byte has passed
                self.update_credit_state(touched, timestamp)
            if effect == ACCEPTS:
                if touched.accepted and touched.accepted_at == NOT_YET:
                    touched.accepted_at = timestamp
                    self.sink.accepted(side, touched)
            elif effect == GRANTS:
                self.sink.granted(side, touched)
            if verdict & CROSSED:
                self.sink.crossed(side, touched)
            displaced = p.replaced_stream
            if displaced is not None:
                displaced.dialer.mark_unblocked(timestamp)
                displaced.acceptor.mark_unblocked(timestamp)
                self.sink.aborted(side, displaced, b"")
        if (
            side == self.enforced_side and verdict & p.stream_abort_mask
        ):  # the stream is given up, its content dropped
            p.content_counts = False
            if touched is not None:
                self.streams_to_abort[touched.serial] = touched
        if effect == CONTROL:
            self.sink.control(side, touched, head.kind, head.amount, text)
        if blamed != 0:
            if serious:
                self.record_violations(side, touched, blamed, details, ordinal, offset, timestamp)
            else:
                self.count_tolerated(blamed, touched)
                if touched is None and effect != CONTROL and not verdict & p.error_mask:
                    self.closed_stream_frames += (
                        1  # against advice only, but about nothing: as good as empty
                    )
        return verdict

    def count_tolerated(self, violation_mask: i64, stream: StreamState | None) -> None:
        """Count what an endpoint puts up with; a flood of it must not cost an object a frame."""
        self.violation_mask |= violation_mask
        self.has_tolerated = True
        bit: i64 = 1
        for i in range(len(self.tolerated_counts)):
            if violation_mask & bit:
                self.tolerated_counts[i] += 1
            bit <<= 1
        if violation_mask & self.protocol.error_mask:
            if stream is None:
                self.unknown_stream_frames += 1
            else:
                self.closed_stream_frames += 1

    def register_stream(self, side: i64, stream: StreamState, timestamp: i64) -> None:
        stream.serial = self.next_serial
        self.next_serial += 1
        stream.opened_at = timestamp
        self.sink.opened(side, stream)

    def finish_frame(
        self, side: i64, stream: StreamState | None, text: bytes, timestamp: i64
    ) -> None:
        """After a frame's last byte: tell of a half that ended or was aborted, and of the end."""
        if stream is None:
            return
        half = stream.half(side)
        if half.state != self.state_before:
            if half.state == ABORTED:
                self.sink.aborted(side, stream, text)
            elif half.state == ENDED:
                self.sink.ended(side, stream)
        if not stream.over and self.protocol.is_over(stream):
            stream.over = True
            stream.closed_at = timestamp
            self.protocol.streams.mark_closed(stream)
            self.sink.closed(stream)

    def count_content(self, half: HalfStream, size: i64, credit_cost: i64, timestamp: i64) -> None:
        half.content_bytes += size
        half.content_units += credit_cost
        if half.first_at == NOT_YET:
            half.first_at = timestamp
        half.last_at = timestamp

    def update_credit_after_content(
        self, stream: StreamState, half: HalfStream, timestamp: i64
    ) -> None:
        """After content: has leave run out, and was never so much outstanding?"""
        granted = half.credit_granted
        if granted >= 0 and not self.credit_unknown:
            spent = half.credit_spent
            if spent >= granted:
                half.mark_blocked(timestamp)
            if half.window >= 0:
                outstanding = spent - (granted - half.window)
                if outstanding > half.peak_in_flight:
                    half.peak_in_flight = outstanding
            if half.state != OPEN or stream.over:
                half.mark_unblocked(timestamp)

    def update_credit_state(self, stream: StreamState, timestamp: i64) -> None:
        """After any other frame: who has leave now?"""
        over = self.protocol.is_over(stream)
        for side in (DIALER, ACCEPTOR):
            each = stream.half(side)
            if each.credit_granted >= 0:
                if each.state != OPEN or each.credit_granted > each.credit_spent or over:
                    each.mark_unblocked(timestamp)
                elif not self.credit_unknown and not self.direction(side).is_mid_content(stream):
                    each.mark_blocked(timestamp)

    def stop_credit_tracking(self, timestamp: i64) -> None:
        """Frames were not seen: neither what is spent nor what is granted is known from now on."""
        self.credit_unknown = True
        if self.protocol.has_credit:
            for stream in self.protocol.streams.all():
                stream.dialer.mark_unblocked(timestamp)
                stream.acceptor.mark_unblocked(timestamp)

    # --- findings

    def explain_violations(
        self, side: i64, head: FrameHeader, stream: StreamState | None, violation_mask: i64
    ) -> list[str]:
        found: list[str] = []
        bit: i64 = 1
        for _ in self.protocol.rules:
            if violation_mask & bit:
                found.append(self.protocol.explain(bit, side, head, stream))
            bit <<= 1
        return found

    def record_violations(
        self,
        side: i64,
        stream: StreamState | None,
        violation_mask: i64,
        details: list[str],
        frame_index: i64,
        offset: i64,
        timestamp: i64,
    ) -> None:
        self.violation_mask |= violation_mask
        doubtful = self.uncertain or (stream is None and self.protocol.streams.has_evicted)
        certainty = Certainty.POSSIBLE if doubtful else Certainty.CERTAIN
        where = stream.label() if stream is not None else ""
        for i, rule in enumerate(rules_in_mask(self.protocol.rules, violation_mask)):
            self.violations.append(
                Violation(
                    rule, SIDES[side], frame_index, offset, timestamp, where, certainty, details[i]
                )
            )
