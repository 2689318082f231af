# mypyc: compiled
"""Causality: which of the other side's frames a sender had provably read when it sent a frame.

The problem. Both sides of a multiplexer send at the same time. When the acceptor resets a stream,
the dialer may have content for that stream on its way already; when that content passes an observer
after the reset, it is not a violation: the two frames crossed in flight. The same content sent by a
dialer that had read the reset is a violation. The order in which frames pass the observer does not
tell the two cases apart, since bytes may wait in socket buffers between the observer and a side.

The idea. A frame is held against its sender only if the sender had *provably* read the frame that
forbids it (Lamport's happens-before). There are two kinds of proof:

- The vantage. An observer in a side's own process sees what that side has read: every frame of the
  other side that has completely passed.
- Replies. A frame that answers the other side's frame n (an acknowledgement, content on a stream
  that n opened) proves that its sender had read n and, since a transport keeps order, everything
  before n. The protocols report such proofs with `record_seen`.

Invariants. Frames of a side are numbered from 0 in the order in which they were sent. For each side
the number of frames it has provably read only grows. `snapshot_seen` copies it at the first byte of
each of the side's frames: the sender had formed the frame by then, and whatever it reads while the
frame is being sent cannot have influenced it. `had_seen` consults the snapshot only.
"""

from mypy_extensions import i64

from polymux.core.side import ACCEPTOR, DIALER


class Causality:
    """Counts, for each side, the frames it sent and the other side's frames it provably read.

    Attributes end in 0 for the dialer and in 1 for the acceptor: an index would cost the fast path.
    """

    __slots__ = (
        "arriving0", "arriving1", "vantage", "snapshot0", "snapshot1", "read0", "read1", "sent0",
        "sent1",
    )  # fmt: skip

    def __init__(self, vantage: i64) -> None:
        self.vantage: i64 = vantage
        self.sent0: i64 = 0
        self.sent1: i64 = 0
        self.read0: i64 = 0  # frames of the acceptor that the dialer has provably read
        self.read1: i64 = 0
        self.snapshot0: i64 = 0  # the same when the dialer's current frame began
        self.snapshot1: i64 = 0
        self.arriving0: i64 = 0  # 1: bytes of the dialer's last frame are still to arrive
        self.arriving1: i64 = 0

    def frames_sent(self, side: i64) -> i64:
        """Frames this side has sent, which is also the index of its next one."""
        return self.sent0 if side == DIALER else self.sent1

    def record_sent(self, side: i64, frames: i64 = 1) -> None:
        """Count frames that this side has sent."""
        if side == DIALER:
            self.sent0 += frames
        else:
            self.sent1 += frames

    def snapshot_seen(self, side: i64) -> None:
        """A frame of this side begins: fix what the side can have known when it sent it."""
        if side == DIALER:
            self.snapshot0 = self.sent1 - self.arriving1 if self.vantage == DIALER else self.read0
        else:
            self.snapshot1 = self.sent0 - self.arriving0 if self.vantage == ACCEPTOR else self.read1

    def set_arriving(self, side: i64, arriving: i64) -> None:
        """Set whether bytes of this side's last frame are still to arrive (1) or not (0)."""
        if side == DIALER:
            self.arriving0 = arriving
        else:
            self.arriving1 = arriving

    def had_seen(self, side: i64, frame_index: i64) -> bool:
        """Whether this side had provably read the other's frame when its current frame began."""
        return frame_index < (self.snapshot0 if side == DIALER else self.snapshot1)

    def seen_count(self, side: i64) -> i64:
        """How many of the other's frames it had provably read when its current frame began."""
        return self.snapshot0 if side == DIALER else self.snapshot1

    def record_seen(self, side: i64, frame_index: i64) -> None:
        """This side has just answered the other's frame, so it had read everything up to it."""
        if side == DIALER:
            if frame_index >= self.read0:
                self.read0 = frame_index + 1
        elif frame_index >= self.read1:
            self.read1 = frame_index + 1

    def save(self) -> list[int]:
        """The state as plain data, for `load`."""
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
        """Restore what `save` returned."""
        self.vantage = saved[0]
        self.sent0 = saved[1]
        self.sent1 = saved[2]
        self.read0 = saved[3]
        self.read1 = saved[4]
        self.snapshot0 = saved[5]
        self.snapshot1 = saved[6]
        self.arriving0 = saved[7]
        self.arriving1 = saved[8]
