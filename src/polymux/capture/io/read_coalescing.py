# mypyc: compiled
"""Reading the payload of several flows in one pass over a file.

Problem: flows that were active at the same time lie interleaved in a capture, a packet of each in
turn. Reading them one flow at a time touches the same region of the file once for each flow, with
a system call or a page fault for each piece.

Idea: flows are analyzed side by side, and each declares the payload of its next batch ahead of
time (`PayloadRequest`). When one of them needs its batch, the requests that begin in the same
region are read along with it (`read_interleaved`): the file is read once, front to back, in
windows of about 1 MiB, and the pieces are copied out to the requests while the window is in the
processor's caches.

Invariants:

- A request is split into `SequentialRun`s: rows of one file whose offsets never decrease. So one
  forward pass serves any number of runs, each with a single cursor (`next_piece`).
- A window starts at the lowest `next_offset` of all active runs, and a piece is copied only from a
  window that holds all of it. Every active run therefore reaches its end.
- If reading fails, each run is either complete (`is_read`) or untouched beyond its cursor; its flow
  then reads the payload by itself and gets the error.

Not thread safe: finished writers are reused between calls (`spare_writers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.io.read_runs import MAX_READ_GAP_BYTES
from polymux.capture.packets.packet_refs import CAPTURED_BITS, CAPTURED_MASK
from polymux.capture.tcp.flow_order import NO_OFFSET
from polymux.capture.tcp.reassembly import PAYLOAD, TcpEvents

ReadAt = Callable[[int, int], bytes]

# Bytes of a window: WINDOW_BLOCKS blocks of 16 KiB. Smaller windows hold fewer pieces of each run,
# larger ones do not stay in the caches.
MAX_WINDOW_BYTES: Final[i64] = 1048576
WINDOW_BLOCK_BITS: Final[i64] = 14
WINDOW_BLOCKS: Final[i64] = 64
# Finished writers are kept for the next run: growing one costs more than filling it.
MAX_SPARE_WRITERS: Final = 64
MAX_SPARE_WRITER_BYTES: Final[i64] = 524288
spare_writers: list[BytesWriter] = []


class SequentialRun:
    """Rows of `events`, from `row` to before `stop`, whose bytes lie in ascending order in a file.

    `pieces` of them are PAYLOAD rows, `payload_bytes` in all, between offsets `begin` and `end` of
    file number `file`; 0 pieces means that no PAYLOAD row is left. When `is_read`, `take` returns
    the bytes.
    """

    def __init__(self, events: TcpEvents, row: i64) -> None:
        self.file: i64 = -1
        self.payload_bytes: i64 = 0
        self.begin: i64 = 0
        self.end: i64 = 0
        self.writer: BytesWriter | None = None
        # Offset and size of each piece in one word: runs take turns, a few pieces at a time, so
        # fewer cache lines are loaded.
        locations: vec[i64] = vec[i64]([0] * (events.count - row))
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
                locations[pieces] = (offset << CAPTURED_BITS) | size
                pieces += 1
                self.payload_bytes += size
                if offset + size > self.end:
                    self.end = offset + size
            row += 1
        self.locations: vec[i64] = locations
        self.pieces: i64 = pieces
        self.stop: i64 = row
        self.next_piece: i64 = 0  # the piece to be copied next
        self.next_offset: i64 = self.begin if pieces > 0 else NO_OFFSET

    def mark_blocks(self, begin: i64, first: vec[i64], reach: vec[i64]) -> None:
        """For each block from `begin` on: lower `first` and raise `reach` to the lowest offset and
        the highest end of the pieces that start in it."""
        locations = self.locations
        for n in range(self.next_piece, self.pieces):
            location = locations[n]
            offset = location >> CAPTURED_BITS
            block = (offset - begin) >> WINDOW_BLOCK_BITS
            if block >= WINDOW_BLOCKS:
                break
            if offset < first[block]:
                first[block] = offset
            end = offset + (location & CAPTURED_MASK)
            if end > reach[block]:
                reach[block] = end

    def copy_from_window(self, window: bytes, begin: i64, limit: i64) -> None:
        """Copy the pieces that start before `limit` from a window that starts at `begin`."""
        out = self.writer
        if out is None:
            out = spare_writers.pop() if len(spare_writers) > 0 else BytesWriter()
            self.writer = out
        locations = self.locations
        pieces = self.pieces
        n = self.next_piece
        while n < pieces:
            location = locations[n]
            start = (location >> CAPTURED_BITS) - begin
            if start >= limit - begin:
                break
            out.write(window[start : start + (location & CAPTURED_MASK)])
            n += 1
        self.next_piece = n
        if n < pieces:
            self.next_offset = locations[n] >> CAPTURED_BITS
            return
        self.next_offset = NO_OFFSET

    def is_read(self) -> bool:
        return self.next_piece == self.pieces

    def take(self) -> bytes:
        """The bytes of the run; can be called once.

        They are copied out only now: the allocator then returns the memory of the bytes taken
        last, which is still in the caches.

        Raises:
            ValueError: The run is not read yet, or its bytes were taken before.
        """
        out = self.writer
        if out is None or self.next_piece < self.pieces:
            raise ValueError("the run is not read yet, or its bytes were taken before")
        self.writer = None
        data = out.getvalue()
        if self.payload_bytes <= MAX_SPARE_WRITER_BYTES and len(spare_writers) < MAX_SPARE_WRITERS:
            out.truncate(0)
            spare_writers.append(out)
        return data


class PayloadRequest:
    """The payload of a batch that a flow will need next, as runs of the files it lies in."""

    def __init__(self, events: TcpEvents, files: Sequence[str], readers: Sequence[ReadAt]) -> None:
        self.events: TcpEvents = events
        self.readers: Sequence[ReadAt] = readers
        self.runs: list[tuple[str, SequentialRun]] = []
        stop = 0
        while stop < events.count:
            run = SequentialRun(events, stop)
            stop = run.stop
            if run.pieces > 0:
                self.runs.append((files[run.file], run))

    def is_near(self, other: PayloadRequest) -> bool:
        """Whether this request begins in the first half of `other`, in the same file."""
        if len(self.runs) == 0 or len(other.runs) == 0:
            return False
        path, mine = self.runs[0]
        other_path, theirs = other.runs[0]
        middle = (theirs.begin + theirs.end) >> 1
        return mine.begin <= middle and mine.end > theirs.begin and path == other_path

    def nearby(self, others: list[PayloadRequest]) -> list[PayloadRequest]:
        """Those of `others` that are near this request."""
        return [other for other in others if other.is_near(self)]

    def is_read(self) -> bool:
        return all(run.is_read() for _, run in self.runs)

    def take(self) -> bytes:
        """The payload, once it `is_read`; can be called once."""
        if len(self.runs) == 1:
            return self.runs[0][1].take()
        return b"".join([run.take() for _, run in self.runs])


def read_interleaved(runs: list[SequentialRun], read: ReadAt) -> None:
    """Read runs of one file in one pass; `read(offset, size)` returns exactly `size` bytes.

    If `read` raises, some runs have been read and the others have not.
    """
    waiting = sorted(runs, key=run_begin)
    started: i64 = 0  # of those waiting
    active: list[SequentialRun] = []
    first: vec[i64] = vec[i64]([NO_OFFSET] * WINDOW_BLOCKS)
    reach: vec[i64] = vec[i64]([0] * WINDOW_BLOCKS)
    while True:
        begin = NO_OFFSET
        for run in active:
            if run.next_offset < begin:
                begin = run.next_offset
        if started < len(waiting) and waiting[started].begin < begin:
            begin = waiting[started].begin
        if begin == NO_OFFSET:
            return
        while started < len(waiting) and waiting[started].begin - begin < MAX_WINDOW_BYTES:
            active.append(waiting[started])
            started += 1
        for block in range(WINDOW_BLOCKS):
            first[block] = NO_OFFSET
            reach[block] = 0
        for run in active:
            run.mark_blocks(begin, first, reach)
        # The window goes on over small gaps, to the pieces of any run, and ends at a large one.
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
        unfinished: list[SequentialRun] = []
        for run in active:
            if run.next_offset < limit:
                run.copy_from_window(window, begin, limit)
            if run.next_offset != NO_OFFSET:
                unfinished.append(run)
        active = unfinished
        window = b""  # freed before the next is read, which then reuses memory in the caches


def run_begin(run: SequentialRun) -> int:
    return run.begin
