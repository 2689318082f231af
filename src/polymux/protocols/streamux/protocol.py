# mypyc: compiled
"""Streamux: requests in chunks, replies in chunks, cancels; each side may ask and answer.

Each side first announces in four octets how it splits a header between length and id. A header is
`T R length id`, 16 or 32 bits, little endian; requests are laid out as their sender announced, and
so are the replies to them. A length of zero has a meaning of its own by T and R.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_le
from mypy_extensions import i64, u8

from polymux.core.errors import Unsupported
from polymux.core.frames import Frame, Head
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import Duty
from polymux.core.side import DIALER
from polymux.core.streams import ABORTED, NEVER, Stream
from polymux.core.varint import BAD, HOLD, SHORT
from polymux.protocols.options import whole
from polymux.protocols.streamux.initiator import GOOD, UNKNOWN
from polymux.protocols.streamux.rules import (
    CANCEL,
    CANCEL_ACK,
    CHUNK_TOO_LONG,
    EMPTY_REPLY,
    INITIATOR,
    KEEP_ALIVE,
    REPLY,
    REPLY_BIT,
    REQUEST,
    REQUEST_LAST,
    TERMINATION_BIT,
)
from polymux.protocols.streamux.state import StreamuxBooks
from polymux.protocols.streamux.validation import ASKED, FREE

MAX_WORD: Final[i64] = 0xFFFFFFFF


class Streamux(StreamuxBooks):
    """One conversation. `initiator` is what a live endpoint announces."""

    def __init__(
        self, limits: Limits, vantage: i64, initiator: bytes = b"\x01\x10\x0e\x32"
    ) -> None:
        super().__init__(limits, vantage)
        self.initiator = initiator

    # --- wire

    def header(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        if end - pos >= 4 and self.fields > 0:
            word = i64(read_i32_le(data, pos)) & MAX_WORD
            size = (word & self.fields) >> self.id_bits
            if size > 0:  # the usual: a chunk that is not empty
                flags = word >> 30
                asker = sender ^ (flags & 1)
                number = word & self.last_id
                head.kind = (flags >> 1) | ((flags & 1) << 1)
                head.number = number
                head.opener = asker
                head.key = number * 2 + asker
                head.size = size
                head.units = size
                head.tail = 0
                head.parts = 0
                head.amount = -1
                head.text_size = -1
                flaws: i64 = 0
                if size > self.max_frame:
                    flaws = CHUNK_TOO_LONG
                head.flaws = flaws
                return pos + 4
        return self.long_header(sender, data, pos, end, head)

    def long_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        """Initiators, short headers, empty chunks and the messages that have no content."""
        own = self.layout0 if sender == DIALER else self.layout1
        other = self.layout1 if sender == DIALER else self.layout0
        head.clear()
        if own.status == UNKNOWN:
            head.kind = INITIATOR
            head.opener = NO_STREAM
            return pos + 4 if end - pos >= 4 else SHORT
        if other.status == UNKNOWN:
            return HOLD  # how replies are laid out is not known yet
        width = own.width
        if width == 0:
            return BAD  # behind a bad initiator
        if width > end - pos:
            return SHORT
        low: i64 = data[pos]
        high: i64 = data[pos + 1]
        word = low + high * 256
        if width == 4:
            low = data[pos + 2]
            high = data[pos + 3]
            word += low * 65536 + high * 16777216
            flags = word >> 30
        else:
            flags = word >> 14
        replying = flags & 1
        layout = other if replying == 1 else own
        if layout.width != width:
            self.reason = "the initiator that lays out this header was bad"
            return BAD
        kind = (flags >> 1) | (replying << 1)
        size = (word & layout.fields) >> layout.id_bits
        head.number = word & layout.last_id
        head.opener = sender ^ replying
        head.key = head.number * 2 + head.opener
        if size == 0 and not (
            kind & TERMINATION_BIT and self.closes(sender, kind, self.streams.find(head.key))
        ):
            kind |= 4
            if kind == KEEP_ALIVE:
                head.opener = NO_STREAM
        head.kind = kind
        head.size = size
        head.units = size
        if size > self.max_frame:
            head.flaws = CHUNK_TOO_LONG
        return pos + width

    def body(self, sender: i64, data: bytes, start: i64, end: i64, head: Head) -> None:
        if head.kind == INITIATOR:
            head.text = start - 4
            head.text_size = 4

    def put(self, out: BytesWriter, sender: i64, head: Head, text: bytes) -> None:
        kind = head.kind
        if kind == INITIATOR:
            out.write(text)
            return
        layout = self.layout(1 - sender if kind & REPLY_BIT else sender)
        flags = ((kind & TERMINATION_BIT) << 1) | ((kind & REPLY_BIT) >> 1)
        word = (head.size << layout.id_bits) | head.number
        word |= flags << (layout.length_bits + layout.id_bits)
        for _ in range(layout.width):
            out.append(u8(word & 255))
            word >>= 8

    def address(self, sender: i64, head: Head) -> None:
        if head.kind == INITIATOR:
            head.number = 0
            head.opener = NO_STREAM
            return
        opener = 1 - sender if head.kind & REPLY_BIT else sender
        head.number = head.key >> 1
        head.key = head.number * 2 + opener
        head.opener = opener if head.kind != KEEP_ALIVE else NO_STREAM

    # --- verbs

    def hello(self, side: i64, nonce: bytes) -> Frame | None:
        return Frame(INITIATOR, 0, self.initiator)

    def next_free(self, side: i64) -> i64:
        """The key of the free id this side would use next, or NO_ID."""
        ids = self.ids(side)
        ids.active = True
        layout = self.layout(side)
        if layout.status != GOOD:
            return NO_ID
        while True:
            number = ids.front(layout.last_id)
            if number < 0:
                return NO_ID
            key = number * 2 + side
            free = self.standing(key, self.streams.find(key)) == FREE
            if free and number not in ids.reserved:
                return key
            ids.step(layout.last_id)

    def allocate(self, side: i64) -> i64:
        key = self.next_free(side)
        if key != NO_ID:
            ids = self.ids(side)
            ids.step(self.layout(side).last_id)
            ids.reserved.add(key >> 1)
        return key

    def keep_alive(self, side: i64) -> Frame | None:
        """A sign of life on the next free id; None if all are taken: the channel is not idle."""
        key = self.next_free(side)
        return None if key == NO_ID else Frame(KEEP_ALIVE, key)

    def timeout(self, side: i64) -> float:
        """Seconds this side means to wait for a reply; 0: it did not say."""
        tenths: int = self.layout(side).timeout
        return tenths / 10.0

    def keep_alive_interval(self, side: i64) -> float:
        """Seconds of silence after which this side should send a keep alive.

        A third of the time after which the other side may call it lagged, but at least a second;
        half a minute where the other side did not say.
        """
        patience = self.timeout(1 - side)
        if patience == 0.0:
            return 30.0
        return max(1.0, patience / 3.0)

    def opening(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        if len(name) > 0:
            self.give_back(side, key >> 1)
            raise Unsupported("Streamux has no names: put what the request is about into its data")
        return None

    def prepare(self, side: i64, key: i64) -> Stream:
        return Stream(key, key >> 1, side, 0)

    def give_back(self, side: i64, number: i64) -> None:
        """An id that was drawn is not wanted after all."""
        ids = self.ids(side)
        ids.reserved.discard(number)
        ids.free(number)

    def withdraw(self, side: i64, stream: Stream) -> None:
        """A request of which nothing was sent is given up; nobody need know."""
        self.give_back(side, stream.number)
        stream.half(side).stop(ABORTED, NEVER, False)
        stream.over = True

    def content_head(self, side: i64, stream: Stream, head: Head, final: bool) -> None:
        head.kind = REQUEST if stream.opener == side else REPLY
        if final:
            head.kind |= TERMINATION_BIT
        head.units = head.size

    def cut(self, side: i64, stream: Stream, rest: i64, quantum: i64, last: bool) -> i64:
        if stream.opener != side and not stream.extra & ASKED and not stream.over:
            return -1  # nothing is answered before it is asked
        longest = self.layout(stream.opener).longest
        size = rest if rest < quantum else quantum
        if size > longest:
            size = longest
        if last and size == rest:
            return -1  # it may become the last chunk, and only the last chunk can say so
        return size

    def refuse_end(self, side: i64, stream: Stream) -> str:
        lane = stream.lane
        if stream.serial < 0 and lane is not None and lane.queued == 0:
            return "a request without data cannot be sent; send at least one octet, or abort it"
        return ""

    def ending_frame(self, side: i64, stream: Stream) -> Frame | None:
        """Where nothing is left to carry the termination bit: an empty reply, mostly."""
        if stream.serial < 0:
            return None  # what was queued could not be sent
        if stream.opener == side:
            return Frame(REQUEST_LAST, stream.key, b"", -1, stream.incarnation)
        return self.answering(side, stream)

    def answering(self, side: i64, stream: Stream) -> Frame | None:
        """End the reply without more data; where the request still runs, as soon as it is whole.

        The octets of an empty reply also end a reply that has begun.
        """
        if stream.half(1 - side).state == ABORTED:
            return None
        if not stream.extra & ASKED:
            self.owe(side, EMPTY_REPLY, stream.key, 0, 0)
            return None
        return Frame(EMPTY_REPLY, stream.key, b"", -1, stream.incarnation)

    def aborting(self, side: i64, stream: Stream, text: bytes) -> Frame | None:
        """Cancel our own request; of the peer's, drop the rest and answer without more."""
        if stream.opener != side:
            return self.answering(side, stream)
        if stream.serial < 0:
            self.withdraw(side, stream)
            return None
        if self.is_over(stream):
            return None
        return Frame(CANCEL, stream.key, b"", -1, stream.incarnation)

    def paying(self, duty: Duty) -> Frame | None:
        if duty.kind == CANCEL_ACK:
            return Frame(CANCEL_ACK, duty.key)
        stream = self.streams.find(duty.key)
        return None if stream is None else self.answering(duty.side, stream)


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """What we announce: `length_bits`, `id_bits`, and `timeout` in seconds (0: unspecified)."""
    length_bits = whole(options.get("length_bits", "16"), "length_bits", 1)
    id_bits = whole(options.get("id_bits", "14"), "id_bits", 1)
    if length_bits + id_bits != 14 and length_bits + id_bits != 30:
        raise ValueError(
            f"length_bits + id_bits is 14 or 30, not {length_bits} + {id_bits}; give both"
        )
    tenths = tenths_of(options.get("timeout", "5"))
    return Streamux(limits, vantage, bytes([1, length_bits, id_bits, tenths]))


def tenths_of(text: str) -> int:
    """Seconds as the initiator says them, in tenths."""
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"timeout is a number of seconds, not {text!r}") from None
    if not 0.0 <= seconds <= 25.5:
        raise ValueError(f"timeout is 0 to 25.5 seconds, not {text}")
    tenths = round(seconds * 10.0)
    if abs(seconds * 10.0 - tenths) > 1e-6:
        raise ValueError(f"timeout has at most one decimal place, not {text}")
    return tenths
