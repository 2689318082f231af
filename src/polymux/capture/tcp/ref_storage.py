# mypyc: compiled
"""Storage for the references of a flow and for their order, in memory or outside of it.

A huge flow has more references than fit into memory. Both are read from front to back, a few
times; what is stored outside is read a window at a time, so that a flow of any length takes the
same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Final

from librt.strings import read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.packets.packet_refs import CAPTURED_BITS, REF_BYTES, as_byte_view

# Records of a window of stored references, and windows in memory: one for each direction of each
# file that is being merged, and two to spare.
WINDOW_RECORDS: Final[i64] = 2048
SPARE_WINDOWS: Final[i64] = 2
# Entries of a page of `PagedInts`, and pages kept in memory.
PAGE_BITS: Final[i64] = 16
PAGE_ENTRIES: Final[i64] = 65536
ENTRY_BYTES: Final[i64] = 8
MAX_PAGES_IN_MEMORY: Final[i64] = 8

NO_OFFSET: Final[i64] = 0x7FFFFFFFFFFFFFFF  # beyond every file

# Packed references; or if they are stored outside, b"" and a function that reads bytes of them by
# offset and size; and the number of records.
StoredRefs = tuple[bytes, Callable[[int, int], bytes] | None, int]
SpoolFactory = Callable[[], BinaryIO]


class RefWindowCache:
    """Limits how many stored blocks have a window in memory: those loaded last."""

    def __init__(self) -> None:
        self.loaded: list[RefBlock] = []
        self.max_loaded: i64 = SPARE_WINDOWS + 2

    def expect_files(self, files: i64) -> None:
        """Allow for windows of both directions of `files` files that are merged."""
        if SPARE_WINDOWS + 2 * files > self.max_loaded:
            self.max_loaded = SPARE_WINDOWS + 2 * files

    def load(self, block: RefBlock, record: i64) -> None:
        """Load the window with `record` into the block."""
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
    """References of one direction in one range of one file.

    `refs` are those in memory: `loaded_count` records from number `first_record` on.
    """

    def __init__(
        self, source: StoredRefs, direction: i64, file: i64, index: i64, cache: RefWindowCache
    ) -> None:
        self.refs: bytes = source[0]
        self.stored: Callable[[int, int], bytes] | None = source[1]
        self.count: i64 = source[2]
        self.direction: i64 = direction
        self.file: i64 = file
        self.index: i64 = index  # in `FlowOrder.ref_blocks`
        self.cache: RefWindowCache = cache
        self.first_record: i64 = 0
        self.loaded_count: i64 = len(self.refs) // REF_BYTES
        self.next_record: i64 = 0

    def seek(self, record: i64) -> i64:
        """Position of a record in `refs`. May load another window: read `refs` after this call."""
        row = record - self.first_record
        if row < 0 or row >= self.loaded_count:
            self.cache.load(self, record)
            row = record - self.first_record
        return row * REF_BYTES

    def next_offset(self) -> i64:
        """File offset of the next packet; NO_OFFSET if there is none."""
        if self.next_record >= self.count:
            return NO_OFFSET
        pos = self.seek(self.next_record)
        return read_i64_le(self.refs, pos) >> CAPTURED_BITS


class PagedInts:
    """A sequence of integers that is written once, front to back, and then read.

    Call `allocate` with the maximum number, `add` for each, then `finish`. Pages beyond
    `MAX_PAGES_IN_MEMORY` go to the file that `open_spool` returns, if given; its owner closes it.
    """

    def __init__(self, open_spool: SpoolFactory | None) -> None:
        self.count: i64 = 0
        self.open_spool: SpoolFactory | None = open_spool
        self.spool_file: BinaryIO | None = None
        self.pages: list[bytes] = []
        self.write_words: vec[i64] = vec[i64]()  # the page being written
        self.read_page: bytes = b""  # the page read last, with entries `read_begin` to `read_end`
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
        """Store the page being written."""
        used = self.count - ((self.count - 1) & -PAGE_ENTRIES)
        page = bytes(as_byte_view(self.write_words, used)[: used * ENTRY_BYTES])
        if len(self.pages) < MAX_PAGES_IN_MEMORY or self.open_spool is None:
            self.pages.append(page)
            return
        if self.spool_file is None:
            self.spool_file = self.open_spool()
        self.spool_file.write(page)

    def finish(self) -> None:
        """End writing; only reads may follow."""
        if self.count & (PAGE_ENTRIES - 1) != 0:
            self.flush_page()
        self.write_words = vec[i64]()

    def __getitem__(self, index: i64) -> i64:
        if index < self.read_begin or index >= self.read_end:
            self.load_page(index)
        return read_i64_le(self.read_page, (index - self.read_begin) * ENTRY_BYTES)

    def load_page(self, index: i64) -> None:
        """Load the page with the entry `index`."""
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
            assert file is not None  # pages beyond those in memory were written to it
            file.seek((begin - (MAX_PAGES_IN_MEMORY << PAGE_BITS)) * ENTRY_BYTES)
            self.read_page = file.read(size * ENTRY_BYTES)
            if len(self.read_page) != size * ENTRY_BYTES:
                raise ValueError("the stored order of a flow is shorter than it was")
        self.read_begin = begin
        self.read_end = begin + size
