# mypyc: compiled
"""Decoding a captured frame (link layer, IP, TCP) into a packed reference of a numbered flow.

Only TCP segments that are not IP fragments become references; other packets are counted. A
contradictory header is not an error but makes the packet one of the others: the wire may carry
malformed packets. The two endpoints of a segment become a flow number and a direction
(`FlowTable`).
"""

from __future__ import annotations

import os
from typing import Final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    read_i64_le,
    write_i16_be,
    write_i64_be,
)
from librt.vecs import append, vec
from mypy_extensions import i16, i64

from polymux.capture.packets.checksum import (
    ipv4_checksum_is_valid,
    sum_halves,
    tcp_checksum_is_valid,
)
from polymux.capture.packets.packet_refs import (
    CAPTURED_BITS,
    LOW32,
    MAX_CHUNK_ROWS,
    MAX_MISSING_BYTES,
    MIN_CHUNK_ROWS,
    ROW_WORDS,
    RefColumns,
    SortedRefs,
    group_by_direction,
    new_columns,
    sort_by_direction,
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

TABLE_FULL: Final[i64] = -1
IPV4_MAPPED: Final[i64] = 0xFFFF00000000
KEY_WORDS: Final[i64] = 5


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

    def sort(self) -> SortedRefs:
        """Remove and return the references, sorted by direction index."""
        chunks = [*self.full_chunks, self.columns]
        self.full_chunks = []
        self.columns = RefColumns(MIN_CHUNK_ROWS)
        return sort_by_direction(chunks, self.flows.count * 2)

    def tcp_packets(self) -> i64:
        """Packets whose references are in the table."""
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
        in_file = end - start
        missing = stop - end
        if in_file < 0:  # truncated inside the TCP options
            missing += in_file
            start = end
            in_file = 0
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
        words[row] = ((base + start) << CAPTURED_BITS) | in_file
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


def net16(data: bytes, pos: i64) -> i64:
    """A 16-bit number in network byte order, unsigned. The caller checks that it lies inside."""
    return i64(read_i16_be(data, pos)) & 0xFFFF


class FlowTable:
    """Flows in order of their first packet: a hash table with open addressing over columns.

    The hash is seeded at random, so that a capture cannot be crafted to make flows collide.
    An address is two signed 64-bit halves (IPv4 as ::ffff:a.b.c.d). The *first* endpoint of a
    flow is the smaller one by (high, low, port), so both directions find the same flow.
    """

    def __init__(self, limit: i64) -> None:
        self.limit: i64 = limit
        self.count: i64 = 0
        self.refused_packets: i64 = 0
        self.mask: i64 = 255
        self.shift: i64 = 56  # 64 less the bits of the mask
        seed = os.urandom(72)
        self.mix0: i64 = read_i64_le(seed, 0)
        self.mix1: i64 = read_i64_le(seed, 8)
        self.mix2: i64 = read_i64_le(seed, 16)
        self.mix3: i64 = read_i64_le(seed, 24)
        self.mix4: i64 = read_i64_le(seed, 32)
        self.mix5: i64 = read_i64_le(seed, 40)
        self.mix6: i64 = read_i64_le(seed, 48)
        self.mix7: i64 = read_i64_le(seed, 56)
        self.mix8: i64 = read_i64_le(seed, 64)
        self.slots: vec[i64] = vec[i64]([-1] * 256)
        self.keys: vec[i64] = vec[i64]()  # five words for each flow: both addresses, ports

    def direction_index(self, high: i64, low: i64, to_high: i64, to_low: i64, ports: i64) -> i64:
        """Twice the flow's number, plus 1 if its second endpoint sent; TABLE_FULL past the limit.

        `ports` is source port << 16 | target port.
        """
        back: i64 = 0
        if high > to_high or (high == to_high and low >= to_low):
            source = ports >> 16
            target = ports & 0xFFFF
            if high != to_high or low != to_low or source > target:
                back = 1
                ports = (target << 16) | source
                high, to_high = to_high, high
                low, to_low = to_low, low
        keys = self.keys
        slot = self.slot_of(high, low, to_high, to_low, ports)
        while True:
            flow = self.slots[slot]
            if flow < 0:
                flow = self.add(slot, high, low, to_high, to_low, ports)
                return flow if flow == TABLE_FULL else flow * 2 + back
            key = flow * KEY_WORDS
            if (
                keys[key + 4] == ports
                and keys[key + 1] == low
                and keys[key + 3] == to_low
                and keys[key] == high
                and keys[key + 2] == to_high
            ):
                return flow * 2 + back
            slot = (slot + 1) & self.mask

    def slot_of(self, high1: i64, low1: i64, high2: i64, low2: i64, ports: i64) -> i64:
        """The slot at which probing for a flow starts.

        Thorup's pair-multiply-shift: any two flows collide with low probability. It multiplies
        halves of words and uses the top bits of the 64-bit sum. The products wrap when compiled
        and do not when interpreted; since a single shift and a mask follow, both give the same
        slot.
        """
        mixed = (
            (self.mix0 + (high1 & LOW32)) * (self.mix1 + ((high1 >> 32) & LOW32))
            + (self.mix2 + (low1 & LOW32)) * (self.mix3 + ((low1 >> 32) & LOW32))
            + (self.mix4 + (high2 & LOW32)) * (self.mix5 + ((high2 >> 32) & LOW32))
            + (self.mix6 + (low2 & LOW32)) * (self.mix7 + ((low2 >> 32) & LOW32))
            + self.mix8 * ports
        )
        return (mixed >> self.shift) & self.mask

    def add(self, slot: i64, high1: i64, low1: i64, high2: i64, low2: i64, ports: i64) -> i64:
        """Add a flow at a free slot; returns its number, or TABLE_FULL past the limit."""
        if self.count >= self.limit:
            self.refused_packets += 1
            return TABLE_FULL
        flow = self.count
        self.count += 1
        self.slots[slot] = flow
        keys = append(append(append(append(self.keys, high1), low1), high2), low2)
        self.keys = append(keys, ports)
        if self.count * 2 > self.mask:
            self.grow()
        return flow

    def grow(self) -> None:
        """Quadruple the slots and insert all flows again."""
        self.mask = self.mask * 4 + 3
        self.shift -= 2
        self.slots = vec[i64]([-1] * (self.mask + 1))
        for flow in range(self.count):
            k = flow * KEY_WORDS
            keys = self.keys
            slot = self.slot_of(keys[k], keys[k + 1], keys[k + 2], keys[k + 3], keys[k + 4])
            while self.slots[slot] >= 0:
                slot = (slot + 1) & self.mask
            self.slots[slot] = flow

    def release_slots(self) -> None:
        """Free the hash table: no more packets follow, and only `key` is needed."""
        self.slots = vec[i64]()

    def key(self, flow: i64) -> bytes:
        """The key of a flow: first and second address (16 bytes each), first and second port."""
        writer = BytesWriter()
        for n in range(flow * KEY_WORDS, flow * KEY_WORDS + 4):
            write_i64_be(writer, self.keys[n])
        ports = self.keys[flow * KEY_WORDS + 4]
        write_i16_be(writer, to_i16(ports >> 16))
        write_i16_be(writer, to_i16(ports & 0xFFFF))
        return writer.getvalue()


def to_i16(port: i64) -> i16:
    """The 16 bits of a port as the signed number `write_i16_be` takes."""
    if port > 0x7FFF:
        port -= 0x10000
    return i16(port)
