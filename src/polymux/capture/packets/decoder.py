# mypyc: compiled
"""One captured frame to one packed reference: link layer, IP, TCP.

Only TCP segments that are not IP fragments become references; the rest is counted. A header
that contradicts itself makes the packet `other`, never an error: captures hold what was on the
wire, and the wire may carry rubbish.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from polymux.capture.packets.byteorder import net16
from polymux.capture.packets.checksum import halves, right_header, right_segment
from polymux.capture.packets.flow_table import FULL, IPV4_MAPPED, FlowTable
from polymux.capture.packets.packet_refs import (
    CAPTURED_BITS,
    LARGEST_CHUNK,
    LARGEST_MISSING,
    LOW32,
    SMALLEST_CHUNK,
    STRIDE,
    Columns,
    new_columns,
    pack_lanes,
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
    """References of the packets given so far, in order, and what was counted beside them."""

    def __init__(self, flow_limit: i64) -> None:
        self.flows: FlowTable = FlowTable(flow_limit)
        self.full: list[Columns] = []
        self.columns: Columns = Columns(SMALLEST_CHUNK)
        self.packets: i64 = 0
        self.fragments: i64 = 0
        self.verify: bool = False  # leave out packets whose checksums are wrong
        self.wrong_at: i64 = -1  # where the last such packet was; the scanner takes note of it

    def pack(self) -> list[bytes]:
        """The references of each lane, packed; the table has none of them any more."""
        chunks = [*self.full, self.columns]
        self.full = []
        self.columns = Columns(SMALLEST_CHUNK)
        return pack_lanes(chunks, self.flows.count * 2)

    def tcp_packets(self) -> i64:
        total = self.columns.count
        for chunk in self.full:
            total += chunk.count
        return total

    def take(
        self,
        data: bytes,
        pos: i64,
        captured: i64,
        wire: i64,
        link: i64,
        at: i64,
        hint: i64,
        base: i64,
    ) -> None:
        """Count the frame at `data[pos : pos + captured]`; keep a reference if it is TCP.

        `wire` is its length before it was cut, `base` the file offset of `data[0]`. One long
        function on purpose: it runs for every packet, and each call in it costs as much as a
        header. For the same reason whole words are read and then taken apart.
        """
        self.packets += 1
        end = pos + captured
        stop = pos + (wire if wire > captured else captured)  # where the frame ended on the wire

        # Link layer: what follows (`kind`), and where (`ip`).
        if link == LINK_ETHERNET:
            if captured < 34:
                return
            kind = i64(read_i16_be(data, pos + 12)) & 0xFFFF
            ip = pos + 14
        else:
            kind, ip = link_layer(data, pos, end, link)
        while kind != IPV4 and (kind == 0x8100 or kind == 0x88A8 or kind == 0x9100):
            if end - ip < 4:
                return
            kind = net16(data, ip + 2)
            ip += 4

        # IP: the addresses, where TCP starts (`tcp`) and where the packet ends (`stop`).
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
            if self.verify and end - ip >= head and not right_header(data, ip, head):
                self.wrong_at = base + ip
                return
            length = (first >> 32) & 0xFFFF
            # A length of 0: the network card was to cut the packet and fill it in.
            if length != 0 and ip + length < stop:
                stop = ip + length
            tcp = ip + head
            high: i64 = 0
            low = IPV4_MAPPED | (word & LOW32)
            to_high: i64 = 0
            to_low = IPV4_MAPPED | (i64(read_i32_be(data, ip + 16)) & LOW32)
        elif kind == IPV6:
            tcp = self.behind_ipv6(data, ip, end)
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

        # TCP.
        if end - tcp < 20 or stop - tcp < 20:
            return
        word = i64(read_i32_be(data, tcp + 12))  # data offset, flags, window
        start = tcp + ((word >> 28) & 15) * 4
        if start - tcp < 20 or start > stop:
            return
        if end > stop:  # what follows is padding of the link layer
            end = stop
        if self.verify and end == stop:
            ends = halves(high) + halves(low) + halves(to_high) + halves(to_low)
            if not right_segment(data, tcp, stop, ends):
                self.wrong_at = base + tcp
                return
        ports = i64(read_i32_be(data, tcp)) & LOW32
        lane = self.flows.lane(high, low, to_high, to_low, ports)
        if lane == FULL:
            return
        held = end - start
        missing = stop - end
        if held < 0:  # cut inside the TCP options
            missing += held
            start = end
            held = 0
        if missing > LARGEST_MISSING:
            missing = LARGEST_MISSING

        into = self.columns
        row = into.count
        if row == into.rows:
            self.full.append(into)
            into = new_columns(row * 4 if row < LARGEST_CHUNK else LARGEST_CHUNK)
            self.columns = into
            row = 0
        into.count = row + 1
        row *= STRIDE
        words = into.words
        words[row] = ((base + start) << CAPTURED_BITS) | held
        words[row + 1] = at
        words[row + 2] = read_i64_be(data, tcp + 4)
        words[row + 3] = (missing << 32) | (hint << 24) | (word & 0xFFFFFF)
        words[row + 4] = lane

    def behind_ipv6(self, data: bytes, ip: i64, end: i64) -> i64:
        """Where TCP starts behind an IPv6 header and its extensions; -1 if it does not."""
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


def link_layer(data: bytes, pos: i64, end: i64, link: i64) -> tuple[i64, i64]:
    """What the frame at `pos` holds and where, for all links but Ethernet."""
    kind = NOT_IP
    ip = pos
    if link == LINK_COOKED:
        ip = pos + 16
        if ip <= end:
            kind = net16(data, pos + 14)
    elif link == LINK_COOKED2:
        ip = pos + 20
        if ip <= end:
            kind = net16(data, pos)
    elif link in (LINK_NULL, LINK_LOOP) or is_raw(link):
        ip = pos if is_raw(link) else pos + 4
        if ip < end:
            kind = IPV6 if data[ip] >> 4 == 6 else IPV4
    return kind, ip


def is_raw(link: i64) -> bool:
    """Link types whose frames start with the IP header (101 and its older numbers)."""
    return link in (LINK_RAW, LINK_IPV4, LINK_IPV6, 12, 14)
