# mypyc: compiled
"""What a live endpoint puts up with: token buckets for frames that cost a peer next to nothing.

A chunk is weighed once it was decoded. Within a chunk the inbox stops the decoding where a flood
alone would fill the memory.
"""

from mypy_extensions import i64

from polymux.core.direction import Direction
from polymux.core.errors import LimitExceeded
from polymux.core.frames import Head
from polymux.core.limits import Bucket, Counters, Limits
from polymux.core.proceedings import Proceedings
from polymux.core.receive_queue import Inbox


class Guard:
    """The buckets of one session. Every refusal names its limit and is counted under that name."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self.limits = limits
        self.counters = counters
        self.resets = Bucket(limits.open_reset_burst, limits.open_reset_rate)
        self.provoked = Bucket(limits.open_reset_burst, limits.open_reset_rate)
        self.unknown = Bucket(limits.unknown_burst, limits.unknown_rate)
        self.idle = Bucket(limits.idle_burst, limits.idle_rate)

    def watch(self, inbox: Inbox, direction: Direction, head: Head) -> None:
        """Tell the inbox when to stop in the middle of a chunk: far past what a bucket allows."""
        inbox.most_openings = self.limits.streams + self.limits.open_reset_burst
        inbox.most_idle = 2 * self.limits.idle_burst
        inbox.stopped = direction
        inbox.head = head

    def weigh(self, inbox: Inbox, seen: Proceedings, now: i64) -> None:
        """After a chunk. LimitExceeded when a bucket is empty: the session is to end."""
        resets, openings = inbox.resets, inbox.openings
        # Frames that bring something pay for as many that bring nothing.
        idle = inbox.idle + seen.late - inbox.parts
        strays = seen.strays
        flooded = openings > inbox.most_openings
        inbox.resets = 0
        inbox.openings = 0
        inbox.idle = 0
        inbox.parts = 0
        seen.late = 0
        seen.strays = 0
        if flooded:  # whatever the bucket holds: the rest of the chunk was not decoded
            self.refuse("open_reset_burst", "the peer opens streams too fast")
        if resets > 0:
            self.charge(self.resets, "open_reset_burst", resets, now,
                        "the peer opens and gives up streams too fast")  # fmt: skip
        if strays > 0:
            self.charge(self.unknown, "unknown_burst", strays, now,
                        "too many frames for streams that do not exist")  # fmt: skip
        if idle > 0:
            self.charge(self.idle, "idle_burst", idle, now,
                        "too many frames that carry nothing")  # fmt: skip

    def provoke(self, now: i64) -> None:
        """The peer has made us give up or turn away one of its streams."""
        self.charge(self.provoked, "open_reset_burst", 1, now,
                    "the peer makes us give up streams too fast")  # fmt: skip

    def answers(self, waiting: i64) -> None:
        """Answers are left from before more octets are read: does the peer take them?"""
        if waiting >= self.limits.control_queue:
            self.refuse("control_queue", "the peer does not read our answers")

    def charge(self, bucket: Bucket, limit: str, amount: i64, now: i64, what: str) -> None:
        if not bucket.take(float(now) / 1e9, float(amount)):
            self.refuse(limit, what)

    def refuse(self, limit: str, what: str) -> None:
        self.counters.count(limit)
        raise LimitExceeded(f"{what}: {self.limits.describe(limit)}")
