"""Rows that are collected in any order and written sorted, in bounded memory.

A row takes 24 bytes of memory for its place in the order; its text is in an unnamed temporary file
once there are more than a few megabytes.
"""

from __future__ import annotations

import heapq
import itertools
import tempfile
from array import array
from collections.abc import Iterable, Iterator

MAX_BYTES_IN_MEMORY = 4 << 20
MAX_JOINED = 64  # rows that are read at a time
MAX_SORTED_AT_ONCE = 50_000  # rows; sorting more as Python objects takes too much memory

Key = tuple[int, int]


class SortedSpool:
    """Collects rows with a key of two integers, until it is closed.

    Args:
        max_rows: Only the first rows in the order are kept, at least this many; 0 for all.
    """

    def __init__(self, max_rows: int = 0) -> None:
        self._max_rows = max_rows
        self._start_empty()

    def _start_empty(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MAX_BYTES_IN_MEMORY, prefix="polymux-")  # noqa: SIM115  # see close
        self._keys = (array("q"), array("q"))
        self._starts = array("q", [0])  # of each row, and the end of the last

    def __len__(self) -> int:
        return len(self._starts) - 1

    def add(self, key: Key, row: bytes) -> None:
        """Add a row. Rows with the same key keep the order in which they were added."""
        first, second = self._keys
        first.append(key[0])
        second.append(key[1])
        self._file.write(row)
        self._starts.append(self._starts[-1] + len(row))
        if self._max_rows and len(self) >= 2 * self._max_rows + 64:
            self._drop_last()

    def rows(self) -> Iterator[bytes]:
        """The rows in ascending order of their keys; none may be added afterwards."""
        for number in self._kept():
            yield self._read(number, number + 1)

    def joined_rows(self) -> Iterator[bytes]:
        """The same rows, those that were added one after another joined, up to `MAX_JOINED`."""
        first = end = 0
        for number in self._kept():
            if number != end or end - first == MAX_JOINED:
                yield self._read(first, end)
                first = number
            end = number + 1
        yield self._read(first, end)

    def _read(self, first: int, end: int) -> bytes:
        """The rows from number `first` to before `end`."""
        self._file.seek(self._starts[first])
        return self._file.read(self._starts[end] - self._starts[first])

    def _kept(self) -> Iterator[int]:
        """The numbers of the rows that are kept, in order."""
        return itertools.islice(self._order(), self._max_rows or len(self))

    def _order(self) -> Iterable[int]:
        """The numbers of all rows, in order: sorted in parts, which are merged."""
        first, second = self._keys

        def key(number: int) -> Key:
            return first[number], second[number]

        count, step = len(self), MAX_SORTED_AT_ONCE
        parts = [
            array("q", sorted(range(start, min(count, start + step)), key=key))
            for start in range(0, count, step)
        ]
        return parts[0] if len(parts) == 1 else heapq.merge(*parts, key=key)

    def _drop_last(self) -> None:
        """Keep only the first `max_rows` rows."""
        kept = sorted(self._kept())
        file, keys, starts = self._file, self._keys, self._starts
        self._start_empty()
        with file:
            for n in kept:
                file.seek(starts[n])
                self.add((keys[0][n], keys[1][n]), file.read(starts[n + 1] - starts[n]))

    def close(self) -> None:
        """Free the temporary file."""
        self._file.close()
