# mypyc: compiled
"""Spans of time, in order, and how much of them lies in another span."""

from librt.vecs import vec
from mypy_extensions import i64


class Spans:
    """Spans (began, ended) in nanoseconds, sorted by when they began."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        ordered = sorted(spans)
        self.count: i64 = len(ordered)
        self.began: vec[i64] = vec[i64]([i64(0)] * len(ordered))
        self.ended: vec[i64] = vec[i64]([i64(0)] * len(ordered))  # the latest end so far
        latest: i64 = 0
        for n in range(i64(len(ordered))):
            began, ended = ordered[n]
            self.began[n] = began
            if n == 0 or ended > latest:
                latest = ended
            self.ended[n] = latest

    def first_after(self, instant: i64) -> i64:
        """The first span that ends after `instant`."""
        low: i64 = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.ended[middle] <= instant:
                low = middle + 1
            else:
                high = middle
        return low

    def overlap(self, began: i64, ended: i64) -> i64:
        """Nanoseconds of [began, ended) that the spans cover."""
        covered: i64 = 0
        reached = began
        n = self.first_after(began)
        while n < self.count and self.began[n] < ended:
            start = self.began[n] if self.began[n] > reached else reached
            stop = self.ended[n] if self.ended[n] < ended else ended
            if stop > start:
                covered += stop - start
                reached = stop
            n += 1
        return covered

    def began_after(self, instant: i64) -> i64:
        """When the first span that ends after `instant` began, or `instant` if that was earlier."""
        began = self.began[self.first_after(instant)]
        return began if began > instant else instant

    def ended_before(self, instant: i64) -> i64:
        """When the spans that began before `instant` ended, or `instant` if that is earlier."""
        low: i64 = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.began[middle] < instant:
                low = middle + 1
            else:
                high = middle
        ended = self.ended[low - 1]
        return ended if ended < instant else instant

    def last_began(self) -> i64:
        """When the last span began; -1 if there is none."""
        return self.began[self.count - 1] if self.count > 0 else -1

    def last_ended(self) -> i64:
        return self.ended[self.count - 1] if self.count > 0 else -1
