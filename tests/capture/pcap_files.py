"""Classic pcap files, made from the pcapng files that polymux writes."""

from __future__ import annotations

import struct


def as_classic_pcap(pcapng: bytes, order: str = "<") -> bytes:
    """The packets of a little-endian pcapng file with nanoseconds, as a classic pcap file."""
    out = struct.pack(f"{order}IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1)
    pos = 0
    while pos < len(pcapng):
        kind, size = struct.unpack_from("<II", pcapng, pos)
        if kind == 6:
            high, low, captured, length = struct.unpack_from("<IIII", pcapng, pos + 12)
            at = (high << 32) | low
            out += struct.pack(f"{order}IIII", at // 10**9, at % 10**9, captured, length)
            out += pcapng[pos + 28 : pos + 28 + captured]
        pos += size
    return out
