# mypyc: compiled
"""What the WebSocket decoder reports: the rules of framing, the items, and a message on its way."""

from typing import Final, TypeAlias

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.rules import Origin, Reaction, Rule, Severity
from polymux.core.side import DIALER
from polymux.core.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FAST_MASK_MIN_BYTES,
    FIN_BIT,
    MAX_CONTROL_BYTES,
    NO_STATUS,
    PONG,
    RSV_BITS,
    TEXT,
    MaskFunction,
    WebSocketFrameHeader,
    is_valid_close_code,
    masked,
    write_masked,
)


class FrameRule(Rule):
    """A rule of WebSocket framing, and the code a live endpoint closes with when it is broken."""

    def __init__(
        self,
        name: str,
        close_code: int,
        section: str,
        sentence: str,
        origin: Origin = Origin.SPEC,
        severity: Severity = Severity.ERROR,
    ) -> None:
        super().__init__(f"websocket.{name}", sentence, section, severity, Reaction.SESSION, origin)
        self.close_code = close_code


# Bit n of a header's verdict is FRAME_RULES[n]; of several, the first is the one to close for.
BAD_LENGTH: Final[i64] = 1
RESERVED_BITS: Final[i64] = 2
RESERVED_OPCODE: Final[i64] = 4
UNMASKED: Final[i64] = 8
MASKED: Final[i64] = 16
LONG_FORM: Final[i64] = 32
FRAGMENTED_CONTROL: Final[i64] = 64
LONG_CONTROL: Final[i64] = 128
STRAY_CONTINUATION: Final[i64] = 256
INTERRUPTED: Final[i64] = 512
TEXT_MESSAGE: Final[i64] = 1024
TOO_BIG: Final[i64] = 2048
STILL_READABLE: Final[i64] = 8 + 16 + 32 + 512  # the frame at hand can be read all the same

FRAME_RULES: Final[tuple[FrameRule, ...]] = (
    FrameRule("bad-length", 1002, "5.2", "The top bit of a 64-bit length is 0."),
    FrameRule("reserved-bits", 1002, "5.2", "Reserved bits are 0 where no extension uses them."),
    FrameRule("reserved-opcode", 1002, "5.2", "Opcodes 3 to 7 and 11 to 15 are not used."),
    FrameRule("unmasked-frame", 1002, "5.1", "A client masks every frame."),
    FrameRule("masked-frame", 1002, "5.1", "A server masks no frame."),
    FrameRule("non-minimal-length", 1002, "5.2", "A length is written in its shortest form."),
    FrameRule("fragmented-control", 1002, "5.5", "A control frame is not fragmented."),
    FrameRule("long-control", 1002, "5.5", "A control frame carries at most 125 bytes."),
    FrameRule("stray-continuation", 1002, "5.4", "A continuation has a message to continue."),
    FrameRule("interrupted-message", 1002, "5.4", "A message ends before the next one begins."),
    FrameRule("text-message", 1003, "5.6", "Messages are binary.", Origin.LIMIT),
    FrameRule("message-too-big", 1009, "10.4", "A message keeps to the limit.", Origin.LIMIT),
)
SHORT_CLOSE: Final = FrameRule("short-close", 1002, "5.5.1", "A close code has two bytes.")
BAD_CODE: Final = FrameRule("bad-close-code", 1002, "7.4", "A close code is one that may be sent.")
BAD_REASON: Final = FrameRule("bad-close-reason", 1007, "5.5.1", "A close reason is UTF-8.")
AFTER_CLOSE: Final = FrameRule("after-close", 1002, "5.5.1", "Nothing follows a close frame.")
TRUNCATED: Final = FrameRule(
    "truncated", 1006, "7.1.5", "The last message is whole.", severity=Severity.WARNING
)


def validate_header(head: WebSocketFrameHeader, sender: i64, fragmented: bool, room: i64) -> i64:
    """The rules a frame breaks by its header.

    `fragmented`: a message waits to be continued; `room`: bytes it or a new one may still take.
    """
    first, size = head.first_byte, head.payload_size
    opcode = first & 15
    if size < 0:
        return BAD_LENGTH
    verdict: i64 = RESERVED_BITS if first & RSV_BITS else 0
    if not head.length_is_minimal:
        verdict |= LONG_FORM
    if head.masking_key is None:
        if sender == DIALER:
            verdict |= UNMASKED
    elif sender != DIALER:
        verdict |= MASKED
    if opcode > PONG or BINARY < opcode < CLOSE:
        return verdict | RESERVED_OPCODE
    if opcode >= CLOSE:
        if first < FIN_BIT:
            verdict |= FRAGMENTED_CONTROL
        return verdict | LONG_CONTROL if size > MAX_CONTROL_BYTES else verdict
    if opcode == CONTINUATION:
        if not fragmented:
            verdict |= STRAY_CONTINUATION
    elif fragmented:
        verdict |= INTERRUPTED
    if opcode == TEXT:
        verdict |= TEXT_MESSAGE
    return verdict | TOO_BIG if size > room else verdict


def describe_violation(head: WebSocketFrameHeader, rule: i64, limit_name: str, limit: i64) -> str:
    """What was found in a header that breaks this rule (a bit of its verdict), for an error."""
    if rule == BAD_LENGTH:
        return "a payload length of 2^63 bytes or more"
    found = (
        f"a frame with first byte {head.first_byte:#04x} and {head.payload_size} bytes of payload"
    )
    if rule == TOO_BIG:
        found += f" takes its message over the limit {limit_name}={limit}"
        found += f"; raise it with Limits({limit_name}=...)"
    return found


def read_close(payload: bytes) -> tuple[int, str, FrameRule | None]:
    """Code and reason of a close frame, as far as they can be read, and the rule it breaks."""
    if len(payload) < 2:
        return NO_STATUS, "", SHORT_CLOSE if payload else None
    code = payload[0] * 256 + payload[1]
    text = payload[2:]
    reason = text.decode("utf-8", "replace")
    if not is_valid_close_code(code):
        return code, reason, BAD_CODE
    return code, reason, None if reason.encode("utf-8") == text else BAD_REASON


class Message:
    """A whole message: unmasked, its fragments joined.

    `offset` is where its first frame began, `bytes` the size of its frames on the wire without the
    control frames between them. `holes` are (start, size) of bytes of `data` that were never seen
    and stand as zeros; empty unless the capture has a gap there.
    """

    def __init__(
        self, data: bytes, offset: int, wire_bytes: int, holes: tuple[tuple[int, int], ...]
    ) -> None:
        self.data = data
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.holes = holes

    def __repr__(self) -> str:
        return f"Message({self.data!r}, {self.offset}, {self.wire_bytes}, {self.holes})"


class Ping:
    """A ping. A live endpoint owes a pong with the same data."""

    def __init__(self, data: bytes, offset: int, wire_bytes: int, damaged: bool) -> None:
        self.data = data
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.damaged = damaged  # some of `data` was never seen and stands as zeros

    def __repr__(self) -> str:
        return f"Ping({self.data!r}, {self.offset}, {self.wire_bytes}, {self.damaged})"


class Pong:
    """A pong, asked for or not."""

    def __init__(self, data: bytes, offset: int, wire_bytes: int, damaged: bool) -> None:
        self.data = data
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.damaged = damaged

    def __repr__(self) -> str:
        return f"Pong({self.data!r}, {self.offset}, {self.wire_bytes}, {self.damaged})"


class Close:
    """The close frame; code `NO_STATUS` where it has none, or where a gap hides it."""

    def __init__(self, code: int, reason: str, offset: int, wire_bytes: int, damaged: bool) -> None:
        self.code = code
        self.reason = reason
        self.offset = offset
        self.wire_bytes = wire_bytes
        self.damaged = damaged

    def __repr__(self) -> str:
        return (
            f"Close({self.code}, {self.reason!r}, {self.offset}, {self.wire_bytes}, {self.damaged})"
        )


class FrameViolation:
    """A rule the sender broke in the frame that began at `offset`; `detail` is what was found."""

    def __init__(self, rule: FrameRule, detail: str, offset: int) -> None:
        self.rule = rule
        self.detail = detail
        self.offset = offset
        self.close_code = rule.close_code

    def __repr__(self) -> str:
        return f"FrameViolation({self.rule.name}, {self.detail!r}, {self.offset})"

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.detail} (byte {self.offset}; {self.rule.sentence})"


class DecodingLost:
    """From `offset` on nothing can be decoded, since the start of the next frame is not known."""

    def __init__(self, detail: str, offset: int) -> None:
        self.detail = detail
        self.offset = offset

    def __repr__(self) -> str:
        return f"DecodingLost({self.detail!r}, {self.offset})"


DecoderEvent: TypeAlias = Message | Ping | Pong | Close | FrameViolation | DecodingLost


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
