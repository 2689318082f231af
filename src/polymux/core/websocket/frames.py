# mypyc: compiled
"""WebSocket frames: masking, headers and encoding (RFC 6455, 5.2 to 5.5).

A client masks every frame with an unpredictable key of four bytes; a server masks none. The key is
an argument (None: not masked), since there is no randomness in the core. Masking is an XOR, so the
decoder unmasks with the same functions.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from librt.strings import BytesWriter, read_i64_be, read_i64_le, write_i64_be, write_i64_le
from mypy_extensions import i64

from polymux.core.errors import LocalProtocolError

CONTINUATION: Final[i64] = 0
TEXT: Final[i64] = 1
BINARY: Final[i64] = 2
CLOSE: Final[i64] = 8
PING: Final[i64] = 9
PONG: Final[i64] = 10
FIN_BIT: Final[i64] = 0x80  # in the first byte: the last frame of its message
RSV_BITS: Final[i64] = 0x70  # in the first byte: three bits for extensions

MAX_CONTROL_BYTES: Final = 125  # payload of a control frame (5.5)
NORMAL_CLOSURE: Final = 1000
NO_STATUS: Final = 1005  # never on the wire: a close frame without a code (7.1.5)
INCOMPLETE: Final[i64] = -1
MAX_HEADER_BYTES: Final[i64] = 14
FAST_MASK_MIN_BYTES: Final[i64] = 1024  # payloads for which an external MaskFunction is used
MASK_BLOCK_BYTES: Final[i64] = 4096  # size of the big integers of `mask_blocks`

MaskFunction: TypeAlias = Callable[[bytes, bytes], bytes]  # (data, key) to masked data


def mask_words(out: BytesWriter, data: bytes, start: i64, end: i64, key: bytes, phase: i64) -> None:
    """Append data[start:end] masked, eight bytes at a time: fast compiled, slow interpreted."""
    turned = key if phase == 0 else key[phase:] + key[:phase]
    word: i64 = read_i64_le(turned + turned, 0)
    pos = start
    while end - pos >= 8:
        write_i64_le(out, read_i64_le(data, pos) ^ word)
        pos += 8
    while pos < end:
        out.append(data[pos] ^ turned[(pos - start) & 3])
        pos += 1


def mask_blocks(
    out: BytesWriter, data: bytes, start: i64, end: i64, key: bytes, phase: i64
) -> None:
    """The same with big integers, which is faster where this module is interpreted."""
    turned = key[phase:] + key[:phase]
    size = min(end - start, MASK_BLOCK_BYTES)
    pattern = int.from_bytes((turned * ((size + 3) // 4))[:size], "little")
    pos = start
    while end - pos >= size and size > 0:
        block = int.from_bytes(data[pos : pos + size], "little") ^ pattern
        out.write(block.to_bytes(size, "little"))
        pos += size
    if pos < end:
        mask_blocks(out, data, pos, end, turned, 0)  # blocks are multiples of 4: same phase


COMPILED: Final = type(mask_words).__name__ != "function"


def write_masked(
    out: BytesWriter, data: bytes, start: i64, end: i64, key: bytes, phase: i64 = 0
) -> None:
    """Append data[start:end], masked, to `out`.

    `phase` (0 to 3) is the position of the first byte in the key, for a payload that is masked in
    several parts.
    """
    if COMPILED or end - start < 8:
        mask_words(out, data, start, end, key, phase)
    else:
        mask_blocks(out, data, start, end, key, phase)


def masked(data: bytes, start: i64, end: i64, key: bytes, phase: i64 = 0) -> bytes:
    """data[start:end] masked."""
    out = BytesWriter()
    write_masked(out, data, start, end, key, phase)
    return out.getvalue()


class WebSocketFrameHeader:
    """A decoded frame header; refilled for each frame."""

    def __init__(self) -> None:
        self.first_byte: i64 = 0  # FIN bit, three reserved bits, opcode
        self.masking_key: bytes | None = None
        self.payload_size: i64 = 0  # bytes of payload; negative: the top bit was set
        self.length_is_minimal = True  # the length has its shortest form

    def read(self, data: bytes, pos: i64, end: i64) -> i64:
        """Decode a header at `pos`; return its size, or INCOMPLETE (then nothing has changed)."""
        if end - pos < 2:
            return INCOMPLETE
        second: i64 = data[pos + 1]
        form = second & 127
        fixed: i64 = 2
        if form == 126:
            fixed = 4
        elif form == 127:
            fixed = 10
        size = fixed + 4 if second >= 128 else fixed
        if size > end - pos:
            return INCOMPLETE
        self.first_byte = data[pos]
        if form == 126:
            high: i64 = data[pos + 2]
            low: i64 = data[pos + 3]
            self.payload_size = (high << 8) | low
            self.length_is_minimal = self.payload_size > 125
        elif form == 127:
            self.payload_size = read_i64_be(data, pos + 2)
            self.length_is_minimal = self.payload_size > 65535 or self.payload_size < 0
        else:
            self.payload_size = form
            self.length_is_minimal = True
        self.masking_key = data[pos + fixed : pos + size] if second >= 128 else None
        return size


def write_header(
    out: BytesWriter, opcode: i64, size: i64, key: bytes | None, final: bool = True
) -> None:
    """Append the header of a frame with `size` bytes of payload, and the key.

    Raises:
        LocalProtocolError: the key does not have 4 bytes.
    """
    if key is not None and len(key) != 4:
        raise LocalProtocolError(f"a masking key has 4 bytes, not {len(key)}")
    out.append((opcode & 15) | (FIN_BIT if final else 0))
    bit: i64 = 0 if key is None else 128
    if size <= 125:
        out.append(size | bit)
    elif size <= 65535:
        out.append(126 | bit)
        out.append(size >> 8)
        out.append(size & 255)
    else:
        out.append(127 | bit)
        write_i64_be(out, size)
    if key is not None:
        out.write(key)


def write_frame(
    out: BytesWriter, opcode: i64, payload: bytes, key: bytes | None = None, final: bool = True
) -> None:
    """Append a complete frame of any kind, without checking it against the rules."""
    size: i64 = len(payload)
    write_header(out, opcode, size, key, final)
    if key is None:
        out.write(payload)
    else:
        write_masked(out, payload, 0, size, key)


def write_binary(out: BytesWriter, payload: bytes, key: bytes | None = None) -> None:
    """Append a binary message as one frame."""
    write_frame(out, BINARY, payload, key)


def binary_frame(payload: bytes, key: bytes | None = None) -> bytes:
    """A binary message as one frame."""
    return encode_frame(BINARY, payload, key)


def encode_frame(
    opcode: i64, payload: bytes, key: bytes | None = None, final: bool = True
) -> bytes:
    """A complete frame of any kind, without checking it against the rules."""
    out = BytesWriter()
    write_frame(out, opcode, payload, key, final)
    return out.getvalue()


def ping_frame(payload: bytes = b"", key: bytes | None = None) -> bytes:
    """A ping frame; the peer must answer with a pong of the same payload."""
    return _control_frame(PING, payload, key)


def pong_frame(payload: bytes = b"", key: bytes | None = None) -> bytes:
    """A pong frame, which answers a ping with its payload."""
    return _control_frame(PONG, payload, key)


def close_frame(code: int = NORMAL_CLOSURE, reason: str = "", key: bytes | None = None) -> bytes:
    """A close frame. `NO_STATUS`: an empty one. A reason of over 123 bytes is cut.

    Raises:
        LocalProtocolError: the code must not be sent.
    """
    if code == NO_STATUS:
        return _control_frame(CLOSE, b"", key)
    if not is_valid_close_code(code):
        raise LocalProtocolError(
            f"{code} must not be sent in a close frame; "
            "use 1000 to 1003, 1007 to 1014 or 3000 to 4999"
        )
    text = reason.encode("utf-8", "replace")
    if len(text) > MAX_CONTROL_BYTES - 2:  # cut, then drop the character the cut went through
        text = text[: MAX_CONTROL_BYTES - 2].decode("utf-8", "ignore").encode("utf-8")
    return _control_frame(CLOSE, code.to_bytes(2, "big") + text, key)


def is_valid_close_code(code: int) -> bool:
    """Whether this code may be sent in a close frame (7.4; 1012 to 1014 were added later)."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def _control_frame(opcode: i64, payload: bytes, key: bytes | None) -> bytes:
    if len(payload) > MAX_CONTROL_BYTES:
        raise LocalProtocolError(
            f"a control frame carries at most {MAX_CONTROL_BYTES} bytes, not {len(payload)}"
        )
    return encode_frame(opcode, payload, key)
