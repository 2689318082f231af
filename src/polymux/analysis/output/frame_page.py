# mypyc: compiled
"""What a watch keeps: pages of rows, the frame that is passing, octets before the first frame."""

from librt.vecs import vec
from mypy_extensions import i64

from polymux.core.direction import Direction
from polymux.core.frames import Batch
from polymux.core.streams import UNSEEN


class Page:
    """A batch of rows with what the frames table needs besides: instants in microseconds, and
    each row's stream as a place in `labels` (-1: none)."""

    def __init__(self, batch: Batch, number: i64) -> None:
        self.batch: Batch = batch
        self.number: i64 = number
        self.done: i64 = 0
        self.at_us: vec[i64] = vec[i64]([i64(0)] * batch.room)
        self.stream: vec[i64] = vec[i64]([i64(-1)] * batch.room)
        self.labels: list[str] = []


class Passing:
    """The frame of one direction that has begun and is not whole."""

    def __init__(self) -> None:
        self.ordinal: i64 = -1
        self.began: i64 = 0
        self.last_at: i64 = UNSEEN  # when octets of this direction last came
        self.silences: list[tuple[int, int]] = []


class Prelude:
    """Octets of each side before the first frame: a negotiation, or the rest of a frame whose
    beginning was not captured."""

    def __init__(self, octets0: i64, octets1: i64, carrier: bool) -> None:
        self.left: i64 = octets0 + octets1
        self.left0: i64 = octets0
        self.left1: i64 = octets1
        self.carrier: bool = carrier

    def pass_over(self, d: Direction, size: i64) -> i64:
        """Count the part of the next `size` octets of a direction that lies before its first
        frame; returns how many they are."""
        left = self.left0 if d.side == 0 else self.left1
        cut = size if size < left else left
        if d.side == 0:
            self.left0 -= cut
        else:
            self.left1 -= cut
        self.left -= cut
        d.octets += cut
        d.offset += cut
        if self.carrier:
            d.carrier += cut
        else:
            d.undecoded += cut
        return cut
