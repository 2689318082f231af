# mypyc: compiled
"""Events of the two byte streams of a session: payload, gaps and ends."""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

PAYLOAD: Final[i64] = 0
GAP: Final[i64] = 1
FINISHED: Final[i64] = 2
ABORTED: Final[i64] = 3


class TcpEvents:
    """Events in the order of delivery: columns of `capacity` rows, the first `count` filled.

    `kind` PAYLOAD: `size` bytes are at `offset` of file number `file`. GAP: `size` bytes are
    missing. FINISHED, ABORTED: the FIN or RST of the side. `side` is 0 for the dialer,
    `timestamp` nanoseconds since 1970.
    """

    def __init__(self, capacity: i64) -> None:
        self.capacity: i64 = capacity
        self.count: i64 = 0
        self.payload_bytes: i64 = 0
        self.side: vec[i64] = vec[i64]([0] * capacity)
        self.kind: vec[i64] = vec[i64]([0] * capacity)
        self.timestamp: vec[i64] = vec[i64]([0] * capacity)
        self.size: vec[i64] = vec[i64]([0] * capacity)
        self.file: vec[i64] = vec[i64]([0] * capacity)
        self.offset: vec[i64] = vec[i64]([0] * capacity)

    def add(self, side: i64, kind: i64, timestamp: i64, size: i64, file: i64, offset: i64) -> None:
        row = self.count
        # The columns are initialised with zeros, which is what most rows need.
        if side != 0:
            self.side[row] = side
        if kind != PAYLOAD:
            self.kind[row] = kind
        if file != 0:
            self.file[row] = file
        self.timestamp[row] = timestamp
        self.size[row] = size
        self.offset[row] = offset
        self.count = row + 1
        if kind == PAYLOAD:
            self.payload_bytes += size
