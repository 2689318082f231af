# mypyc: compiled
"""Streamux: requests and replies in chunks, with cancellation; either side may make requests.

Each side first sends a 4-byte initiator that announces how it divides a header between length and
id. A header is `T R length id`, 16 or 32 bits, little endian. Requests use the layout that their
sender announced, and so do the replies to them. With a length of zero, T and R select a special
message (cancel, cancel ack, empty reply, keep alive).

A stream is one exchange: the request is the requester's half, the reply is the replier's. Only the
requester opens, ends and cancels; only the replier replies and acknowledges. An id is free again
after the final reply or, once cancelled, after the ack.

Between two correct peers no frame on an id is ever stale, because the requester waits for the end
of one use before it starts the next. If one side breaks that order, an observer that is not on the
other side no longer knows what the other side had read, so `ambiguous_ids` records that violations
of that role on this id are reported as crossed in flight instead.
"""

from collections import OrderedDict
from typing import Final

from librt.strings import BytesWriter, read_i32_le
from mypy_extensions import i64, u8

from polymux.core.errors import Unsupported
from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import CROSSED, PendingReply, byte_count_text
from polymux.core.side import DIALER
from polymux.core.streams import ABORTED, ENDED, NEVER, OPEN, StreamState
from polymux.core.varint import AWAITING_HANDSHAKE, INCOMPLETE, INVALID
from polymux.protocols.option_values import parse_integer
from polymux.protocols.streamux.initiator import (
    INITIATOR_INVALID,
    INITIATOR_MISSING,
    INITIATOR_VALID,
    HeaderLayout,
    IdAllocator,
    announced_header_size,
    initiator_violations,
)
from polymux.protocols.streamux.rules import (
    ACK_NOT_CANCELLED,
    BAD_BIT_COUNTS,
    BAD_VERSION,
    CANCEL,
    CANCEL_ACK,
    CANCEL_TWICE,
    CANCEL_UNANSWERED,
    CANCEL_UNKNOWN,
    CHUNK_TOO_LONG,
    EMPTY_REPLY,
    ID_IN_FLIGHT,
    INITIATOR,
    KEEP_ALIVE,
    KEEPALIVE_BUSY_ID,
    KINDS,
    MIXED_HEADER_SIZES,
    REPLY,
    REPLY_AFTER_CANCEL,
    REPLY_BEFORE_END,
    REPLY_BIT,
    REPLY_LAST,
    REPLY_UNKNOWN,
    REQUEST,
    REQUEST_LAST,
    RULES,
    TERMINATION_BIT,
    TRUNCATED,
)

MAX_CHUNK_BYTES: Final[i64] = 65536  # longest chunk accepted by default

REQUEST_COMPLETE: Final[i64] = 1  # flag in `protocol_state`: the request's last chunk was seen

# State of an id for its owner (`id_status`):
ID_FREE: Final[i64] = 0
ID_REQUESTING: Final[i64] = 1
ID_BUSY: Final[i64] = 2

# Roles whose violations on an id are excused after a violation of the other side:
REQUESTER: Final[i64] = 1
REPLIER: Final[i64] = 2
REPLIER_ACKS: Final[i64] = 4  # the replier, for acks only

U32_MAX: Final[i64] = 0xFFFFFFFF


class Streamux(Protocol):
    """Streamux on one connection.

    `initiator` is what a live endpoint announces. With `layout_given` it is also the layout of both
    sides of a connection whose initiators were not captured.
    """

    def __init__(
        self,
        limits: Limits,
        vantage: i64,
        initiator: bytes = b"\x01\x10\x0e\x32",
        layout_given: bool = False,
    ) -> None:
        super().__init__("streamux", RULES, KINDS, limits, vantage)
        self.initiator = initiator
        self.can_begin_anywhere = layout_given
        self.beginning_needed = (
            "its initiators give the layout of headers; name it with length_bits and id_bits"
        )
        self.max_frame_bytes = (
            limits.max_frame_bytes if limits.max_frame_bytes > 0 else MAX_CHUNK_BYTES
        )
        self.max_sent_frame_bytes = (
            self.max_frame_bytes if self.max_frame_bytes < MAX_CHUNK_BYTES else MAX_CHUNK_BYTES
        )
        self.too_long_rule = CHUNK_TOO_LONG
        self.truncated_rule = TRUNCATED
        self.peer_dependent_rules = (
            REPLY_UNKNOWN
            | REPLY_BEFORE_END
            | REPLY_AFTER_CANCEL
            | ACK_NOT_CANCELLED
            | ID_IN_FLIGHT
            | KEEPALIVE_BUSY_ID
            | CANCEL_TWICE
            | CANCEL_UNKNOWN
        )
        self.handshake_done = False
        self.dialer_layout: HeaderLayout = HeaderLayout()
        self.acceptor_layout: HeaderLayout = HeaderLayout()
        # Fast path: set while both layouts are equal and have 4-byte headers, else 0.
        self.shared_fields_mask: i64 = 0
        self.shared_id_bits: i64 = 0
        self.shared_max_id: i64 = 0
        self.dialer_ids: IdAllocator = IdAllocator()
        self.acceptor_ids: IdAllocator = IdAllocator()
        self.locked_keys: set[int] = set()  # keys cancelled and not yet acknowledged
        self.dialer_locked_count: i64 = 0  # keys in `locked_keys` that the dialer cancelled
        self.acceptor_locked_count: i64 = 0
        # By key: number of cancels without an ack, frame index of the first of them.
        self.unacknowledged_cancels: dict[int, tuple[int, int]] = {}
        self.repeated_pending_acks: int = 0  # pending acks beyond the first of each key
        self.max_repeated_pending_acks: int = max(
            limits.max_queued_replies, limits.closed_streams_remembered
        )
        self.ambiguous_ids: dict[int, int] = {}  # by key: roles whose violations are excused
        self.ambiguous_everywhere: i64 = 0  # roles excused on every key: some keys were evicted
        # Keys with state but no stream, oldest first; an observer bounds their number.
        self.keys_without_stream: OrderedDict[int, None] = OrderedDict()

    def layout_of(self, side: i64) -> HeaderLayout:
        """Return the layout that `side` announced for its requests and the replies to them."""
        return self.dialer_layout if side == DIALER else self.acceptor_layout

    def update_shared_layout(self) -> None:
        """Enable the header fast path if both sides announced the same 4-byte layout."""
        one, other = self.dialer_layout, self.acceptor_layout
        if one.header_size == 4 and other.header_size == 4 and one.id_bits == other.id_bits:
            self.shared_fields_mask = one.fields_mask
            self.shared_id_bits = one.id_bits
            self.shared_max_id = one.max_id

    def ids_of(self, side: i64) -> IdAllocator:
        return self.dialer_ids if side == DIALER else self.acceptor_ids

    # Decoding and encoding

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        if end - pos >= 4 and self.shared_fields_mask > 0:
            word = i64(read_i32_le(data, pos)) & U32_MAX
            size = (word & self.shared_fields_mask) >> self.shared_id_bits
            if size > 0:  # not one of the special messages
                flags = word >> 30
                opener = sender ^ (flags & 1)
                number = word & self.shared_max_id
                head.kind = (flags >> 1) | ((flags & 1) << 1)
                head.stream_id = number
                head.opener = opener
                head.key = number * 2 + opener
                head.payload_size = size
                head.credit_cost = size
                head.trailer_size = 0
                head.parts_left = 0
                head.amount = -1
                head.text_size = -1
                violations: i64 = 0
                if size > self.max_frame_bytes:
                    violations = CHUNK_TOO_LONG
                head.format_violations = violations
                return pos + 4
        return self.decode_header_slow(sender, data, pos, end, head)

    def decode_header_slow(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> i64:
        """Decode initiators, 2-byte headers, empty chunks and special messages."""
        own = self.dialer_layout if sender == DIALER else self.acceptor_layout
        other = self.acceptor_layout if sender == DIALER else self.dialer_layout
        head.clear()
        if own.status == INITIATOR_MISSING:
            head.kind = INITIATOR
            head.opener = NO_STREAM
            return pos + 4 if end - pos >= 4 else INCOMPLETE
        if other.status == INITIATOR_MISSING:
            return AWAITING_HANDSHAKE  # the layout of replies is not known yet
        width = own.header_size
        if width == 0:
            return INVALID  # after a bad initiator
        if width > end - pos:
            return INCOMPLETE
        low: i64 = data[pos]
        high: i64 = data[pos + 1]
        word = low + high * 256
        if width == 4:
            low = data[pos + 2]
            high = data[pos + 3]
            word += low * 65536 + high * 16777216
            flags = word >> 30
        else:
            flags = word >> 14
        replying = flags & 1
        layout = other if replying == 1 else own
        if layout.header_size != width:
            self.undecodable_reason = "the initiator that lays out this header was bad"
            return INVALID
        kind = (flags >> 1) | (replying << 1)
        size = (word & layout.fields_mask) >> layout.id_bits
        head.stream_id = word & layout.max_id
        head.opener = sender ^ replying
        head.key = head.stream_id * 2 + head.opener
        if size == 0 and not (
            kind & TERMINATION_BIT
            and self.ends_started_message(sender, kind, self.streams.find(head.key))
        ):
            kind |= 4
            if kind == KEEP_ALIVE:
                head.opener = NO_STREAM
        head.kind = kind
        head.payload_size = size
        head.credit_cost = size
        if size > self.max_frame_bytes:
            head.format_violations = CHUNK_TOO_LONG
        return pos + width

    def decode_body(
        self, sender: i64, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> None:
        if head.kind == INITIATOR:
            head.text_start = start - 4
            head.text_size = 4

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        kind = head.kind
        if kind == INITIATOR:
            out.write(text)
            return
        layout = self.layout_of(1 - sender if kind & REPLY_BIT else sender)
        flags = ((kind & TERMINATION_BIT) << 1) | ((kind & REPLY_BIT) >> 1)
        word = (head.payload_size << layout.id_bits) | head.stream_id
        word |= flags << (layout.length_bits + layout.id_bits)
        for _ in range(layout.header_size):
            out.append(u8(word & 255))
            word >>= 8

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        if head.kind == INITIATOR:
            head.stream_id = 0
            head.opener = NO_STREAM
            return
        opener = 1 - sender if head.kind & REPLY_BIT else sender
        head.stream_id = head.key >> 1
        head.key = head.stream_id * 2 + opener
        head.opener = opener if head.kind != KEEP_ALIVE else NO_STREAM

    # Frames that were not seen

    def header_evidence(self, sender: i64, head: FrameHeader) -> i64:
        return 0  # almost any bytes are a header

    def awaits_handshake(self, side: i64) -> bool:
        return self.layout_of(side).status == INITIATOR_MISSING

    def is_handshake(self, text: bytes) -> bool:
        return initiator_violations(text) == 0

    def skip_handshake(self, side: i64) -> None:
        """Take the layouts from the options; replies need that of the other side."""
        for layout in (self.dialer_layout, self.acceptor_layout):
            if layout.status == INITIATOR_MISSING:
                layout.set_from_initiator(self.initiator)
        self.update_shared_layout()
        self.handshake_done = self.dialer_layout.header_size == self.acceptor_layout.header_size

    def adopt_stream(self, sender: i64, head: FrameHeader) -> StreamState | None:
        if head.kind <= REQUEST_LAST:
            return None  # it may be the first chunk of a request
        made = super().adopt_stream(sender, head)
        if made is not None:
            made.protocol_state = REQUEST_COMPLETE
            self.forget_unseen(made)
        return made

    def forget_unseen(self, stream: StreamState) -> None:
        self.ambiguous_ids[stream.key] = REQUESTER | REPLIER | REPLIER_ACKS

    # Validation

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        if kind == INITIATOR:
            return self.validate_initiator(sender)
        if not self.fits_header(sender, head):
            return BAD_BIT_COUNTS
        if (
            kind <= REPLY_LAST
            and head.payload_size == 0
            and not self.ends_started_message(sender, kind, stream)
        ):
            return BAD_BIT_COUNTS  # would be decoded as a special message
        if kind <= REQUEST_LAST:
            if self.id_status(head.key, stream) != ID_BUSY:
                return 0
            return self.excuse_if_ambiguous(head.key, REQUESTER, ID_IN_FLIGHT)
        if kind <= REPLY_LAST or kind == EMPTY_REPLY:
            return self.validate_reply(sender, head.key, stream)
        if kind == CANCEL:
            return self.validate_cancel(sender, head.key, stream)
        if kind == CANCEL_ACK:
            if head.key in self.unacknowledged_cancels:
                return 0
            return (
                CROSSED
                if stream is not None and self.ambiguous_everywhere & REPLIER_ACKS
                else ACK_NOT_CANCELLED
            )
        if self.id_status(head.key, self.streams.find(head.key)) == ID_FREE:
            return 0
        return self.excuse_if_ambiguous(head.key, REQUESTER, KEEPALIVE_BUSY_ID)

    def fits_header(self, sender: i64, head: FrameHeader) -> bool:
        """Return whether id and length fit the header.

        Received frames always do; a frame made by a caller may not.
        """
        own = self.layout_of(sender)
        layout = own if not head.kind & REPLY_BIT else self.layout_of(1 - sender)
        return (
            own.status == INITIATOR_VALID
            and layout.status == INITIATOR_VALID
            and head.payload_size <= (layout.max_chunk_bytes if head.kind <= REPLY_LAST else 0)
            and head.stream_id >= 0
            and head.stream_id <= layout.max_id
        )

    def validate_initiator(self, sender: i64) -> i64:
        if self.layout_of(sender).status != INITIATOR_MISSING:
            return BAD_BIT_COUNTS  # a second one would be decoded as a header
        violations = initiator_violations(self.frame_text)
        if violations != 0:
            return violations
        other = self.layout_of(1 - sender)
        mixed = other.status == INITIATOR_VALID and other.header_size != announced_header_size(
            self.frame_text
        )
        return MIXED_HEADER_SIZES if mixed else 0

    def validate_reply(self, sender: i64, key: i64, stream: StreamState | None) -> i64:
        if stream is None:
            return self.excuse_if_ambiguous(key, REPLIER, REPLY_UNKNOWN)
        violations: i64 = 0
        if stream.half(sender).last_frame_index != NEVER:
            violations = REPLY_UNKNOWN
        elif not stream.protocol_state & REQUEST_COMPLETE:
            violations = REPLY_BEFORE_END
        else:
            requester = stream.half(1 - sender)
            if requester.state != ABORTED:
                return 0
            if not self.causality.had_seen(sender, requester.end_frame_index):
                return CROSSED
            violations = REPLY_AFTER_CANCEL
        return self.excuse_if_ambiguous(key, REPLIER, violations)

    def validate_cancel(self, sender: i64, key: i64, stream: StreamState | None) -> i64:
        if key in self.locked_keys:
            return self.excuse_if_ambiguous(key, REQUESTER, CANCEL_TWICE)
        if stream is None:
            return CANCEL_UNKNOWN
        if not self.is_over(stream):
            return 0
        return CROSSED if self.final_reply_in_flight(sender, stream) else CANCEL_UNKNOWN

    def final_reply_in_flight(self, sender: i64, stream: StreamState) -> bool:
        """Return whether the final reply was in flight when the requester cancelled."""
        reply = stream.half(1 - sender)
        late = stream.half(sender).state != ABORTED and reply.state == ENDED
        return late and not self.causality.had_seen(sender, reply.end_frame_index)

    def excuse_if_ambiguous(self, key: i64, role: i64, violation_mask: i64) -> i64:
        """Return `violation_mask`, or CROSSED if this role is excused on this id.

        It is excused if a violation of the other side may have led to this frame.
        """
        if self.ambiguous_everywhere & role or (
            self.ambiguous_ids and self.ambiguous_ids.get(key, 0) & role
        ):
            return CROSSED
        return violation_mask

    def id_status(self, key: i64, stream: StreamState | None) -> i64:
        """Return the state of an id for its owner: free, sending a request, or busy."""
        if self.locked_keys and key in self.locked_keys:
            return ID_BUSY
        if stream is None:
            return ID_FREE
        if stream.serial < 0:  # reserved: its first content opens it
            previous = self.streams.find(key)
            return ID_FREE if previous is None or self.is_over(previous) else ID_BUSY
        if self.is_over(stream):
            return ID_FREE
        return ID_REQUESTING if stream.half(stream.opener).state == OPEN else ID_BUSY

    def ends_started_message(self, sender: i64, kind: i64, stream: StreamState | None) -> bool:
        """Return whether a chunk without data ends a message that has begun."""
        if stream is None or not kind & TERMINATION_BIT:
            return False
        half = stream.half(sender)
        return half.state == OPEN and half.last_frame_index == NEVER and half.credit_spent > 0

    def is_over(self, stream: StreamState) -> bool:
        requester, replier = stream.half(stream.opener), stream.half(1 - stream.opener)
        return requester.state != OPEN and replier.last_frame_index != NEVER

    # State changes

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        self.frame_stream = stream
        if kind == INITIATOR:
            self.apply_initiator(sender)
        elif kind == CANCEL:
            self.apply_cancel(sender, head.key, stream, timestamp)
        elif kind == CANCEL_ACK:
            self.apply_cancel_ack(sender, head.key, stream)
        elif kind & REPLY_BIT:
            self.apply_reply(sender, head, stream)
        elif kind != KEEP_ALIVE:
            self.apply_request(sender, head, stream)

    def apply_initiator(self, sender: i64) -> None:
        own, other = self.layout_of(sender), self.layout_of(1 - sender)
        own.set_from_initiator(self.frame_text)
        self.update_shared_layout()
        self.peer_unblocked = own.status == INITIATOR_INVALID or other.status != INITIATOR_MISSING
        self.handshake_done = own.status == INITIATOR_VALID and other.header_size == own.header_size
        if self.handshake_done:
            self.can_begin_anywhere = True

    def why_undecodable(self, side: i64) -> str:
        own, other = self.layout_of(side), self.layout_of(1 - side)
        if own.status == INITIATOR_INVALID:
            return "the initiator cannot be understood"
        if (
            own.status == INITIATOR_VALID
            and other.status == INITIATOR_VALID
            and own.header_size != other.header_size
        ):
            return (
                f"mixed header sizes: {own.header_size} bytes here, "
                f"{other.header_size} the other way"
            )
        return ""

    def apply_request(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        key = head.key
        status = self.id_status(key, stream)
        if status == ID_BUSY:
            if self.excuse_if_ambiguous(key, REQUESTER, ID_IN_FLIGHT) == ID_IN_FLIGHT:
                self.mark_ambiguous(key, 1 - sender, REPLIER)
                return  # dropped: it belongs to no stream
            self.unlock(key)
        if stream is None or status != ID_REQUESTING:
            stream = self.open_exchange(sender, head, stream)
        own = stream.half(sender)
        own.credit_spent += head.payload_size
        self.content_counts = True
        if head.kind == REQUEST_LAST:
            own.stop(ENDED, self.causality.frames_sent(sender), False)
            stream.protocol_state |= REQUEST_COMPLETE
            if stream.half(1 - sender).last_frame_index != NEVER:  # replied too early
                self.ids_of(sender).release(head.stream_id)

    def open_exchange(
        self, sender: i64, head: FrameHeader, stream: StreamState | None
    ) -> StreamState:
        """Open the stream of a request at its first chunk: the reserved one, or a new one."""
        made: StreamState
        if stream is not None and stream.serial < 0:
            made = stream
        else:
            made = StreamState(head.key, head.stream_id, sender, 0)
        made.open_frame_index = self.causality.frames_sent(sender)
        made.answerable_open_index = made.open_frame_index
        previous = self.streams.find(head.key)
        if previous is not None:
            made.incarnation = previous.incarnation + 1
            over = self.is_over(previous)
            if not over:  # excused: a violation of the other side made it look over
                previous.ending = "abandoned"
            if over and head.key not in self.ambiguous_ids and self.ambiguous_everywhere == 0:
                # The requester has read the end of the previous use: no late reply can follow.
                self.causality.record_seen(sender, previous.half(1 - sender).last_frame_index)
            else:
                made.answerable_open_index = previous.answerable_open_index
        self.ids_of(sender).reserved.discard(head.stream_id)
        self.streams.insert(made)
        self.frame_stream = made
        return made

    def apply_cancel(
        self, sender: i64, key: i64, stream: StreamState | None, timestamp: i64
    ) -> None:
        server = 1 - sender
        frame_index = self.causality.frames_sent(sender)
        count = 0
        first: int = frame_index
        if key in self.unacknowledged_cancels:
            count, first = self.unacknowledged_cancels[key]
        self.unacknowledged_cancels[key] = (count + 1, first)
        if count == 0 or (
            count <= self.limits.max_queued_replies
            and self.repeated_pending_acks < self.max_repeated_pending_acks
        ):
            # Every cancel has its own ack, so each is a pending reply of its own.
            reply = PendingReply(server, CANCEL_ACK, key, CANCEL_UNANSWERED, frame_index, timestamp)
            self.pending_replies[(server, CANCEL_ACK + 256 * count, key)] = reply
            if count > 0:
                self.repeated_pending_acks += 1
        if key in self.locked_keys:
            self.mark_ambiguous(key, server, REPLIER)
        else:
            self.lock(key)
            if stream is not None and not self.is_over(stream):
                stream.half(sender).stop(ABORTED, frame_index, False)
                stream.ending = "cancelled"
                stream.reset_by = sender
                self.reply_received(server, EMPTY_REPLY, key)
            elif stream is not None and self.final_reply_in_flight(sender, stream):
                # The requester discards the reply. A live replier has closed the call already.
                if self.streams.keep_removed:
                    stream.half(sender).stop(ABORTED, frame_index, False)
                stream.ending = "cancelled"
                stream.reset_by = sender
        if stream is None:
            self.track_key_without_stream(key)

    def lock(self, key: i64) -> None:
        """Lock a cancelled id: it may not be used before the ack."""
        self.locked_keys.add(key)
        if key & 1 == DIALER:
            self.dialer_locked_count += 1
        else:
            self.acceptor_locked_count += 1

    def unlock(self, key: i64) -> None:
        """Unlock an id, if it is locked."""
        if key in self.locked_keys:
            self.locked_keys.remove(key)
            if key & 1 == DIALER:
                self.dialer_locked_count -= 1
            else:
                self.acceptor_locked_count -= 1

    def locked_count(self, side: i64) -> int:
        """Return the number of ids that this side has cancelled without an ack so far."""
        return self.dialer_locked_count if side == DIALER else self.acceptor_locked_count

    def apply_reply(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        if stream is None or stream.half(sender).last_frame_index != NEVER:
            if head.kind & TERMINATION_BIT:
                self.mark_ambiguous(head.key, 1 - sender, REQUESTER)
            return
        stream.record_reply(sender, self.causality)
        own = stream.half(sender)
        own.credit_spent += head.payload_size
        self.content_counts = True
        if head.kind & TERMINATION_BIT:
            own.last_frame_index = self.causality.frames_sent(sender)
            own.stop(ENDED, own.last_frame_index, False)
            self.reply_received(sender, EMPTY_REPLY, head.key)
            if self.is_over(stream):
                self.ids_of(1 - sender).release(head.stream_id)

    def apply_cancel_ack(self, sender: i64, key: i64, stream: StreamState | None) -> None:
        if key not in self.unacknowledged_cancels:
            if not self.ambiguous_everywhere & REPLIER_ACKS:
                self.mark_ambiguous(key, 1 - sender, REQUESTER)
            elif self.causality.vantage != 1 - sender:  # for an evicted cancel, or for none
                self.ambiguous_everywhere |= REQUESTER
            return
        count, first = self.unacknowledged_cancels[key]
        self.causality.record_seen(sender, first)
        count -= 1
        if count > 0:
            self.unacknowledged_cancels[key] = (count, first)
        else:
            del self.unacknowledged_cancels[key]
        if count > 0 and (sender, CANCEL_ACK + 256 * count, key) in self.pending_replies:
            self.repeated_pending_acks -= 1
        self.reply_received(sender, CANCEL_ACK + 256 * count, key)
        if key in self.locked_keys:
            self.unlock(key)
            if stream is not None:
                stream.half(sender).last_frame_index = self.causality.frames_sent(sender)
            self.ids_of(1 - sender).release(key >> 1)
        if self.keys_without_stream and not self.has_key_state(key):
            self.keys_without_stream.pop(key, None)

    def mark_ambiguous(self, key: i64, misled_side: i64, role: i64) -> None:
        """Excuse `role` on this id from now on, after a violation that may mislead that side.

        Nothing is excused at the vantage point of the misled side: what it read is known there.
        """
        if self.causality.vantage != misled_side:
            self.ambiguous_ids[key] = self.ambiguous_ids.get(key, 0) | role
            if self.streams.find(key) is None:
                self.track_key_without_stream(key)

    # State of ids without a stream

    def has_key_state(self, key: i64) -> bool:
        """Return whether anything besides a stream is kept for this key."""
        return (
            key in self.unacknowledged_cancels
            or key in self.locked_keys
            or key in self.ambiguous_ids
        )

    def track_key_without_stream(self, key: i64) -> None:
        """Note that state is kept for a key without a stream; an observer evicts the oldest."""
        if not self.streams.keep_removed:
            return
        self.keys_without_stream[key] = None
        while len(self.keys_without_stream) > self.limits.closed_streams_remembered:
            oldest = self.keys_without_stream.popitem(last=False)[0]
            if self.streams.find(oldest) is None:
                self.forget_key(oldest)

    def forget_key(self, key: i64) -> None:
        """Drop the state of a key.

        Which role was excused on it, or had an ack pending, is unknown from now on, so these roles
        are excused on every key.
        """
        self.streams.has_evicted = True
        self.expire_replies(key, None)
        self.ambiguous_everywhere |= self.ambiguous_ids.pop(key, 0)
        if self.unacknowledged_cancels.pop(key, None) is not None:
            self.ambiguous_everywhere |= REPLIER_ACKS
        self.unlock(key)

    def expire_replies(self, key: i64, stream: StreamState | None) -> None:
        super().expire_replies(key, stream)
        if key in self.unacknowledged_cancels:
            server = 1 - (key & 1)
            for count in range(
                1, min(self.unacknowledged_cancels[key][0], self.limits.max_queued_replies + 1)
            ):
                reply = self.pending_replies.pop((server, CANCEL_ACK + 256 * count, key), None)
                if reply is not None:
                    self.repeated_pending_acks -= 1
                    self.report_expired(reply, stream)
        if stream is not None and self.has_key_state(key):
            self.track_key_without_stream(key)

    def is_reportable(self, reply: PendingReply, stream: StreamState | None) -> bool:
        """Report missing acks, unless their sender cannot be decoded: it may have sent them."""
        return reply.rule != 0 and not self.why_undecodable(reply.side)

    # Frames to send

    def handshake_frame(self, side: i64, nonce: bytes) -> Frame | None:
        return Frame(INITIATOR, 0, self.initiator)

    def next_free_key(self, side: i64) -> i64:
        """Return the key of the free id that this side uses next, or NO_ID if none is free."""
        ids = self.ids_of(side)
        ids.active = True
        layout = self.layout_of(side)
        if layout.status != INITIATOR_VALID:
            return NO_ID
        while True:
            number = ids.peek(layout.max_id)
            if number < 0:
                return NO_ID
            key = number * 2 + side
            free = self.id_status(key, self.streams.find(key)) == ID_FREE
            if free and number not in ids.reserved:
                return key
            ids.pop(layout.max_id)

    def allocate(self, side: i64) -> i64:
        key = self.next_free_key(side)
        if key != NO_ID:
            ids = self.ids_of(side)
            ids.pop(self.layout_of(side).max_id)
            ids.reserved.add(key >> 1)
        return key

    def has_free_id(self, side: i64) -> bool:
        """Return whether `allocate` would find an id."""
        return self.next_free_key(side) != NO_ID

    def keep_alive_frame(self, side: i64) -> Frame | None:
        """Return a keep alive on the next free id, or None if no id is free (so: not idle)."""
        key = self.next_free_key(side)
        return None if key == NO_ID else Frame(KEEP_ALIVE, key)

    def ids_in_use(self, side: i64) -> int:
        """Return how many ids of `side` have requests that are not over."""
        count: i64 = 0
        for stream in self.streams.slots:
            if stream.opener == side and not stream.over and stream.serial >= 0:
                count += 1
        return count

    def timeout_seconds(self, side: i64) -> float:
        """Return the seconds that this side waits for a reply; 0 if it announced none."""
        tenths: int = self.layout_of(side).timeout_tenths
        return tenths / 10.0

    def keep_alive_interval(self, side: i64) -> float:
        """Return the idle time in seconds after which this side should send a keep alive.

        That is a third of the other side's announced timeout, but at least 1 s; 30 s if the other
        side announced none.
        """
        timeout = self.timeout_seconds(1 - side)
        if timeout == 0.0:
            return 30.0
        return max(1.0, timeout / 3.0)

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        if len(name) > 0:
            self.release_id(side, key >> 1)
            raise Unsupported("Streamux has no names: put what the request is about into its data")
        return None

    def reserve_stream(self, side: i64, key: i64) -> StreamState:
        return StreamState(key, key >> 1, side, 0)

    def release_id(self, side: i64, stream_id: i64) -> None:
        """Return an allocated id that was not used."""
        ids = self.ids_of(side)
        ids.reserved.discard(stream_id)
        ids.release(stream_id)

    def cancel_unsent(self, side: i64, stream: StreamState) -> None:
        """Abort a request of which nothing was sent. The peer is not told."""
        self.release_id(side, stream.stream_id)
        stream.half(side).stop(ABORTED, NEVER, False)
        stream.over = True

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        head.kind = REQUEST if stream.opener == side else REPLY
        if final:
            head.kind |= TERMINATION_BIT
        head.credit_cost = head.payload_size

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        if (
            stream.opener != side
            and not stream.protocol_state & REQUEST_COMPLETE
            and not stream.over
        ):
            return -1  # the reply waits for the end of the request
        limit = self.layout_of(stream.opener).max_chunk_bytes
        size = rest if rest < quantum else quantum
        if size > limit:
            size = limit
        if last and size == rest:
            return -1  # held back: it may become the last chunk, which carries the termination bit
        return size

    def end_error(self, side: i64, stream: StreamState) -> str:
        buffers = stream.buffers
        if stream.serial < 0 and buffers is not None and buffers.queued_bytes == 0:
            return "a request without data cannot be sent; send at least one byte, or abort it"
        return ""

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """End a half that has no data left to carry the termination bit: mostly an empty reply."""
        if stream.serial < 0:
            return None  # the queued data could not be sent
        if stream.opener == side:
            return Frame(REQUEST_LAST, stream.key, b"", -1, stream.incarnation)
        return self.end_reply_frame(side, stream)

    def end_reply_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """End the reply without more data, or as soon as the request is complete.

        An empty reply has the same bytes as the end of a reply that has begun.
        """
        if stream.half(1 - side).state == ABORTED:
            return None
        if not stream.protocol_state & REQUEST_COMPLETE:
            self.expect_reply(side, EMPTY_REPLY, stream.key, 0, 0)
            return None
        return Frame(EMPTY_REPLY, stream.key, b"", -1, stream.incarnation)

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        """Cancel a request of this side; end the reply to a request of the peer."""
        if stream.opener != side:
            return self.end_reply_frame(side, stream)
        if stream.serial < 0:
            self.cancel_unsent(side, stream)
            return None
        if self.is_over(stream):
            return None
        return Frame(CANCEL, stream.key, b"", -1, stream.incarnation)

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        if reply.kind == CANCEL_ACK:
            return Frame(CANCEL_ACK, reply.key)
        stream = self.streams.find(reply.key)
        return None if stream is None else self.end_reply_frame(reply.side, stream)

    # Descriptions

    def version(self) -> str:
        return (
            "1"
            if self.dialer_layout.status == INITIATOR_VALID
            or self.acceptor_layout.status == INITIATOR_VALID
            else ""
        )

    def dialect(self) -> str:
        """Return how each side divides its headers (length/id bits), the dialer first."""
        splits: list[str] = []
        for layout in (self.dialer_layout, self.acceptor_layout):
            if layout.status == INITIATOR_VALID:
                splits.append(f"{layout.length_bits}/{layout.id_bits}")
        if len(splits) == 2 and splits[0] == splits[1]:
            return splits[0]
        return ", ".join(splits)

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        if head.kind == INITIATOR:
            return self.explain_initiator(rule, sender)
        text = f"{super().explain(rule, sender, head, stream)} on id {head.stream_id}"
        if rule == CHUNK_TOO_LONG:
            return (
                f"{text}: limit max_frame_bytes={self.max_frame_bytes}; "
                "raise it with Limits(max_frame_bytes=...)"
            )
        if rule == BAD_BIT_COUNTS:
            layout = self.layout_of(sender if not head.kind & REPLY_BIT else 1 - sender)
            if layout.status != INITIATOR_VALID or self.layout_of(sender).status != INITIATOR_VALID:
                return f"{text}: the initiators must come first"
            if head.payload_size == 0 and head.kind <= REPLY_LAST:
                return f"{text}: a chunk without data would be read as something else"
            return f"{text}: does not fit a {layout.length_bits}/{layout.id_bits} header"
        if rule == ID_IN_FLIGHT:
            locked = head.key in self.locked_keys
            why = "cancelled, and no ack has come" if locked else "its reply is not complete"
            return f"{text}: {why}"
        if rule == REPLY_UNKNOWN:
            why = "there was no such request" if stream is None else "the exchange was over"
            return f"{text}: {why}"
        return text

    def explain_initiator(self, rule: i64, sender: i64) -> str:
        initiator = self.frame_text
        if rule == BAD_VERSION:
            return f"Initiator {initiator.hex(' ')} of version {initiator[0]}"
        if rule == MIXED_HEADER_SIZES:
            width = self.layout_of(1 - sender).header_size
            return f"Initiator {initiator.hex(' ')}: the other side's headers have {width} bytes"
        if self.layout_of(sender).status != INITIATOR_MISSING:
            return "Initiator: it has been sent already"
        if len(initiator) != 4:
            return f"Initiator of {byte_count_text(len(initiator))}"
        length_bits, id_bits = initiator[1], initiator[2]
        return f"Initiator {initiator.hex(' ')} of {length_bits} length bits and {id_bits} id bits"

    # Saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["layouts"] = [self.dialer_layout.save(), self.acceptor_layout.save()]
        saved["ids"] = [self.dialer_ids.save(), self.acceptor_ids.save()]
        saved["locked_keys"] = sorted(self.locked_keys)
        saved["unacknowledged_cancels"] = [
            [key, count, first] for key, (count, first) in self.unacknowledged_cancels.items()
        ]
        saved["ambiguous_ids"] = [[key, roles] for key, roles in self.ambiguous_ids.items()]
        saved["ambiguous_everywhere"] = int(self.ambiguous_everywhere)
        saved["keys_without_stream"] = list(self.keys_without_stream)
        # One id may have several pending acks, told apart only by the middle part of their keys.
        saved["reply_slots"] = [slot[1] for slot in self.pending_replies]
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        layouts, ids, locked = saved["layouts"], saved["ids"], saved["locked_keys"]
        replies, slots = saved["pending_replies"], saved["reply_slots"]
        cancels, ambiguous = saved["unacknowledged_cancels"], saved["ambiguous_ids"]
        everywhere, without_stream = saved["ambiguous_everywhere"], saved["keys_without_stream"]
        # Saved state is untyped; `save` writes these types.
        assert isinstance(layouts, list)
        assert isinstance(ids, list)
        assert isinstance(locked, list)
        assert isinstance(replies, list)
        assert isinstance(slots, list)
        assert isinstance(cancels, list)
        assert isinstance(ambiguous, list)
        assert isinstance(everywhere, int)
        assert isinstance(without_stream, list)
        self.dialer_layout.load(layouts[0])
        self.acceptor_layout.load(layouts[1])
        self.update_shared_layout()
        self.dialer_ids.load(ids[0])
        self.acceptor_ids.load(ids[1])
        for key in locked:
            self.lock(key)
        self.unacknowledged_cancels = {entry[0]: (entry[1], entry[2]) for entry in cancels}
        self.ambiguous_ids = {entry[0]: entry[1] for entry in ambiguous}
        self.ambiguous_everywhere = everywhere
        self.keys_without_stream = OrderedDict.fromkeys(without_stream)
        self.pending_replies = {}
        for r, slot in zip(replies, slots, strict=True):
            self.pending_replies[(r[0], slot, r[2])] = PendingReply(
                r[0], r[1], r[2], r[3], r[4], r[5]
            )
            if slot >= 256:
                self.repeated_pending_acks += 1


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """Make a `Streamux` from the options of a protocol string.

    `length_bits`, `id_bits` and `timeout` (seconds, 0: unspecified) are announced to the peer.
    """
    length_bits = parse_integer(options.get("length_bits", "16"), "length_bits", 1)
    id_bits = parse_integer(options.get("id_bits", "14"), "id_bits", 1)
    if length_bits + id_bits != 14 and length_bits + id_bits != 30:
        raise ValueError(
            f"length_bits + id_bits is 14 or 30, not {length_bits} + {id_bits}; give both"
        )
    tenths = parse_timeout_tenths(options.get("timeout", "5"))
    given = "length_bits" in options or "id_bits" in options
    return Streamux(limits, vantage, bytes([1, length_bits, id_bits, tenths]), given)


def parse_timeout_tenths(text: str) -> int:
    """Parse seconds as an initiator carries them: 0 to 25.5, in tenths.

    Raises:
        ValueError: not a number, out of range, or more than one decimal place.
    """
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"timeout is a number of seconds, not {text!r}") from None
    if not 0.0 <= seconds <= 25.5:
        raise ValueError(f"timeout is 0 to 25.5 seconds, not {text}")
    tenths = round(seconds * 10.0)
    if abs(seconds * 10.0 - tenths) > 1e-6:
        raise ValueError(f"timeout has at most one decimal place, not {text}")
    return tenths
