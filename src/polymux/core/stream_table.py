# mypyc: compiled
"""The hash table of a connection's streams.

`find` runs for every frame, so this is an open-addressing table over native objects, three times as
fast as a dict. (`polymux.analysis.tracking.stream_tracker` has another of the same kind: mypyc has
no generic native containers.)

Closed streams stay in the table as tombstones, so that late frames can be told from frames for
streams that never existed. Beyond `max_closed` of them the oldest are evicted. When a key is used
again the new stream replaces the old one at once.

A peer chooses the stream ids, so the hash is seeded per process: without knowing the multiplier it
cannot choose ids that collide.
"""

from os import urandom
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from polymux.core.side import NEITHER_SIDE
from polymux.core.streams import StreamState

# Keys are multiplied by this: odd and random, so that a peer cannot choose keys that collide.
HASH_MULTIPLIER: Final = int.from_bytes(urandom(8), "little", signed=True) | 1
LOW_32_BITS: Final[i64] = 0xFFFFFFFF
INITIAL_SHIFT: Final[i64] = 58  # leaves the top six bits of a product: 64 slots

COMPACT_THRESHOLD: Final[i64] = 512  # replaced tombstones at which they are dropped from `closed`


class StreamTable:
    """Maps a stream key to the newest stream with this key, open or closed.

    Args:
        max_closed: closed streams that are remembered.
    """

    def __init__(self, max_closed: i64) -> None:
        self.empty_slot: StreamState = StreamState(-1, -1, NEITHER_SIDE, 0)
        self.slots: vec[StreamState] = vec[StreamState]([self.empty_slot] * 64)
        self.mask: i64 = 63
        self.shift: i64 = INITIAL_SHIFT
        self.multiplier: i64 = HASH_MULTIPLIER
        self.used_slots: i64 = 0
        self.max_closed: i64 = max_closed
        self.closed: list[StreamState] = []  # tombstones, oldest first, from `first_closed` on
        self.first_closed: i64 = 0
        self.replaced: i64 = 0  # at most so many of them are no longer in the table
        self.has_evicted: bool = False  # a frame for an unknown stream may be a late one
        self.keep_removed: bool = False  # collect streams that leave the table in `removed`
        self.removed: list[StreamState] = []
        self.just_evicted: list[StreamState] = []  # by the current frame

    def find(self, key: i64) -> StreamState | None:
        """The newest stream with this key."""
        slots = self.slots
        mask = self.mask
        none = self.empty_slot
        product = key * self.multiplier  # `_slot` inlined, for speed
        i = ((product ^ (product >> 32 & LOW_32_BITS)) * self.multiplier >> self.shift) & mask
        while True:
            stream = slots[i]
            if stream is none:
                return None
            if stream.key == key:
                return stream
            i = (i + 1) & mask

    def _slot(self, key: i64) -> i64:
        """The slot where the search for a key begins: the top bits of a product modulo 2**64.

        The shift and the mask give the same result for native and for arbitrary-size ints. The key
        is multiplied twice: after one multiplication consecutive ids are clustered for some
        multipliers.
        """
        product = key * self.multiplier
        return (
            (product ^ (product >> 32 & LOW_32_BITS)) * self.multiplier >> self.shift
        ) & self.mask

    def insert(self, new_stream: StreamState) -> None:
        """Add a stream; one with the same key is replaced."""
        key = new_stream.key
        i = self._slot(key)
        while True:
            stream = self.slots[i]
            if stream is self.empty_slot:
                break
            if stream.key == key:
                if self.keep_removed:
                    self.removed.append(stream)
                self.slots[i] = new_stream
                self.replaced += 1
                if (
                    self.replaced > COMPACT_THRESHOLD
                    and self.replaced * 2 > len(self.closed) - self.first_closed
                ):
                    self.compact()
                return
            i = (i + 1) & self.mask
        self.slots[i] = new_stream
        self.used_slots += 1
        if self.used_slots * 2 > self.mask:
            self.grow()

    def grow(self) -> None:
        """Double the number of slots."""
        old = self.slots
        size: i64 = (self.mask + 1) * 2
        self.slots = vec[StreamState]([self.empty_slot] * size)
        self.mask = size - 1
        self.shift -= 1
        for stream in old:
            if stream is not self.empty_slot:
                i = self._slot(stream.key)
                while self.slots[i] is not self.empty_slot:
                    i = (i + 1) & self.mask
                self.slots[i] = stream

    def mark_closed(self, stream: StreamState) -> None:
        """Remember a stream that is over as a tombstone; evict the oldest beyond `max_closed`."""
        self.closed.append(stream)
        while len(self.closed) - self.first_closed > self.max_closed:
            oldest = self.closed[self.first_closed]
            self.first_closed += 1
            if oldest.over and self.find(oldest.key) is oldest:  # not replaced, nor open again
                self.remove(oldest.key)
                self.has_evicted = True
                if self.keep_removed:
                    self.removed.append(oldest)
                    self.just_evicted.append(oldest)
        if self.first_closed > 4096 and self.first_closed * 2 > len(self.closed):
            self.closed = self.closed[self.first_closed :]
            self.first_closed = 0

    def compact(self) -> None:
        """Drop tombstones whose keys were used again: no late frame can be theirs."""
        kept: list[StreamState] = []
        for stream in self.closed[self.first_closed :]:
            if self.find(stream.key) is stream:
                kept.append(stream)
        self.closed = kept
        self.first_closed = 0
        self.replaced = 0

    def remove(self, key: i64) -> None:
        """Remove a key; entries after it move up, so that no probe sequence is interrupted."""
        mask = self.mask
        i = self._slot(key)
        while self.slots[i].key != key or self.slots[i] is self.empty_slot:
            i = (i + 1) & mask
        self.used_slots -= 1
        hole = i
        while True:
            i = (i + 1) & mask
            stream = self.slots[i]
            if stream is self.empty_slot:
                break
            home = self._slot(stream.key)
            if ((i - home) & mask) >= ((i - hole) & mask):
                self.slots[hole] = stream
                hole = i
        self.slots[hole] = self.empty_slot

    def clear(self) -> None:
        """Remove every stream, open or closed."""
        self.slots = vec[StreamState]([self.empty_slot] * 64)
        self.mask = 63
        self.shift = INITIAL_SHIFT
        self.used_slots = 0
        self.closed = []
        self.first_closed = 0
        self.replaced = 0

    def save_closed(self) -> list[int]:
        """The serials of the tombstones (-1: its key was used again), then `replaced`."""
        serials = [
            int(stream.serial) if self.find(stream.key) is stream else -1
            for stream in self.closed[self.first_closed :]
        ]
        return [*serials, int(self.replaced)]

    def load_closed(self, saved: list[int]) -> None:
        """Restore what `save_closed` returned, after the streams were inserted."""
        by_serial = {stream.serial: stream for stream in self.all()}
        self.closed = [by_serial.get(serial, self.empty_slot) for serial in saved[:-1]]
        self.first_closed = 0
        self.replaced = saved[-1]

    def all(self) -> list[StreamState]:
        """Every stream in the table, in the order of opening."""
        found = [stream for stream in self.slots if stream is not self.empty_slot]
        found.sort(key=serial_of)
        return found

    def slot_count(self) -> int:
        """How many slots there are: twice to four times as many as streams, or 64."""
        return len(self.slots)

    def in_slots(self, first: int, count: int) -> list[StreamState]:
        """The streams in `count` slots from `first` on, counted around, in the order of opening."""
        at: i64 = first & int(self.mask)
        left: i64 = min(count, len(self.slots))
        found: list[StreamState] = []
        while left > 0:
            stream = self.slots[at]
            if stream is not self.empty_slot:
                found.append(stream)
            at = (at + 1) & self.mask
            left -= 1
        found.sort(key=serial_of)
        return found


def serial_of(stream: StreamState) -> int:
    """The sort key of `StreamTable.all`."""
    return stream.serial
