# mypyc: compiled
"""The law of Streamux: which rules a frame breaks.

A stream is one exchange: the request is the asker's half, the reply the other's. Only the asker
opens, ends and cancels; only the other side replies and acknowledges. An id is free again at the
final reply or, once cancelled, at the ack.

With two honest peers nothing on an id can be stale: the asker waits for the last word about one
use before it begins the next. If one side breaks that order, a watcher who does not stand beside
the other side no longer knows what that one could see, so it is not blamed on this id any more.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import Head
from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.core.rules import CROSSED, octets_text
from polymux.core.side import DIALER
from polymux.core.streams import ABORTED, ENDED, NEVER, OPEN, Stream
from polymux.protocols.streamux.initiator import (
    GOOD,
    UNKNOWN,
    Ids,
    Layout,
    initiator_flaws,
    width_of,
)
from polymux.protocols.streamux.rules import (
    ACK_NOT_CANCELLED,
    BAD_BIT_COUNTS,
    BAD_VERSION,
    CANCEL,
    CANCEL_ACK,
    CANCEL_TWICE,
    CANCEL_UNKNOWN,
    CHUNK_TOO_LONG,
    EMPTY_REPLY,
    ID_IN_FLIGHT,
    INITIATOR,
    KEEPALIVE_BUSY_ID,
    KINDS,
    MIXED_HEADER_SIZES,
    REPLY_AFTER_CANCEL,
    REPLY_BEFORE_END,
    REPLY_BIT,
    REPLY_LAST,
    REPLY_UNKNOWN,
    REQUEST_LAST,
    RULES,
    TERMINATION_BIT,
    TRUNCATED,
)

CHUNK: Final[i64] = 65536  # octets of a chunk we take at most

ASKED: Final[i64] = 1  # mark of a stream: the last chunk of its request has passed

# What an id is to a request chunk:
FREE: Final[i64] = 0
RUNNING: Final[i64] = 1
BUSY: Final[i64] = 2

# Who is not blamed on an id any more, because the other side broke its order:
ASKER: Final[i64] = 1
REPLIER: Final[i64] = 2
ACKER: Final[i64] = 4  # the replier, but only for acks


class StreamuxLaw(Protocol):
    """State and law."""

    def __init__(self, limits: Limits, vantage: i64) -> None:
        super().__init__("streamux", RULES, KINDS, limits, vantage)
        self.max_frame = limits.frame if limits.frame > 0 else CHUNK
        self.send_frame = self.max_frame if self.max_frame < CHUNK else CHUNK
        self.too_long = CHUNK_TOO_LONG
        self.truncated = TRUNCATED
        self.mutual = (
            REPLY_UNKNOWN | REPLY_BEFORE_END | REPLY_AFTER_CANCEL | ACK_NOT_CANCELLED
            | ID_IN_FLIGHT | KEEPALIVE_BUSY_ID | CANCEL_TWICE | CANCEL_UNKNOWN
        )  # fmt: skip
        self.handshaken = False
        self.layout0: Layout = Layout()
        self.layout1: Layout = Layout()
        self.fields: i64 = 0  # of both layouts where they are alike and wide; 0: they are not
        self.id_bits: i64 = 0
        self.last_id: i64 = 0
        self.ids0: Ids = Ids()
        self.ids1: Ids = Ids()
        self.locked: set[int] = set()  # keys cancelled and not acknowledged since
        self.owed: dict[int, tuple[int, int]] = {}  # key: cancels without ack, ordinal of the first
        self.muddled: dict[int, int] = {}  # key: who is excused
        self.misled: i64 = 0  # who is excused on every key, since some keys were forgotten

    def layout(self, side: i64) -> Layout:
        """What `side` announced; its requests and the replies to them are laid out so."""
        return self.layout0 if side == DIALER else self.layout1

    def compare_layouts(self) -> None:
        """Both sides usually announce the same; their headers are then read the short way."""
        one, other = self.layout0, self.layout1
        if one.width == 4 and other.width == 4 and one.id_bits == other.id_bits:
            self.fields = one.fields
            self.id_bits = one.id_bits
            self.last_id = one.last_id

    def ids(self, side: i64) -> Ids:
        return self.ids0 if side == DIALER else self.ids1

    # --- law

    def judge(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        kind = head.kind
        if kind == INITIATOR:
            return self.judge_initiator(sender)
        if not self.fits(sender, head):
            return BAD_BIT_COUNTS
        if kind <= REPLY_LAST and head.size == 0 and not self.closes(sender, kind, stream):
            return BAD_BIT_COUNTS  # would be read as one of the special messages
        if kind <= REQUEST_LAST:
            if self.standing(head.key, stream) != BUSY:
                return 0
            return self.excuse(head.key, ASKER, ID_IN_FLIGHT)
        if kind <= REPLY_LAST or kind == EMPTY_REPLY:
            return self.judge_reply(sender, head.key, stream)
        if kind == CANCEL:
            return self.judge_cancel(sender, head.key, stream)
        if kind == CANCEL_ACK:
            if head.key in self.owed:
                return 0
            return CROSSED if stream is not None and self.misled & ACKER else ACK_NOT_CANCELLED
        if self.standing(head.key, self.streams.find(head.key)) == FREE:
            return 0
        return self.excuse(head.key, ASKER, KEEPALIVE_BUSY_ID)

    def fits(self, sender: i64, head: Head) -> bool:
        """Can the header say this? What came in one always fits; what a caller made may not."""
        own = self.layout(sender)
        layout = own if not head.kind & REPLY_BIT else self.layout(1 - sender)
        return (
            own.status == GOOD
            and layout.status == GOOD
            and head.size <= (layout.longest if head.kind <= REPLY_LAST else 0)
            and head.number >= 0
            and head.number <= layout.last_id
        )

    def judge_initiator(self, sender: i64) -> i64:
        if self.layout(sender).status != UNKNOWN:
            return BAD_BIT_COUNTS  # a second one would be read as a header
        flaws = initiator_flaws(self.said)
        if flaws != 0:
            return flaws
        other = self.layout(1 - sender)
        mixed = other.status == GOOD and other.width != width_of(self.said)
        return MIXED_HEADER_SIZES if mixed else 0

    def judge_reply(self, sender: i64, key: i64, stream: Stream | None) -> i64:
        if stream is None:
            return self.excuse(key, REPLIER, REPLY_UNKNOWN)
        verdict: i64 = 0
        if stream.half(sender).final != NEVER:
            verdict = REPLY_UNKNOWN
        elif not stream.extra & ASKED:
            verdict = REPLY_BEFORE_END
        else:
            asker = stream.half(1 - sender)
            if asker.state != ABORTED:
                return 0
            if not self.sight.knows(sender, asker.stopped):
                return CROSSED
            verdict = REPLY_AFTER_CANCEL
        return self.excuse(key, REPLIER, verdict)

    def judge_cancel(self, sender: i64, key: i64, stream: Stream | None) -> i64:
        if key in self.locked:
            return self.excuse(key, ASKER, CANCEL_TWICE)
        if stream is None:
            return CANCEL_UNKNOWN
        if not self.is_over(stream):
            return 0
        return CROSSED if self.overtaken(sender, stream) else CANCEL_UNKNOWN

    def overtaken(self, sender: i64, stream: Stream) -> bool:
        """Was the final reply still on its way to the asker that cancels now?"""
        reply = stream.half(1 - sender)
        late = stream.half(sender).state != ABORTED and reply.state == ENDED
        return late and not self.sight.knows(sender, reply.stopped)

    def excuse(self, key: i64, who: i64, verdict: i64) -> i64:
        """The verdict, or CROSSED where the other side's fault may have misled this one."""
        if self.misled & who or (self.muddled and self.muddled.get(key, 0) & who):
            return CROSSED
        return verdict

    def standing(self, key: i64, stream: Stream | None) -> i64:
        """What this id is to its owner: free, in the middle of a request, or in flight."""
        if self.locked and key in self.locked:
            return BUSY
        if stream is None:
            return FREE
        if stream.serial < 0:  # prepared: its first content would open it
            filed = self.streams.find(key)
            return FREE if filed is None or self.is_over(filed) else BUSY
        if self.is_over(stream):
            return FREE
        return RUNNING if stream.half(stream.opener).state == OPEN else BUSY

    def closes(self, sender: i64, kind: i64, stream: Stream | None) -> bool:
        """Is a chunk without data the end of a message that has begun?"""
        if stream is None or not kind & TERMINATION_BIT:
            return False
        half = stream.half(sender)
        return half.state == OPEN and half.final == NEVER and half.spent > 0

    def is_over(self, stream: Stream) -> bool:
        asker, replier = stream.half(stream.opener), stream.half(1 - stream.opener)
        return asker.state != OPEN and replier.final != NEVER

    # --- words

    def version(self) -> str:
        return "1" if self.layout0.status == GOOD or self.layout1.status == GOOD else ""

    def dialect(self) -> str:
        """How each side splits its headers, the dialer first."""
        splits: list[str] = []
        for layout in (self.layout0, self.layout1):
            if layout.status == GOOD:
                splits.append(f"{layout.length_bits}/{layout.id_bits}")
        if len(splits) == 2 and splits[0] == splits[1]:
            return splits[0]
        return ", ".join(splits)

    def explain(self, rule: i64, sender: i64, head: Head, stream: Stream | None) -> str:
        if head.kind == INITIATOR:
            return self.explain_initiator(rule, sender)
        text = f"{super().explain(rule, sender, head, stream)} on id {head.number}"
        if rule == CHUNK_TOO_LONG:
            return f"{text}: limit frame={self.max_frame}; raise it with Limits(frame=...)"
        if rule == BAD_BIT_COUNTS:
            layout = self.layout(sender if not head.kind & REPLY_BIT else 1 - sender)
            if layout.status != GOOD or self.layout(sender).status != GOOD:
                return f"{text}: the initiators must come first"
            if head.size == 0 and head.kind <= REPLY_LAST:
                return f"{text}: a chunk without data would be read as something else"
            return f"{text}: does not fit a {layout.length_bits}/{layout.id_bits} header"
        if rule == ID_IN_FLIGHT:
            locked = head.key in self.locked
            why = "cancelled, and no ack has come" if locked else "its reply is not complete"
            return f"{text}: {why}"
        if rule == REPLY_UNKNOWN:
            why = "there was no such request" if stream is None else "the exchange was over"
            return f"{text}: {why}"
        return text

    def explain_initiator(self, rule: i64, sender: i64) -> str:
        said = self.said
        if rule == BAD_VERSION:
            return f"Initiator {said.hex(' ')} of version {said[0]}"
        if rule == MIXED_HEADER_SIZES:
            width = self.layout(1 - sender).width
            return f"Initiator {said.hex(' ')}: the other side's headers have {width} octets"
        if self.layout(sender).status != UNKNOWN:
            return "Initiator: it has been sent already"
        if len(said) != 4:
            return f"Initiator of {octets_text(len(said))}"
        return f"Initiator {said.hex(' ')} of {said[1]} length bits and {said[2]} id bits"
