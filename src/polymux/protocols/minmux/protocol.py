# mypyc: compiled
"""Minmux: 2^64 one-way streams of items, with credit, announced limits and a last item.

A packet is a header byte, the rest of a long id, one number and, in a Write, items. The length of a
Write is not on the wire: the profile gives the size of an item, the writer's announced limit tells
whether it is the last one, and items of variable size are measured as they arrive.

The writer's half of a stream holds the credit account: `credit_granted` is all credit ever given,
`credit_spent` what was written or forgone. `promised_limit` of a half is what its side announced
that it will not exceed: items on the writer's half, credit on the reader's. `stream.protocol_state`
is 1 + the content bytes before the last item once that item has begun, else 0.

Packets are defined in `packets`, rules in `rules`, item encodings in `item_codecs`, instances in
`profile`. `id_reuse` holds the state of ids that are used more than once.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.errors import LocalProtocolError
from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, Protocol
from polymux.core.rules import PendingReply, byte_count_text
from polymux.core.side import DIALER, Side
from polymux.core.streams import ENDED, NEVER, OPEN, HalfStream, StreamBuffers, StreamState
from polymux.core.varint import I64_MAX, INCOMPLETE, INVALID, put_varu64, varu64, varu64_width
from polymux.protocols.minmux.id_reuse import ReusedIds, is_last_item, is_unambiguous
from polymux.protocols.minmux.item_codecs import ENDLESS, MAX_PLAUSIBLE_SIZE, PREFIXED, Codec
from polymux.protocols.minmux.packets import (
    FAST_COMPARE_BELOW,
    FORGO_CREDIT,
    GIVE_CREDIT,
    ID_BIAS,
    KINDS,
    OOPS,
    STOP_READ,
    STOP_WRITE,
    U64_MAX,
    U64_MODULUS,
    WRITE,
    add_id_bias,
    has_nonzero_amount,
    key_of,
    put_u64,
    remove_id_bias,
    writer_of,
)
from polymux.protocols.minmux.profile import (
    UNIT_LAST_ITEM,
    Profile,
    StreamFormat,
    byte_profile,
    load_profile,
)
from polymux.protocols.minmux.rules import (
    BAD_ITEM,
    CREDIT_EXCEEDED,
    CREDIT_OVERFLOW,
    CREDIT_PAST_LIMIT,
    ENDLESS_STREAM_STOPPED,
    FORGO_EXCEEDS_CREDIT,
    ITEM_TOO_LONG,
    LAST_ITEM_MISSING,
    LIMIT_RAISED,
    PROMISE_PAST_LIMIT,
    RULES,
    TRUNCATED,
    UNASSIGNED_STREAM,
    VARINT_NONCANONICAL,
    VARINT_OVERFLOW,
    WRITE_PAST_LIMIT,
)

MAX_PLAUSIBLE_ITEMS: Final = 0x1000000  # of a Write whose position is only assumed
# Up to this many items of at most MAX_FIXED_ITEM_BYTES, the size in bytes stays below 2**63.
OVERFLOW_FREE_ITEMS: Final[i64] = 0x20000000


class Minmux(Protocol):
    """Minmux on one connection, for the instance that `profile` describes.

    `canonical_only` accepts numbers only in their shortest form; `answers_oops` answers an Oops
    with ForgoCredit. Both sides may use every assigned stream at once: `get_stream` returns the
    stream with a given id, `allocate` only finds one that is unused.
    """

    def __init__(
        self,
        limits: Limits,
        vantage: i64,
        profile: Profile,
        canonical_only: bool = True,
        answers_oops: bool = True,
    ) -> None:
        super().__init__("minmux", RULES, KINDS, limits, vantage)
        self.profile = profile
        self.canonical_only = canonical_only
        self.answers_oops = answers_oops
        self.has_credit = True
        self.two_way = False
        self.restricts_content = True
        self.max_frame_bytes = (
            limits.max_frame_bytes if limits.max_frame_bytes > 0 else profile.max_item_bytes
        )
        self.max_sent_frame_bytes = 65536
        self.too_long_rule = ITEM_TOO_LONG
        self.truncated_rule = TRUNCATED
        self.peer_dependent_rules = CREDIT_EXCEEDED | FORGO_EXCEEDS_CREDIT | CREDIT_OVERFLOW
        if profile.reuse:  # whether a packet starts a new use depends on the peer's stop
            self.peer_dependent_rules |= (
                WRITE_PAST_LIMIT | CREDIT_PAST_LIMIT | LIMIT_RAISED | PROMISE_PAST_LIMIT
            )
        self.frame_rules = (
            UNASSIGNED_STREAM
            | VARINT_OVERFLOW
            | VARINT_NONCANONICAL
            | BAD_ITEM
            | ITEM_TOO_LONG
            | ENDLESS_STREAM_STOPPED
        )
        self.can_begin_anywhere = True
        self.reserved_streams: dict[int, StreamState] = {}  # requested but unused, by key
        self.reused_ids: ReusedIds = ReusedIds(self.causality)
        self.pending_oops: dict[int, int] = {}  # maximum that the pending Oops names, by key
        self.next_dialer_id: i64 = 1
        self.next_acceptor_id: i64 = 0
        self.next_frame_items: i64 = 0  # items that `next_frame_size` has just counted

    # Decoding and encoding

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        if pos >= end:
            return INCOMPLETE
        byte: i64 = data[pos]
        at = pos + 1
        number = byte & 63
        violations: i64 = 0
        value: i64
        if number == ID_BIAS:
            value, at = varu64(data, at, end)
            if at < 0:
                return INCOMPLETE
            if -ID_BIAS <= value < 0:
                return self.fail_decoding(head, VARINT_OVERFLOW, "a stream id past 2^64-1")
            if self.canonical_only and at - pos - 1 != varu64_width(value):
                violations = VARINT_NONCANONICAL
            number = add_id_bias(value)
        value, start = varu64(data, at, end)
        if start < 0:
            return INCOMPLETE
        if self.canonical_only and start - at > 1 and start - at != varu64_width(value):
            violations = VARINT_NONCANONICAL
        writer = writer_of(number)
        kind = (byte >> 6) * 2 + (1 if writer == sender else 0)
        amount: int = value
        if value < 0:
            amount += U64_MODULUS
        if has_nonzero_amount(kind):
            if value == -1:
                return self.fail_decoding(head, VARINT_OVERFLOW, "an amount of 2^64")
            amount += 1
        head.kind = kind
        head.key = number
        head.stream_id = number
        head.opener = writer
        head.payload_size = 0
        head.trailer_size = 0
        head.credit_cost = 0
        head.parts_left = 0
        head.amount = amount
        head.text_size = -1
        head.format_violations = violations
        return start if kind != WRITE else self.fill_write_size(sender, start, head)

    def fill_write_size(self, sender: i64, start: i64, head: FrameHeader) -> i64:
        """Fill in the payload size of a Write, or the number of items to measure one by one."""
        stream_format = self.profile.format_of(head.key)
        if stream_format is None:
            number: int = head.stream_id
            if number < 0:
                number += U64_MODULUS
            reason = f"stream {number} is not in the profile, so its items have no known size"
            return self.fail_decoding(head, UNASSIGNED_STREAM, reason)
        item_size = stream_format.item_size
        amount = head.amount
        if stream_format.last_item_size != UNIT_LAST_ITEM or item_size == 0:
            stream = self.streams.find(head.key)
            if stream is not None:
                own = stream.half(sender)
                if is_last_item(own, amount, stream_format):
                    if stream_format.last_item_size > 0:
                        head.payload_size = stream_format.last_item_size
                    else:
                        head.parts_left = 1
                    return start
                if item_size == 0:  # the payload size does not bound the number of empty items
                    room: int = I64_MAX - own.content_units
                    head.credit_cost = amount if amount < room else room
                    return start
        count: i64 = MAX_PLAUSIBLE_SIZE if amount > MAX_PLAUSIBLE_SIZE else i64(amount)
        head.credit_cost = count
        if item_size < 0:
            head.parts_left = count
        elif (
            count > OVERFLOW_FREE_ITEMS
            and item_size > 0
            and count > MAX_PLAUSIBLE_SIZE // item_size
        ):
            head.payload_size = MAX_PLAUSIBLE_SIZE  # such a payload never completes
        else:
            head.payload_size = count * item_size
        return start

    def fail_decoding(self, head: FrameHeader, violation: i64, reason: str) -> i64:
        """Record why decoding stops here: the start of the next packet is unknown."""
        head.format_violations = violation
        self.undecodable_reason = reason
        return INVALID

    def decode_part_size(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> i64:
        """Return the size of the next part of a Write with items of variable size.

        A part is as many complete valid items as `data` holds, or else one item that is incomplete
        or breaks a rule.
        """
        codec = self.part_codec(head)
        at = pos
        while head.parts_left > 0 and at < end:
            size, violations = self.measure_item(codec, data, at, end)
            if size < 0:
                if at > pos:
                    break
                if size == INVALID:
                    return self.fail_decoding(head, violations, "an item's size cannot be read")
                return INCOMPLETE
            if violations != 0 or size > end - at:
                if at > pos:
                    break
                head.format_violations = violations
                head.parts_left -= 1
                return size
            head.parts_left -= 1
            at += size
        return at - pos if at > pos else INCOMPLETE

    def part_codec(self, head: FrameHeader) -> Codec | None:
        """The codec of the items of variable size in a Write; None: they have a length prefix."""
        stream_format = self.profile.format_of(head.key)
        stream = self.streams.find(head.key)
        assert stream_format is not None  # `decode_header` fails on unassigned streams
        if stream_format.item_size >= 0 or (
            stream_format.last_item_size < 0 and stream is not None and stream.protocol_state > 0
        ):
            return stream_format.last_item_codec
        return stream_format.item_codec

    def part_structure(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> list[tuple[int, int]]:
        codec = self.part_codec(head)
        found: list[tuple[int, int]] = []
        if codec is not None and codec.item_size != PREFIXED:
            return found  # how the application's items are made up is not known
        while pos < end:
            length, start = varu64(data, pos, end)
            if start < 0:
                break
            found.append((int(pos), int(start)))
            if length < 0 or length > end - start:
                break
            pos = start + length
        return found

    def measure_item(self, codec: Codec | None, data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
        """Return the size of the item at `pos` (or INCOMPLETE or INVALID) and its violations."""
        size: i64
        violations: i64 = 0
        if codec is not None and codec.item_size != PREFIXED:
            size = codec.measure(data, pos, end)
            if size == INVALID:
                return INVALID, BAD_ITEM
            if size == INCOMPLETE:
                return (
                    (INVALID, ITEM_TOO_LONG)
                    if end - pos > self.max_frame_bytes
                    else (INCOMPLETE, violations)
                )
            return size, (ITEM_TOO_LONG if size > self.max_frame_bytes else violations)
        length, start = varu64(data, pos, end)
        if start < 0:
            return INCOMPLETE, violations
        if length < 0 or length > MAX_PLAUSIBLE_SIZE:
            return INVALID, BAD_ITEM
        if self.canonical_only and start - pos != varu64_width(length):
            violations = VARINT_NONCANONICAL
        if length > self.max_frame_bytes:
            violations |= ITEM_TOO_LONG
        return start - pos + length, violations

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        kind = head.kind
        number = head.stream_id
        amount = head.amount - 1 if has_nonzero_amount(kind) else head.amount
        if amount < 0 or amount > U64_MAX:
            raise LocalProtocolError(f"{self.kind_name(kind)} cannot carry {head.amount}")
        group = (kind >> 1) * 64
        if 0 <= number < ID_BIAS:
            out.append(group + number)
        else:
            out.append(group + ID_BIAS)
            put_varu64(out, remove_id_bias(number))
        put_u64(out, amount)

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        head.stream_id = head.key
        head.opener = writer_of(head.key)
        head.credit_cost = 0
        stream_format = self.profile.format_of(head.key)
        if head.kind == WRITE and stream_format is not None:
            stream = self.streams.find(head.key)
            room: int = I64_MAX
            if stream is not None:
                own = stream.half(sender)
                room = (
                    0
                    if is_last_item(own, head.amount, stream_format)
                    else I64_MAX - own.content_units
                )
            head.credit_cost = head.amount if 0 <= head.amount < room else room

    def holds_items(
        self, stream_format: StreamFormat, last: bool, amount: int, data: bytes
    ) -> bool:
        """Return whether `data` is exactly `amount` items, or the last item."""
        item_size = stream_format.last_item_size if last else stream_format.item_size
        if item_size >= 0:
            size: int = item_size
            return len(data) == size * amount
        codec = stream_format.last_item_codec if last else stream_format.item_codec
        return self.count_encoded(codec, data, 0) == amount

    def count_encoded(self, codec: Codec | None, data: bytes, pos: i64) -> int:
        """Count the items in `data` from `pos` on; -1 if one is incomplete or too long."""
        end: i64 = len(data)
        items = 0
        while pos < end:
            size, violations = self.measure_item(codec, data, pos, end)
            if size < 0 or violations != 0 or size > end - pos:
                return -1
            pos += size
            items += 1
        return items

    # Frames that were not seen

    def header_evidence(self, sender: i64, head: FrameHeader) -> i64:
        if self.profile.format_of(head.key) is None or (
            head.kind == WRITE and head.amount > MAX_PLAUSIBLE_ITEMS
        ):
            return -1
        return 1 if head.kind <= STOP_WRITE else 0  # almost any bytes are a header

    def adopt_stream(self, sender: i64, head: FrameHeader) -> StreamState | None:
        if self.profile.format_of(head.key) is None:
            return None
        return StreamState(head.key, head.key, writer_of(head.key), -1)

    def forget_unseen(self, stream: StreamState) -> None:
        stream.half(stream.opener).credit_granted = -1
        stream.dialer.promised_limit = -1
        stream.acceptor.promised_limit = -1

    # Validation

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        stream_format = self.profile.format_of(head.key)
        if stream_format is None:
            return UNASSIGNED_STREAM
        if kind == WRITE and stream is not None and head.text_size < 0:  # fast path
            half = stream.half(sender)
            if half.promised_limit < 0 and (
                head.amount <= half.credit_granted - half.credit_spent or half.credit_granted < 0
            ):
                return 0
        if head.text_size >= 0:  # made by a caller, not decoded from bytes
            violations = self.validate_encodable(sender, head, stream, stream_format)
            if violations != 0:
                return violations
        if stream is None or self.starts_new_use(kind, stream):
            return self.validate_first(kind, stream_format)
        violations = self.validate_on_known_stream(sender, head, stream, stream_format)
        if violations != 0 and self.profile.reuse:
            return self.reused_ids.excuse_if_ambiguous(violations, sender, head, stream)
        return violations

    def validate_on_known_stream(
        self, sender: i64, head: FrameHeader, stream: StreamState, stream_format: StreamFormat
    ) -> i64:
        kind = head.kind
        own = stream.half(sender)
        limit = own.promised_limit
        if own.end_is_ambiguous and is_unambiguous(head, own, stream_format):
            limit = -1
        amount = head.amount
        violations: i64 = 0
        if kind == WRITE:
            if not is_last_item(own, amount, stream_format):
                if 0 <= limit < amount:
                    violations = WRITE_PAST_LIMIT
                if amount > self.reused_ids.available_credit(own, head.key):
                    violations |= CREDIT_EXCEEDED
        elif kind == GIVE_CREDIT:
            peer = stream.half(1 - sender)
            if 0 <= limit < amount:
                violations = CREDIT_PAST_LIMIT
            held = peer.credit_granted - peer.credit_spent + amount
            if held >= FAST_COMPARE_BELOW and held > U64_MAX:
                violations |= CREDIT_OVERFLOW
        elif kind == STOP_WRITE and stream_format.last_item_size == ENDLESS:
            violations = ENDLESS_STREAM_STOPPED
        elif kind == STOP_READ or kind == STOP_WRITE:
            if 0 <= limit < amount:
                violations = LIMIT_RAISED
        elif kind == FORGO_CREDIT:
            if amount > self.reused_ids.available_credit(own, head.key):
                violations = FORGO_EXCEEDS_CREDIT
        elif kind != OOPS and 0 <= limit < amount:
            violations = PROMISE_PAST_LIMIT
        return violations

    def validate_first(self, kind: i64, stream_format: StreamFormat) -> i64:
        """Validate the first packet of a stream or of a new use of its id."""
        if kind == WRITE:
            return CREDIT_EXCEEDED
        if kind == STOP_WRITE and stream_format.last_item_size == ENDLESS:
            return ENDLESS_STREAM_STOPPED
        if kind == FORGO_CREDIT and not self.streams.has_evicted:
            return FORGO_EXCEEDS_CREDIT
        return 0

    def validate_encodable(
        self,
        sender: i64,
        head: FrameHeader,
        stream: StreamState | None,
        stream_format: StreamFormat,
    ) -> i64:
        """Reject what cannot be encoded, or would be decoded as something else."""
        kind = head.kind
        if not sender_has_role(sender, head):
            return UNASSIGNED_STREAM
        if head.amount > U64_MAX or head.amount < (1 if has_nonzero_amount(kind) else 0):
            return VARINT_OVERFLOW
        if kind != WRITE:
            return BAD_ITEM if head.payload_size > 0 else 0
        last = stream is not None and is_last_item(stream.half(sender), head.amount, stream_format)
        return (
            0 if self.holds_items(stream_format, last, head.amount, self.frame_text) else BAD_ITEM
        )

    def starts_new_use(self, kind: i64, stream: StreamState) -> bool:
        """Return whether this packet starts a new use of the id.

        One that needs credit (Write, ForgoCredit, Oops) does not: it is a late packet of the use
        that is over.
        """
        return (
            self.profile.reuse
            and stream.dialer.state == ENDED
            and stream.acceptor.state == ENDED
            and kind != WRITE
            and kind != FORGO_CREDIT
            and kind != OOPS
        )

    # State changes

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        stream_format = self.profile.format_of(head.key)
        if stream_format is None or (head.text_size >= 0 and not sender_has_role(sender, head)):
            return
        if stream is None:
            stream = self.open_use(sender, head.key, 1)
        elif self.profile.reuse:
            stream = self.select_use(sender, head, stream, stream_format)
        self.frame_stream = stream
        own = stream.half(sender)
        amount = head.amount
        if kind == WRITE:
            self.apply_write(sender, head, stream, own, stream_format, timestamp)
        elif kind == GIVE_CREDIT:
            writer = stream.half(1 - sender)
            if writer.credit_granted >= 0:
                writer.credit_granted += amount
            self.use_up_limit(sender, stream, own, amount, UNIT_LAST_ITEM, timestamp)
        elif kind == STOP_READ:
            self.lower_limit(sender, stream, own, amount, UNIT_LAST_ITEM, timestamp)
        elif kind == STOP_WRITE:
            if stream_format.last_item_size != ENDLESS:
                self.lower_limit(
                    sender, stream, own, amount, stream_format.last_item_size, timestamp
                )
        elif kind == FORGO_CREDIT:
            self.reply_received(sender, FORGO_CREDIT, stream.key)
            credit = self.reused_ids.available_credit(own, stream.key)
            if own.credit_granted < 0:
                own.credit_spent += amount
            elif (
                amount > credit
            ):  # the excess is ignored; the violation is reported for this packet
                own.credit_spent += credit
                self.reused_ids.forgive_credit(stream.key, credit)
            else:
                own.credit_spent += amount
                if own.end_is_ambiguous:
                    self.reused_ids.forgive_late_forgo(stream.key, amount)
        elif kind == OOPS:
            writer = stream.half(1 - sender)
            self.reply_received(1 - sender, FORGO_CREDIT, stream.key)
            if (
                self.answers_oops
                and writer.state == OPEN
                and amount < writer.credit_granted - writer.credit_spent
            ):
                self.pending_oops[stream.key] = amount
                self.expect_reply(1 - sender, FORGO_CREDIT, stream.key, 0, timestamp)

    def apply_write(
        self,
        sender: i64,
        head: FrameHeader,
        stream: StreamState,
        own: HalfStream,
        stream_format: StreamFormat,
        timestamp: i64,
    ) -> None:
        if is_last_item(own, head.amount, stream_format):
            self.content_counts = True
            stream.protocol_state = own.content_bytes + 1
            self.reply_received(sender, WRITE, stream.key)
            own.stop(ENDED, self.causality.frames_sent(sender), False)
        elif own.promised_limit != 0:
            self.content_counts = True
            own.credit_spent += head.amount
            self.use_up_limit(
                sender, stream, own, head.amount, stream_format.last_item_size, timestamp
            )

    def reply_received(self, side: i64, kind: i64, key: i64) -> None:
        super().reply_received(side, kind, key)
        if kind == FORGO_CREDIT:
            self.pending_oops.pop(key, 0)

    def use_up_limit(
        self,
        sender: i64,
        stream: StreamState,
        own: HalfStream,
        amount: int,
        last_item_size: i64,
        timestamp: i64,
    ) -> None:
        """Subtract items or credit from the announced limit, if there is one."""
        if own.promised_limit > 0:
            own.promised_limit = own.promised_limit - amount if amount < own.promised_limit else 0
            if own.promised_limit == 0:
                self.limit_reached(sender, stream, own, last_item_size, timestamp)

    def lower_limit(
        self,
        sender: i64,
        stream: StreamState,
        own: HalfStream,
        amount: int,
        last_item_size: i64,
        timestamp: i64,
    ) -> None:
        """Announce a limit, or lower it. A higher one is ignored."""
        if own.promised_limit < 0 or amount < own.promised_limit:
            own.promised_limit = amount
            if amount == 0:
                self.limit_reached(sender, stream, own, last_item_size, timestamp)

    def limit_reached(
        self, sender: i64, stream: StreamState, own: HalfStream, last_item_size: i64, timestamp: i64
    ) -> None:
        """The limit has reached 0: end the half, unless its last item is still to come."""
        if last_item_size == UNIT_LAST_ITEM:
            own.stop(ENDED, self.causality.frames_sent(sender), own.end_is_ambiguous)
        else:
            self.expect_reply(sender, WRITE, stream.key, LAST_ITEM_MISSING, timestamp)

    def select_use(
        self, sender: i64, head: FrameHeader, stream: StreamState, stream_format: StreamFormat
    ) -> StreamState:
        """Return the use that a packet on a known stream belongs to; start a new one if needed."""
        late = False
        if self.starts_new_use(head.kind, stream):
            peer = stream.half(1 - sender)
            late = not self.causality.had_seen(sender, peer.end_frame_index)
            if stream.key not in self.reused_ids.ambiguous_ids and is_unambiguous(
                head, stream.half(sender), stream_format
            ):
                self.causality.record_seen(sender, peer.end_frame_index)
            self.reused_ids.keep_previous_credit(stream)
            stream = self.open_use(sender, head.key, stream.incarnation + 1)
        elif stream.incarnation > 1:
            late = self.reused_ids.may_refer_to_previous_use(sender, stream)
        own = stream.half(sender)
        if is_unambiguous(head, own, stream_format):
            if own.end_is_ambiguous and own.promised_limit == 0:
                own.promised_limit = -1  # that stop belonged to the previous use
                own.stop(OPEN, NEVER, False)
                self.reply_received(sender, WRITE, stream.key)
            own.end_is_ambiguous = False
        elif late:
            own.end_is_ambiguous = True
            if head.kind != OOPS:
                self.reused_ids.ambiguous_ids.add(stream.key)
        return stream

    def open_use(self, sender: i64, key: i64, incarnation: i64) -> StreamState:
        """Register the stream at its first packet, or at the first packet of a new use."""
        made = self.reserved_streams.pop(key, None)
        if made is None:
            made = self.new_stream(key)
        made.open_frame_index = self.causality.frames_sent(sender)
        made.incarnation = incarnation
        self.streams.insert(made)
        return made

    def new_stream(self, key: i64) -> StreamState:
        """Return an unregistered stream without credit."""
        writer = writer_of(key)
        made = StreamState(key, key, writer, 0)
        made.half(writer).credit_granted = 0
        return made

    # Streams and ids

    def get_stream(self, side: i64, stream_id: int) -> StreamState:
        """Return the stream with this id, for reading or writing.

        If its current use is over and the profile allows reuse, this is the next use.

        Raises:
            ValueError: the profile does not assign the id.
        """
        key = key_of(stream_id)
        if self.profile.format_of(key) is None:
            raise ValueError(f"stream {stream_id} is not assigned by the profile")
        stream = self.reserve_stream(side, key)
        if stream.buffers is None:
            stream.buffers = StreamBuffers()
        return stream

    def reserve_stream(self, side: i64, key: i64) -> StreamState:
        stream = self.streams.find(key)
        if stream is not None and not (self.profile.reuse and self.is_over(stream)):
            return stream
        waiting = self.reserved_streams.get(key)
        if waiting is None:
            waiting = self.new_stream(key)
            self.reserved_streams[key] = waiting
        return waiting

    def allocate(self, side: i64) -> i64:
        """Return an unused id that this side writes; never 2^64-1, whose key is NO_ID."""
        if self.profile.default is None:
            for number in self.profile.assigned_ids:
                key = key_of(number)
                if key != NO_ID and writer_of(key) == side and self.is_free(key):
                    return key
            return NO_ID
        following: i64 = self.next_dialer_id if side == DIALER else self.next_acceptor_id
        while not self.is_free(following):
            following += 2
        if side == DIALER:
            self.next_dialer_id = following + 2
        else:
            self.next_acceptor_id = following + 2
        return following

    def is_free(self, key: i64) -> bool:
        if key in self.reserved_streams:
            return False
        stream = self.streams.find(key)
        return stream is None or (self.profile.reuse and self.is_over(stream))

    def writer_credit(self, stream: StreamState) -> int:
        """Return the credit in items that the stream's writer has now."""
        half = stream.half(stream.opener)
        return half.credit_granted - half.credit_spent

    def last_item_offset(self, stream: StreamState) -> i64:
        """Return the bytes of content before the last item, or -1 if that has not begun."""
        return stream.protocol_state - 1

    # Frames to send

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        head.kind = WRITE
        own = stream.half(side)
        if own.promised_limit == 0:
            head.amount = 1
            head.credit_cost = 0
        else:
            head.amount = self.next_frame_items
            head.credit_cost = self.next_frame_items

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        """Return the size of as many complete items as credit, limit and `quantum` allow.

        At least one item is sent if there is credit, however long it is.
        """
        own = stream.half(side)
        stream_format = self.profile.format_of(stream.key)
        if stream_format is None or own.state != OPEN:
            return -1
        if own.promised_limit == 0:
            return rest
        credit = own.credit_granted - own.credit_spent
        if 0 <= own.promised_limit < credit:
            credit = own.promised_limit
        if credit <= 0:
            return -1
        room: i64 = quantum if quantum < rest else rest
        if stream_format.item_size > 0:
            items: i64 = room // stream_format.item_size
            if items == 0:
                items = 1
            most: int = items
            if credit < most:
                items = i64(credit)
            self.next_frame_items = items
            return items * stream_format.item_size
        return self.next_variable_frame_size(stream, stream_format, room, credit)

    def next_variable_frame_size(
        self, stream: StreamState, stream_format: StreamFormat, room: i64, credit: int
    ) -> i64:
        """Do the same for items of variable size, by measuring the queued piece."""
        buffers = stream.buffers
        if buffers is None:
            return -1
        piece = buffers.outgoing[buffers.next_piece]
        start = buffers.piece_bytes_sent
        pos = start
        end: i64 = len(piece)
        items: i64 = 0
        whole: int = end
        most: i64 = i64(credit) if credit < whole else end  # an item has at least 1 byte
        while pos < end and items < most:
            size, _ = self.measure_item(stream_format.item_codec, piece, pos, end)
            if size < 0 or (items > 0 and pos + size - start > room):
                break
            pos += size
            items += 1
        self.next_frame_items = items
        return pos - start if items > 0 else -1

    def send_error(self, side: i64, stream: StreamState, data: bytes) -> str:
        """Return why `data` can never be sent: partial item, peer's stream, announced limit."""
        stream_format = self.profile.format_of(stream.key)
        if stream_format is None or stream.opener != side:
            return f"stream {stream.label()} is written by the {Side(stream.opener).name.lower()}"
        limit = stream.half(side).promised_limit
        queued = self.queued_items(side, stream) if limit >= 0 else 0  # counting is O(queue)
        if limit >= 0 and queued >= limit:
            if stream_format.last_item_size == UNIT_LAST_ITEM or queued > limit:
                return f"stream {stream.label()} has announced its end: nothing more can follow"
            if not self.holds_items(stream_format, True, 1, data):
                return f"{len(data)} bytes are not the last item of stream {stream.label()}"
            return ""
        items = self.count_items(stream_format, data)
        if items < 0:
            return f"{len(data)} bytes are no whole items of stream {stream.label()}"
        if 0 <= limit < queued + items:
            return f"stream {stream.label()} has announced {limit - queued} more items, not {items}"
        return ""

    def count_items(self, stream_format: StreamFormat, data: bytes) -> int:
        """Return the number of regular items in `data`, or -1 if the last one is incomplete."""
        if stream_format.item_size > 0:
            return (
                len(data) // stream_format.item_size
                if len(data) % stream_format.item_size == 0
                else -1
            )
        return (
            -1
            if stream_format.item_size == 0
            else self.count_encoded(stream_format.item_codec, data, 0)
        )

    def queued_items(self, side: i64, stream: StreamState) -> int:
        """Return the number of regular items in the send queue.

        If the last item is queued behind them, this is the announced limit + 1.
        """
        buffers = stream.buffers
        stream_format = self.profile.format_of(stream.key)
        if buffers is None or stream_format is None or buffers.queued_bytes == 0:
            return 0
        limit = stream.half(side).promised_limit
        size: int = stream_format.item_size
        if size > 0:
            waiting: int = buffers.queued_bytes
            return limit + 1 if 0 <= limit * size < waiting else waiting // size
        items = 0
        sent = buffers.piece_bytes_sent
        for i in range(buffers.next_piece, len(buffers.outgoing)):
            if 0 <= limit <= items:
                return limit + 1
            items += self.count_encoded(stream_format.item_codec, buffers.outgoing[i], sent)
            sent = 0
        return items

    def stop_write_frame(self, side: i64, stream: StreamState) -> Frame:
        """Return a StopWrite that announces the queued items as the last regular ones.

        When they are sent, the stream ends or its last item may follow. The caller sends the frame
        at once; content sent after it is the last item.
        """
        return Frame(STOP_WRITE, stream.key, b"", self.queued_items(side, stream))

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """Announce that no more items are written (but the last one), or no more credit given."""
        return self.abort_frame(side, stream, b"")

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        """Announce a limit of 0, the closest Minmux has to an abort; None on an endless stream."""
        if stream.opener != side:
            return self.stop_reading_frame(side, stream)
        stream_format = self.profile.format_of(stream.key)
        if (
            stream_format is None
            or stream_format.last_item_size == ENDLESS
            or stream.half(side).promised_limit == 0
        ):
            return None
        return Frame(STOP_WRITE, stream.key, b"", 0)

    def stop_reading_frame(self, side: i64, stream: StreamState) -> Frame | None:
        if stream.opener == side or stream.half(side).promised_limit == 0:
            return None
        return Frame(STOP_READ, stream.key, b"", 0)

    def credit_frame(self, side: i64, stream: StreamState, amount: int) -> Frame | None:
        """Return a GiveCredit, capped by this side's announced limit and by 2^64-1."""
        if stream.opener == side:
            return None
        own, peer = stream.half(side), stream.half(stream.opener)
        most = U64_MAX - (peer.credit_granted - peer.credit_spent)
        if 0 <= own.promised_limit < most:
            most = own.promised_limit
        if amount > most:
            amount = most
        if amount <= 0 or peer.state != OPEN:
            return None
        return Frame(GIVE_CREDIT, stream.key, b"", amount)

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        """Answer an Oops by forgoing all credit above the maximum it names.

        A missing last item has no automatic reply. A reader that has announced a limit may never
        give the credit again, so nothing is forgone while items are queued.
        """
        stream = self.streams.find(reply.key)
        if reply.kind != FORGO_CREDIT or stream is None:
            return None
        reader = stream.half(1 - reply.side)
        amount = self.writer_credit(stream) - self.pending_oops.get(reply.key, 0)
        needs_credit = (
            reader.promised_limit >= 0
            and stream.buffers is not None
            and stream.buffers.queued_bytes > 0
        )
        if amount <= 0 or needs_credit or stream.half(reply.side).state != OPEN:
            self.reply_received(reply.side, reply.kind, reply.key)
            return None
        return Frame(FORGO_CREDIT, reply.key, b"", amount, stream.incarnation)

    def reply_discards_queued(self, reply: PendingReply) -> bool:
        return False

    # Descriptions

    def ending(self, stream: StreamState) -> str:
        if stream.half(stream.opener).state == ENDED:
            return "clean"
        return "half-closed" if stream.half(1 - stream.opener).state == ENDED else "open"

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        text = f"{self.kind_name(head.kind)} of {head.amount}"
        if rule == UNASSIGNED_STREAM:
            number: int = head.stream_id
            if number < 0:
                number += U64_MODULUS
            if self.profile.format_of(head.key) is None:
                return f"{text} on stream {number}, which the profile does not assign"
            return f"{text} on stream {number}: that role belongs to the other side"
        if rule == BAD_ITEM:
            are = "is" if head.payload_size == 1 else "are"
            return f"{text}: {byte_count_text(head.payload_size)} {are} not its items"
        if rule == VARINT_OVERFLOW:
            return f"{text}: no number that this packet can carry"
        credit, limit = 0, -1
        if stream is not None and not self.starts_new_use(head.kind, stream):
            half = stream.half(stream.opener)
            credit = half.credit_granted - half.credit_spent
            limit = stream.half(sender).promised_limit
        if rule == CREDIT_EXCEEDED or rule == FORGO_EXCEEDS_CREDIT:
            return f"{text}: there was credit for {credit if credit > 0 else 0}"
        if rule == CREDIT_OVERFLOW:
            return f"{text} on top of {credit}: more than 2^64-1"
        if rule == WRITE_PAST_LIMIT and stream is not None:
            if stream.half(sender).state == ENDED:
                return f"{text}: the stream was finished"
            return f"{text}: {limit} more were announced"
        if rule == LIMIT_RAISED or rule == CREDIT_PAST_LIMIT or rule == PROMISE_PAST_LIMIT:
            return f"{text}: {limit} more were announced"
        return text

    # Saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["next_ids"] = [self.next_dialer_id, self.next_acceptor_id]
        saved["pending_oops"] = list(self.pending_oops.items())
        saved["reused_ids"] = self.reused_ids.save()
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        next_ids, oops, reused = saved["next_ids"], saved["pending_oops"], saved["reused_ids"]
        # Saved state is untyped; `save` writes these lists.
        assert isinstance(next_ids, list)
        assert isinstance(oops, list)
        assert isinstance(reused, list)
        self.next_dialer_id, self.next_acceptor_id = next_ids[0], next_ids[1]
        self.pending_oops = dict(oops)
        self.reused_ids.load(reused)


def sender_has_role(sender: i64, head: FrameHeader) -> bool:
    """Return whether the sender has the role (writer or reader) that the packet belongs to."""
    return head.kind & 1 == (1 if writer_of(head.key) == sender else 0)


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """Make a `Minmux` from the options of a protocol string.

    `profile=FILE.toml` describes the instance; without it, every id carries bytes. `canonical=no`
    also accepts numbers that are not in shortest form. `oops=ignore` keeps the credit that an Oops
    asks back.
    """
    profile = load_profile(options["profile"]) if "profile" in options else byte_profile()
    canonical = options.get("canonical", "yes")
    if canonical not in ("yes", "no"):
        raise ValueError(f"canonical is yes or no, not {canonical!r}")
    answer = options.get("oops", "answer")
    if answer not in ("answer", "ignore"):
        raise ValueError(f"oops is answer or ignore, not {answer!r}")
    return Minmux(limits, vantage, profile, canonical == "yes", answer == "answer")
