"""A corpus of files that lie: each with the status, the offset and a word of the error expected."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tests.capture import capture_builder as build
from tests.capture.capture_builder import ALICE, BOB, Packet

GOOD = build.frame(ALICE, BOB, 1, payload=b"good")
SECTION = build.section()
HEAD = SECTION + build.interface()
FIRST = build.enhanced(Packet(build.START, GOOD))
AFTER = len(HEAD) + len(FIRST)
PCAP = build.pcap([Packet(build.START, GOOD)])


@dataclass(frozen=True)
class Lie:
    name: str
    data: bytes
    status: str
    word: str
    offset: int | None
    packets: int


def _block(kind: int, length: int, body: bytes, trailer: int | None = None) -> bytes:
    end = length if trailer is None else trailer
    return struct.pack("<II", kind, length) + body + struct.pack("<I", end)


def _framing() -> list[Lie]:
    """The chain of blocks itself is broken: reading stops there, what came before is kept."""
    body = bytes(60)
    lies = []
    for length in (0, 1, 3, 4, 8, 11):
        lies.append((f"length-{length}", _block(6, length, body), "is invalid"))
    for length in (13, 14, 15, 33, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFFFFFFE):
        word = "is invalid" if length % 4 else "exceeds"
        lies.append((f"length-{length:x}", _block(6, length, body), word))
    for length in (16 << 20 | 4, 0x7FFFFFFC, 0xFFFFFFFC, 0x80000000):
        lies.append((f"huge-{length:x}", _block(6, length, body), "limit max_block_bytes="))
    for trailer in (0, 68, 76, 0xFFFFFFFF):
        lies.append((f"trailer-{trailer:x}", _block(6, 72, body, trailer), "differ"))
    for kind in (1, 3, 0x0A0D0D0A, 5, 0xBAD):
        lies.append((f"zero-length-kind-{kind:x}", struct.pack("<III", kind, 0, 0) + body, ""))
    lies.append(("short-section", _block(0x0A0D0D0A, 12, b""), "byte-order"))
    mark = struct.pack("<I", 0x1A2B3C4D)
    lies.append(("tiny-section", _block(0x0A0D0D0A, 16, mark), "too short"))
    no_mark = _block(0x0A0D0D0A, 28, bytes(16))
    lies.append(("section-without-mark", no_mark, "byte-order"))
    future = build.block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 2, 0, -1))
    lies.append(("version-2", future, "version 2"))
    lies.append(("short-interface", _block(1, 16, bytes(4)), "too short"))
    lies.append(("zeros", bytes(4096), "is invalid"))
    return [Lie(n, HEAD + FIRST + d, "damaged", w, AFTER, 1) for n, d, w in lies]


def _content() -> list[Lie]:
    """One block lies about its content: it is counted and the chain goes on behind it."""

    def packet(interface: int, captured: int, wire: int, data: bytes) -> bytes:
        return build.block(6, struct.pack("<IIIII", interface, 0, 0, captured, wire) + data)

    long_option = build.block(
        6,
        struct.pack("<IIIII", 0, 0, 0, len(GOOD), len(GOOD))
        + GOOD
        + bytes(-len(GOOD) % 4)
        + struct.pack("<HH", 1, 60000)
        + b"polymux:",
    )
    lies = [
        ("packet-of-no-interface", packet(9, 4, 4, bytes(4)), "interface 9"),
        ("interface-ffffffff", packet(0xFFFFFFFF, 4, 4, bytes(4)), "not described"),
        ("captured-over-block", packet(0, 5, 5, bytes(4)), "5 bytes in a block"),
        ("captured-4g", packet(0, 0xFFFFFFFF, 0xFFFFFFFF, bytes(4)), "in a block"),
        ("captured-2g", packet(0, 0x7FFFFFFF, 4, bytes(4)), "in a block"),
        ("over-snap", packet(0, 262145, 262145, bytes(262148)), "limit max_packet_bytes="),
        ("packet-block-too-short", build.block(6, bytes(16)), "too short"),
        ("obsolete-too-short", build.block(2, bytes(16)), "too short"),
        ("empty-packet-block", build.block(6, b""), "too short"),
        ("empty-simple-block", build.block(3, b""), "simple packet"),
        ("option-out-of-bounds", long_option, "reaches beyond"),
    ]
    return [Lie(n, HEAD + FIRST + d + FIRST, "damaged", w, None, 3) for n, d, w in lies]


def _harmless() -> list[Lie]:
    """Odd, but nothing is lost by reading on."""

    def packet(data: bytes, wire: int | None = None) -> bytes:
        return build.enhanced(Packet(0, data, wire=len(data) if wire is None else wire))

    ip = GOOD[14:]
    lies = [
        ("wire-shorter-than-captured", packet(GOOD, 1)),
        ("wire-4g", packet(GOOD, 0xFFFFFFFF)),
        ("ip-header-length-0", packet(GOOD[:14] + b"\x40" + ip[1:])),
        ("ip-header-length-15", packet(GOOD[:14] + b"\x4f" + ip[1:])),
        ("ip-version-9", packet(GOOD[:14] + b"\x95" + ip[1:])),
        ("ip-total-1", packet(GOOD[:16] + b"\0\1" + GOOD[18:])),
        ("ip-total-ffff", packet(GOOD[:16] + b"\xff\xff" + GOOD[18:])),
        ("tcp-offset-0", packet(GOOD[:46] + b"\0" + GOOD[47:])),
        ("tcp-offset-15", packet(GOOD[:46] + b"\xf0" + GOOD[47:])),
        ("vlan-for-ever", packet(bytes(12) + b"\x81\0\0\1" * 60)),
        ("ipv6-headers-for-ever", packet(build.ethernet(
            build.ipv6(build.ALICE6, build.BOB6, bytes(1000), first=0)))),
        ("time-at-the-end", build.enhanced(Packet(0, GOOD), ticks=2**64 - 1)),
        ("section-length-lie", build.block(
            0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, 2**62)) + build.interface()
         + FIRST),
        ("custom-block", build.block(0xBAD, bytes(1000)) + FIRST),
        ("resolution-255", build.interface(resolution=255) + FIRST),
        ("resolution-127", build.interface(resolution=127) + FIRST),
        ("offset-extreme", build.interface(offset=-(2**63)) + FIRST),
        ("unknown-link", build.interface(link=65535) + FIRST),
    ]  # fmt: skip
    return [Lie(n, HEAD + FIRST + d, "whole", "", None, 2) for n, d in lies]


def _classic() -> list[Lie]:
    def record(captured: int, wire: int, data: bytes) -> bytes:
        return struct.pack("<IIII", 1, 1, captured, wire) + data

    end = len(PCAP)
    limit = "limit max_packet_bytes="
    return [
        Lie("pcap-4g", PCAP + record(0xFFFFFFFF, 60, b""), "damaged", limit, end, 1),
        Lie("pcap-2g", PCAP + record(0x7FFFFFFF, 60, bytes(60)), "damaged", limit, end, 1),
        Lie("pcap-over-snap", PCAP + record(262145, 60, b""), "damaged", limit, end, 1),
        Lie("pcap-torn", PCAP + record(262144, 60, b""), "truncated", "ends inside", end, 1),
        Lie("pcap-zeros", PCAP + bytes(64), "whole", "", None, 5),
        Lie("pcap-fraction-4g", PCAP + struct.pack("<IIII", 2**32 - 1, 2**32 - 1, 0, 0),
            "whole", "", None, 2),
    ]  # fmt: skip


def _no_capture() -> list[Lie]:
    cases: list[tuple[str, bytes, str]] = [
        ("empty", b"", "empty"),
        ("one-byte", b"\n", "not a capture"),
        ("text", b"From: nobody\n\nThis is a letter, not a capture.\n", "not a capture"),
        ("zeros-only", bytes(5000), "not a capture"),
        ("html", b"<!doctype html><script>alert(1)</script>" * 10, "not a capture"),
    ]
    torn = [("section-cut", SECTION[:20]), ("pcap-cut", PCAP[:20]), ("magic-only", SECTION[:4])]
    return [Lie(n, d, "unreadable", w, 0, 0) for n, d, w in cases] + [
        Lie(n, d, "truncated", "ends inside", 0, 0) for n, d in torn
    ]


CORPUS = _framing() + _content() + _harmless() + _classic() + _no_capture()
