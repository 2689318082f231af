# mypyc: compiled
"""What outlives a stream when its id is used again.

Nothing acknowledges an END, so requests and cancels for one use of an id may reach the initiator
when it has already begun the next. They then count for that next use, and a watcher who saw them
pass earlier must allow for it.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.causality import Causality
from polymux.core.side import DIALER

MAX_TRACKED_REQUESTS: Final[i64] = (
    64  # requests remembered one by one; more are added to the newest of them
)
UNSET: Final[i64] = -1


class IdHistory:
    """One id of one initiator, through all its uses.

    A request is kept until its initiator has provably read it: as entries of the ordinals of its
    first and last message (among the acceptor's messages) and the amount of all of them.
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
        self.entries_used: i64 = 0  # entries that the current stream's data has been paid from
        self.last_cancel_index: i64 = UNSET  # ordinal of the acceptor's last cancel
        self.cancel_is_ambiguous: bool = False  # that cancel may have hit the current stream
        self.cancelled_since_create: bool = (
            False  # was there a cancel since the current stream was created?
        )
        self.had_stray_data: bool = False  # data came for it while no stream was open
        self.last_stray_data_index: i64 = (
            UNSET  # ordinal of the last data that came after the end of a stream
        )
        self.close_order: i64 = 0  # how many streams had been over when this one was
        self.cancelled_silently: bool = (
            False  # given up in silence: not free until the peer lets go
        )

    def add_request(self, frame_index: i64, amount: int) -> None:
        """The acceptor has asked for more."""
        known = len(self.amounts)
        if known - self.entries_used >= MAX_TRACKED_REQUESTS:
            self.last_request_indexes[known - 1] = frame_index
            self.amounts[known - 1] += amount
        else:
            self.first_request_indexes.append(frame_index)
            self.last_request_indexes.append(frame_index)
            self.amounts.append(amount)

    def start_new_use(self, sender: i64, causality: Causality) -> int:
        """The id is used again: the leave that the new stream may yet get from old requests."""
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
        """Data was sent that needs the next entry, so its first request was read; its amount."""
        if self.entries_used == len(self.amounts):
            return 0
        ordinal: i64 = self.first_request_indexes[self.entries_used]
        amount = self.amounts[self.entries_used]
        causality.record_seen(sender, ordinal)
        if (
            ordinal > self.last_cancel_index
        ):  # the cancel was read before, and yet the stream goes on
            self.cancel_is_ambiguous = False
        self.entries_used += 1
        if (
            self.entries_used > MAX_TRACKED_REQUESTS
        ):  # all but the last of these have been read to their ends
            self.drop_oldest(self.entries_used - 1)
            self.entries_used = 1
        return amount

    def drop_oldest(self, count: i64) -> None:
        """Drop the oldest entries."""
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
    past = IdHistory()
    firsts, lasts, amounts = saved[0], saved[1], saved[2]
    assert isinstance(firsts, list)
    assert isinstance(lasts, list)
    assert isinstance(amounts, list)
    past.first_request_indexes, past.last_request_indexes, past.amounts = (
        list(firsts),
        list(lasts),
        list(amounts),
    )
    numbers = [entry if isinstance(entry, int) else 0 for entry in saved]
    past.entries_used = numbers[3]
    past.last_cancel_index = numbers[4]
    past.cancel_is_ambiguous = bool(saved[5])
    past.cancelled_since_create = bool(saved[6])
    past.had_stray_data = bool(saved[7])
    past.close_order = numbers[8]
    past.cancelled_silently = bool(saved[9])
    past.last_stray_data_index = numbers[10]
    return past


def has_read(side: i64, frame_index: i64, causality: Causality) -> bool:
    """Will whatever this side sends from now on be sent after reading the other's `ordinal`?"""
    read = causality.read0 if side == DIALER else causality.read1
    return frame_index < read or causality.had_seen(side, frame_index)
