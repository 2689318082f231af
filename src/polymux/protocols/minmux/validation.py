# mypyc: compiled
"""The law of Minmux: credit, limits that only tighten, and last items.

The writer's half holds the ledger: `granted` is all credit ever given, `spent` what was written or
forgone. Each half's `limit` is what its side has announced that it will not exceed: items on the
writer's half, credit on the reader's. `stream.extra` is 1 more than the octets before the last item
once that has begun.
"""

from mypy_extensions import i64

from polymux.core.frames import Head
from polymux.core.limits import Limits
from polymux.core.rules import octets_text
from polymux.core.streams import ENDED, OPEN, Half, Stream
from polymux.protocols.minmux.id_reuse import MinmuxUses
from polymux.protocols.minmux.item_codecs import ENDLESS
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    GIVE_CREDIT,
    MOST,
    OOPS,
    STOP_READ,
    STOP_WRITE,
    USUAL,
    WORD,
    WRITE,
    counts_from_one,
    writer_of,
)
from polymux.protocols.minmux.profile import UNIT, Profile, Shape
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


class MinmuxLaw(MinmuxUses):
    """State and law of one conversation of an instance. `strict`: numbers in shortest form only;
    `yielding`: answer an Oops with ForgoCredit."""

    def __init__(
        self, limits: Limits, vantage: i64, profile: Profile, strict: bool, yielding: bool
    ) -> None:
        super().__init__(limits, vantage, profile)
        self.strict = strict
        self.yielding = yielding
        self.credit = True
        self.two_way = False
        self.max_frame = limits.frame if limits.frame > 0 else profile.limit
        self.send_frame = 65536
        self.too_long = ITEM_TOO_LONG
        self.truncated = TRUNCATED
        self.mutual = CREDIT_EXCEEDED | FORGO_EXCEEDS_CREDIT | CREDIT_OVERFLOW
        if profile.reuse:  # a new use begins when both sides have stopped
            self.mutual |= WRITE_PAST_LIMIT | CREDIT_PAST_LIMIT | LIMIT_RAISED | PROMISE_PAST_LIMIT
        self.wishes: dict[int, int] = {}  # what an Oops would leave its writer, by key

    # --- law

    def judge(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        kind = head.kind
        shape = self.profile.shape(head.key)
        if shape is None:
            return UNASSIGNED_STREAM
        if kind == WRITE and stream is not None and head.text_size < 0:  # the usual packet
            half = stream.half(sender)
            if half.limit < 0 and head.amount <= half.granted - half.spent:
                return 0
        if head.text_size >= 0:  # a packet of this process, not yet octets
            verdict = self.judge_shape(sender, head, stream, shape)
            if verdict != 0:
                return verdict
        if stream is None or self.renews(kind, stream):
            return self.judge_first(kind, shape)
        verdict = self.judge_known(sender, head, stream, shape)
        if verdict != 0 and self.profile.reuse:
            return self.excuse(verdict, sender, head, stream)
        return verdict

    def judge_known(self, sender: i64, head: Head, stream: Stream, shape: Shape) -> i64:
        kind = head.kind
        own = stream.half(sender)
        limit = own.limit
        if own.vague and self.is_clear(head, own, shape):
            limit = -1
        amount = head.amount
        verdict: i64 = 0
        if kind == WRITE:
            if not self.is_last(own, amount, shape):
                if 0 <= limit < amount:
                    verdict = WRITE_PAST_LIMIT
                if amount > self.leave(own, head.key):
                    verdict |= CREDIT_EXCEEDED
        elif kind == GIVE_CREDIT:
            peer = stream.half(1 - sender)
            if 0 <= limit < amount:
                verdict = CREDIT_PAST_LIMIT
            held = peer.granted - peer.spent + amount
            if held >= USUAL and held > MOST:
                verdict |= CREDIT_OVERFLOW
        elif kind == STOP_WRITE and shape.last == ENDLESS:
            verdict = ENDLESS_STREAM_STOPPED
        elif kind == STOP_READ or kind == STOP_WRITE:
            if 0 <= limit < amount:
                verdict = LIMIT_RAISED
        elif kind == FORGO_CREDIT:
            if amount > self.leave(own, head.key):
                verdict = FORGO_EXCEEDS_CREDIT
        elif kind != OOPS and 0 <= limit < amount:
            verdict = PROMISE_PAST_LIMIT
        return verdict

    def judge_first(self, kind: i64, shape: Shape) -> i64:
        """A packet on a stream, or in a new use of it, of which nothing was heard."""
        if kind == WRITE:
            return CREDIT_EXCEEDED
        if kind == STOP_WRITE and shape.last == ENDLESS:
            return ENDLESS_STREAM_STOPPED
        if kind == FORGO_CREDIT and not self.streams.forgot:
            return FORGO_EXCEEDS_CREDIT
        return 0

    def judge_shape(self, sender: i64, head: Head, stream: Stream | None, shape: Shape) -> i64:
        """What cannot be said on the wire at all, or would be taken for something else."""
        kind = head.kind
        if not in_role(sender, head):
            return UNASSIGNED_STREAM
        if head.amount > MOST or head.amount < (1 if counts_from_one(kind) else 0):
            return VARINT_OVERFLOW
        if kind != WRITE:
            return BAD_ITEM if head.size > 0 else 0
        last = stream is not None and self.is_last(stream.half(sender), head.amount, shape)
        return 0 if self.holds(shape, last, head.amount, self.said) else BAD_ITEM

    def holds(self, shape: Shape, last: bool, amount: int, octets: bytes) -> bool:
        """Are these octets exactly this many items, or the last item?"""
        raise NotImplementedError

    # --- bookkeeping

    def apply(self, sender: i64, head: Head, stream: Stream | None, at: i64) -> None:
        kind = head.kind
        shape = self.profile.shape(head.key)
        if shape is None or (head.text_size >= 0 and not in_role(sender, head)):
            return
        if stream is None:
            stream = self.make(sender, head.key, 1)
        elif self.profile.reuse:
            stream = self.enter(sender, head, stream, shape)
        self.touched = stream
        own = stream.half(sender)
        amount = head.amount
        if kind == WRITE:
            self.take_items(sender, head, stream, own, shape, at)
        elif kind == GIVE_CREDIT:
            stream.half(1 - sender).granted += amount
            self.count_down(sender, stream, own, amount, UNIT, at)
        elif kind == STOP_READ:
            self.tighten(sender, stream, own, amount, UNIT, at)
        elif kind == STOP_WRITE:
            if shape.last != ENDLESS:
                self.tighten(sender, stream, own, amount, shape.last, at)
        elif kind == FORGO_CREDIT:
            self.settle(sender, FORGO_CREDIT, stream.key)
            leave = self.leave(own, stream.key)
            if amount > leave:  # cut down by its reader, or dropped: told once, for this packet
                own.spent += leave
                self.hold(stream.key, leave)
            else:
                own.spent += amount
                if own.vague:
                    self.spare(stream.key, amount)
        elif kind == OOPS:
            writer = stream.half(1 - sender)
            self.settle(1 - sender, FORGO_CREDIT, stream.key)
            if self.yielding and writer.state == OPEN and amount < writer.granted - writer.spent:
                self.wishes[stream.key] = amount
                self.owe(1 - sender, FORGO_CREDIT, stream.key, 0, at)

    def take_items(
        self, sender: i64, head: Head, stream: Stream, own: Half, shape: Shape, at: i64
    ) -> None:
        if self.is_last(own, head.amount, shape):
            self.counted = True
            stream.extra = own.octets + 1
            self.settle(sender, WRITE, stream.key)
            own.stop(ENDED, self.sight.sent(sender), False)
        elif own.limit != 0:
            self.counted = True
            own.spent += head.amount
            self.count_down(sender, stream, own, head.amount, shape.last, at)

    def settle(self, side: i64, kind: i64, key: i64) -> None:
        super().settle(side, kind, key)
        if kind == FORGO_CREDIT:
            self.wishes.pop(key, 0)

    def count_down(
        self, sender: i64, stream: Stream, own: Half, amount: int, last: i64, at: i64
    ) -> None:
        """Items or credit have used up some of the announced limit."""
        if own.limit > 0:
            own.limit = own.limit - amount if amount < own.limit else 0
            if own.limit == 0:
                self.run_out(sender, stream, own, last, at)

    def tighten(
        self, sender: i64, stream: Stream, own: Half, amount: int, last: i64, at: i64
    ) -> None:
        """A limit is announced, or lowered."""
        if own.limit < 0 or amount < own.limit:
            own.limit = amount
            if amount == 0:
                self.run_out(sender, stream, own, last, at)

    def run_out(self, sender: i64, stream: Stream, own: Half, last: i64, at: i64) -> None:
        """Nothing is left of a limit: the half has ended, unless its last item is still to come."""
        if last == UNIT:
            own.stop(ENDED, self.sight.sent(sender), own.vague)
        else:
            self.owe(sender, WRITE, stream.key, LAST_ITEM_MISSING, at)

    def ending(self, stream: Stream) -> str:
        if stream.half(stream.opener).state == ENDED:
            return "clean"
        return "half-closed" if stream.half(1 - stream.opener).state == ENDED else "open"

    def explain(self, rule: i64, sender: i64, head: Head, stream: Stream | None) -> str:
        text = f"{self.kind_name(head.kind)} of {head.amount}"
        if rule == UNASSIGNED_STREAM:
            number: int = head.number
            if number < 0:
                number += WORD
            if self.profile.shape(head.key) is None:
                return f"{text} on stream {number}, which the profile does not assign"
            return f"{text} on stream {number}: the other side has that part in it"
        if rule == BAD_ITEM:
            are = "is" if head.size == 1 else "are"
            return f"{text}: {octets_text(head.size)} {are} not its items"
        if rule == VARINT_OVERFLOW:
            return f"{text}: no number that this packet can carry"
        credit, limit = 0, -1
        if stream is not None and not self.renews(head.kind, stream):
            half = stream.half(stream.opener)
            credit = half.granted - half.spent
            limit = stream.half(sender).limit
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


def in_role(sender: i64, head: Head) -> bool:
    """Does the sender have the part in this stream that the packet's kind belongs to?"""
    return head.kind & 1 == (1 if writer_of(head.key) == sender else 0)
