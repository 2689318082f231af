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

MAX_CHUNK_BYTES: Final[i64] = 65536  # bytes of a chunk we take at most

REQUEST_COMPLETE: Final[i64] = 1  # mark of a stream: the last chunk of its request has passed

# What an id is to a request chunk:
ID_FREE: Final[i64] = 0
ID_REQUESTING: Final[i64] = 1
ID_BUSY: Final[i64] = 2

# Who is not blamed on an id any more, because the other side broke its order:
REQUESTER: Final[i64] = 1
REPLIER: Final[i64] = 2
REPLIER_ACKS: Final[i64] = 4  # the replier, but only for acks

U32_MAX: Final[i64] = 0xFFFFFFFF


class Streamux(Protocol):
    """Streamux on one connection. `initiator` is what a live endpoint announces."""

    def __init__(
        self, limits: Limits, vantage: i64, initiator: bytes = b"\x01\x10\x0e\x32"
    ) -> None:
        super().__init__("streamux", RULES, KINDS, limits, vantage)
        self.initiator = initiator
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
        """What `side` announced; its requests and the replies to them are laid out so."""
        return self.dialer_layout if side == DIALER else self.acceptor_layout

    def update_shared_layout(self) -> None:
        """Both sides usually announce the same; their headers are then read the short way."""
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
            if size > 0:  # the usual: a chunk that is not empty
                flags = word >> 30
                asker = sender ^ (flags & 1)
                number = word & self.shared_max_id
                head.kind = (flags >> 1) | ((flags & 1) << 1)
                head.stream_id = number
                head.opener = asker
                head.key = number * 2 + asker
                head.payload_size = size
                head.credit_cost = size
                head.trailer_size = 0
                head.parts_left = 0
                head.amount = -1
                head.text_size = -1
                flaws: i64 = 0
                if size > self.max_frame_bytes:
                    flaws = CHUNK_TOO_LONG
                head.format_violations = flaws
                return pos + 4
        return self.decode_header_slow(sender, data, pos, end, head)

    def decode_header_slow(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> i64:
        """Initiators, short headers, empty chunks and the messages that have no content."""
        own = self.dialer_layout if sender == DIALER else self.acceptor_layout
        other = self.acceptor_layout if sender == DIALER else self.dialer_layout
        head.clear()
        if own.status == INITIATOR_MISSING:
            head.kind = INITIATOR
            head.opener = NO_STREAM
            return pos + 4 if end - pos >= 4 else INCOMPLETE
        if other.status == INITIATOR_MISSING:
            return AWAITING_HANDSHAKE  # how replies are laid out is not known yet
        width = own.header_size
        if width == 0:
            return INVALID  # behind a bad initiator
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
            return BAD_BIT_COUNTS  # would be read as one of the special messages
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
        """Can the header say this? What came in one always fits; what a caller made may not."""
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
            return BAD_BIT_COUNTS  # a second one would be read as a header
        flaws = initiator_violations(self.frame_text)
        if flaws != 0:
            return flaws
        other = self.layout_of(1 - sender)
        mixed = other.status == INITIATOR_VALID and other.header_size != announced_header_size(
            self.frame_text
        )
        return MIXED_HEADER_SIZES if mixed else 0

    def validate_reply(self, sender: i64, key: i64, stream: StreamState | None) -> i64:
        if stream is None:
            return self.excuse_if_ambiguous(key, REPLIER, REPLY_UNKNOWN)
        verdict: i64 = 0
        if stream.half(sender).last_frame_index != NEVER:
            verdict = REPLY_UNKNOWN
        elif not stream.protocol_state & REQUEST_COMPLETE:
            verdict = REPLY_BEFORE_END
        else:
            asker = stream.half(1 - sender)
            if asker.state != ABORTED:
                return 0
            if not self.causality.had_seen(sender, asker.end_frame_index):
                return CROSSED
            verdict = REPLY_AFTER_CANCEL
        return self.excuse_if_ambiguous(key, REPLIER, verdict)

    def validate_cancel(self, sender: i64, key: i64, stream: StreamState | None) -> i64:
        if key in self.locked_keys:
            return self.excuse_if_ambiguous(key, REQUESTER, CANCEL_TWICE)
        if stream is None:
            return CANCEL_UNKNOWN
        if not self.is_over(stream):
            return 0
        return CROSSED if self.final_reply_in_flight(sender, stream) else CANCEL_UNKNOWN

    def final_reply_in_flight(self, sender: i64, stream: StreamState) -> bool:
        """Was the final reply still on its way to the asker that cancels now?"""
        reply = stream.half(1 - sender)
        late = stream.half(sender).state != ABORTED and reply.state == ENDED
        return late and not self.causality.had_seen(sender, reply.end_frame_index)

    def excuse_if_ambiguous(self, key: i64, role: i64, violation_mask: i64) -> i64:
        """The verdict, or CROSSED where the other side's fault may have misled this one."""
        if self.ambiguous_everywhere & role or (
            self.ambiguous_ids and self.ambiguous_ids.get(key, 0) & role
        ):
            return CROSSED
        return violation_mask

    def id_status(self, key: i64, stream: StreamState | None) -> i64:
        """What this id is to its owner: free, in the middle of a request, or in flight."""
        if self.locked_keys and key in self.locked_keys:
            return ID_BUSY
        if stream is None:
            return ID_FREE
        if stream.serial < 0:  # prepared: its first content would open it
            filed = self.streams.find(key)
            return ID_FREE if filed is None or self.is_over(filed) else ID_BUSY
        if self.is_over(stream):
            return ID_FREE
        return ID_REQUESTING if stream.half(stream.opener).state == OPEN else ID_BUSY

    def ends_started_message(self, sender: i64, kind: i64, stream: StreamState | None) -> bool:
        """Is a chunk without data the end of a message that has begun?"""
        if stream is None or not kind & TERMINATION_BIT:
            return False
        half = stream.half(sender)
        return half.state == OPEN and half.last_frame_index == NEVER and half.credit_spent > 0

    def is_over(self, stream: StreamState) -> bool:
        asker, replier = stream.half(stream.opener), stream.half(1 - stream.opener)
        return asker.state != OPEN and replier.last_frame_index != NEVER

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
        standing = self.id_status(key, stream)
        if standing == ID_BUSY:
            if self.excuse_if_ambiguous(key, REQUESTER, ID_IN_FLIGHT) == ID_IN_FLIGHT:
                self.mark_ambiguous(key, 1 - sender, REPLIER)
                return  # dropped: it belongs to nothing
            self.unlock(key)
        if stream is None or standing != ID_REQUESTING:
            stream = self.open_exchange(sender, head, stream)
        own = stream.half(sender)
        own.credit_spent += head.payload_size
        self.content_counts = True
        if head.kind == REQUEST_LAST:
            own.stop(ENDED, self.causality.frames_sent(sender), False)
            stream.protocol_state |= REQUEST_COMPLETE
            if stream.half(1 - sender).last_frame_index != NEVER:  # answered before it was asked
                self.ids_of(sender).release(head.stream_id)

    def open_exchange(
        self, sender: i64, head: FrameHeader, stream: StreamState | None
    ) -> StreamState:
        """A request's first chunk opens a stream: the one prepared for it, or a new one."""
        made: StreamState
        if stream is not None and stream.serial < 0:
            made = stream
        else:
            made = StreamState(head.key, head.stream_id, sender, 0)
        made.open_frame_index = self.causality.frames_sent(sender)
        made.answerable_open_index = made.open_frame_index
        before = self.streams.find(head.key)
        if before is not None:
            made.incarnation = before.incarnation + 1
            over = self.is_over(before)
            if not over:  # excused: the other side's fault made the asker believe that it was
                before.ending = "abandoned"
            if over and head.key not in self.ambiguous_ids and self.ambiguous_everywhere == 0:
                # The asker has read the last word about the former use; nobody can answer that now.
                self.causality.record_seen(sender, before.half(1 - sender).last_frame_index)
            else:
                made.answerable_open_index = before.answerable_open_index
        self.ids_of(sender).reserved.discard(head.stream_id)
        self.streams.insert(made)
        self.frame_stream = made
        return made

    def apply_cancel(
        self, sender: i64, key: i64, stream: StreamState | None, timestamp: i64
    ) -> None:
        server = 1 - sender
        ordinal = self.causality.frames_sent(sender)
        count = 0
        first: int = ordinal
        if key in self.unacknowledged_cancels:
            count, first = self.unacknowledged_cancels[key]
        self.unacknowledged_cancels[key] = (count + 1, first)
        if count == 0 or (
            count <= self.limits.max_queued_replies
            and self.repeated_pending_acks < self.max_repeated_pending_acks
        ):
            # Each is answered, so each is a duty of its own.
            duty = PendingReply(server, CANCEL_ACK, key, CANCEL_UNANSWERED, ordinal, timestamp)
            self.pending_replies[(server, CANCEL_ACK + 256 * count, key)] = duty
            if count > 0:
                self.repeated_pending_acks += 1
        if key in self.locked_keys:
            self.mark_ambiguous(key, server, REPLIER)
        else:
            self.lock(key)
            if stream is not None and not self.is_over(stream):
                stream.half(sender).stop(ABORTED, ordinal, False)
                stream.ending = "cancelled"
                stream.reset_by = sender
                self.reply_received(server, EMPTY_REPLY, key)
            elif stream is not None and self.final_reply_in_flight(sender, stream):
                # The asker discards the reply. A live replier has closed the call already.
                if self.streams.keep_removed:
                    stream.half(sender).stop(ABORTED, ordinal, False)
                stream.ending = "cancelled"
                stream.reset_by = sender
        if stream is None:
            self.track_key_without_stream(key)

    def lock(self, key: i64) -> None:
        """Cancelled: the id may not be used before the ack."""
        self.locked_keys.add(key)
        if key & 1 == DIALER:
            self.dialer_locked_count += 1
        else:
            self.acceptor_locked_count += 1

    def unlock(self, key: i64) -> None:
        if key in self.locked_keys:
            self.locked_keys.remove(key)
            if key & 1 == DIALER:
                self.dialer_locked_count -= 1
            else:
                self.acceptor_locked_count -= 1

    def locked_count(self, side: i64) -> int:
        """How many ids this side has cancelled and waits for the ack of."""
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
            elif self.causality.vantage != 1 - sender:  # for a forgotten cancel, or for nothing
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
        """A fault on this id may mislead the other side, unless we see just what it sees."""
        if self.causality.vantage != misled_side:
            self.ambiguous_ids[key] = self.ambiguous_ids.get(key, 0) | role
            if self.streams.find(key) is None:
                self.track_key_without_stream(key)

    # State of ids without a stream

    def has_key_state(self, key: i64) -> bool:
        return (
            key in self.unacknowledged_cancels
            or key in self.locked_keys
            or key in self.ambiguous_ids
        )

    def track_key_without_stream(self, key: i64) -> None:
        """Something is kept of an id without a stream; an observer bounds that, oldest first."""
        if not self.streams.keep_removed:
            return
        self.keys_without_stream[key] = None
        while len(self.keys_without_stream) > self.limits.closed_streams_remembered:
            oldest = self.keys_without_stream.popitem(last=False)[0]
            if self.streams.find(oldest) is None:
                self.forget_key(oldest)

    def forget_key(self, key: i64) -> None:
        """Forget an id. Who was excused on it, or owed an ack, cannot be told from now on."""
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
                duty = self.pending_replies.pop((server, CANCEL_ACK + 256 * count, key), None)
                if duty is not None:
                    self.repeated_pending_acks -= 1
                    self.report_expired(duty, stream)
        if stream is not None and self.has_key_state(key):
            self.track_key_without_stream(key)

    def is_reportable(self, reply: PendingReply, stream: StreamState | None) -> bool:
        """Acks that are owed, except by a side that cannot be read: it may have sent them."""
        return reply.rule != 0 and not self.why_undecodable(reply.side)

    # Frames to send

    def handshake_frame(self, side: i64, nonce: bytes) -> Frame | None:
        return Frame(INITIATOR, 0, self.initiator)

    def next_free_key(self, side: i64) -> i64:
        """The key of the free id this side would use next, or NO_ID."""
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

    def keep_alive_frame(self, side: i64) -> Frame | None:
        """A sign of life on the next free id; None if all are taken: the channel is not idle."""
        key = self.next_free_key(side)
        return None if key == NO_ID else Frame(KEEP_ALIVE, key)

    def timeout_seconds(self, side: i64) -> float:
        """Seconds this side means to wait for a reply; 0: it did not say."""
        tenths: int = self.layout_of(side).timeout_tenths
        return tenths / 10.0

    def keep_alive_interval(self, side: i64) -> float:
        """Seconds of silence after which this side should send a keep alive.

        A third of the time after which the other side may call it lagged, but at least a second;
        half a minute where the other side did not say.
        """
        patience = self.timeout_seconds(1 - side)
        if patience == 0.0:
            return 30.0
        return max(1.0, patience / 3.0)

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        if len(name) > 0:
            self.release_id(side, key >> 1)
            raise Unsupported("Streamux has no names: put what the request is about into its data")
        return None

    def reserve_stream(self, side: i64, key: i64) -> StreamState:
        return StreamState(key, key >> 1, side, 0)

    def release_id(self, side: i64, stream_id: i64) -> None:
        """An id that was drawn is not wanted after all."""
        ids = self.ids_of(side)
        ids.reserved.discard(stream_id)
        ids.release(stream_id)

    def cancel_unsent(self, side: i64, stream: StreamState) -> None:
        """A request of which nothing was sent is given up; nobody need know."""
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
            return -1  # nothing is answered before it is asked
        longest = self.layout_of(stream.opener).max_chunk_bytes
        size = rest if rest < quantum else quantum
        if size > longest:
            size = longest
        if last and size == rest:
            return -1  # it may become the last chunk, and only the last chunk can say so
        return size

    def end_error(self, side: i64, stream: StreamState) -> str:
        lane = stream.buffers
        if stream.serial < 0 and lane is not None and lane.queued_bytes == 0:
            return "a request without data cannot be sent; send at least one byte, or abort it"
        return ""

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """Where nothing is left to carry the termination bit: an empty reply, mostly."""
        if stream.serial < 0:
            return None  # what was queued could not be sent
        if stream.opener == side:
            return Frame(REQUEST_LAST, stream.key, b"", -1, stream.incarnation)
        return self.end_reply_frame(side, stream)

    def end_reply_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """End the reply without more data; where the request still runs, as soon as it is whole.

        The bytes of an empty reply also end a reply that has begun.
        """
        if stream.half(1 - side).state == ABORTED:
            return None
        if not stream.protocol_state & REQUEST_COMPLETE:
            self.expect_reply(side, EMPTY_REPLY, stream.key, 0, 0)
            return None
        return Frame(EMPTY_REPLY, stream.key, b"", -1, stream.incarnation)

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        """Cancel our own request; of the peer's, drop the rest and answer without more."""
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
        """How each side splits its headers, the dialer first."""
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
        said = self.frame_text
        if rule == BAD_VERSION:
            return f"Initiator {said.hex(' ')} of version {said[0]}"
        if rule == MIXED_HEADER_SIZES:
            width = self.layout_of(1 - sender).header_size
            return f"Initiator {said.hex(' ')}: the other side's headers have {width} bytes"
        if self.layout_of(sender).status != INITIATOR_MISSING:
            return "Initiator: it has been sent already"
        if len(said) != 4:
            return f"Initiator of {byte_count_text(len(said))}"
        return f"Initiator {said.hex(' ')} of {said[1]} length bits and {said[2]} id bits"

    # Saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["layouts"] = [self.dialer_layout.save(), self.acceptor_layout.save()]
        saved["ids"] = [self.dialer_ids.save(), self.acceptor_ids.save()]
        saved["locked"] = sorted(self.locked_keys)
        saved["owed"] = [
            [key, owed[0], owed[1]] for key, owed in self.unacknowledged_cancels.items()
        ]
        saved["muddled"] = [[key, who] for key, who in self.ambiguous_ids.items()]
        saved["misled"] = [int(self.ambiguous_everywhere)]
        saved["strays"] = list(self.keys_without_stream)
        saved["places"] = [
            place[1] for place in self.pending_replies
        ]  # many acks may be owed on one id
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        layouts, ids, duties = saved["layouts"], saved["ids"], saved["duties"]
        locked, owed, muddled = saved["locked"], saved["owed"], saved["muddled"]
        misled, strays, places = saved["misled"], saved["strays"], saved["places"]
        assert isinstance(layouts, list)
        assert isinstance(ids, list)
        assert isinstance(duties, list)
        assert isinstance(locked, list)
        assert isinstance(owed, list)
        assert isinstance(muddled, list)
        assert isinstance(misled, list)
        assert isinstance(strays, list)
        assert isinstance(places, list)
        self.dialer_layout.load(layouts[0])
        self.acceptor_layout.load(layouts[1])
        self.update_shared_layout()
        self.dialer_ids.load(ids[0])
        self.acceptor_ids.load(ids[1])
        for key in locked:
            self.lock(key)
        self.ambiguous_everywhere = misled[0]
        self.keys_without_stream = OrderedDict.fromkeys(strays)
        self.unacknowledged_cancels = {entry[0]: (entry[1], entry[2]) for entry in owed}
        self.ambiguous_ids = {entry[0]: entry[1] for entry in muddled}
        self.pending_replies = {}
        for d, place in zip(duties, places, strict=True):
            self.pending_replies[(d[0], place, d[2])] = PendingReply(
                d[0], d[1], d[2], d[3], d[4], d[5]
            )
            if place >= 256:
                self.repeated_pending_acks += 1


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """What we announce: `length_bits`, `id_bits`, and `timeout` in seconds (0: unspecified)."""
    length_bits = parse_integer(options.get("length_bits", "16"), "length_bits", 1)
    id_bits = parse_integer(options.get("id_bits", "14"), "id_bits", 1)
    if length_bits + id_bits != 14 and length_bits + id_bits != 30:
        raise ValueError(
            f"length_bits + id_bits is 14 or 30, not {length_bits} + {id_bits}; give both"
        )
    tenths = parse_timeout_tenths(options.get("timeout", "5"))
    return Streamux(limits, vantage, bytes([1, length_bits, id_bits, tenths]))


def parse_timeout_tenths(text: str) -> int:
    """Seconds as the initiator says them, in tenths."""
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
