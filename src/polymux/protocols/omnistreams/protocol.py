# mypyc: compiled
"""omnistreams Multiplexer: one-way streams of messages, with credit counted in messages.

A message is `type id payload`; a control message has no id. On bytes (TCP, files, pipes) polymux
puts a 4-byte big-endian length before each; in WebSocket a message is a binary message.
"""

from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64, u8

from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import PendingReply
from polymux.core.streams import StreamState
from polymux.core.varint import INCOMPLETE, put_big_endian, read_big_endian
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
    UNKNOWN_MESSAGE,
)
from polymux.protocols.omnistreams.state import (
    KEY_COUNT,
    MAX_REQUEST_COUNT,
    REMEMBER_ALL,
    OmnistreamsState,
    has_cancelled,
    has_seen_end,
)

DEFAULT_MAX_MESSAGE_BYTES: Final = 1048576  # bytes after type and id that we take
DEFAULT_WINDOW_MESSAGES: Final = 64  # messages a reader is ready for, unless it says otherwise
LENGTH_PREFIX_BYTES: Final[i64] = 4
CANCELLED_ID_RANK: Final[i64] = 1_000_000_000_000  # rank of an id whose stream the peer cancelled
UNCONFIRMED_ID_RANK: Final[i64] = (
    2_000_000_000_000  # and of one whose end the peer may not have read
)


class Omnistreams(OmnistreamsState):
    """One conversation: the law, in one of two numberings, and the verbs."""

    def __init__(
        self, limits: Limits, vantage: i64, legacy: bool = False, carrier: str = ""
    ) -> None:
        super().__init__("omnistreams", RULES, KINDS, limits, vantage, carrier)
        self.legacy = legacy
        self.id_histories = [None] * KEY_COUNT
        self.streams_closed = 0
        self.kind_by_type: vec[i64] = vec[i64]([UNKNOWN_MESSAGE] * 256)
        self.type_by_kind: vec[i64] = vec[i64]([i64(0)] * 8)
        for code in range(6 if legacy else 7):
            kind: i64 = LEGACY_KINDS[code] if legacy else code
            self.kind_by_type[code] = kind
        for number in range(7):
            self.type_by_kind[number] = LEGACY_TYPES[number] if legacy else number
        self.has_credit = True
        self.two_way = False
        self.content_is_messages = True
        self.max_frame_bytes = (
            limits.max_frame_bytes if limits.max_frame_bytes > 0 else DEFAULT_MAX_MESSAGE_BYTES
        )
        self.max_sent_frame_bytes = self.max_frame_bytes
        self.max_control_bytes = self.max_frame_bytes
        self.max_name_bytes = limits.max_metadata_bytes
        self.receive_window = DEFAULT_WINDOW_MESSAGES
        self.too_long_rule = MESSAGE_TOO_LONG
        self.truncated_rule = TRUNCATED
        self.peer_dependent_rules = (
            CREATE_ON_OPEN_ID | CREDIT_EXCEEDED | REQUEST_ON_UNKNOWN_ID | CANCEL_ON_UNKNOWN_ID
        )
        self.history_dependent_rules = DATA_ON_UNKNOWN_ID | END_ON_UNKNOWN_ID | SENT_AFTER_CANCEL
        self.streams.max_closed = REMEMBER_ALL  # there are only 512 ids, and the last of each stays

    # --- wire

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        length = end - pos
        if not self.encapsulated:
            if length < LENGTH_PREFIX_BYTES:
                return INCOMPLETE
            length = read_big_endian(data, pos, 4)
            pos += LENGTH_PREFIX_BYTES
        head.trailer_size = 0
        head.parts_left = 0
        head.amount = -1
        head.text_size = -1
        head.credit_cost = 0
        head.format_violations = 0
        head.opener = NO_STREAM
        if length == 0:
            head.kind = UNKNOWN_MESSAGE
            head.payload_size = 0
            head.format_violations = EMPTY_MESSAGE
            return pos
        if pos == end:
            return INCOMPLETE
        code: i64 = data[pos]
        kind = self.kind_by_type[code]
        head.kind = kind
        if kind == CONTROL_MESSAGE:
            head.payload_size = length - 1
            return pos + 1
        if kind == UNKNOWN_MESSAGE:
            head.stream_id = code
            head.payload_size = length
            return pos
        if length == 1:
            head.payload_size = 0
            head.format_violations = BAD_LENGTH
            return pos + 1
        if end - pos < 2:
            return INCOMPLETE
        number: i64 = data[pos + 1]
        opener = sender if kind < REQUEST else 1 - sender
        head.stream_id = number
        head.opener = opener
        head.key = number * 2 + opener
        head.payload_size = length - 2
        if kind == DATA:
            head.credit_cost = 1
        return pos + 2

    def decode_body(
        self, sender: i64, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> None:
        kind = head.kind
        if kind == REQUEST:
            if end > start:
                head.amount = data[start]
        elif kind == CONTROL_MESSAGE or (
            kind == CREATE and head.payload_size <= self.limits.max_metadata_bytes
        ):
            head.text_start = start
            head.text_size = end - start

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        kind = head.kind
        size: i64 = head.payload_size if kind == DATA else len(text)
        if kind == UNKNOWN_MESSAGE:  # a raw message
            put_big_endian(out, size, 4)
        elif kind == CONTROL_MESSAGE:
            put_big_endian(out, size + 1, 4)
            out.append(u8(self.type_by_kind[kind]))
        elif kind == REQUEST and head.amount >= 0:
            left = head.amount
            while left > MAX_REQUEST_COUNT:
                self.encode_request(out, head.stream_id, MAX_REQUEST_COUNT, 0)
                left -= MAX_REQUEST_COUNT
            self.encode_request(out, head.stream_id, left, size)
        else:
            put_big_endian(out, size + 2, 4)
            out.append(u8(self.type_by_kind[kind]))
            out.append(u8(head.stream_id))
        if kind != DATA:
            out.write(text)

    def encode_request(self, out: BytesWriter, stream_id: i64, count: i64, more: i64) -> None:
        put_big_endian(out, more + 3, 4)
        out.append(u8(self.type_by_kind[REQUEST]))
        out.append(u8(stream_id))
        out.append(u8(count))

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        kind = head.kind
        head.stream_id = (head.key >> 1) & 255
        if kind < 0 or kind >= UNKNOWN_MESSAGE or kind == CONTROL_MESSAGE:
            if kind != CONTROL_MESSAGE:
                head.kind = UNKNOWN_MESSAGE
            head.opener = NO_STREAM
            return
        head.opener = sender if kind < REQUEST else 1 - sender
        head.key = head.stream_id * 2 + head.opener
        head.credit_cost = 1 if kind == DATA else 0
        if kind == REQUEST and head.amount >= 0:
            head.payload_size += 1  # the count is payload, on the wire

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
            past = self.id_history(key)
            if not self.is_over(stream) or past.cancelled_silently:
                continue
            rank = past.close_order
            if not has_seen_end(stream, 1 - side, self.causality):
                rank += (
                    CANCELLED_ID_RANK if has_cancelled(stream, 1 - side) else UNCONFIRMED_ID_RANK
                )
            if best == NO_ID or rank < best_rank:
                best = key
                best_rank = rank
        return best

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        return Frame(CREATE, key, name)

    def accept_frame(self, side: i64, stream: StreamState, window: int) -> Frame | None:
        """The first request; from then on `read` keeps the writer supplied with as many."""
        if stream.buffers is not None:
            stream.buffers.target_window = window
        return self.credit_frame(side, stream, window)

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        head.kind = DATA
        head.credit_cost = 1

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        own = stream.half(side)
        if (
            own.credit_spent >= own.credit_granted
            or self.is_over(stream)
            or self.is_cancelled_silently(stream)
        ):
            return -1
        return rest  # a message is sent whole or not at all

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        return None if self.is_cancelled_silently(stream) else Frame(END, stream.key)

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        """Cancel, as writer or as reader; `text` has no place in the message.

        The legacy numbering has no word for the writer's cancel: nothing is sent, and the id stays
        taken until the peer cancels too.
        """
        if stream.opener != side:
            return self.stop_reading_frame(side, stream)
        if self.legacy:
            self.id_history(stream.key).cancelled_silently = True
            return None
        return Frame(CANCEL_RECEIVE, stream.key, b"", -1, stream.incarnation)

    def stop_reading_frame(self, side: i64, stream: StreamState) -> Frame | None:
        if stream.opener == side:
            return None
        return Frame(CANCEL_SEND, stream.key, b"", -1, stream.incarnation)

    def credit_frame(self, side: i64, stream: StreamState, amount: int) -> Frame | None:
        """Ask for `amount` more messages; above 255 this is several messages on the wire."""
        if stream.opener == side or amount <= 0 or self.is_over(stream):
            return None
        if self.streams.find(stream.key) is not stream:  # its id was used again
            return None
        return Frame(REQUEST, stream.key, b"", amount, stream.incarnation)

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        stream = self.streams.find(reply.key)
        return Frame(
            reply.kind, reply.key, b"", -1, stream.incarnation if stream is not None else 0
        )

    def is_cancelled_silently(self, stream: StreamState) -> bool:
        past = self.id_histories[stream.key]
        return past is not None and past.cancelled_silently

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
