# mypyc: compiled
"""Scanning a capture file: pcapng blocks and classic pcap records.

`Scanner.scan` is called with windows of the file in order and reads every complete block of each.
An error that loses the block boundaries (an invalid length) ends the scan with `aborted`. An error
inside one block is counted, the first one recorded, and the scan goes on with the next block.

An `Interface` has the link type of its packets and converts their timestamps.
"""

from __future__ import annotations

from typing import Final

from librt.strings import (
    read_i16_be,
    read_i16_le,
    read_i32_be,
    read_i32_le,
    read_i64_be,
    read_i64_le,
)
from mypy_extensions import i64

from polymux.capture.packets.decoder import PacketTable
from polymux.capture.packets.packet_refs import LOW32
from polymux.capture.pcapng.block_types import (
    BYTE_ORDER_MAGIC,
    DECRYPTION_SECRETS,
    ENHANCED_PACKET,
    INTERFACE,
    OLD_PACKET,
    SECTION,
    SIMPLE_PACKET,
    TLS_KEY_LOG,
)
from polymux.capture.pcapng.comments import hardware_comment

UNKNOWN_FORMAT: Final[i64] = 0
PCAP: Final[i64] = 1
PCAPNG: Final[i64] = 2

SECOND_NS: Final[i64] = 1000000000
# Different hints (see `comments`) that a scanner keeps, and their length.
MAX_HINTS: Final = 60
MAX_HINT_BYTES: Final[i64] = 1024
HARDWARE_OPTION: Final[i64] = 2  # shb_hardware, of a section
MAX_OPTION_TEXT: Final[i64] = 128  # bytes


class Scanner:
    """Reads one file, or one range of it, window by window."""

    def __init__(
        self, block_limit: i64, snap_limit: i64, interface_limit: i64, flow_limit: i64
    ) -> None:
        self.block_limit: i64 = block_limit
        self.snap_limit: i64 = snap_limit
        self.interface_limit: i64 = interface_limit
        self.table: PacketTable = PacketTable(flow_limit)
        self.file_format: i64 = UNKNOWN_FORMAT
        self.big_endian: bool = False
        self.nanosecond_times: bool = False
        self.interfaces: list[Interface] = []
        self.section_hint: str = ""
        self.sensor_hint: str = ""  # the hint of the first section of the file
        self.hints: list[str] = [""]
        self.secrets: list[bytes] = []  # TLS key logs, in the order of the file
        self.secrets_room: i64 = 0  # bytes of secrets that are still kept
        self.count_only: bool = False  # follow the blocks without decoding packets
        self.bytes_needed: i64 = 24  # to read the next block
        self.aborted: bool = False  # the block boundaries are lost
        self.abort_offset: i64 = -1
        self.abort_reason: str = ""
        self.error_count: i64 = 0  # errors inside blocks
        self.first_error: str = ""  # the first of them
        self.first_error_offset: i64 = -1

    def record_error(self, offset: i64, text: str) -> None:
        """Count an error at byte `offset`; the text of the first one is kept."""
        if self.error_count == 0:
            self.first_error = text
            self.first_error_offset = offset
        self.error_count += 1

    def abort(self, offset: i64, text: str) -> None:
        """End the scan: the next block cannot be found from `offset` on."""
        self.aborted = True
        self.abort_offset = offset
        self.abort_reason = text

    def record_bad_checksum(self) -> None:
        self.record_error(
            self.table.bad_checksum_offset, "a packet with a wrong checksum was left out"
        )
        self.table.bad_checksum_offset = -1

    def hint_index(self, text: str) -> i64:
        """The number of a hint, added if it is new; 0, the empty hint, if there are too many."""
        if text in self.hints:
            return self.hints.index(text)
        if len(self.hints) > MAX_HINTS:
            return 0
        self.hints.append(text)
        return len(self.hints) - 1

    def add_interface(self, interface: Interface) -> None:
        interface.hint_index = self.hint_index(interface.hint)
        interface.index = len(self.interfaces)
        self.interfaces.append(interface)

    def scan(self, data: bytes, base: i64) -> i64:
        """Read every complete block of `data`, which starts at byte `base` of the file.

        Returns the number of bytes consumed. Unless `aborted`, the next window must start there
        and have at least `bytes_needed` bytes; if the file has fewer, it is truncated.
        """
        pos: i64 = 0
        if self.file_format == UNKNOWN_FORMAT:
            if len(data) < 24:
                return 0
            pos = self.read_file_header(data, base)
        if self.aborted:
            return pos
        if self.file_format == PCAP:
            return self.read_records(data, base, pos)
        return self.read_blocks(data, base, pos)

    def read_file_header(self, data: bytes, base: i64) -> i64:
        """Detect the format of the file; returns the bytes consumed."""
        magic = u32(data, 0, True)
        if magic == SECTION:
            self.file_format = PCAPNG
            return 0
        self.big_endian = magic == 0xA1B2C3D4 or magic == 0xA1B23C4D
        magic = u32(data, 0, self.big_endian)
        if magic != 0xA1B2C3D4 and magic != 0xA1B23C4D:
            self.abort(base, "not a capture: neither pcapng nor pcap")
            return 0
        self.file_format = PCAP
        self.nanosecond_times = magic == 0xA1B23C4D
        # The top four bits are about the frame check sequence.
        link = u32(data, 20, self.big_endian) & 0x0FFFFFFF
        self.add_interface(Interface(link, 0, 9 if self.nanosecond_times else 6, 0, ""))
        return 24

    # Classic pcap

    def read_records(self, data: bytes, base: i64, pos: i64) -> i64:
        """Read the records of a classic pcap file; returns the position reached."""
        big = self.big_endian
        size: i64 = len(data)
        link = self.interfaces[0].link_type
        fraction: i64 = 1 if self.nanosecond_times else 1000
        table = self.table
        self.bytes_needed = 16
        while size - pos >= 16:
            # Two 64-bit reads instead of four calls: this runs for every packet.
            if big:
                word = read_i64_be(data, pos + 8)
                captured = (word >> 32) & LOW32
                wire = word & LOW32
            else:
                word = read_i64_le(data, pos + 8)
                captured = word & LOW32
                wire = (word >> 32) & LOW32
            if captured > self.snap_limit:
                self.abort(
                    base + pos,
                    f"a packet of {captured} bytes exceeds the limit "
                    f"max_packet_bytes={self.snap_limit}; raise it with "
                    "CaptureLimits(max_packet_bytes=...) if the file is sound",
                )
                break
            if captured > size - pos - 16:
                self.bytes_needed = captured + 16
                break
            if self.count_only:
                table.packets += 1
            else:
                if big:
                    word = read_i64_be(data, pos)
                    at = ((word >> 32) & LOW32) * SECOND_NS + (word & LOW32) * fraction
                else:
                    word = read_i64_le(data, pos)
                    at = (word & LOW32) * SECOND_NS + ((word >> 32) & LOW32) * fraction
                table.add_packet(data, pos + 16, captured, wire, link, at, 0, base)
                if table.bad_checksum_offset >= 0:
                    self.record_bad_checksum()
            pos += captured + 16
        return pos

    # pcapng

    def read_blocks(self, data: bytes, base: i64, pos: i64) -> i64:
        """Read pcapng blocks.

        This is one long function on purpose, because it runs for every packet. Its phases are
        marked: type and length, fast path, other blocks. The fast path takes an enhanced packet
        block without options, of the same interface as the packet before; any other block has a
        method of its own.
        """
        big = self.big_endian
        size: i64 = len(data)
        table = self.table
        block_limit = self.block_limit
        need: i64 = 12
        # The interface of the packet before, for the fast path; -1 if there is none.
        which: i64 = -1
        link: i64 = 0
        hint: i64 = 0
        multiply: i64 = 1
        most: i64 = 0
        while size - pos >= 12:
            # Type and length, which stands at both ends of the block.
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
                if mark != BYTE_ORDER_MAGIC and mark != 0x4D3C2B1A:
                    self.abort(base + pos, "a section header without byte-order magic")
                    break
                big = mark == BYTE_ORDER_MAGIC
                length = u32(data, pos + 4, big)
            if length < 12 or length & 3 != 0:
                self.abort(base + pos, f"a block of {length} bytes is invalid")
                break
            if length > block_limit:
                self.abort(
                    base + pos,
                    f"a block of {length} bytes exceeds the limit max_block_bytes={block_limit}; "
                    "raise it with CaptureLimits(max_block_bytes=...) if the file is sound",
                )
                break
            if length > size - pos:
                need = length
                break
            if big:
                second_length = i64(read_i32_be(data, pos + length - 4)) & LOW32
            else:
                second_length = i64(read_i32_le(data, pos + length - 4)) & LOW32
            if second_length != length:
                self.abort(base + pos, "the two lengths of a block differ")
                break
            # Fast path.
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
                    table.add_packet(data, pos + 28, captured, wire, link, at, hint, base)
                    if table.bad_checksum_offset >= 0:
                        self.record_bad_checksum()
                    pos += length
                    continue
            # Other blocks.
            if self.count_only and kind in (ENHANCED_PACKET, OLD_PACKET, SIMPLE_PACKET):
                table.packets += 1
            elif kind in (ENHANCED_PACKET, OLD_PACKET):
                used = self.read_packet_block(data, pos, length, kind, big, base)
                if used is not None and used.is_simple:
                    which = used.index
                    link = used.link_type
                    hint = used.hint_index
                    multiply = used.multiplier
                    most = used.max_ticks
            elif kind == SIMPLE_PACKET:
                self.read_simple_packet(data, pos, length, big, base)
            elif kind == INTERFACE:
                self.read_interface(data, pos, length, big, base)
            elif kind == DECRYPTION_SECRETS:
                self.read_secrets(data, pos, length, big, base)
            elif kind == SECTION:
                self.big_endian = big
                self.read_section(data, pos, length, base)
                which = -1
            if self.aborted:
                break
            pos += length
        self.bytes_needed = need
        return pos

    def read_packet_block(
        self, data: bytes, pos: i64, length: i64, kind: i64, big: bool, base: i64
    ) -> Interface | None:
        """Read an enhanced or old packet block; returns its interface, None if it is malformed."""
        if length < 32:
            self.table.packets += 1
            self.record_error(base + pos, f"a packet block of {length} bytes is too short")
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
            self.record_error(base + pos, f"a packet of interface {which}, which is not described")
            return None
        if captured > length - 32:
            self.table.packets += 1
            self.record_error(base + pos, f"a packet of {captured} bytes in a block of {length}")
            return None
        if captured > self.snap_limit:
            self.table.packets += 1
            self.record_error(
                base + pos,
                f"a packet of {captured} bytes exceeds the limit "
                f"max_packet_bytes={self.snap_limit}; raise it with "
                "CaptureLimits(max_packet_bytes=...) if the file is sound",
            )
            return None
        interface = self.interfaces[which]
        at = interface.to_nanoseconds(high, low)
        hint = interface.hint_index
        options = pos + 28 + ((captured + 3) & -4)
        if pos + length - 4 - options >= 4:
            text = self.read_comments(data, options, pos + length - 4, big, base)
            if text != "":
                hint = self.hint_index(text)
        self.table.add_packet(data, pos + 28, captured, wire, interface.link_type, at, hint, base)
        if self.table.bad_checksum_offset >= 0:
            self.record_bad_checksum()
        return interface

    def read_simple_packet(self, data: bytes, pos: i64, length: i64, big: bool, base: i64) -> None:
        """Read a simple packet block. It has no timestamp: 0 is used."""
        if length < 16 or len(self.interfaces) == 0:
            self.table.packets += 1
            self.record_error(base + pos, "a simple packet block too short or without an interface")
            return
        interface = self.interfaces[0]
        wire = u32(data, pos + 8, big)
        captured = wire
        if interface.snap_length > 0 and captured > interface.snap_length:
            captured = interface.snap_length
        if captured > length - 16:
            captured = length - 16
        if captured > self.snap_limit:
            captured = self.snap_limit
        self.table.add_packet(
            data, pos + 12, captured, wire, interface.link_type, 0, interface.hint_index, base
        )
        if self.table.bad_checksum_offset >= 0:
            self.record_bad_checksum()

    def read_section(self, data: bytes, pos: i64, length: i64, base: i64) -> None:
        """Read a section header block, which starts a new list of interfaces."""
        if length < 28:
            self.abort(base + pos, f"a section block of {length} bytes is too short")
            return
        major = u16(data, pos + 12, self.big_endian)
        if major != 1:
            self.abort(base + pos, f"pcapng version {major} is not supported; only 1 is")
            return
        self.interfaces = []
        end = pos + length - 4
        self.section_hint = self.read_comments(data, pos + 24, end, self.big_endian, base)
        hardware = option_text(data, pos + 24, end, self.big_endian, HARDWARE_OPTION)
        if hardware != "":
            text = hardware_comment(hardware)
            self.section_hint += "\n" + text if self.section_hint != "" else text
        if base + pos == 0:
            self.sensor_hint = self.section_hint

    def read_interface(self, data: bytes, pos: i64, length: i64, big: bool, base: i64) -> None:
        """Read an interface description block."""
        if length < 20:
            self.abort(base + pos, f"an interface block of {length} bytes is too short")
            return
        if len(self.interfaces) >= self.interface_limit:
            self.abort(
                base + pos,
                f"more interfaces than the limit max_interfaces={self.interface_limit}; "
                "raise it with CaptureLimits(max_interfaces=...) if the file is sound",
            )
            return
        end = pos + length - 4
        resolution, offset = timestamp_options(data, pos + 16, end, big)
        hint = self.read_comments(data, pos + 16, end, big, base)
        self.add_interface(
            Interface(
                u16(data, pos + 8, big),
                u32(data, pos + 12, big),
                resolution,
                offset,
                hint if hint != "" or not has_hint(self.section_hint) else self.section_hint,
            )
        )

    def read_secrets(self, data: bytes, pos: i64, length: i64, big: bool, base: i64) -> None:
        """Read a decryption secrets block; only TLS key logs are kept."""
        if length < 20:
            self.record_error(base + pos, f"a secrets block of {length} bytes is too short")
            return
        size = u32(data, pos + 12, big)
        if size > length - 20:
            self.record_error(base + pos, f"secrets of {size} bytes in a block of {length}")
        elif u32(data, pos + 8, big) == TLS_KEY_LOG:
            if size > self.secrets_room:
                self.record_error(
                    base + pos,
                    "more TLS secrets than the limit max_secrets_bytes; raise it with "
                    "CaptureLimits(max_secrets_bytes=...)",
                )
                return
            self.secrets_room -= size
            self.secrets.append(data[pos + 16 : pos + 16 + size])

    def read_comments(self, data: bytes, pos: i64, end: i64, big: bool, base: i64) -> str:
        """The hints among the comments of these options, joined by line ends.

        A comment that would make them longer than `MAX_HINT_BYTES` is ignored.
        """
        found = ""
        room: i64 = MAX_HINT_BYTES
        while end - pos >= 4:
            code = u16(data, pos, big)
            size = u16(data, pos + 2, big)
            if code == 0:
                break
            if size > end - pos - 4:
                self.record_error(base + pos, f"an option of {size} bytes reaches beyond its block")
                break
            if code == 1 and 8 <= size <= room and data[pos + 4 : pos + 12] == b"polymux:":
                text = data[pos + 4 : pos + 4 + size].decode("utf-8", "replace")
                room -= size + 1
                found = text if found == "" else found + "\n" + text
            pos += 4 + ((size + 3) & -4)
        return found


# Timestamps stay within 62 bits (the years 1823 to 2116), so that differences never overflow.
MAX_TIMESTAMP: Final[i64] = 0x3FFFFFFFFFFFFFFF
MIN_TIMESTAMP: Final[i64] = -0x4000000000000000


class Interface:
    """An interface description block of pcapng, or the file header of classic pcap.

    A timestamp of n ticks is n * `multiplier` // `divisor` nanoseconds; if `tick_shift` is not
    negative, a second has 2**tick_shift ticks instead. `hint` is the text of its comment or else
    of its section's. `is_simple` interfaces need only the multiplier.
    """

    def __init__(
        self, link_type: i64, snap_length: i64, resolution: i64, offset_seconds: i64, hint: str
    ) -> None:
        self.link_type: i64 = link_type
        self.snap_length: i64 = snap_length
        self.resolution: i64 = resolution  # if_tsresol: 6 is microseconds, 0x80 | n is 2**-n s
        self.offset_seconds: i64 = offset_seconds  # if_tsoffset
        self.hint: str = hint
        self.hint_index: i64 = 0  # of `hint`, among the hints of its scanner
        self.index: i64 = 0  # among the interfaces of its scanner
        self.tick_shift: i64 = -1
        self.multiplier: i64 = 1
        self.divisor: i64 = 1
        if resolution >= 128:
            self.tick_shift = resolution - 128
        elif resolution <= 9:
            self.multiplier = power_of_ten(9 - resolution)
        elif resolution <= 27:
            self.divisor = power_of_ten(resolution - 9)
        else:
            self.multiplier = 0
        self.max_ticks: i64 = (
            MAX_TIMESTAMP // self.multiplier if self.multiplier > 0 else MAX_TIMESTAMP
        )
        self.is_simple: bool = self.tick_shift < 0 and self.divisor == 1 and offset_seconds == 0

    def to_nanoseconds(self, high: i64, low: i64) -> i64:
        """A timestamp of two 32-bit halves in nanoseconds, clamped to 62 bits."""
        if self.is_simple and high < 0x80000000:
            ticks = (high << 32) | low
            return ticks * self.multiplier if ticks <= self.max_ticks else MAX_TIMESTAMP
        return to_nanoseconds_slow(
            high, low, self.tick_shift, self.multiplier, self.divisor, self.offset_seconds
        )


def to_nanoseconds_slow(
    high: int, low: int, shift: int, multiplier: int, divisor: int, offset_seconds: int
) -> i64:
    """`Interface.to_nanoseconds` for any resolution and offset, in integers of any size."""
    ticks = high * 4294967296 + low
    value = (ticks * 1000000000) >> shift if shift >= 0 else ticks * multiplier // divisor
    value += offset_seconds * 1000000000
    # Literals: compared with an i64 constant, a large value would be narrowed, which fails.
    if value > 0x3FFFFFFFFFFFFFFF:
        return MAX_TIMESTAMP
    if value < -0x4000000000000000:
        return MIN_TIMESTAMP
    return value


def power_of_ten(power: i64) -> i64:
    value: i64 = 1
    for _ in range(power):
        value *= 10
    return value


def option_text(data: bytes, pos: i64, end: i64, big: bool, wanted: i64) -> str:
    """The first option with this code, as text of at most `MAX_OPTION_TEXT` bytes; "" if none."""
    while end - pos >= 4:
        code = u16(data, pos, big)
        size = u16(data, pos + 2, big)
        if code == 0 or size > end - pos - 4:
            break
        if code == wanted:
            if size > MAX_OPTION_TEXT:
                size = MAX_OPTION_TEXT
            return data[pos + 4 : pos + 4 + size].decode("utf-8", "replace")
        pos += 4 + ((size + 3) & -4)
    return ""


def has_hint(text: str) -> bool:
    """Whether a section's comment says anything about its packets, besides where it was taken."""
    return "protocol=" in text or "vantage=" in text


def timestamp_options(data: bytes, pos: i64, end: i64, big: bool) -> tuple[i64, i64]:
    """if_tsresol and if_tsoffset from the options of an interface block, or their defaults."""
    resolution: i64 = 6
    offset: i64 = 0
    while end - pos >= 4:
        code = u16(data, pos, big)
        size = u16(data, pos + 2, big)
        if code == 0 or size > end - pos - 4:
            break
        if code == 9 and size >= 1:
            resolution = data[pos + 4]
        elif code == 14 and size >= 8:
            high = u32(data, pos + (4 if big else 8), big)
            low = u32(data, pos + (8 if big else 4), big)
            if high > 0x7FFFFFFF:
                high -= 0x100000000
            offset = (high << 32) | low
        pos += 4 + ((size + 3) & -4)
    return resolution, offset


def u16(data: bytes, pos: i64, big: bool) -> i64:
    """A 16-bit number, unsigned; big-endian if `big`. The caller checks that it lies inside."""
    return i64(read_i16_be(data, pos) if big else read_i16_le(data, pos)) & 0xFFFF


def u32(data: bytes, pos: i64, big: bool) -> i64:
    """A 32-bit number, as `u16`."""
    return i64(read_i32_be(data, pos) if big else read_i32_le(data, pos)) & 0xFFFFFFFF
