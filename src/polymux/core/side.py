# mypyc: compiled
"""Who speaks, where the watcher stands, and what each side can be shown to have read."""

from enum import IntEnum
from typing import Final

from mypy_extensions import i64

DIALER: Final[i64] = 0
ACCEPTOR: Final[i64] = 1
NEITHER_SIDE: Final[i64] = 2  # opened by neither side: a stream both were configured with


class Side(IntEnum):
    """One end of a connection: who opened the transport, and who took it."""

    DIALER = 0
    ACCEPTOR = 1


SIDES: Final = (Side.DIALER, Side.ACCEPTOR)  # by number: to call `Side` takes ten times as long


class Vantage(IntEnum):
    """Where the watcher stands.

    Next to a side (its own process), everything that passed has been read by that side. In the
    middle, socket buffers lie on both sides. Unordered: each direction is in order, but which of
    two frames in opposite directions came first is not known.
    """

    DIALER = 0
    ACCEPTOR = 1
    MIDDLE = 2
    UNORDERED = 3


UNORDERED: Final[i64] = 3


class Causality:
    """Per side: frames sent, and how many of the other side's frames it has provably read.

    `freeze` is called at the first byte of a side's frame: what the sender can know in that frame
    is what it had read by then, however long the frame takes to pass.
    """

    __slots__ = (
        "arriving0", "arriving1", "vantage", "snapshot0", "snapshot1", "read0", "read1", "sent0",
        "sent1",
    )  # fmt: skip

    def __init__(self, vantage: i64) -> None:
        self.vantage: i64 = vantage
        self.sent0: i64 = 0
        self.sent1: i64 = 0
        self.read0: i64 = 0
        self.read1: i64 = 0
        self.snapshot0: i64 = 0
        self.snapshot1: i64 = 0
        self.arriving0: i64 = 0  # 1: bytes of the dialer's last frame are still to come
        self.arriving1: i64 = 0

    def frames_sent(self, side: i64) -> i64:
        """Frames this side has sent; also the ordinal of its next one."""
        return self.sent0 if side == DIALER else self.sent1

    def record_sent(self, side: i64, frames: i64 = 1) -> None:
        """One more frame of this side, or several, have passed."""
        if side == DIALER:
            self.sent0 += frames
        else:
            self.sent1 += frames

    def snapshot_seen(self, side: i64) -> None:
        """A frame of this side begins: what it knows now is what it knows in that frame."""
        if side == DIALER:
            self.snapshot0 = self.sent1 - self.arriving1 if self.vantage == DIALER else self.read0
        else:
            self.snapshot1 = self.sent0 - self.arriving0 if self.vantage == ACCEPTOR else self.read1

    def set_arriving(self, side: i64, arriving: i64) -> None:
        """Are bytes of this side's last frame still to come (1), or has it passed whole (0)?"""
        if side == DIALER:
            self.arriving0 = arriving
        else:
            self.arriving1 = arriving

    def had_seen(self, side: i64, frame_index: i64) -> bool:
        """When its current frame began, had this side provably read the other's `ordinal`?"""
        return frame_index < (self.snapshot0 if side == DIALER else self.snapshot1)

    def seen_count(self, side: i64) -> i64:
        """How many of the other's frames it had provably read when its current frame began."""
        return self.snapshot0 if side == DIALER else self.snapshot1

    def record_seen(self, side: i64, frame_index: i64) -> None:
        """This side has just answered the other's frame `ordinal`, so it had read up to there."""
        if side == DIALER:
            if frame_index >= self.read0:
                self.read0 = frame_index + 1
        elif frame_index >= self.read1:
            self.read1 = frame_index + 1

    def save(self) -> list[int]:
        return [
            self.vantage,
            self.sent0,
            self.sent1,
            self.read0,
            self.read1,
            self.snapshot0,
            self.snapshot1,
            self.arriving0,
            self.arriving1,
        ]

    def load(self, saved: list[int]) -> None:
        self.vantage = saved[0]
        self.sent0 = saved[1]
        self.sent1 = saved[2]
        self.read0 = saved[3]
        self.read1 = saved[4]
        self.snapshot0 = saved[5]
        self.snapshot1 = saved[6]
        self.arriving0 = saved[7]
        self.arriving1 = saved[8]
