# mypyc: compiled
"""multiplex / mplex: many duplex streams with names, half close and reset; no flow control.

A frame is `uvarint(id * 8 + flag) uvarint(length) payload`. The flag says what it is and whether
its sender opened the stream, so both sides may use the same id at once.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import ABORTS, CONTENT, CONTROL, ENDS, OPENS, Frame, Head, Kind
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import CROSSED, Duty
from polymux.core.side import DIALER, UNORDERED
from polymux.core.streams import ABANDONED, ABORTED, ENDED, NEVER, OPEN, UNSEEN, Stream
from polymux.core.varint import BAD, put_uvarint, uvarint
from polymux.protocols.mplex.id_reuse import CLOUDED, Uses, may_follow, said_in
from polymux.protocols.mplex.rules import (
    AFTER_CLOSE,
    AFTER_PEER_RESET,
    AFTER_RESET,
    BAD_FLAG,
    CLOSE_PAYLOAD,
    CLOSE_TWICE,
    ID_PARITY,
    ID_RECYCLED,
    ID_REUSED,
    NONCANONICAL,
    RESET_OVER,
    RESET_PAYLOAD,
    RULES,
    TOO_LONG,
    TRUNCATED,
    UNKNOWN,
    VARINT_TOO_LONG,
    WRONG_ROLE,
)
from polymux.protocols.options import whole

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


def undisturbed(sender: i64, stream: Stream) -> bool:
    """Open both ways, and surely meant by a frame of this side: no content could be wrong."""
    return (
        stream.dialer.state == OPEN
        and stream.acceptor.state == OPEN
        and (stream.extra & CLOUDED == 0 or stream.opener == sender)
    )


class Mplex(Protocol):
    """One conversation of mplex. `counting` allocates 0, 1, 2... instead of by parity."""

    def __init__(self, limits: Limits, vantage: i64, counting: bool = False) -> None:
        super().__init__("mplex", RULES, KINDS, limits, vantage)
        self.max_frame = limits.frame if limits.frame > 0 else MAX_PAYLOAD
        self.send_frame = MAX_PAYLOAD if self.max_frame > MAX_PAYLOAD else self.max_frame
        self.too_long = TOO_LONG
        self.truncated = TRUNCATED
        self.mutual = ID_REUSED | UNKNOWN | WRONG_ROLE
        self.alike = True
        self.texts = True
        self.counting = counting
        self.next0: i64 = 0 if counting else 1
        self.next1: i64 = 0
        self.uses: Uses = Uses(self.sight, self.streams)

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
            and undisturbed(sender, stream)
        ):
            return 0  # the usual case: nothing below could object
        if kind == NEW:
            return self.judge_opening(sender, head, stream)
        if kind == UNDEFINED:
            return BAD_FLAG
        if stream is None:
            if kind & 1 and self.sight.beside == UNORDERED:
                return CROSSED  # the opening, in the other direction, may have come before
            other = self.streams.find(head.key ^ 1)
            return WRONG_ROLE if other is not None and not other.over else UNKNOWN
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        verdict: i64 = 0
        if head.size > 0 and kind >= CLOSE_RECEIVER:
            verdict = CLOSE_PAYLOAD if kind <= CLOSE_INITIATOR else RESET_PAYLOAD
        if (
            stream.extra & CLOUDED
            and sender != stream.opener
            and not self.uses.settles(sender, self.effects[kind], stream)
        ):
            return verdict | CROSSED  # may be about an earlier use of this id
        reset_known = False
        if peer.state == ABORTED:
            reset_known = self.sight.knows(sender, peer.stopped)
            if peer.vague and self.sight.beside == UNORDERED:  # or read before the id was reused
                reset_known = False
            if not reset_known:
                verdict |= CROSSED
        if (
            self.sight.beside == UNORDERED
            and sender != stream.opener
            and (own.state != OPEN or peer.state == ABORTED)
        ):
            return verdict | CROSSED  # the id may have been used again before
        # What a side has sent itself it knows, whatever crossed it.
        if own.final != NEVER and not own.vague:
            return verdict | AFTER_RESET
        sure = self.uses.sure(stream) if own.vague else own.state
        if sure == ENDED and kind <= CLOSE_INITIATOR:
            return verdict | (AFTER_CLOSE if kind <= MESSAGE_INITIATOR else CLOSE_TWICE)
        if peer.state == ABORTED:
            if reset_known:
                verdict |= AFTER_PEER_RESET if kind <= CLOSE_INITIATOR else RESET_OVER
        elif (
            own.state == ENDED
            and not own.vague
            and peer.state == ENDED
            and self.sight.knows(sender, peer.stopped)
        ):
            verdict |= RESET_OVER
        return verdict

    def seen_alone(self, head: Head, verdict: i64) -> i64:
        if head.kind & 1:  # the opener may have used the id again
            verdict &= ~(AFTER_CLOSE | CLOSE_TWICE | AFTER_RESET | AFTER_PEER_RESET | RESET_OVER)
        return super().seen_alone(head, verdict)

    def judge_opening(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        verdict: i64 = 0 if (head.number & 1) == 1 - sender else ID_PARITY
        if stream is not None:
            free = self.uses.may_be_free(stream)
            verdict |= ID_RECYCLED if free else ID_REUSED
        return verdict

    def is_over(self, stream: Stream) -> bool:
        d, a = stream.dialer.state, stream.acceptor.state
        return d == ABORTED or a == ABORTED or (d == ENDED and a == ENDED)

    # --- bookkeeping

    def meant(self, sender: i64, head: Head, stream: Stream) -> Stream:
        if head.kind == NEW or sender == stream.opener:
            return stream
        return self.uses.meant(sender, self.effects[head.kind], stream)

    def may_be_meant(self, stream: Stream) -> bool:
        return self.uses.may_be_meant(stream)

    def apply(self, sender: i64, head: Head, stream: Stream | None, at: i64) -> None:
        kind = head.kind
        if kind == NEW:
            self.open(sender, head, stream)
            return
        if stream is None:
            return
        self.touched = stream
        vague = False
        own = stream.half(sender)
        if sender != stream.opener and (len(self.uses.histories) > 0 or own.state != OPEN):
            vague = self.uses.follow(sender, self.effects[kind], stream)
        stream.answer(sender, self.sight)
        if own.vague and not may_follow(self.effects[kind], said_in(own)):
            self.disown(sender, stream)
        if kind <= MESSAGE_INITIATOR:
            self.counted = own.state == OPEN
            return
        if own.state == OPEN or (kind >= RESET_RECEIVER and not self.closed(sender, stream)):
            if vague and not own.vague:
                self.uses.doubt(stream, own.state)
            own.stop(ENDED if kind <= CLOSE_INITIATOR else ABORTED, self.sight.sent(sender), vague)
            if kind >= RESET_RECEIVER and stream.ending != ABANDONED:
                self.give_reason(sender, stream)
            if self.sight.beside == UNORDERED and self.is_over(stream):
                stream.ending = ""  # it was over when its id was used again
        if kind >= RESET_RECEIVER and own.final == NEVER:
            own.final = self.sight.sent(sender)

    def open(self, sender: i64, head: Head, stream: Stream | None) -> None:
        """Begin a use of an id; `stream` is the use before."""
        made = Stream(head.key, head.number, sender, self.sight.sent(sender))
        if stream is not None:
            made.incarnation = stream.incarnation + 1
            if not self.is_over(stream):
                stream.ending = ABANDONED
                self.displaced = stream
            self.uses.renew(stream, made, self.midway)
        made.name = self.said
        self.streams.put(made)
        self.touched = made

    def disown(self, sender: i64, stream: Stream) -> None:
        """This side goes on after its stop, so that stop was about an earlier use."""
        own, peer = stream.half(sender), stream.half(1 - sender)
        own.stop(self.uses.disown(stream), own.stopped, False)
        own.final = NEVER
        if stream.reset_by == sender:
            stream.reset_by = -1
            stream.error = None
            if peer.final != NEVER:
                stream.reset_by = 1 - sender
                stream.error = self.uses.reason(stream)
        if stream.over and not self.is_over(stream):
            stream.over = False
            stream.closed_at = UNSEEN

    def give_reason(self, sender: i64, stream: Stream) -> None:
        """Note the side that reset the stream first, and its text."""
        text = self.said if len(self.said) > 0 else None
        if stream.reset_by < 0:
            stream.reset_by = sender
            stream.error = text
        elif stream.reset_by != sender and stream.half(1 - sender).vague:
            self.uses.keep_reason(stream, text)

    def ordinary(self, sender: i64, head: Head, stream: Stream, at: i64) -> bool:
        if not undisturbed(sender, stream):
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

    def finish(self, ended: bool) -> list[Duty]:
        self.uses.finish()
        return super().finish(ended)

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
        saved["histories"] = self.uses.save()
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        numbers = saved["next"]
        assert isinstance(numbers, list)
        self.next0 = numbers[0]
        self.next1 = numbers[1]
        histories = saved["histories"]
        assert isinstance(histories, list)
        self.uses.load(histories)

    def relink(self, gone: list[Stream]) -> None:
        self.uses.relink(gone)


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """`ids=parity|counting` is what we allocate; `max_frame` the largest payload accepted."""
    ids = options.get("ids", "parity")
    if ids not in ("parity", "counting"):
        raise ValueError(f"ids is parity or counting, not {ids!r}")
    if "max_frame" in options:
        limits.frame = whole(options["max_frame"], "max_frame", 1)
    return Mplex(limits, vantage, ids == "counting")
