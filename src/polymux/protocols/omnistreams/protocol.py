# mypyc: compiled
"""omnistreams Multiplexer: one-way streams of messages, with credit counted in messages.

A message is `type id payload`; a control message has no id. On octets (TCP, files, pipes) polymux
puts a 4-byte big-endian length before each; in WebSocket a message is a binary message.
"""

from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64, u8

from polymux.core.frames import Frame, Head
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import Duty
from polymux.core.streams import Stream
from polymux.core.varint import SHORT, put_big_endian, unsigned
from polymux.protocols.omnistreams.rules import (
    BAD_LENGTH,
    CANCEL_ON_UNKNOWN_ID,
    CANCEL_RECEIVE,
    CANCEL_SEND,
    CONTROL_MESSAGE,
    CREATE,
    CREATE_ON_OPEN_ID,
    CREDIT_EXCEEDED,
    DATA,
    DATA_ON_UNKNOWN_ID,
    EMPTY_MESSAGE,
    END,
    END_ON_UNKNOWN_ID,
    KINDS,
    LEGACY_KINDS,
    LEGACY_TYPES,
    MESSAGE_TOO_LONG,
    REQUEST,
    REQUEST_ON_UNKNOWN_ID,
    RULES,
    SENT_AFTER_CANCEL,
    TRUNCATED,
    UNKNOWN,
)
from polymux.protocols.omnistreams.state import (
    ALWAYS,
    COUNT_MAX,
    IDS,
    OmnistreamsLaw,
    gave_up,
    saw_the_end,
)

MESSAGE: Final = 1048576  # octets after type and id that we take
WINDOW: Final = 64  # messages a reader is ready for, unless it says otherwise
PREFIX: Final[i64] = 4
GIVEN_UP: Final[i64] = 1_000_000_000_000  # rank of an id whose stream the peer cancelled
UNPROVEN: Final[i64] = 2_000_000_000_000  # and of one whose end the peer may not have read


class Omnistreams(OmnistreamsLaw):
    """One conversation: the law, in one of two numberings, and the verbs."""

    def __init__(
        self, limits: Limits, vantage: i64, legacy: bool = False, carrier: str = ""
    ) -> None:
        super().__init__("omnistreams", RULES, KINDS, limits, vantage, carrier)
        self.legacy = legacy
        self.pasts = [None] * IDS
        self.freed = 0
        self.kind_of: vec[i64] = vec[i64]([UNKNOWN] * 256)
        self.type_of: vec[i64] = vec[i64]([i64(0)] * 8)
        for code in range(6 if legacy else 7):
            kind: i64 = LEGACY_KINDS[code] if legacy else code
            self.kind_of[code] = kind
        for number in range(7):
            self.type_of[number] = LEGACY_TYPES[number] if legacy else number
        self.credit = True
        self.two_way = False
        self.messages = True
        self.max_frame = limits.frame if limits.frame > 0 else MESSAGE
        self.send_frame = self.max_frame
        self.max_control = self.max_frame
        self.max_name = limits.metadata
        self.window = WINDOW
        self.too_long = MESSAGE_TOO_LONG
        self.truncated = TRUNCATED
        self.mutual = (
            CREATE_ON_OPEN_ID | CREDIT_EXCEEDED | REQUEST_ON_UNKNOWN_ID | CANCEL_ON_UNKNOWN_ID
        )
        self.sequel = DATA_ON_UNKNOWN_ID | END_ON_UNKNOWN_ID | SENT_AFTER_CANCEL
        self.streams.remembered = ALWAYS  # there are only 512 ids, and the last of each stays

    # --- wire

    def header(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        length = end - pos
        if not self.enveloped:
            if length < PREFIX:
                return SHORT
            length = unsigned(data, pos, 4)
            pos += PREFIX
        head.tail = 0
        head.parts = 0
        head.amount = -1
        head.text_size = -1
        head.units = 0
        head.flaws = 0
        head.opener = NO_STREAM
        if length == 0:
            head.kind = UNKNOWN
            head.size = 0
            head.flaws = EMPTY_MESSAGE
            return pos
        if pos == end:
            return SHORT
        code: i64 = data[pos]
        kind = self.kind_of[code]
        head.kind = kind
        if kind == CONTROL_MESSAGE:
            head.size = length - 1
            return pos + 1
        if kind == UNKNOWN:
            head.number = code
            head.size = length
            return pos
        if length == 1:
            head.size = 0
            head.flaws = BAD_LENGTH
            return pos + 1
        if end - pos < 2:
            return SHORT
        number: i64 = data[pos + 1]
        opener = sender if kind < REQUEST else 1 - sender
        head.number = number
        head.opener = opener
        head.key = number * 2 + opener
        head.size = length - 2
        if kind == DATA:
            head.units = 1
        return pos + 2

    def body(self, sender: i64, data: bytes, start: i64, end: i64, head: Head) -> None:
        kind = head.kind
        if kind == REQUEST:
            if end > start:
                head.amount = data[start]
        elif kind == CONTROL_MESSAGE or (kind == CREATE and head.size <= self.limits.metadata):
            head.text = start
            head.text_size = end - start

    def put(self, out: BytesWriter, sender: i64, head: Head, text: bytes) -> None:
        kind = head.kind
        size: i64 = head.size if kind == DATA else len(text)
        if kind == UNKNOWN:  # a raw message
            put_big_endian(out, size, 4)
        elif kind == CONTROL_MESSAGE:
            put_big_endian(out, size + 1, 4)
            out.append(u8(self.type_of[kind]))
        elif kind == REQUEST and head.amount >= 0:
            left = head.amount
            while left > COUNT_MAX:
                self.put_request(out, head.number, COUNT_MAX, 0)
                left -= COUNT_MAX
            self.put_request(out, head.number, left, size)
        else:
            put_big_endian(out, size + 2, 4)
            out.append(u8(self.type_of[kind]))
            out.append(u8(head.number))
        if kind != DATA:
            out.write(text)

    def put_request(self, out: BytesWriter, number: i64, count: i64, more: i64) -> None:
        put_big_endian(out, more + 3, 4)
        out.append(u8(self.type_of[REQUEST]))
        out.append(u8(number))
        out.append(u8(count))

    def address(self, sender: i64, head: Head) -> None:
        kind = head.kind
        head.number = (head.key >> 1) & 255
        if kind < 0 or kind >= UNKNOWN or kind == CONTROL_MESSAGE:
            if kind != CONTROL_MESSAGE:
                head.kind = UNKNOWN
            head.opener = NO_STREAM
            return
        head.opener = sender if kind < REQUEST else 1 - sender
        head.key = head.number * 2 + head.opener
        head.units = 1 if kind == DATA else 0
        if kind == REQUEST and head.amount >= 0:
            head.size += 1  # the count is payload, on the wire

    # --- verbs

    def allocate(self, side: i64) -> i64:
        """An id never used; else one the peer has provably let go of; else the longest free."""
        best = NO_ID
        best_rank: i64 = 0
        for number in range(256):
            key: i64 = number * 2 + side
            stream = self.streams.find(key)
            if stream is None:
                return key
            past = self.past(key)
            if not self.is_over(stream) or past.withdrawn:
                continue
            rank = past.freed
            if not saw_the_end(stream, 1 - side, self.sight):
                rank += GIVEN_UP if gave_up(stream, 1 - side) else UNPROVEN
            if best == NO_ID or rank < best_rank:
                best = key
                best_rank = rank
        return best

    def opening(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        return Frame(CREATE, key, name)

    def accepting(self, side: i64, stream: Stream, window: int) -> Frame | None:
        """The first request; from then on `read` keeps the writer supplied with as many."""
        if stream.lane is not None:
            stream.lane.window = window
        return self.granting(side, stream, window)

    def content_head(self, side: i64, stream: Stream, head: Head, final: bool) -> None:
        head.kind = DATA
        head.units = 1

    def cut(self, side: i64, stream: Stream, rest: i64, quantum: i64, last: bool) -> i64:
        own = stream.half(side)
        if own.spent >= own.granted or self.is_over(stream) or self.is_withdrawn(stream):
            return -1
        return rest  # a message is sent whole or not at all

    def ending_frame(self, side: i64, stream: Stream) -> Frame | None:
        return None if self.is_withdrawn(stream) else Frame(END, stream.key)

    def aborting(self, side: i64, stream: Stream, text: bytes) -> Frame | None:
        """Cancel, as writer or as reader; `text` has no place in the message.

        The legacy numbering has no word for the writer's cancel: nothing is sent, and the id stays
        taken until the peer cancels too.
        """
        if stream.opener != side:
            return self.refusing(side, stream)
        if self.legacy:
            self.past(stream.key).withdrawn = True
            return None
        return Frame(CANCEL_RECEIVE, stream.key, b"", -1, stream.incarnation)

    def refusing(self, side: i64, stream: Stream) -> Frame | None:
        if stream.opener == side:
            return None
        return Frame(CANCEL_SEND, stream.key, b"", -1, stream.incarnation)

    def granting(self, side: i64, stream: Stream, amount: int) -> Frame | None:
        """Ask for `amount` more messages; above 255 this is several messages on the wire."""
        if stream.opener == side or amount <= 0 or self.is_over(stream):
            return None
        if self.streams.find(stream.key) is not stream:  # its id was used again
            return None
        return Frame(REQUEST, stream.key, b"", amount, stream.incarnation)

    def paying(self, duty: Duty) -> Frame | None:
        stream = self.streams.find(duty.key)
        return Frame(duty.kind, duty.key, b"", -1, stream.incarnation if stream is not None else 0)

    def is_withdrawn(self, stream: Stream) -> bool:
        past = self.pasts[stream.key]
        return past is not None and past.withdrawn

    def dialect(self) -> str:
        return "legacy" if self.legacy else "spec"


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """`numbering=spec|legacy` of the types; `carrier=websocket|length`, without it found."""
    numbering = options.get("numbering", "spec")
    if numbering not in ("spec", "legacy"):
        raise ValueError(f"numbering is spec or legacy, not {numbering!r}")
    carrier = options.get("carrier", "")
    if carrier not in ("", "websocket", "length"):
        raise ValueError(f"carrier is websocket or length, not {carrier!r}")
    return Omnistreams(limits, vantage, numbering == "legacy", carrier)
