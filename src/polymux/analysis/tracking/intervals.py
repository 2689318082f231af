# mypyc: compiled
"""Sorted time intervals, and how much of them overlaps another interval."""

from librt.vecs import vec
from mypy_extensions import i64


class Intervals:
    """Intervals (start, end) in nanoseconds, sorted by start."""

    def __init__(self, intervals: list[tuple[int, int]]) -> None:
        ordered = sorted(intervals)
        self.count: i64 = len(ordered)
        self.starts: vec[i64] = vec[i64]([i64(0)] * len(ordered))
        self.ends: vec[i64] = vec[i64](
            [i64(0)] * len(ordered)
        )  # the latest end up to and including this interval
        latest: i64 = 0
        for n in range(i64(len(ordered))):
            began, ended = ordered[n]
            self.starts[n] = began
            if n == 0 or ended > latest:
                latest = ended
            self.ends[n] = latest

    def first_ending_after(self, time: i64) -> i64:
        """Index of the first interval that ends after `time`; `count` if none does."""
        low: i64 = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.ends[middle] <= time:
                low = middle + 1
            else:
                high = middle
        return low

    def overlap(self, began: i64, ended: i64) -> i64:
        """Nanoseconds of [began, ended) that the intervals cover."""
        covered: i64 = 0
        reached = began
        n = self.first_ending_after(began)
        while n < self.count and self.starts[n] < ended:
            start = self.starts[n] if self.starts[n] > reached else reached
            stop = self.ends[n] if self.ends[n] < ended else ended
            if stop > start:
                covered += stop - start
                reached = stop
            n += 1
        return covered

    def start_after(self, time: i64) -> i64:
        """Start of the first interval that ends after `time`, but not before `time`."""
        began = self.starts[self.first_ending_after(time)]
        return began if began > time else time

    def end_before(self, time: i64) -> i64:
        """Latest end of the intervals that start before `time`, but not after `time`."""
        low: i64 = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.starts[middle] < time:
                low = middle + 1
            else:
                high = middle
        ended = self.ends[low - 1]
        return ended if ended < time else time

    def last_start(self) -> i64:
        """Start of the last interval; -1 if there is none."""
        return self.starts[self.count - 1] if self.count > 0 else -1

    def last_end(self) -> i64:
        """Latest end of all intervals; -1 if there is none."""
        return self.ends[self.count - 1] if self.count > 0 else -1
