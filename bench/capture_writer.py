"""Captures for benchmarks: many TCP connections, written without polymux's own code."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random

ACK, SYN, FIN = 16, 2, 1
PCAP_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)
PCAPNG_HEADER = (
    struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    + struct.pack("<IIHHI", 1, 32, 1, 0, 262144) + struct.pack("<HHB3xHHI", 9, 1, 9, 0, 0, 32)
)  # fmt: skip

Packet = tuple[int, bytes]  # nanoseconds, Ethernet frame


SERVER = bytes([10, 1, 0, 1]), 9000


def client_packet(flow: int, seq: int, ack: int, flags: int, payload: bytes) -> bytes:
    """The data of the client of connection number `flow`."""
    return packet((client(flow), SERVER), seq, ack, flags, payload)


def server_packet(flow: int, seq: int, ack: int, flags: int, payload: bytes = b"") -> bytes:
    """The data of its server."""
    return packet((SERVER, client(flow)), seq, ack, flags, payload)


def client(flow: int) -> tuple[bytes, int]:
    return bytes([10, 0, flow >> 8, flow & 255]), 30000 + flow


def packet(
    ends: tuple[tuple[bytes, int], tuple[bytes, int]], seq: int, ack: int, flags: int, data: bytes
) -> bytes:
    """Ethernet, IPv4, TCP; without checksums, as in captures of a sender with offloading."""
    (source, port), (target, port_there) = ends
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(data), 1, 0x4000, 64, 6, 0) + source + target
    tcp = struct.pack(">HHIIBBHHH", port, port_there, seq, ack, 80, flags, 512, 0, 0)
    return bytes(12) + b"\x08\x00" + ip + tcp + data


def one_way_packets(
    total_bytes: int, flows: int = 200, segment: int = 1448, seed: int = 4
) -> Iterator[Packet]:
    """One direction of `flows` connections, 1 % of segments late and 0.5 % sent twice."""
    rng = Random(seed)
    body = bytes(segment)
    seqs = [1] * flows
    at = 1_700_000_000_000_000_000
    for flow in range(flows):
        at += 1000
        yield at, client_packet(flow, 0, 0, SYN, b"")
    late: list[bytes] = []
    for _ in range(total_bytes // segment):
        flow = rng.randrange(flows)
        made = client_packet(flow, seqs[flow], 1, ACK, body)
        seqs[flow] += segment
        at += 1000
        chance = rng.random()
        if chance < 0.01:
            late.append(made)
            continue
        yield at, made
        if chance > 0.995:
            yield at + 100, made
        if late:
            yield at + 200, late.pop()
    for made in late:
        yield at + 300, made
    for flow in range(flows):
        at += 1000
        yield at, client_packet(flow, seqs[flow], 1, ACK | FIN, b"")


def packets_carrying(data: bytes, flows: int, segment: int = 1448) -> Iterator[Packet]:
    """`flows` connections that all carry `talk`, from SYN to both FINs, a segment each in turn."""
    at = 1_700_000_000_000_000_000
    for flow in range(flows):
        at += 1000
        yield at, client_packet(flow, 0, 0, SYN, b"")
    for begin in range(0, len(data), segment):
        body = data[begin : begin + segment]
        for flow in range(flows):
            at += 1000
            yield at, client_packet(flow, begin + 1, 1, ACK, body)
    for flow in range(flows):
        at += 1000
        yield at, client_packet(flow, len(data) + 1, 1, ACK | FIN, b"")
        yield at + 100, server_packet(flow, 1, len(data) + 2, ACK | FIN)


def record(at: int, data: bytes) -> bytes:
    """A packet in classic pcap format."""
    second, rest = divmod(at, 10**9)
    return struct.pack("<IIII", second, rest // 1000, len(data), len(data)) + data


def pcap(packets: list[Packet]) -> bytes:
    return PCAP_HEADER + b"".join(record(at, data) for at, data in packets)


def pcapng(packets: list[Packet]) -> bytes:
    out = [PCAPNG_HEADER]
    for at, data in packets:
        padding = -len(data) % 4
        size = 32 + len(data) + padding
        head = struct.pack("<IIIIIII", 6, size, 0, at >> 32, at & 0xFFFFFFFF, len(data), len(data))
        out.append(head + data + bytes(padding) + struct.pack("<I", size))
    return b"".join(out)


FORMATS: dict[str, Callable[[list[Packet]], bytes]] = {"pcap": pcap, "pcapng": pcapng}
