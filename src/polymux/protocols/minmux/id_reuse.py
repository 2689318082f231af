# mypyc: compiled
"""Uses of a Minmux id, where the instance allows more than one.

An id is free again when its writer has finished and its reader gives no more credit; the next
packet begins a new use. Both sides know in which use they are. A watcher does not always: a side
that has not yet read the other's stop may still speak of the use before, and some packets look the
same either way. Such a packet is believed to belong to the newest use, and from then on the id is
`murky`: nothing that the other reading would excuse is held against anybody. Writing without credit
is excused only as far as credit left over from the use before may have been given up late
(`slack`): a reader's memory hangs on it.

So that both sides always agree, a side that has stopped a use should not say so again.
"""

from mypy_extensions import i64

from polymux.core.frames import Head
from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.core.rules import CROSSED
from polymux.core.streams import ENDED, NEVER, OPEN, Half, Stream
from polymux.protocols.minmux.packets import FORGO_CREDIT, KINDS, OOPS, STOP_WRITE, WRITE, writer_of
from polymux.protocols.minmux.profile import UNIT, Profile, Shape
from polymux.protocols.minmux.rules import CREDIT_EXCEEDED, CREDIT_OVERFLOW, RULES


class MinmuxUses(Protocol):
    """The streams of one conversation and their uses.

    `half.vague`: nothing that this side has said in this use is sure to belong to it.
    """

    def __init__(self, limits: Limits, vantage: i64, profile: Profile) -> None:
        super().__init__("minmux", RULES, KINDS, limits, vantage)
        self.profile = profile
        self.prepared: dict[int, Stream] = {}  # streams somebody waits for, by key
        self.murky: set[int] = set()  # keys
        self.left: dict[int, int] = {}  # credit left over from the use before, by key
        self.slack: dict[int, int] = {}  # credit given up that a writer may yet have, by key

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

    def is_clear(self, head: Head, own: Half, shape: Shape) -> bool:
        """Is this a packet that a side cannot send in a use that it has stopped? Credit, items and
        limits above 0 are; they show that its sender had read the other's stop, too."""
        if head.kind == WRITE:
            return not self.is_last(own, head.amount, shape)
        return head.kind <= STOP_WRITE and head.amount > 0

    def may_be_late(self, sender: i64, stream: Stream) -> bool:
        """May a packet of this sender, if it is not a clear one, speak of the use before?"""
        if stream.incarnation == 1:
            return False
        own = stream.half(sender)
        if own.frames > 0:
            return own.vague
        return not self.sight.knows(sender, stream.opened)

    def excuse(self, verdict: i64, sender: i64, head: Head, stream: Stream) -> i64:
        """What is left of a verdict if an unclear packet may have meant another use. The side we
        stand beside has no such excuse: what it has read is known."""
        if stream.incarnation > 1:
            verdict &= ~CREDIT_OVERFLOW  # the reader may have counted a late ForgoCredit
        unsure = stream.key in self.murky or self.may_be_late(sender, stream)
        fits = head.kind != FORGO_CREDIT or head.amount <= self.left.get(head.key, 0)
        if sender != self.sight.beside and unsure and fits:
            verdict &= CREDIT_EXCEEDED
        return verdict if verdict != 0 else CROSSED

    def enter(self, sender: i64, head: Head, stream: Stream, shape: Shape) -> Stream:
        """The use that a packet on a known stream belongs to, begun if need be."""
        late = False
        if self.renews(head.kind, stream):
            peer = stream.half(1 - sender)
            late = not self.sight.knows(sender, peer.stopped)
            if stream.key not in self.murky and self.is_clear(head, stream.half(sender), shape):
                self.sight.proves(sender, peer.stopped)
            self.leave_behind(stream)
            stream = self.make(sender, head.key, stream.incarnation + 1)
        elif stream.incarnation > 1:
            late = self.may_be_late(sender, stream)
        own = stream.half(sender)
        if self.is_clear(head, own, shape):
            if own.vague and own.limit == 0:  # that stop belonged to the use before
                own.limit = -1
                own.stop(OPEN, NEVER, False)
                self.settle(sender, WRITE, stream.key)
            own.vague = False
        elif late:
            own.vague = True
            if head.kind != OOPS:
                self.murky.add(stream.key)
        return stream

    def leave(self, own: Half, key: i64) -> int:
        """The most credit that this writer can have."""
        credit = own.granted - own.spent
        return credit + self.slack.get(key, 0) if len(self.slack) > 0 else credit

    def leave_behind(self, stream: Stream) -> None:
        """A use is over and the next begins."""
        left = self.leave(stream.half(stream.opener), stream.key)
        self.slack.pop(stream.key, 0)
        self.left.pop(stream.key, 0)
        if left > 0:
            self.left[stream.key] = left

    def spare(self, key: i64, amount: int) -> None:
        """Credit was given up in this use, or perhaps late in the use before."""
        left = self.left.pop(key, 0)
        late = amount if amount < left else left
        self.hold(key, late)
        if left > late:
            self.left[key] = left - late

    def hold(self, key: i64, amount: int) -> None:
        """Credit that was given up, but that its writer may yet have."""
        if amount > 0:
            self.slack[key] = self.slack.get(key, 0) + amount

    def make(self, sender: i64, key: i64, use: i64) -> Stream:
        """A stream at its first packet, or at the first of a new use."""
        made = self.prepared.pop(key, None)
        if made is None:
            made = self.blank(key)
        made.opened = self.sight.sent(sender)
        made.incarnation = use
        self.streams.put(made)
        return made

    def blank(self, key: i64) -> Stream:
        writer = writer_of(key)
        made = Stream(key, key, writer, 0)
        made.half(writer).granted = 0
        return made
