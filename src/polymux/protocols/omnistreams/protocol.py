# mypyc: compiled
"""omnistreams Multiplexer: one-way streams of messages, with credit counted in messages.

A message is `type id payload`; a control message has no id. On byte transports (TCP, files, pipes)
polymux puts a 4-byte big-endian length before each message; in WebSocket a message is one binary
WebSocket message.

A stream is one-way: its initiator writes, its acceptor requests messages or cancels. An id belongs
to the initiator and is reused without any frame that shows whether the other side has finished with
it; `id_history` holds what validation needs to know across uses.
"""

from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64, u8

from polymux.core.causality import Causality
from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import CROSSED, PendingReply
from polymux.core.streams import ABORTED, ENDED, OPEN, HalfStream, StreamState
from polymux.core.varint import INCOMPLETE, put_big_endian, read_big_endian
from polymux.core.websocket.layer import MessageProtocol
from polymux.protocols.omnistreams.id_history import IdHistory, has_read, load_id_history
from polymux.protocols.omnistreams.rules import (
    BAD_LENGTH,
    CANCEL_ON_UNKNOWN_ID,
    CANCEL_RECEIVE,
    CANCEL_SEND,
    CANCEL_WITH_PAYLOAD,
    CONTROL_MESSAGE,
    CREATE,
    CREATE_ON_OPEN_ID,
    CREDIT_EXCEEDED,
    DATA,
    DATA_ON_UNKNOWN_ID,
    DATA_UNANSWERED,
    EMPTY_MESSAGE,
    END,
    END_ON_UNKNOWN_ID,
    END_WITH_PAYLOAD,
    KINDS,
    LEGACY_KINDS,
    LEGACY_TYPES,
    MESSAGE_TOO_LONG,
    METADATA_TOO_LONG,
    REQUEST,
    REQUEST_ON_UNKNOWN_ID,
    RULES,
    SENT_AFTER_CANCEL,
    TRUNCATED,
    UNKNOWN_MESSAGE,
    UNKNOWN_TYPE,
)

KEY_COUNT: Final[i64] = 512  # 256 ids of each side
MAX_REQUEST_COUNT: Final[i64] = 255  # one byte
MAX_REQUEST_AMOUNT: Final = 1048576  # messages per request frame; encoded as up to 4113 requests
REMEMBER_ALL: Final[i64] = 1_000_000_000_000  # effectively unlimited

DEFAULT_MAX_MESSAGE_BYTES: Final = 1048576  # bytes after type and id
DEFAULT_WINDOW_MESSAGES: Final = 64  # messages a reader requests by default
LENGTH_PREFIX_BYTES: Final[i64] = 4
UNKNOWN_CREDIT: Final[i64] = 1_000_000_000_000_000  # messages; requests of them were not seen
# Evidence of a header (`Protocol.header_evidence`):
TYPE_BITS: Final[i64] = 5
LENGTH_BITS: Final[i64] = 11
# Added to the rank of a closed id in `allocate`, which picks the lowest:
CANCELLED_ID_RANK: Final[i64] = 1_000_000_000_000  # the peer cancelled its stream
UNCONFIRMED_ID_RANK: Final[i64] = 2_000_000_000_000  # the peer may not have read its end


class Omnistreams(MessageProtocol):
    """omnistreams on one connection.

    `legacy` selects the numbering of existing implementations, which has no CANCEL_RECEIVE_STREAM;
    `carrier` is "websocket", "length", or "" to detect the encapsulation.
    """

    def __init__(
        self, limits: Limits, vantage: i64, legacy: bool = False, carrier: str = ""
    ) -> None:
        super().__init__("omnistreams", RULES, KINDS, limits, vantage, carrier)
        self.legacy = legacy
        self.id_histories: list[IdHistory | None] = [None] * KEY_COUNT  # by key
        self.streams_closed: i64 = 0
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
        self.frame_rules = (
            EMPTY_MESSAGE
            | UNKNOWN_TYPE
            | BAD_LENGTH
            | MESSAGE_TOO_LONG
            | METADATA_TOO_LONG
            | END_WITH_PAYLOAD
            | CANCEL_WITH_PAYLOAD
        )
        self.can_begin_anywhere = True
        self.streams.max_closed = REMEMBER_ALL  # at most 512: the last stream of each id is kept

    # Decoding and encoding

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

    def body_structure(
        self, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> list[tuple[int, int]]:
        # The count of a request, or an unknown type.
        if end > start and (head.kind == REQUEST or head.kind == UNKNOWN_MESSAGE):
            return [(int(start), int(start) + 1)]
        return []

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

    # Frames that were not seen

    def header_evidence(self, sender: i64, head: FrameHeader) -> i64:
        kind = head.kind
        size = head.payload_size
        if (
            kind == UNKNOWN_MESSAGE
            or size > self.max_frame_bytes
            or (kind == REQUEST and size != 1)
            or ((kind == END or kind == CANCEL_SEND or kind == CANCEL_RECEIVE) and size > 0)
        ):
            return -1
        return TYPE_BITS if self.encapsulated else TYPE_BITS + LENGTH_BITS

    def adopt_stream(self, sender: i64, head: FrameHeader) -> StreamState | None:
        made = super().adopt_stream(sender, head)
        if made is not None:
            self.forget_unseen(made)
        return made

    def forget_unseen(self, stream: StreamState) -> None:
        writer = stream.half(stream.opener)
        writer.promised_limit = UNKNOWN_CREDIT
        stream.protocol_state = UNKNOWN_CREDIT

    # Validation

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        if kind == DATA and stream is not None:
            return self.validate_data(sender, head, stream)
        if kind == UNKNOWN_MESSAGE:
            return EMPTY_MESSAGE if head.payload_size == 0 else UNKNOWN_TYPE
        violations: i64 = 0
        if head.payload_size > self.max_control_bytes:
            violations = MESSAGE_TOO_LONG
        if head.opener == NO_STREAM:
            return violations  # a control message, or one without an id (reported by decode_header)
        if kind == CREATE:
            if head.payload_size > self.limits.max_metadata_bytes:
                violations |= METADATA_TOO_LONG
            if stream is not None and not self.is_over(stream):
                history = self.id_histories[stream.key]
                ambiguous = history is not None and history.cancel_is_ambiguous
                violations |= CROSSED if ambiguous else CREATE_ON_OPEN_ID
        elif kind == DATA:
            violations |= DATA_ON_UNKNOWN_ID
        elif kind == END:
            if head.payload_size > 0:
                violations |= END_WITH_PAYLOAD
            violations |= self.validate_writer_stop(
                sender, stream, END_ON_UNKNOWN_ID, SENT_AFTER_CANCEL
            )
        elif kind == CANCEL_RECEIVE:
            if head.payload_size > 0:
                violations |= CANCEL_WITH_PAYLOAD
            if self.legacy:
                violations |= UNKNOWN_TYPE
            violations |= self.validate_writer_stop(
                sender, stream, CANCEL_ON_UNKNOWN_ID, CANCEL_ON_UNKNOWN_ID
            )
        elif kind == CANCEL_SEND:
            if head.payload_size > 0:
                violations |= CANCEL_WITH_PAYLOAD
            if (sender, CANCEL_SEND, head.key) not in self.pending_replies:
                violations |= self.validate_reader_message(sender, stream, CANCEL_ON_UNKNOWN_ID)
        else:
            if head.payload_size != 1 or head.amount < 0 or head.amount > MAX_REQUEST_AMOUNT:
                violations |= BAD_LENGTH
            violations |= self.validate_reader_message(sender, stream, REQUEST_ON_UNKNOWN_ID)
        return violations

    def validate_data(self, sender: i64, head: FrameHeader, stream: StreamState) -> i64:
        own = stream.half(sender)
        violations: i64 = 0
        if own.state != OPEN:
            return DATA_ON_UNKNOWN_ID
        peer = stream.half(1 - sender)
        if peer.state != OPEN:
            violations = (
                SENT_AFTER_CANCEL
                if self.causality.had_seen(sender, peer.end_frame_index)
                else CROSSED
            )
        if own.credit_spent >= own.promised_limit:
            violations |= CREDIT_EXCEEDED
        if head.payload_size > self.max_frame_bytes:
            violations |= MESSAGE_TOO_LONG
        return violations

    def validate_writer_stop(
        self, sender: i64, stream: StreamState | None, unknown_id_rule: i64, after_cancel_rule: i64
    ) -> i64:
        """Validate END or CANCEL_RECEIVE: the stream is unknown, or its cancel was read."""
        if stream is None or stream.half(sender).state != OPEN:
            return unknown_id_rule
        peer = stream.half(1 - sender)
        if peer.state == OPEN:
            return 0
        return (
            after_cancel_rule if self.causality.had_seen(sender, peer.end_frame_index) else CROSSED
        )

    def validate_reader_message(
        self, sender: i64, stream: StreamState | None, unknown_id_rule: i64
    ) -> i64:
        """Validate REQUEST or CANCEL_SEND of the acceptor: late only if it had seen the end."""
        if stream is None:
            return unknown_id_rule
        own = stream.half(sender)
        writer = stream.half(1 - sender)
        if own.state == OPEN and writer.state == OPEN:
            return 0
        if may_refer_to_previous_use(stream, sender, self.causality):
            return CROSSED
        if own.state != OPEN:
            return 0 if own.end_is_ambiguous else unknown_id_rule
        return (
            unknown_id_rule if self.causality.had_seen(sender, writer.end_frame_index) else CROSSED
        )

    def is_over(self, stream: StreamState) -> bool:
        return stream.dialer.state != OPEN or stream.acceptor.state != OPEN

    # State changes

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        if kind == DATA and stream is not None:
            self.frame_stream = stream
            own = stream.half(sender)
            if own.state == OPEN:
                own.credit_spent += 1
                self.content_counts = True
                if own.credit_spent > stream.protocol_state:
                    self.use_requested_credit(sender, stream, own)
            else:
                self.apply_stray_data(sender, head.key, timestamp)
        elif head.opener == NO_STREAM:
            return
        elif kind == CREATE:
            self.apply_create(sender, head, stream)
        elif kind == DATA:
            self.apply_stray_data(sender, head.key, timestamp)
        elif kind == REQUEST:
            self.apply_request(sender, head, stream)
        elif kind == CANCEL_SEND:
            self.apply_cancel_send(sender, head, stream)
        elif stream is not None:
            self.frame_stream = stream
            own = stream.half(sender)
            if own.state == OPEN:
                own.stop(
                    ENDED if kind == END else ABORTED, self.causality.frames_sent(sender), False
                )
                if kind == CANCEL_RECEIVE and stream.reset_by < 0:
                    stream.reset_by = sender
                self.record_ending(stream, "clean" if kind == END else "cancelled")

    def apply_create(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        made = StreamState(head.key, head.stream_id, sender, self.causality.frames_sent(sender))
        own = made.half(sender)
        own.credit_granted = 0
        history = self.id_history(head.key)
        own.promised_limit = history.start_new_use(sender, self.causality)
        if stream is not None:
            made.incarnation = stream.incarnation + 1
            if has_seen_end(stream, 1 - sender, self.causality):
                if has_read(1 - sender, history.last_stray_data_index, self.causality):
                    history.had_stray_data = False
            elif has_cancelled(stream, 1 - sender):
                if stream.half(sender).credit_spent > 0:
                    history.had_stray_data = True  # the spec has it cancel that data again
            else:
                made.answerable_open_index = stream.answerable_open_index
            if not self.is_over(stream):
                if not stream.unseen:
                    stream.ending = "abandoned"
                self.replaced_stream = stream
        made.name = self.frame_text if head.payload_size <= self.limits.max_metadata_bytes else None
        self.reply_received(1 - sender, CANCEL_SEND, head.key)
        self.streams.insert(made)
        self.frame_stream = made

    def apply_request(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        amount = head.amount
        if amount > 0:
            self.id_history(head.key).add_request(self.causality.frames_sent(sender), amount)
        if stream is not None:
            self.frame_stream = stream
            stream.record_reply(sender, self.causality)
            if amount > 0:
                writer = stream.half(1 - sender)
                if writer.credit_granted >= 0:
                    writer.credit_granted += amount
                writer.promised_limit += amount
        while amount > MAX_REQUEST_COUNT:  # sent by this endpoint: several messages on the wire
            self.causality.record_sent(sender)
            amount -= MAX_REQUEST_COUNT

    def apply_cancel_send(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        history = self.id_history(head.key)
        history.last_cancel_index = self.causality.frames_sent(sender)
        history.cancelled_since_create = True
        history.cancelled_silently = False
        self.reply_received(sender, CANCEL_SEND, head.key)
        if stream is None:
            return
        self.frame_stream = stream
        ambiguous = history.had_stray_data or may_refer_to_previous_use(
            stream, sender, self.causality
        )
        if not history.had_stray_data:  # else it may answer data from before this stream
            stream.record_reply(sender, self.causality)
        own = stream.half(sender)
        if own.state == OPEN or (own.end_is_ambiguous and not ambiguous):
            own.stop(ABORTED, self.causality.frames_sent(sender), ambiguous)
            if stream.reset_by < 0:
                stream.reset_by = sender
            self.record_ending(stream, "cancelled")

    def apply_stray_data(self, sender: i64, key: i64, timestamp: i64) -> None:
        """Handle data for no open stream: expect one cancel, unless the id is reused first."""
        history = self.id_history(key)
        history.had_stray_data = True
        history.last_stray_data_index = self.causality.frames_sent(sender)
        if not history.cancelled_since_create:
            self.expect_reply(1 - sender, CANCEL_SEND, key, DATA_UNANSWERED, timestamp)

    def use_requested_credit(self, sender: i64, stream: StreamState, own: HalfStream) -> None:
        """Take credit from the next requests; the data's sender has therefore read them."""
        history = self.id_history(stream.key)
        while own.credit_spent > stream.protocol_state:
            amount = history.use_next_request(sender, self.causality)
            if amount == 0:
                return
            stream.protocol_state += amount

    def record_ending(self, stream: StreamState, ending: str) -> None:
        """Record how a stream ended. The first frame that ends it decides."""
        if not stream.ending:
            stream.ending = ending
            self.streams_closed += 1
            self.id_history(stream.key).close_order = self.streams_closed

    def id_history(self, key: i64) -> IdHistory:
        """Return the history of an id; create it if there is none."""
        history = self.id_histories[key]
        if history is None:
            history = IdHistory()
            self.id_histories[key] = history
        return history

    # Frames to send

    def allocate(self, side: i64) -> i64:
        """Return an id that was never used, or else the one that is the safest to reuse.

        Preferred are ids whose end the peer has provably read, then ids that the peer cancelled;
        among equals, the one closed longest ago. NO_ID if all are in use.
        """
        best = NO_ID
        best_rank: i64 = 0
        for number in range(256):
            key: i64 = number * 2 + side
            stream = self.streams.find(key)
            if stream is None:
                return key
            history = self.id_history(key)
            if not self.is_over(stream) or history.cancelled_silently:
                continue
            rank = history.close_order
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
        """Return the first request; `Endpoint.read` then keeps `window` messages requested."""
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
        return rest  # a message is never split

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        return None if self.is_cancelled_silently(stream) else Frame(END, stream.key)

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        """Cancel as writer or as reader. The message cannot carry `text`.

        The legacy numbering has no writer's cancel: nothing is sent, and the id stays in use until
        the peer cancels too.
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
        """Request `amount` more messages; above 255 this takes several messages on the wire."""
        if stream.opener == side or amount <= 0 or self.is_over(stream):
            return None
        if self.streams.find(stream.key) is not stream:  # the id was reused
            return None
        return Frame(REQUEST, stream.key, b"", amount, stream.incarnation)

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        stream = self.streams.find(reply.key)
        return Frame(
            reply.kind, reply.key, b"", -1, stream.incarnation if stream is not None else 0
        )

    def is_cancelled_silently(self, stream: StreamState) -> bool:
        """Return whether the writer aborted without a message (legacy numbering)."""
        history = self.id_histories[stream.key]
        return history is not None and history.cancelled_silently

    # Descriptions

    def ending(self, stream: StreamState) -> str:
        return stream.ending if stream.ending else "open"

    def dialect(self) -> str:
        return "legacy" if self.legacy else "spec"

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        text = super().explain(rule, sender, head, stream)
        if rule == UNKNOWN_TYPE and head.kind == UNKNOWN_MESSAGE:
            return f"{text}, type {head.stream_id}"
        if rule == METADATA_TOO_LONG:
            return f"{text}: {self.limits.describe('max_metadata_bytes')}"
        if rule == MESSAGE_TOO_LONG:
            return (
                f"{text}: limit max_frame_bytes={self.max_frame_bytes}; "
                "raise it with Limits(max_frame_bytes=...)"
            )
        if rule == CREDIT_EXCEEDED and stream is not None:
            own = stream.half(sender)
            return (
                f"{text}: message {own.credit_spent + 1}, and {own.credit_granted} were requested"
            )
        if stream is None and head.opener != NO_STREAM:
            return f"{text}: id {head.stream_id} was never created"
        return text

    # Saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["streams_closed"] = int(self.streams_closed)
        histories: list[object] = []
        for key in range(KEY_COUNT):
            history = self.id_histories[key]
            if history is not None:
                histories.append([key, history.save()])
        saved["id_histories"] = histories
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        closed, histories = saved["streams_closed"], saved["id_histories"]
        # Saved state is untyped; `save` writes these types.
        assert isinstance(closed, int)
        assert isinstance(histories, list)
        self.streams_closed = closed
        for key, entry in histories:
            self.id_histories[key] = load_id_history(entry)


def may_refer_to_previous_use(stream: StreamState, reader: i64, causality: Causality) -> bool:
    """Return whether a message of the acceptor may belong to an earlier use of the id."""
    return stream.answerable_open_index != stream.open_frame_index and not causality.had_seen(
        reader, stream.open_frame_index
    )


def has_seen_end(stream: StreamState, reader: i64, causality: Causality) -> bool:
    """Return whether the acceptor has provably read the end of this stream."""
    writer = stream.half(1 - reader)
    return writer.state != OPEN and has_read(reader, writer.end_frame_index, causality)


def has_cancelled(stream: StreamState, reader: i64) -> bool:
    """Return whether the acceptor has certainly cancelled this use of the id."""
    own = stream.half(reader)
    return own.state != OPEN and not own.end_is_ambiguous


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """Make an `Omnistreams` from the options of a protocol string.

    `numbering=spec|legacy` selects the type numbers; `carrier=websocket|length` the encapsulation,
    which is detected if the option is absent.
    """
    numbering = options.get("numbering", "spec")
    if numbering not in ("spec", "legacy"):
        raise ValueError(f"numbering is spec or legacy, not {numbering!r}")
    carrier = options.get("carrier", "")
    if carrier not in ("", "websocket", "length"):
        raise ValueError(f"carrier is websocket or length, not {carrier!r}")
    return Omnistreams(limits, vantage, numbering == "legacy", carrier)
