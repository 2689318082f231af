# mypyc: compiled
"""Headers of WebSocket frames, and of the messages in them, at assumed boundaries."""

from typing import Final

from mypy_extensions import i64

from polymux.core.boundary_search import NO_KEY, HeaderScanner
from polymux.core.frames import OPENS, FrameHeader
from polymux.core.protocol import NO_STREAM
from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.varint import INCOMPLETE, INVALID
from polymux.core.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FIN_BIT,
    MAX_CONTROL_BYTES,
    PONG,
    WebSocketFrameHeader,
    masked,
)
from polymux.core.websocket.layer import HTTP_FIRST_BYTES, MessageProtocol

HEADER_BITS: Final[i64] = 8  # first byte, mask bit and shortest length
MESSAGE_HEAD_BYTES: Final[i64] = 2  # of a message that are decoded: type and id


class WebSocketScanner(HeaderScanner):
    """Reads the header of a WebSocket frame and the first bytes of a message in it."""

    def __init__(self, protocol: MessageProtocol) -> None:
        super().__init__()
        self.begins_both = True  # the response follows the request
        self.protocol = protocol
        self.frame: WebSocketFrameHeader = WebSocketFrameHeader()
        self.head: FrameHeader = FrameHeader()
        self.fragmented: bool = False  # the last frame was not the last of its message

    def scan(self, side: i64, data: bytes, pos: i64, end: i64) -> i64:
        frame = self.frame
        self.key = NO_KEY
        self.opens = False
        self.evidence = 0
        size = frame.read(data, pos, end)
        if size < 0:
            first: i64 = data[pos]
            opcode = first & 15
            known = opcode <= BINARY or CLOSE <= opcode <= PONG
            return INCOMPLETE if known and first & 0x70 == 0 else INVALID
        opcode = frame.first_byte & 15
        control = CLOSE <= opcode <= PONG
        if (
            frame.first_byte & 0x70 != 0
            or not (control or opcode == BINARY or opcode == CONTINUATION)
            or (frame.masking_key is not None) != (side == DIALER)
            or not frame.length_is_minimal
            or frame.payload_size < 0
            or frame.payload_size > self.protocol.max_frame_bytes + 2
            or (not control and (opcode == CONTINUATION) != self.fragmented)
            or (control and (frame.payload_size > MAX_CONTROL_BYTES or frame.first_byte < FIN_BIT))
        ):
            return INVALID
        start = pos + size
        if control:
            self.evidence = HEADER_BITS
        elif opcode == BINARY:
            evidence = self.message_evidence(side, data, start, end)
            if evidence < 0:
                return INVALID
            self.evidence = HEADER_BITS + evidence
        if not control:
            self.fragmented = frame.first_byte < FIN_BIT
        return start + frame.payload_size

    def message_evidence(self, side: i64, data: bytes, start: i64, end: i64) -> i64:
        """The evidence of a message's type and id; 0 if they are not there."""
        frame = self.frame
        size = frame.payload_size if frame.payload_size < MESSAGE_HEAD_BYTES else MESSAGE_HEAD_BYTES
        if size == 0 or size > end - start or frame.first_byte < FIN_BIT:
            return 0
        key = frame.masking_key
        begin = data[start : start + size]
        if key is not None:
            begin = masked(begin, 0, size, key)
        p = self.protocol
        was_encapsulated = p.encapsulated
        p.encapsulated = True
        status = p.decode_header(side, begin, 0, frame.payload_size, self.head)
        evidence = p.header_evidence(side, self.head) if status >= 0 else INVALID
        p.encapsulated = was_encapsulated
        if status < 0 or self.head.format_violations != 0:
            return INVALID
        if self.head.opener != NO_STREAM:
            self.key = self.head.key
            self.opens = p.effects[self.head.kind] == OPENS
        return evidence

    def begin_chain(self) -> None:
        self.fragmented = False

    def begins_connection(self, side: i64, data: bytes, other: bytes) -> i64:
        begin, answer = HTTP_FIRST_BYTES[DIALER], HTTP_FIRST_BYTES[ACCEPTOR]
        if (
            side != DIALER
            or data[: len(begin)] != begin[: len(data)]
            or other[: len(answer)] != answer[: len(other)]
        ):
            return 0
        return 1 if len(data) >= len(begin) else INCOMPLETE
