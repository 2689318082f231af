# mypyc: compiled
"""Reading the pieces of many batches in one pass over a file.

Flows that speak at the same time lie in the same parts of a file, a packet of each in turn. Read
apart, every piece is a call or a page fault of its own. Read together, the file is read once from
front to back, as quickly as anything can be read, and the pieces are cut out while the processor's
caches still have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.io.read_runs import SLACK
from polymux.capture.packets.packet_refs import CAPTURED_BITS, CAPTURED_MASK
from polymux.capture.tcp.events import OCTETS, Events
from polymux.capture.tcp.ref_storage import NOWHERE

# Octets of a window, which also are the blocks that are looked at for it times their size. Smaller
# ones have fewer pieces of each batch at a time, larger ones do not stay in the caches.
LARGEST_WINDOW: Final[i64] = 1048576
LOOK_BITS: Final[i64] = 14
LOOKS: Final[i64] = 64
# Writers that are done are kept for the next stretch: growing one costs more than filling it.
SPARES: Final = 64
SPARE_OCTETS: Final[i64] = 524288
spare: list[BytesWriter] = []


class Stretch:
    """Rows of `events` from `row` to before `stop` whose octets lie one behind the other in a file.

    `pieces` of them are OCTETS rows, with `octets` in all, between `begin` and `end` of file number
    `file`; none: no such row is left. `is_read` tells whether they were read; then `take` them.
    """

    def __init__(self, events: Events, row: i64) -> None:
        self.file: i64 = -1
        self.octets: i64 = 0
        self.begin: i64 = 0
        self.end: i64 = 0
        self.out: BytesWriter | None = None
        # Where the pieces lie and how large they are, in one word: they are looked at a few at a
        # time, in turns with those of others, and so come in few cache lines.
        places: vec[i64] = vec[i64]([0] * (events.count - row))
        pieces: i64 = 0
        last: i64 = 0
        count = events.count
        while row < count:
            if events.kind[row] == OCTETS:
                offset = events.offset[row]
                size = events.size[row]
                if pieces == 0:
                    self.file = events.file[row]
                    self.begin = offset
                elif offset < last or events.file[row] != self.file:
                    break
                last = offset
                places[pieces] = (offset << CAPTURED_BITS) | size
                pieces += 1
                self.octets += size
                if offset + size > self.end:
                    self.end = offset + size
            row += 1
        self.places: vec[i64] = places
        self.pieces: i64 = pieces
        self.stop: i64 = row
        self.next: i64 = 0  # the piece to be cut out next
        self.next_offset: i64 = self.begin if pieces > 0 else NOWHERE

    def note(self, begin: i64, first: vec[i64], reach: vec[i64]) -> None:
        """For each block behind `begin`: where the pieces that start in it begin and end."""
        places = self.places
        for n in range(self.next, self.pieces):
            place = places[n]
            offset = place >> CAPTURED_BITS
            block = (offset - begin) >> LOOK_BITS
            if block >= LOOKS:
                break
            if offset < first[block]:
                first[block] = offset
            end = offset + (place & CAPTURED_MASK)
            if end > reach[block]:
                reach[block] = end

    def cut(self, window: bytes, begin: i64, limit: i64) -> None:
        """Take the pieces that start before `limit` out of a window that lies at `begin`."""
        out = self.out
        if out is None:
            out = spare.pop() if len(spare) > 0 else BytesWriter()
            self.out = out
        places = self.places
        pieces = self.pieces
        n = self.next
        while n < pieces:
            place = places[n]
            start = (place >> CAPTURED_BITS) - begin
            if start >= limit - begin:
                break
            out.write(window[start : start + (place & CAPTURED_MASK)])
            n += 1
        self.next = n
        if n < pieces:
            self.next_offset = places[n] >> CAPTURED_BITS
            return
        self.next_offset = NOWHERE

    def is_read(self) -> bool:
        return self.next == self.pieces

    def take(self) -> bytes:
        """Its octets, once. They are copied only now, to where those of the last one taken were:
        that memory is warm."""
        out = self.out
        if out is None or self.next < self.pieces:
            raise ValueError("not read, or taken before")
        self.out = None
        data = out.getvalue()
        if self.octets <= SPARE_OCTETS and len(spare) < SPARES:
            out.truncate(0)
            spare.append(out)
        return data


def first_octet(stretch: Stretch) -> int:
    return stretch.begin


def read_together(stretches: list[Stretch], read: Callable[[int, int], bytes]) -> None:
    """Read stretches of one file. `read(offset, size)` reads exactly.

    If reading fails, some of them were read and the others were not.
    """
    waiting = sorted(stretches, key=first_octet)
    begun: i64 = 0  # of those waiting
    active: list[Stretch] = []
    first: vec[i64] = vec[i64]([NOWHERE] * LOOKS)
    reach: vec[i64] = vec[i64]([0] * LOOKS)
    while True:
        begin = NOWHERE
        for stretch in active:
            if stretch.next_offset < begin:
                begin = stretch.next_offset
        if begun < len(waiting) and waiting[begun].begin < begin:
            begin = waiting[begun].begin
        if begin == NOWHERE:
            return
        while begun < len(waiting) and waiting[begun].begin - begin < LARGEST_WINDOW:
            active.append(waiting[begun])
            begun += 1
        for block in range(LOOKS):
            first[block] = NOWHERE
            reach[block] = 0
        for stretch in active:
            stretch.note(begin, first, reach)
        # Pieces that follow closely, of whichever batch, are read along.
        end = reach[0]
        limit = begin + LARGEST_WINDOW
        for block in range(i64(1), LOOKS):
            if reach[block] > 0:
                if first[block] - end > SLACK:
                    limit = first[block]
                    break
                if reach[block] > end:
                    end = reach[block]
        window = read(begin, end - begin)
        going: list[Stretch] = []
        for stretch in active:
            if stretch.next_offset < limit:
                stretch.cut(window, begin, limit)
            if stretch.next_offset != NOWHERE:
                going.append(stretch)
        active = going
        window = b""  # given back before the next is read, which then lies in the same warm memory
