# mypyc: compiled
"""One frame's header, one frame as a user writes it, and many frames as columns."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr, u8

FIRST_ROWS: Final[i64] = 64  # rows of a first batch: most sessions are short
ROWS: Final[i64] = 4096  # rows of a batch at most; it is handed on whole and never reused

# What a kind of frame does. Events, tables and stall analysis read only this.
OPENS: Final[i64] = 1
ACCEPTS: Final[i64] = 2
CONTENT: Final[i64] = 3
GRANTS: Final[i64] = 4
ENDS: Final[i64] = 5
ABORTS: Final[i64] = 6
CONTROL: Final[i64] = 7

CLEAN: Final[i64] = 0
CROSSED_ROW: Final[i64] = 1
VIOLATION_ROW: Final[i64] = 2


class Kind:
    """A kind of frame: the protocol's own name for it, and its effect."""

    def __init__(self, name: str, effect: i64) -> None:
        self.name = name
        self.effect: i64 = effect

    def __repr__(self) -> str:
        return f"Kind({self.name})"


@mypyc_attr(acyclic=True)
class Head:
    """One frame's header. One object a conversation, refilled for every frame, never kept."""

    __slots__ = (
        "amount", "flaws", "key", "kind", "number", "opener", "parts", "size", "tail", "text",
        "text_size", "units",
    )  # fmt: skip

    def __init__(self) -> None:
        self.kind: i64 = 0
        self.key: i64 = 0  # absolute: number and opener, the same from either side
        self.number: i64 = 0
        self.opener: i64 = 0
        self.size: i64 = 0  # octets of payload
        self.tail: i64 = 0  # octets after the payload that still belong to the frame
        self.units: i64 = 0  # what the frame costs on the ledger
        self.parts: i64 = 0  # items still to be sized one by one after the first part
        self.amount: int = -1  # the number in the frame that moves a ledger; -1: none
        self.text: i64 = 0  # where a name or an error text lies, and its octets; -1: none
        self.text_size: i64 = -1
        self.flaws: i64 = 0  # rules broken by the shape of the frame alone

    def clear(self) -> None:
        self.size = 0
        self.tail = 0
        self.units = 0
        self.parts = 0
        self.amount = -1
        self.text_size = -1
        self.flaws = 0


@mypyc_attr(acyclic=True)
class Frame:
    """A frame as a user or a verb writes it: the protocol's own kind, on a stream's key.

    `payload` is the content, the name of an opening or the text of an abort, as the kind has it;
    `amount` is its number (window, credit, octets processed), or -1.
    """

    __slots__ = ("amount", "key", "kind", "payload", "use")

    def __init__(
        self, kind: i64, key: i64, payload: bytes = b"", amount: int = -1, use: i64 = -1
    ) -> None:
        self.kind: i64 = kind
        self.key: i64 = key
        self.payload = payload
        self.amount: int = amount
        self.use: i64 = use  # the incarnation it is meant for (0: none yet); -1: whichever

    def __repr__(self) -> str:
        return f"Frame({self.kind}, key={self.key}, {len(self.payload)} octets, {self.amount})"


class Batch:
    """Rows of the frames table as columns; `used` of them are filled."""

    __slots__ = (
        "amount", "at", "incarnation", "kind", "number", "offset", "opener", "ordinal", "payload",
        "room", "sender", "size", "used", "verdict",
    )  # fmt: skip

    def __init__(self, room: i64) -> None:
        self.used: i64 = 0
        self.room: i64 = room
        self.sender: vec[u8] = vec[u8]([u8(0)] * room)
        self.ordinal: vec[i64] = vec[i64]([i64(0)] * room)
        self.at: vec[i64] = vec[i64]([i64(0)] * room)
        self.offset: vec[i64] = vec[i64]([i64(0)] * room)
        self.size: vec[i64] = vec[i64]([i64(0)] * room)
        self.kind: vec[u8] = vec[u8]([u8(0)] * room)
        self.opener: vec[u8] = vec[u8]([u8(0)] * room)  # 255: no stream
        self.number: vec[i64] = vec[i64]([i64(0)] * room)
        self.incarnation: vec[i64] = vec[i64]([i64(0)] * room)
        self.amount: vec[i64] = vec[i64]([i64(0)] * room)  # -1: none
        self.payload: vec[i64] = vec[i64]([i64(0)] * room)
        self.verdict: vec[u8] = vec[u8]([u8(0)] * room)


class Frames:
    """Where a conversation writes its rows: full batches, and the one being filled."""

    def __init__(self) -> None:
        self.full: list[Batch] = []
        self.room: i64 = FIRST_ROWS
        self.batch: Batch = Batch(FIRST_ROWS)

    def turn(self) -> None:
        """The batch is full: put it aside and start another."""
        self.full.append(self.batch)
        if self.room < ROWS:
            self.room *= 4
        self.batch = Batch(self.room)

    def take(self) -> list[Batch]:
        """Everything written so far; the caller owns it."""
        batches = self.full
        if self.batch.used > 0:
            batches.append(self.batch)
            self.batch = Batch(self.room)
        self.full = []
        return batches
