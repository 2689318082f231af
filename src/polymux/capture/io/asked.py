# mypyc: compiled
"""Batches of payload that flows walked side by side want next, and which of them lie together."""

from collections.abc import Callable, Sequence

from polymux.capture.io.read_coalescing import Stretch
from polymux.capture.tcp.events import Events

Reader = Callable[[int, int], bytes]


class Asked:
    """The payload of a batch that somebody will want next."""

    def __init__(self, events: Events, files: Sequence[str], readers: Sequence[Reader]) -> None:
        self.events: Events = events
        self.readers: Sequence[Reader] = readers
        self.stretches: list[tuple[str, Stretch]] = []
        stop = 0
        while stop < events.count:
            stretch = Stretch(events, stop)
            stop = stretch.stop
            if stretch.pieces > 0:
                self.stretches.append((files[stretch.file], stretch))

    def lies_by(self, other: "Asked") -> bool:
        """Whether it begins where `other` lies, rather than behind it."""
        if len(self.stretches) == 0 or len(other.stretches) == 0:
            return False
        path, mine = self.stretches[0]
        there, theirs = other.stretches[0]
        middle = (theirs.begin + theirs.end) >> 1
        return mine.begin <= middle and mine.end > theirs.begin and path == there

    def those_by_it(self, others: "list[Asked]") -> "list[Asked]":
        """Which of these lie by this one."""
        return [other for other in others if other.lies_by(self)]

    def is_read(self) -> bool:
        return all(stretch.is_read() for _, stretch in self.stretches)

    def take(self) -> bytes:
        """Its octets, which were read."""
        if len(self.stretches) == 1:
            return self.stretches[0][1].take()
        return b"".join([stretch.take() for _, stretch in self.stretches])
