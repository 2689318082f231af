# mypyc: compiled
"""References and their order, in memory or elsewhere: a huge flow has more than may be held.

Both are looked at from front to back, a few times. What is stored elsewhere is read a window at a
time, so that a flow of any length takes the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Final

from librt.strings import read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.packets.packet_refs import CAPTURED_BITS, RECORD, as_octets

# Records of stored references that are read at a time, and blobs that may hold that many: two to
# spare, and one for each direction of each file that is looked at in turns.
WINDOW: Final[i64] = 2048
BLOBS: Final[i64] = 2
# Entries of a page of the order, as a power of two, and pages that are always held.
PAGE_BITS: Final[i64] = 16
PAGE: Final[i64] = 65536
ENTRY: Final[i64] = 8
HELD_PAGES: Final[i64] = 8

NOWHERE: Final[i64] = 0x7FFFFFFFFFFFFFFF  # behind every file

# References, or how to read octets of them by place and size; and how many records they are.
Stored = tuple[bytes, Callable[[int, int], bytes] | None, int]
Spool = Callable[[], BinaryIO]


class Store:
    """Which stored blobs have a window in memory: the latest of them."""

    def __init__(self) -> None:
        self.blobs: list[Blob] = []
        self.most: i64 = BLOBS + 2

    def expect(self, files: i64) -> None:
        """So many files are looked at in turns."""
        if BLOBS + 2 * files > self.most:
            self.most = BLOBS + 2 * files

    def load(self, blob: Blob, record: i64) -> None:
        """Put the window with this record into the blob."""
        stored = blob.stored
        if stored is None or record < 0 or record >= blob.count:
            raise IndexError("no such reference")
        first = record - record % WINDOW
        size = blob.count - first
        if size > WINDOW:
            size = WINDOW
        refs = stored(first * RECORD, size * RECORD)
        if len(refs) != size * RECORD:
            raise ValueError("stored references are fewer than they were")
        if blob.held == 0:
            self.blobs.append(blob)
            if len(self.blobs) > self.most:
                oldest = self.blobs.pop(0)
                oldest.refs = b""
                oldest.held = 0
        blob.refs = refs
        blob.first = first
        blob.held = size


class Blob:
    """References of one direction out of one range of one file.

    `refs` are those in memory: `held` of them, from number `first` on.
    """

    def __init__(self, given: Stored, direction: i64, file: i64, number: i64, store: Store) -> None:
        self.refs: bytes = given[0]
        self.stored: Callable[[int, int], bytes] | None = given[1]
        self.count: i64 = given[2]
        self.direction: i64 = direction
        self.file: i64 = file
        self.number: i64 = number  # its place in `Flow.blobs`
        self.store: Store = store
        self.first: i64 = 0
        self.held: i64 = len(self.refs) // RECORD
        self.next: i64 = 0

    def seek(self, record: i64) -> i64:
        """Where in `refs`, as they are after this call, a record stands."""
        place = record - self.first
        if place < 0 or place >= self.held:
            self.store.load(self, record)
            place = record - self.first
        return place * RECORD

    def ahead(self) -> i64:
        """Where in the file the packet of the next reference lies; NOWHERE if there is none."""
        if self.next >= self.count:
            return NOWHERE
        place = self.seek(self.next)
        return read_i64_le(self.refs, place) >> CAPTURED_BITS


class Pages:
    """A row of numbers, written once from front to back and then read.

    `expect` how many at most, `add` them, `finish`. Beyond `HELD_PAGES` pages they lie in a file,
    if `spool` gives one; who gives it closes it.
    """

    def __init__(self, spool: Spool | None) -> None:
        self.count: i64 = 0
        self.spool: Spool | None = spool
        self.file: BinaryIO | None = None
        self.pages: list[bytes] = []
        self.words: vec[i64] = vec[i64]()  # the page that is written
        self.page: bytes = b""  # the one that is read at the moment
        self.begin: i64 = 0
        self.end: i64 = 0

    def expect(self, entries: i64) -> None:
        self.words = vec[i64]([0] * (entries if entries < PAGE else PAGE))

    def add(self, entry: i64) -> None:
        self.words[self.count & (PAGE - 1)] = entry
        self.count += 1
        if self.count & (PAGE - 1) == 0:
            self.turn()

    def turn(self) -> None:
        """Put away the page that was written."""
        used = self.count - ((self.count - 1) & -PAGE)
        page = bytes(as_octets(self.words, used)[: used * ENTRY])
        if len(self.pages) < HELD_PAGES or self.spool is None:
            self.pages.append(page)
            return
        if self.file is None:
            self.file = self.spool()
        self.file.write(page)

    def finish(self) -> None:
        """All were added."""
        if self.count & (PAGE - 1) != 0:
            self.turn()
        self.words = vec[i64]()

    def __getitem__(self, place: i64) -> i64:
        if place < self.begin or place >= self.end:
            self.open(place)
        return read_i64_le(self.page, (place - self.begin) * ENTRY)

    def open(self, place: i64) -> None:
        """Turn to the page with this entry."""
        if place < 0 or place >= self.count:
            raise IndexError("no such entry")
        number = place >> PAGE_BITS
        begin = number << PAGE_BITS
        size = self.count - begin
        if size > PAGE:
            size = PAGE
        if number < len(self.pages):
            self.page = self.pages[number]
        else:
            file = self.file
            assert file is not None
            file.seek((begin - (HELD_PAGES << PAGE_BITS)) * ENTRY)
            self.page = file.read(size * ENTRY)
            if len(self.page) != size * ENTRY:
                raise ValueError("the stored order of a flow is shorter than it was")
        self.begin = begin
        self.end = begin + size
