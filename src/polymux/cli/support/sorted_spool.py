"""Rows that are collected in any order and written sorted, in bounded memory.

A row takes 24 bytes of memory for its place in the order; its text is in an unnamed temporary file
once there are more than a few megabytes.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator

MAX_BYTES_IN_MEMORY = 4 << 20
MAX_SORTED_IN_PYTHON = 50_000  # rows; sorting more as Python objects takes too much memory

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
        for column, part in zip(self._keys, key, strict=True):
            column.append(part)
        self._file.write(row)
        self._starts.append(self._starts[-1] + len(row))
        if self._max_rows and len(self) >= 2 * self._max_rows + 64:
            self._drop_last()

    def rows(self) -> Iterator[bytes]:
        """The rows in ascending order of their keys; none may be added afterwards."""
        count = self._max_rows or len(self)
        for number, _ in zip(self._order(), range(count), strict=False):
            self._file.seek(self._starts[number])
            yield self._file.read(self._starts[number + 1] - self._starts[number])

    def _order(self) -> Iterable[int]:
        count, (first, second) = len(self), self._keys
        if count <= MAX_SORTED_IN_PYTHON:
            return sorted(range(count), key=lambda n: (first[n], second[n]))
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = [
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(column)])
            for column in self._keys
        ]
        table = pa.table(columns, names=["first", "second"])
        keys = [("first", "ascending"), ("second", "ascending")]
        indexes = pc.sort_indices(table, sort_keys=keys)  # stable, as Python's sort is
        return (index.as_py() for index in indexes)

    def _drop_last(self) -> None:
        """Keep only the first `max_rows` rows."""
        kept = sorted(n for n, _ in zip(self._order(), range(self._max_rows), strict=False))
        file, keys, starts = self._file, self._keys, self._starts
        self._start_empty()
        with file:
            for n in kept:
                file.seek(starts[n])
                self.add((keys[0][n], keys[1][n]), file.read(starts[n + 1] - starts[n]))

    def close(self) -> None:
        """Free the temporary file."""
        self._file.close()
