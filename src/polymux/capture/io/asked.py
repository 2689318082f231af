# mypyc: compiled
"""Batches of payload that flows walked side by side want next, and which of them lie together."""

from collections.abc import Callable, Sequence

from polymux.capture.io.read_coalescing import SequentialRun
from polymux.capture.tcp.events import TcpEvents

ReadAt = Callable[[int, int], bytes]


class PayloadRequest:
    """The payload of a batch that somebody will want next."""

    def __init__(self, events: TcpEvents, files: Sequence[str], readers: Sequence[ReadAt]) -> None:
        self.events: TcpEvents = events
        self.readers: Sequence[ReadAt] = readers
        self.runs: list[tuple[str, SequentialRun]] = []
        stop = 0
        while stop < events.count:
            stretch = SequentialRun(events, stop)
            stop = stretch.stop
            if stretch.pieces > 0:
                self.runs.append((files[stretch.file], stretch))

    def is_near(self, other: "PayloadRequest") -> bool:
        """Whether it begins where `other` lies, rather than behind it."""
        if len(self.runs) == 0 or len(other.runs) == 0:
            return False
        path, mine = self.runs[0]
        there, theirs = other.runs[0]
        middle = (theirs.begin + theirs.end) >> 1
        return mine.begin <= middle and mine.end > theirs.begin and path == there

    def nearby(self, others: "list[PayloadRequest]") -> "list[PayloadRequest]":
        """Which of these lie by this one."""
        return [other for other in others if other.is_near(self)]

    def is_read(self) -> bool:
        return all(stretch.is_read() for _, stretch in self.runs)

    def take(self) -> bytes:
        """Its bytes, which were read."""
        if len(self.runs) == 1:
            return self.runs[0][1].take()
        return b"".join([stretch.take() for _, stretch in self.runs])
