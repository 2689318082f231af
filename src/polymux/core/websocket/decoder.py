# mypyc: compiled
"""WebSocket frames on their way in (RFC 6455), for live sessions and captures alike.

One `Decoder` reads one direction. What it finds are items (`websocket_items`): whole messages,
pings, pongs, the close, and what the sender did wrong. It carries binary messages only and knows no
extension. Frames on their way out are in `masking`, the HTTP exchange before the first frame is in
`upgrade`.
"""

from typing import Final, TypeAlias

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

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

READING: Final[i64] = 0
CLOSED: Final[i64] = 1  # a close frame was read; what follows it is not looked at
FAILED: Final[i64] = 2  # a rule was broken, and this decoder is strict
LOST: Final[i64] = 3  # where the next frame begins is not known
FINISHED: Final[i64] = 4  # finish() was called

SINGLE_FRAME_BINARY: Final[i64] = FIN_BIT | BINARY

SKIP: Final[i64] = 0  # what becomes of the payload that is being read
DATA: Final[i64] = 1
CONTROL: Final[i64] = 2

SNAPSHOT_FORMAT: Final = 1  # of a snapshot
Snapshot: TypeAlias = tuple[tuple[int, ...], tuple[bytes, ...], tuple[tuple[int, int], ...]]


class MessageAssembly:
    """A message on its way: its frames' payloads, until the last has come."""

    def __init__(self) -> None:
        self.offset = 0  # where its first frame began
        self.wire_bytes = 0  # of its whole frames so far, on the wire
        self.missing_bytes = 0  # of these, not captured
        self.payload_size: i64 = 0  # payload bytes so far
        self.single_piece = b""  # the payload, where it came in one piece
        self.body = BytesWriter()  # else
        self.holes: list[tuple[int, int]] = []
        self.fragmented = False  # more frames are to come
        self.discarded = False  # it will not be delivered

    def add(
        self, data: bytes, start: i64, end: i64, head: WebSocketFrameHeader, phase: i64, last: bool,
        fast_mask: MaskFunction | None,
    ) -> None:  # fmt: skip
        """Append a piece of payload; `last` if it ends its frame. `quick`: a quicker mask."""
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
        """Append bytes that were not captured."""
        start: int = self.payload_size
        whole: int = size
        if self.holes and sum(self.holes[-1]) == start:  # one hole, told in two parts
            start, before = self.holes.pop()
            whole += before
        self.holes.append((start, whole))
        self.body.write(bytes(size))
        self.payload_size += size

    def build_message(self) -> Message:
        """The message, now that its last frame has come."""
        return Message(
            self.single_piece or self.body.getvalue(),
            self.offset,
            self.wire_bytes,
            tuple(self.holes),
        )

    def clear(self) -> None:
        """Make room for the next message."""
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
    """Reads such runs of one direction. `mask` is a quicker one than ours, if there is any."""

    def __init__(self, sender: i64, max_message_bytes: i64) -> None:
        self.sender: i64 = sender
        self.max_message_bytes: i64 = max_message_bytes
        self.fast_mask: MaskFunction | None = None
        self.scratch = BytesWriter()

    def read(self, data: bytes, pos: i64, end: i64, offset: int, events: list[DecoderEvent]) -> i64:
        """Append the messages that begin at `pos`, which is `offset` in the direction.

        Returns the position of the first frame that is not one of these, or not all there.
        """
        begin = pos
        bit: i64 = 128 if self.sender == DIALER else 0
        while end - pos >= 2:
            second: i64 = data[pos + 1]
            if data[pos] != SINGLE_FRAME_BINARY or second & 128 != bit:
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
            if bit != 0:
                at += 4
            if size > self.max_message_bytes or size > end - at:
                break
            after = at + size
            payload = data[at:after] if bit == 0 else self.unmask(data, at, after)
            events.append(Message(payload, offset + (pos - begin), after - pos, ()))
            pos = after
        return pos

    def unmask(self, data: bytes, start: i64, end: i64) -> bytes:
        """A payload that follows its key."""
        key = data[start - 4 : start]
        quick = self.fast_mask
        if quick is not None and end - start >= FAST_MASK_MIN_BYTES:
            return quick(data[start:end], key)
        out = self.scratch
        write_masked(out, data, start, end, key)
        payload = out.getvalue()
        out.truncate(0)
        return payload


class Decoder:
    """Reads the frames of one direction, fed in any pieces.

    Strict (live): the first broken rule is the last item, and all further bytes are passed over.
    Lenient (captures): every broken rule is noted and reading goes on at the next frame, without
    the message or frame concerned; a wrong mask is noted once, undone, and harms nothing.

    Every byte is in exactly one count: `delivered` (messages), `carrier` (pings, pongs, close),
    `skipped` (refused or unreadable), `missing` (gaps outside what was read), or `pending()`.
    """

    def __init__(
        self,
        sender: i64,
        max_message_bytes: i64 = 1024 * 1024,
        lenient: bool = False,
        offset: int = 0,
        limit_name: str = "max_frame_bytes",
    ) -> None:
        """`limit`: payload bytes of a message; `limit_name`: what its error calls it.

        `offset`: bytes of this direction before the first frame (the HTTP head), so that offsets
        count from the start of the connection.
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
        self.empty_frames: i64 = (
            0  # frames that brought nothing: control frames and empty fragments
        )
        self.reported_once = False  # a wrong mask, or bytes after the close: said once
        self.partial_header = b""  # an unfinished header
        self.in_payload = False  # a payload, of the frame below
        self.head = WebSocketFrameHeader()
        self.payload_use: i64 = SKIP
        self.payload_left: i64 = 0  # bytes of payload to come
        self.mask_phase: i64 = 0  # place in the masking key
        self.frame_offset = 0
        self.frame_bytes = 0
        self.frame_missing_bytes = 0
        self.control_payload = b""
        self.assembly = MessageAssembly()
        self.run_decoder = MessageRunDecoder(sender, max_message_bytes)

    def take(self) -> list[DecoderEvent]:
        """The items found since the last call, in the order in which they ended."""
        items = self.events
        self.events = []
        return items

    def pending(self) -> int:
        """Bytes of the unfinished header, frame and message."""
        return len(self.partial_header) + self.frame_bytes + self.assembly.wire_bytes

    def message_start_offset(self) -> int:
        """Where the unfinished message began; -1 if there is none, or none to be delivered."""
        message = self.assembly
        if message.fragmented or (self.in_payload and self.payload_use == DATA):
            return -1 if message.discarded else message.offset
        if self.partial_header and self.partial_header[0] & 8 == 0:
            return self.offset - len(self.partial_header)
        return -1

    def feed(self, data: bytes) -> int:
        """Read the next bytes; returns how many items wait for `take`. Never raises."""
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
            if not self.assembly.fragmented and len(self.partial_header) == 0:
                after = self.run_decoder.read(data, pos, end, self.offset, self.events)
                self.offset += after - pos
                self.delivered_bytes += after - pos
                pos = after
            if pos < end:
                pos = self._read_header(data, pos, end)
        return len(self.events)

    def gap(self, size: i64) -> int:
        """The next `size` bytes were not captured; returns how many items wait for `take`.

        As far as they belong to a payload they become a hole and reading goes on after them;
        anywhere else the decoder is lost.
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

    def finish(self) -> int:
        """No byte follows: what is unfinished is skipped, and said to be truncated."""
        if self.state == READING and (self.pending() > 0 or self.assembly.fragmented):
            inside = "message"
            where = self.message_start_offset()
            if where < 0:
                inside = "frame"
                where = (
                    self.frame_offset if self.in_payload else self.offset - len(self.partial_header)
                )
            self.events.append(FrameViolation(TRUNCATED, f"the bytes end inside a {inside}", where))
            self._discard_unfinished()
        self.state = FINISHED
        return len(self.events)

    def snapshot(self) -> Snapshot:
        """The state as plain data, also in the middle of a frame. Take the items first."""
        if self.events:
            raise ValueError(f"take the {len(self.events)} waiting items before a snapshot")
        head = (
            self.head if self.in_payload else WebSocketFrameHeader()
        )  # of a frame that is read, nothing stays
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
        """Go on where `saved` was taken; the settings are those this decoder was made with."""
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
            noted,
            reading,
            self.payload_use,
            self.payload_left,
            self.mask_phase,
            self.head.first_byte,
            has_key,
            self.frame_offset,
            self.frame_bytes,
            self.frame_missing_bytes,
            fragmented,
            spoiled,
            message.offset,
            message.wire_bytes,
            message.missing_bytes,
            message.payload_size,
        ) = numbers
        self.events = []
        self.reported_once = noted != 0
        self.in_payload = reading != 0
        self.partial_header, key, self.control_payload, body = chunks
        self.head.masking_key = key if has_key != 0 else None
        message.fragmented = fragmented != 0
        message.discarded = spoiled != 0
        message.body.write(body)
        message.holes = list(holes)
        self.assembly = message

    def _read_header(self, data: bytes, pos: i64, end: i64) -> i64:
        """Read a header, or what there is of it; returns where to go on."""
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
        self._begin_frame()
        return pos + size - before

    def _begin_frame(self) -> None:
        """A header is whole: judge it, and choose what becomes of the payload."""
        head, message = self.head, self.assembly
        opcode = head.first_byte & 15
        room = self.max_message_bytes
        if opcode == CONTINUATION:
            room = head.payload_size if message.discarded else room - message.payload_size
        verdict = validate_header(head, self.sender, message.fragmented, room)
        if verdict & (MASKED | UNMASKED):
            if self.reported_once:
                verdict &= ~(MASKED | UNMASKED)
            self.reported_once = True
        if verdict != 0:
            self._report_violations(verdict)
            if self.state != READING:
                return
        self.in_payload = True
        self.payload_use = SKIP
        self.payload_left = head.payload_size
        self.mask_phase = 0
        harmful = verdict & ~STILL_READABLE != 0
        if opcode >= CLOSE:
            if not harmful:
                self.payload_use = CONTROL
                self.control_payload = b""
        elif opcode <= BINARY:
            if opcode != CONTINUATION:
                self._discard_message()  # an unfinished message that this one interrupts
                message.discarded = False
                message.offset = self.frame_offset
            if harmful:
                self._discard_message()
            elif not message.discarded:
                self.payload_use = DATA
        if self.payload_left == 0:
            self._end_frame()

    def _report_violations(self, violation_mask: i64) -> None:
        """Say which rules the frame breaks; strict, that is the end."""
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
        """So much of the payload has passed."""
        self.offset += size
        self.frame_bytes += size
        self.payload_left -= size
        self.mask_phase = (self.mask_phase + size) & 3
        if self.payload_left == 0:
            self._end_frame()

    def _end_frame(self) -> None:
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
            self._discard_unfinished()  # a message that the close leaves unfinished

    def _end_control(self, opcode: i64) -> None:
        data, offset, size = self.control_payload, self.frame_offset, self.frame_bytes
        damaged = self.frame_missing_bytes > 0
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
        """Bytes that are not looked at any more."""
        if self.state == CLOSED and not self.reported_once:
            self.events.append(
                FrameViolation(AFTER_CLOSE, "bytes follow the close frame", self.offset)
            )
            self.reported_once = True
        self.skipped_bytes += size
        self.offset += size

    def _report_violation(self, rule: FrameRule, detail: str) -> None:
        """Note a broken rule; strict, the first one ends it all."""
        if self.state == READING:
            self.events.append(FrameViolation(rule, detail, self.frame_offset))
            if not self.lenient:
                self.state = FAILED

    def _stop_decoding(self, detail: str) -> None:
        """The start of the next frame is not known."""
        self._discard_unfinished()
        if self.state == READING:
            self.events.append(DecodingLost(detail, self.offset))
            self.state = LOST

    def _discard_message(self) -> None:
        """The message being read will not be delivered; what was read of it is skipped."""
        message = self.assembly
        self.skipped_bytes += message.wire_bytes - message.missing_bytes
        self.missing_bytes += message.missing_bytes
        message.clear()
        message.discarded = True

    def _discard_unfinished(self) -> None:
        """Nothing unfinished will be finished: all of it is skipped."""
        self.skipped_bytes += len(self.partial_header) + self.frame_bytes - self.frame_missing_bytes
        self.missing_bytes += self.frame_missing_bytes
        self.partial_header = b""
        self.in_payload = False
        self.frame_bytes = 0
        self.frame_missing_bytes = 0
        self._discard_message()
        self.assembly.discarded = False
        self.assembly.fragmented = False
