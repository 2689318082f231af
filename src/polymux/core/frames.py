# mypyc: compiled
"""A frame's decoded header, a frame to be sent, and rows of the frames table in columns."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr, u8

FIRST_BATCH_ROWS: Final[i64] = 64  # rows of the first batch: most sessions are short
MAX_BATCH_ROWS: Final[i64] = 4096  # rows of the largest batch

# The effect of a frame kind: all that events, tables and stall analysis need to know of it.
OPENS: Final[i64] = 1
ACCEPTS: Final[i64] = 2
CONTENT: Final[i64] = 3
GRANTS: Final[i64] = 4
ENDS: Final[i64] = 5
ABORTS: Final[i64] = 6
CONTROL: Final[i64] = 7

# The verdict column of the frames table.
CLEAN_ROW: Final[i64] = 0
CROSSED_ROW: Final[i64] = 1
VIOLATION_ROW: Final[i64] = 2


class FrameKind:
    """A kind of frame: the protocol's own name for it, and its effect (OPENS to CONTROL)."""

    def __init__(self, name: str, effect: i64) -> None:
        self.name = name
        self.effect: i64 = effect

    def __repr__(self) -> str:
        return f"FrameKind({self.name})"


@mypyc_attr(acyclic=True)
class FrameHeader:
    """A decoded frame header. A connection has one, which is refilled for every frame."""

    __slots__ = (
        "amount",
        "format_violations",
        "key",
        "kind",
        "stream_id",
        "opener",
        "parts_left",
        "payload_size",
        "trailer_size",
        "text_start",
        "text_size",
        "credit_cost",
    )

    def __init__(self) -> None:
        self.kind: i64 = 0
        self.key: i64 = 0  # of the stream: id and opener combined, the same for both sides
        self.stream_id: i64 = 0
        self.opener: i64 = 0
        self.payload_size: i64 = 0  # bytes of the payload, or of its first part
        self.trailer_size: i64 = 0  # bytes of the frame after the payload
        self.credit_cost: i64 = 0  # credit that the frame uses, in the protocol's unit
        self.parts_left: i64 = 0  # parts after the first; each begins with its size
        self.amount: int = -1  # the frame's number (window, credit, count); -1: none
        self.text_start: i64 = 0  # position of a name or error text in the data
        self.text_size: i64 = -1  # bytes of it; -1: none
        self.format_violations: i64 = 0  # rules broken by the encoding of the frame alone

    def clear(self) -> None:
        """Reset all fields but the kind and the stream's."""
        self.payload_size = 0
        self.trailer_size = 0
        self.credit_cost = 0
        self.parts_left = 0
        self.amount = -1
        self.text_size = -1
        self.format_violations = 0


@mypyc_attr(acyclic=True)
class Frame:
    """A frame to be sent.

    Args:
        kind: the protocol's number of the frame kind.
        key: of the stream (see `FrameHeader.key`).
        payload: the content, the name in an opening or the text of an abort, depending on the kind.
        amount: the frame's number (window, credit, bytes processed); -1: none.
        incarnation: the use of the stream id that it is meant for (0: not opened yet); it is
            dropped if the id was used again before it is sent. -1: any.
    """

    __slots__ = ("amount", "key", "kind", "payload", "incarnation")

    def __init__(
        self, kind: i64, key: i64, payload: bytes = b"", amount: int = -1, incarnation: i64 = -1
    ) -> None:
        self.kind: i64 = kind
        self.key: i64 = key
        self.payload = payload
        self.amount: int = amount
        self.incarnation: i64 = incarnation

    def __repr__(self) -> str:
        return f"Frame({self.kind}, key={self.key}, {len(self.payload)} bytes, {self.amount})"


class FrameRows:
    """A batch of rows of the frames table, in columns; the first `used` rows are filled."""

    __slots__ = (
        "amount",
        "time",
        "incarnation",
        "kind",
        "stream_id",
        "byte_offset",
        "opener",
        "frame_index",
        "payload_bytes",
        "capacity",
        "sender",
        "size",
        "used",
        "verdict",
    )

    def __init__(self, capacity: i64) -> None:
        self.used: i64 = 0
        self.capacity: i64 = capacity
        self.sender: vec[u8] = vec[u8]([u8(0)] * capacity)
        self.frame_index: vec[i64] = vec[i64]([i64(0)] * capacity)
        self.time: vec[i64] = vec[i64]([i64(0)] * capacity)
        self.byte_offset: vec[i64] = vec[i64]([i64(0)] * capacity)
        self.size: vec[i64] = vec[i64]([i64(0)] * capacity)
        self.kind: vec[u8] = vec[u8]([u8(0)] * capacity)
        self.opener: vec[u8] = vec[u8]([u8(0)] * capacity)  # 255: no stream
        self.stream_id: vec[i64] = vec[i64]([i64(0)] * capacity)
        self.incarnation: vec[i64] = vec[i64]([i64(0)] * capacity)
        self.amount: vec[i64] = vec[i64]([i64(0)] * capacity)  # -1: none
        self.payload_bytes: vec[i64] = vec[i64]([i64(0)] * capacity)
        self.verdict: vec[u8] = vec[u8]([u8(0)] * capacity)


class FrameRowBatches:
    """The rows a connection has written: full batches, and the batch being filled."""

    def __init__(self) -> None:
        self.full_batches: list[FrameRows] = []
        self.batch_capacity: i64 = FIRST_BATCH_ROWS
        self.batch: FrameRows = FrameRows(FIRST_BATCH_ROWS)

    def start_new_batch(self) -> None:
        """Put the full batch aside and start another, up to MAX_BATCH_ROWS long."""
        self.full_batches.append(self.batch)
        if self.batch_capacity < MAX_BATCH_ROWS:
            self.batch_capacity *= 4
        self.batch = FrameRows(self.batch_capacity)

    def take(self) -> list[FrameRows]:
        """Remove and return the batches written so far; the caller owns them."""
        batches = self.full_batches
        if self.batch.used > 0:
            batches.append(self.batch)
            self.batch = FrameRows(self.batch_capacity)
        self.full_batches = []
        return batches
