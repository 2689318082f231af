# mypyc: compiled
"""Repeated use of Minmux ids, in instances whose profile allows it.

The problem. An id is free again when its writer has finished and its reader gives no more credit;
the next packet then starts a new use. No packet names the use it belongs to. Both sides always know
which use they are in, an observer does not: a side that has not yet read the other's stop may still
send packets of the previous use, and some packets are valid in either use.

The idea. A packet that a side cannot send in a use it has stopped is unambiguous: credit, items and
limits above 0. It belongs to the newest use and proves that its sender had read the other side's
stop. Any other packet that may be late is assigned to the newest use as well, but its half gets
`end_is_ambiguous` and its id is added to `ambiguous_ids`. From then on, a violation that vanishes
under the other reading is reported as crossed in flight.

The exception is writing without credit, because the reader's memory depends on it. It is excused
only up to the credit that the writer may still have: credit left over from the previous use
(`previous_credit`) that it may have forgone late moves to `forgiven_credit`.

Invariants: `previous_credit` and `forgiven_credit` hold positive amounts only; all three tables are
empty in an instance without reuse. A side that has stopped a use should not send that stop again:
then both sides always agree on the current use.
"""

from mypy_extensions import i64

from polymux.core.causality import Causality
from polymux.core.frames import FrameHeader
from polymux.core.rules import CROSSED
from polymux.core.streams import OPEN, HalfStream, StreamState
from polymux.protocols.minmux.packets import FORGO_CREDIT, STOP_WRITE, WRITE
from polymux.protocols.minmux.profile import UNIT_LAST_ITEM, StreamFormat
from polymux.protocols.minmux.rules import CREDIT_EXCEEDED, CREDIT_OVERFLOW


def is_last_item(own: HalfStream, amount: int, stream_format: StreamFormat) -> bool:
    """Return whether a Write of this amount would carry the last item (one Write of amount 1)."""
    return (
        own.promised_limit == 0
        and own.state == OPEN
        and amount == 1
        and stream_format.last_item_size != UNIT_LAST_ITEM
    )


def is_unambiguous(head: FrameHeader, own: HalfStream, stream_format: StreamFormat) -> bool:
    """Return whether a side can send this packet only in a use that it has not stopped.

    Such a packet also proves that its sender had read the other side's stop of the previous use.
    """
    if head.kind == WRITE:
        return not is_last_item(own, head.amount, stream_format)
    return head.kind <= STOP_WRITE and head.amount > 0


class ReusedIds:
    """Ambiguous ids and leftover credit of one connection, by stream key.

    A half whose `end_is_ambiguous` is set has sent nothing yet that certainly belongs to this use.
    """

    __slots__ = ("ambiguous_ids", "causality", "forgiven_credit", "previous_credit")

    def __init__(self, causality: Causality) -> None:
        self.causality = causality
        self.ambiguous_ids: set[int] = set()
        self.previous_credit: dict[int, int] = {}  # credit left over from the previous use
        self.forgiven_credit: dict[int, int] = {}  # forgone, but its writer may still have it

    # Validation

    def may_refer_to_previous_use(self, sender: i64, stream: StreamState) -> bool:
        """Return whether an ambiguous packet of `sender` may belong to the previous use."""
        if stream.incarnation == 1:
            return False
        own = stream.half(sender)
        if own.frames > 0:
            return own.end_is_ambiguous
        return not self.causality.had_seen(sender, stream.open_frame_index)

    def excuse_if_ambiguous(
        self, violation_mask: i64, sender: i64, head: FrameHeader, stream: StreamState
    ) -> i64:
        """Drop the violations that vanish if the packet belongs to another use.

        Returns what remains, or CROSSED if nothing does. The side at the vantage point is never
        excused: what it has read is known.
        """
        if stream.incarnation > 1:
            violation_mask &= ~CREDIT_OVERFLOW  # the reader may have counted a late ForgoCredit
        ambiguous = stream.key in self.ambiguous_ids or self.may_refer_to_previous_use(
            sender, stream
        )
        fits = head.kind != FORGO_CREDIT or head.amount <= self.previous_credit.get(head.key, 0)
        if sender != self.causality.vantage and ambiguous and fits:
            violation_mask &= CREDIT_EXCEEDED
        return violation_mask if violation_mask != 0 else CROSSED

    # Credit

    def available_credit(self, own: HalfStream, key: i64) -> int:
        """Return the most credit that this writer can have."""
        credit = own.credit_granted - own.credit_spent
        return (
            credit + self.forgiven_credit.get(key, 0) if len(self.forgiven_credit) > 0 else credit
        )

    def keep_previous_credit(self, stream: StreamState) -> None:
        """Record the credit left over at the end of a use. Called before the next use starts."""
        left = self.available_credit(stream.half(stream.opener), stream.key)
        self.forgiven_credit.pop(stream.key, 0)
        self.previous_credit.pop(stream.key, 0)
        if left > 0:
            self.previous_credit[stream.key] = left

    def forgive_late_forgo(self, key: i64, amount: int) -> None:
        """Handle a ForgoCredit that belongs to this use or, late, to the previous one."""
        left = self.previous_credit.pop(key, 0)
        late = amount if amount < left else left
        self.forgive_credit(key, late)
        if left > late:
            self.previous_credit[key] = left - late

    def forgive_credit(self, key: i64, amount: int) -> None:
        """Record credit that was forgone but that its writer may still have."""
        if amount > 0:
            self.forgiven_credit[key] = self.forgiven_credit.get(key, 0) + amount

    # Saved state

    def save(self) -> list[object]:
        return [
            sorted(self.ambiguous_ids),
            list(self.previous_credit.items()),
            list(self.forgiven_credit.items()),
        ]

    def load(self, saved: list[object]) -> None:
        ambiguous, previous, forgiven = saved
        # Saved state is untyped; `save` writes these lists.
        assert isinstance(ambiguous, list)
        assert isinstance(previous, list)
        assert isinstance(forgiven, list)
        self.ambiguous_ids = set(ambiguous)
        self.previous_credit = dict(previous)
        self.forgiven_credit = dict(forgiven)
