# mypyc: compiled
"""The chain of packets in a capture file: pcapng blocks and classic pcap records.

`Scanner.scan` is given windows of the file in order and reads every whole block of each. What
breaks the chain (a length that cannot be) ends it with `broken`; what is wrong inside one block
is noted, the first place kept, and the chain goes on.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i32_le, read_i64_be, read_i64_le
from mypy_extensions import i64

from polymux.capture.packets.byteorder import u16, u32
from polymux.capture.packets.decoder import PacketTable
from polymux.capture.packets.packet_refs import LOW32
from polymux.capture.pcapng.interfaces import Interface, timestamp_options

UNKNOWN: Final[i64] = 0
PCAP: Final[i64] = 1
PCAPNG: Final[i64] = 2

SECTION: Final[i64] = 0x0A0D0D0A
INTERFACE: Final[i64] = 1
OLD_PACKET: Final[i64] = 2
SIMPLE_PACKET: Final[i64] = 3
ENHANCED_PACKET: Final[i64] = 6

SECOND: Final[i64] = 1000000000
# A hint is a comment of ours; a range remembers so many different ones of at most so many octets.
HINTS: Final = 60
HINT_OCTETS: Final[i64] = 1024


class Scanner:
    """Reads one file, or one range of it, window by window."""

    def __init__(
        self, block_limit: i64, snap_limit: i64, interface_limit: i64, flow_limit: i64
    ) -> None:
        self.block_limit: i64 = block_limit
        self.snap_limit: i64 = snap_limit
        self.interface_limit: i64 = interface_limit
        self.table: PacketTable = PacketTable(flow_limit)
        self.form: i64 = UNKNOWN
        self.big: bool = False
        self.nano: bool = False
        self.interfaces: list[Interface] = []
        self.section_hint: str = ""
        self.hints: list[str] = [""]
        self.walk_only: bool = False  # follow the chain, look into no packet
        self.need: i64 = 24  # octets the next block wants
        self.broken: bool = False  # the chain cannot be followed any further
        self.broken_at: i64 = -1
        self.broken_by: str = ""
        self.errors: i64 = 0  # things wrong inside blocks
        self.error: str = ""  # the first of them
        self.error_at: i64 = -1

    def spoil(self, at: i64, text: str) -> None:
        """Note what is wrong at octet `at`; only the first is kept, all are counted."""
        if self.errors == 0:
            self.error = text
            self.error_at = at
        self.errors += 1

    def breaks(self, at: i64, text: str) -> None:
        """The chain cannot be followed from here on."""
        self.broken = True
        self.broken_at = at
        self.broken_by = text

    def note_wrong(self) -> None:
        self.spoil(self.table.wrong_at, "a packet with a wrong checksum was left out")
        self.table.wrong_at = -1

    def hint_number(self, text: str) -> i64:
        if text in self.hints:
            return self.hints.index(text)
        if len(self.hints) > HINTS:
            return 0
        self.hints.append(text)
        return len(self.hints) - 1

    def add_interface(self, interface: Interface) -> None:
        interface.number = self.hint_number(interface.hint)
        interface.place = len(self.interfaces)
        self.interfaces.append(interface)

    def scan(self, data: bytes, base: i64) -> i64:
        """Read every whole block of `data`, which lies at octet `base` of the file.

        Returns the octets consumed. Unless `broken`, the next window must start there and hold
        at least `need` octets; if the file has fewer, its tail is torn.
        """
        pos: i64 = 0
        if self.form == UNKNOWN:
            if len(data) < 24:
                return 0
            pos = self.begin(data, base)
        if self.broken:
            return pos
        if self.form == PCAP:
            return self.records(data, base, pos)
        return self.blocks(data, base, pos)

    def begin(self, data: bytes, base: i64) -> i64:
        magic = u32(data, 0, True)
        if magic == SECTION:
            self.form = PCAPNG
            return 0
        self.big = magic == 0xA1B2C3D4 or magic == 0xA1B23C4D
        magic = u32(data, 0, self.big)
        if magic != 0xA1B2C3D4 and magic != 0xA1B23C4D:
            self.breaks(base, "not a capture: neither pcapng nor pcap")
            return 0
        self.form = PCAP
        self.nano = magic == 0xA1B23C4D
        link = u32(data, 20, self.big) & 0x0FFFFFFF  # the top bits tell of a checksum
        self.add_interface(Interface(link, 0, 9 if self.nano else 6, 0, ""))
        return 24

    # -- classic pcap ---------------------------------------------------------------------------

    def records(self, data: bytes, base: i64, pos: i64) -> i64:
        big = self.big
        size: i64 = len(data)
        link = self.interfaces[0].link
        fraction: i64 = 1 if self.nano else 1000
        table = self.table
        self.need = 16
        while size - pos >= 16:
            # Two words instead of four calls: this runs for every packet.
            if big:
                word = read_i64_be(data, pos + 8)
                captured = (word >> 32) & LOW32
                wire = word & LOW32
            else:
                word = read_i64_le(data, pos + 8)
                captured = word & LOW32
                wire = (word >> 32) & LOW32
            if captured > self.snap_limit:
                self.breaks(
                    base + pos,
                    f"a packet of {captured} octets exceeds the limit snap={self.snap_limit}; "
                    "raise it with CaptureLimits(snap=...) if the file is sound",
                )
                break
            if captured > size - pos - 16:
                self.need = captured + 16
                break
            if self.walk_only:
                table.packets += 1
            else:
                if big:
                    word = read_i64_be(data, pos)
                    at = ((word >> 32) & LOW32) * SECOND + (word & LOW32) * fraction
                else:
                    word = read_i64_le(data, pos)
                    at = (word & LOW32) * SECOND + ((word >> 32) & LOW32) * fraction
                table.take(data, pos + 16, captured, wire, link, at, 0, base)
                if table.wrong_at >= 0:
                    self.note_wrong()
            pos += captured + 16
        return pos

    # -- pcapng ---------------------------------------------------------------------------------

    def blocks(self, data: bytes, base: i64, pos: i64) -> i64:
        """The usual block, a packet of an interface with simple timestamps and without options, is
        read right here: this runs for every packet. All others have methods of their own."""
        big = self.big
        size: i64 = len(data)
        table = self.table
        block_limit = self.block_limit
        need: i64 = 12
        # What is known of the interface of the last packet; -1: of none.
        which: i64 = -1
        link: i64 = 0
        hint: i64 = 0
        multiply: i64 = 1
        most: i64 = 0
        while size - pos >= 12:
            if big:
                word = read_i64_be(data, pos)
                kind = (word >> 32) & LOW32
                length = word & LOW32
            else:
                word = read_i64_le(data, pos)
                kind = word & LOW32
                length = (word >> 32) & LOW32
            if kind == SECTION:
                mark = u32(data, pos + 8, True)
                if mark != 0x1A2B3C4D and mark != 0x4D3C2B1A:
                    self.breaks(base + pos, "a section without its byte-order mark")
                    break
                big = mark == 0x1A2B3C4D
                length = u32(data, pos + 4, big)
            if length < 12 or length & 3 != 0:
                self.breaks(base + pos, f"a block of {length} octets cannot be")
                break
            if length > block_limit:
                self.breaks(
                    base + pos,
                    f"a block of {length} octets exceeds the limit block={block_limit}; "
                    "raise it with CaptureLimits(block=...) if the file is sound",
                )
                break
            if length > size - pos:
                need = length
                break
            if big:
                again = i64(read_i32_be(data, pos + length - 4)) & LOW32
            else:
                again = i64(read_i32_le(data, pos + length - 4)) & LOW32
            if again != length:
                self.breaks(base + pos, "the two lengths of a block differ")
                break
            if kind == ENHANCED_PACKET and which >= 0 and length >= 32:
                if big:
                    word = read_i64_be(data, pos + 8)
                    ticks = word & LOW32
                    same = (word >> 32) & LOW32 == which
                    word = read_i64_be(data, pos + 16)
                    ticks = (ticks << 32) | ((word >> 32) & LOW32)
                    captured = word & LOW32
                    wire = i64(read_i32_be(data, pos + 24)) & LOW32
                else:
                    word = read_i64_le(data, pos + 8)
                    ticks = (word >> 32) & LOW32
                    same = word & LOW32 == which
                    word = read_i64_le(data, pos + 16)
                    ticks = (ticks << 32) | (word & LOW32)
                    captured = (word >> 32) & LOW32
                    wire = i64(read_i32_le(data, pos + 24)) & LOW32
                if (
                    same
                    and 0 <= ticks <= most
                    and captured <= self.snap_limit
                    and 0 <= length - 32 - captured < 4
                ):
                    at = ticks * multiply
                    table.take(data, pos + 28, captured, wire, link, at, hint, base)
                    if table.wrong_at >= 0:
                        self.note_wrong()
                    pos += length
                    continue
            if self.walk_only and kind in (ENHANCED_PACKET, OLD_PACKET, SIMPLE_PACKET):
                table.packets += 1
            elif kind in (ENHANCED_PACKET, OLD_PACKET):
                used = self.packet(data, pos, length, kind, big, base)
                if used is not None and used.simple:
                    which = used.place
                    link = used.link
                    hint = used.number
                    multiply = used.multiply
                    most = used.most
            elif kind == SIMPLE_PACKET:
                self.simple_packet(data, pos, length, big, base)
            elif kind == INTERFACE:
                self.interface(data, pos, length, big, base)
            elif kind == SECTION:
                self.big = big
                self.section(data, pos, length, base)
                which = -1
            if self.broken:
                break
            pos += length
        self.need = need
        return pos

    def packet(
        self, data: bytes, pos: i64, length: i64, kind: i64, big: bool, base: i64
    ) -> Interface | None:
        """Any block with a packet; its interface, if it has one that is described."""
        if length < 32:
            self.table.packets += 1
            self.spoil(base + pos, f"a packet block of {length} octets cannot be")
            return None
        if big:
            word = read_i64_be(data, pos + 8)
            which = (word >> 32) & LOW32
            high = word & LOW32
            word = read_i64_be(data, pos + 16)
            low = (word >> 32) & LOW32
            captured = word & LOW32
            wire = i64(read_i32_be(data, pos + 24)) & LOW32
        else:
            word = read_i64_le(data, pos + 8)
            which = word & LOW32
            high = (word >> 32) & LOW32
            word = read_i64_le(data, pos + 16)
            low = word & LOW32
            captured = (word >> 32) & LOW32
            wire = i64(read_i32_le(data, pos + 24)) & LOW32
        if kind == OLD_PACKET:
            which = u16(data, pos + 8, big)
        if which >= len(self.interfaces):
            self.table.packets += 1
            self.spoil(base + pos, f"a packet of interface {which}, which nothing describes")
            return None
        if captured > length - 32:
            self.table.packets += 1
            self.spoil(base + pos, f"a packet of {captured} octets in a block of {length}")
            return None
        if captured > self.snap_limit:
            self.table.packets += 1
            self.spoil(
                base + pos,
                f"a packet of {captured} octets exceeds the limit snap={self.snap_limit}; "
                "raise it with CaptureLimits(snap=...) if the file is sound",
            )
            return None
        interface = self.interfaces[which]
        at = interface.instant(high, low)
        hint = interface.number
        options = pos + 28 + ((captured + 3) & -4)
        if pos + length - 4 - options >= 4:
            text = self.comment(data, options, pos + length - 4, big, base)
            if text != "":
                hint = self.hint_number(text)
        self.table.take(data, pos + 28, captured, wire, interface.link, at, hint, base)
        if self.table.wrong_at >= 0:
            self.note_wrong()
        return interface

    def simple_packet(self, data: bytes, pos: i64, length: i64, big: bool, base: i64) -> None:
        """A packet without a time: it stands at instant 0."""
        if length < 16 or len(self.interfaces) == 0:
            self.table.packets += 1
            self.spoil(base + pos, "a simple packet block too short or without an interface")
            return
        interface = self.interfaces[0]
        wire = u32(data, pos + 8, big)
        captured = wire
        if interface.snap > 0 and captured > interface.snap:
            captured = interface.snap
        if captured > length - 16:
            captured = length - 16
        if captured > self.snap_limit:
            captured = self.snap_limit
        self.table.take(data, pos + 12, captured, wire, interface.link, 0, interface.number, base)
        if self.table.wrong_at >= 0:
            self.note_wrong()

    def section(self, data: bytes, pos: i64, length: i64, base: i64) -> None:
        if length < 28:
            self.breaks(base + pos, f"a section block of {length} octets cannot be")
            return
        major = u16(data, pos + 12, self.big)
        if major != 1:
            self.breaks(base + pos, f"pcapng version {major} is not known; 1 is")
            return
        self.interfaces = []
        self.section_hint = self.comment(data, pos + 24, pos + length - 4, self.big, base)

    def interface(self, data: bytes, pos: i64, length: i64, big: bool, base: i64) -> None:
        if length < 20:
            self.breaks(base + pos, f"an interface block of {length} octets cannot be")
            return
        if len(self.interfaces) >= self.interface_limit:
            self.breaks(
                base + pos,
                f"more interfaces than the limit interfaces={self.interface_limit}; "
                "raise it with CaptureLimits(interfaces=...) if the file is sound",
            )
            return
        end = pos + length - 4
        resolution, offset = timestamp_options(data, pos + 16, end, big)
        hint = self.comment(data, pos + 16, end, big, base)
        self.add_interface(
            Interface(
                u16(data, pos + 8, big),
                u32(data, pos + 12, big),
                resolution,
                offset,
                hint if hint != "" else self.section_hint,
            )
        )

    def comment(self, data: bytes, pos: i64, end: i64, big: bool, base: i64) -> str:
        """What the comments among these options say to us, joined by line ends; what would make
        that longer than a hint may be is passed over."""
        found = ""
        room: i64 = HINT_OCTETS
        while end - pos >= 4:
            code = u16(data, pos, big)
            size = u16(data, pos + 2, big)
            if code == 0:
                break
            if size > end - pos - 4:
                self.spoil(base + pos, f"an option of {size} octets reaches beyond its block")
                break
            if code == 1 and 8 <= size <= room and data[pos + 4 : pos + 12] == b"polymux:":
                text = data[pos + 4 : pos + 4 + size].decode("utf-8", "replace")
                room -= size + 1
                found = text if found == "" else found + "\n" + text
            pos += 4 + ((size + 3) & -4)
        return found
