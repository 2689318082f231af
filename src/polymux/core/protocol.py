# mypyc: compiled
"""The interface of a protocol implementation: codec, validation, state, and frames to send.

There is one instance for each connection. An implementation knows two sides, the dialer and the
acceptor, and never "us": observers and endpoints use the same code.

- Codec: `decode_header` is the only parser, `encode_frame` the only encoder. Neither has side
  effects on the streams.
- Validation: `validate` is pure and returns a mask of the rules a frame breaks, or CROSSED.
- State: `apply` updates the streams and never fails, whatever `validate` found, since an observer
  continues after violations.
- Sending: `open_frame`, `end_frame` and the like return the frames by which an endpoint performs an
  operation.

`Connection` calls them in this order and reads the results from the attributes `frame_stream`,
`content_counts` and so on: attributes, since native code passes them faster than result objects.
All state is plain data, saved and restored with the connection.
"""

from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from polymux.core.causality import Causality
from polymux.core.frames import ACCEPTS, CONTROL, OPENS, Frame, FrameHeader, FrameKind
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

NO_STREAM: Final[i64] = 255  # `FrameHeader.opener` of a frame that belongs to no stream
NO_ID: Final[i64] = -1  # `allocate`: no id is free


class Protocol:
    """Base class of the protocol implementations.

    Args:
        name: the protocol's name in the registry.
        rules: at most 61; bit n of a mask stands for rules[n], and bit 61 is CROSSED.
        kinds: frame kinds by their number, 0 to 255.
        limits: what is accepted from a peer.
        vantage: where the connection is observed (see `Vantage`).
    """

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
        self.expired_replies: list[tuple[PendingReply, str]] = []  # with the stream's label
        self.effects: vec[i64] = vec[i64]([CONTROL] * 256)
        for number, kind in kinds.items():
            self.effects[number] = kind.effect
        self.error_mask: i64 = severity_mask(rules, (Severity.ERROR,))
        self.finding_mask: i64 = severity_mask(rules, (Severity.ERROR, Severity.WARNING))
        self.fatal_mask: i64 = reaction_mask(rules, Reaction.SESSION)
        self.stream_abort_mask: i64 = reaction_mask(rules, Reaction.STREAM)
        # Properties of the protocol, set by the implementation:
        self.has_credit: bool = False  # halves have send credit
        self.two_way: bool = True  # both sides send content on a stream
        self.content_is_messages: bool = False  # content is delivered in complete messages
        self.control_is_text: bool = False  # all other frames are text, of which a prefix will do
        # Content needs no credit, may be split anywhere, and is as valid as the content before it:
        self.uniform_content: bool = False
        self.content_accepts: bool = False  # content can accept the stream it is sent on
        # A stream can be used only once it was accepted:
        self.needs_acceptance: bool = any(kind.effect == ACCEPTS for kind in kinds.values())
        self.has_pings: bool = False  # a side can ask the other to answer: see `request_ping`
        self.restricts_content: bool = False  # not all bytes can be sent: see `send_error`
        self.max_frame_bytes: i64 = limits.max_frame_bytes  # content accepted in a frame
        self.max_sent_frame_bytes: i64 = limits.max_frame_bytes  # content we put in a frame
        self.max_control_bytes: i64 = limits.max_control_bytes  # bytes of any other frame accepted
        self.max_name_bytes: i64 = limits.max_name_bytes
        self.receive_window: int = limits.receive_window  # what we announce, in the protocol's unit
        self.credit_grants_per_window: i64 = 2  # in how many frames a window's credit is returned
        self.min_receive_window: int = 1  # the smallest window that can be announced
        self.too_long_rule: i64 = 0  # the rule for a frame over its limit
        self.truncated_rule: i64 = 0  # the rule for a connection that ends inside a frame
        self.peer_dependent_rules: i64 = 0  # rules that depend on the other side's frames
        self.history_dependent_rules: i64 = 0  # rules that depend on the sender's earlier frames
        self.frame_rules: i64 = 0  # rules that a frame breaks by itself, whatever came before it
        # Frames name their stream, so that decoding can begin at any frame: `header_evidence`
        # and, where needed, `adopt_stream`, `forget_unseen` and `skip_handshake` are implemented.
        self.can_begin_anywhere: bool = False
        self.beginning_needed: str = ""  # otherwise: why, and what can be done about it
        # State of the connection:
        self.handshake_done: bool = True  # an endpoint may open streams
        # Input of `validate` and `apply` besides the header:
        self.frame_text: bytes = b""  # the name or text in the frame
        self.peer_frame_started: bool = False  # a frame of the other side has begun to arrive
        # Results of `apply`:
        self.frame_stream: StreamState | None = None  # the stream the frame belongs to
        self.content_counts: bool = False  # its content is delivered and counted
        self.replaced_stream: StreamState | None = None  # an open stream whose id it reused
        self.peer_unblocked: bool = False  # held bytes of the other direction can be decoded now
        # Result of `decode_header` and `decode_part_size` where they return INVALID:
        self.undecodable_reason: str = ""

    def reset_frame_state(self) -> None:
        """Clear the results of `apply` before the next frame is applied."""
        self.frame_stream = None
        self.replaced_stream = None
        self.content_counts = False

    # Codec

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        """Decode the frame header at `pos`.

        Args:
            sender: the side that sent it.
            data: the header is in data[pos:end], if it is complete.
            pos: where the frame begins.
            end: where the data ends.
            head: is filled; undefined unless a position is returned.

        Returns:
            Where the payload starts, or INCOMPLETE, INVALID or AWAITING_HANDSHAKE. With INVALID,
            `head.format_violations` and `undecodable_reason` say why.
        """
        raise NotImplementedError

    def decode_body(
        self, sender: i64, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> None:
        """Decode the complete payload of a frame that is not content: amount, text, violations."""
        return

    def decode_part_size(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> i64:
        """Decode the size of the next part of a content frame that consists of parts.

        Returns:
            Bytes of the part, its size field included, or INCOMPLETE or INVALID.
        """
        return 0

    def body_structure(
        self, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> list[tuple[int, int]]:
        """Ranges of data[start:end], payload that is no content, that decoding depends on.

        Names and texts are not among them (`FrameHeader.text_start`). The payload need not be
        complete.
        """
        return []

    def trailer_structure(self, data: bytes, start: i64, end: i64) -> list[tuple[int, int]]:
        """Ranges of data[start:end], the bytes after a payload, that decoding depends on."""
        return []

    def part_structure(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> list[tuple[int, int]]:
        """Ranges of data[pos:end] that are no content; `decode_part_size` has found that part."""
        return []

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        """Append a frame: its header and, unless it is content, the payload made from `text`."""
        raise NotImplementedError

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        """Set `stream_id` and `opener` of a header from its kind and key, as decoding would.

        Where the wire format cannot express the key, it becomes the key that will be decoded.
        """
        raise NotImplementedError

    def why_undecodable(self, side: i64) -> str:
        """Why no further frame of this side can be decoded, or "". Called after a handshake."""
        return ""

    # Frames that were not seen

    def header_evidence(self, sender: i64, head: FrameHeader) -> i64:
        """How much the header speaks for a frame that begins here, in bits; -1: it cannot be one.

        Called for headers at assumed boundaries (`boundary_search`), which may be any bytes. Bits
        are -log2 of the share of arbitrary bytes that pass as such a header.
        """
        return 0

    def awaits_handshake(self, side: i64) -> bool:
        """Whether the next frame of this side is its handshake."""
        return False

    def is_handshake(self, text: bytes) -> bool:
        """Whether the text of what was decoded as a handshake can be one."""
        return True

    def skip_handshake(self, side: i64) -> None:
        """The handshake of this side was not seen: decode without it. No effect if it was seen."""
        return

    def learn_from_header(self, sender: i64, head: FrameHeader) -> None:
        """A frame with this header follows a boundary that was found: learn about the handshake."""
        return

    def adopt_stream(self, sender: i64, head: FrameHeader) -> StreamState | None:
        """A stream for a frame of a stream that was opened by a frame that was not seen.

        Its credit is unknown, and frames on it prove nothing about what their senders had read.
        None if the frame itself opens the stream. The caller inserts it in the table.
        """
        if self.effects[head.kind] == OPENS:
            return None
        made = StreamState(head.key, head.stream_id, head.opener, -1)
        made.accepted = True
        return made

    def forget_unseen(self, stream: StreamState) -> None:
        """Frames of this stream may not have been seen: forget what depends on them."""
        return

    # Validation and state

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        """The mask of the rules this frame breaks, or CROSSED, or 0. Changes nothing.

        Args:
            sender: the side that sent the frame.
            head: its header.
            stream: the stream it refers to; None: there is none.
        """
        raise NotImplementedError

    def drop_peer_dependent(self, head: FrameHeader, violation_mask: i64) -> i64:
        """A mask without the rules that depend on unseen frames of the other side."""
        return violation_mask & ~self.peer_dependent_rules

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        """Update streams; set `frame_stream` and, for content, `content_counts`. Cannot fail."""
        raise NotImplementedError

    def validate_and_apply_content(
        self, sender: i64, head: FrameHeader, stream: StreamState, timestamp: i64
    ) -> bool:
        """Fast path: validate a content frame and apply it if it breaks no rule.

        Returns False, with nothing changed, if it breaks a rule or needs the slow path.
        """
        if self.validate(sender, head, stream) != 0:
            return False
        self.reset_frame_state()
        self.apply(sender, head, stream, timestamp)
        return True

    def resolve_incarnation(
        self, sender: i64, head: FrameHeader, stream: StreamState
    ) -> StreamState:
        """The use of a stream id that a frame refers to; `stream` is the newest of several."""
        return stream

    def may_receive_late_frames(self, stream: StreamState) -> bool:
        """Whether a frame for this stream can still arrive although its id was used again."""
        return False

    def finish(self, ended: bool) -> list[PendingReply]:
        """The connection is over: the missing replies to report.

        Args:
            ended: both sides were seen to close their direction.
        """
        return [
            reply
            for reply in self.pending_replies.values()
            if self.is_reportable(reply, self.streams.find(reply.key))
        ]

    def is_reportable(self, reply: PendingReply, stream: StreamState | None) -> bool:
        """Whether the absence of this reply is a violation."""
        return reply.rule != 0

    def is_over(self, stream: StreamState) -> bool:
        """Whether nothing more is expected on this stream."""
        return stream.dialer.state != OPEN and stream.acceptor.state != OPEN

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        """What is wrong with this frame, for the user. Called before `apply`."""
        text = self.kind_name(head.kind)
        if head.payload_size > 0:
            text += f" of {byte_count_text(head.payload_size)}"
        if head.amount >= 0:
            text += f", amount {head.amount}"
        return text

    def ending(self, stream: StreamState) -> str:
        """How a stream ended, as in the column `ending` of the streams table."""
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
        """The name of a frame kind; `Code<n>` for one that the protocol does not define."""
        known = self.kinds.get(kind)
        return known.name if known is not None else f"Code{kind}"

    def version(self) -> str:
        """The protocol version in use, for the sessions table; "": the protocol has none."""
        return ""

    def dialect(self) -> str:
        """The variant in use, for the sessions table; "": the protocol has none."""
        return ""

    def dialect_evidence(self) -> str:
        """What shows that variant, for the user; "": nothing does."""
        return ""

    def round_trip_ns(self) -> i64:
        """The round trip between the two sides as the protocol measures it; -1: it does not."""
        return -1

    def expect_reply(self, side: i64, kind: i64, key: i64, rule: i64, timestamp: i64) -> None:
        """Expect a frame of this kind from `side`, in reply to what the other side just sent."""
        if (side, kind, key) not in self.pending_replies:
            since = self.causality.frames_sent(1 - side)
            self.pending_replies[(side, kind, key)] = PendingReply(
                side, kind, key, rule, since, timestamp
            )

    def reply_received(self, side: i64, kind: i64, key: i64) -> None:
        """The expected frame was sent: stop expecting it."""
        if (side, kind, key) in self.pending_replies:
            del self.pending_replies[(side, kind, key)]

    def expire_replies(self, key: i64, stream: StreamState | None) -> None:
        """The stream was evicted, so replies would not be recognised: stop expecting them."""
        for side in (0, 1):
            for kind in self.kinds:
                reply = self.pending_replies.pop((side, kind, key), None)
                if reply is not None:
                    self.report_expired(reply, stream)

    def report_expired(self, reply: PendingReply, stream: StreamState | None) -> None:
        """Add a reply that did not come to `expired_replies`, if that is a violation."""
        if self.is_reportable(reply, stream):
            self.expired_replies.append((reply, stream.label() if stream is not None else ""))

    # Frames by which an endpoint performs an operation

    def handshake_frame(self, side: i64, nonce: bytes) -> Frame | None:
        """The first frame a side must send; None: the protocol has no handshake."""
        return None

    def allocate(self, side: i64) -> i64:
        """The key of a stream that this side may open now, or NO_ID."""
        raise NotImplementedError

    def open_error(self, side: i64) -> str:
        """Why this side can open no more streams; "": it can."""
        return ""

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        """The frame that opens a stream; None: its first content does (see `reserve_stream`)."""
        return None

    def reserve_stream(self, side: i64, key: i64) -> StreamState:
        """A stream that will be opened by its first content."""
        raise NotImplementedError

    def accept_frame(self, side: i64, stream: StreamState, window: int) -> Frame | None:
        """The frame that accepts a stream the peer opened; None: streams need no acceptance."""
        return None

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        """Set kind, credit cost and amount of a content frame of `head.payload_size` bytes.

        `final`: the frame ends this side's half, if the protocol ends halves in that way.
        """
        raise NotImplementedError

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        """How many bytes of a queued piece this side's next frame may carry; -1: no credit.

        Not called where `uniform_content` is set.

        Args:
            side: the sender.
            stream: the stream.
            rest: unsent bytes of the piece.
            quantum: bytes that the scheduler allows.
            last: no piece follows it and the end is not queued, so that more may or may not follow.
        """
        return rest if rest < quantum else quantum

    def send_error(self, side: i64, stream: StreamState, data: bytes) -> str:
        """Why this content can never be sent, for the caller; "": it can.

        Called where `restricts_content` is set.
        """
        return ""

    def end_error(self, side: i64, stream: StreamState) -> str:
        """Why this side cannot end its half after what is queued now; "": it can."""
        return ""

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """The frame that ends this side's half; None: the last content frame ended it."""
        raise NotImplementedError

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        """The frame that aborts a stream, with a reason where the protocol has one."""
        raise NotImplementedError

    def stop_reading_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """The frame that says that this side will read no more; None: the protocol has none."""
        return None

    def credit_frame(self, side: i64, stream: StreamState, amount: int) -> Frame | None:
        """The frame that grants the peer `amount` more credit; None: the protocol has no credit."""
        return None

    def request_ping(self, side: i64) -> int:
        """Expect this side to send a ping, which its endpoint does; return the ping's number.

        Called where `has_pings` is set.
        """
        raise NotImplementedError

    def last_frame(self, side: i64) -> Frame | None:
        """The frame by which a side ends the session after all else was sent; None: none."""
        return None

    def window_growth(self, side: i64, stream: StreamState, returned: int, now: i64) -> int:
        """Credit that this side grants beyond what it returns; it makes the stream's window larger.

        Called when credit is returned. `now` is a timestamp in nanoseconds.
        """
        return 0

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        """The expected frame; None: it cannot be sent yet."""
        return Frame(reply.kind, reply.key)

    def reply_discards_queued(self, reply: PendingReply) -> bool:
        """Whether this reply means that content queued on its stream will not be sent."""
        return True

    def defers_reply(self, reply: PendingReply) -> bool:
        """Whether the reply depends on what the application has read of the stream."""
        return False

    # Saved state

    def save(self) -> dict[str, object]:
        """The state as plain data, for `load`."""
        return {
            "causality": self.causality.save(),
            "streams": [stream.save() for stream in self.streams.all()],
            "closed": self.streams.save_closed(),
            "evicted": self.streams.has_evicted,
            "pending_replies": [reply.save() for reply in self.pending_replies.values()],
            "handshake_done": self.handshake_done,
        }

    def load(self, saved: dict[str, object]) -> None:
        """Restore what `save` returned; the protocol must be new.

        The assertions narrow `object` for mypy: a snapshot is plain data of mixed types.
        """
        causality, streams, replies = saved["causality"], saved["streams"], saved["pending_replies"]
        closed = saved["closed"]
        assert isinstance(causality, list)
        assert isinstance(streams, list)
        assert isinstance(closed, list)
        assert isinstance(replies, list)
        self.causality.load(causality)
        self.streams.has_evicted = bool(saved["evicted"])
        self.handshake_done = bool(saved["handshake_done"])
        for entry in streams:
            self.streams.insert(load_stream(entry))
        self.streams.load_closed(closed)
        for r in replies:
            self.pending_replies[(r[0], r[1], r[2])] = PendingReply(
                r[0], r[1], r[2], r[3], r[4], r[5]
            )

    def relink(self, gone: list[StreamState]) -> None:
        """After `load`: restore references to streams that left the table and were not taken."""
        return
