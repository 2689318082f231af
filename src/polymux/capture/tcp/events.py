# mypyc: compiled
"""What passed on the two byte streams of a session: pieces of them, gaps, and how they ended."""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

OCTETS: Final[i64] = 0
GAP: Final[i64] = 1
FINISHED: Final[i64] = 2
ABORTED: Final[i64] = 3


class Events:
    """What passed, in delivered order: columns, `count` rows of them filled.

    `kind` OCTETS: `size` octets lie at `offset` of file number `file`. GAP: `size` octets are
    missing. FINISHED, ABORTED: the side's FIN or RST. `side` is 0 for the dialer.
    """

    def __init__(self, rows: i64) -> None:
        self.rows: i64 = rows
        self.count: i64 = 0
        self.octets: i64 = 0
        self.side: vec[i64] = vec[i64]([0] * rows)
        self.kind: vec[i64] = vec[i64]([0] * rows)
        self.at: vec[i64] = vec[i64]([0] * rows)
        self.size: vec[i64] = vec[i64]([0] * rows)
        self.file: vec[i64] = vec[i64]([0] * rows)
        self.offset: vec[i64] = vec[i64]([0] * rows)

    def put(self, side: i64, kind: i64, at: i64, size: i64, file: i64, offset: i64) -> None:
        row = self.count
        # The columns are full of zeros, and mostly that is what would be written.
        if side != 0:
            self.side[row] = side
        if kind != OCTETS:
            self.kind[row] = kind
        if file != 0:
            self.file[row] = file
        self.at[row] = at
        self.size[row] = size
        self.offset[row] = offset
        self.count = row + 1
        if kind == OCTETS:
            self.octets += size
