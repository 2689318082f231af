# mypyc: compiled
"""What a watch keeps: pages of rows, the frame that is passing, bytes before the first frame."""

from librt.vecs import vec
from mypy_extensions import i64

from polymux.core.direction import Direction
from polymux.core.frames import FrameRows
from polymux.core.streams import NOT_YET


class FramePage:
    """A batch of rows with what the frames table needs besides: instants in microseconds, and
    each row's stream as a place in `labels` (-1: none)."""

    def __init__(self, batch: FrameRows, page_id: i64) -> None:
        self.batch: FrameRows = batch
        self.page_id: i64 = page_id
        self.row_count: i64 = 0
        self.time_us: vec[i64] = vec[i64]([i64(0)] * batch.capacity)
        self.label_index: vec[i64] = vec[i64]([i64(-1)] * batch.capacity)
        self.labels: list[str] = []


class PartialFrame:
    """The frame of one direction that has begun and is not whole."""

    def __init__(self) -> None:
        self.frame_index: i64 = -1
        self.started_at: i64 = 0
        self.last_at: i64 = NOT_YET  # when bytes of this direction last came
        self.silences: list[tuple[int, int]] = []


class SkippedPrefix:
    """Bytes of each side before the first frame: a negotiation, or the rest of a frame whose
    beginning was not captured."""

    def __init__(self, dialer_bytes: i64, acceptor_bytes: i64, is_overhead: bool) -> None:
        self.remaining: i64 = dialer_bytes + acceptor_bytes
        self.dialer_remaining: i64 = dialer_bytes
        self.acceptor_remaining: i64 = acceptor_bytes
        self.is_overhead: bool = is_overhead

    def consume(self, d: Direction, size: i64) -> i64:
        """Count the part of the next `size` bytes of a direction that lies before its first
        frame; returns how many they are."""
        left = self.dialer_remaining if d.side == 0 else self.acceptor_remaining
        cut = size if size < left else left
        if d.side == 0:
            self.dialer_remaining -= cut
        else:
            self.acceptor_remaining -= cut
        self.remaining -= cut
        d.total_bytes += cut
        d.offset += cut
        if self.is_overhead:
            d.overhead_bytes += cut
        else:
            d.undecoded_bytes += cut
        return cut
