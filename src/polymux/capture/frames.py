"""Ethernet, IP and TCP headers for octets that were recorded above TCP."""

from __future__ import annotations

import ipaddress
import struct

from polymux.capture.hot import checksum
from polymux.capture.hot.checksum import fold, octet_sum

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
# IPv4 counts its own header and TCP's in a 16-bit total length.
LARGEST_PAYLOAD = 65535 - 20 - 20
_MACS = (b"\x02\0\0\0\0\1", b"\x02\0\0\0\0\2")
_COMPILED = not checksum.__file__.endswith(".py")


def payload_sum(data: bytes, start: int, end: int) -> int:
    """The words of `data[start:end]` added up, in the way that is quickest here."""
    if _COMPILED or end - start < 64:
        return octet_sum(data, start, end)
    # Interpreted, one division of a large number beats a loop: 65536 is 1 modulo 65535.
    return int.from_bytes(data[start:end] + b"\0" * ((end - start) % 2), "big") % 65535


class FrameMaker:
    """Makes the frames of one direction; everything that never changes is made once."""

    def __init__(self, source: tuple[str, int], target: tuple[str, int], side: int) -> None:
        addresses = [ipaddress.ip_address(end[0].partition("%")[0]) for end in (source, target)]
        if addresses[0].version != addresses[1].version:
            # One end was given as IPv4-mapped or the like: both are written as IPv6.
            addresses = [_as_ipv6(address) for address in addresses]
        self._ipv4 = addresses[0].version == 4
        self._addresses = addresses[0].packed + addresses[1].packed
        kind = b"\x08\x00" if self._ipv4 else b"\x86\xdd"
        self._ethernet = _MACS[1 - side] + _MACS[side] + kind
        self._ports = struct.pack(">HH", source[1], target[1])
        constant = self._addresses + self._ports
        self._sum = octet_sum(constant, 0, len(constant)) + 6  # 6: the protocol number of TCP
        if self._ipv4:
            self._ip_sum = 0x4500 + 0x4000 + 0x4006 + octet_sum(self._addresses, 0, 8)

    def headers(
        self, seq: int, ack: int, flags: int, size: int = 0, words: int = 0, window: int = 65535
    ) -> bytes:
        """What goes before a payload of `size` octets, LARGEST_PAYLOAD at most, whose words add up
        to `words`."""
        length = 20 + size
        seq &= 0xFFFFFFFF
        ack &= 0xFFFFFFFF
        # (seq, ack: 32-bit words add up to the same once folded)
        total = self._sum + length + seq + ack + (0x5000 | flags) + window + words
        right = 0xFFFF - fold(total)
        tcp = self._ports + struct.pack(">IIHHHH", seq, ack, 0x5000 | flags, window, right, 0)
        if self._ipv4:
            right = 0xFFFF - fold(self._ip_sum + 20 + length)
            ip = struct.pack(">HHHHHH", 0x4500, 20 + length, 0, 0x4000, 0x4006, right)
        else:
            ip = struct.pack(">IHBB", 0x60000000, length, 6, 64)
        return self._ethernet + ip + self._addresses + tcp


def _as_ipv6(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if isinstance(address, ipaddress.IPv6Address):
        return address
    return ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + address.packed)
