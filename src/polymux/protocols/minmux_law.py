"""The law of Minmux: credit, limits that only tighten, last items, and new uses of an id.

The writer's half holds the ledger: `granted` is all credit ever given, `spent` what was written or
forgone. Each half's `limit` is what its side has announced that it will not exceed: items on the
writer's half, credit on the reader's. `stream.extra` is 1 more than the octets before the last item
once that has begun; `stream.accepted` says that the writer was heard in this use of the id.
"""

from mypy_extensions import i64

from ..core.frames import Head
from ..core.limits import Limits
from ..core.protocol import Protocol
from ..core.rules import CROSSED
from ..core.streams import ENDED, NEVER, OPEN, Half, Stream
from .minmux_items import ENDLESS
from .minmux_packets import (
    FORGO_CREDIT,
    GIVE_CREDIT,
    KINDS,
    MOST,
    OOPS,
    PROMISE_WRITE,
    STOP_READ,
    STOP_WRITE,
    WORD,
    WRITE,
    counts_from_one,
    writer_of,
)
from .minmux_profile import UNIT, Profile, Shape
from .minmux_rules import (
    BAD_ITEM,
    CREDIT_EXCEEDED,
    CREDIT_OVERFLOW,
    CREDIT_PAST_LIMIT,
    ENDLESS_STOPPED,
    FORGO_EXCEEDS,
    ITEM_TOO_LONG,
    LAST_MISSING,
    LIMIT_RAISED,
    OVERFLOW,
    PROMISE_PAST_LIMIT,
    RULES,
    TRUNCATED,
    UNASSIGNED,
    WRITE_PAST_LIMIT,
)


class MinmuxLaw(Protocol):
    """State and law of one conversation of an instance. `strict`: numbers in shortest form only;
    `yielding`: answer an Oops with ForgoCredit."""

    def __init__(
        self, limits: Limits, vantage: i64, profile: Profile, strict: bool, yielding: bool
    ) -> None:
        super().__init__("minmux", RULES, KINDS, limits, vantage)
        self.profile = profile
        self.strict = strict
        self.yielding = yielding
        self.credit = True
        self.max_frame = limits.frame if limits.frame > 0 else profile.limit
        self.send_frame = 65536
        self.too_long = ITEM_TOO_LONG
        self.truncated = TRUNCATED
        self.prepared: dict[int, Stream] = {}  # streams somebody waits for, by key
        self.wishes: dict[int, int] = {}  # what an Oops would leave its writer, by key
        self.slack: dict[int, int] = {}  # credit forgone, perhaps in the use before, by key

    # --- law

    def judge(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        kind = head.kind
        shape = self.profile.shape(head.key)
        if shape is None:
            return UNASSIGNED
        if head.text_size >= 0:  # a packet of this process, not yet octets
            verdict = self.judge_shape(sender, head, stream, shape)
            if verdict != 0:
                return verdict
        if stream is None or self.renews(kind, stream):
            return self.judge_first(kind, shape)
        own = stream.half(sender)
        limit = own.limit
        if own.vague and self.contradicts(head, own, shape):
            limit = -1
        amount = head.amount
        if kind == WRITE:
            leave = own.granted - own.spent + self.slack.get(stream.key, 0)
            return self.judge_write(amount, own, limit, leave, shape)
        if kind == GIVE_CREDIT:
            peer = stream.half(1 - sender)
            verdict = CREDIT_PAST_LIMIT if 0 <= limit < amount else 0
            if amount > MOST - (peer.granted - peer.spent):
                verdict |= CREDIT_OVERFLOW
            return verdict
        if kind == STOP_READ or kind == STOP_WRITE:
            if kind == STOP_WRITE and shape.last == ENDLESS:
                return ENDLESS_STOPPED
            return LIMIT_RAISED if 0 <= limit < amount else 0
        if kind == FORGO_CREDIT:
            if amount <= own.granted - own.spent:
                return 0
            return CROSSED if self.doubtful(sender, stream) else FORGO_EXCEEDS
        if kind == OOPS:
            return 0
        return PROMISE_PAST_LIMIT if 0 <= limit < amount else 0

    def judge_write(self, amount: int, own: Half, limit: int, leave: int, shape: Shape) -> i64:
        if limit == 0 and self.is_last(own, amount, shape):
            return 0
        verdict: i64 = WRITE_PAST_LIMIT if 0 <= limit < amount else 0
        if amount > leave:
            verdict |= CREDIT_EXCEEDED
        return verdict

    def judge_first(self, kind: i64, shape: Shape) -> i64:
        """A packet on a stream, or in a new use of it, of which nothing was heard."""
        if kind == WRITE:
            return CREDIT_EXCEEDED
        if kind == STOP_WRITE and shape.last == ENDLESS:
            return ENDLESS_STOPPED
        if kind == FORGO_CREDIT and not self.streams.forgot:
            return FORGO_EXCEEDS
        return 0

    def judge_shape(self, sender: i64, head: Head, stream: Stream | None, shape: Shape) -> i64:
        """What cannot be said on the wire at all, or would be taken for something else."""
        kind = head.kind
        if not in_role(sender, head):
            return UNASSIGNED
        if head.amount > MOST or head.amount < (1 if counts_from_one(kind) else 0):
            return OVERFLOW
        if kind != WRITE:
            return BAD_ITEM if head.size > 0 else 0
        last = stream is not None and self.is_last(stream.half(sender), head.amount, shape)
        return 0 if self.holds(shape, last, head.amount, self.said) else BAD_ITEM

    def holds(self, shape: Shape, last: bool, amount: int, octets: bytes) -> bool:
        """Are these octets exactly this many items, or the last item?"""
        raise NotImplementedError

    def is_last(self, own: Half, amount: int, shape: Shape) -> bool:
        """Is a Write of this amount now the last item? That is one Write, of amount 1."""
        return own.limit == 0 and own.state == OPEN and amount == 1 and shape.last != UNIT

    def renews(self, kind: i64, stream: Stream) -> bool:
        """Does this packet begin a new use of the id? Not one that needs credit to make sense:
        it is late, and speaks of the use that is over."""
        return (
            self.profile.reuse
            and stream.dialer.state == ENDED
            and stream.acceptor.state == ENDED
            and kind != WRITE
            and kind != FORGO_CREDIT
            and kind != OOPS
        )

    def doubtful(self, sender: i64, stream: Stream) -> bool:
        """May this writer's ForgoCredit still speak of the use before, which it had not yet seen
        the reader leave?"""
        return (
            stream.incarnation > 1
            and not stream.accepted
            and not self.sight.knows(sender, stream.opened)
        )

    def contradicts(self, head: Head, own: Half, shape: Shape) -> bool:
        """Does this packet show that its sender's stop belonged to the use before?"""
        kind = head.kind
        if kind == OOPS or kind == FORGO_CREDIT:
            return False
        if kind == WRITE:
            return not self.is_last(own, head.amount, shape)
        return head.amount > 0

    # --- bookkeeping

    def apply(self, sender: i64, head: Head, stream: Stream | None, at: i64) -> None:
        kind = head.kind
        shape = self.profile.shape(head.key)
        if shape is None or not in_role(sender, head):
            return
        vague = False
        if stream is None:
            stream = self.make(sender, head, None)
        elif self.renews(kind, stream):
            peer = stream.half(1 - sender)
            vague = not self.sight.knows(sender, peer.stopped)
            if head.amount > 0 and not peer.vague:  # it can only follow the end of the last use
                self.sight.proves(sender, peer.stopped)
            stream = self.make(sender, head, stream)
        elif stream.incarnation > 1:
            vague = self.may_repeat(sender, stream)
        self.touched = stream
        own = stream.half(sender)
        if own.vague and self.contradicts(head, own, shape):
            own.limit = -1
            own.stop(OPEN, NEVER, False)
            self.settle(sender, WRITE, stream.key)
        amount = head.amount
        if kind == WRITE:
            self.take_items(sender, head, stream, own, shape, at)
        elif kind == GIVE_CREDIT:
            stream.half(1 - sender).granted += amount
            if stream.answerable == NEVER:
                stream.answerable = self.sight.sent(sender)
            self.count_down(sender, stream, own, amount, UNIT, at)
        elif kind == STOP_READ:
            self.tighten(sender, stream, own, amount, UNIT, vague, at)
        elif kind == STOP_WRITE:
            stream.accepted = True
            if shape.last != ENDLESS:
                self.tighten(sender, stream, own, amount, shape.last, vague, at)
        elif kind == FORGO_CREDIT:
            self.give_up(sender, stream, own, amount)
        elif kind == OOPS:
            writer = stream.half(1 - sender)
            self.settle(1 - sender, FORGO_CREDIT, stream.key)
            if self.yielding and writer.state == OPEN and amount < writer.granted - writer.spent:
                self.wishes[stream.key] = amount
                self.owe(1 - sender, FORGO_CREDIT, stream.key, 0, at)
        elif kind == PROMISE_WRITE:
            stream.accepted = True

    def make(self, sender: i64, head: Head, old: Stream | None) -> Stream:
        """A stream at its first packet, or at the first of a new use."""
        made = self.prepared.pop(head.key, None)
        if made is None:
            made = self.blank(head.key)
        made.opened = self.sight.sent(sender)
        made.accepted = sender == made.opener
        if old is not None:
            made.incarnation = old.incarnation + 1
            self.slack.pop(head.key, 0)
        self.streams.put(made)
        return made

    def blank(self, key: i64) -> Stream:
        writer = writer_of(key)
        made = Stream(key, key, writer, 0)
        made.answerable = NEVER
        made.half(writer).granted = 0
        return made

    def may_repeat(self, sender: i64, stream: Stream) -> bool:
        """May a stop of this sender repeat what it said in the use before? Not once it has said
        something in this one, nor if it knew that this one had begun."""
        if stream.opener == sender:
            if stream.accepted:
                return False
        elif stream.half(stream.opener).granted > 0 or stream.half(sender).limit >= 0:
            return False
        return not self.sight.knows(sender, stream.opened)

    def take_items(
        self, sender: i64, head: Head, stream: Stream, own: Half, shape: Shape, at: i64
    ) -> None:
        stream.accepted = True
        if self.is_last(own, head.amount, shape):
            self.counted = True
            stream.extra = own.octets + 1
            self.settle(sender, WRITE, stream.key)
            own.stop(ENDED, self.sight.sent(sender), False)
        elif own.limit != 0:
            self.counted = True
            own.spent += head.amount
            if stream.answerable != NEVER:
                self.sight.proves(sender, stream.answerable)
            self.count_down(sender, stream, own, head.amount, shape.last, at)

    def give_up(self, sender: i64, stream: Stream, own: Half, amount: int) -> None:
        """Credit forgone. The ledger believes what was said last; `slack` keeps what may have been
        meant for the use before, so that writing it is not held against anybody."""
        self.settle(sender, FORGO_CREDIT, stream.key)
        credit = own.granted - own.spent
        if amount > credit:
            amount = credit
        if amount > 0:
            own.spent += amount
            if self.doubtful(sender, stream):
                self.slack[stream.key] = self.slack.get(stream.key, 0) + amount

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
                self.run_out(sender, stream, own, last, False, at)

    def tighten(
        self, sender: i64, stream: Stream, own: Half, amount: int, last: i64, vague: bool, at: i64
    ) -> None:
        """A limit is announced, or lowered."""
        if own.limit < 0 or amount < own.limit:
            own.limit = amount
            if amount == 0:
                self.run_out(sender, stream, own, last, vague, at)

    def run_out(
        self, sender: i64, stream: Stream, own: Half, last: i64, vague: bool, at: i64
    ) -> None:
        """Nothing is left of a limit: the half has ended, unless its last item is still to come."""
        if last == UNIT:
            own.stop(ENDED, self.sight.sent(sender), vague)
        else:
            own.vague = vague
            self.owe(sender, WRITE, stream.key, LAST_MISSING, at)

    def ending(self, stream: Stream) -> str:
        if stream.half(stream.opener).state == ENDED:
            return "clean"
        return "half-closed" if stream.half(1 - stream.opener).state == ENDED else "open"

    def explain(self, rule: i64, sender: i64, head: Head, stream: Stream | None) -> str:
        text = f"{self.kind_name(head.kind)} of {head.amount}"
        if rule == UNASSIGNED:
            number: int = head.number
            if number < 0:
                number += WORD
            if self.profile.shape(head.key) is None:
                return f"{text} on stream {number}, which the profile does not assign"
            return f"{text} on stream {number}: the other side has that part in it"
        if rule == BAD_ITEM:
            return f"{text}: {head.size} octets are not its items"
        if rule == OVERFLOW:
            return f"{text}: no number that this packet can carry"
        credit, limit = 0, -1
        if stream is not None and not self.renews(head.kind, stream):
            half = stream.half(stream.opener)
            credit = half.granted - half.spent
            limit = stream.half(sender).limit
        if rule == CREDIT_EXCEEDED or rule == FORGO_EXCEEDS:
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
