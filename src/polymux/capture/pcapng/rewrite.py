"""Copying a capture with changes: comments added, packets replaced, blocks left out.

`rewrite` writes pcapng, whatever the source is: blocks that nothing changes are copied byte for
byte, and the records of a classic pcap file become enhanced packet blocks. A `CaptureEdit` says
what changes. The size of a packet never does, so timestamps, lengths and order stay as they were.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.io.sources import Source, open_source
from polymux.capture.limits import CaptureLimits
from polymux.capture.pcapng.block_types import (
    BYTE_ORDER_MAGIC,
    DECRYPTION_SECRETS,
    ENHANCED_PACKET,
    INTERFACE,
    OLD_PACKET,
    SECTION,
    SIMPLE_PACKET,
)
from polymux.capture.pcapng.blocks import interface, packet_ends, section
from polymux.capture.pcapng.new_file import new_capture
from polymux.core.errors import CaptureError

_COMMENT = 1  # option code, in every block
_MAX_OPTION_BYTES = 65535
_WINDOW_BYTES = 1 << 20
_UNKNOWN_LENGTH = b"\xff" * 8  # of a section
_PCAP_HEADER_BYTES = 24
_RECORD_HEADER_BYTES = 16
_PCAP_MAGICS = {  # by the first four bytes: byte order and nanoseconds in a tick
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_PACKET_BLOCKS = (ENHANCED_PACKET, OLD_PACKET, SIMPLE_PACKET)
# Where options begin in the blocks whose comments may be left out.
_STATISTICS = 5
_OPTION_STARTS = {SECTION: 24, INTERFACE: 16, _STATISTICS: 20}
# Codes and sizes of options that are read: time resolution and offset; counts; flags.
_READ_OPTIONS: dict[int, dict[int, int]] = {
    INTERFACE: {9: 1, 14: 8},
    _STATISTICS: {2: 8, 3: 8, 4: 8, 5: 8},
    ENHANCED_PACKET: {2: 4},
}


class CaptureEdit:
    """What a copy changes. This one changes nothing.

    Attributes:
        section_comment: added to the first section.
        keeps_options: whether options that reading does not depend on are copied. If not, comments
            are copied as `kept_comment` returns them, and the hardware of a section is left out.
        keeps_secrets: whether decryption secrets are copied.
        keeps_others: whether blocks that are not read here, such as name resolution, and malformed
            packet blocks are copied.
    """

    section_comment = ""
    keeps_options = True
    keeps_secrets = True
    keeps_others = True

    def touches(self, offset: int, size: int) -> bool:
        """Whether the packet of `size` bytes at this offset of the source changes."""
        return False

    def change(
        self, offset: int, data: bytes, original_length: int, link_type: int
    ) -> tuple[bytes, Sequence[str]] | None:
        """The packet's new bytes, as many as before, and the comments to add; None: left out."""
        return data, ()

    def kept_comment(self, text: str) -> str:
        """What is left of a comment unless `keeps_options`; "": nothing."""
        return ""


@dataclass(slots=True)
class Rewritten:
    """What a copy holds, and why it ends before the source does ("" if it does not).

    `shifts` has a pair (source offset, target offset - source offset) for the start of the file
    and for each place where the distance changes, ascending; None unless asked for.
    """

    packets: int = 0
    damage: str = ""
    shifts: list[tuple[int, int]] | None = None


def rewrite(
    source: AnyPath,
    target: AnyPath,
    edit: CaptureEdit,
    *,
    limits: CaptureLimits | None = None,
) -> Rewritten:
    """Copy `source` to a new pcapng file `target` with changes; the source is not changed.

    The copy ends where the source is damaged or truncated. A compressed capture is written
    uncompressed.

    Raises:
        CaptureError: `source` is not a capture or cannot be read, or `target` exists or cannot be
            written.
    """
    source, target = one_path(source), one_path(target)
    with new_capture(target) as fd:
        return rewrite_into(source, fd, edit, limits=limits)


def rewrite_into(
    source: str,
    fd: int,
    edit: CaptureEdit,
    *,
    limits: CaptureLimits | None = None,
    shifts: bool = False,
) -> Rewritten:
    """Like `rewrite`, into an open file; with `shifts`, say where everything has gone."""
    limits = limits or CaptureLimits()
    opened = open_source(source, limits)
    try:
        copy = _Copy(opened, fd, edit, limits, Rewritten(shifts=[] if shifts else None))
        magic = opened.window(0, 4)
        if magic in _PCAP_MAGICS:
            copy.copy_records(*_PCAP_MAGICS[magic])
        elif magic == b"\x0a\x0d\x0d\x0a":
            copy.copy_blocks()
        else:
            raise CaptureError("not a capture: neither pcapng nor pcap", source, 0)
        copy.flush()
        return copy.result
    finally:
        opened.close()


@dataclass(slots=True)
class _Copy:
    """One copy on its way; `out` is written before it grows beyond a window."""

    source: Source
    fd: int
    edit: CaptureEdit
    limits: CaptureLimits
    result: Rewritten
    out: bytearray = field(default_factory=bytearray)
    written: int = 0  # bytes of the target before `out`
    shift: int | None = None
    order: str = "<"
    link_types: list[int] = field(default_factory=list)
    has_section: bool = False

    def put(self, data: bytes | memoryview, offset: int = -1) -> None:
        """Append bytes of the target; those at `offset` of the source, if it is given."""
        if offset >= 0 and self.result.shifts is not None:
            shift = self.written + len(self.out) - offset
            if shift != self.shift:
                self.shift = shift
                self.result.shifts.append((offset, shift))
        self.out += data
        if len(self.out) >= _WINDOW_BYTES:
            self.flush()

    def flush(self) -> None:
        data = memoryview(self.out)
        while data:
            done = os.write(self.fd, data)
            self.written += done
            data = data[done:]
        self.out = bytearray()

    # Classic pcap

    def copy_records(self, order: str, tick_ns: int) -> None:
        head = self.source.window(0, _PCAP_HEADER_BYTES)
        if len(head) < _PCAP_HEADER_BYTES:
            self.result.damage = "the file ends inside its header"
            return
        link_type = struct.unpack_from(f"{order}I", head, 20)[0] & 0x0FFFFFFF
        self.put(section(self.edit.section_comment))
        self.put(interface(link_type=link_type))
        offset, need = _PCAP_HEADER_BYTES, _RECORD_HEADER_BYTES
        record = struct.Struct(f"{order}IIII")
        while data := self.source.window(offset, max(need, _WINDOW_BYTES)):
            pos, need = 0, _RECORD_HEADER_BYTES
            while len(data) - pos >= _RECORD_HEADER_BYTES:
                seconds, ticks, size, length = record.unpack_from(data, pos)
                if size > self.limits.max_packet_bytes:
                    self.result.damage = f"byte {offset + pos}: a packet of {size} bytes"
                    return
                start = pos + _RECORD_HEADER_BYTES
                if size > len(data) - start:
                    need = _RECORD_HEADER_BYTES + size
                    break
                at = seconds * 1_000_000_000 + ticks * tick_ns
                self.put_record(offset + start, data[start : start + size], length, link_type, at)
                pos = start + size
            if pos == 0:
                self.result.damage = f"byte {offset}: the file ends inside a packet"
                return
            offset += pos

    def put_record(self, offset: int, data: bytes, length: int, link_type: int, at: int) -> None:
        """Write a record of classic pcap as an enhanced packet block."""
        comments: Sequence[str] = ()
        if self.edit.touches(offset, len(data)):
            changed = self.edit.change(offset, data, length, link_type)
            if changed is None:
                return
            data, comments = changed
        self.result.packets += 1
        before, _ = packet_ends(len(data), at, "", length)
        tail = bytes(-len(data) % 4) + _with_comments(b"", comments, "<")
        size = struct.pack("<I", 32 + len(data) + len(tail))
        self.put(before[:4] + size + before[8:])
        self.put(data, offset)
        self.put(tail + size)

    # pcapng

    def copy_blocks(self) -> None:
        offset, need = 0, 12
        while data := self.source.window(offset, max(need, _WINDOW_BYTES)):
            done, need = self.copy_window(data, offset)
            offset += done
            if self.result.damage:
                return
            if done == 0 and need > len(data):
                self.result.damage = f"byte {offset}: the file ends inside a block"
                return

    def copy_window(self, data: bytes, base: int) -> tuple[int, int]:
        """Copy the complete blocks of a window: bytes consumed, and bytes that the next needs."""
        view = memoryview(data)
        heads = struct.Struct(f"{self.order}II")
        pos = run = 0
        need = 12
        while len(data) - pos >= 12:
            kind, size = heads.unpack_from(data, pos)
            if kind == SECTION:
                self.order = "<" if data[pos + 8] == BYTE_ORDER_MAGIC & 255 else ">"
                heads = struct.Struct(f"{self.order}II")
                kind, size = heads.unpack_from(data, pos)
            if size < 12 or size % 4 or size > self.limits.max_block_bytes:
                self.result.damage = f"byte {base + pos}: a block of {size} bytes"
                break
            if size > len(data) - pos:
                need = size
                break
            new = self.change_block(kind, data, pos, size, base)
            if new is not None:
                self.put(view[run:pos], base + run)
                run = pos + size
                for part, offset in new:
                    self.put(part, offset)
            pos += size
        self.put(view[run:pos], base + run)
        return pos, need

    def change_block(
        self, kind: int, data: bytes, pos: int, size: int, base: int
    ) -> list[tuple[bytes, int]] | None:
        """The parts of the changed block with their source offsets; None if it stays as it is."""
        edit = self.edit
        if kind in _PACKET_BLOCKS:
            new = self.change_packet(kind, data, pos, size, base)
            self.result.packets += new != []
            return new
        if kind == SECTION:
            self.link_types = []
            comment = "" if self.has_section else edit.section_comment
            self.has_section = True
            unknown_length = data[pos + 16 : pos + 24] == _UNKNOWN_LENGTH
            if not comment and edit.keeps_options and unknown_length:
                return None
            return self.with_options(data, pos, size, 24, [comment] if comment else [])
        if kind == INTERFACE:
            self.link_types.append(struct.unpack_from(f"{self.order}H", data, pos + 8)[0])
        elif kind == DECRYPTION_SECRETS:
            return None if edit.keeps_secrets else []
        elif kind not in _OPTION_STARTS:
            return None if edit.keeps_others else []
        if edit.keeps_options:
            return None
        return self.with_options(data, pos, size, _OPTION_STARTS[kind], [])

    def change_packet(
        self, kind: int, data: bytes, pos: int, size: int, base: int
    ) -> list[tuple[bytes, int]] | None:
        order = self.order
        edit = self.edit
        if kind == SIMPLE_PACKET:
            start = 12
            length = struct.unpack_from(f"{order}I", data, pos + 8)[0]
            captured, number = min(length, size - 16), 0
        elif size < 32:
            return None if edit.keeps_others else []
        else:
            start = 28
            captured, length = struct.unpack_from(f"{order}II", data, pos + 20)
            form = "I" if kind == ENHANCED_PACKET else "H"
            number = struct.unpack_from(f"{order}{form}", data, pos + 8)[0]
        first = pos + start
        if captured > size - start - 4 or number >= len(self.link_types):
            return None if edit.keeps_others else []
        touched = edit.touches(base + first, captured)
        if not touched and edit.keeps_options:
            return None
        packet = data[first : first + captured]
        comments: Sequence[str] = ()
        if touched:
            changed = edit.change(base + first, packet, length, self.link_types[number])
            if changed is None:
                return []
            packet, comments = changed
        padded = captured + -captured % 4
        head = data[pos : pos + start]
        if kind == SIMPLE_PACKET:
            if not comments:
                padding = bytes(size - 16 - captured)
                return [(head, -1), (packet, base + first), (padding + head[4:8], -1)]
            kind, old = ENHANCED_PACKET, b""  # a simple packet has no options
            head = struct.pack(f"{order}IIIIIII", kind, 0, 0, 0, 0, captured, length)
        else:
            old = data[first + padded : pos + size - 4]
        new = self.changed_options(kind, old, comments)
        tail = bytes(padded - captured) + new
        total = struct.pack(f"{order}I", len(head) + captured + len(tail) + 4)
        return [
            (head[:4] + total + head[8:], -1), (packet, base + first), (tail + total, -1),
        ]  # fmt: skip

    def with_options(
        self, data: bytes, pos: int, size: int, start: int, comments: Sequence[str]
    ) -> list[tuple[bytes, int]] | None:
        if size < start + 4:
            return None
        old = data[pos + start : pos + size - 4]
        kind = struct.unpack_from(f"{self.order}I", data, pos)[0]
        new = self.changed_options(kind, old, comments)
        total = struct.pack(f"{self.order}I", start + len(new) + 4)
        fixed = data[pos + 8 : pos + start]
        if data[pos : pos + 4] == b"\x0a\x0d\x0d\x0a":  # the length of a section may change
            fixed = fixed[:8] + _UNKNOWN_LENGTH
        return [(data[pos : pos + 4] + total + fixed + new + total, -1)]

    def changed_options(self, kind: int, old: bytes, comments: Sequence[str]) -> bytes:
        """The options of a block in the copy, with comments added."""
        edit, order = self.edit, self.order
        if edit.keeps_options:
            return _with_comments(old, comments, order)
        sizes = _READ_OPTIONS.get(kind, {})
        kept = bytearray()
        hints: list[str] = []
        for code, value in _options(old, order):
            if code == _COMMENT:
                hints.append(edit.kept_comment(value.decode(errors="replace")))
            elif sizes.get(code) == len(value):
                kept += _option(code, value, order)
        return _with_comments(bytes(kept), [*filter(None, hints), *comments], order)


def _options(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Codes and values of the options of a block, up to their end or a malformed one."""
    pos = 0
    while len(data) - pos >= 4:
        code, size = struct.unpack_from(f"{order}HH", data, pos)
        if code == 0 or size > len(data) - pos - 4:
            break
        yield code, data[pos + 4 : pos + 4 + size]
        pos += 4 + size + -size % 4


def _option(code: int, value: bytes, order: str) -> bytes:
    return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def _with_comments(old: bytes, comments: Sequence[str], order: str) -> bytes:
    """Options with comments added."""
    kept = bytearray()
    for code, value in _options(old, order):
        kept += _option(code, value, order)
    for text in comments:
        kept += _option(_COMMENT, text.encode()[:_MAX_OPTION_BYTES], order)
    return bytes(kept) + bytes(4) if kept else b""
