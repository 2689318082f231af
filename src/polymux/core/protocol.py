# mypyc: compiled
"""What a protocol is: a wire, a law, bookkeeping and verbs; one instance a conversation.

A subclass knows two sides and never "us". `header` is the only parser and `put` the only writer.
`judge` is pure: the set of rules a frame breaks. `apply` is bookkeeping and never fails, whatever
`judge` said. State is plain data, saved and restored with the conversation.
"""

from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from polymux.core.causality import Causality
from polymux.core.frames import CONTROL, Frame, FrameHeader, FrameKind
from polymux.core.limits import Limits
from polymux.core.rules import (
    PendingReply,
    Reaction,
    Rule,
    Severity,
    byte_count_text,
    reaction_mask,
    severity_mask,
)
from polymux.core.stream_table import StreamTable
from polymux.core.streams import ABORTED, OPEN, StreamState, load_stream

NO_STREAM: Final[i64] = 255  # `head.opener` of a frame that belongs to no stream
NO_ID: Final[i64] = -1


class Protocol:
    """One direction-free rule book and its wire."""

    def __init__(
        self,
        name: str,
        rules: tuple[Rule, ...],
        kinds: dict[int, FrameKind],
        limits: Limits,
        vantage: i64,
    ) -> None:
        self.name = name
        self.rules = rules
        self.kinds = kinds
        self.limits = limits
        self.causality: Causality = Causality(vantage)
        self.streams: StreamTable = StreamTable(limits.closed_streams_remembered)
        self.pending_replies: dict[tuple[int, int, int], PendingReply] = {}  # by side, kind and key
        self.expired_replies: list[
            tuple[PendingReply, str]
        ] = []  # duties given up just now, and on which stream
        self.effects: vec[i64] = vec[i64]([CONTROL] * 256)
        for number, kind in kinds.items():
            self.effects[number] = kind.effect
        self.error_mask: i64 = severity_mask(rules, (Severity.ERROR,))
        self.finding_mask: i64 = severity_mask(rules, (Severity.ERROR, Severity.WARNING))
        self.fatal_mask: i64 = reaction_mask(rules, Reaction.SESSION)
        self.stream_abort_mask: i64 = reaction_mask(rules, Reaction.STREAM)
        # What the generic machine must know of a protocol:
        self.has_credit: bool = False  # do halves have ledgers?
        self.two_way: bool = True  # do both sides send content on a stream?
        self.content_is_messages: bool = False  # is content handed on in whole messages?
        self.control_is_text: bool = (
            False  # is all but content nothing but text, of which a part will do?
        )
        self.uniform_content: bool = (
            False  # without leave to spend, is content judged as that before it?
        )
        self.max_frame_bytes: i64 = limits.max_frame_bytes  # bytes of content accepted in a frame
        self.max_sent_frame_bytes: i64 = (
            limits.max_frame_bytes
        )  # bytes of content we put in a frame at most
        self.max_control_bytes: i64 = limits.max_control_bytes  # bytes of any other frame accepted
        self.max_name_bytes: i64 = limits.max_name_bytes
        self.receive_window: int = limits.receive_window  # what we announce, in the protocol's unit
        self.too_long_rule: i64 = 0  # the rule for a frame over its limit
        self.truncated_rule: i64 = 0  # the rule for an end inside a frame
        self.peer_dependent_rules: i64 = 0  # rules that take the other side's frames to judge by
        self.history_dependent_rules: i64 = 0  # rules that take the sender's earlier frames
        self.handshake_done: bool = True  # is everything known that must be known before frames?
        # What `apply` is told and reports about the frame at hand:
        self.frame_text: bytes = b""  # the name or text in it
        self.frame_stream: StreamState | None = None  # the stream it belongs to
        self.content_counts: bool = False  # does its content count?
        self.replaced_stream: StreamState | None = (
            None  # a live stream that lost its id to this opening
        )
        self.peer_frame_started: bool = False  # has a frame of the other side begun to pass?
        self.peer_unblocked: bool = (
            False  # can bytes of the other direction that were held be read now?
        )
        self.undecodable_reason: str = (
            ""  # why the next frame cannot be found, where `header` or `part` is BAD
        )

    def reset_frame_state(self) -> None:
        """Before `apply`: nothing is known of the frame at hand."""
        self.frame_stream = None
        self.replaced_stream = None
        self.content_counts = False

    # --- wire

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        """Fill `head`; return where the payload starts, or SHORT, BAD, HOLD."""
        raise NotImplementedError

    def decode_body(
        self, sender: i64, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> None:
        """Read the payload of a whole frame that is not content: amount, text, flaws."""
        return

    def decode_part_size(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> i64:
        """Bytes of the next part of a content frame that is sized as it comes, or SHORT, BAD."""
        return 0

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        """Write a frame: its header and, unless it is content, the payload made from `text`."""
        raise NotImplementedError

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        """Set `number` and `opener` of a head from its kind and key, as the wire would say them.

        Where the wire cannot say the key as given, the key becomes what the wire will say.
        """
        raise NotImplementedError

    def why_undecodable(self, side: i64) -> str:
        """Why no further frame of this side can be found, or "". Asked after `unlocked`."""
        return ""

    # --- law and bookkeeping

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        """Pure: the rules this frame breaks, or CROSSED, or 0."""
        raise NotImplementedError

    def drop_peer_dependent(self, head: FrameHeader, violation_mask: i64) -> i64:
        """What is left of a verdict where frames of the other side were not seen."""
        return violation_mask & ~self.peer_dependent_rules

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        """Bookkeeping. Sets `touched` and, for content, `counted`."""
        raise NotImplementedError

    def validate_and_apply_content(
        self, sender: i64, head: FrameHeader, stream: StreamState, timestamp: i64
    ) -> bool:
        """Judge content and, if it breaks nothing, apply it: both in one, for speed."""
        if self.validate(sender, head, stream) != 0:
            return False
        self.reset_frame_state()
        self.apply(sender, head, stream, timestamp)
        return True

    def resolve_incarnation(
        self, sender: i64, head: FrameHeader, stream: StreamState
    ) -> StreamState:
        """The use of an id that a frame is about; `stream` is the newest of several."""
        return stream

    def may_receive_late_frames(self, stream: StreamState) -> bool:
        """May a frame yet come that is about this stream, whose id is used again?"""
        return False

    def finish(self, ended: bool) -> list[PendingReply]:
        """The connection is over: what is still owed, as duties with the rule to report."""
        return [
            duty
            for duty in self.pending_replies.values()
            if self.is_reportable(duty, self.streams.find(duty.key))
        ]

    def is_reportable(self, reply: PendingReply, stream: StreamState | None) -> bool:
        """Is this duty to be reported if it is never paid?"""
        return reply.rule != 0

    def is_over(self, stream: StreamState) -> bool:
        """Is nothing more expected on this stream?"""
        return stream.dialer.state != OPEN and stream.acceptor.state != OPEN

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        """What was wrong with this frame, in the user's terms. Called before `apply`."""
        text = self.kind_name(head.kind)
        if head.payload_size > 0:
            text += f" of {byte_count_text(head.payload_size)}"
        if head.amount >= 0:
            text += f", amount {head.amount}"
        return text

    def ending(self, stream: StreamState) -> str:
        """How a stream ended, in the words of the streams table."""
        dialer, acceptor = stream.dialer.state, stream.acceptor.state
        if stream.ending:
            return stream.ending
        if dialer == ABORTED or acceptor == ABORTED:
            return "reset"
        if dialer != OPEN and acceptor != OPEN:
            return "clean"
        if dialer != OPEN or acceptor != OPEN:
            return "half-closed"
        return "open"

    def kind_name(self, kind: i64) -> str:
        known = self.kinds.get(kind)
        return known.name if known is not None else f"Code{kind}"

    def version(self) -> str:
        return ""

    def dialect(self) -> str:
        return ""

    def expect_reply(self, side: i64, kind: i64, key: i64, rule: i64, timestamp: i64) -> None:
        """Note that `side` owes a frame of this kind, for what the other side has just sent."""
        if (side, kind, key) not in self.pending_replies:
            since = self.causality.frames_sent(1 - side)
            self.pending_replies[(side, kind, key)] = PendingReply(
                side, kind, key, rule, since, timestamp
            )

    def reply_received(self, side: i64, kind: i64, key: i64) -> None:
        """Strike out a duty that has been paid."""
        if (side, kind, key) in self.pending_replies:
            del self.pending_replies[(side, kind, key)]

    def expire_replies(self, key: i64, stream: StreamState | None) -> None:
        """The stream is forgotten: what pays its duties would not be recognised any more."""
        for side in (0, 1):
            for kind in self.kinds:
                duty = self.pending_replies.pop((side, kind, key), None)
                if duty is not None:
                    self.report_expired(duty, stream)

    def report_expired(self, reply: PendingReply, stream: StreamState | None) -> None:
        if self.is_reportable(reply, stream):
            self.expired_replies.append((reply, stream.label() if stream is not None else ""))

    # --- verbs: what an endpoint sends to do a thing

    def handshake_frame(self, side: i64, nonce: bytes) -> Frame | None:
        """The first frame a side must send, if there is one."""
        return None

    def allocate(self, side: i64) -> i64:
        """The key of a stream this side may open now, or NO_ID."""
        raise NotImplementedError

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        """The frame that opens a stream; None where its first content does (see `prepare`)."""
        return None

    def reserve_stream(self, side: i64, key: i64) -> StreamState:
        """A stream that its first content will open."""
        raise NotImplementedError

    def accept_frame(self, side: i64, stream: StreamState, window: int) -> Frame | None:
        """Accept a stream the peer opened; None where opening is all it takes."""
        return None

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        """Fill kind, units and amount of a content frame of `head.size` bytes.

        `final`: this side ends its half with it, if the protocol ends halves that way.
        """
        raise NotImplementedError

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        """How much of a queued piece may go in this side's next frame; -1: nothing now.

        `rest`: bytes left of the piece. `last`: no piece follows it and the end is not queued,
        so that more may or may not come.
        """
        return rest if rest < quantum else quantum

    def send_error(self, side: i64, stream: StreamState, data: bytes) -> str:
        """Why this content could never leave, for the caller who would send it; "": it can."""
        return ""

    def end_error(self, side: i64, stream: StreamState) -> str:
        """Why this side cannot end its half with what is queued now, or "": it can."""
        return ""

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """End this side's half; None where the last content frame does it."""
        raise NotImplementedError

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        raise NotImplementedError

    def stop_reading_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """Say that this side will read no more, where the protocol can say so."""
        return None

    def credit_frame(self, side: i64, stream: StreamState, amount: int) -> Frame | None:
        """Give the peer leave for `amount` more; None where the protocol has no leave."""
        return None

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        """The frame that pays a duty, or None to wait."""
        return Frame(reply.kind, reply.key)

    def reply_discards_queued(self, reply: PendingReply) -> bool:
        """Does paying this duty mean that what is queued on its stream will not be sent?"""
        return True

    def defers_reply(self, reply: PendingReply) -> bool:
        """Does its answer depend on whether what came before it was read?"""
        return False

    # --- saved state

    def save(self) -> dict[str, object]:
        return {
            "sight": self.causality.save(),
            "streams": [stream.save() for stream in self.streams.all()],
            "closed": self.streams.save_closed(),
            "forgot": self.streams.has_evicted,
            "duties": [duty.save() for duty in self.pending_replies.values()],
            "handshaken": self.handshake_done,
        }

    def load(self, saved: dict[str, object]) -> None:
        sight, streams, duties = saved["sight"], saved["streams"], saved["duties"]
        closed = saved["closed"]
        assert isinstance(sight, list)
        assert isinstance(streams, list)
        assert isinstance(closed, list)
        assert isinstance(duties, list)
        self.causality.load(sight)
        self.streams.has_evicted = bool(saved["forgot"])
        self.handshake_done = bool(saved["handshaken"])
        for entry in streams:
            self.streams.insert(load_stream(entry))
        self.streams.load_closed(closed)
        for d in duties:
            self.pending_replies[(d[0], d[1], d[2])] = PendingReply(
                d[0], d[1], d[2], d[3], d[4], d[5]
            )

    def relink(self, gone: list[StreamState]) -> None:
        """After `load`: these are the streams that have left the table and are not yet taken."""
        return
