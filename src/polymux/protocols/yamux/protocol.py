# mypyc: compiled
"""yamux: duplex streams under receive windows, pings and Go Away, in 12-byte headers.

A header is `version u8, type u8, flags u16, stream u32, length u32`, big endian. There is no
handshake: the client opens odd ids and the server even ones, each stream begins with a window of
262144 bytes in both directions, and a window update adds its length to that. One frame may open a
stream, accept it, grant credit, carry content and end a half at once.

The client is mostly the side that dialed, but HashiCorp's library lets either side be it. An
observer therefore learns the roles from the ids that the sides open first, and reports a side that
opens both odd and even ids; an endpoint and an observer of libp2p, which fixes the roles, do not.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from polymux.core.errors import LocalProtocolError, Unsupported
from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import CROSSED, PendingReply, byte_count_text
from polymux.core.side import ACCEPTOR, DIALER, UNORDERED
from polymux.core.streams import ABANDONED, ABORTED, ENDED, NEVER, NOT_YET, OPEN, StreamState
from polymux.core.varint import INCOMPLETE, INVALID
from polymux.core.window_budget import window_pool
from polymux.protocols.option_values import parse_integer
from polymux.protocols.yamux.dialects import (
    HASHICORP,
    LIBP2P,
    MAX_LIBP2P_PAYLOAD,
    MAX_SPEC_CODE,
    DialectSigns,
)
from polymux.protocols.yamux.pings import Pings, reply_key
from polymux.protocols.yamux.rules import (
    ACK,
    ACK_UNEXPECTED,
    BACKLOG,
    BAD_TYPE,
    BAD_VERSION,
    DATA,
    FIN,
    FIN_TWICE,
    FLAGS,
    FRAME_TOO_LONG,
    GO_AWAY,
    GOAWAY_CODE,
    ID_PARITY,
    ID_RECYCLED,
    ID_REUSED,
    IDS_DESCENDING,
    KINDS,
    OPEN_AFTER_GOAWAY,
    PING,
    PING_FLAGS,
    PONG,
    PONG_UNREQUESTED,
    RST,
    RULES,
    SESSION_FRAME_ON_STREAM,
    SESSION_KINDS,
    STREAM_ZERO,
    SYN,
    SYN_AND_ACK,
    TRUNCATED,
    UNACKNOWLEDGED,
    UNKNOWN_FLAG,
    UNKNOWN_STREAM,
    UPDATE_AFTER_FIN,
    WINDOW_EXCEEDED,
    WINDOW_OVERFLOW,
    WINDOW_UPDATE,
    WRITE_AFTER_FIN,
    WRITE_AFTER_PEER_RST,
    WRITE_AFTER_RST,
)

HEADER_BYTES: Final[i64] = 12
INITIAL_WINDOW: Final = 262144  # bytes that each side may send on a new stream
MAX_U32: Final[i64] = 0xFFFFFFFF
MAX_WINDOW: Final = 0xFFFFFFFF  # a plain int: windows are compared without narrowing
TWO_TO_THE_32: Final[i64] = 4294967296
MAX_SENT_PAYLOAD: Final = 65524  # with its header 64 KiB, as libp2p sends
MAX_RECEIVED_PAYLOAD: Final = 16777216  # bytes accepted in a frame by default
MAX_UNACKNOWLEDGED: Final[i64] = 256  # streams that wait for their ACK; as many as peers accept
# Evidence of a header (`Protocol.header_evidence`): version, type and flags, and the id:
HEADER_BITS: Final[i64] = 26
SESSION_HEADER_BITS: Final[i64] = 40
MAX_PLAUSIBLE_ID: Final[i64] = 0xFFFFFFF
SYN_ACK: Final[i64] = SYN | ACK
GROWTH_ROUND_TRIPS: Final[i64] = 4  # a window returned faster than this was too small
# A window does not grow beyond what this rate needs: where both sides are as fast as the network
# between them, the round trip under load is mostly the window itself, waiting to be read.
GROWTH_BYTES_PER_US: Final = 2500  # 20 Gbit/s

# Credit that waits at the reader is missing in flight: far from the peer little may wait.
FAR_NS: Final[i64] = 2_000_000  # a round trip from which on the peer is far
FAR_GRANTS: Final[i64] = 16
NEAR_GRANTS: Final[i64] = 2

# Flags in `StreamState.protocol_state`:
PREVIOUS_USE_POSSIBLE: Final[i64] = 1  # frames of the id's previous use may still come
UPDATE_NOTED: Final[i64] = 2  # a window update after a FIN of its sender was noted

# Parities of the ids that a side opens:
NO_PARITY: Final[i64] = -1


class Yamux(Protocol):
    """yamux on one connection.

    Args:
        limits: what is accepted from a peer.
        vantage: where the connection is observed.
        named_dialect: `hashicorp` or `libp2p`: the dialect to speak, or that is spoken for certain;
            "" for HashiCorp's when speaking, and to tell the dialect when observing.
        negotiated: multistream-select comes before the first frame.
    """

    def __init__(
        self, limits: Limits, vantage: i64, named_dialect: str = "", negotiated: bool = False
    ) -> None:
        super().__init__("yamux", RULES, KINDS, limits, vantage)
        self.named_dialect = named_dialect
        self.has_credit = True
        self.content_accepts = True
        self.has_pings = True
        self.needs_acceptance = False  # a stream is used before its ACK
        self.max_frame_bytes = (
            limits.max_frame_bytes if limits.max_frame_bytes > 0 else MAX_RECEIVED_PAYLOAD
        )
        self.max_sent_frame_bytes = (
            self.max_frame_bytes if self.max_frame_bytes < MAX_SENT_PAYLOAD else MAX_SENT_PAYLOAD
        )
        self.receive_window = max(INITIAL_WINDOW, min(limits.receive_window, MAX_WINDOW))
        self.min_receive_window = INITIAL_WINDOW  # the peer may use it without being asked
        self.too_long_rule = FRAME_TOO_LONG
        self.truncated_rule = TRUNCATED
        self.peer_dependent_rules = (
            ID_PARITY
            | ID_REUSED
            | ID_RECYCLED
            | UNKNOWN_STREAM
            | WINDOW_EXCEEDED
            | WINDOW_OVERFLOW
            | PONG_UNREQUESTED
            | BACKLOG
        )
        self.history_dependent_rules = IDS_DESCENDING | ACK_UNEXPECTED
        self.frame_rules = (
            BAD_VERSION
            | BAD_TYPE
            | UNKNOWN_FLAG
            | FRAME_TOO_LONG
            | STREAM_ZERO
            | SESSION_FRAME_ON_STREAM
            | GOAWAY_CODE
            | PING_FLAGS
            | SYN_AND_ACK
        )
        self.can_begin_anywhere = True
        self.signs: DialectSigns = DialectSigns(named_dialect, negotiated)
        self.pings: Pings = Pings(self.pending_replies, limits.closed_streams_remembered)
        # State of the dialer (0) and of the acceptor (1):
        self.next_id0: i64 = 1
        self.next_id1: i64 = 2
        self.highest_id0: i64 = 0  # that it has opened
        self.highest_id1: i64 = 0
        self.parity0: i64 = NO_PARITY  # of the first id that it has opened
        self.parity1: i64 = NO_PARITY
        self.unacknowledged0: i64 = 0  # streams of it that wait for their ACK
        self.unacknowledged1: i64 = 0
        self.go_away_index0: i64 = NEVER  # of its first Go Away
        self.go_away_index1: i64 = NEVER
        self.go_away_code0: int = -1
        self.go_away_code1: int = -1
        self.next_ping: int = 0  # value of the next ping of an endpoint

    # Decoding and encoding

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        if end - pos < HEADER_BYTES:
            return self.check_incomplete_header(data, pos, end, head)
        word = read_i64_be(data, pos)
        length = i64(read_i32_be(data, pos + 8)) & MAX_U32
        kind = word >> 32  # version, type and flags
        if kind > 0x3FFFF or kind < 0 or kind & 0xFFF0:
            violations = self.header_violations(kind, head)
            if violations != 0 and not violations & UNKNOWN_FLAG:
                return INVALID
            head.format_violations = violations
        else:
            head.format_violations = 0
        kind = ((kind >> 16) & 3) * 16 + (kind & FLAGS)
        number = word & MAX_U32
        head.kind = kind
        head.stream_id = number
        head.key = number
        head.trailer_size = 0
        head.parts_left = 0
        head.text_size = -1
        if kind < WINDOW_UPDATE:
            head.opener = ACCEPTOR if number & 1 == 0 else DIALER
            head.payload_size = length
            head.credit_cost = length
            head.amount = -1
            if length > self.max_frame_bytes:
                head.format_violations |= FRAME_TOO_LONG
        else:
            head.opener = NO_STREAM
            if kind < SESSION_KINDS:
                head.opener = number & 1 ^ 1
            head.payload_size = 0
            head.credit_cost = 0
            head.amount = length
        return pos + HEADER_BYTES

    def check_incomplete_header(self, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        """Report a wrong version or type from its first bytes: the rest may never come."""
        if end - pos >= 1 and data[pos] != 0:
            head.clear()
            head.format_violations = BAD_VERSION
            self.undecodable_reason = f"version {data[pos]} in place of 0"
            return INVALID
        if end - pos >= 2 and data[pos + 1] > 3:
            head.clear()
            head.format_violations = BAD_TYPE
            self.undecodable_reason = f"type {data[pos + 1]} in place of 0 to 3"
            return INVALID
        return INCOMPLETE

    def header_violations(self, word: i64, head: FrameHeader) -> i64:
        """What is wrong with the first four bytes of a header."""
        version = (word >> 24) & 255
        kind = (word >> 16) & 255
        if version != 0 or kind > 3:
            head.clear()
            head.format_violations = BAD_VERSION if version != 0 else BAD_TYPE
            self.undecodable_reason = (
                f"version {version} in place of 0"
                if version != 0
                else f"type {kind} in place of 0 to 3"
            )
            return head.format_violations
        return UNKNOWN_FLAG

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        kind = head.kind
        flags = kind & FLAGS
        word = kind >> 4
        word = (word << 16) + flags
        write_i64_be(out, (word << 32) + head.stream_id)
        length = head.payload_size if kind < WINDOW_UPDATE else i64(head.amount)
        length &= MAX_U32
        if length > 0x7FFFFFFF:
            length -= TWO_TO_THE_32
        write_i32_be(out, i32(length))

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        head.key &= MAX_U32
        head.stream_id = head.key
        if head.kind < WINDOW_UPDATE:
            head.amount = -1
        else:
            head.credit_cost = 0
            head.payload_size = 0
            head.amount = max(0, min(head.amount, MAX_WINDOW + 1))
            if head.kind >= SESSION_KINDS:
                head.amount &= MAX_WINDOW
        head.opener = NO_STREAM if head.kind >= SESSION_KINDS else head.key & 1 ^ 1

    # Frames that were not seen

    def header_evidence(self, sender: i64, head: FrameHeader) -> i64:
        kind = head.kind
        if kind >= SESSION_KINDS:
            known = kind == PING or kind == PONG or kind == GO_AWAY
            return SESSION_HEADER_BITS if known and head.stream_id == 0 else -1
        if head.stream_id == 0 or head.stream_id > MAX_PLAUSIBLE_ID or kind & SYN_ACK == SYN_ACK:
            return -1
        return HEADER_BITS

    def adopt_stream(self, sender: i64, head: FrameHeader) -> StreamState | None:
        if head.stream_id == 0:
            return None
        made = super().adopt_stream(sender, head)
        if made is not None:
            if head.kind & ACK:
                made.opener = 1 - sender
            elif self.parity0 == 0 or self.parity1 == 1:  # the side that dialed is the server
                made.opener = 1 - made.opener
            self.forget_unseen(made)
        return made

    def forget_unseen(self, stream: StreamState) -> None:
        if not stream.accepted:
            stream.accepted = True
            self.stop_waiting_for_ack(stream)
        stream.dialer.credit_granted = -1
        stream.acceptor.credit_granted = -1

    # Validation

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        if kind >= SESSION_KINDS:
            return self.validate_session_frame(sender, head)
        if head.stream_id == 0:
            return STREAM_ZERO
        if kind & SYN:
            return self.validate_open(sender, head, stream)
        if stream is None:
            return self.validate_unknown(sender, head)
        if stream.protocol_state & PREVIOUS_USE_POSSIBLE and self.may_refer_to_previous_use(
            sender, stream
        ):
            return CROSSED
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        flags = kind & FLAGS
        writes = flags & FIN != 0 or (kind < WINDOW_UPDATE and head.payload_size > 0)
        violations: i64 = 0
        if own.last_frame_index != NEVER:
            return WRITE_AFTER_RST if writes or flags & ACK else violations
        if peer.last_frame_index != NEVER:
            if not self.causality.had_seen(sender, peer.last_frame_index):
                violations = CROSSED
            elif writes:
                violations = WRITE_AFTER_PEER_RST
        if flags & ACK and (stream.opener == sender or stream.accepted):
            violations |= ACK_UNEXPECTED
        if own.state == ENDED:
            if kind < WINDOW_UPDATE and head.payload_size > 0:
                violations |= WRITE_AFTER_FIN
            elif (
                kind == WINDOW_UPDATE
                and not stream.protocol_state & UPDATE_NOTED
                and self.streams.keep_removed  # for observers: an endpoint itself sends them
            ):
                violations |= UPDATE_AFTER_FIN
            if flags & FIN:
                violations |= FIN_TWICE
        elif kind < WINDOW_UPDATE and peer.last_frame_index == NEVER:
            size: int = head.payload_size
            if own.credit_spent + size > own.credit_granted:
                violations |= WINDOW_EXCEEDED
        if (
            kind >= WINDOW_UPDATE
            and not flags & RST
            and peer.credit_granted - peer.credit_spent + head.amount > MAX_WINDOW
        ):
            violations |= WINDOW_OVERFLOW
        return self.without_unordered(violations)

    def without_unordered(self, violations: i64) -> i64:
        """Leave out what grants or ACKs excuse that may have been seen before their stream."""
        if self.causality.vantage == UNORDERED:
            violations &= ~(WINDOW_EXCEEDED | BACKLOG)
        return violations

    def validate_session_frame(self, sender: i64, head: FrameHeader) -> i64:
        violations: i64 = 0
        if head.stream_id != 0:
            violations = SESSION_FRAME_ON_STREAM
        if head.kind >= GO_AWAY:
            return violations | GOAWAY_CODE if head.amount > MAX_SPEC_CODE else violations
        if head.kind == PONG:
            if not self.pings.is_expected(1 - sender, head.amount):
                if self.causality.vantage == UNORDERED:
                    return violations | CROSSED  # the ping may have come first
                violations |= PONG_UNREQUESTED
        elif head.kind != PING:
            violations |= PING_FLAGS
        return violations

    def validate_open(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        violations: i64 = 0
        if head.kind & ACK:
            violations |= SYN_AND_ACK
        if self.breaks_parity(sender, head.stream_id):
            violations |= ID_PARITY
        if stream is not None:
            violations |= ID_RECYCLED if self.is_over(stream) else ID_REUSED
        elif head.stream_id < (self.highest_id0 if sender == DIALER else self.highest_id1):
            violations |= IDS_DESCENDING
        waiting = self.unacknowledged0 if sender == DIALER else self.unacknowledged1
        if waiting >= MAX_UNACKNOWLEDGED:
            violations |= BACKLOG
        left = self.go_away_index1 if sender == DIALER else self.go_away_index0
        if left != NEVER:
            violations |= OPEN_AFTER_GOAWAY if self.causality.had_seen(sender, left) else CROSSED
        if head.kind < WINDOW_UPDATE:
            if head.payload_size > INITIAL_WINDOW:
                violations |= WINDOW_EXCEEDED
        elif not head.kind & RST and INITIAL_WINDOW + head.amount > MAX_WINDOW:
            violations |= WINDOW_OVERFLOW
        return self.without_unordered(violations)

    def validate_unknown(self, sender: i64, head: FrameHeader) -> i64:
        """Validate a frame for a stream that is not in the table."""
        if self.causality.vantage == UNORDERED:
            return CROSSED  # the opening in the other direction may have come first
        highest = self.highest_id0 if self.highest_id0 > self.highest_id1 else self.highest_id1
        if self.streams.has_evicted and head.stream_id <= highest:
            return CROSSED  # late: its stream was over long ago
        return UNKNOWN_STREAM

    def breaks_parity(self, sender: i64, stream_id: i64) -> bool:
        """Whether a side may not open this id."""
        parity = stream_id & 1
        usual = (parity == 1) == (sender == DIALER)
        if not self.streams.keep_removed or self.named_dialect == LIBP2P:
            return not usual
        own = self.parity0 if sender == DIALER else self.parity1
        other = self.parity1 if sender == DIALER else self.parity0
        if own != NO_PARITY and own != parity:
            return True
        return other == parity and not usual

    def may_refer_to_previous_use(self, sender: i64, stream: StreamState) -> bool:
        """Whether a frame of the accepting side may belong to the id's previous use."""
        return sender != stream.opener and not self.causality.had_seen(
            sender, stream.open_frame_index
        )

    def is_over(self, stream: StreamState) -> bool:
        d, a = stream.dialer, stream.acceptor
        return d.state == ABORTED or a.state == ABORTED or (d.state == ENDED and a.state == ENDED)

    def validate_and_apply_content(
        self, sender: i64, head: FrameHeader, stream: StreamState, timestamp: i64
    ) -> bool:
        own = stream.dialer if sender == DIALER else stream.acceptor
        peer = stream.acceptor if sender == DIALER else stream.dialer
        if (
            head.kind != DATA
            or own.state != OPEN
            or own.last_frame_index != NEVER
            or peer.last_frame_index != NEVER
            or stream.protocol_state & PREVIOUS_USE_POSSIBLE
        ):
            return False
        spent = own.credit_spent + head.payload_size
        if spent > own.credit_granted >= 0:  # below 0: grants were not seen
            return False
        own.credit_spent = spent
        if sender != stream.opener:
            self.causality.record_seen(sender, stream.answerable_open_index)
        if head.payload_size > MAX_LIBP2P_PAYLOAD or self.signs.any_left:
            self.signs.on_content(sender, head.payload_size)
        self.frame_stream = stream
        self.content_counts = True
        return True

    # State changes

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        if kind >= SESSION_KINDS:
            self.apply_session_frame(sender, head, timestamp)
            return
        if head.stream_id == 0:
            return
        if kind & SYN:
            stream = self.apply_open(sender, head, stream, timestamp)
        elif stream is None:
            return
        self.frame_stream = stream
        stream.record_reply(sender, self.causality)
        if kind & ACK and not kind & SYN and stream.opener != sender and not stream.accepted:
            stream.accepted = True
            self.stop_waiting_for_ack(stream)
        own = stream.half(sender)
        if kind < WINDOW_UPDATE:
            if own.state == OPEN and own.last_frame_index == NEVER:
                own.credit_spent += head.payload_size
                self.content_counts = True
                self.signs.on_content(sender, head.payload_size)
        elif not kind & RST:
            self.apply_grant(stream, 1 - sender, head.amount)
            if kind == WINDOW_UPDATE and own.state == ENDED:
                stream.protocol_state |= UPDATE_NOTED
        if kind & RST:
            self.apply_reset(sender, stream, head.amount if kind >= WINDOW_UPDATE else 0)
        elif kind & FIN and own.state == OPEN:
            own.stop(ENDED, self.causality.frames_sent(sender), False)

    def apply_open(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> StreamState:
        """Start a use of an id. `stream` is the previous use, if any."""
        made = StreamState(head.key, head.stream_id, sender, self.causality.frames_sent(sender))
        if stream is not None:
            made.incarnation = stream.incarnation + 1
            made.answerable_open_index = stream.answerable_open_index
            if stream.half(1 - sender).last_frame_index == NEVER:
                made.protocol_state = PREVIOUS_USE_POSSIBLE
            if not self.is_over(stream):
                if not stream.unseen:
                    stream.ending = ABANDONED
                self.replaced_stream = stream
                if not stream.accepted:
                    self.stop_waiting_for_ack(stream)
        for half in (made.dialer, made.acceptor):
            half.window = INITIAL_WINDOW
            half.credit_granted = INITIAL_WINDOW
        if sender == DIALER:
            self.unacknowledged0 += 1
            if self.parity0 == NO_PARITY:
                self.parity0 = head.stream_id & 1
            if head.stream_id > self.highest_id0 and head.stream_id & 1 == self.parity0:
                self.highest_id0 = head.stream_id
        else:
            self.unacknowledged1 += 1
            if self.parity1 == NO_PARITY:
                self.parity1 = head.stream_id & 1
            if head.stream_id > self.highest_id1 and head.stream_id & 1 == self.parity1:
                self.highest_id1 = head.stream_id
        self.signs.on_open(sender, timestamp)
        self.streams.insert(made)
        return made

    def stop_waiting_for_ack(self, stream: StreamState) -> None:
        """The stream was accepted, reset or replaced: it is no longer in its opener's backlog."""
        if stream.opener == DIALER:
            self.unacknowledged0 -= 1
        else:
            self.unacknowledged1 -= 1

    def apply_grant(self, stream: StreamState, side: i64, amount: int) -> None:
        """Add to what `side` may send; the largest amount it could send at once is its window."""
        half = stream.half(side)
        if half.credit_granted < 0:
            return  # grants were not seen
        half.credit_granted += amount
        if half.credit_granted - half.credit_spent > half.window:
            half.window = half.credit_granted - half.credit_spent

    def apply_reset(self, sender: i64, stream: StreamState, code: int) -> None:
        own, peer = stream.half(sender), stream.half(1 - sender)
        frame_index = self.causality.frames_sent(sender)
        if not self.is_over(stream):
            if not stream.accepted:
                self.stop_waiting_for_ack(stream)
                if sender != stream.opener and own.content_bytes == 0:
                    stream.ending = "rejected"
            stream.reset_by = sender
            stream.error = f"code {code}".encode() if code > 0 else None
            own.stop(ABORTED, frame_index, False)
        elif peer.last_frame_index != NEVER and own.state == OPEN:
            own.stop(ABORTED, frame_index, False)  # the two resets crossed
        if own.last_frame_index == NEVER:
            own.last_frame_index = frame_index
        self.signs.on_reset(sender, code)

    def apply_session_frame(self, sender: i64, head: FrameHeader, timestamp: i64) -> None:
        kind = head.kind
        frame_index = self.causality.frames_sent(sender)
        if kind == PING:
            if (sender, PING, reply_key(head.amount)) in self.pending_replies:
                self.reply_received(sender, PING, reply_key(head.amount))
            self.pings.sent(sender, head.amount, frame_index, timestamp)
            self.signs.on_ping(sender, frame_index, timestamp)
        elif kind == PONG:
            request = self.pings.answered(1 - sender, head.amount, timestamp)
            if request >= 0:
                self.causality.record_seen(sender, request)
                far = max(self.pings.latest) > FAR_NS  # an endpoint's own answers take no time
                self.credit_grants_per_window = FAR_GRANTS if far else NEAR_GRANTS
        elif kind >= GO_AWAY:
            if sender == DIALER and self.go_away_index0 == NEVER:
                self.go_away_index0 = frame_index
                self.go_away_code0 = head.amount
            elif sender == ACCEPTOR and self.go_away_index1 == NEVER:
                self.go_away_index1 = frame_index
                self.go_away_code1 = head.amount
            self.signs.on_go_away(sender, head.amount)

    def go_away_code(self, side: i64) -> int:
        """The code of the first Go Away that a side has sent; -1: none."""
        return self.go_away_code0 if side == DIALER else self.go_away_code1

    def unacknowledged(self, side: i64) -> i64:
        """How many streams of a side wait for their ACK."""
        return self.unacknowledged0 if side == DIALER else self.unacknowledged1

    def round_trip_ns(self) -> i64:
        return self.pings.round_trip_ns()

    # Streams that were never acknowledged

    def finish(self, ended: bool) -> list[PendingReply]:
        missing = super().finish(ended)
        for stream in self.streams.all():
            if self.is_unacknowledged(stream):
                missing.append(unacknowledged_reply(stream))
        return missing

    def expire_replies(self, key: i64, stream: StreamState | None) -> None:
        if stream is not None and self.is_unacknowledged(stream):
            self.stop_waiting_for_ack(stream)
            self.report_expired(unacknowledged_reply(stream), stream)

    def is_unacknowledged(self, stream: StreamState) -> bool:
        """Whether a stream was neither accepted nor reset nor replaced, for all that is known."""
        return (
            self.causality.vantage != UNORDERED  # its ACK may have been seen before its SYN
            and not stream.accepted
            and stream.reset_by < 0
            and stream.ending != ABANDONED
        )

    # Frames to send

    def allocate(self, side: i64) -> i64:
        number = self.next_id0 if side == DIALER else self.next_id1
        if number > MAX_U32:
            return NO_ID
        if side == DIALER:
            self.next_id0 = number + 2
        else:
            self.next_id1 = number + 2
        return number

    def open_error(self, side: i64) -> str:
        code = self.go_away_code(1 - side)
        if code < 0:
            return ""
        return f"the peer accepts no more streams: it has sent Go Away with code {code}"

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        if len(name) > 0 or window > MAX_WINDOW:
            if side == DIALER:
                self.next_id0 -= 2
            else:
                self.next_id1 -= 2
            if len(name) == 0:
                raise LocalProtocolError(f"a window is at most {MAX_WINDOW} bytes, not {window}")
            raise Unsupported("yamux has no names: send what the stream is about as its first data")
        return Frame(WINDOW_UPDATE | SYN, key, b"", announced_increase(window))

    def accept_frame(self, side: i64, stream: StreamState, window: int) -> Frame | None:
        if stream.accepted or stream.opener == side or stream.reset_by >= 0:
            return None
        return Frame(WINDOW_UPDATE | ACK, stream.key, b"", announced_increase(window))

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        head.kind = DATA
        if stream.opener != side and not stream.accepted:
            head.kind = DATA | ACK
        head.credit_cost = head.payload_size

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        own = stream.dialer if side == DIALER else stream.acceptor
        size = rest if rest < quantum else quantum
        if own.credit_granted - own.credit_spent < size:
            size = own.credit_granted - own.credit_spent
        return size if size > 0 else -1

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        if stream.opener != side and not stream.accepted:
            return Frame(WINDOW_UPDATE | FIN | ACK, stream.key, b"", 0)
        return Frame(WINDOW_UPDATE | FIN, stream.key, b"", 0)

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        code = 0
        if self.named_dialect == LIBP2P and text.startswith(b"code "):
            digits = text[5:]
            if digits.isdigit() and len(digits) <= 10:
                code = min(int(digits), MAX_WINDOW)
        return Frame(WINDOW_UPDATE | RST, stream.key, b"", code)

    def credit_frame(self, side: i64, stream: StreamState, amount: int) -> Frame | None:
        # Without ACK: another frame may have accepted the stream before this one is sent.
        if stream.half(side).last_frame_index != NEVER:
            return None
        return Frame(WINDOW_UPDATE, stream.key, b"", amount)

    def go_away_frame(self, code: int) -> Frame:
        """The frame that says that no more streams are accepted, or why the session ends."""
        return Frame(GO_AWAY, 0, b"", code)

    def request_ping(self, side: i64) -> int:
        """Have this side's endpoint send a ping with its next frames; return the ping's value."""
        value = self.next_ping
        self.next_ping = (value + 1) & MAX_WINDOW
        self.expect_reply(side, PING, reply_key(value), 0, 0)
        return value

    def last_frame(self, side: i64) -> Frame | None:
        return self.go_away_frame(0) if self.named_dialect == LIBP2P else None

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        return Frame(reply.kind, 0, b"", -1 - reply.key)

    def window_growth(self, side: i64, stream: StreamState, returned: int, now: i64) -> int:
        """Double a window that was used up and returned as a whole within four round trips.

        The round trip is measured with a ping when the first credit is returned. A window grows at
        most to what 20 Gbit/s need over that round trip.
        """
        buffers = stream.buffers
        if buffers is None:
            return 0
        window = self.target_window(side, stream)
        room = min(window, self.limits.max_receive_window - window, MAX_WINDOW - window)
        if room <= 0:
            return 0
        round_trip: i64 = self.pings.latest[side]
        if round_trip < 0 and self.pings.total == 0 and len(self.pending_replies) == 0:
            self.request_ping(side)
        if buffers.epoch_began == NOT_YET:
            buffers.epoch_began = stream.half(1 - side).first_at
        buffers.epoch_credit += returned
        if buffers.epoch_credit < window:
            return 0
        taken = now - buffers.epoch_began
        buffers.epoch_began = now
        buffers.epoch_credit = 0
        if round_trip < 0 or taken > round_trip * GROWTH_ROUND_TRIPS:
            return 0
        room = min(room, round_trip // 1000 * GROWTH_BYTES_PER_US - window)
        grown = 0
        total = 0
        for other in self.streams.slots:
            if not other.over and other.buffers is not None:
                target = self.target_window(side, other)
                total += target
                grown += max(0, target - self.receive_window)
        room = min(room, self.limits.max_window_growth_total - grown)
        room = min(room, window_pool(self.limits) - total)
        if room <= 0:
            return 0
        buffers.target_window = window + room
        return room

    def target_window(self, side: i64, stream: StreamState) -> int:
        """The window that this side keeps open on a stream."""
        buffers = stream.buffers
        if buffers is not None and buffers.target_window > 0:
            return buffers.target_window
        return stream.half(1 - side).window

    # Descriptions

    def dialect(self) -> str:
        return self.signs.name()

    def dialect_evidence(self) -> str:
        return self.signs.evidence()

    def ending(self, stream: StreamState) -> str:
        if (
            not stream.ending
            and not stream.accepted
            and stream.reset_by < 0
            and stream.half(1 - stream.opener).frames == 0
        ):
            return "never-accepted"
        return super().ending(stream)

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        text = super().explain(rule, sender, head, stream)
        if rule == WINDOW_EXCEEDED:
            granted = stream.half(sender).credit_granted if stream is not None else INITIAL_WINDOW
            spent = stream.half(sender).credit_spent if stream is not None else 0
            if head.kind & SYN:
                granted, spent = INITIAL_WINDOW, 0
            size: int = head.payload_size
            over = spent + size - granted
            return f"{text}: {byte_count_text(over)} beyond the window"
        if rule == ID_PARITY:
            return f"{text} on id {head.stream_id}"
        if stream is None and rule in (UNKNOWN_STREAM, IDS_DESCENDING, STREAM_ZERO):
            return f"{text} on id {head.stream_id}"
        return text

    # Saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        # The answers to pings are saved with the pings.
        saved["pending_replies"] = []
        saved["pings"] = self.pings.save()
        saved["signs"] = self.signs.save()
        saved["sides"] = [
            self.next_id0,
            self.next_id1,
            self.highest_id0,
            self.highest_id1,
            self.parity0,
            self.parity1,
            self.unacknowledged0,
            self.unacknowledged1,
            self.go_away_index0,
            self.go_away_index1,
            self.go_away_code0,
            self.go_away_code1,
            self.next_ping,
        ]
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        pings, signs, sides = saved["pings"], saved["signs"], saved["sides"]
        # Saved state is untyped; `save` writes these lists.
        assert isinstance(pings, list)
        assert isinstance(signs, list)
        assert isinstance(sides, list)
        self.pings.load(pings)
        self.signs.load(signs)
        self.next_id0, self.next_id1 = sides[0], sides[1]
        self.highest_id0, self.highest_id1 = sides[2], sides[3]
        self.parity0, self.parity1 = sides[4], sides[5]
        self.unacknowledged0, self.unacknowledged1 = sides[6], sides[7]
        self.go_away_index0, self.go_away_index1 = sides[8], sides[9]
        self.go_away_code0, self.go_away_code1 = sides[10], sides[11]
        self.next_ping = sides[12]


def announced_increase(window: int) -> int:
    """What a SYN or an ACK adds to the initial window so that it becomes `window`."""
    return max(0, min(window, MAX_WINDOW) - INITIAL_WINDOW)


def unacknowledged_reply(stream: StreamState) -> PendingReply:
    """The ACK that a stream still lacks."""
    return PendingReply(
        1 - stream.opener,
        WINDOW_UPDATE | ACK,
        stream.key,
        UNACKNOWLEDGED,
        stream.open_frame_index,
        stream.opened_at,
    )


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """Make a `Yamux` from the options of a protocol string.

    `dialect=hashicorp|libp2p`; `window` is the receive window of each stream in bytes, at least
    262144; `max_frame` is the largest Data frame accepted, in bytes.
    """
    dialect = options.get("dialect", "")
    if dialect not in ("", HASHICORP, LIBP2P):
        raise ValueError(f"dialect is {HASHICORP} or {LIBP2P}, not {dialect!r}")
    if "window" in options:
        window = parse_integer(options["window"], "window", INITIAL_WINDOW)
        if window > MAX_WINDOW:
            raise ValueError(f"window is at most {MAX_WINDOW}, not {window}")
        limits.receive_window = window
    if "max_frame" in options:
        limits.max_frame_bytes = parse_integer(options["max_frame"], "max_frame", 1)
    return Yamux(limits, vantage, dialect, options.get("preamble", "") == "multistream")
