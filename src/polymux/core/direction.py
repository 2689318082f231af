# mypyc: compiled
"""One direction of a connection: where decoding stands, and the frame that is still passing."""

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import Head
from polymux.core.streams import OPEN, Stream


class Direction:
    """Octets of one side, in order. `open` while a frame's payload goes on past its chunk."""

    __slots__ = (
        "amount", "at", "before", "began", "begun", "carrier", "content", "counted", "done",
        "flaws", "framed", "frames", "gap", "heap", "holed", "key", "kind", "lost", "missed",
        "need", "number", "octets", "offset", "open", "opener", "ordinal", "parts", "payload",
        "pending", "reason", "rest", "side", "size", "stream", "text", "undecoded", "units",
        "verdict",
    )  # fmt: skip

    def __init__(self, side: i64) -> None:
        self.side: i64 = side
        self.pending: bytes = b""  # octets of a frame that cannot be read yet
        self.heap: BytesWriter = BytesWriter()  # what came after `pending`, until `need` is there
        self.need: i64 = 0  # octets that must be waiting before another look is worth it
        self.offset: i64 = 0  # of the first pending octet, or of the next to come
        self.begun: bool = False  # has the frame at `offset` begun to pass?
        self.at: i64 = 0  # when octets last came
        self.lost: bool = False  # the start of the next frame is unknown
        self.holed: bool = False  # lost because octets are missing
        self.missed: bool = False  # frames are missing, and decoding goes on behind them
        self.reason: str = ""
        # What the octets came to: octets = framed + gap + undecoded + carrier.
        self.octets: i64 = 0
        self.framed: i64 = 0
        self.gap: i64 = 0
        self.undecoded: i64 = 0
        self.carrier: i64 = 0
        self.frames: i64 = 0
        # The open frame:
        self.open: bool = False
        self.rest: i64 = 0  # octets of its current part still to come
        self.parts: i64 = 0  # parts still to be sized
        self.done: i64 = 0  # octets of it that have passed
        self.stream: Stream | None = None
        self.counted: bool = False
        self.content: bool = False
        self.kind: i64 = 0
        self.key: i64 = 0
        self.number: i64 = 0
        self.opener: i64 = 0
        self.amount: int = -1
        self.units: i64 = 0
        self.ordinal: i64 = 0
        self.began: i64 = 0
        self.size: i64 = 0
        self.payload: i64 = 0
        self.verdict: i64 = 0
        self.before: i64 = OPEN
        self.flaws: i64 = 0  # rules its shape has broken so far
        self.text: bytes = b""

    def begin(
        self, head: Head, stream: Stream | None, counted: bool, content: bool, ordinal: i64,
        began: i64, header: i64, verdict: i64, before: i64,
    ) -> None:  # fmt: skip
        """A frame's header has passed, its payload has not."""
        self.open = True
        self.rest = head.size
        self.parts = head.parts
        self.done = header
        self.stream = stream
        self.counted = counted
        self.content = content
        self.kind = head.kind
        self.key = head.key
        self.number = head.number
        self.opener = head.opener
        self.amount = head.amount
        self.units = head.units
        self.ordinal = ordinal
        self.began = began
        self.size = header + head.size
        self.payload = head.size
        self.verdict = verdict
        self.before = before
        self.flaws = head.flaws
        self.text = b""

    def fills(self, stream: Stream) -> bool:
        """Is content of this stream passing, and not yet whole?"""
        return self.open and self.content and self.stream is stream

    def partial(self) -> bool:
        """Are there frames of this side that were not seen?"""
        return self.lost or self.missed

    def waiting(self) -> i64:
        """Octets of a frame that cannot be read yet."""
        return len(self.pending) + len(self.heap)

    def gather(self) -> None:
        """Put everything that waits into `pending`."""
        self.need = 0
        if len(self.heap) > 0:
            later = self.heap.getvalue()
            self.heap = BytesWriter()  # gone before the next copy is made
            self.pending = self.pending + later

    def balanced(self) -> bool:
        """Conservation: every octet is in a frame, a gap, the carrier, or undecoded."""
        waiting = self.waiting() + (self.done if self.open else 0)
        return self.octets == self.framed + self.gap + self.undecoded + self.carrier + waiting

    def save(self) -> dict[str, object]:
        self.gather()
        return {
            "pending": self.pending, "reason": self.reason, "text": self.text,
            "flags": [self.begun, self.lost, self.open, self.counted, self.content, self.holed,
                      self.missed],
            "numbers": [
                self.offset, self.at, self.octets, self.framed, self.gap, self.undecoded,
                self.carrier, self.frames, self.rest, self.parts, self.done, self.kind, self.key,
                self.number, self.opener, self.amount, self.units, self.ordinal, self.began,
                self.size, self.payload, self.verdict, self.before, self.flaws,
            ],
            "stream": self.stream.serial if self.stream is not None else -1,
        }  # fmt: skip

    def load(self, saved: dict[str, object], stream: Stream | None) -> None:
        pending, reason, text = saved["pending"], saved["reason"], saved["text"]
        flags, n = saved["flags"], saved["numbers"]
        assert isinstance(pending, bytes)
        assert isinstance(reason, str)
        assert isinstance(text, bytes)
        assert isinstance(flags, list)
        assert isinstance(n, list)
        self.pending, self.reason, self.text = pending, reason, text
        self.begun, self.lost, self.open = flags[0], flags[1], flags[2]
        self.counted, self.content, self.holed = flags[3], flags[4], flags[5]
        self.missed = flags[6]
        self.offset, self.at, self.octets, self.framed = n[0], n[1], n[2], n[3]
        self.gap, self.undecoded, self.carrier, self.frames = n[4], n[5], n[6], n[7]
        self.rest, self.parts, self.done, self.kind = n[8], n[9], n[10], n[11]
        self.key, self.number, self.opener, self.amount = n[12], n[13], n[14], n[15]
        self.units, self.ordinal, self.began, self.size = n[16], n[17], n[18], n[19]
        self.payload, self.verdict, self.before, self.flaws = n[20], n[21], n[22], n[23]
        self.stream = stream
