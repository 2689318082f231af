# mypyc: compiled
"""The law of Minmux: credit, limits that only tighten, and last items.

The writer's half holds the ledger: `granted` is all credit ever given, `spent` what was written or
forgone. Each half's `limit` is what its side has announced that it will not exceed: items on the
writer's half, credit on the reader's. `stream.extra` is 1 more than the bytes before the last item
once that has begun.
"""

from mypy_extensions import i64

from polymux.core.frames import FrameHeader
from polymux.core.limits import Limits
from polymux.core.rules import byte_count_text
from polymux.core.streams import ENDED, OPEN, HalfStream, StreamState
from polymux.protocols.minmux.id_reuse import MinmuxIdReuse
from polymux.protocols.minmux.item_codecs import ENDLESS
from polymux.protocols.minmux.packets import (
    FAST_COMPARE_BELOW,
    FORGO_CREDIT,
    GIVE_CREDIT,
    OOPS,
    STOP_READ,
    STOP_WRITE,
    U64_MAX,
    U64_MODULUS,
    WRITE,
    has_nonzero_amount,
    writer_of,
)
from polymux.protocols.minmux.profile import UNIT_LAST_ITEM, Profile, StreamFormat
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
    TRUNCATED,
    UNASSIGNED_STREAM,
    VARINT_OVERFLOW,
    WRITE_PAST_LIMIT,
)


class MinmuxValidation(MinmuxIdReuse):
    """State and law of one conversation of an instance. `strict`: numbers in shortest form only;
    `yielding`: answer an Oops with ForgoCredit."""

    def __init__(
        self,
        limits: Limits,
        vantage: i64,
        profile: Profile,
        canonical_only: bool,
        answers_oops: bool,
    ) -> None:
        super().__init__(limits, vantage, profile)
        self.canonical_only = canonical_only
        self.answers_oops = answers_oops
        self.has_credit = True
        self.two_way = False
        self.max_frame_bytes = (
            limits.max_frame_bytes if limits.max_frame_bytes > 0 else profile.max_item_bytes
        )
        self.max_sent_frame_bytes = 65536
        self.too_long_rule = ITEM_TOO_LONG
        self.truncated_rule = TRUNCATED
        self.peer_dependent_rules = CREDIT_EXCEEDED | FORGO_EXCEEDS_CREDIT | CREDIT_OVERFLOW
        if profile.reuse:  # a new use begins when both sides have stopped
            self.peer_dependent_rules |= (
                WRITE_PAST_LIMIT | CREDIT_PAST_LIMIT | LIMIT_RAISED | PROMISE_PAST_LIMIT
            )
        self.pending_oops: dict[int, int] = {}  # what an Oops would leave its writer, by key

    # --- law

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        shape = self.profile.format_of(head.key)
        if shape is None:
            return UNASSIGNED_STREAM
        if kind == WRITE and stream is not None and head.text_size < 0:  # the usual packet
            half = stream.half(sender)
            if half.promised_limit < 0 and head.amount <= half.credit_granted - half.credit_spent:
                return 0
        if head.text_size >= 0:  # a packet of this process, not yet bytes
            verdict = self.validate_encodable(sender, head, stream, shape)
            if verdict != 0:
                return verdict
        if stream is None or self.starts_new_use(kind, stream):
            return self.validate_first(kind, shape)
        verdict = self.validate_on_known_stream(sender, head, stream, shape)
        if verdict != 0 and self.profile.reuse:
            return self.excuse_if_ambiguous(verdict, sender, head, stream)
        return verdict

    def validate_on_known_stream(
        self, sender: i64, head: FrameHeader, stream: StreamState, stream_format: StreamFormat
    ) -> i64:
        kind = head.kind
        own = stream.half(sender)
        limit = own.promised_limit
        if own.end_is_ambiguous and self.is_unambiguous(head, own, stream_format):
            limit = -1
        amount = head.amount
        verdict: i64 = 0
        if kind == WRITE:
            if not self.is_last_item(own, amount, stream_format):
                if 0 <= limit < amount:
                    verdict = WRITE_PAST_LIMIT
                if amount > self.available_credit(own, head.key):
                    verdict |= CREDIT_EXCEEDED
        elif kind == GIVE_CREDIT:
            peer = stream.half(1 - sender)
            if 0 <= limit < amount:
                verdict = CREDIT_PAST_LIMIT
            held = peer.credit_granted - peer.credit_spent + amount
            if held >= FAST_COMPARE_BELOW and held > U64_MAX:
                verdict |= CREDIT_OVERFLOW
        elif kind == STOP_WRITE and stream_format.last_item_size == ENDLESS:
            verdict = ENDLESS_STREAM_STOPPED
        elif kind == STOP_READ or kind == STOP_WRITE:
            if 0 <= limit < amount:
                verdict = LIMIT_RAISED
        elif kind == FORGO_CREDIT:
            if amount > self.available_credit(own, head.key):
                verdict = FORGO_EXCEEDS_CREDIT
        elif kind != OOPS and 0 <= limit < amount:
            verdict = PROMISE_PAST_LIMIT
        return verdict

    def validate_first(self, kind: i64, stream_format: StreamFormat) -> i64:
        """A packet on a stream, or in a new use of it, of which nothing was heard."""
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
        """What cannot be said on the wire at all, or would be taken for something else."""
        kind = head.kind
        if not sender_has_role(sender, head):
            return UNASSIGNED_STREAM
        if head.amount > U64_MAX or head.amount < (1 if has_nonzero_amount(kind) else 0):
            return VARINT_OVERFLOW
        if kind != WRITE:
            return BAD_ITEM if head.payload_size > 0 else 0
        last = stream is not None and self.is_last_item(
            stream.half(sender), head.amount, stream_format
        )
        return (
            0 if self.holds_items(stream_format, last, head.amount, self.frame_text) else BAD_ITEM
        )

    def holds_items(
        self, stream_format: StreamFormat, last: bool, amount: int, data: bytes
    ) -> bool:
        """Are these bytes exactly this many items, or the last item?"""
        raise NotImplementedError

    # --- bookkeeping

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        shape = self.profile.format_of(head.key)
        if shape is None or (head.text_size >= 0 and not sender_has_role(sender, head)):
            return
        if stream is None:
            stream = self.open_use(sender, head.key, 1)
        elif self.profile.reuse:
            stream = self.select_use(sender, head, stream, shape)
        self.frame_stream = stream
        own = stream.half(sender)
        amount = head.amount
        if kind == WRITE:
            self.apply_write(sender, head, stream, own, shape, timestamp)
        elif kind == GIVE_CREDIT:
            stream.half(1 - sender).credit_granted += amount
            self.use_up_limit(sender, stream, own, amount, UNIT_LAST_ITEM, timestamp)
        elif kind == STOP_READ:
            self.lower_limit(sender, stream, own, amount, UNIT_LAST_ITEM, timestamp)
        elif kind == STOP_WRITE:
            if shape.last_item_size != ENDLESS:
                self.lower_limit(sender, stream, own, amount, shape.last_item_size, timestamp)
        elif kind == FORGO_CREDIT:
            self.reply_received(sender, FORGO_CREDIT, stream.key)
            leave = self.available_credit(own, stream.key)
            if amount > leave:  # cut down by its reader, or dropped: told once, for this packet
                own.credit_spent += leave
                self.forgive_credit(stream.key, leave)
            else:
                own.credit_spent += amount
                if own.end_is_ambiguous:
                    self.forgive_late_forgo(stream.key, amount)
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
        if self.is_last_item(own, head.amount, stream_format):
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
        """Items or credit have used up some of the announced limit."""
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
        """A limit is announced, or lowered."""
        if own.promised_limit < 0 or amount < own.promised_limit:
            own.promised_limit = amount
            if amount == 0:
                self.limit_reached(sender, stream, own, last_item_size, timestamp)

    def limit_reached(
        self, sender: i64, stream: StreamState, own: HalfStream, last_item_size: i64, timestamp: i64
    ) -> None:
        """Nothing is left of a limit: the half has ended, unless its last item is still to come."""
        if last_item_size == UNIT_LAST_ITEM:
            own.stop(ENDED, self.causality.frames_sent(sender), own.end_is_ambiguous)
        else:
            self.expect_reply(sender, WRITE, stream.key, LAST_ITEM_MISSING, timestamp)

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
            return f"{text} on stream {number}: the other side has that part in it"
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


def sender_has_role(sender: i64, head: FrameHeader) -> bool:
    """Does the sender have the part in this stream that the packet's kind belongs to?"""
    return head.kind & 1 == (1 if writer_of(head.key) == sender else 0)
