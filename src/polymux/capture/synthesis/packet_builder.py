# mypyc: compiled
"""Building pcapng packet blocks for bytes recorded above TCP, with synthesised headers."""

from __future__ import annotations

import ipaddress
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from polymux.capture.packets import checksum
from polymux.capture.packets.checksum import fold, word_sum
from polymux.capture.packets.packet_refs import LOW32
from polymux.capture.pcapng.block_types import ENHANCED_PACKET
from polymux.core.varint import put_big_endian

# The total length of IPv4 has 16 bits and includes the IPv4 and TCP headers.
MAX_PAYLOAD_BYTES: Final[i64] = 65535 - 20 - 20
LOW16: Final[i64] = 0xFFFF
ADVERTISED_WINDOW: Final[i64] = 65535
BLOCK_HEADER_BYTES: Final[i64] = 28  # of an enhanced packet block, before the packet
BLOCK_TRAILER_BYTES: Final[i64] = 4  # after the packet, its padding and the options
MACS: Final = (b"\x02\0\0\0\0\1", b"\x02\0\0\0\0\2")
COMPILED: Final = not checksum.__file__.endswith(".py")


def payload_sum(data: bytes, start: i64, end: i64) -> i64:
    """The sum of the 16-bit words of `data[start:end]`, compiled or not in the fastest way."""
    if COMPILED or end - start < 64:
        return word_sum(data, start, end)
    # Interpreted, one division of a large number is faster than a loop: 65536 is 1 modulo 65535.
    return int.from_bytes(data[start:end] + b"\0" * ((end - start) % 2), "big") % 65535


class HeaderTemplate:
    """Headers of one direction of a connection; the constant parts are computed once.

    `side` is that of `source`, 0 for the dialer.
    """

    def __init__(self, source: tuple[str, int], target: tuple[str, int], side: int) -> None:
        addresses = [ipaddress.ip_address(end[0].partition("%")[0]) for end in (source, target)]
        if addresses[0].version != addresses[1].version:
            # One address is IPv4, the other IPv6: write both as IPv6.
            addresses = [_as_ipv6(address) for address in addresses]
        self.ipv4: bool = addresses[0].version == 4
        self.addresses: bytes = addresses[0].packed + addresses[1].packed
        kind = b"\x08\x00" if self.ipv4 else b"\x86\xdd"
        self.ethernet: bytes = MACS[1 - side] + MACS[side] + kind
        self.ports: bytes = source[1].to_bytes(2, "big") + target[1].to_bytes(2, "big")
        constant = self.addresses + self.ports
        self.constant_sum: i64 = word_sum(constant, 0, len(constant)) + 6  # protocol number of TCP
        self.ip_constant_sum: i64 = 0x4500 + 0x4000 + 0x4006 + word_sum(self.addresses, 0, 8)
        self.header_bytes: i64 = 14 + 20 + 20 if self.ipv4 else 14 + 40 + 20

    def write_headers(
        self,
        out: BytesWriter,
        seq: i64,
        ack: i64,
        flags: i64,
        size: i64,
        payload_words: i64,
        window: i64,
    ) -> None:
        """Write the headers for a payload of `size` bytes, at most `MAX_PAYLOAD_BYTES`, whose
        16-bit words have the sum `payload_words`."""
        length = 20 + size
        seq &= LOW32
        ack &= LOW32
        out.write(self.ethernet)
        if self.ipv4:
            put_big_endian(out, 0x4500, 2)
            put_big_endian(out, 20 + length, 2)
            put_big_endian(out, 0x4000, 4)  # identification 0; do not fragment
            put_big_endian(out, 0x4006, 2)
            put_big_endian(out, LOW16 - fold(self.ip_constant_sum + 20 + length), 2)
        else:
            put_big_endian(out, 0x60000000, 4)
            put_big_endian(out, length, 2)
            put_big_endian(out, 0x0640, 2)
        out.write(self.addresses)
        out.write(self.ports)
        put_big_endian(out, seq, 4)
        put_big_endian(out, ack, 4)
        put_big_endian(out, 0x5000 | flags, 2)
        put_big_endian(out, window, 2)
        # A 32-bit word (seq, ack) adds the same as its two halves, once folded.
        total = self.constant_sum + length + seq + ack + (0x5000 | flags) + window + payload_words
        put_big_endian(out, LOW16 - fold(total), 2)
        put_big_endian(out, 0, 2)


def _as_ipv6(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if isinstance(address, ipaddress.IPv6Address):
        return address
    return ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + address.packed)


class PacketBurst:
    """Packets of one connection with one timestamp, as blocks of a pcapng file.

    `parts` joined are the blocks: `block_bytes` bytes with `packets` packets of `packet_bytes`,
    of which `payload_bytes` were recorded. `options` are the options of the first block.
    """

    def __init__(
        self,
        template: HeaderTemplate,
        timestamp: i64,
        seq: i64,
        ack: i64,
        flags: i64,
        options: bytes,
    ) -> None:
        self.template: HeaderTemplate = template
        self.timestamp: i64 = timestamp if timestamp > 0 else 0
        self.seq: i64 = seq
        self.ack: i64 = ack
        self.flags: i64 = flags
        self.options: bytes = options
        self.packets: i64 = 0
        self.payload_bytes: i64 = 0
        self.packet_bytes: i64 = 0
        self.block_bytes: i64 = 0
        self.parts: list[bytes | memoryview] = []

    def add_empty(self) -> None:
        """Add one packet without payload."""
        out = BytesWriter()
        self.write_block_start(out, 0, 0)
        self.write_block_end(out, 0)
        self.parts.append(out.getvalue())

    def add_payload(self, data: bytes, start: i64, max_packets: i64) -> None:
        """Add `data` from `start` on, until the burst has `max_packets` packets."""
        out = BytesWriter()
        view = memoryview(data)
        total: i64 = len(data)
        while start < total and self.packets < max_packets:
            stop = start + MAX_PAYLOAD_BYTES
            if stop > total:
                stop = total
            self.write_block_start(out, stop - start, payload_sum(data, start, stop))
            self.parts.append(out.getvalue())
            self.parts.append(view[start:stop])
            out = BytesWriter()
            self.write_block_end(out, stop - start)
            start = stop
        self.parts.append(out.getvalue())

    def write_block_start(self, out: BytesWriter, size: i64, payload_words: i64) -> None:
        """Write a block up to the payload of `size` bytes."""
        length = self.template.header_bytes + size
        write_u32_le(out, ENHANCED_PACKET)
        write_u32_le(
            out,
            BLOCK_HEADER_BYTES + length + (-length & 3) + len(self.options) + BLOCK_TRAILER_BYTES,
        )
        write_u32_le(out, 0)
        write_u32_le(out, self.timestamp >> 32)
        write_u32_le(out, self.timestamp)
        write_u32_le(out, length)
        write_u32_le(out, length)
        self.template.write_headers(
            out,
            self.seq + self.payload_bytes,
            self.ack,
            self.flags,
            size,
            payload_words,
            ADVERTISED_WINDOW,
        )

    def write_block_end(self, out: BytesWriter, size: i64) -> None:
        """Write the rest of a block after the payload, and count the packet."""
        length = self.template.header_bytes + size
        for _ in range(-length & 3):
            out.append(0)
        out.write(self.options)
        block = (
            BLOCK_HEADER_BYTES + length + (-length & 3) + len(self.options) + BLOCK_TRAILER_BYTES
        )
        write_u32_le(out, block)
        self.options = b""
        self.packets += 1
        self.payload_bytes += size
        self.packet_bytes += length
        self.block_bytes += block


def write_u32_le(out: BytesWriter, value: i64) -> None:
    """Write the lower 32 bits of `value`."""
    for _ in range(4):
        out.append(u8(value & 255))
        value >>= 8
