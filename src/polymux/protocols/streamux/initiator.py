# mypyc: compiled
"""Streamux initiators: the header layout one announces, and the ids its sender may use."""

from typing import Final

from mypy_extensions import i64

from polymux.protocols.streamux.rules import BAD_BIT_COUNTS, BAD_VERSION

INITIATOR_MISSING: Final[i64] = 0
INITIATOR_VALID: Final[i64] = 1
INITIATOR_INVALID: Final[i64] = 2

FREED_IDS_BEFORE_REUSE: Final = 4096  # with that many released ids, they are used before new ones


class HeaderLayout:
    """The header layout of one side's requests and of the replies to them."""

    __slots__ = (
        "fields_mask",
        "id_bits",
        "max_id",
        "length_bits",
        "max_chunk_bytes",
        "status",
        "timeout_tenths",
        "header_size",
    )

    def __init__(self) -> None:
        self.status: i64 = INITIATOR_MISSING
        self.length_bits: i64 = 0
        self.id_bits: i64 = 0
        self.timeout_tenths: i64 = 0  # tenths of a second; 0: unspecified
        self.header_size: i64 = 0  # bytes
        self.max_chunk_bytes: i64 = 0  # longest chunk, in bytes
        self.max_id: i64 = 0
        self.fields_mask: i64 = 0  # the bits of a header that hold length and id

    def set_from_initiator(self, initiator: bytes) -> None:
        """Set the layout from an initiator, valid or not."""
        if initiator_violations(initiator) != 0:
            self.status = INITIATOR_INVALID
            return
        self.status = INITIATOR_VALID
        self.length_bits = initiator[1]
        self.id_bits = initiator[2]
        self.timeout_tenths = initiator[3]
        self.header_size = announced_header_size(initiator)
        self.max_chunk_bytes = max_value_of_bits(self.length_bits)
        self.max_id = max_value_of_bits(self.id_bits)
        self.fields_mask = max_value_of_bits(self.length_bits + self.id_bits)

    def save(self) -> bytes:
        """Return an equivalent initiator: empty if there was none, an invalid one if it was."""
        if self.status == INITIATOR_MISSING:
            return b""
        version = 1 if self.status == INITIATOR_VALID else 0
        return bytes([version, self.length_bits, self.id_bits, self.timeout_tenths])

    def load(self, saved: bytes) -> None:
        if len(saved) > 0:
            self.set_from_initiator(saved)


def max_value_of_bits(count: i64) -> i64:
    """Return the largest number of `count` bits."""
    value: i64 = 0
    for _ in range(count):
        value = value * 2 + 1
    return value


def announced_header_size(initiator: bytes) -> i64:
    """Return the size in bytes of the headers that a valid initiator announces."""
    return 2 if initiator[1] + initiator[2] == 14 else 4


def initiator_violations(initiator: bytes) -> i64:
    """Return the rules that these bytes break as an initiator. Sums are not modulo 256."""
    if len(initiator) != 4:
        return BAD_BIT_COUNTS
    if initiator[0] != 1:  # the other bytes have no known meaning
        return BAD_VERSION
    total = initiator[1] + initiator[2]
    if initiator[1] == 0 or initiator[2] == 0 or (total != 14 and total != 30):
        return BAD_BIT_COUNTS
    return 0


class IdAllocator:
    """The ids that one side may use for requests: new ones, then those released longest ago.

    An id offered here may be in use after all, so the caller checks it. Nothing is kept for a side
    that never allocates (`active` is False): an observer sees an unbounded number of ids.
    """

    __slots__ = ("active", "freed_start", "freed", "next_unused", "reserved", "freed_set")

    def __init__(self) -> None:
        self.active: bool = False  # set at the first allocation
        self.next_unused: i64 = 0  # this id and all above were never allocated
        self.freed: list[int] = []  # from `freed_start` on, released longest ago first
        self.freed_start: i64 = 0
        self.freed_set: set[int] = set()  # the ids in `freed`
        self.reserved: set[int] = set()  # allocated, stream not opened yet

    def peek(self, max_id: i64) -> i64:
        """Return the id to try next, or -1 if none is left."""
        if self.takes_unused(max_id):
            return self.next_unused
        if self.freed_start < len(self.freed):
            return self.freed[self.freed_start]
        return -1

    def pop(self, max_id: i64) -> None:
        """Remove the id that `peek` returned."""
        if self.takes_unused(max_id):
            self.next_unused += 1
            return
        self.freed_set.discard(self.freed[self.freed_start])
        self.freed_start += 1
        if self.freed_start > FREED_IDS_BEFORE_REUSE:
            self.freed = self.freed[self.freed_start :]
            self.freed_start = 0

    def takes_unused(self, max_id: i64) -> bool:
        """Return whether the next id is one that was never allocated."""
        return (
            self.next_unused <= max_id
            and len(self.freed) - self.freed_start < FREED_IDS_BEFORE_REUSE
        )

    def release(self, stream_id: i64) -> None:
        """Make an allocated id available again."""
        if self.active and stream_id < self.next_unused and stream_id not in self.freed_set:
            self.freed.append(stream_id)
            self.freed_set.add(stream_id)

    def save(self) -> list[object]:
        waiting = self.freed[self.freed_start :]
        return [self.active, int(self.next_unused), waiting, sorted(self.reserved)]

    def load(self, saved: list[object]) -> None:
        active, next_unused, freed, reserved = saved
        # Saved state is untyped; `save` writes these types.
        assert isinstance(next_unused, int)
        assert isinstance(freed, list)
        assert isinstance(reserved, list)
        self.active = bool(active)
        self.next_unused = next_unused
        self.freed = list(freed)
        self.freed_start = 0
        self.freed_set = set(freed)
        self.reserved = set(reserved)
