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

from polymux.core.frames import FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.core.rules import CROSSED
from polymux.core.streams import ENDED, NEVER, OPEN, HalfStream, StreamState
from polymux.protocols.minmux.packets import FORGO_CREDIT, KINDS, OOPS, STOP_WRITE, WRITE, writer_of
from polymux.protocols.minmux.profile import UNIT_LAST_ITEM, Profile, StreamFormat
from polymux.protocols.minmux.rules import CREDIT_EXCEEDED, CREDIT_OVERFLOW, RULES


class MinmuxIdReuse(Protocol):
    """The streams of one conversation and their uses.

    `half.vague`: nothing that this side has said in this use is sure to belong to it.
    """

    def __init__(self, limits: Limits, vantage: i64, profile: Profile) -> None:
        super().__init__("minmux", RULES, KINDS, limits, vantage)
        self.profile = profile
        self.reserved_streams: dict[int, StreamState] = {}  # streams somebody waits for, by key
        self.ambiguous_ids: set[int] = set()  # keys
        self.previous_credit: dict[int, int] = {}  # credit left over from the use before, by key
        self.forgiven_credit: dict[
            int, int
        ] = {}  # credit given up that a writer may yet have, by key

    def is_last_item(self, own: HalfStream, amount: int, stream_format: StreamFormat) -> bool:
        """Is a Write of this amount now the last item? That is one Write, of amount 1."""
        return (
            own.promised_limit == 0
            and own.state == OPEN
            and amount == 1
            and stream_format.last_item_size != UNIT_LAST_ITEM
        )

    def starts_new_use(self, kind: i64, stream: StreamState) -> bool:
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

    def is_unambiguous(
        self, head: FrameHeader, own: HalfStream, stream_format: StreamFormat
    ) -> bool:
        """Is this a packet that a side cannot send in a use that it has stopped? Credit, items and
        limits above 0 are; they show that its sender had read the other's stop, too."""
        if head.kind == WRITE:
            return not self.is_last_item(own, head.amount, stream_format)
        return head.kind <= STOP_WRITE and head.amount > 0

    def may_refer_to_previous_use(self, sender: i64, stream: StreamState) -> bool:
        """May a packet of this sender, if it is not a clear one, speak of the use before?"""
        if stream.incarnation == 1:
            return False
        own = stream.half(sender)
        if own.frames > 0:
            return own.end_is_ambiguous
        return not self.causality.had_seen(sender, stream.open_frame_index)

    def excuse_if_ambiguous(
        self, violation_mask: i64, sender: i64, head: FrameHeader, stream: StreamState
    ) -> i64:
        """What is left of a verdict if an unclear packet may have meant another use. The side we
        stand beside has no such excuse: what it has read is known."""
        if stream.incarnation > 1:
            violation_mask &= ~CREDIT_OVERFLOW  # the reader may have counted a late ForgoCredit
        unsure = stream.key in self.ambiguous_ids or self.may_refer_to_previous_use(sender, stream)
        fits = head.kind != FORGO_CREDIT or head.amount <= self.previous_credit.get(head.key, 0)
        if sender != self.causality.vantage and unsure and fits:
            violation_mask &= CREDIT_EXCEEDED
        return violation_mask if violation_mask != 0 else CROSSED

    def select_use(
        self, sender: i64, head: FrameHeader, stream: StreamState, stream_format: StreamFormat
    ) -> StreamState:
        """The use that a packet on a known stream belongs to, begun if need be."""
        late = False
        if self.starts_new_use(head.kind, stream):
            peer = stream.half(1 - sender)
            late = not self.causality.had_seen(sender, peer.end_frame_index)
            if stream.key not in self.ambiguous_ids and self.is_unambiguous(
                head, stream.half(sender), stream_format
            ):
                self.causality.record_seen(sender, peer.end_frame_index)
            self.keep_previous_credit(stream)
            stream = self.open_use(sender, head.key, stream.incarnation + 1)
        elif stream.incarnation > 1:
            late = self.may_refer_to_previous_use(sender, stream)
        own = stream.half(sender)
        if self.is_unambiguous(head, own, stream_format):
            if (
                own.end_is_ambiguous and own.promised_limit == 0
            ):  # that stop belonged to the use before
                own.promised_limit = -1
                own.stop(OPEN, NEVER, False)
                self.reply_received(sender, WRITE, stream.key)
            own.end_is_ambiguous = False
        elif late:
            own.end_is_ambiguous = True
            if head.kind != OOPS:
                self.ambiguous_ids.add(stream.key)
        return stream

    def available_credit(self, own: HalfStream, key: i64) -> int:
        """The most credit that this writer can have."""
        credit = own.credit_granted - own.credit_spent
        return (
            credit + self.forgiven_credit.get(key, 0) if len(self.forgiven_credit) > 0 else credit
        )

    def keep_previous_credit(self, stream: StreamState) -> None:
        """A use is over and the next begins."""
        left = self.available_credit(stream.half(stream.opener), stream.key)
        self.forgiven_credit.pop(stream.key, 0)
        self.previous_credit.pop(stream.key, 0)
        if left > 0:
            self.previous_credit[stream.key] = left

    def forgive_late_forgo(self, key: i64, amount: int) -> None:
        """Credit was given up in this use, or perhaps late in the use before."""
        left = self.previous_credit.pop(key, 0)
        late = amount if amount < left else left
        self.forgive_credit(key, late)
        if left > late:
            self.previous_credit[key] = left - late

    def forgive_credit(self, key: i64, amount: int) -> None:
        """Credit that was given up, but that its writer may yet have."""
        if amount > 0:
            self.forgiven_credit[key] = self.forgiven_credit.get(key, 0) + amount

    def open_use(self, sender: i64, key: i64, incarnation: i64) -> StreamState:
        """A stream at its first packet, or at the first of a new use."""
        made = self.reserved_streams.pop(key, None)
        if made is None:
            made = self.new_stream(key)
        made.open_frame_index = self.causality.frames_sent(sender)
        made.incarnation = incarnation
        self.streams.insert(made)
        return made

    def new_stream(self, key: i64) -> StreamState:
        writer = writer_of(key)
        made = StreamState(key, key, writer, 0)
        made.half(writer).credit_granted = 0
        return made
