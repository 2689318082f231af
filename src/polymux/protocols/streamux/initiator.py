# mypyc: compiled
"""What a Streamux initiator says, and the ids that it gives its sender to use."""

from typing import Final

from mypy_extensions import i64

from polymux.protocols.streamux.rules import BAD_BIT_COUNTS, BAD_VERSION

INITIATOR_MISSING: Final[i64] = 0
INITIATOR_VALID: Final[i64] = 1
INITIATOR_INVALID: Final[i64] = 2

FREED_IDS_BEFORE_REUSE: Final = (
    4096  # ids that wait to be used again before fresh ones stop being drawn
)


class HeaderLayout:
    """What one side's initiator says; its requests and the replies to them are laid out so."""

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
        self.header_size: i64 = 0  # bytes of a header
        self.max_chunk_bytes: i64 = 0  # bytes of a chunk at most
        self.max_id: i64 = 0
        self.fields_mask: i64 = 0  # the bits of a header that are length and id

    def set_from_initiator(self, initiator: bytes) -> None:
        """Take in an initiator, good or bad."""
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
        """The initiator again: nothing if there was none, a bad one if it was bad."""
        if self.status == INITIATOR_MISSING:
            return b""
        version = 1 if self.status == INITIATOR_VALID else 0
        return bytes([version, self.length_bits, self.id_bits, self.timeout_tenths])

    def load(self, saved: bytes) -> None:
        if len(saved) > 0:
            self.set_from_initiator(saved)


def max_value_of_bits(count: i64) -> i64:
    """The largest number of `count` bits."""
    value: i64 = 0
    for _ in range(count):
        value = value * 2 + 1
    return value


def announced_header_size(initiator: bytes) -> i64:
    """Bytes of the headers that a good initiator announces."""
    return 2 if initiator[1] + initiator[2] == 14 else 4


def initiator_violations(initiator: bytes) -> i64:
    """The rules that four bytes break as an initiator. Sums are not taken modulo 256."""
    if len(initiator) != 4:
        return BAD_BIT_COUNTS
    if initiator[0] != 1:  # what another version's bytes mean is not known
        return BAD_VERSION
    total = initiator[1] + initiator[2]
    if initiator[1] == 0 or initiator[2] == 0 or (total != 14 and total != 30):
        return BAD_BIT_COUNTS
    return 0


class IdAllocator:
    """The ids one side may use for requests: fresh ones, then those freed longest ago.

    An id that waits here may have been taken by other means; whoever draws one looks. Nothing is
    kept for a side that never draws: an observer watches ids without end.
    """

    __slots__ = ("active", "freed_start", "freed", "next_unused", "reserved", "freed_set")

    def __init__(self) -> None:
        self.active: bool = False  # has this side drawn an id?
        self.next_unused: i64 = 0  # ids from here on were never drawn
        self.freed: list[int] = []  # from `first` on, the longest free first
        self.freed_start: i64 = 0
        self.freed_set: set[int] = set()  # those in `freed`, each once
        self.reserved: set[int] = set()  # drawn, and their stream not yet opened

    def peek(self, max_id: i64) -> i64:
        """The id to try next, or -1: none is left."""
        if self.takes_unused(max_id):
            return self.next_unused
        if self.freed_start < len(self.freed):
            return self.freed[self.freed_start]
        return -1

    def pop(self, max_id: i64) -> None:
        """Take the front id away."""
        if self.takes_unused(max_id):
            self.next_unused += 1
            return
        self.freed_set.discard(self.freed[self.freed_start])
        self.freed_start += 1
        if self.freed_start > FREED_IDS_BEFORE_REUSE:
            self.freed = self.freed[self.freed_start :]
            self.freed_start = 0

    def takes_unused(self, max_id: i64) -> bool:
        return (
            self.next_unused <= max_id
            and len(self.freed) - self.freed_start < FREED_IDS_BEFORE_REUSE
        )

    def release(self, stream_id: i64) -> None:
        if self.active and stream_id < self.next_unused and stream_id not in self.freed_set:
            self.freed.append(stream_id)
            self.freed_set.add(stream_id)

    def save(self) -> list[object]:
        waiting = self.freed[self.freed_start :]
        return [self.active, int(self.next_unused), waiting, sorted(self.reserved)]

    def load(self, saved: list[object]) -> None:
        active, fresh, freed, reserved = saved
        assert isinstance(fresh, int)
        assert isinstance(freed, list)
        assert isinstance(reserved, list)
        self.active = bool(active)
        self.next_unused = fresh
        self.freed = list(freed)
        self.freed_start = 0
        self.freed_set = set(freed)
        self.reserved = set(reserved)
