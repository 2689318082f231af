# mypyc: compiled
"""Nerdbank MultiplexingStream, versions 1, 2 and 3: one protocol over three encodings.

Channels are offered by name, accepted or rejected, and carry content both ways under receive
windows (not in version 1). A channel ends with writing-completed from both sides and one
termination from each. `codec` holds the encodings of the three versions; validation and state are
the same for all.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.msgpack import MAX_SKIPPED_VALUES, msgpack_structure
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import CROSSED, PendingReply, byte_count_text
from polymux.core.side import ACCEPTOR, DIALER, NEITHER_SIDE
from polymux.core.streams import ABORTED, ENDED, NEVER, OPEN, HalfStream, StreamState
from polymux.core.varint import AWAITING_HANDSHAKE
from polymux.core.window_budget import window_pool
from polymux.protocols.nerdbank.codec import (
    ACCEPTED,
    BAD_ACCEPTANCE,
    BAD_FRAME,
    CONTENT_FRAME,
    GROWTH_REQUEST,
    HANDSHAKE,
    MAGIC,
    MALFORMED,
    MAX_SENT_PAYLOAD,
    OFFER,
    PROCESSED,
    READING_COMPLETED,
    TERMINATED,
    WINDOW_ADJUST,
    WRITING_COMPLETED,
    WRONG_SOURCE,
    decode_content_header_v3,
    decode_handshake_v1,
    decode_handshake_v2,
    decode_header_v1,
    decode_header_v2_v3,
    decode_payload_v2_v3,
    encode_frame_v1,
    encode_frame_v2_v3,
)
from polymux.protocols.nerdbank.rules import (
    ACCEPTED_UNKNOWN_OFFER,
    ACKNOWLEDGED_TOO_MUCH,
    COMPLETED_TWICE,
    CONTENT_AFTER_COMPLETED,
    CONTENT_BEFORE_ACCEPTANCE,
    EQUAL_RANDOMS,
    FRAME_AFTER_PEER_TERMINATION,
    FRAME_AFTER_TERMINATION,
    FRAME_TOO_LONG,
    ID_PARITY,
    ID_RECYCLED,
    ID_REUSED,
    KINDS,
    NOT_TERMINATED,
    PAYLOAD_TOO_LONG,
    RULES,
    TERMINATED_TWICE,
    TERMINATION_UNANSWERED,
    TRUNCATED,
    UNKNOWN_CHANNEL,
    UNKNOWN_CODE,
    WINDOW_EXCEEDED,
    WINDOW_SHRUNK,
)
from polymux.protocols.option_values import parse_integer

MAX_RECEIVED_PAYLOAD: Final = 65536  # bytes accepted by default
# Flag in `StreamState.protocol_state`: frames of the id's previous use may still come.
PREVIOUS_USE_POSSIBLE: Final[i64] = 1

MAX_ALLOCATED_ID: Final = 0x7FFFFFFF  # TypeScript peers fail on larger ids
UNSEEN_RANDOM: Final = b"\0"  # stands for the random value of a handshake that was not seen
# Evidence of a header (`Protocol.header_evidence`):
V1_HEADER_BITS: Final[i64] = 18  # code, and two bytes of the id that are zero
V2_HEADER_BITS: Final[i64] = 16  # array, code
V3_HEADER_BITS: Final[i64] = 22  # array, code, source
HANDSHAKE_BITS: Final[i64] = 32
MAX_COMMON_V1_ID: Final[i64] = 0xFF
MAX_PLAUSIBLE_V1_ID: Final[i64] = 0xFFFF
MAX_PLAUSIBLE_NAME: Final[i64] = 1024
WINDOW_GROWTH_FACTOR: Final = 4  # of a window, for each growth request
MAX_FRAME_NUMBERS: Final[i64] = 4  # code, id, source, and nil as payload
MAX_BODY_NUMBERS: Final[i64] = 3  # of a control frame's payload


class Nerdbank(Protocol):
    """Nerdbank on one connection, in one version.

    `seeded_windows` are the windows of the channels that both sides were configured with
    (version 3); None accepts any seeded channel, without known windows.
    """

    def __init__(
        self,
        limits: Limits,
        vantage: i64,
        version: i64 = 3,
        seeded_windows: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__("nerdbank", RULES, KINDS, limits, vantage)
        self.major_version: i64 = version
        self.seeded_windows = seeded_windows
        self.has_credit = version >= 2
        self.max_frame_bytes = (
            limits.max_frame_bytes if limits.max_frame_bytes > 0 else MAX_RECEIVED_PAYLOAD
        )
        self.max_sent_frame_bytes = MAX_SENT_PAYLOAD
        self.too_long_rule = FRAME_TOO_LONG
        self.truncated_rule = TRUNCATED
        self.peer_dependent_rules = (
            ID_REUSED
            | ACCEPTED_UNKNOWN_OFFER
            | UNKNOWN_CHANNEL
            | WINDOW_EXCEEDED
            | ACKNOWLEDGED_TOO_MUCH
        )
        self.frame_rules = UNKNOWN_CODE | WRONG_SOURCE | BAD_FRAME | PAYLOAD_TOO_LONG
        self.can_begin_anywhere = True
        self.handshake_done = version == 3
        self.dialer_random: bytes = b""
        self.acceptor_random: bytes = b""
        self.odd_id_side: i64 = -1  # the side with the odd ids (v1, v2)
        self.odd_id_side_assumed: bool = False  # the handshake was not seen
        self.next_dialer_id: i64 = 0
        self.next_acceptor_id: i64 = 0

    # Decoding and encoding

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        head.clear()
        start: i64
        if self.major_version == 3:
            start = decode_content_header_v3(data, pos, end, sender, head)
            if start > 0:
                return start
            start = decode_header_v2_v3(data, pos, end, 3, self.max_frame_bytes, sender, head)
        else:
            if len(self.dialer_random if sender == DIALER else self.acceptor_random) == 0:
                return self.decode_handshake(data, pos, end, head)
            if not self.handshake_done:
                return AWAITING_HANDSHAKE  # which side has the odd ids is not known yet
            if self.major_version == 2:
                start = decode_header_v2_v3(data, pos, end, 2, self.max_frame_bytes, sender, head)
            else:
                start = decode_header_v1(data, pos, end, head)
            head.opener = self.odd_id_side if head.stream_id & 1 else 1 - self.odd_id_side
        if start < 0:
            return start
        if head.kind == MALFORMED:
            head.opener = NO_STREAM
            return start
        head.key = head.stream_id * 4 + head.opener
        head.credit_cost = head.payload_size
        if head.payload_size > MAX_SENT_PAYLOAD:
            head.format_violations |= (
                FRAME_TOO_LONG if head.payload_size > self.max_frame_bytes else PAYLOAD_TOO_LONG
            )
        return start

    def decode_handshake(self, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        head.kind = HANDSHAKE
        head.opener = NO_STREAM
        if self.major_version == 1:
            return decode_handshake_v1(data, pos, end, head)
        return decode_handshake_v2(data, pos, end, self.limits.max_control_bytes, head)

    def decode_body(
        self, sender: i64, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> None:
        if head.kind == HANDSHAKE or (self.major_version == 1 and head.kind == OFFER):
            head.text_start = start
            head.text_size = end - start
        elif self.major_version > 1 and head.kind != MALFORMED:
            decode_payload_v2_v3(data, start, end, self.limits.max_peer_window, head)

    def body_structure(
        self, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> list[tuple[int, int]]:
        if head.kind == HANDSHAKE:
            return [(int(start), int(end))]  # random bytes, which decide who has the odd ids
        if self.major_version == 1:
            return []
        if head.kind == MALFORMED:  # a value whose first byte is the header; its numbers matter
            found = msgpack_structure(data, start - 1, end, 1, MAX_FRAME_NUMBERS)
            return found[1:] if found and found[0][1] == start else found
        if OFFER <= head.kind <= WINDOW_ADJUST and head.kind != CONTENT_FRAME:
            return msgpack_structure(data, start, end, 1, MAX_BODY_NUMBERS)
        return []

    def trailer_structure(self, data: bytes, start: i64, end: i64) -> list[tuple[int, int]]:
        return msgpack_structure(data, start, end, MAX_SKIPPED_VALUES, 0)

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        if head.kind == HANDSHAKE:
            out.write(MAGIC if self.major_version == 1 else b"\x92\x92\x02\x00\xc4\x10")
            out.write(text)
        elif self.major_version == 1:
            encode_frame_v1(out, head, text)
        else:
            encode_frame_v2_v3(out, self.major_version, sender, head, text)

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        head.stream_id = head.key >> 2
        if self.major_version < 3:
            head.key = head.stream_id * 4 + (
                self.odd_id_side if head.stream_id & 1 else 1 - self.odd_id_side
            )
        elif head.key & 3 > NEITHER_SIDE:
            head.key = head.stream_id * 4 + 1 - sender
        head.opener = NO_STREAM if head.kind >= MALFORMED else head.key & 3

    # Frames that were not seen

    def header_evidence(self, sender: i64, head: FrameHeader) -> i64:
        kind = head.kind
        if kind > GROWTH_REQUEST:
            return HANDSHAKE_BITS if kind == HANDSHAKE else -1
        if self.major_version == 1:
            if (
                kind > TERMINATED
                or head.stream_id > MAX_PLAUSIBLE_V1_ID
                or (kind == OFFER and head.payload_size > MAX_PLAUSIBLE_NAME)
                or (kind != OFFER and kind != CONTENT_FRAME and head.payload_size > 0)
            ):
                return -1
            return V1_HEADER_BITS if head.stream_id <= MAX_COMMON_V1_ID else V1_HEADER_BITS // 2
        return V2_HEADER_BITS if self.major_version == 2 else V3_HEADER_BITS

    def awaits_handshake(self, side: i64) -> bool:
        random = self.dialer_random if side == DIALER else self.acceptor_random
        return self.major_version < 3 and len(random) == 0

    def skip_handshake(self, side: i64) -> None:
        """Assume that the dialer has the odd ids, until an offer or an acceptance shows it."""
        if self.awaits_handshake(side):
            if side == DIALER:
                self.dialer_random = UNSEEN_RANDOM
            else:
                self.acceptor_random = UNSEEN_RANDOM
            if not self.handshake_done:
                self.odd_id_side = DIALER
                self.odd_id_side_assumed = True
                self.handshake_done = True

    def learn_from_header(self, sender: i64, head: FrameHeader) -> None:
        """Learn which side has the odd ids: a channel is offered by its owner."""
        if self.odd_id_side_assumed and (head.kind == OFFER or head.kind == ACCEPTED):
            owner = sender if head.kind == OFFER else 1 - sender
            self.odd_id_side = owner if head.stream_id & 1 else 1 - owner
            self.odd_id_side_assumed = False
            head.opener = owner
            head.key = head.stream_id * 4 + owner

    def adopt_stream(self, sender: i64, head: FrameHeader) -> StreamState | None:
        self.learn_from_header(sender, head)
        known = self.streams.find(head.key)
        if known is not None or head.kind >= MALFORMED:
            return known
        made = super().adopt_stream(sender, head)
        if made is not None and head.kind == ACCEPTED:
            made.accepted = False  # it is being accepted
        return made

    # Validation

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        if kind == CONTENT_FRAME and stream is not None:
            return self.validate_content(sender, head, stream)
        if kind >= MALFORMED:
            return self.validate_handshake(sender) if kind == HANDSHAKE else 0
        if kind == OFFER:
            return self.validate_offer(sender, head, stream)
        if kind > GROWTH_REQUEST or (self.major_version == 1 and kind > PROCESSED):
            return UNKNOWN_CODE
        if stream is None:
            if head.opener != NEITHER_SIDE or not self.is_seeded(head.stream_id):
                return ACCEPTED_UNKNOWN_OFFER if kind == ACCEPTED else UNKNOWN_CHANNEL
            stream = self.new_seeded_channel(head.stream_id)
            if kind == CONTENT_FRAME:
                return self.validate_content(sender, head, stream)
        if stream.protocol_state != 0 and self.may_refer_to_previous_use(sender, stream):
            return CROSSED
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        if own.last_frame_index != NEVER:
            return TERMINATED_TWICE if kind == TERMINATED else FRAME_AFTER_TERMINATION
        if kind == TERMINATED:
            return 0
        violations = self.validate_after_peer_termination(sender, peer)
        if kind == ACCEPTED:
            if stream.opener == sender or stream.opener == NEITHER_SIDE or stream.accepted:
                violations |= BAD_ACCEPTANCE
        elif kind == WRITING_COMPLETED:
            if stream.opener == 1 - sender and not stream.accepted:
                violations |= CONTENT_BEFORE_ACCEPTANCE
            if own.state == ENDED:
                violations |= COMPLETED_TWICE
        elif kind == PROCESSED:
            if self.major_version == 1:
                violations |= BAD_FRAME
            elif peer.credit_granted >= 0 and head.amount > peer.credit_spent - (
                peer.credit_granted - peer.window
            ):
                violations |= ACKNOWLEDGED_TOO_MUCH
        elif kind == WINDOW_ADJUST and 0 <= head.amount < peer.window:
            violations |= WINDOW_SHRUNK
        return violations

    def validate_content(self, sender: i64, head: FrameHeader, stream: StreamState) -> i64:
        if stream.protocol_state != 0 and self.may_refer_to_previous_use(sender, stream):
            return CROSSED
        own = stream.half(sender)
        if own.last_frame_index != NEVER:
            return FRAME_AFTER_TERMINATION
        violations: i64 = 0
        peer = stream.half(1 - sender)
        if peer.last_frame_index != NEVER:
            violations = self.validate_after_peer_termination(sender, peer)
        if not stream.accepted and stream.opener == 1 - sender:
            violations |= CONTENT_BEFORE_ACCEPTANCE
        if own.state != OPEN:
            violations |= CONTENT_AFTER_COMPLETED
        size: int = head.payload_size  # not i64: a peer may grant more than 2^63
        if own.credit_granted >= 0 and own.credit_spent + size > own.credit_granted:
            violations |= WINDOW_EXCEEDED
        return violations

    def validate_offer(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        if self.odd_id_side_assumed:
            return 0  # this offer shows which side has the odd ids
        if head.opener != sender:
            return WRONG_SOURCE if self.major_version == 3 else ID_PARITY
        if stream is None:
            return 0
        return ID_RECYCLED if self.is_over(stream) else ID_REUSED

    def validate_handshake(self, sender: i64) -> i64:
        other = self.acceptor_random if sender == DIALER else self.dialer_random
        return EQUAL_RANDOMS if len(other) > 0 and other == self.frame_text else 0

    def may_refer_to_previous_use(self, sender: i64, stream: StreamState) -> bool:
        """Return whether a frame of the accepting side may belong to the id's previous use."""
        return sender != stream.opener and not self.causality.had_seen(
            sender, stream.open_frame_index
        )

    def validate_after_peer_termination(self, sender: i64, peer: HalfStream) -> i64:
        """Validate a frame after the peer's termination: crossed in flight unless it was read."""
        if peer.last_frame_index == NEVER:
            return 0
        return (
            FRAME_AFTER_PEER_TERMINATION
            if self.causality.had_seen(sender, peer.last_frame_index)
            else CROSSED
        )

    def is_seeded(self, channel_id: i64) -> bool:
        return self.major_version == 3 and (
            self.seeded_windows is None or channel_id < len(self.seeded_windows)
        )

    def is_over(self, stream: StreamState) -> bool:
        d, a = stream.dialer, stream.acceptor
        return (d.last_frame_index != NEVER or d.state != OPEN) and (
            a.last_frame_index != NEVER or a.state != OPEN
        )

    # State changes

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        if kind == CONTENT_FRAME and stream is not None:
            self.frame_stream = stream
            stream.record_reply(sender, self.causality)
            own = stream.half(sender)
            if own.state == OPEN and own.last_frame_index == NEVER:
                own.credit_spent += head.payload_size
                self.content_counts = True
            return
        if kind >= MALFORMED:
            if kind == HANDSHAKE:
                self.apply_handshake(sender)
            return
        if kind == OFFER:
            self.apply_offer(sender, head, stream)
            return
        if stream is None:
            if head.opener != NEITHER_SIDE or not self.is_seeded(head.stream_id):
                return
            stream = self.open_seeded_channel(head.stream_id)
            if kind == CONTENT_FRAME:
                stream.half(sender).credit_spent = head.payload_size
                self.content_counts = True
        self.frame_stream = stream
        stream.record_reply(sender, self.causality)
        if stream.half(sender).last_frame_index == NEVER:
            self.apply_control(sender, head, stream, timestamp)

    def apply_control(
        self, sender: i64, head: FrameHeader, stream: StreamState, timestamp: i64
    ) -> None:
        kind = head.kind
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        if kind == ACCEPTED:
            if stream.opener == 1 - sender and not stream.accepted:
                stream.accepted = True
                grant_window(peer, head.amount, self.has_credit)
        elif kind == PROCESSED:
            if peer.credit_granted >= 0 and head.amount > 0:
                peer.credit_granted += head.amount
        elif kind == WINDOW_ADJUST:
            self.reply_received(sender, WINDOW_ADJUST, stream.key)
            if peer.credit_granted >= 0 and head.amount > peer.window:
                peer.credit_granted += head.amount - peer.window
                peer.window = head.amount
        elif kind == GROWTH_REQUEST:
            if peer.last_frame_index == NEVER:  # a terminated side cannot reply
                self.expect_reply(1 - sender, WINDOW_ADJUST, stream.key, 0, timestamp)
        elif kind == READING_COMPLETED:
            if peer.state == OPEN:
                self.expect_reply(1 - sender, WRITING_COMPLETED, stream.key, 0, timestamp)
        elif kind == WRITING_COMPLETED:
            self.reply_received(sender, WRITING_COMPLETED, stream.key)
            if own.state == OPEN:
                own.stop(ENDED, self.causality.frames_sent(sender), False)
            if peer.state == ENDED and peer.last_frame_index == NEVER:
                self.expect_reply(DIALER, TERMINATED, stream.key, NOT_TERMINATED, timestamp)
                self.expect_reply(ACCEPTOR, TERMINATED, stream.key, NOT_TERMINATED, timestamp)
        elif kind == TERMINATED:
            self.apply_termination(sender, stream, own, peer, timestamp)

    def apply_termination(
        self, sender: i64, stream: StreamState, own: HalfStream, peer: HalfStream, timestamp: i64
    ) -> None:
        if stream.reset_by < 0:
            stream.reset_by = sender
            stream.error = self.frame_text if len(self.frame_text) > 0 else None
            if not stream.accepted and stream.opener != NEITHER_SIDE:
                stream.ending = "cancelled" if stream.opener == sender else "rejected"
            elif own.state == ENDED and peer.state == ENDED:
                stream.ending = "clean"
            else:
                stream.ending = "reset"
        own.last_frame_index = self.causality.frames_sent(sender)
        if own.state == OPEN:
            own.stop(ABORTED, own.last_frame_index, False)
        for kind in (TERMINATED, WRITING_COMPLETED, WINDOW_ADJUST):
            self.reply_received(sender, kind, stream.key)
        if peer.last_frame_index == NEVER:
            self.reply_received(1 - sender, TERMINATED, stream.key)
            self.expect_reply(1 - sender, TERMINATED, stream.key, TERMINATION_UNANSWERED, timestamp)

    def apply_offer(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        if self.odd_id_side_assumed:
            self.learn_from_header(sender, head)
            stream = self.streams.find(head.key)
        made = StreamState(
            head.key, head.stream_id, head.opener, self.causality.frames_sent(sender)
        )
        if stream is not None:
            made.incarnation = stream.incarnation + 1
            made.answerable_open_index = stream.answerable_open_index
            if stream.half(1 - head.opener).last_frame_index == NEVER:
                made.protocol_state = PREVIOUS_USE_POSSIBLE
            if not self.is_over(stream):
                if not stream.unseen:
                    stream.ending = "abandoned"
                self.replaced_stream = stream
        made.name = self.frame_text
        if self.has_credit:
            grant_window(made.half(sender), 0, True)
            grant_window(made.half(1 - sender), head.amount, True)
        self.streams.insert(made)
        self.frame_stream = made

    def open_seeded_channel(self, channel_id: i64) -> StreamState:
        """Return a seeded channel; register it at its first use."""
        key = channel_id * 4 + NEITHER_SIDE
        stream = self.streams.find(key)
        if stream is not None:
            return stream
        made = self.new_seeded_channel(channel_id)
        self.streams.insert(made)
        return made

    def new_seeded_channel(self, channel_id: i64) -> StreamState:
        """Return an unused seeded channel: accepted, with the configured windows."""
        made = StreamState(channel_id * 4 + NEITHER_SIDE, channel_id, NEITHER_SIDE, 0)
        made.accepted = True
        if self.seeded_windows is not None:
            grant_window(made.dialer, self.seeded_windows[channel_id], True)
            grant_window(made.acceptor, self.seeded_windows[channel_id], True)
        return made

    def apply_handshake(self, sender: i64) -> None:
        if sender == DIALER:
            self.dialer_random = self.frame_text
        else:
            self.acceptor_random = self.frame_text
        if self.handshake_done:
            return  # the other side's was not seen
        if len(self.dialer_random) > 0 and len(self.acceptor_random) > 0:
            self.odd_id_side = DIALER if self.dialer_random > self.acceptor_random else ACCEPTOR
            self.handshake_done = True
            self.peer_unblocked = True

    def is_reportable(self, reply: PendingReply, stream: StreamState | None) -> bool:
        if reply.rule == NOT_TERMINATED and stream is not None:
            # Expected of both sides, reported once.
            return reply.side == (DIALER if stream.opener == NEITHER_SIDE else stream.opener)
        return reply.rule != 0

    # Frames to send

    def handshake_frame(self, side: i64, nonce: bytes) -> Frame | None:
        return None if self.major_version == 3 else Frame(HANDSHAKE, 0, nonce)

    def allocate(self, side: i64) -> i64:
        number = self.next_dialer_id if side == DIALER else self.next_acceptor_id
        if number == 0:
            if self.major_version == 3:
                number = 1 + (len(self.seeded_windows) if self.seeded_windows is not None else 0)
            elif not self.handshake_done:
                return NO_ID
            else:
                number = 1 if self.odd_id_side == side else 2
        if number > MAX_ALLOCATED_ID:
            return NO_ID
        step: i64 = 1 if self.major_version == 3 else 2
        if side == DIALER:
            self.next_dialer_id = number + step
        else:
            self.next_acceptor_id = number + step
        return number * 4 + side

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        return Frame(OFFER, key, name, window if self.has_credit else -1)

    def accept_frame(self, side: i64, stream: StreamState, window: int) -> Frame | None:
        if stream.half(1 - side).last_frame_index != NEVER:
            return None  # withdrawn: only this side's termination may follow
        return Frame(ACCEPTED, stream.key, b"", window if self.has_credit else -1)

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        head.kind = CONTENT_FRAME
        head.credit_cost = head.payload_size

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        own = stream.half(side)
        if not stream.accepted or stream.half(1 - side).last_frame_index != NEVER:
            return -1
        size = rest if rest < quantum else quantum
        if own.credit_granted >= 0 and own.credit_granted - own.credit_spent < size:
            size = own.credit_granted - own.credit_spent
        return size if size > 0 else -1

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        return Frame(WRITING_COMPLETED, stream.key)

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        return Frame(TERMINATED, stream.key, text if self.major_version > 1 else b"")

    def stop_reading_frame(self, side: i64, stream: StreamState) -> Frame | None:
        return Frame(READING_COMPLETED, stream.key) if self.major_version > 1 else None

    def credit_frame(self, side: i64, stream: StreamState, amount: int) -> Frame | None:
        return Frame(PROCESSED, stream.key, b"", amount) if self.has_credit else None

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        if reply.kind != WINDOW_ADJUST:
            return super().reply_frame(reply)
        stream = self.streams.find(reply.key)
        window = 0 if stream is None else self.grown_window(reply.side, stream)
        return Frame(WINDOW_ADJUST, reply.key, b"", window) if window > 0 else None

    def reply_discards_queued(self, reply: PendingReply) -> bool:
        return reply.kind != WINDOW_ADJUST

    def defers_reply(self, reply: PendingReply) -> bool:
        return reply.kind == WINDOW_ADJUST

    def grown_window(self, side: i64, stream: StreamState) -> int:
        """Return the window that answers a growth request; the current one refuses it.

        It grows only while the reader keeps up and withholds no credit, within the total growth
        that `max_window_growth_total` allows for all channels, and within their pool
        (`window_budget`).
        """
        window = stream.half(1 - side).window
        buffers = stream.buffers
        target = min(window * WINDOW_GROWTH_FACTOR, self.limits.max_receive_window)
        if target <= window:
            return window
        if buffers is not None and (buffers.unread_bytes > 0 or buffers.unreturned_credit < 0):
            return window
        grown = 0
        total = 0
        for other in self.streams.slots:
            if not other.over and other.half(1 - side).window > 0:
                total += other.half(1 - side).window
                if other.half(1 - side).window > self.receive_window:
                    grown += other.half(1 - side).window - self.receive_window
        target = min(target, window + window_pool(self.limits) - total)
        if target <= window or grown + target - window > self.limits.max_window_growth_total:
            return window
        return target

    # Descriptions

    def version(self) -> str:
        return str(self.major_version)

    def ending(self, stream: StreamState) -> str:
        if not stream.ending and not stream.accepted and stream.opener != NEITHER_SIDE:
            return "never-accepted"
        return super().ending(stream)

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        text = super().explain(rule, sender, head, stream)
        if stream is None:
            return text
        own, peer = stream.half(sender), stream.half(1 - sender)
        if rule == WINDOW_EXCEEDED:
            size: int = head.payload_size
            over = own.credit_spent + size - own.credit_granted
            return f"{text}: {byte_count_text(over)} beyond the window of {own.window}"
        if rule == ACKNOWLEDGED_TOO_MUCH:
            outstanding = max(0, peer.credit_spent - (peer.credit_granted - peer.window))
            were = "was" if outstanding == 1 else "were"
            return f"{text}: only {byte_count_text(outstanding)} {were} outstanding"
        return text

    # Saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["randoms"] = [self.dialer_random, self.acceptor_random]
        saved["ids"] = [
            self.odd_id_side,
            self.next_dialer_id,
            self.next_acceptor_id,
            int(self.odd_id_side_assumed),
        ]
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        randoms, ids = saved["randoms"], saved["ids"]
        # Saved state is untyped; `save` writes these lists.
        assert isinstance(randoms, list)
        assert isinstance(ids, list)
        self.dialer_random, self.acceptor_random = randoms[0], randoms[1]
        self.odd_id_side, self.next_dialer_id, self.next_acceptor_id = ids[0], ids[1], ids[2]
        self.odd_id_side_assumed = ids[3] != 0


def grant_window(half: HalfStream, amount: int, has_credit: bool) -> None:
    """Announce a window to a half; without an amount it has no credit at all."""
    if has_credit:
        half.window = amount if amount > 0 else 0
        half.credit_granted = half.window


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """Make a `Nerdbank` from the options of a protocol string.

    `version=1|2|3`; `window` is the receive window to announce, in bytes; `seeded=102400+500` gives
    the windows of the seeded channels.
    """
    version = parse_integer(options.get("version", "3"), "version", 1)
    if version > 3:
        raise ValueError(f"version is 1, 2 or 3, not {version}")
    if "window" in options:
        limits.receive_window = parse_integer(options["window"], "window", 1)
    seeded: tuple[int, ...] | None = None
    if "seeded" in options:
        if version != 3:
            raise ValueError("seeded channels exist in version 3 only")
        seeded = tuple([parse_integer(part, "seeded", 1) for part in options["seeded"].split("+")])
    return Nerdbank(limits, vantage, version, seeded)
