# mypyc: compiled
"""Repeated use of omnistreams ids: the state that outlives a stream.

The problem. Nothing acknowledges an END, so requests and cancels for one use of an id may reach the
initiator when it has already started the next use. They then count for that next use. An observer
saw them earlier, while the previous use was open, and must not report what they permit.

The idea. `IdHistory` keeps every request until the initiator has provably read it, and the last
cancel with the same reservation. A new use starts with the credit of all requests that may still be
unread (`start_new_use`), and data that needs the credit of a request proves that the request was
read (`use_next_request`).

Invariant: entries are in the order of their frame indexes; the first `entries_used` of them have
been used by the current stream.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.causality import Causality
from polymux.core.side import DIALER

MAX_TRACKED_REQUESTS: Final[i64] = 64  # entries per id; further requests join the newest
UNSET: Final[i64] = -1


class IdHistory:
    """One id of one initiator, across all its uses.

    An entry stands for one or more requests: the frame indexes of the first and the last of them,
    among the acceptor's frames, and the total amount.
    """

    __slots__ = (
        "amounts",
        "cancelled_since_create",
        "last_cancel_index",
        "cancel_is_ambiguous",
        "first_request_indexes",
        "close_order",
        "last_request_indexes",
        "entries_used",
        "last_stray_data_index",
        "had_stray_data",
        "cancelled_silently",
    )

    def __init__(self) -> None:
        self.first_request_indexes: list[int] = []
        self.last_request_indexes: list[int] = []
        self.amounts: list[int] = []
        self.entries_used: i64 = 0  # entries whose credit the current stream has used
        self.last_cancel_index: i64 = UNSET  # of the acceptor
        self.cancel_is_ambiguous: bool = False  # it may have ended the current stream
        self.cancelled_since_create: bool = False  # since CREATE of the current stream
        self.had_stray_data: bool = False  # data was sent while no stream was open
        self.last_stray_data_index: i64 = UNSET  # of the last such data
        self.close_order: i64 = 0  # position of its last stream in the order of closing
        # Aborted by its writer without a message (legacy): in use until the peer cancels.
        self.cancelled_silently: bool = False

    def add_request(self, frame_index: i64, amount: int) -> None:
        """Record a request of the acceptor for `amount` messages."""
        count = len(self.amounts)
        if count - self.entries_used >= MAX_TRACKED_REQUESTS:
            self.last_request_indexes[count - 1] = frame_index
            self.amounts[count - 1] += amount
        else:
            self.first_request_indexes.append(frame_index)
            self.last_request_indexes.append(frame_index)
            self.amounts.append(amount)

    def start_new_use(self, sender: i64, causality: Causality) -> int:
        """Start a new use. Return the credit that it may still get from earlier requests."""
        first: i64 = 0
        while first < len(self.last_request_indexes) and causality.had_seen(
            sender, self.last_request_indexes[first]
        ):
            first += 1
        if first > 0:
            self.drop_oldest(first)
        self.entries_used = 0
        self.cancel_is_ambiguous = self.last_cancel_index != UNSET and not causality.had_seen(
            sender, self.last_cancel_index
        )
        self.cancelled_since_create = False
        self.cancelled_silently = False
        total = 0
        for amount in self.amounts:
            total += amount
        return total

    def use_next_request(self, sender: i64, causality: Causality) -> int:
        """Use the next entry, whose first request has therefore been read.

        Returns its amount, or 0 if there is none.
        """
        if self.entries_used == len(self.amounts):
            return 0
        frame_index: i64 = self.first_request_indexes[self.entries_used]
        amount = self.amounts[self.entries_used]
        causality.record_seen(sender, frame_index)
        if frame_index > self.last_cancel_index:
            self.cancel_is_ambiguous = False  # it was read earlier, and the stream continued
        self.entries_used += 1
        if self.entries_used > MAX_TRACKED_REQUESTS:  # all but the last are read completely
            self.drop_oldest(self.entries_used - 1)
            self.entries_used = 1
        return amount

    def drop_oldest(self, count: i64) -> None:
        """Drop the oldest `count` entries."""
        self.first_request_indexes = self.first_request_indexes[count:]
        self.last_request_indexes = self.last_request_indexes[count:]
        self.amounts = self.amounts[count:]

    def save(self) -> list[object]:
        return [
            self.first_request_indexes,
            self.last_request_indexes,
            self.amounts,
            int(self.entries_used),
            int(self.last_cancel_index),
            self.cancel_is_ambiguous,
            self.cancelled_since_create,
            self.had_stray_data,
            int(self.close_order),
            self.cancelled_silently,
            int(self.last_stray_data_index),
        ]


def load_id_history(saved: list[object]) -> IdHistory:
    """Restore what `IdHistory.save` returned."""
    history = IdHistory()
    firsts, lasts, amounts = saved[0], saved[1], saved[2]
    # Saved state is untyped; `save` writes these lists.
    assert isinstance(firsts, list)
    assert isinstance(lasts, list)
    assert isinstance(amounts, list)
    history.first_request_indexes, history.last_request_indexes, history.amounts = (
        list(firsts),
        list(lasts),
        list(amounts),
    )
    numbers = [entry if isinstance(entry, int) else 0 for entry in saved]
    history.entries_used = numbers[3]
    history.last_cancel_index = numbers[4]
    history.cancel_is_ambiguous = bool(saved[5])
    history.cancelled_since_create = bool(saved[6])
    history.had_stray_data = bool(saved[7])
    history.close_order = numbers[8]
    history.cancelled_silently = bool(saved[9])
    history.last_stray_data_index = numbers[10]
    return history


def has_read(side: i64, frame_index: i64, causality: Causality) -> bool:
    """Return whether this side has provably read frame `frame_index` of the other side."""
    read = causality.read0 if side == DIALER else causality.read1
    return frame_index < read or causality.had_seen(side, frame_index)
