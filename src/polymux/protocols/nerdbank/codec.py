# mypyc: compiled
"""The three encodings of Nerdbank MultiplexingStream: headers, payloads and handshakes.

v1 has its own 7-byte header; v2 and v3 are msgpack arrays, v3 with the channel's source. Decoding
is lenient: trailing elements, long integer forms, nil, and strings as payload are accepted.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import FrameHeader
from polymux.core.msgpack import (
    msgpack_array,
    msgpack_blob,
    msgpack_int,
    msgpack_skip,
    put_msgpack_bin,
    put_msgpack_int,
    put_msgpack_str,
)
from polymux.core.side import NEITHER_SIDE
from polymux.core.varint import INCOMPLETE, INVALID, clamp_to_i64, put_big_endian, read_big_endian

OFFER: Final[i64] = 0
ACCEPTED: Final[i64] = 1
CONTENT_FRAME: Final[i64] = 2
WRITING_COMPLETED: Final[i64] = 3
TERMINATED: Final[i64] = 4
PROCESSED: Final[i64] = 5
READING_COMPLETED: Final[i64] = 6
WINDOW_ADJUST: Final[i64] = 7
GROWTH_REQUEST: Final[i64] = 8
MALFORMED: Final[i64] = 254  # its end is known, but it is not a valid frame
HANDSHAKE: Final[i64] = 255
MAX_CONTROL_CODE: Final[i64] = 200  # larger ones are malformed frames

MAX_SENT_PAYLOAD: Final[i64] = 20480  # bytes; no implementation sends more

MAGIC: Final = b"\x2f\xdf\x1d\x50"
RANDOM_SIZE: Final = 16
MAX_CHANNEL_ID: Final[i64] = 0x0FFFFFFFFFFFFFFF  # leaves two bits for the opener in a key

# Rules that decoding can find broken; the same bits as in `rules`.
BAD_MAGIC: Final[i64] = 0x1
BAD_HANDSHAKE: Final[i64] = 0x2
VERSION_MISMATCH: Final[i64] = 0x4
BAD_FRAME: Final[i64] = 0x10
WRONG_SOURCE: Final[i64] = 0x100
BAD_OFFER: Final[i64] = 0x200
BAD_ACCEPTANCE: Final[i64] = 0x400
BAD_WINDOW: Final[i64] = 0x20000
OFFER_WITHOUT_WINDOW: Final[i64] = 0x2000000


def decode_handshake_v1(data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
    """Decode the handshake of v1: magic, then 16 random bytes."""
    for i in range(4):
        if pos + i >= end:
            return INCOMPLETE
        if data[pos + i] != MAGIC[i]:
            head.format_violations = BAD_MAGIC
            return INVALID
    head.payload_size = RANDOM_SIZE
    return pos + 4


def decode_handshake_v2(data: bytes, pos: i64, end: i64, limit: i64, head: FrameHeader) -> i64:
    """Decode the handshake of v2: [[major, minor], 16 random bytes]; ignore more elements."""
    outer, at = msgpack_array(data, pos, end)
    count: i64 = 0
    if at >= 0:
        count, at = msgpack_array(data, at, end)
    major: i64 = 0
    if at >= 0:
        major, at = msgpack_int(data, at, end)
    if at >= 0 and major != 2:
        head.format_violations = VERSION_MISMATCH
        return INVALID
    if at >= 0 and (outer < 2 or count < 2):
        at = INVALID
    if at >= 0:
        at = msgpack_skip(data, at, end, count - 1)
    size: i64 = 0
    start: i64 = at
    if at >= 0:
        size, start = msgpack_blob(data, at, end)
        if start >= 0 and size != RANDOM_SIZE:
            start = INVALID
    if start >= 0 and outer > 2:
        at = msgpack_skip(data, start + size, end, outer - 2) if size <= end - start else INCOMPLETE
        if at < 0:
            start = at
        else:
            head.trailer_size = at - start - size
    if start == INVALID or (start == INCOMPLETE and end - pos > limit):
        head.format_violations = BAD_HANDSHAKE
        return INVALID
    head.payload_size = size
    return start


def decode_header_v1(data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
    """Decode a v1 header: code (1 byte), channel id (4), payload length (2), big endian."""
    if end - pos < 7:
        return INCOMPLETE
    head.kind = data[pos]
    head.stream_id = read_big_endian(data, pos + 1, 4)
    head.payload_size = read_big_endian(data, pos + 5, 2)
    if head.stream_id == 0 or head.stream_id > 0x7FFFFFFF:
        head.format_violations = BAD_FRAME
    if head.kind > MAX_CONTROL_CODE:
        head.kind = MALFORMED
        head.format_violations = BAD_FRAME
    return pos + 7


def decode_content_header_v3(
    data: bytes, pos: i64, end: i64, sender: i64, head: FrameHeader
) -> i64:
    """Fast path for v3 content: [2, id below 65536, source, up to 20480 bytes].

    Returns the offset of the payload and fills `head`, or returns 0 if `decode_header_v2_v3` must
    decode the header.
    """
    if end - pos < 9 or data[pos] != 0x94 or data[pos + 1] != CONTENT_FRAME:
        return 0
    at = pos + 3
    number: i64 = data[pos + 2]
    if number > 0x7F:
        high: i64 = 0
        if number == 0xCD:
            high = data[at]
            at += 1
        elif number != 0xCC:
            return 0
        low: i64 = data[at]
        number = high * 256 + low
        at += 1
    source: i64 = data[at]
    if source != 1 and source != 0xFF:
        return 0
    form: i64 = data[at + 1]
    size: i64 = data[at + 2]
    at += 3
    if form == 0xC5:
        last: i64 = data[at]
        size = size * 256 + last
        at += 1
    elif form != 0xC4:
        return 0
    if size > MAX_SENT_PAYLOAD:
        return 0
    opener = sender if source == 1 else 1 - sender
    head.kind = CONTENT_FRAME
    head.stream_id = number
    head.opener = opener
    head.key = number * 4 + opener
    head.payload_size = size
    head.credit_cost = size
    return at


def decode_header_v2_v3(
    data: bytes, pos: i64, end: i64, fields: i64, limit: i64, sender: i64, head: FrameHeader
) -> i64:
    """Decode [code, id, payload] (v2, 2 fields) or [code, id, source, payload] (v3, 3 fields)."""
    if end - pos < 3:
        return INCOMPLETE
    shape: i64 = data[pos]
    count: i64
    at: i64
    if 0x90 <= shape <= 0x9F:
        count = shape - 0x90
        at = pos + 1
    else:
        count, at = msgpack_array(data, pos, end)
        if at < 0:
            return (
                skip_malformed(data, pos, end, limit, BAD_FRAME, head)
                if at == INVALID
                else INCOMPLETE
            )
    if count < fields:
        return skip_malformed(data, pos, end, limit, BAD_FRAME, head)
    code, at = msgpack_int(data, at, end)
    if at < 0:
        return (
            skip_malformed(data, pos, end, limit, BAD_FRAME, head) if at == INVALID else INCOMPLETE
        )
    number, at = msgpack_int(data, at, end)
    if at < 0:
        return (
            skip_malformed(data, pos, end, limit, BAD_FRAME, head) if at == INVALID else INCOMPLETE
        )
    if code < 0 or code > MAX_CONTROL_CODE or number < 0 or number > MAX_CHANNEL_ID:
        return skip_malformed(data, pos, end, limit, BAD_FRAME, head)
    if fields == 3:
        source, at = msgpack_int(data, at, end)
        if at < 0:
            return (
                skip_malformed(data, pos, end, limit, BAD_FRAME, head)
                if at == INVALID
                else INCOMPLETE
            )
        if source == 1:  # offered by: 1 the sender, -1 the other side, 0 neither (seeded)
            head.opener = sender
        elif source == -1:
            head.opener = 1 - sender
        elif source == 0:
            head.opener = NEITHER_SIDE
        else:
            return skip_malformed(data, pos, end, limit, WRONG_SOURCE, head)
    size: i64 = 0
    if count > fields:
        size, at = msgpack_blob(data, at, end)
        if at < 0:
            return (
                skip_malformed(data, pos, end, limit, BAD_FRAME, head)
                if at == INVALID
                else INCOMPLETE
            )
        if count > fields + 1:
            after: i64 = INCOMPLETE
            if size <= end - at:
                after = msgpack_skip(data, at + size, end, count - fields - 1)
            if after == INCOMPLETE and end - pos <= limit:
                return INCOMPLETE
            if after < 0:
                head.format_violations = BAD_FRAME
                return INVALID
            head.trailer_size = after - at - size
    head.kind = code
    head.stream_id = number
    head.payload_size = size
    return at


def skip_malformed(
    data: bytes, pos: i64, end: i64, limit: i64, violation: i64, head: FrameHeader
) -> i64:
    """Skip a msgpack value that is not a frame, if its end can be found."""
    after = msgpack_skip(data, pos, end, 1)
    if after == INCOMPLETE and end - pos <= limit:
        return INCOMPLETE
    head.format_violations = violation
    if after < 0:
        return INVALID
    head.kind = MALFORMED
    head.payload_size = after - pos - 1
    return pos + 1


def decode_payload_v2_v3(
    data: bytes, start: i64, end: i64, max_peer_window: i64, head: FrameHeader
) -> None:
    """Decode the payload of a control frame into amount, name or text, and violations."""
    kind = head.kind
    count: i64 = 0
    at: i64 = INVALID
    if end > start:
        count, at = msgpack_array(data, start, end)
    if kind == OFFER:
        if at < 0 or count < 1:
            head.format_violations |= BAD_OFFER
            return
        size, at = msgpack_blob(data, at, end)
        if at < 0 or size > end - at:
            head.format_violations |= BAD_OFFER
            return
        head.text_start = at
        head.text_size = size
        decode_window(data, at + size, end, count - 1, BAD_OFFER, max_peer_window, head)
    elif kind == ACCEPTED:
        if at < 0:
            head.format_violations |= BAD_ACCEPTANCE
            return
        decode_window(data, at, end, count, BAD_ACCEPTANCE, max_peer_window, head)
    elif kind == PROCESSED or kind == WINDOW_ADJUST:
        amount: i64 = -1
        if at >= 0 and count > 0:
            amount, at = msgpack_int(data, at, end)
        if at < 0 or amount < 0:
            head.format_violations |= BAD_FRAME
            return
        if kind == WINDOW_ADJUST and (amount == 0 or amount > max_peer_window):
            head.format_violations |= BAD_WINDOW
        if kind == PROCESSED or amount > 0:  # an implausible window still counts
            head.amount = amount
    elif kind == TERMINATED and end > start:
        if at < 0:
            head.format_violations |= BAD_FRAME
        elif count > 0:
            size, at = msgpack_blob(data, at, end)
            if at < 0 or size > end - at:
                head.format_violations |= BAD_FRAME
                return
            head.text_start = at
            head.text_size = size


def decode_window(
    data: bytes,
    pos: i64,
    end: i64,
    count: i64,
    violation: i64,
    max_peer_window: i64,
    head: FrameHeader,
) -> None:
    """Decode the receive window in an offer or an acceptance, if there is one."""
    if count < 1:
        head.format_violations |= OFFER_WITHOUT_WINDOW
        return
    amount, at = msgpack_int(data, pos, end)
    if at < 0:
        head.format_violations |= violation
        return
    if amount <= 0 or amount > max_peer_window:
        head.format_violations |= BAD_WINDOW
    if amount > 0:  # an implausible window still counts: the peer may use it
        head.amount = amount


def encode_frame_v1(out: BytesWriter, head: FrameHeader, text: bytes) -> None:
    """Append a v1 frame; of content frames only the header."""
    out.append(head.kind)
    put_big_endian(out, head.stream_id, 4)
    put_big_endian(out, head.payload_size if head.kind == CONTENT_FRAME else len(text), 2)
    if head.kind != CONTENT_FRAME:
        out.write(text)


def encode_frame_v2_v3(
    out: BytesWriter, fields: i64, sender: i64, head: FrameHeader, text: bytes
) -> None:
    """Append a v2 (2 fields) or v3 (3 fields) frame; of content frames only the header."""
    payload = b"" if head.kind == CONTENT_FRAME else encode_payload(head, text)
    size: i64 = head.payload_size if head.kind == CONTENT_FRAME else len(payload)
    out.append(0x90 + fields + (1 if size > 0 else 0))
    put_msgpack_int(out, head.kind)
    put_msgpack_int(out, head.stream_id)
    if fields == 3:
        put_msgpack_int(
            out, 0 if head.opener == NEITHER_SIDE else 1 if head.opener == sender else -1
        )
    if size > 0:
        put_msgpack_bin(out, size)
        out.write(payload)


def encode_payload(head: FrameHeader, text: bytes) -> bytes:
    """Return the payload of a control frame with this amount and text."""
    kind = head.kind
    out = BytesWriter()
    amount = clamp_to_i64(head.amount)
    if kind == OFFER:
        out.append(0x92 if amount >= 0 else 0x91)
        put_msgpack_str(out, text)
    elif kind == TERMINATED:
        if len(text) > 0:
            out.append(0x91)
            put_msgpack_str(out, text)
    elif kind == ACCEPTED or kind == PROCESSED or kind == WINDOW_ADJUST:
        out.append(0x91 if amount >= 0 else 0x90)
    else:
        return text
    if amount >= 0 and kind != TERMINATED:
        put_msgpack_int(out, amount)
    return out.getvalue()
