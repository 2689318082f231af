# mypyc: compiled
"""The rules of WebSocket framing (RFC 6455), and validation of frame headers and close frames."""

from typing import Final

from mypy_extensions import i64

from polymux.core.rules import Origin, Reaction, Rule, Severity
from polymux.core.side import DIALER
from polymux.core.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FIN_BIT,
    MAX_CONTROL_BYTES,
    NO_STATUS,
    PONG,
    RSV_BITS,
    TEXT,
    WebSocketFrameHeader,
    is_valid_close_code,
)


class FrameRule(Rule):
    """A rule of WebSocket framing; `close_code` is sent by a live endpoint when it is broken."""

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


# Bit n of a mask is FRAME_RULES[n]; of several, the first one gives the close code.
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
STILL_READABLE: Final[i64] = 8 + 16 + 32 + 512  # the frame can be read all the same

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
    """The mask of the rules that a frame's header breaks.

    Args:
        head: the header.
        sender: the side that sent it.
        fragmented: a message is unfinished.
        room: payload bytes that the current message (or a new one) may still have.
    """
    first, size = head.first_byte, head.payload_size
    opcode = first & 15
    if size < 0:
        return BAD_LENGTH
    mask: i64 = RESERVED_BITS if first & RSV_BITS else 0
    if not head.length_is_minimal:
        mask |= LONG_FORM
    if head.masking_key is None:
        if sender == DIALER:
            mask |= UNMASKED
    elif sender != DIALER:
        mask |= MASKED
    if opcode > PONG or BINARY < opcode < CLOSE:
        return mask | RESERVED_OPCODE
    if opcode >= CLOSE:
        if first < FIN_BIT:
            mask |= FRAGMENTED_CONTROL
        return mask | LONG_CONTROL if size > MAX_CONTROL_BYTES else mask
    if opcode == CONTINUATION:
        if not fragmented:
            mask |= STRAY_CONTINUATION
    elif fragmented:
        mask |= INTERRUPTED
    if opcode == TEXT:
        mask |= TEXT_MESSAGE
    return mask | TOO_BIG if size > room else mask


def describe_violation(head: WebSocketFrameHeader, rule: i64, limit_name: str, limit: i64) -> str:
    """What was found in a header that breaks this rule (a bit of its mask), for the user."""
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
