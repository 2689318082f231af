# mypyc: compiled
"""Nerdbank MultiplexingStream v1, v2, v3: one rule book over three wires.

Channels are offered by name, accepted or rejected, carry content both ways under receiving windows
(not in v1), and end by writing-completed from both sides and one termination from each.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import Frame, Head
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import Duty
from polymux.core.side import DIALER, NOBODY
from polymux.core.streams import NEVER, Stream
from polymux.core.varint import HOLD
from polymux.protocols.nerdbank.codec import (
    ACCEPTED,
    COMPLETED,
    CONTENT_FRAME,
    HANDSHAKE,
    MAGIC,
    MALFORMED,
    OFFER,
    PAYLOAD,
    PROCESSED,
    READING_COMPLETED,
    TERMINATED,
    WINDOW_ADJUST,
    content3,
    greeting1,
    greeting2,
    header1,
    header23,
    payload23,
    put_frame1,
    put_frame23,
)
from polymux.protocols.nerdbank.rules import FRAME_TOO_LONG, PAYLOAD_TOO_LONG
from polymux.protocols.nerdbank.state import NerdbankLaw
from polymux.protocols.options import whole

MAX_OWN_ID: Final = 0x7FFFFFFF  # ids above this kill TypeScript peers
GROWTH: Final = 4  # a window that is asked to grow becomes this many times as large


class Nerdbank(NerdbankLaw):
    """One conversation: the law, on the wire of its version, and the verbs."""

    # --- wire

    def header(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        head.clear()
        start: i64
        if self.major == 3:
            start = content3(data, pos, end, sender, head)
            if start > 0:
                return start
            start = header23(data, pos, end, 3, self.max_frame, sender, head)
        else:
            if len(self.random0 if sender == DIALER else self.random1) == 0:
                return self.greeting(data, pos, end, head)
            if not self.handshaken:
                return HOLD  # whose ids are odd is not known yet
            if self.major == 2:
                start = header23(data, pos, end, 2, self.max_frame, sender, head)
            else:
                start = header1(data, pos, end, head)
            head.opener = self.odd if head.number & 1 else 1 - self.odd
        if start < 0:
            return start
        if head.kind == MALFORMED:
            head.opener = NO_STREAM
            return start
        head.key = head.number * 4 + head.opener
        head.units = head.size
        if head.size > PAYLOAD:
            head.flaws |= FRAME_TOO_LONG if head.size > self.max_frame else PAYLOAD_TOO_LONG
        return start

    def greeting(self, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        head.kind = HANDSHAKE
        head.opener = NO_STREAM
        if self.major == 1:
            return greeting1(data, pos, end, head)
        return greeting2(data, pos, end, self.limits.control, head)

    def body(self, sender: i64, data: bytes, start: i64, end: i64, head: Head) -> None:
        if head.kind == HANDSHAKE or (self.major == 1 and head.kind == OFFER):
            head.text = start
            head.text_size = end - start
        elif self.major > 1 and head.kind != MALFORMED:
            payload23(data, start, end, self.limits.window_peer, head)

    def put(self, out: BytesWriter, sender: i64, head: Head, text: bytes) -> None:
        if head.kind == HANDSHAKE:
            out.write(MAGIC if self.major == 1 else b"\x92\x92\x02\x00\xc4\x10")
            out.write(text)
        elif self.major == 1:
            put_frame1(out, head, text)
        else:
            put_frame23(out, self.major, sender, head, text)

    def address(self, sender: i64, head: Head) -> None:
        head.number = head.key >> 2
        if self.major < 3:
            head.key = head.number * 4 + (self.odd if head.number & 1 else 1 - self.odd)
        elif head.key & 3 > NOBODY:
            head.key = head.number * 4 + 1 - sender
        head.opener = NO_STREAM if head.kind >= MALFORMED else head.key & 3

    # --- verbs

    def hello(self, side: i64, nonce: bytes) -> Frame | None:
        return None if self.major == 3 else Frame(HANDSHAKE, 0, nonce)

    def allocate(self, side: i64) -> i64:
        number = self.next0 if side == DIALER else self.next1
        if number == 0:
            if self.major == 3:
                number = 1 + (len(self.seeded) if self.seeded is not None else 0)
            elif not self.handshaken:
                return NO_ID
            else:
                number = 1 if self.odd == side else 2
        if number > MAX_OWN_ID:
            return NO_ID
        step: i64 = 1 if self.major == 3 else 2
        if side == DIALER:
            self.next0 = number + step
        else:
            self.next1 = number + step
        return number * 4 + side

    def opening(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        return Frame(OFFER, key, name, window if self.credit else -1)

    def accepting(self, side: i64, stream: Stream, window: int) -> Frame | None:
        if stream.half(1 - side).final != NEVER:
            return None  # withdrawn: only our own termination may follow
        return Frame(ACCEPTED, stream.key, b"", window if self.credit else -1)

    def content_head(self, side: i64, stream: Stream, head: Head, final: bool) -> None:
        head.kind = CONTENT_FRAME
        head.units = head.size

    def cut(self, side: i64, stream: Stream, rest: i64, quantum: i64, last: bool) -> i64:
        own = stream.half(side)
        if not stream.accepted or stream.half(1 - side).final != NEVER:
            return -1
        size = rest if rest < quantum else quantum
        if own.granted >= 0 and own.granted - own.spent < size:
            size = own.granted - own.spent
        return size if size > 0 else -1

    def ending_frame(self, side: i64, stream: Stream) -> Frame | None:
        return Frame(COMPLETED, stream.key)

    def aborting(self, side: i64, stream: Stream, text: bytes) -> Frame | None:
        return Frame(TERMINATED, stream.key, text if self.major > 1 else b"")

    def refusing(self, side: i64, stream: Stream) -> Frame | None:
        return Frame(READING_COMPLETED, stream.key) if self.major > 1 else None

    def granting(self, side: i64, stream: Stream, amount: int) -> Frame | None:
        return Frame(PROCESSED, stream.key, b"", amount) if self.credit else None

    def paying(self, duty: Duty) -> Frame | None:
        if duty.kind != WINDOW_ADJUST:
            return super().paying(duty)
        stream = self.streams.find(duty.key)
        window = 0 if stream is None else self.wider(duty.side, stream)
        return Frame(WINDOW_ADJUST, duty.key, b"", window) if window > 0 else None

    def silences(self, duty: Duty) -> bool:
        return duty.kind != WINDOW_ADJUST

    def hesitates(self, duty: Duty) -> bool:
        return duty.kind == WINDOW_ADJUST

    def wider(self, side: i64, stream: Stream) -> int:
        """The window to answer a growth request with; the same again is a refusal.

        It grows only while the reader keeps up, and within what all channels may grow together.
        """
        window = stream.half(1 - side).window
        lane = stream.lane
        wish = min(window * GROWTH, self.limits.window_grown)
        if wish <= window or (lane is not None and lane.unread > 0):
            return window
        grown = 0
        for other in self.streams.slots:
            if not other.over and other.half(1 - side).window > self.window:
                grown += other.half(1 - side).window - self.window
        return wish if grown + wish - window <= self.limits.window_growth else window

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["randoms"] = [self.random0, self.random1]
        saved["numbers"] = [self.odd, self.next0, self.next1]
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        randoms, numbers = saved["randoms"], saved["numbers"]
        assert isinstance(randoms, list)
        assert isinstance(numbers, list)
        self.random0, self.random1 = randoms[0], randoms[1]
        self.odd, self.next0, self.next1 = numbers[0], numbers[1], numbers[2]

    def version(self) -> str:
        return str(self.major)


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """`version=1|2|3`; `window` we announce; `seeded=102400+500`, the seeded channels' windows."""
    version = whole(options.get("version", "3"), "version", 1)
    if version > 3:
        raise ValueError(f"version is 1, 2 or 3, not {version}")
    if "window" in options:
        limits.window = whole(options["window"], "window", 1)
    seeded: tuple[int, ...] | None = None
    if "seeded" in options:
        if version != 3:
            raise ValueError("seeded channels exist in version 3 only")
        seeded = tuple([whole(part, "seeded", 1) for part in options["seeded"].split("+")])
    return Nerdbank(limits, vantage, version, seeded)
