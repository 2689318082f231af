"""Copying the packets of a capture without what they carry.

The payload of TCP segments is replaced by bytes that the caller has prepared. Packets that are not
TCP segments are left out. Of the headers, options that reading does not need become padding, and
checksums are computed again: a checksum is 16 bits of knowledge about the content. A checksum that
was wrong stays wrong, so that readers that verify checksums see the same packets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from polymux.capture.packets.checksum import (
    fold,
    ipv4_checksum_is_valid,
    tcp_checksum_is_valid,
    word_sum,
)
from polymux.capture.packets.decoder import (
    IPV4,
    LINK_ETHERNET,
    PacketTable,
    link_layer,
)
from polymux.capture.packets.packet_refs import CAPTURED_BITS, CAPTURED_MASK
from polymux.capture.pcapng.comments import anonymous_hints
from polymux.capture.pcapng.rewrite import CaptureEdit

_MAX_FLOWS = 65536  # of a table; it is replaced when it is full
_VLAN_TYPES = (0x8100, 0x88A8, 0x9100)
_TCP = 6
_FRAGMENT_HEADER = 44
_AUTHENTICATION_HEADER = 51
_NO_OPERATION = 1  # the TCP option that pads
# End of options, no operation, segment size, window scale, selective acknowledgments, timestamps.
_KEPT_TCP_OPTIONS = (0, 1, 2, 3, 4, 5, 8)
_WRONG = 0x0F0F  # what a wrong checksum differs in from the right one
_COMPLEMENT = bytes(255 - byte for byte in range(256))


class PayloadSpool:
    """The new payload of a capture's packets, by their offsets in the source.

    What was not written reads as the byte ff. The file has no name and is gone when closed.

    Args:
        fd: An empty file, open for reading and writing; the caller closes it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, offset: int, data: bytes) -> None:
        """Set the bytes at an offset of the source."""
        view = memoryview(data.translate(_COMPLEMENT))
        while view:
            done = os.pwrite(self._fd, view, offset)
            offset += done
            view = view[done:]

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at an offset of the source."""
        data = os.pread(self._fd, size, offset)
        return (data + bytes(size - len(data))).translate(_COMPLEMENT)


class RedactedPackets(CaptureEdit):
    """A copy with the payload of `spool`.

    Args:
        spool: The new payload.
        comment: Of the first section.
        hints: Comments by an offset in the packet that gets them.
        is_protocol: Whether a comment's protocol may be kept: it names a protocol and nothing else.

    Attributes:
        left_out: Packets that were left out.
    """

    keeps_options = False
    keeps_secrets = False
    keeps_others = False

    def __init__(
        self,
        spool: PayloadSpool,
        comment: str,
        hints: dict[int, str],
        is_protocol: Callable[[str], bool],
    ) -> None:
        self.section_comment = comment
        self.left_out = 0
        self._spool = spool
        self._is_protocol = is_protocol
        self._hints = sorted(hints.items())
        self._next_hint = 0
        self._table = PacketTable(_MAX_FLOWS)

    def touches(self, offset: int, size: int) -> bool:
        return True

    def kept_comment(self, text: str) -> str:
        return anonymous_hints(text, self._is_protocol)

    def change(
        self, offset: int, data: bytes, original_length: int, link_type: int
    ) -> tuple[bytes, Sequence[str]] | None:
        table = self._table
        if table.flows.count >= _MAX_FLOWS - 1:
            table = self._table = PacketTable(_MAX_FLOWS)
        table.columns.count = 0
        table.add_packet(data, 0, len(data), original_length, link_type, 0, 0, 0)
        comments: list[str] = []
        while self._next_hint < len(self._hints):
            place, text = self._hints[self._next_hint]
            if place >= offset + len(data):
                break
            comments.append(text)
            self._next_hint += 1
        if table.columns.count == 0:
            self.left_out += 1
            return None
        words = table.columns.words
        start, size = int(words[0] >> CAPTURED_BITS), int(words[0] & CAPTURED_MASK)
        missing = int(words[3] >> 32)
        payload = self._spool.read(offset + start, size)
        return _rebuild(data, link_type, start, payload, missing), comments


def _rebuild(data: bytes, link_type: int, start: int, payload: bytes, missing: int) -> bytes:
    """A TCP packet with another payload at `start`; what follows it is zeros."""
    ip, version = _ip_header(data, link_type)
    tcp, new = ip, bytearray(len(data))
    new[:start] = data[:start]
    new[start : start + len(payload)] = payload
    if version == 4:
        tcp = ip + (data[ip] & 15) * 4
        if tcp - ip > 20:
            new[ip + 20 : tcp] = bytes(tcp - ip - 20)
            right = ipv4_checksum_is_valid(data, ip, tcp - ip)
            _set_checksum(new, ip + 10, ip, tcp, 0, right)
        addresses = int(word_sum(data, ip + 12, ip + 20))
    else:
        tcp = _clean_extensions(new, ip)
        addresses = int(word_sum(data, ip + 8, ip + 40))
    if start - tcp < 20:  # captured up to the middle of the header
        return bytes(new)
    _clean_tcp_options(new, tcp, start)
    end = start + len(payload)
    pseudo = addresses + _TCP + end + missing - tcp
    stored = data[tcp + 16] * 256 + data[tcp + 17]
    if stored in (0, fold(pseudo), fold(addresses + _TCP)):
        return bytes(new)  # left to the network card: it does not depend on the payload
    right = missing > 0 or tcp_checksum_is_valid(data, tcp, end, addresses)
    _set_checksum(new, tcp + 16, tcp, end, pseudo, right)
    return bytes(new)


def _ip_header(data: bytes, link_type: int) -> tuple[int, int]:
    """Where the IP header of a packet begins, and its version."""
    if link_type == LINK_ETHERNET:
        kind, ip = int.from_bytes(data[12:14], "big"), 14
    else:
        kind, ip = (int(value) for value in link_layer(data, 0, len(data), link_type))
    while kind in _VLAN_TYPES:
        kind = int.from_bytes(data[ip + 2 : ip + 4], "big")
        ip += 4
    return ip, 4 if kind == IPV4 else 6


def _set_checksum(
    packet: bytearray, place: int, begin: int, end: int, pseudo: int, right: bool
) -> None:
    packet[place : place + 2] = b"\0\0"
    total = pseudo + int(word_sum(bytes(packet), begin, end))
    value = 0xFFFF - int(fold(total))
    packet[place : place + 2] = (value if right else value ^ _WRONG).to_bytes(2, "big")


def _clean_extensions(packet: bytearray, ip: int) -> int:
    """Clear what IPv6 extension headers carry; return where TCP begins."""
    kind, pos = packet[ip + 6], ip + 40
    while kind != _TCP:
        size = (packet[pos + 1] + 1) * 8
        if kind == _FRAGMENT_HEADER:
            size = 8
        elif kind == _AUTHENTICATION_HEADER:
            size = (packet[pos + 1] + 2) * 4
        kind = packet[pos]
        packet[pos + 2 : pos + size] = bytes(size - 2)
        pos += size
    return pos


def _clean_tcp_options(packet: bytearray, tcp: int, end: int) -> None:
    """Replace TCP options that reading does not need by padding, up to `end`."""
    end = min(end, tcp + (packet[tcp + 12] >> 4) * 4)
    pos = tcp + 20
    while pos < end:
        kind = packet[pos]
        size = 1 if kind < 2 else packet[pos + 1] if end - pos > 1 else 1
        if kind == 0 or (kind > 1 and not 2 <= size <= end - pos):
            packet[pos:end] = bytes(end - pos)
            return
        if kind not in _KEPT_TCP_OPTIONS:
            packet[pos : pos + size] = bytes([_NO_OPERATION]) * size
        pos += size
