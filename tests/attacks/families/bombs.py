"""msgpack that costs its reader far more than its writer, as first words or behind an offer."""

from __future__ import annotations

import struct

from tests.attacks import raw_frames as words
from tests.attacks.raw_frames import Nerdbank, msgpack_blob


def shapes() -> list[bytes]:
    """Values that must never be decoded completely."""
    most32, most16 = b"\xff" * 4, b"\xff" * 2
    found = [
        b"\x91" * 60_000, b"\x91" * 1_000_000, b"\x81\xa0" * 30_000, b"\xdc\xff\xff" * 20_000,
        b"\xdd" + most32, b"\xdd\x7f\xff\xff\xff", b"\xdf" + most32, b"\xdb" + most32,
        b"\xc6" + most32, b"\xc9" + most32 + b"\x01", b"\xde" + most16, b"\xdc" + most16,
        b"\xda" + most16, b"\xc5" + most16, b"\xc8" + most16 + b"\x05", b"\xc7\xff\xff",
        b"\xd6\xff" + bytes(4), b"\xd7\xff" + bytes(8), b"\xc7\x0c\xff" + bytes(12),
        b"\xd4\x01\x00", b"\xd8\x01" + bytes(16), b"\xcb\x7f\xf0" + bytes(6),
        b"\xcb\xff\xff" + bytes(6), b"\xca\x7f\xc0\x00\x00", b"\xcf" + b"\xff" * 8,
        b"\xd3\x80" + bytes(7), b"\xc1", b"\xc0" * 1000, b"\xa5\xff\xfe\xfd\xfc\xfb",
    ]  # fmt: skip
    deep = b"\x92\xc0" * 20_000
    wide = b"\xdc" + struct.pack(">H", 20_000) + b"\x90" * 20_000
    return [*found, deep, wide, wide * 3, b"\x9f" + b"\xdd\0\0\x40\0" * 15]


def corpus(version: int) -> list[bytes]:
    """Each shape where a frame is expected, and inside the payload of an offer."""
    wire = Nerdbank(version)
    files = shapes()
    for shape in shapes():
        if len(shape) <= 60_000:
            payload = b"\x92" + shape
            files.append(wire.frame(words.OFFER, wire.number(0), payload))
    nested = b"\x94\x00" + b"\xcf" + b"\xff" * 8 + b"\x01" + msgpack_blob(b"\x92")
    return [*files, nested, b"\x94" + b"\xd3" + b"\x80" * 8, b"\x9f\x02\x01\x01" + b"\xc0" * 12]
