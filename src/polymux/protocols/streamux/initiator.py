# mypyc: compiled
"""What a Streamux initiator says, and the ids that it gives its sender to use."""

from typing import Final

from mypy_extensions import i64

from polymux.protocols.streamux.rules import BAD_BIT_COUNTS, BAD_VERSION

UNKNOWN: Final[i64] = 0
GOOD: Final[i64] = 1
BROKEN: Final[i64] = 2

IDLE: Final = 4096  # ids that wait to be used again before fresh ones stop being drawn


class Layout:
    """What one side's initiator says; its requests and the replies to them are laid out so."""

    __slots__ = (
        "fields", "id_bits", "last_id", "length_bits", "longest", "status", "timeout", "width",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status: i64 = UNKNOWN
        self.length_bits: i64 = 0
        self.id_bits: i64 = 0
        self.timeout: i64 = 0  # tenths of a second; 0: unspecified
        self.width: i64 = 0  # octets of a header
        self.longest: i64 = 0  # octets of a chunk at most
        self.last_id: i64 = 0
        self.fields: i64 = 0  # the bits of a header that are length and id

    def announce(self, said: bytes) -> None:
        """Take in an initiator, good or bad."""
        if initiator_flaws(said) != 0:
            self.status = BROKEN
            return
        self.status = GOOD
        self.length_bits = said[1]
        self.id_bits = said[2]
        self.timeout = said[3]
        self.width = width_of(said)
        self.longest = ones(self.length_bits)
        self.last_id = ones(self.id_bits)
        self.fields = ones(self.length_bits + self.id_bits)

    def save(self) -> bytes:
        """The initiator again: nothing if there was none, a bad one if it was bad."""
        if self.status == UNKNOWN:
            return b""
        version = 1 if self.status == GOOD else 0
        return bytes([version, self.length_bits, self.id_bits, self.timeout])

    def load(self, saved: bytes) -> None:
        if len(saved) > 0:
            self.announce(saved)


def ones(count: i64) -> i64:
    """The largest number of `count` bits."""
    value: i64 = 0
    for _ in range(count):
        value = value * 2 + 1
    return value


def width_of(said: bytes) -> i64:
    """Octets of the headers that a good initiator announces."""
    return 2 if said[1] + said[2] == 14 else 4


def initiator_flaws(said: bytes) -> i64:
    """The rules that four octets break as an initiator. Sums are not taken modulo 256."""
    if len(said) != 4:
        return BAD_BIT_COUNTS
    if said[0] != 1:  # what another version's octets mean is not known
        return BAD_VERSION
    total = said[1] + said[2]
    if said[1] == 0 or said[2] == 0 or (total != 14 and total != 30):
        return BAD_BIT_COUNTS
    return 0


class Ids:
    """The ids one side may use for requests: fresh ones, then those freed longest ago.

    An id that waits here may have been taken by other means; whoever draws one looks. Nothing is
    kept for a side that never draws: an observer watches ids without end.
    """

    __slots__ = ("active", "first", "freed", "fresh", "reserved", "waiting")

    def __init__(self) -> None:
        self.active: bool = False  # has this side drawn an id?
        self.fresh: i64 = 0  # ids from here on were never drawn
        self.freed: list[int] = []  # from `first` on, the longest free first
        self.first: i64 = 0
        self.waiting: set[int] = set()  # those in `freed`, each once
        self.reserved: set[int] = set()  # drawn, and their stream not yet opened

    def front(self, last_id: i64) -> i64:
        """The id to try next, or -1: none is left."""
        if self.is_fresh(last_id):
            return self.fresh
        if self.first < len(self.freed):
            return self.freed[self.first]
        return -1

    def step(self, last_id: i64) -> None:
        """Take the front id away."""
        if self.is_fresh(last_id):
            self.fresh += 1
            return
        self.waiting.discard(self.freed[self.first])
        self.first += 1
        if self.first > IDLE:
            self.freed = self.freed[self.first :]
            self.first = 0

    def is_fresh(self, last_id: i64) -> bool:
        return self.fresh <= last_id and len(self.freed) - self.first < IDLE

    def free(self, number: i64) -> None:
        if self.active and number < self.fresh and number not in self.waiting:
            self.freed.append(number)
            self.waiting.add(number)

    def save(self) -> list[object]:
        waiting = self.freed[self.first :]
        return [self.active, int(self.fresh), waiting, sorted(self.reserved)]

    def load(self, saved: list[object]) -> None:
        active, fresh, freed, reserved = saved
        assert isinstance(fresh, int)
        assert isinstance(freed, list)
        assert isinstance(reserved, list)
        self.active = bool(active)
        self.fresh = fresh
        self.freed = list(freed)
        self.first = 0
        self.waiting = set(freed)
        self.reserved = set(reserved)
