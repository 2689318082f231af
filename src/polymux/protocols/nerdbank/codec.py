# mypyc: compiled
"""The three wires of Nerdbank MultiplexingStream: headers, payloads and handshakes.

v1 has its own 7-octet header; v2 and v3 are msgpack arrays, v3 with the channel's source. Readers
are lenient: trailing elements, long integer forms, nil and strings as payload are all read.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import Head
from polymux.core.side import NOBODY
from polymux.core.varint import (
    BAD,
    SHORT,
    clipped,
    msgpack_array,
    msgpack_blob,
    msgpack_int,
    msgpack_skip,
    put_big_endian,
    put_msgpack_bin,
    put_msgpack_int,
    put_msgpack_str,
    unsigned,
)

OFFER: Final[i64] = 0
ACCEPTED: Final[i64] = 1
CONTENT_FRAME: Final[i64] = 2
COMPLETED: Final[i64] = 3
TERMINATED: Final[i64] = 4
PROCESSED: Final[i64] = 5
READING_COMPLETED: Final[i64] = 6
WINDOW_ADJUST: Final[i64] = 7
GROWTH_REQUEST: Final[i64] = 8
MALFORMED: Final[i64] = 254  # a frame whose end is known, but whose shape is not a frame's
HANDSHAKE: Final[i64] = 255
LAST_CODE: Final[i64] = 200  # larger control codes are not believed

PAYLOAD: Final[i64] = 20480  # what every implementation sends at most

MAGIC: Final = b"\x2f\xdf\x1d\x50"
RANDOM: Final = 16
MAX_NUMBER: Final[i64] = 0x0FFFFFFFFFFFFFFF  # leaves room for the opener in a key

# Shapes that are wrong, as the rule book's bits.
BAD_MAGIC: Final[i64] = 0x1
BAD_HANDSHAKE: Final[i64] = 0x2
VERSION_MISMATCH: Final[i64] = 0x4
BAD_FRAME: Final[i64] = 0x10
WRONG_SOURCE: Final[i64] = 0x100
BAD_OFFER: Final[i64] = 0x200
BAD_ACCEPTANCE: Final[i64] = 0x400
BAD_WINDOW: Final[i64] = 0x20000
NO_WINDOW: Final[i64] = 0x2000000


def greeting1(data: bytes, pos: i64, end: i64, head: Head) -> i64:
    """The handshake of v1: magic, then 16 random octets."""
    for i in range(4):
        if pos + i >= end:
            return SHORT
        if data[pos + i] != MAGIC[i]:
            head.flaws = BAD_MAGIC
            return BAD
    head.size = RANDOM
    return pos + 4


def greeting2(data: bytes, pos: i64, end: i64, limit: i64, head: Head) -> i64:
    """The handshake of v2: [[major, minor], 16 random octets]; more elements are stepped over."""
    outer, at = msgpack_array(data, pos, end)
    count: i64 = 0
    if at >= 0:
        count, at = msgpack_array(data, at, end)
    major: i64 = 0
    if at >= 0:
        major, at = msgpack_int(data, at, end)
    if at >= 0 and major != 2:
        head.flaws = VERSION_MISMATCH
        return BAD
    if at >= 0 and (outer < 2 or count < 2):
        at = BAD
    if at >= 0:
        at = msgpack_skip(data, at, end, count - 1)
    size: i64 = 0
    start: i64 = at
    if at >= 0:
        size, start = msgpack_blob(data, at, end)
        if start >= 0 and size != RANDOM:
            start = BAD
    if start >= 0 and outer > 2:
        at = msgpack_skip(data, start + size, end, outer - 2) if size <= end - start else SHORT
        if at < 0:
            start = at
        else:
            head.tail = at - start - size
    if start == BAD or (start == SHORT and end - pos > limit):
        head.flaws = BAD_HANDSHAKE
        return BAD
    head.size = size
    return start


def header1(data: bytes, pos: i64, end: i64, head: Head) -> i64:
    """code (1), channel id (4), payload length (2), big endian."""
    if end - pos < 7:
        return SHORT
    head.kind = data[pos]
    head.number = unsigned(data, pos + 1, 4)
    head.size = unsigned(data, pos + 5, 2)
    if head.number == 0 or head.number > 0x7FFFFFFF:
        head.flaws = BAD_FRAME
    if head.kind > LAST_CODE:
        head.kind = MALFORMED
        head.flaws = BAD_FRAME
    return pos + 7


def content3(data: bytes, pos: i64, end: i64, sender: i64, head: Head) -> i64:
    """The usual content of v3, read at once: [2, id below 65536, source, up to 20480 octets].

    Returns where the payload starts with `head` filled, or 0: `header23` must look at it.
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
    if size > PAYLOAD:
        return 0
    opener = sender if source == 1 else 1 - sender
    head.kind = CONTENT_FRAME
    head.number = number
    head.opener = opener
    head.key = number * 4 + opener
    head.size = size
    head.units = size
    return at


def header23(
    data: bytes, pos: i64, end: i64, fields: i64, limit: i64, sender: i64, head: Head
) -> i64:
    """[code, id, payload] (v2, 2 fields) or [code, id, source, payload] (v3, 3 fields)."""
    if end - pos < 3:
        return SHORT
    shape: i64 = data[pos]
    count: i64
    at: i64
    if 0x90 <= shape <= 0x9F:
        count = shape - 0x90
        at = pos + 1
    else:
        count, at = msgpack_array(data, pos, end)
        if at < 0:
            return malformed(data, pos, end, limit, BAD_FRAME, head) if at == BAD else SHORT
    if count < fields:
        return malformed(data, pos, end, limit, BAD_FRAME, head)
    code, at = msgpack_int(data, at, end)
    if at < 0:
        return malformed(data, pos, end, limit, BAD_FRAME, head) if at == BAD else SHORT
    number, at = msgpack_int(data, at, end)
    if at < 0:
        return malformed(data, pos, end, limit, BAD_FRAME, head) if at == BAD else SHORT
    if code < 0 or code > LAST_CODE or number < 0 or number > MAX_NUMBER:
        return malformed(data, pos, end, limit, BAD_FRAME, head)
    if fields == 3:
        source, at = msgpack_int(data, at, end)
        if at < 0:
            return malformed(data, pos, end, limit, BAD_FRAME, head) if at == BAD else SHORT
        if source == 1:  # the sender's view: 1 "I offered it", -1 "you did", 0 seeded
            head.opener = sender
        elif source == -1:
            head.opener = 1 - sender
        elif source == 0:
            head.opener = NOBODY
        else:
            return malformed(data, pos, end, limit, WRONG_SOURCE, head)
    size: i64 = 0
    if count > fields:
        size, at = msgpack_blob(data, at, end)
        if at < 0:
            return malformed(data, pos, end, limit, BAD_FRAME, head) if at == BAD else SHORT
        if count > fields + 1:
            after: i64 = SHORT
            if size <= end - at:
                after = msgpack_skip(data, at + size, end, count - fields - 1)
            if after == SHORT and end - pos <= limit:
                return SHORT
            if after < 0:
                head.flaws = BAD_FRAME
                return BAD
            head.tail = after - at - size
    head.kind = code
    head.number = number
    head.size = size
    return at


def malformed(data: bytes, pos: i64, end: i64, limit: i64, flaw: i64, head: Head) -> i64:
    """Not a frame, but a msgpack value: step over it if its end can be found."""
    after = msgpack_skip(data, pos, end, 1)
    if after == SHORT and end - pos <= limit:
        return SHORT
    head.flaws = flaw
    if after < 0:
        return BAD
    head.kind = MALFORMED
    head.size = after - pos - 1
    return pos + 1


def payload23(data: bytes, start: i64, end: i64, window_peer: i64, head: Head) -> None:
    """What the payload of a control frame says: amount, name or text, and what is wrong with it."""
    kind = head.kind
    count: i64 = 0
    at: i64 = BAD
    if end > start:
        count, at = msgpack_array(data, start, end)
    if kind == OFFER:
        if at < 0 or count < 1:
            head.flaws |= BAD_OFFER
            return
        size, at = msgpack_blob(data, at, end)
        if at < 0 or size > end - at:
            head.flaws |= BAD_OFFER
            return
        head.text = at
        head.text_size = size
        window(data, at + size, end, count - 1, BAD_OFFER, window_peer, head)
    elif kind == ACCEPTED:
        if at < 0:
            head.flaws |= BAD_ACCEPTANCE
            return
        window(data, at, end, count, BAD_ACCEPTANCE, window_peer, head)
    elif kind == PROCESSED or kind == WINDOW_ADJUST:
        amount: i64 = -1
        if at >= 0 and count > 0:
            amount, at = msgpack_int(data, at, end)
        if at < 0 or amount < 0:
            head.flaws |= BAD_FRAME
            return
        if kind == WINDOW_ADJUST and (amount == 0 or amount > window_peer):
            head.flaws |= BAD_WINDOW
        if kind == PROCESSED or amount > 0:  # one beyond belief was announced all the same
            head.amount = amount
    elif kind == TERMINATED and end > start:
        if at < 0:
            head.flaws |= BAD_FRAME
        elif count > 0:
            size, at = msgpack_blob(data, at, end)
            if at < 0 or size > end - at:
                head.flaws |= BAD_FRAME
                return
            head.text = at
            head.text_size = size


def window(
    data: bytes, pos: i64, end: i64, count: i64, flaw: i64, window_peer: i64, head: Head
) -> None:
    """The receiving window in an offer or an acceptance, if it is there."""
    if count < 1:
        head.flaws |= NO_WINDOW
        return
    amount, at = msgpack_int(data, pos, end)
    if at < 0:
        head.flaws |= flaw
        return
    if amount <= 0 or amount > window_peer:
        head.flaws |= BAD_WINDOW
    if amount > 0:  # one beyond belief was announced all the same: the other side may use it
        head.amount = amount


def put_frame1(out: BytesWriter, head: Head, text: bytes) -> None:
    out.append(head.kind)
    put_big_endian(out, head.number, 4)
    put_big_endian(out, head.size if head.kind == CONTENT_FRAME else len(text), 2)
    if head.kind != CONTENT_FRAME:
        out.write(text)


def put_frame23(out: BytesWriter, fields: i64, sender: i64, head: Head, text: bytes) -> None:
    payload = b"" if head.kind == CONTENT_FRAME else payload_bytes(head, text)
    size: i64 = head.size if head.kind == CONTENT_FRAME else len(payload)
    out.append(0x90 + fields + (1 if size > 0 else 0))
    put_msgpack_int(out, head.kind)
    put_msgpack_int(out, head.number)
    if fields == 3:
        put_msgpack_int(out, 0 if head.opener == NOBODY else 1 if head.opener == sender else -1)
    if size > 0:
        put_msgpack_bin(out, size)
        out.write(payload)


def payload_bytes(head: Head, text: bytes) -> bytes:
    """The payload of a control frame, made from its amount and text."""
    kind = head.kind
    out = BytesWriter()
    amount = clipped(head.amount)
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
