# mypyc: compiled
"""Nerdbank MultiplexingStream v1, v2, v3: one rule book over three wires.

Channels are offered by name, accepted or rejected, carry content both ways under receiving windows
(not in v1), and end by writing-completed from both sides and one termination from each.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import Frame, FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import PendingReply
from polymux.core.side import DIALER, NEITHER_SIDE
from polymux.core.streams import NEVER, StreamState
from polymux.core.varint import AWAITING_HANDSHAKE
from polymux.protocols.nerdbank.codec import (
    ACCEPTED,
    CONTENT_FRAME,
    HANDSHAKE,
    MAGIC,
    MALFORMED,
    MAX_SENT_PAYLOAD,
    OFFER,
    PROCESSED,
    READING_COMPLETED,
    TERMINATED,
    WINDOW_ADJUST,
    WRITING_COMPLETED,
    decode_content_header_v3,
    decode_handshake_v1,
    decode_handshake_v2,
    decode_header_v1,
    decode_header_v2_v3,
    decode_payload_v2_v3,
    encode_frame_v1,
    encode_frame_v2_v3,
)
from polymux.protocols.nerdbank.rules import FRAME_TOO_LONG, PAYLOAD_TOO_LONG
from polymux.protocols.nerdbank.state import NerdbankState
from polymux.protocols.option_values import parse_integer

MAX_ALLOCATED_ID: Final = 0x7FFFFFFF  # ids above this kill TypeScript peers
WINDOW_GROWTH_FACTOR: Final = 4  # a window that is asked to grow becomes this many times as large


class Nerdbank(NerdbankState):
    """One conversation: the law, on the wire of its version, and the verbs."""

    # --- wire

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        head.clear()
        start: i64
        if self.major_version == 3:
            start = decode_content_header_v3(data, pos, end, sender, head)
            if start > 0:
                return start
            start = decode_header_v2_v3(data, pos, end, 3, self.max_frame_bytes, sender, head)
        else:
            if len(self.dialer_random if sender == DIALER else self.acceptor_random) == 0:
                return self.decode_handshake(data, pos, end, head)
            if not self.handshake_done:
                return AWAITING_HANDSHAKE  # whose ids are odd is not known yet
            if self.major_version == 2:
                start = decode_header_v2_v3(data, pos, end, 2, self.max_frame_bytes, sender, head)
            else:
                start = decode_header_v1(data, pos, end, head)
            head.opener = self.odd_id_side if head.stream_id & 1 else 1 - self.odd_id_side
        if start < 0:
            return start
        if head.kind == MALFORMED:
            head.opener = NO_STREAM
            return start
        head.key = head.stream_id * 4 + head.opener
        head.credit_cost = head.payload_size
        if head.payload_size > MAX_SENT_PAYLOAD:
            head.format_violations |= (
                FRAME_TOO_LONG if head.payload_size > self.max_frame_bytes else PAYLOAD_TOO_LONG
            )
        return start

    def decode_handshake(self, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        head.kind = HANDSHAKE
        head.opener = NO_STREAM
        if self.major_version == 1:
            return decode_handshake_v1(data, pos, end, head)
        return decode_handshake_v2(data, pos, end, self.limits.max_control_bytes, head)

    def decode_body(
        self, sender: i64, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> None:
        if head.kind == HANDSHAKE or (self.major_version == 1 and head.kind == OFFER):
            head.text_start = start
            head.text_size = end - start
        elif self.major_version > 1 and head.kind != MALFORMED:
            decode_payload_v2_v3(data, start, end, self.limits.max_peer_window, head)

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        if head.kind == HANDSHAKE:
            out.write(MAGIC if self.major_version == 1 else b"\x92\x92\x02\x00\xc4\x10")
            out.write(text)
        elif self.major_version == 1:
            encode_frame_v1(out, head, text)
        else:
            encode_frame_v2_v3(out, self.major_version, sender, head, text)

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        head.stream_id = head.key >> 2
        if self.major_version < 3:
            head.key = head.stream_id * 4 + (
                self.odd_id_side if head.stream_id & 1 else 1 - self.odd_id_side
            )
        elif head.key & 3 > NEITHER_SIDE:
            head.key = head.stream_id * 4 + 1 - sender
        head.opener = NO_STREAM if head.kind >= MALFORMED else head.key & 3

    # --- verbs

    def handshake_frame(self, side: i64, nonce: bytes) -> Frame | None:
        return None if self.major_version == 3 else Frame(HANDSHAKE, 0, nonce)

    def allocate(self, side: i64) -> i64:
        number = self.next_dialer_id if side == DIALER else self.next_acceptor_id
        if number == 0:
            if self.major_version == 3:
                number = 1 + (len(self.seeded_windows) if self.seeded_windows is not None else 0)
            elif not self.handshake_done:
                return NO_ID
            else:
                number = 1 if self.odd_id_side == side else 2
        if number > MAX_ALLOCATED_ID:
            return NO_ID
        step: i64 = 1 if self.major_version == 3 else 2
        if side == DIALER:
            self.next_dialer_id = number + step
        else:
            self.next_acceptor_id = number + step
        return number * 4 + side

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        return Frame(OFFER, key, name, window if self.has_credit else -1)

    def accept_frame(self, side: i64, stream: StreamState, window: int) -> Frame | None:
        if stream.half(1 - side).last_frame_index != NEVER:
            return None  # withdrawn: only our own termination may follow
        return Frame(ACCEPTED, stream.key, b"", window if self.has_credit else -1)

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        head.kind = CONTENT_FRAME
        head.credit_cost = head.payload_size

    def next_frame_size(
        self, side: i64, stream: StreamState, rest: i64, quantum: i64, last: bool
    ) -> i64:
        own = stream.half(side)
        if not stream.accepted or stream.half(1 - side).last_frame_index != NEVER:
            return -1
        size = rest if rest < quantum else quantum
        if own.credit_granted >= 0 and own.credit_granted - own.credit_spent < size:
            size = own.credit_granted - own.credit_spent
        return size if size > 0 else -1

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        return Frame(WRITING_COMPLETED, stream.key)

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        return Frame(TERMINATED, stream.key, text if self.major_version > 1 else b"")

    def stop_reading_frame(self, side: i64, stream: StreamState) -> Frame | None:
        return Frame(READING_COMPLETED, stream.key) if self.major_version > 1 else None

    def credit_frame(self, side: i64, stream: StreamState, amount: int) -> Frame | None:
        return Frame(PROCESSED, stream.key, b"", amount) if self.has_credit else None

    def reply_frame(self, reply: PendingReply) -> Frame | None:
        if reply.kind != WINDOW_ADJUST:
            return super().reply_frame(reply)
        stream = self.streams.find(reply.key)
        window = 0 if stream is None else self.grown_window(reply.side, stream)
        return Frame(WINDOW_ADJUST, reply.key, b"", window) if window > 0 else None

    def reply_discards_queued(self, reply: PendingReply) -> bool:
        return reply.kind != WINDOW_ADJUST

    def defers_reply(self, reply: PendingReply) -> bool:
        return reply.kind == WINDOW_ADJUST

    def grown_window(self, side: i64, stream: StreamState) -> int:
        """The window to answer a growth request with; the same again is a refusal.

        It grows only while the reader keeps up, and within what all channels may grow together.
        """
        window = stream.half(1 - side).window
        lane = stream.buffers
        wish = min(window * WINDOW_GROWTH_FACTOR, self.limits.max_receive_window)
        if wish <= window or (lane is not None and lane.unread_bytes > 0):
            return window
        grown = 0
        for other in self.streams.slots:
            if not other.over and other.half(1 - side).window > self.receive_window:
                grown += other.half(1 - side).window - self.receive_window
        return wish if grown + wish - window <= self.limits.max_window_growth_total else window

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["randoms"] = [self.dialer_random, self.acceptor_random]
        saved["numbers"] = [self.odd_id_side, self.next_dialer_id, self.next_acceptor_id]
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        randoms, numbers = saved["randoms"], saved["numbers"]
        assert isinstance(randoms, list)
        assert isinstance(numbers, list)
        self.dialer_random, self.acceptor_random = randoms[0], randoms[1]
        self.odd_id_side, self.next_dialer_id, self.next_acceptor_id = (
            numbers[0],
            numbers[1],
            numbers[2],
        )

    def version(self) -> str:
        return str(self.major_version)


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """`version=1|2|3`; `window` we announce; `seeded=102400+500`, the seeded channels' windows."""
    version = parse_integer(options.get("version", "3"), "version", 1)
    if version > 3:
        raise ValueError(f"version is 1, 2 or 3, not {version}")
    if "window" in options:
        limits.receive_window = parse_integer(options["window"], "window", 1)
    seeded: tuple[int, ...] | None = None
    if "seeded" in options:
        if version != 3:
            raise ValueError("seeded channels exist in version 3 only")
        seeded = tuple([parse_integer(part, "seeded", 1) for part in options["seeded"].split("+")])
    return Nerdbank(limits, vantage, version, seeded)
