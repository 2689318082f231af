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

from polymux.capture.io.read_runs import MAX_READ_GAP_BYTES
from polymux.capture.packets.packet_refs import CAPTURED_BITS, CAPTURED_MASK
from polymux.capture.tcp.events import PAYLOAD, TcpEvents
from polymux.capture.tcp.ref_storage import NO_OFFSET

# Bytes of a window, which also are the blocks that are looked at for it times their size. Smaller
# ones have fewer pieces of each batch at a time, larger ones do not stay in the caches.
MAX_WINDOW_BYTES: Final[i64] = 1048576
WINDOW_BLOCK_BITS: Final[i64] = 14
WINDOW_BLOCKS: Final[i64] = 64
# Writers that are done are kept for the next stretch: growing one costs more than filling it.
MAX_SPARE_WRITERS: Final = 64
MAX_SPARE_WRITER_BYTES: Final[i64] = 524288
spare_writers: list[BytesWriter] = []


class SequentialRun:
    """Rows of `events` from `row` to before `stop` whose bytes lie one behind the other in a file.

    `pieces` of them are BYTES rows, with `bytes` in all, between `begin` and `end` of file number
    `file`; none: no such row is left. `is_read` tells whether they were read; then `take` them.
    """

    def __init__(self, events: TcpEvents, row: i64) -> None:
        self.file: i64 = -1
        self.payload_bytes: i64 = 0
        self.begin: i64 = 0
        self.end: i64 = 0
        self.writer: BytesWriter | None = None
        # Where the pieces lie and how large they are, in one word: they are looked at a few at a
        # time, in turns with those of others, and so come in few cache lines.
        places: vec[i64] = vec[i64]([0] * (events.count - row))
        pieces: i64 = 0
        last: i64 = 0
        count = events.count
        while row < count:
            if events.kind[row] == PAYLOAD:
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
                self.payload_bytes += size
                if offset + size > self.end:
                    self.end = offset + size
            row += 1
        self.locations: vec[i64] = places
        self.pieces: i64 = pieces
        self.stop: i64 = row
        self.next_piece: i64 = 0  # the piece to be cut out next
        self.next_offset: i64 = self.begin if pieces > 0 else NO_OFFSET

    def mark_blocks(self, begin: i64, first: vec[i64], reach: vec[i64]) -> None:
        """For each block behind `begin`: where the pieces that start in it begin and end."""
        places = self.locations
        for n in range(self.next_piece, self.pieces):
            place = places[n]
            offset = place >> CAPTURED_BITS
            block = (offset - begin) >> WINDOW_BLOCK_BITS
            if block >= WINDOW_BLOCKS:
                break
            if offset < first[block]:
                first[block] = offset
            end = offset + (place & CAPTURED_MASK)
            if end > reach[block]:
                reach[block] = end

    def copy_from_window(self, window: bytes, begin: i64, limit: i64) -> None:
        """Take the pieces that start before `limit` out of a window that lies at `begin`."""
        out = self.writer
        if out is None:
            out = spare_writers.pop() if len(spare_writers) > 0 else BytesWriter()
            self.writer = out
        places = self.locations
        pieces = self.pieces
        n = self.next_piece
        while n < pieces:
            place = places[n]
            start = (place >> CAPTURED_BITS) - begin
            if start >= limit - begin:
                break
            out.write(window[start : start + (place & CAPTURED_MASK)])
            n += 1
        self.next_piece = n
        if n < pieces:
            self.next_offset = places[n] >> CAPTURED_BITS
            return
        self.next_offset = NO_OFFSET

    def is_read(self) -> bool:
        return self.next_piece == self.pieces

    def take(self) -> bytes:
        """Its bytes, once. They are copied only now, to where those of the last one taken were:
        that memory is warm."""
        out = self.writer
        if out is None or self.next_piece < self.pieces:
            raise ValueError("not read, or taken before")
        self.writer = None
        data = out.getvalue()
        if self.payload_bytes <= MAX_SPARE_WRITER_BYTES and len(spare_writers) < MAX_SPARE_WRITERS:
            out.truncate(0)
            spare_writers.append(out)
        return data


def run_begin(run: SequentialRun) -> int:
    return run.begin


def read_interleaved(runs: list[SequentialRun], read: Callable[[int, int], bytes]) -> None:
    """Read stretches of one file. `read(offset, size)` reads exactly.

    If reading fails, some of them were read and the others were not.
    """
    waiting = sorted(runs, key=run_begin)
    begun: i64 = 0  # of those waiting
    active: list[SequentialRun] = []
    first: vec[i64] = vec[i64]([NO_OFFSET] * WINDOW_BLOCKS)
    reach: vec[i64] = vec[i64]([0] * WINDOW_BLOCKS)
    while True:
        begin = NO_OFFSET
        for stretch in active:
            if stretch.next_offset < begin:
                begin = stretch.next_offset
        if begun < len(waiting) and waiting[begun].begin < begin:
            begin = waiting[begun].begin
        if begin == NO_OFFSET:
            return
        while begun < len(waiting) and waiting[begun].begin - begin < MAX_WINDOW_BYTES:
            active.append(waiting[begun])
            begun += 1
        for block in range(WINDOW_BLOCKS):
            first[block] = NO_OFFSET
            reach[block] = 0
        for stretch in active:
            stretch.mark_blocks(begin, first, reach)
        # Pieces that follow closely, of whichever batch, are read along.
        end = reach[0]
        limit = begin + MAX_WINDOW_BYTES
        for block in range(i64(1), WINDOW_BLOCKS):
            if reach[block] > 0:
                if first[block] - end > MAX_READ_GAP_BYTES:
                    limit = first[block]
                    break
                if reach[block] > end:
                    end = reach[block]
        window = read(begin, end - begin)
        going: list[SequentialRun] = []
        for stretch in active:
            if stretch.next_offset < limit:
                stretch.copy_from_window(window, begin, limit)
            if stretch.next_offset != NO_OFFSET:
                going.append(stretch)
        active = going
        window = b""  # given back before the next is read, which then lies in the same warm memory
