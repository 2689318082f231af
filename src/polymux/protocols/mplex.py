"""multiplex / mplex: many duplex streams with names, half close and reset; no flow control.

A frame is `uvarint(id * 8 + flag) uvarint(length) payload`. The flag says what it is and whether
its sender opened the stream, so both sides may use the same id at once.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from ..core.frames import ABORTS, CONTENT, CONTROL, ENDS, OPENS, Frame, Head, Kind
from ..core.limits import Limits
from ..core.protocol import NO_ID, NO_STREAM, Protocol
from ..core.rules import CROSSED, Origin, Reaction, Rule, Severity
from ..core.side import DIALER
from ..core.streams import ABORTED, ENDED, OPEN, Stream
from ..core.wire import BAD, put_uvarint, uvarint
from .options import whole

# --- frames

NEW: Final[i64] = 0
MESSAGE_RECEIVER: Final[i64] = 1
MESSAGE_INITIATOR: Final[i64] = 2
CLOSE_RECEIVER: Final[i64] = 3
CLOSE_INITIATOR: Final[i64] = 4
RESET_RECEIVER: Final[i64] = 5
RESET_INITIATOR: Final[i64] = 6
UNDEFINED: Final[i64] = 7

KINDS: Final = {
    0: Kind("NewStream", OPENS),
    1: Kind("MessageReceiver", CONTENT),
    2: Kind("MessageInitiator", CONTENT),
    3: Kind("CloseReceiver", ENDS),
    4: Kind("CloseInitiator", ENDS),
    5: Kind("ResetReceiver", ABORTS),
    6: Kind("ResetInitiator", ABORTS),
    7: Kind("Undefined", CONTROL),
}

MAX_PAYLOAD: Final = 1048576  # 2**20, inclusive, in every implementation that has a limit
LONG: Final[i64] = -1  # a number that takes more than two octets, or is in no shortest form
MAX_ID: Final[i64] = 0x0FFFFFFFFFFFFFFF  # nine varint octets less three bits of flag

# --- rules

NOTE: Final = Severity.NOTE
ADVICE: Final = Origin.ADVICE

RULES: Final = (
    Rule("mplex.bad-flag", "Flag 7 is not defined.", "Flag Values", reaction=Reaction.SESSION),
    Rule("mplex.varint-too-long", "A varint has at most nine octets.", "Message format",
         reaction=Reaction.SESSION),
    Rule("mplex.varint-noncanonical", "A varint should have its shortest form.", "Message format",
         NOTE, origin=ADVICE),
    Rule("mplex.frame-too-long", "A payload has at most 1 MiB.", "Writing to a stream",
         reaction=Reaction.SESSION, origin=Origin.LIMIT),
    Rule("mplex.id-reused", "A stream that is live must not be opened again.",
         "Opening a new stream", reaction=Reaction.SESSION),
    Rule("mplex.unknown-stream", "Only a stream that was opened can be written, closed or reset.",
         "Opening a new stream"),
    Rule("mplex.wrong-role-flag", "The flag must say who opened the stream.", "Flag Values"),
    Rule("mplex.write-after-close", "Nothing may be written after closing.", "Closing a stream"),
    Rule("mplex.close-twice", "A stream need be closed only once.", "Closing a stream", NOTE,
         origin=ADVICE),
    Rule("mplex.write-after-reset", "Nothing may be sent on a stream after resetting it.",
         "Resetting a stream"),
    Rule("mplex.write-after-peer-reset", "Nothing may be sent after reading the peer's reset.",
         "Resetting a stream"),
    Rule("mplex.close-with-payload", "A close has a body of zero length.", "Closing a stream",
         Severity.WARNING),
    Rule("mplex.reset-with-payload", "A reset has a body of zero length; npm's carries its error.",
         "Resetting a stream", NOTE, origin=ADVICE),
    Rule("mplex.id-parity", "The dialer uses odd ids and the listener even ones.",
         "Opening a new stream", NOTE, origin=ADVICE),
    Rule("mplex.id-recycled", "An id should not be used again after its stream is over.",
         "Opening a new stream", NOTE, origin=ADVICE),
    Rule("mplex.reset-after-close", "A stream that is already over need not be reset.",
         "Resetting a stream", NOTE, origin=ADVICE),
    Rule("mplex.truncated", "The connection ended inside a frame.", "Message format",
         Severity.WARNING),
)  # fmt: skip

BAD_FLAG: Final[i64] = 0x1
VARINT_TOO_LONG: Final[i64] = 0x2
NONCANONICAL: Final[i64] = 0x4
TOO_LONG: Final[i64] = 0x8
ID_REUSED: Final[i64] = 0x10
UNKNOWN: Final[i64] = 0x20
WRONG_ROLE: Final[i64] = 0x40
AFTER_CLOSE: Final[i64] = 0x80
CLOSE_TWICE: Final[i64] = 0x100
AFTER_RESET: Final[i64] = 0x200
AFTER_PEER_RESET: Final[i64] = 0x400
CLOSE_PAYLOAD: Final[i64] = 0x800
RESET_PAYLOAD: Final[i64] = 0x1000
ID_PARITY: Final[i64] = 0x2000
ID_RECYCLED: Final[i64] = 0x4000
RESET_OVER: Final[i64] = 0x8000
TRUNCATED: Final[i64] = 0x10000


def undisturbed(stream: Stream) -> bool:
    """The first use of its id, open both ways: no content on it could be wrong."""
    return stream.incarnation == 1 and stream.dialer.state == OPEN and stream.acceptor.state == OPEN


class Mplex(Protocol):
    """One conversation of mplex. `counting` allocates 0, 1, 2... instead of by parity."""

    def __init__(self, limits: Limits, vantage: i64, counting: bool = False) -> None:
        super().__init__("mplex", RULES, KINDS, limits, vantage)
        self.max_frame = limits.frame if limits.frame > 0 else MAX_PAYLOAD
        self.send_frame = MAX_PAYLOAD if self.max_frame > MAX_PAYLOAD else self.max_frame
        self.too_long = TOO_LONG
        self.truncated = TRUNCATED
        self.alike = True
        self.texts = True
        self.counting = counting
        self.next0: i64 = 0 if counting else 1
        self.next1: i64 = 0

    # --- wire

    def header(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        if end - pos >= 4:  # the short way, for two numbers of one or two octets
            word: i64 = data[pos]
            mid = pos + 1
            if word > 127:
                more: i64 = data[mid]
                mid += 1
                word = more * 128 + word - 128 if 0 < more < 128 else LONG
            if word >= 0:
                size: i64 = data[mid]
                start = mid + 1
                if size > 127:
                    more = data[start]
                    start += 1
                    size = more * 128 + size - 128 if 0 < more < 128 else LONG
                if size >= 0:
                    return self.fill(sender, word, size, 0, start, head)
        return self.long_header(sender, data, pos, end, head)

    def long_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        """Numbers of any length, in any form, cut anywhere."""
        word, mid = uvarint(data, pos, end)
        if mid < 0:
            if mid == BAD:
                head.flaws = VARINT_TOO_LONG
            return mid
        size, start = uvarint(data, mid, end)
        if start < 0:
            if start == BAD:
                head.flaws = VARINT_TOO_LONG
            return start
        flaws: i64 = 0
        if (data[mid - 1] == 0 and mid - pos > 1) or (data[start - 1] == 0 and start - mid > 1):
            flaws = NONCANONICAL
        return self.fill(sender, word, size, flaws, start, head)

    def fill(self, sender: i64, word: i64, size: i64, flaws: i64, start: i64, head: Head) -> i64:
        if size > self.max_frame:
            flaws |= TOO_LONG
        kind = word & 7
        number = word >> 3
        opener = sender ^ (kind & 1)  # an odd flag speaks of a stream the receiver opened
        head.kind = kind
        head.number = number
        head.opener = opener if kind != UNDEFINED else NO_STREAM
        head.key = number * 2 + opener
        head.size = size
        head.units = size
        head.tail = 0
        head.parts = 0
        head.amount = -1
        head.text_size = -1
        head.flaws = flaws
        return start

    def body(self, sender: i64, data: bytes, start: i64, end: i64, head: Head) -> None:
        head.text = start
        head.text_size = end - start

    def put(self, out: BytesWriter, sender: i64, head: Head, text: bytes) -> None:
        put_uvarint(out, head.number * 8 + head.kind)
        put_uvarint(out, head.size)
        if head.kind != MESSAGE_RECEIVER and head.kind != MESSAGE_INITIATOR:
            out.write(text)

    def address(self, sender: i64, head: Head) -> None:
        head.number = head.key >> 1
        opener = sender ^ (head.kind & 1)
        head.key = head.number * 2 + opener
        head.opener = opener if head.kind != UNDEFINED else NO_STREAM

    # --- law

    def judge(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        kind = head.kind
        if (
            stream is not None
            and (kind == MESSAGE_INITIATOR or kind == MESSAGE_RECEIVER)
            and undisturbed(stream)
        ):
            return 0  # the usual case: nothing below could object
        if kind == NEW:
            return self.judge_opening(sender, head, stream)
        if kind == UNDEFINED:
            return BAD_FLAG
        if stream is None:
            other = self.streams.find(head.key ^ 1)
            return WRONG_ROLE if other is not None and not other.over else UNKNOWN
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        verdict: i64 = 0
        if head.size > 0 and kind >= CLOSE_RECEIVER:
            verdict = CLOSE_PAYLOAD if kind <= CLOSE_INITIATOR else RESET_PAYLOAD
        if stream.stale(sender, self.sight):  # may be about an earlier use of this id
            return verdict | CROSSED
        if own.state == ABORTED and not own.vague:
            return verdict | AFTER_RESET
        if peer.state == ABORTED:
            if not self.sight.knows(sender, peer.stopped):
                return verdict | CROSSED
            return verdict | (AFTER_PEER_RESET if kind <= CLOSE_INITIATOR else RESET_OVER)
        if own.state == ENDED and not own.vague:
            if kind <= MESSAGE_INITIATOR:
                return verdict | AFTER_CLOSE
            if kind <= CLOSE_INITIATOR:
                return verdict | CLOSE_TWICE
            if peer.state == ENDED and self.sight.knows(sender, peer.stopped):
                return verdict | RESET_OVER
        return verdict

    def judge_opening(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        verdict: i64 = 0 if (head.number & 1) == 1 - sender else ID_PARITY
        if stream is not None:
            verdict |= ID_RECYCLED if self.is_over(stream) else ID_REUSED
        return verdict

    def is_over(self, stream: Stream) -> bool:
        d, a = stream.dialer.state, stream.acceptor.state
        return d == ABORTED or a == ABORTED or (d == ENDED and a == ENDED)

    # --- bookkeeping

    def apply(self, sender: i64, head: Head, stream: Stream | None, at: i64) -> None:
        kind = head.kind
        if kind == NEW:
            made = Stream(head.key, head.number, sender, self.sight.sent(sender))
            if stream is not None:
                made.incarnation = stream.incarnation + 1
                made.answerable = stream.answerable
                if not self.is_over(stream):
                    stream.ending = "abandoned"
                    self.displaced = stream
            made.name = self.said
            self.streams.put(made)
            self.touched = made
            return
        if stream is None:
            return
        self.touched = stream
        vague = stream.incarnation > 1 and stream.stale(sender, self.sight)
        stream.answer(sender, self.sight)
        own = stream.half(sender)
        if own.vague and not vague:  # so its stop belonged to an earlier use
            own.stop(OPEN, own.stopped, False)
        if kind <= MESSAGE_INITIATOR:
            self.counted = own.state == OPEN
        elif own.state == OPEN or (kind >= RESET_RECEIVER and not self.closed(sender, stream)):
            own.stop(ENDED if kind <= CLOSE_INITIATOR else ABORTED, self.sight.sent(sender), vague)
            if kind >= RESET_RECEIVER and stream.reset_by < 0:
                stream.reset_by = sender
                stream.error = self.said if len(self.said) > 0 else None

    def ordinary(self, sender: i64, head: Head, stream: Stream, at: i64) -> bool:
        if not undisturbed(stream):
            return super().ordinary(sender, head, stream, at)
        self.touched = stream
        stream.answer(sender, self.sight)
        self.counted = True
        return True

    def closed(self, sender: i64, stream: Stream) -> bool:
        """Can no reset of `sender` change the stream? What passes first decides how it ended."""
        own, peer = stream.half(sender), stream.half(1 - sender)
        return own.state == ABORTED or (
            own.state == ENDED and peer.state == ENDED and not peer.vague
        )

    # --- verbs

    def allocate(self, side: i64) -> i64:
        number = self.next0 if side == DIALER else self.next1
        if number > MAX_ID:
            return NO_ID
        step: i64 = 1 if self.counting else 2
        if side == DIALER:
            self.next0 = number + step
        else:
            self.next1 = number + step
        return number * 2 + side

    def opening(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        return Frame(NEW, key, name)

    def content_head(self, side: i64, stream: Stream, head: Head, final: bool) -> None:
        head.kind = MESSAGE_INITIATOR if stream.opener == side else MESSAGE_RECEIVER
        head.units = head.size

    def ending_frame(self, side: i64, stream: Stream) -> Frame | None:
        return Frame(CLOSE_INITIATOR if stream.opener == side else CLOSE_RECEIVER, stream.key)

    def aborting(self, side: i64, stream: Stream, text: bytes) -> Frame | None:
        return Frame(RESET_INITIATOR if stream.opener == side else RESET_RECEIVER, stream.key)

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["next"] = [self.next0, self.next1]
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        numbers = saved["next"]
        assert isinstance(numbers, list)
        self.next0 = numbers[0]
        self.next1 = numbers[1]


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """`ids=parity|counting` is what we allocate; `max_frame` the largest payload accepted."""
    ids = options.get("ids", "parity")
    if ids not in ("parity", "counting"):
        raise ValueError(f"ids is parity or counting, not {ids!r}")
    if "max_frame" in options:
        limits.frame = whole(options["max_frame"], "max_frame", 1)
    return Mplex(limits, vantage, ids == "counting")
