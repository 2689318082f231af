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

from polymux.capture.packets.packet_refs import CAPTURED_BITS, REF_BYTES, as_byte_view

# Records of stored references that are read at a time, and blobs that may hold that many: two to
# spare, and one for each direction of each file that is looked at in turns.
WINDOW_RECORDS: Final[i64] = 2048
SPARE_WINDOWS: Final[i64] = 2
# Entries of a page of the order, as a power of two, and pages that are always held.
PAGE_BITS: Final[i64] = 16
PAGE_ENTRIES: Final[i64] = 65536
ENTRY_BYTES: Final[i64] = 8
MAX_PAGES_IN_MEMORY: Final[i64] = 8

NO_OFFSET: Final[i64] = 0x7FFFFFFFFFFFFFFF  # behind every file

# References, or how to read bytes of them by place and size; and how many records they are.
StoredRefs = tuple[bytes, Callable[[int, int], bytes] | None, int]
SpoolFactory = Callable[[], BinaryIO]


class RefWindowCache:
    """Which stored blobs have a window in memory: the latest of them."""

    def __init__(self) -> None:
        self.loaded: list[RefBlock] = []
        self.max_loaded: i64 = SPARE_WINDOWS + 2

    def expect_files(self, files: i64) -> None:
        """So many files are looked at in turns."""
        if SPARE_WINDOWS + 2 * files > self.max_loaded:
            self.max_loaded = SPARE_WINDOWS + 2 * files

    def load(self, block: RefBlock, record: i64) -> None:
        """Put the window with this record into the blob."""
        stored = block.stored
        if stored is None or record < 0 or record >= block.count:
            raise IndexError("no such reference")
        first = record - record % WINDOW_RECORDS
        size = block.count - first
        if size > WINDOW_RECORDS:
            size = WINDOW_RECORDS
        refs = stored(first * REF_BYTES, size * REF_BYTES)
        if len(refs) != size * REF_BYTES:
            raise ValueError("stored references are fewer than they were")
        if block.loaded_count == 0:
            self.loaded.append(block)
            if len(self.loaded) > self.max_loaded:
                oldest = self.loaded.pop(0)
                oldest.refs = b""
                oldest.loaded_count = 0
        block.refs = refs
        block.first_record = first
        block.loaded_count = size


class RefBlock:
    """References of one direction out of one range of one file.

    `refs` are those in memory: `held` of them, from number `first` on.
    """

    def __init__(
        self, source: StoredRefs, direction: i64, file: i64, index: i64, cache: RefWindowCache
    ) -> None:
        self.refs: bytes = source[0]
        self.stored: Callable[[int, int], bytes] | None = source[1]
        self.count: i64 = source[2]
        self.direction: i64 = direction
        self.file: i64 = file
        self.index: i64 = index  # its place in `Flow.blobs`
        self.cache: RefWindowCache = cache
        self.first_record: i64 = 0
        self.loaded_count: i64 = len(self.refs) // REF_BYTES
        self.next_record: i64 = 0

    def seek(self, record: i64) -> i64:
        """Where in `refs`, as they are after this call, a record stands."""
        place = record - self.first_record
        if place < 0 or place >= self.loaded_count:
            self.cache.load(self, record)
            place = record - self.first_record
        return place * REF_BYTES

    def next_offset(self) -> i64:
        """Where in the file the packet of the next reference lies; NOWHERE if there is none."""
        if self.next_record >= self.count:
            return NO_OFFSET
        place = self.seek(self.next_record)
        return read_i64_le(self.refs, place) >> CAPTURED_BITS


class PagedInts:
    """A row of numbers, written once from front to back and then read.

    `expect` how many at most, `add` them, `finish`. Beyond `HELD_PAGES` pages they lie in a file,
    if `spool` gives one; who gives it closes it.
    """

    def __init__(self, open_spool: SpoolFactory | None) -> None:
        self.count: i64 = 0
        self.open_spool: SpoolFactory | None = open_spool
        self.spool_file: BinaryIO | None = None
        self.pages: list[bytes] = []
        self.write_words: vec[i64] = vec[i64]()  # the page that is written
        self.read_page: bytes = b""  # the one that is read at the moment
        self.read_begin: i64 = 0
        self.read_end: i64 = 0

    def allocate(self, entries: i64) -> None:
        self.write_words = vec[i64]([0] * (entries if entries < PAGE_ENTRIES else PAGE_ENTRIES))

    def add(self, entry: i64) -> None:
        self.write_words[self.count & (PAGE_ENTRIES - 1)] = entry
        self.count += 1
        if self.count & (PAGE_ENTRIES - 1) == 0:
            self.flush_page()

    def flush_page(self) -> None:
        """Put away the page that was written."""
        used = self.count - ((self.count - 1) & -PAGE_ENTRIES)
        page = bytes(as_byte_view(self.write_words, used)[: used * ENTRY_BYTES])
        if len(self.pages) < MAX_PAGES_IN_MEMORY or self.open_spool is None:
            self.pages.append(page)
            return
        if self.spool_file is None:
            self.spool_file = self.open_spool()
        self.spool_file.write(page)

    def finish(self) -> None:
        """All were added."""
        if self.count & (PAGE_ENTRIES - 1) != 0:
            self.flush_page()
        self.write_words = vec[i64]()

    def __getitem__(self, index: i64) -> i64:
        if index < self.read_begin or index >= self.read_end:
            self.load_page(index)
        return read_i64_le(self.read_page, (index - self.read_begin) * ENTRY_BYTES)

    def load_page(self, index: i64) -> None:
        """Turn to the page with this entry."""
        if index < 0 or index >= self.count:
            raise IndexError("no such entry")
        number = index >> PAGE_BITS
        begin = number << PAGE_BITS
        size = self.count - begin
        if size > PAGE_ENTRIES:
            size = PAGE_ENTRIES
        if number < len(self.pages):
            self.read_page = self.pages[number]
        else:
            file = self.spool_file
            assert file is not None
            file.seek((begin - (MAX_PAGES_IN_MEMORY << PAGE_BITS)) * ENTRY_BYTES)
            self.read_page = file.read(size * ENTRY_BYTES)
            if len(self.read_page) != size * ENTRY_BYTES:
                raise ValueError("the stored order of a flow is shorter than it was")
        self.read_begin = begin
        self.read_end = begin + size
