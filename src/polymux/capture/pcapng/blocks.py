"""pcapng blocks as bytes, for writing."""

from __future__ import annotations

import struct

from polymux.capture.pcapng.comments import PREFIX

SNAP_LENGTH = 262144
_COMMENT, _USER_APPLICATION, _RESOLUTION, _DROPPED = 1, 4, 9, 5
_MAX_OPTION_BYTES = 65535


def block(kind: int, body: bytes) -> bytes:
    """A block around `body`, which is padded to 32 bits."""
    body += b"\0" * (-len(body) % 4)
    size = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + size + body + size


def options(*pairs: tuple[int, bytes]) -> bytes:
    """Options and their end mark; nothing for none."""
    out = b""
    for code, value in pairs:
        if value:
            value = value[:_MAX_OPTION_BYTES]
            out += struct.pack("<HH", code, len(value)) + value + b"\0" * (-len(value) % 4)
    return out + b"\0\0\0\0" if out else b""


def section(comment: str = "") -> bytes:
    said = options((_COMMENT, comment.encode()), (_USER_APPLICATION, b"polymux"))
    return block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + said)


def interface(comment: str = "", link_type: int = 1) -> bytes:
    """An interface whose times are nanoseconds."""
    said = options((_COMMENT, comment.encode()), (_RESOLUTION, b"\x09"))
    return block(1, struct.pack("<HHI", link_type, 0, SNAP_LENGTH) + said)


def comment(text: str) -> bytes:
    """The options of a packet that say so; nothing for nothing."""
    return options((_COMMENT, text.encode()))


def packet_ends(
    size: int, timestamp: int, comment_text: str = "", original_length: int = -1
) -> tuple[bytes, bytes]:
    """What goes before and after the `size` bytes of a packet captured at `at` nanoseconds."""
    after = b"\0" * (-size % 4) + comment(comment_text)
    length = 32 + size + len(after)
    timestamp = min(max(timestamp, 0), 2**64 - 1)
    before = struct.pack(
        "<IIIIIII",
        6,
        length,
        0,
        timestamp >> 32,
        timestamp & 0xFFFFFFFF,
        size,
        original_length if original_length >= 0 else size,
    )
    return before, after + struct.pack("<I", length)


def gap_statistics(timestamp: int, packets: int, lost_bytes: int) -> bytes:
    """Statistics that tell what could not be written, in the field other tools read."""
    said = options(
        (_COMMENT, f"{PREFIX} gap packets={packets} bytes={lost_bytes}".encode()),
        (_DROPPED, struct.pack("<Q", packets)),
    )
    return block(5, struct.pack("<III", 0, timestamp >> 32, timestamp & 0xFFFFFFFF) + said)
