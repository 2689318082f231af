# mypyc: compiled
"""What outlives a stream when its id is used again.

Nothing acknowledges an END, so requests and cancels for one use of an id may reach the initiator
when it has already begun the next. They then count for that next use, and a watcher who saw them
pass earlier must allow for it.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.side import DIALER, Sight

KEPT: Final[i64] = 64  # requests remembered one by one; more are added to the newest of them
NONE: Final[i64] = -1


class Past:
    """One id of one initiator, through all its uses.

    A request is kept until its initiator has provably read it: as entries of the ordinals of its
    first and last message (among the acceptor's messages) and the amount of all of them.
    """

    __slots__ = (
        "amounts", "answered", "cancelled", "doubtful", "firsts", "freed", "lasts", "reached",
        "stray", "strayed", "withdrawn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.amounts: list[int] = []
        self.reached: i64 = 0  # entries that the current stream's data has been paid from
        self.cancelled: i64 = NONE  # ordinal of the acceptor's last cancel
        self.doubtful: bool = False  # that cancel may have hit the current stream
        self.answered: bool = False  # was there a cancel since the current stream was created?
        self.strayed: bool = False  # data came for it while no stream was open
        self.stray: i64 = NONE  # ordinal of the last data that came after the end of a stream
        self.freed: i64 = 0  # how many streams had been over when this one was
        self.withdrawn: bool = False  # given up in silence: not free until the peer lets go

    def request(self, ordinal: i64, amount: int) -> None:
        """The acceptor has asked for more."""
        known = len(self.amounts)
        if known - self.reached >= KEPT:
            self.lasts[known - 1] = ordinal
            self.amounts[known - 1] += amount
        else:
            self.firsts.append(ordinal)
            self.lasts.append(ordinal)
            self.amounts.append(amount)

    def renew(self, sender: i64, sight: Sight) -> int:
        """The id is used again: the leave that the new stream may yet get from old requests."""
        first: i64 = 0
        while first < len(self.lasts) and sight.knows(sender, self.lasts[first]):
            first += 1
        if first > 0:
            self.forget(first)
        self.reached = 0
        self.doubtful = self.cancelled != NONE and not sight.knows(sender, self.cancelled)
        self.answered = False
        self.withdrawn = False
        total = 0
        for amount in self.amounts:
            total += amount
        return total

    def pay(self, sender: i64, sight: Sight) -> int:
        """Data was sent that needs the next entry, so its first request was read; its amount."""
        if self.reached == len(self.amounts):
            return 0
        ordinal: i64 = self.firsts[self.reached]
        amount = self.amounts[self.reached]
        sight.proves(sender, ordinal)
        if ordinal > self.cancelled:  # the cancel was read before, and yet the stream goes on
            self.doubtful = False
        self.reached += 1
        if self.reached > KEPT:  # all but the last of these have been read to their ends
            self.forget(self.reached - 1)
            self.reached = 1
        return amount

    def forget(self, count: i64) -> None:
        """Drop the oldest entries."""
        self.firsts = self.firsts[count:]
        self.lasts = self.lasts[count:]
        self.amounts = self.amounts[count:]

    def save(self) -> list[object]:
        return [
            self.firsts, self.lasts, self.amounts, int(self.reached), int(self.cancelled),
            self.doubtful, self.answered, self.strayed, int(self.freed), self.withdrawn,
            int(self.stray),
        ]  # fmt: skip


def load_past(saved: list[object]) -> Past:
    past = Past()
    firsts, lasts, amounts = saved[0], saved[1], saved[2]
    assert isinstance(firsts, list)
    assert isinstance(lasts, list)
    assert isinstance(amounts, list)
    past.firsts, past.lasts, past.amounts = list(firsts), list(lasts), list(amounts)
    numbers = [entry if isinstance(entry, int) else 0 for entry in saved]
    past.reached = numbers[3]
    past.cancelled = numbers[4]
    past.doubtful = bool(saved[5])
    past.answered = bool(saved[6])
    past.strayed = bool(saved[7])
    past.freed = numbers[8]
    past.withdrawn = bool(saved[9])
    past.stray = numbers[10]
    return past


def has_read(side: i64, ordinal: i64, sight: Sight) -> bool:
    """Will whatever this side sends from now on be sent after reading the other's `ordinal`?"""
    read = sight.read0 if side == DIALER else sight.read1
    return ordinal < read or sight.knows(side, ordinal)
