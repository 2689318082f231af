# mypyc: compiled
"""One frame's header, one frame as a user writes it, and many frames as columns."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr, u8

FIRST_BATCH_ROWS: Final[i64] = 64  # rows of a first batch: most sessions are short
MAX_BATCH_ROWS: Final[i64] = 4096  # rows of a batch at most; it is handed on whole and never reused

# What a kind of frame does. Events, tables and stall analysis read only this.
OPENS: Final[i64] = 1
ACCEPTS: Final[i64] = 2
CONTENT: Final[i64] = 3
GRANTS: Final[i64] = 4
ENDS: Final[i64] = 5
ABORTS: Final[i64] = 6
CONTROL: Final[i64] = 7

CLEAN_ROW: Final[i64] = 0
CROSSED_ROW: Final[i64] = 1
VIOLATION_ROW: Final[i64] = 2


class FrameKind:
    """A kind of frame: the protocol's own name for it, and its effect."""

    def __init__(self, name: str, effect: i64) -> None:
        self.name = name
        self.effect: i64 = effect

    def __repr__(self) -> str:
        return f"FrameKind({self.name})"


@mypyc_attr(acyclic=True)
class FrameHeader:
    """One frame's header. One object a conversation, refilled for every frame, never kept."""

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
        self.key: i64 = 0  # absolute: number and opener, the same from either side
        self.stream_id: i64 = 0
        self.opener: i64 = 0
        self.payload_size: i64 = 0  # bytes of payload
        self.trailer_size: i64 = 0  # bytes after the payload that still belong to the frame
        self.credit_cost: i64 = 0  # what the frame costs on the ledger
        self.parts_left: i64 = 0  # items still to be sized one by one after the first part
        self.amount: int = -1  # the number in the frame that moves a ledger; -1: none
        self.text_start: i64 = 0  # where a name or an error text lies, and its bytes; -1: none
        self.text_size: i64 = -1
        self.format_violations: i64 = 0  # rules broken by the shape of the frame alone

    def clear(self) -> None:
        self.payload_size = 0
        self.trailer_size = 0
        self.credit_cost = 0
        self.parts_left = 0
        self.amount = -1
        self.text_size = -1
        self.format_violations = 0


@mypyc_attr(acyclic=True)
class Frame:
    """A frame as a user or a verb writes it: the protocol's own kind, on a stream's key.

    `payload` is the content, the name of an opening or the text of an abort, as the kind has it;
    `amount` is its number (window, credit, bytes processed), or -1.
    """

    __slots__ = ("amount", "key", "kind", "payload", "incarnation")

    def __init__(
        self, kind: i64, key: i64, payload: bytes = b"", amount: int = -1, incarnation: i64 = -1
    ) -> None:
        self.kind: i64 = kind
        self.key: i64 = key
        self.payload = payload
        self.amount: int = amount
        self.incarnation: i64 = (
            incarnation  # the incarnation it is meant for (0: none yet); -1: whichever
        )

    def __repr__(self) -> str:
        return f"Frame({self.kind}, key={self.key}, {len(self.payload)} bytes, {self.amount})"


class FrameRows:
    """Rows of the frames table as columns; `used` of them are filled."""

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
    """Where a conversation writes its rows: full batches, and the one being filled."""

    def __init__(self) -> None:
        self.full_batches: list[FrameRows] = []
        self.batch_capacity: i64 = FIRST_BATCH_ROWS
        self.batch: FrameRows = FrameRows(FIRST_BATCH_ROWS)

    def start_new_batch(self) -> None:
        """The batch is full: put it aside and start another."""
        self.full_batches.append(self.batch)
        if self.batch_capacity < MAX_BATCH_ROWS:
            self.batch_capacity *= 4
        self.batch = FrameRows(self.batch_capacity)

    def take(self) -> list[FrameRows]:
        """Everything written so far; the caller owns it."""
        batches = self.full_batches
        if self.batch.used > 0:
            batches.append(self.batch)
            self.batch = FrameRows(self.batch_capacity)
        self.full_batches = []
        return batches
