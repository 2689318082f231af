# mypyc: compiled
"""Streamux: requests in chunks, replies in chunks, cancels; each side may ask and answer.

Each side first announces in four bytes how it splits a header between length and id. A header is
`T R length id`, 16 or 32 bits, little endian; requests are laid out as their sender announced, and
so are the replies to them. A length of zero has a meaning of its own by T and R.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_le
from mypy_extensions import i64, u8

from polymux.core.errors import Unsupported
from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import PendingReply
from polymux.core.side import DIALER
from polymux.core.streams import ABORTED, NEVER, StreamState
from polymux.core.varint import AWAITING_HANDSHAKE, INCOMPLETE, INVALID
from polymux.protocols.options import parse_integer
from polymux.protocols.streamux.initiator import INITIATOR_MISSING, INITIATOR_VALID
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
from polymux.protocols.streamux.state import StreamuxState
from polymux.protocols.streamux.validation import ID_FREE, REQUEST_COMPLETE

U32_MAX: Final[i64] = 0xFFFFFFFF


class Streamux(StreamuxState):
    """One conversation. `initiator` is what a live endpoint announces."""

    def __init__(
        self, limits: Limits, vantage: i64, initiator: bytes = b"\x01\x10\x0e\x32"
    ) -> None:
        super().__init__(limits, vantage)
        self.initiator = initiator

    # --- wire

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        if end - pos >= 4 and self.shared_fields_mask > 0:
            word = i64(read_i32_le(data, pos)) & U32_MAX
            size = (word & self.shared_fields_mask) >> self.shared_id_bits
            if size > 0:  # the usual: a chunk that is not empty
                flags = word >> 30
                asker = sender ^ (flags & 1)
                number = word & self.shared_max_id
                head.kind = (flags >> 1) | ((flags & 1) << 1)
                head.stream_id = number
                head.opener = asker
                head.key = number * 2 + asker
                head.payload_size = size
                head.credit_cost = size
                head.trailer_size = 0
                head.parts_left = 0
                head.amount = -1
                head.text_size = -1
                flaws: i64 = 0
                if size > self.max_frame_bytes:
                    flaws = CHUNK_TOO_LONG
                head.format_violations = flaws
                return pos + 4
        return self.decode_header_slow(sender, data, pos, end, head)

    def decode_header_slow(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> i64:
        """Initiators, short headers, empty chunks and the messages that have no content."""
        own = self.dialer_layout if sender == DIALER else self.acceptor_layout
        other = self.acceptor_layout if sender == DIALER else self.dialer_layout
        head.clear()
        if own.status == INITIATOR_MISSING:
            head.kind = INITIATOR
            head.opener = NO_STREAM
            return pos + 4 if end - pos >= 4 else INCOMPLETE
        if other.status == INITIATOR_MISSING:
            return AWAITING_HANDSHAKE  # how replies are laid out is not known yet
        width = own.header_size
        if width == 0:
            return INVALID  # behind a bad initiator
        if width > end - pos:
            return INCOMPLETE
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
        if layout.header_size != width:
            self.undecodable_reason = "the initiator that lays out this header was bad"
            return INVALID
        kind = (flags >> 1) | (replying << 1)
        size = (word & layout.fields_mask) >> layout.id_bits
        head.stream_id = word & layout.max_id
        head.opener = sender ^ replying
        head.key = head.stream_id * 2 + head.opener
        if size == 0 and not (
            kind & TERMINATION_BIT
            and self.ends_started_message(sender, kind, self.streams.find(head.key))
        ):
            kind |= 4
            if kind == KEEP_ALIVE:
                head.opener = NO_STREAM
        head.kind = kind
        head.payload_size = size
        head.credit_cost = size
        if size > self.max_frame_bytes:
            head.format_violations = CHUNK_TOO_LONG
        return pos + width

    def decode_body(
        self, sender: i64, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> None:
        if head.kind == INITIATOR:
            head.text_start = start - 4
            head.text_size = 4

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        kind = head.kind
        if kind == INITIATOR:
            out.write(text)
            return
        layout = self.layout_of(1 - sender if kind & REPLY_BIT else sender)
        flags = ((kind & TERMINATION_BIT) << 1) | ((kind & REPLY_BIT) >> 1)
        word = (head.payload_size << layout.id_bits) | head.stream_id
        word |= flags << (layout.length_bits + layout.id_bits)
        for _ in range(layout.header_size):
            out.append(u8(word & 255))
            word >>= 8

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        if head.kind == INITIATOR:
            head.stream_id = 0
            head.opener = NO_STREAM
            return
        opener = 1 - sender if head.kind & REPLY_BIT else sender
        head.stream_id = head.key >> 1
        head.key = head.stream_id * 2 + opener
        head.opener = opener if head.kind != KEEP_ALIVE else NO_STREAM

    # --- verbs

    def handshake_frame(self, side: i64, nonce: bytes) -> Frame | None:
        return Frame(INITIATOR, 0, self.initiator)

    def next_free_key(self, side: i64) -> i64:
        """The key of the free id this side would use next, or NO_ID."""
        ids = self.ids_of(side)
        ids.active = True
        layout = self.layout_of(side)
        if layout.status != INITIATOR_VALID:
            return NO_ID
        while True:
            number = ids.peek(layout.max_id)
            if number < 0:
                return NO_ID
            key = number * 2 + side
            free = self.id_status(key, self.streams.find(key)) == ID_FREE
            if free and number not in ids.reserved:
                return key
            ids.pop(layout.max_id)

    def allocate(self, side: i64) -> i64:
        key = self.next_free_key(side)
        if key != NO_ID:
            ids = self.ids_of(side)
            ids.pop(self.layout_of(side).max_id)
            ids.reserved.add(key >> 1)
        return key

    def keep_alive_frame(self, side: i64) -> Frame | None:
        """A sign of life on the next free id; None if all are taken: the channel is not idle."""
        key = self.next_free_key(side)
        return None if key == NO_ID else Frame(KEEP_ALIVE, key)

    def timeout_seconds(self, side: i64) -> float:
        """Seconds this side means to wait for a reply; 0: it did not say."""
        tenths: int = self.layout_of(side).timeout_tenths
        return tenths / 10.0

    def keep_alive_interval(self, side: i64) -> float:
        """Seconds of silence after which this side should send a keep alive.

        A third of the time after which the other side may call it lagged, but at least a second;
        half a minute where the other side did not say.
        """
        patience = self.timeout_seconds(1 - side)
        if patience == 0.0:
            return 30.0
        return max(1.0, patience / 3.0)

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        if len(name) > 0:
            self.release_id(side, key >> 1)
            raise Unsupported("Streamux has no names: put what the request is about into its data")
        return None

    def reserve_stream(self, side: i64, key: i64) -> StreamState:
        return StreamState(key, key >> 1, side, 0)

    def release_id(self, side: i64, stream_id: i64) -> None:
        """An id that was drawn is not wanted after all."""
        ids = self.ids_of(side)
        ids.reserved.discard(stream_id)
        ids.release(stream_id)

    def cancel_unsent(self, side: i64, stream: StreamState) -> None:
        """A request of which nothing was sent is given up; nobody need know."""
        self.release_id(side, stream.stream_id)
        stream.half(side).stop(ABORTED, NEVER, False)
        stream.over = True

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        head.kind = REQUEST if stream.opener == side else REPLY
        if final:
            head.kind |= TERMINATION_BIT
        head.credit_cost = head.payload_size

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        if (
            stream.opener != side
            and not stream.protocol_state & REQUEST_COMPLETE
            and not stream.over
        ):
            return -1  # nothing is answered before it is asked
        longest = self.layout_of(stream.opener).max_chunk_bytes
        size = rest if rest < quantum else quantum
        if size > longest:
            size = longest
        if last and size == rest:
            return -1  # it may become the last chunk, and only the last chunk can say so
        return size

    def end_error(self, side: i64, stream: StreamState) -> str:
        lane = stream.buffers
        if stream.serial < 0 and lane is not None and lane.queued_bytes == 0:
            return "a request without data cannot be sent; send at least one byte, or abort it"
        return ""

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """Where nothing is left to carry the termination bit: an empty reply, mostly."""
        if stream.serial < 0:
            return None  # what was queued could not be sent
        if stream.opener == side:
            return Frame(REQUEST_LAST, stream.key, b"", -1, stream.incarnation)
        return self.end_reply_frame(side, stream)

    def end_reply_frame(self, side: i64, stream: StreamState) -> Frame | None:
        """End the reply without more data; where the request still runs, as soon as it is whole.

        The bytes of an empty reply also end a reply that has begun.
        """
        if stream.half(1 - side).state == ABORTED:
            return None
        if not stream.protocol_state & REQUEST_COMPLETE:
            self.expect_reply(side, EMPTY_REPLY, stream.key, 0, 0)
            return None
        return Frame(EMPTY_REPLY, stream.key, b"", -1, stream.incarnation)

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        """Cancel our own request; of the peer's, drop the rest and answer without more."""
        if stream.opener != side:
            return self.end_reply_frame(side, stream)
        if stream.serial < 0:
            self.cancel_unsent(side, stream)
            return None
        if self.is_over(stream):
            return None
        return Frame(CANCEL, stream.key, b"", -1, stream.incarnation)

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        if reply.kind == CANCEL_ACK:
            return Frame(CANCEL_ACK, reply.key)
        stream = self.streams.find(reply.key)
        return None if stream is None else self.end_reply_frame(reply.side, stream)


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """What we announce: `length_bits`, `id_bits`, and `timeout` in seconds (0: unspecified)."""
    length_bits = parse_integer(options.get("length_bits", "16"), "length_bits", 1)
    id_bits = parse_integer(options.get("id_bits", "14"), "id_bits", 1)
    if length_bits + id_bits != 14 and length_bits + id_bits != 30:
        raise ValueError(
            f"length_bits + id_bits is 14 or 30, not {length_bits} + {id_bits}; give both"
        )
    tenths = parse_timeout_tenths(options.get("timeout", "5"))
    return Streamux(limits, vantage, bytes([1, length_bits, id_bits, tenths]))


def parse_timeout_tenths(text: str) -> int:
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
