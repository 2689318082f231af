# mypyc: compiled
"""Decoding a captured frame (link layer, IP, TCP) into a packed reference.

Only TCP segments that are not IP fragments become references; other packets are counted. A
contradictory header is not an error but makes the packet one of the others: a capture holds what
was on the wire, and that may be malformed.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from polymux.capture.packets.byteorder import net16
from polymux.capture.packets.checksum import (
    ipv4_checksum_is_valid,
    sum_halves,
    tcp_checksum_is_valid,
)
from polymux.capture.packets.flow_table import IPV4_MAPPED, TABLE_FULL, FlowTable
from polymux.capture.packets.packet_refs import (
    CAPTURED_BITS,
    LOW32,
    MAX_CHUNK_ROWS,
    MAX_MISSING_BYTES,
    MIN_CHUNK_ROWS,
    ROW_WORDS,
    RefColumns,
    group_by_direction,
    new_columns,
)

LINK_NULL: Final[i64] = 0
LINK_ETHERNET: Final[i64] = 1
LINK_RAW: Final[i64] = 101
LINK_LOOP: Final[i64] = 108
LINK_COOKED: Final[i64] = 113
LINK_IPV4: Final[i64] = 228
LINK_IPV6: Final[i64] = 229
LINK_COOKED2: Final[i64] = 276

IPV4: Final[i64] = 0x0800
IPV6: Final[i64] = 0x86DD
NOT_IP: Final[i64] = -1
TCP: Final[i64] = 6


class PacketTable:
    """References of the packets added so far, in order, and counts of all packets."""

    def __init__(self, flow_limit: i64) -> None:
        self.flows: FlowTable = FlowTable(flow_limit)
        self.full_chunks: list[RefColumns] = []
        self.columns: RefColumns = RefColumns(MIN_CHUNK_ROWS)
        self.packets: i64 = 0
        self.fragments: i64 = 0
        self.verify_checksums: bool = False  # leave out packets with a wrong checksum
        # Offset of the last packet left out for its checksum; the scanner reads and resets it.
        self.bad_checksum_offset: i64 = -1

    def pack(self) -> list[bytes]:
        """Remove and return the references, packed: one `bytes` for each direction of each flow."""
        chunks = [*self.full_chunks, self.columns]
        self.full_chunks = []
        self.columns = RefColumns(MIN_CHUNK_ROWS)
        return group_by_direction(chunks, self.flows.count * 2)

    def tcp_packets(self) -> i64:
        total = self.columns.count
        for chunk in self.full_chunks:
            total += chunk.count
        return total

    def add_packet(
        self,
        data: bytes,
        pos: i64,
        captured: i64,
        original_length: i64,
        link_type: i64,
        timestamp: i64,
        hint: i64,
        base: i64,
    ) -> None:
        """Count the frame at `data[pos : pos + captured]`; keep a reference if it is TCP.

        `original_length` is its length on the wire, `base` the file offset of `data[0]`.

        This is one long function on purpose: it runs for every packet, and a call costs as much
        as decoding a header. For the same reason it reads 64-bit words and takes fields out of
        them. Its phases are marked: link layer, IP, TCP, reference.
        """
        self.packets += 1
        end = pos + captured
        # Where the frame ended on the wire.
        stop = pos + (original_length if original_length > captured else captured)

        # Link layer: the EtherType (`kind`) and the start of the IP header (`ip`).
        if link_type == LINK_ETHERNET:
            if captured < 34:
                return
            kind = i64(read_i16_be(data, pos + 12)) & 0xFFFF
            ip = pos + 14
        else:
            kind, ip = link_layer(data, pos, end, link_type)
        while kind != IPV4 and (kind == 0x8100 or kind == 0x88A8 or kind == 0x9100):
            if end - ip < 4:
                return
            kind = net16(data, ip + 2)
            ip += 4

        # IP: the addresses, the start of TCP (`tcp`) and the end of the packet (`stop`).
        if kind == IPV4:
            if end - ip < 40:
                return
            first = read_i64_be(data, ip)  # version, header length, total length, id, fragment
            head = ((first >> 56) & 15) * 4
            if (first >> 60) & 15 != 4 or head < 20:
                return
            if first & 0x3FFF != 0:  # more fragments, or not the first one
                self.fragments += 1
                return
            word = read_i64_be(data, ip + 8)  # time to live, protocol, checksum, source
            if (word >> 48) & 255 != TCP:
                return
            if (
                self.verify_checksums
                and end - ip >= head
                and not ipv4_checksum_is_valid(data, ip, head)
            ):
                self.bad_checksum_offset = base + ip
                return
            length = (first >> 32) & 0xFFFF
            # A length of 0: the network card segments the packet and fills it in (offloading).
            if length != 0 and ip + length < stop:
                stop = ip + length
            tcp = ip + head
            high: i64 = 0
            low = IPV4_MAPPED | (word & LOW32)
            to_high: i64 = 0
            to_low = IPV4_MAPPED | (i64(read_i32_be(data, ip + 16)) & LOW32)
        elif kind == IPV6:
            tcp = self.tcp_offset_in_ipv6(data, ip, end)
            if tcp < 0:
                return
            length = net16(data, ip + 4)
            if length != 0 and ip + 40 + length < stop:  # 0: a jumbogram, or as above
                stop = ip + 40 + length
            high = read_i64_be(data, ip + 8)
            low = read_i64_be(data, ip + 16)
            to_high = read_i64_be(data, ip + 24)
            to_low = read_i64_be(data, ip + 32)
        else:
            return

        # TCP: ports, flags, and the payload (`start` to `end`).
        if end - tcp < 20 or stop - tcp < 20:
            return
        word = i64(read_i32_be(data, tcp + 12))  # data offset, flags, window
        start = tcp + ((word >> 28) & 15) * 4
        if start - tcp < 20 or start > stop:
            return
        if end > stop:  # the rest is padding of the link layer
            end = stop
        if self.verify_checksums and end == stop:
            sums = sum_halves(high) + sum_halves(low) + sum_halves(to_high) + sum_halves(to_low)
            if not tcp_checksum_is_valid(data, tcp, stop, sums):
                self.bad_checksum_offset = base + tcp
                return
        ports = i64(read_i32_be(data, tcp)) & LOW32
        direction = self.flows.direction_index(high, low, to_high, to_low, ports)
        if direction == TABLE_FULL:
            return
        held = end - start
        missing = stop - end
        if held < 0:  # truncated inside the TCP options
            missing += held
            start = end
            held = 0
        if missing > MAX_MISSING_BYTES:
            missing = MAX_MISSING_BYTES

        # The reference, and the direction it belongs to.
        into = self.columns
        row = into.count
        if row == into.capacity:
            self.full_chunks.append(into)
            into = new_columns(row * 4 if row < MAX_CHUNK_ROWS else MAX_CHUNK_ROWS)
            self.columns = into
            row = 0
        into.count = row + 1
        row *= ROW_WORDS
        words = into.words
        words[row] = ((base + start) << CAPTURED_BITS) | held
        words[row + 1] = timestamp
        words[row + 2] = read_i64_be(data, tcp + 4)
        words[row + 3] = (missing << 32) | (hint << 24) | (word & 0xFFFFFF)
        words[row + 4] = direction

    def tcp_offset_in_ipv6(self, data: bytes, ip: i64, end: i64) -> i64:
        """Where TCP starts after an IPv6 header and its extensions; -1 if there is no TCP."""
        if end - ip < 40:
            return -1
        first: i64 = data[ip]
        if first >> 4 != 6:
            return -1
        kind: i64 = data[ip + 6]
        pos = ip + 40
        while kind != TCP:
            if end - pos < 8:
                return -1
            following: i64 = data[pos]
            length: i64 = data[pos + 1]
            if kind in (0, 43, 60, 135):
                pos += (length + 1) * 8
            elif kind == 51:
                pos += (length + 2) * 4
            elif kind == 44:
                if net16(data, pos + 2) & 0xFFF9 != 0:
                    self.fragments += 1
                    return -1
                pos += 8
            else:
                return -1
            kind = following
        return pos


def link_layer(data: bytes, pos: i64, end: i64, link_type: i64) -> tuple[i64, i64]:
    """The EtherType of the frame at `pos` and the start of its payload; not for Ethernet."""
    kind = NOT_IP
    ip = pos
    if link_type == LINK_COOKED:
        ip = pos + 16
        if ip <= end:
            kind = net16(data, pos + 14)
    elif link_type == LINK_COOKED2:
        ip = pos + 20
        if ip <= end:
            kind = net16(data, pos)
    elif link_type in (LINK_NULL, LINK_LOOP) or is_raw(link_type):
        ip = pos if is_raw(link_type) else pos + 4
        if ip < end:
            kind = IPV6 if data[ip] >> 4 == 6 else IPV4
    return kind, ip


def is_raw(link_type: i64) -> bool:
    """Link types whose frames start with the IP header (101 and its older numbers)."""
    return link_type in (LINK_RAW, LINK_IPV4, LINK_IPV6, 12, 14)
