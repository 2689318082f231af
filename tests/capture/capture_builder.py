"""Builds frames, pcap and pcapng files by hand. Shares no code with the tested modules."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
START = 1_700_000_000_000_000_000
MS = 1_000_000

ETHERNET, NULL, RAW, LOOP, COOKED, COOKED2 = 1, 0, 101, 108, 113, 276


def checksum(data: bytes) -> int:
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@dataclass(frozen=True)
class End:
    address: str
    port: int

    @property
    def text(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else str(self)

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


ALICE = End("192.0.2.1", 40000)
BOB = End("198.51.100.2", 9000)
ALICE6 = End("2001:db8::1", 40000)
BOB6 = End("2001:db8::2", 9000)


def tcp(
    source: End,
    target: End,
    seq: int,
    ack: int = 0,
    flags: int = ACK,
    payload: bytes = b"",
    window: int = 500,
    options: bytes = b"",
) -> bytes:
    """A TCP segment with a correct checksum."""
    options += bytes(-len(options) % 4)
    offset = (20 + len(options)) // 4
    fixed = (source.port, target.port, seq % 2**32, ack % 2**32, offset << 4, flags, window)
    addresses = _packed(source) + _packed(target)
    whole = struct.pack(">HHIIBBHHH", *fixed, 0, 0) + options + payload
    if len(addresses) == 8:
        pseudo = addresses + struct.pack(">BBH", 0, 6, len(whole) & 0xFFFF)
    else:
        pseudo = addresses + struct.pack(">II", len(whole), 6)
    return struct.pack(">HHIIBBHHH", *fixed, checksum(pseudo + whole), 0) + options + payload


def _packed(end: End) -> bytes:
    return ipaddress.ip_address(end.address).packed


def ipv4(
    source: End,
    target: End,
    body: bytes,
    *,
    protocol: int = 6,
    options: bytes = b"",
    fragment: int = 0,
    total: int | None = None,
) -> bytes:
    options += bytes(-len(options) % 4)
    length = 20 + len(options) + len(body) if total is None else total
    first = 0x40 | ((20 + len(options)) // 4)
    ends = _packed(source) + _packed(target)
    head = struct.pack(">BBHHHBBH", first, 0, length & 0xFFFF, 7, fragment, 64, protocol, 0)
    right = struct.pack(">H", checksum(head + ends + options))
    return head[:10] + right + ends + options + body


def ipv6(source: End, target: End, body: bytes, *, first: int = 6) -> bytes:
    head = struct.pack(">IHBB", 6 << 28, len(body) & 0xFFFF, first, 64)
    return head + _packed(source) + _packed(target) + body


def ip(source: End, target: End, body: bytes) -> bytes:
    return (ipv6 if ":" in source.address else ipv4)(source, target, body)


def ethernet(packet: bytes, *tags: int) -> bytes:
    """An Ethernet frame; `tags` are VLAN types from outside in."""
    kind = 0x86DD if packet[:1] and packet[0] >> 4 == 6 else 0x0800
    inner = struct.pack(">H", kind)
    for tag in reversed(tags):
        inner = struct.pack(">HH", tag, 5) + inner
    return bytes(12) + inner + packet


def frame(source: End, target: End, seq: int, ack: int = 0, flags: int = ACK, payload: bytes = b"",
          window: int = 500) -> bytes:  # fmt: skip
    return ethernet(ip(source, target, tcp(source, target, seq, ack, flags, payload, window)))


@dataclass
class Packet:
    """A frame with a timestamp; `wire` is its length before it was truncated."""

    at: int
    data: bytes
    wire: int = -1
    comment: str = ""
    interface: int = 0

    @property
    def length(self) -> int:
        return self.wire if self.wire >= 0 else len(self.data)


# Classic pcap


def pcap(packets: Iterable[Packet], *, link: int = ETHERNET, nano: bool = False,
         big: bool = False) -> bytes:  # fmt: skip
    order = ">" if big else "<"
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    out = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 262144, link)]
    for packet in packets:
        second, rest = divmod(packet.at, 10**9)
        fraction = rest if nano else rest // 1000
        head = struct.pack(order + "IIII", second, fraction, len(packet.data), packet.length)
        out.append(head + packet.data)
    return b"".join(out)


# pcapng


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def options(*pairs: tuple[int, bytes], order: str = "<") -> bytes:
    if not pairs:
        return b""
    return b"".join(option(code, value, order) for code, value in pairs) + bytes(4)


def section(comment: str = "", order: str = "<") -> bytes:
    said = options((1, comment.encode()), order=order) if comment else b""
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + said, order)


def interface(
    link: int = ETHERNET,
    resolution: int | None = 9,
    offset: int | None = None,
    comment: str = "",
    snap: int = 262144,
    order: str = "<",
) -> bytes:
    pairs = [(1, comment.encode())] if comment else []
    if resolution is not None:
        pairs.append((9, bytes([resolution])))
    if offset is not None:
        pairs.append((14, struct.pack(order + "q", offset)))
    return block(1, struct.pack(order + "HHI", link, 0, snap) + options(*pairs, order=order), order)


def enhanced(packet: Packet, order: str = "<", ticks: int | None = None) -> bytes:
    when = packet.at if ticks is None else ticks
    body = struct.pack(
        order + "IIIII",
        packet.interface,
        when >> 32 & 0xFFFFFFFF,
        when & 0xFFFFFFFF,
        len(packet.data),
        packet.length,
    )
    body += packet.data + bytes(-len(packet.data) % 4)
    if packet.comment:
        body += options((1, packet.comment.encode()), order=order)
    return block(6, body, order)


def simple(packet: Packet, order: str = "<") -> bytes:
    return block(3, struct.pack(order + "I", packet.length) + packet.data, order)


def obsolete(packet: Packet, order: str = "<") -> bytes:
    head = struct.pack(
        order + "HHIIII",
        packet.interface,
        0,
        packet.at >> 32,
        packet.at & 0xFFFFFFFF,
        len(packet.data),
        packet.length,
    )
    return block(2, head + packet.data, order)


def pcapng(packets: Iterable[Packet], *, link: int = ETHERNET, comment: str = "") -> bytes:
    """One section, one interface with nanoseconds."""
    return b"".join([section(comment), interface(link), *(enhanced(p) for p in packets)])


def talk(
    *lines: tuple[int, bytes],
    ends: Sequence[End] = (ALICE, BOB),
    isn: Sequence[int] = (100, 900),
    start: int = START,
    step: int = MS,
    close: bool = True,
) -> list[Packet]:
    """A complete connection: handshake, `lines` of (side, payload), both FINs."""
    seq = [isn[0] + 1, isn[1] + 1]
    frames = [
        frame(ends[0], ends[1], isn[0], 0, SYN),
        frame(ends[1], ends[0], isn[1], seq[0], SYN | ACK),
        frame(ends[0], ends[1], seq[0], seq[1]),
    ]
    for side, payload in lines:
        frames.append(
            frame(ends[side], ends[1 - side], seq[side], seq[1 - side], PSH | ACK, payload)
        )
        seq[side] += len(payload)
    if close:
        for side in (0, 1):
            frames.append(frame(ends[side], ends[1 - side], seq[side], seq[1 - side], FIN | ACK))
            seq[side] += 1
    return [Packet(start + step * n, data) for n, data in enumerate(frames)]
