"""Encoding pcapng blocks, in little-endian byte order unless asked otherwise."""

from __future__ import annotations

import struct

from polymux.capture.pcapng.block_types import (
    BYTE_ORDER_MAGIC,
    DECRYPTION_SECRETS,
    ENHANCED_PACKET,
    INTERFACE,
    INTERFACE_STATISTICS,
    SECTION,
    TLS_KEY_LOG,
)
from polymux.capture.pcapng.comments import PREFIX

SNAP_LENGTH = 262144
# Option codes; their meaning depends on the block they are in.
_COMMENT, _USER_APPLICATION, _RESOLUTION, _DROPPED = 1, 4, 9, 5
_MAX_OPTION_BYTES = 65535


def block(kind: int, body: bytes) -> bytes:
    """A block of type `kind` with `body`, padded to 32 bits."""
    body += b"\0" * (-len(body) % 4)
    size = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + size + body + size


def options(*pairs: tuple[int, bytes]) -> bytes:
    """Options and the end-of-options mark; b"" if every value is empty.

    Values longer than 65535 bytes are truncated.
    """
    out = b""
    for code, value in pairs:
        if value:
            value = value[:_MAX_OPTION_BYTES]
            out += struct.pack("<HH", code, len(value)) + value + b"\0" * (-len(value) % 4)
    return out + b"\0\0\0\0" if out else b""


def section(comment: str = "") -> bytes:
    """A section header block of version 1.0 and unknown length."""
    trailing = options((_COMMENT, comment.encode()), (_USER_APPLICATION, b"polymux"))
    return block(SECTION, struct.pack("<IHHq", BYTE_ORDER_MAGIC, 1, 0, -1) + trailing)


def interface(comment: str = "", link_type: int = 1) -> bytes:
    """An interface description block with timestamps in nanoseconds."""
    trailing = options((_COMMENT, comment.encode()), (_RESOLUTION, b"\x09"))
    return block(INTERFACE, struct.pack("<HHI", link_type, 0, SNAP_LENGTH) + trailing)


def secrets(key_log: bytes, big_endian: bool = False) -> bytes:
    """A decryption secrets block with lines of a TLS key log, in the section's byte order."""
    if not big_endian:
        return block(DECRYPTION_SECRETS, struct.pack("<II", TLS_KEY_LOG, len(key_log)) + key_log)
    body = struct.pack(">II", TLS_KEY_LOG, len(key_log)) + key_log
    body += b"\0" * (-len(body) % 4)
    size = struct.pack(">I", len(body) + 12)
    return struct.pack(">I", DECRYPTION_SECRETS) + size + body + size


def comment(text: str) -> bytes:
    """The options of a packet that has this comment; b"" for an empty one."""
    return comments(text)


def comments(*texts: str) -> bytes:
    """The same for several comments; empty ones are left out."""
    return options(*((_COMMENT, text.encode()) for text in texts))


def packet_ends(
    size: int, timestamp: int, comment_text: str = "", original_length: int = -1
) -> tuple[bytes, bytes]:
    """The bytes before and after the `size` bytes of a packet in an enhanced packet block.

    `timestamp` is in nanoseconds since 1970; `original_length` is `size` unless given.
    """
    after = b"\0" * (-size % 4) + comment(comment_text)
    length = 32 + size + len(after)
    timestamp = min(max(timestamp, 0), 2**64 - 1)
    before = struct.pack(
        "<IIIIIII",
        ENHANCED_PACKET,
        length,
        0,
        timestamp >> 32,
        timestamp & 0xFFFFFFFF,
        size,
        original_length if original_length >= 0 else size,
    )
    return before, after + struct.pack("<I", length)


def gap_statistics(timestamp: int, packets: int, lost_bytes: int) -> bytes:
    """Interface statistics that report packets that could not be written.

    The comment has packets and bytes; `isb_ifdrop`, which other tools read, the packets.
    """
    trailing = options(
        (_COMMENT, f"{PREFIX} gap packets={packets} bytes={lost_bytes}".encode()),
        (_DROPPED, struct.pack("<Q", packets)),
    )
    fixed = struct.pack("<III", 0, timestamp >> 32, timestamp & 0xFFFFFFFF)
    return block(INTERFACE_STATISTICS, fixed + trailing)
