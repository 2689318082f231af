# mypyc: compiled
"""The WebSocket decoder (RFC 6455), for live sessions and captures alike.

A `Decoder` reads one direction and produces events (`polymux.core.websocket.events`): complete
messages, pings, pongs, the close, and violations of the framing rules. It supports binary messages
only and no extensions. Encoding is in `frames`, the HTTP upgrade before the first frame in
`handshake`.

The decoder reads frame by frame, however the bytes are cut into chunks: `_read_header`, then
`_begin_frame`, which validates the header and decides what is done with the payload, then
`_read_payload` until `_end_frame`. `MessageAssembly` collects the fragments of a message. Almost
all bytes of a busy connection, however, are binary messages of one frame each, complete in the
chunk and without a violation; `MessageRunDecoder` reads these in one loop, with the same events and
counts.
"""

from typing import Final, TypeAlias

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from polymux.core.layout import LayoutSink
from polymux.core.side import DIALER
from polymux.core.websocket.events import (
    Close,
    DecoderEvent,
    DecodingLost,
    FrameViolation,
    Message,
    Ping,
    Pong,
)
from polymux.core.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FAST_MASK_MIN_BYTES,
    FIN_BIT,
    INCOMPLETE,
    MAX_HEADER_BYTES,
    PING,
    PONG,
    MaskFunction,
    WebSocketFrameHeader,
    masked,
    write_masked,
)
from polymux.core.websocket.rules import (
    AFTER_CLOSE,
    BAD_LENGTH,
    FRAME_RULES,
    MASKED,
    STILL_READABLE,
    TRUNCATED,
    UNMASKED,
    FrameRule,
    describe_violation,
    read_close,
    validate_header,
)

# States of a decoder.
READING: Final[i64] = 0
CLOSED: Final[i64] = 1  # a close frame was read; what follows it is skipped
FAILED: Final[i64] = 2  # a rule was broken, and this decoder is strict
LOST: Final[i64] = 3  # the start of the next frame is not known
FINISHED: Final[i64] = 4  # finish() was called

SINGLE_FRAME_BINARY: Final[i64] = FIN_BIT | BINARY

# What is done with the payload that is being read.
SKIP: Final[i64] = 0
DATA: Final[i64] = 1
CONTROL: Final[i64] = 2

SNAPSHOT_FORMAT: Final = 1
Snapshot: TypeAlias = tuple[tuple[int, ...], tuple[bytes, ...], tuple[tuple[int, int], ...]]


class MessageAssembly:
    """Collects the payloads of a message's frames until the last one is complete."""

    def __init__(self) -> None:
        self.offset = 0  # where its first frame began
        self.wire_bytes = 0  # bytes of its complete frames so far, headers included
        self.missing_bytes = 0  # of these, the bytes that were not captured
        self.payload_size: i64 = 0  # payload bytes so far
        self.single_piece = b""  # the payload, if it arrived in one piece
        self.body = BytesWriter()  # otherwise
        self.holes: list[tuple[int, int]] = []  # (start, size) in the payload: not captured
        self.fragmented = False  # more frames of the message follow
        self.discarded = False  # it will not be delivered

    def add(
        self,
        data: bytes,
        start: i64,
        end: i64,
        head: WebSocketFrameHeader,
        phase: i64,
        last: bool,
        fast_mask: MaskFunction | None,
    ) -> None:
        """Append a piece of payload, unmasked.

        Args:
            data: the piece is data[start:end].
            start: where it begins.
            end: where it ends.
            head: the header of its frame.
            phase: the position of its first byte in the masking key, 0 to 3.
            last: it completes its frame.
            fast_mask: a faster mask function for large pieces; None: there is none.
        """
        key = head.masking_key
        if key is not None and fast_mask is not None and end - start >= FAST_MASK_MIN_BYTES:
            self.body.write(fast_mask(data[start:end], key[phase:] + key[:phase]))
        elif self.payload_size == 0 and last and head.first_byte >= FIN_BIT:
            self.single_piece = (
                data[start:end] if key is None else masked(data, start, end, key, phase)
            )
        elif key is None:
            self.body.write(data[start:end])
        else:
            write_masked(self.body, data, start, end, key, phase)
        self.payload_size += end - start

    def add_hole(self, size: i64) -> None:
        """Append `size` zeros for bytes that were not captured."""
        start: int = self.payload_size
        hole_size: int = size
        if self.holes and sum(self.holes[-1]) == start:  # it extends the last hole
            start, before = self.holes.pop()
            hole_size += before
        self.holes.append((start, hole_size))
        self.body.write(bytes(size))
        self.payload_size += size

    def build_message(self) -> Message:
        """The message; its last frame is complete."""
        return Message(
            self.single_piece or self.body.getvalue(),
            self.offset,
            self.wire_bytes,
            tuple(self.holes),
        )

    def clear(self) -> None:
        """Reset for the next message."""
        self.offset = 0
        self.wire_bytes = 0
        self.missing_bytes = 0
        self.payload_size = 0
        self.single_piece = b""
        if len(self.body) > 0:
            self.body = BytesWriter()
        if self.holes:
            self.holes = []
        self.discarded = False


class MessageRunDecoder:
    """Fast path: runs of complete, valid, unfragmented binary messages of one direction.

    `fast_mask`, if set, is a faster mask function for large payloads.
    """

    def __init__(self, sender: i64, max_message_bytes: i64) -> None:
        self.sender: i64 = sender
        self.max_message_bytes: i64 = max_message_bytes
        self.fast_mask: MaskFunction | None = None
        self.scratch = BytesWriter()

    def read(self, data: bytes, pos: i64, end: i64, offset: int, events: list[DecoderEvent]) -> i64:
        """Decode messages from `pos` on, which is `offset` in the direction, to `events`.

        Returns:
            The position of the first frame that is incomplete or needs the slow path.
        """
        begin = pos
        mask_bit: i64 = 128 if self.sender == DIALER else 0
        while end - pos >= 2:
            second: i64 = data[pos + 1]
            if data[pos] != SINGLE_FRAME_BINARY or second & 128 != mask_bit:
                break
            size = second & 127
            at = pos + 2
            if size == 126:
                if end - pos < 4:
                    break
                high: i64 = data[pos + 2]
                low: i64 = data[pos + 3]
                size = (high << 8) | low
                at = pos + 4
                if size < 126:  # not the shortest form
                    break
            elif size == 127:
                if end - pos < 10:
                    break
                size = read_i64_be(data, pos + 2)
                at = pos + 10
                if size < 65536:
                    break
            if mask_bit != 0:
                at += 4
            if size > self.max_message_bytes or size > end - at:
                break
            after = at + size
            payload = data[at:after] if mask_bit == 0 else self.unmask(data, at, after)
            events.append(Message(payload, offset + (pos - begin), after - pos, ()))
            pos = after
        return pos

    def unmask(self, data: bytes, start: i64, end: i64) -> bytes:
        """data[start:end] unmasked with the key in front of it."""
        key = data[start - 4 : start]
        fast_mask = self.fast_mask
        if fast_mask is not None and end - start >= FAST_MASK_MIN_BYTES:
            return fast_mask(data[start:end], key)
        out = self.scratch
        write_masked(out, data, start, end, key)
        payload = out.getvalue()
        out.truncate(0)
        return payload


class Decoder:
    """Decodes the frames of one direction, fed in chunks of any size.

    A strict decoder (live sessions) stops at the first violation: that is its last event, and all
    further bytes are skipped. A lenient one (captures) reports every violation and continues with
    the next frame, without the message or frame concerned; a wrong mask is reported once and the
    message is read all the same.

    Every byte is in exactly one count: `delivered_bytes` (messages), `control_bytes` (pings, pongs,
    close), `skipped_bytes` (violations and what cannot be decoded), `missing_bytes` (gaps outside
    of delivered messages and control frames), or `pending()`.
    """

    def __init__(
        self,
        sender: i64,
        max_message_bytes: i64 = 1024 * 1024,
        lenient: bool = False,
        offset: int = 0,
        limit_name: str = "max_frame_bytes",
    ) -> None:
        """Create a decoder.

        Args:
            sender: the side that sends this direction, DIALER or ACCEPTOR.
            max_message_bytes: payload bytes of a message, at most.
            lenient: continue after violations.
            offset: bytes of this direction before the first frame (the HTTP head), so that offsets
                count from the start of the connection.
            limit_name: the name of the limit `max_message_bytes` in error messages.
        """
        self.sender: i64 = sender
        self.max_message_bytes: i64 = max_message_bytes
        self.limit_name = limit_name
        self.lenient = lenient
        self.events: list[DecoderEvent] = []
        self.state: i64 = READING
        self.offset = offset  # of the next byte
        self.delivered_bytes = 0
        self.control_bytes = 0
        self.skipped_bytes = 0
        self.missing_bytes = 0
        self.empty_frames: i64 = 0  # frames without content: control frames, empty fragments
        self.reported_once = False  # a wrong mask, or bytes after the close, was reported
        self.partial_header = b""  # an incomplete header
        self.in_payload = False  # the payload of the frame below is arriving
        self.head = WebSocketFrameHeader()
        self.payload_use: i64 = SKIP
        self.payload_left: i64 = 0  # bytes of payload still to arrive
        self.mask_phase: i64 = 0  # position in the masking key
        self.frame_offset = 0
        self.frame_bytes = 0
        self.frame_missing_bytes = 0
        self.control_payload = b""
        self.assembly = MessageAssembly()
        self.run_decoder = MessageRunDecoder(sender, max_message_bytes)
        self.layout: LayoutSink | None = None  # is told where each frame lies

    def take(self) -> list[DecoderEvent]:
        """Remove and return the events since the last call, in the order of completion."""
        events = self.events
        self.events = []
        return events

    def pending(self) -> int:
        """Bytes of the incomplete header, frame and message."""
        return len(self.partial_header) + self.frame_bytes + self.assembly.wire_bytes

    def message_start_offset(self) -> int:
        """Where the incomplete message began; -1 if there is none, or it will not be delivered."""
        message = self.assembly
        if message.fragmented or (self.in_payload and self.payload_use == DATA):
            return -1 if message.discarded else message.offset
        if self.partial_header and self.partial_header[0] & 8 == 0:
            return self.offset - len(self.partial_header)
        return -1

    def feed(self, data: bytes) -> int:
        """Decode the next bytes; return how many events `take` would return. Never raises."""
        pos: i64 = 0
        end: i64 = len(data)
        while pos < end:
            if self.state != READING:
                self._skip(end - pos)
                break
            if self.in_payload:
                size = self.payload_left if self.payload_left < end - pos else end - pos
                self._read_payload(data, pos, pos + size)
                pos += size
                continue
            if (
                not self.assembly.fragmented
                and len(self.partial_header) == 0
                and self.layout is None
            ):
                after = self.run_decoder.read(data, pos, end, self.offset, self.events)
                self.offset += after - pos
                self.delivered_bytes += after - pos
                pos = after
            if pos < end:
                pos = self._read_header(data, pos, end)
        return len(self.events)

    def gap(self, size: i64) -> int:
        """The next `size` bytes were not captured; return how many events `take` would return.

        Within a payload they become a hole, and decoding continues after them. Anywhere else the
        start of the next frame is not known, and decoding stops.

        Raises:
            ValueError: `size` is negative.
        """
        if size < 0:
            raise ValueError(f"a gap cannot have {size} bytes")
        if self.in_payload and size > 0:
            hole = size if size < self.payload_left else self.payload_left
            size -= hole
            self.frame_missing_bytes += hole
            if self.payload_use == DATA:
                self.assembly.add_hole(hole)
            elif self.payload_use == CONTROL:
                self.control_payload += bytes(hole)
            self._advance(hole)
        if size > 0:
            if self.state == READING:
                self._stop_decoding("bytes are missing where a frame begins")
            self.missing_bytes += size
            self.offset += size
        return len(self.events)

    def skip(self, size: i64) -> None:
        """The next `size` bytes are counted by the caller: frames begin after them, or later."""
        self.offset += size

    def resume(self) -> None:
        """A frame begins at the next byte: decode again, if decoding has stopped."""
        if self.state == LOST:
            self.state = READING

    def finish(self) -> int:
        """No byte follows: report an incomplete frame or message as truncated, and skip it."""
        if self.state == READING and (self.pending() > 0 or self.assembly.fragmented):
            unit = "message"
            offset = self.message_start_offset()
            if offset < 0:
                unit = "frame"
                offset = (
                    self.frame_offset if self.in_payload else self.offset - len(self.partial_header)
                )
            self.events.append(FrameViolation(TRUNCATED, f"the bytes end inside a {unit}", offset))
            self._discard_unfinished()
        self.state = FINISHED
        return len(self.events)

    def snapshot(self) -> Snapshot:
        """The state as plain data, also in the middle of a frame.

        Raises:
            ValueError: there are events that were not taken.
        """
        if self.events:
            raise ValueError(f"take the {len(self.events)} pending events before a snapshot")
        head = self.head if self.in_payload else WebSocketFrameHeader()
        message = self.assembly
        numbers = (
            SNAPSHOT_FORMAT,
            int(self.state),
            self.offset,
            self.delivered_bytes,
            self.control_bytes,
            self.skipped_bytes,
            self.missing_bytes,
            int(self.reported_once),
            int(self.in_payload),
            int(self.payload_use),
            int(self.payload_left),
            int(self.mask_phase),
            int(head.first_byte),
            int(head.masking_key is not None),
            self.frame_offset,
            self.frame_bytes,
            self.frame_missing_bytes,
            int(message.fragmented),
            int(message.discarded),
            message.offset,
            message.wire_bytes,
            message.missing_bytes,
            int(message.payload_size),
        )
        chunks = (
            self.partial_header,
            head.masking_key or b"",
            self.control_payload,
            message.body.getvalue(),
        )
        return numbers, chunks, tuple(message.holes)

    def restore(self, saved: Snapshot) -> None:
        """Continue where `saved` was taken; settings are those this decoder was created with.

        Raises:
            ValueError: `saved` is not a snapshot of this version.
        """
        numbers, chunks, holes = saved
        if len(numbers) != 23 or numbers[0] != SNAPSHOT_FORMAT or len(chunks) != 4:
            raise ValueError("not a snapshot of this version's WebSocket decoder")
        message = MessageAssembly()
        (
            _,
            self.state,
            self.offset,
            self.delivered_bytes,
            self.control_bytes,
            self.skipped_bytes,
            self.missing_bytes,
            reported_once,
            in_payload,
            self.payload_use,
            self.payload_left,
            self.mask_phase,
            self.head.first_byte,
            has_key,
            self.frame_offset,
            self.frame_bytes,
            self.frame_missing_bytes,
            fragmented,
            discarded,
            message.offset,
            message.wire_bytes,
            message.missing_bytes,
            message.payload_size,
        ) = numbers
        self.events = []
        self.reported_once = reported_once != 0
        self.in_payload = in_payload != 0
        self.partial_header, key, self.control_payload, body = chunks
        self.head.masking_key = key if has_key != 0 else None
        message.fragmented = fragmented != 0
        message.discarded = discarded != 0
        message.body.write(body)
        message.holes = list(holes)
        self.assembly = message

    def _read_header(self, data: bytes, pos: i64, end: i64) -> i64:
        """Read a header, or buffer the part of it that is there; return where to continue."""
        before: i64 = len(self.partial_header)
        size: i64
        if before == 0:
            size = self.head.read(data, pos, end)
        else:
            joined = self.partial_header + data[pos : pos + MAX_HEADER_BYTES - before]
            size = self.head.read(joined, 0, len(joined))
        if size == INCOMPLETE:
            self.partial_header += data[pos:end]
            self.offset += end - pos
            return end
        self.partial_header = b""
        self.offset += size - before
        self.frame_offset = self.offset - size
        self.frame_bytes = size
        if self.layout is not None:
            self.layout.websocket_header(
                self.sender,
                self.frame_offset,
                size,
                self.head.first_byte & 15,
                self.head.payload_size,
                self.head.masking_key,
            )
        self._begin_frame()
        return pos + size - before

    def _begin_frame(self) -> None:
        """A header is complete: validate it, and decide what is done with the payload."""
        head, message = self.head, self.assembly
        opcode = head.first_byte & 15
        room = self.max_message_bytes
        if opcode == CONTINUATION:
            room = head.payload_size if message.discarded else room - message.payload_size
        mask = validate_header(head, self.sender, message.fragmented, room)
        if mask & (MASKED | UNMASKED):
            if self.reported_once:
                mask &= ~(MASKED | UNMASKED)
            self.reported_once = True
        if mask != 0:
            self._report_violations(mask)
            if self.state != READING:
                return
        self.in_payload = True
        self.payload_use = SKIP
        self.payload_left = head.payload_size
        self.mask_phase = 0
        unreadable = mask & ~STILL_READABLE != 0
        if opcode >= CLOSE:
            if not unreadable:
                self.payload_use = CONTROL
                self.control_payload = b""
        elif opcode <= BINARY:
            if opcode != CONTINUATION:
                self._discard_message()  # the unfinished message that this one interrupts
                message.discarded = False
                message.offset = self.frame_offset
            if unreadable:
                self._discard_message()
            elif not message.discarded:
                self.payload_use = DATA
        if self.payload_left == 0:
            self._end_frame()

    def _report_violations(self, violation_mask: i64) -> None:
        """Report the rules that the frame breaks; a strict decoder stops."""
        bit: i64 = 1
        for rule in FRAME_RULES:
            if violation_mask & bit:
                self._report_violation(
                    rule,
                    describe_violation(self.head, bit, self.limit_name, self.max_message_bytes),
                )
            bit <<= 1
        if violation_mask & BAD_LENGTH:
            self._stop_decoding(
                "the start of the next frame is not known after an impossible length"
            )
        elif self.state != READING:
            self._discard_unfinished()

    def _read_payload(self, data: bytes, pos: i64, end: i64) -> None:
        """data[pos:end] belongs to the current frame's payload."""
        if self.payload_use == DATA:
            last = end - pos == self.payload_left
            self.assembly.add(
                data, pos, end, self.head, self.mask_phase, last, self.run_decoder.fast_mask
            )
        elif self.payload_use == CONTROL:
            key = self.head.masking_key
            part = data[pos:end] if key is None else masked(data, pos, end, key, self.mask_phase)
            self.control_payload += part
        self._advance(end - pos)

    def _advance(self, size: i64) -> None:
        """`size` bytes of the payload were read, or are missing."""
        self.offset += size
        self.frame_bytes += size
        self.payload_left -= size
        self.mask_phase = (self.mask_phase + size) & 3
        if self.payload_left == 0:
            self._end_frame()

    def _end_frame(self) -> None:
        """The current frame is complete: count it, and deliver the message that it ends."""
        message = self.assembly
        opcode = self.head.first_byte & 15
        self.in_payload = False
        if self.payload_use == CONTROL or (
            self.head.payload_size == 0 and self.head.first_byte < FIN_BIT
        ):
            self.empty_frames += 1
        if self.payload_use == CONTROL:
            self.control_bytes += self.frame_bytes
            self._end_control(opcode)
        elif self.payload_use == DATA:
            message.wire_bytes += self.frame_bytes
            message.missing_bytes += self.frame_missing_bytes
        else:
            self.skipped_bytes += self.frame_bytes - self.frame_missing_bytes
            self.missing_bytes += self.frame_missing_bytes
        self.frame_bytes = 0
        self.frame_missing_bytes = 0
        self.frame_offset = 0
        self.payload_use = SKIP
        self.mask_phase = 0
        if opcode <= BINARY:
            message.fragmented = self.head.first_byte < FIN_BIT
            if not message.fragmented:
                if not message.discarded:
                    self.events.append(message.build_message())
                    self.delivered_bytes += message.wire_bytes
                message.clear()
        elif self.state != READING:
            self._discard_unfinished()  # the message that the close leaves unfinished

    def _end_control(self, opcode: i64) -> None:
        """A control frame is complete."""
        data, offset, size = self.control_payload, self.frame_offset, self.frame_bytes
        damaged = self.frame_missing_bytes > 0
        if self.layout is not None:
            self.layout.websocket_control(
                self.sender, offset + size - len(data), opcode, data, self.head.masking_key
            )
        if opcode == PING:
            self.events.append(Ping(data, offset, size, damaged))
            return
        if opcode == PONG:
            self.events.append(Pong(data, offset, size, damaged))
            return
        code, reason, rule = read_close(b"" if damaged else data)
        if rule is not None:
            self._report_violation(rule, f"a close frame with the payload {data.hex()}")
        if self.state == READING:
            self.events.append(Close(code, reason, offset, size, damaged))
            self.state = CLOSED
            self.reported_once = False

    def _skip(self, size: i64) -> None:
        """Skip bytes after the close, or after decoding has stopped."""
        if self.state == CLOSED and not self.reported_once:
            self.events.append(
                FrameViolation(AFTER_CLOSE, "bytes follow the close frame", self.offset)
            )
            self.reported_once = True
        self.skipped_bytes += size
        self.offset += size

    def _report_violation(self, rule: FrameRule, detail: str) -> None:
        """Report a violation while reading; a strict decoder stops at the first."""
        if self.state == READING:
            self.events.append(FrameViolation(rule, detail, self.frame_offset))
            if not self.lenient:
                self.state = FAILED

    def _stop_decoding(self, detail: str) -> None:
        """Stop: the start of the next frame is not known."""
        self._discard_unfinished()
        if self.state == READING:
            self.events.append(DecodingLost(detail, self.offset))
            self.state = LOST

    def _discard_message(self) -> None:
        """Do not deliver the current message; count what was read of it as skipped."""
        message = self.assembly
        self.skipped_bytes += message.wire_bytes - message.missing_bytes
        self.missing_bytes += message.missing_bytes
        message.clear()
        message.discarded = True

    def _discard_unfinished(self) -> None:
        """Drop the incomplete header, frame and message; count them as skipped."""
        self.skipped_bytes += len(self.partial_header) + self.frame_bytes - self.frame_missing_bytes
        self.missing_bytes += self.frame_missing_bytes
        self.partial_header = b""
        self.in_payload = False
        self.frame_bytes = 0
        self.frame_missing_bytes = 0
        self._discard_message()
        self.assembly.discarded = False
        self.assembly.fragmented = False
