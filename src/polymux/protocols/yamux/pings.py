# mypyc: compiled
"""Pings of a yamux session: which are unanswered, and the round trips of those that were answered.

A ping carries a value, and its answer repeats it. One value may be sent again before it was
answered, so unanswered pings are counted by pinger and value; each is a pending reply of its own.
An observer bounds their number: a side that never answers must not fill the memory.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.rules import PendingReply
from polymux.protocols.yamux.rules import PING_UNANSWERED, PONG

REPEAT_STEP: Final = 256  # between the reply kinds of pings with one value: above any kind

Replies = dict[tuple[int, int, int], PendingReply]


def reply_key(value: int) -> int:
    """The key of a pending ping answer: negative, so that it is no key of a stream."""
    return -1 - value


class Pings:
    """The unanswered pings of both sides, as pending replies of the other side.

    Args:
        replies: the protocol's pending replies, which this class adds to and removes from.
        max_unanswered: pings that are remembered.
    """

    def __init__(self, replies: Replies, max_unanswered: i64) -> None:
        self.replies = replies
        self.max_unanswered: i64 = max_unanswered
        self.unanswered: dict[tuple[int, int], int] = {}  # count, by pinger and value
        self.total: i64 = 0  # unanswered pings of both sides
        self.forgotten: bool = False  # some were not remembered: any answer may be theirs
        # Round trips in nanoseconds, as seen here, of pings of the dialer and of the acceptor:
        self.shortest: list[int] = [-1, -1]
        self.latest: list[int] = [-1, -1]

    def is_expected(self, pinger: i64, value: int) -> bool:
        """Whether an answer with this value may answer a ping of `pinger`."""
        return self.forgotten or (pinger, value) in self.unanswered

    def sent(self, pinger: i64, value: int, frame_index: i64, timestamp: i64) -> None:
        """`pinger` has sent a ping."""
        if self.total >= self.max_unanswered:
            self.forgotten = True
            return
        count = self.unanswered.get((pinger, value), 0)
        self.unanswered[(pinger, value)] = count + 1
        self.total += 1
        answerer = 1 - pinger
        self.replies[(answerer, PONG + REPEAT_STEP * count, reply_key(value))] = PendingReply(
            answerer, PONG, reply_key(value), PING_UNANSWERED, frame_index, timestamp
        )

    def answered(self, pinger: i64, value: int, timestamp: i64) -> i64:
        """An answer to `pinger` was sent.

        Returns:
            The index of the oldest ping that it can answer, or -1.
        """
        count = self.unanswered.get((pinger, value), 0)
        if count == 0:
            return -1
        self.total -= 1
        if count == 1:
            del self.unanswered[(pinger, value)]
        else:
            self.unanswered[(pinger, value)] = count - 1
        oldest = self.replies.get((1 - pinger, PONG, reply_key(value)))
        newest = self.replies.pop(
            (1 - pinger, PONG + REPEAT_STEP * (count - 1), reply_key(value)), None
        )
        if oldest is None:  # an endpoint has stopped waiting for it
            return -1
        if newest is not None and not newest.queued:
            oldest.queued = False  # the answer that was queued is this one
        if count == 1:
            taken = timestamp - oldest.requested_at
            self.latest[pinger] = taken
            if self.shortest[pinger] < 0 or taken < self.shortest[pinger]:
                self.shortest[pinger] = taken
        return oldest.request_index

    def round_trip_ns(self) -> i64:
        """The shortest round trip between the two sides; -1: none was measured.

        A ping passes an observer between the sides twice, so that one side's pings measure only the
        part of the way behind the observer: where both sides ping, the sum of both parts is taken.
        """
        first, second = self.shortest[0], self.shortest[1]
        if first < 0:
            return second
        return first if second < 0 else first + second

    def save(self) -> list[object]:
        """The state as plain data, for `load`."""
        entries = []
        for (pinger, value), count in self.unanswered.items():
            for number in range(count):
                reply = self.replies.get(
                    (1 - pinger, PONG + REPEAT_STEP * number, reply_key(value))
                )
                if reply is not None:
                    entries.append([pinger, value, reply.request_index, reply.requested_at])
        return [entries, self.forgotten, list(self.shortest), list(self.latest)]

    def load(self, saved: list[object]) -> None:
        """Restore what `save` returned."""
        entries, shortest, latest = saved[0], saved[2], saved[3]
        # Saved state is untyped; `save` writes these lists.
        assert isinstance(entries, list)
        assert isinstance(shortest, list)
        assert isinstance(latest, list)
        self.forgotten = bool(saved[1])
        self.shortest = [shortest[0], shortest[1]]
        self.latest = [latest[0], latest[1]]
        for pinger, value, frame_index, timestamp in entries:
            self.sent(pinger, value, frame_index, timestamp)
