# mypyc: compiled
"""Streams: two one-way halves, each with its ledger of leave; and the table that finds them."""

from os import urandom
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from polymux.core.side import ACCEPTOR, DIALER, NOBODY, Sight

OPEN: Final[i64] = 0
ENDED: Final[i64] = 1
ABORTED: Final[i64] = 2
NEVER: Final[i64] = 0x2000000000000000
UNSEEN: Final[i64] = -1  # an instant that has not come
ABANDONED: Final = "abandoned"  # the ending of a stream whose id was used again while it was live

WORD: Final = 2**64  # ids are 64 bits; keys keep the bit pattern in an i64

# Thousands of closed streams are remembered: nothing in them leads back to them, so that Python's
# collector need not visit them again and again (`acyclic`).


@mypyc_attr(acyclic=True)
class Half:
    """What one side may send on a stream, and did.

    `granted` and `spent` count leave in the protocol's unit, as plain ints: exact at any size. The
    rest is measured by whoever watches: content octets and units, frames, instants, time without
    leave.
    """

    __slots__ = (
        "blocked", "blocked_since", "final", "first_at", "frames", "granted", "last_at", "limit",
        "octets",
        "peak", "spent", "state", "stopped", "units", "vague", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        # What every content frame touches stands first, in as few cache lines as can be.
        self.state: i64 = OPEN
        self.final: i64 = NEVER  # ordinal of the frame after which it may send nothing at all
        self.spent: int = 0
        self.granted: int = -1  # all leave ever given; -1: this half needs none
        self.window: int = -1  # largest window announced to this half; -1: none, no limit known
        self.octets: i64 = 0
        self.units: i64 = 0
        self.frames: i64 = 0
        self.last_at: i64 = UNSEEN
        self.first_at: i64 = UNSEEN
        self.vague: bool = False  # its stop may belong to an earlier use of the id
        self.peak: int = 0
        self.stopped: i64 = NEVER  # ordinal, among its side's frames, of its end or abort
        self.limit: int = -1  # what this half has promised not to exceed (Minmux); -1: nothing
        self.blocked: i64 = 0
        self.blocked_since: i64 = UNSEEN

    def stop(self, state: i64, ordinal: i64, vague: bool) -> None:
        self.state = state
        self.stopped = ordinal
        self.vague = vague

    def block(self, at: i64) -> None:
        """Leave has run out."""
        if self.blocked_since == UNSEEN:
            self.blocked_since = at

    def release(self, at: i64) -> None:
        """Leave has come, or is no longer wanted."""
        if self.blocked_since != UNSEEN:
            if at > self.blocked_since:
                self.blocked += at - self.blocked_since
            self.blocked_since = UNSEEN

    def save(self) -> list[int]:
        return [
            self.granted, self.spent, self.window, self.limit, self.state, self.stopped,
            int(self.vague), self.octets, self.units, self.frames, self.peak, self.first_at,
            self.last_at, self.blocked, self.blocked_since, self.final,
        ]  # fmt: skip

    def load(self, saved: list[int]) -> None:
        self.granted = saved[0]
        self.spent = saved[1]
        self.window = saved[2]
        self.limit = saved[3]
        self.state = saved[4]
        self.stopped = saved[5]
        self.vague = saved[6] != 0
        self.octets = saved[7]
        self.units = saved[8]
        self.frames = saved[9]
        self.peak = saved[10]
        self.first_at = saved[11]
        self.last_at = saved[12]
        self.blocked = saved[13]
        self.blocked_since = saved[14]
        self.final = saved[15]


@mypyc_attr(acyclic=True)
class Lane:
    """The live side of a stream: what came and was not read, what is to go and was not sent.

    Only an endpoint's streams have one.
    """

    __slots__ = (
        "dropped", "ending", "given_up", "grows", "held", "inbox", "next", "noted", "outgoing",
        "queued", "sent", "turn", "unread", "weight", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.inbox: list[bytes | memoryview] = []
        self.unread: i64 = 0  # octets in the inbox
        self.held: i64 = 0  # leave to give back once the inbox has been read
        self.outgoing: list[bytes] = []
        self.next: i64 = 0  # the first piece of `outgoing` that has not left
        self.sent: i64 = 0  # octets of that piece that have
        self.queued: i64 = 0  # octets in `outgoing`
        self.ending: bool = False  # end this half once `outgoing` is empty
        self.turn: bool = False  # waits for its turn in the outbox
        self.noted: bool = False  # stands in the list of streams with news
        self.given_up: bool = False  # the peer is being told, or knows
        self.dropped: bool = False  # nobody will read: drop what comes
        self.window: int = 0  # units of leave to keep the peer supplied with; 0: the half's window
        self.grows: bool = False  # may that become more while messages are small?
        self.weight: i64 = 0  # octets of the messages read since leave was given back

    def clear(self) -> None:
        """Forget what was to go."""
        self.outgoing = []
        self.next = 0
        self.sent = 0
        self.queued = 0


@mypyc_attr(acyclic=True)
class Stream:
    """One use of a stream id."""

    __slots__ = (
        "accepted", "accepted_at", "acceptor", "answerable", "closed_at", "dialer", "ending",
        "error", "extra", "incarnation", "key", "lane", "name", "number", "opened", "opened_at",
        "opener", "over", "reset_by", "serial",
    )  # fmt: skip

    def __init__(self, key: i64, number: i64, opener: i64, opened: i64) -> None:
        self.key: i64 = key
        self.dialer: Half = Half()
        self.acceptor: Half = Half()
        self.opener: i64 = opener
        self.incarnation: i64 = 1
        self.number: i64 = number  # 64 bits; negative stands for 2**63 and more
        self.answerable: i64 = opened  # the oldest opening a frame on this id could answer
        self.accepted: bool = False
        self.over: bool = False
        self.lane: Lane | None = None
        self.opened: i64 = opened  # ordinal of the opening frame among the opener's frames
        self.serial: i64 = -1
        self.extra: i64 = 0  # a protocol's own mark
        self.name: bytes | None = None
        self.ending: str = ""
        self.reset_by: i64 = -1
        self.error: bytes | None = None
        self.opened_at: i64 = UNSEEN
        self.accepted_at: i64 = UNSEEN
        self.closed_at: i64 = UNSEEN

    def half(self, side: i64) -> Half:
        return self.dialer if side == DIALER else self.acceptor

    def label(self) -> str:
        """The text key of the tables: opener's letter, number, and the use from the second on."""
        letter = "d" if self.opener == DIALER else "a" if self.opener == ACCEPTOR else "s"
        number: int = self.number
        if number < 0:
            number += WORD
        return (
            f"{letter}{number}" if self.incarnation == 1 else f"{letter}{number}.{self.incarnation}"
        )

    def answer(self, sender: i64, sight: Sight) -> None:
        """A frame of `sender` on this stream proves that it read the (oldest possible) opening."""
        if sender != self.opener and self.opener != NOBODY:
            sight.proves(sender, self.answerable)

    def save(self) -> list[object]:
        return [
            self.key, self.number, self.opener, self.opened, self.answerable, self.incarnation,
            self.serial, self.accepted, self.over, self.extra, self.name, self.ending,
            self.reset_by, self.error, self.opened_at, self.accepted_at, self.closed_at,
            self.dialer.save(), self.acceptor.save(),
        ]  # fmt: skip


def load_stream(saved: list[object]) -> Stream:
    numbers = [entry if isinstance(entry, int) else 0 for entry in saved]
    stream = Stream(numbers[0], numbers[1], numbers[2], numbers[3])
    stream.answerable = numbers[4]
    stream.incarnation = numbers[5]
    stream.serial = numbers[6]
    stream.accepted = bool(saved[7])
    stream.over = bool(saved[8])
    stream.extra = numbers[9]
    name, ending, error = saved[10], saved[11], saved[13]
    stream.name = name if isinstance(name, bytes) else None
    stream.ending = ending if isinstance(ending, str) else ""
    stream.reset_by = numbers[12]
    stream.error = error if isinstance(error, bytes) else None
    stream.opened_at = numbers[14]
    stream.accepted_at = numbers[15]
    stream.closed_at = numbers[16]
    for half, kept in ((stream.dialer, saved[17]), (stream.acceptor, saved[18])):
        if isinstance(kept, list):
            half.load(kept)
    return stream


# What keys are multiplied by: odd, and each process's own, so that nobody can make keys that meet.
SPREAD: Final = int.from_bytes(urandom(8), "little", signed=True) | 1
HALF_WORD: Final[i64] = 0xFFFFFFFF
SHIFT: Final[i64] = 58  # of a product, to keep its top six bits: the slots of a new table

UNTIDY: Final[i64] = 512  # streams whose keys were used again, before they are let go


class Table:
    """Stream key to stream: open addressing over native objects, three times a dict's speed.

    Closed streams stay as tombstones, so that late frames can be told from unknown ones; past
    `remembered` of them the oldest are forgotten. Of a key that is used again the last one stays.
    """

    def __init__(self, remembered: i64) -> None:
        self.none: Stream = Stream(-1, -1, NOBODY, 0)
        self.slots: vec[Stream] = vec[Stream]([self.none] * 64)
        self.mask: i64 = 63
        self.shift: i64 = SHIFT
        self.spread: i64 = SPREAD
        self.used: i64 = 0
        self.remembered: i64 = remembered
        self.closed: list[Stream] = []  # tombstones, oldest first, from `first` on
        self.first: i64 = 0
        self.replaced: i64 = 0  # how many of them, at most, have left the table already
        self.forgot: bool = False
        self.keep: bool = False  # does somebody want the streams that leave the table?
        self.gone: list[Stream] = []
        self.lapsed: list[Stream] = []  # those of them that were forgotten just now

    def find(self, key: i64) -> Stream | None:
        slots = self.slots
        mask = self.mask
        none = self.none
        product = key * self.spread  # as in `home`, which is not called for speed
        i = ((product ^ (product >> 32 & HALF_WORD)) * self.spread >> self.shift) & mask
        while True:
            stream = slots[i]
            if stream is none:
                return None
            if stream.key == key:
                return stream
            i = (i + 1) & mask

    def home(self, key: i64) -> i64:
        """Where a key belongs: the top bits of a product, of which wider ints have the same.

        Multiplied twice: once would put ids that count up side by side in some processes.
        """
        product = key * self.spread
        return ((product ^ (product >> 32 & HALF_WORD)) * self.spread >> self.shift) & self.mask

    def put(self, made: Stream) -> None:
        """File a stream under its key; a stream that stood there leaves the table."""
        key = made.key
        i = self.home(key)
        while True:
            stream = self.slots[i]
            if stream is self.none:
                break
            if stream.key == key:
                if self.keep:
                    self.gone.append(stream)
                self.slots[i] = made
                self.replaced += 1
                if self.replaced > UNTIDY and self.replaced * 2 > len(self.closed) - self.first:
                    self.tidy()
                return
            i = (i + 1) & self.mask
        self.slots[i] = made
        self.used += 1
        if self.used * 2 > self.mask:
            self.grow()

    def grow(self) -> None:
        old = self.slots
        size: i64 = (self.mask + 1) * 2
        self.slots = vec[Stream]([self.none] * size)
        self.mask = size - 1
        self.shift -= 1
        for stream in old:
            if stream is not self.none:
                i = self.home(stream.key)
                while self.slots[i] is not self.none:
                    i = (i + 1) & self.mask
                self.slots[i] = stream

    def retire(self, stream: Stream) -> None:
        """The stream is over: remember it among the closed ones, forget the oldest if too many."""
        self.closed.append(stream)
        while len(self.closed) - self.first > self.remembered:
            oldest = self.closed[self.first]
            self.first += 1
            if oldest.over and self.find(oldest.key) is oldest:  # it may be live again
                self.remove(oldest.key)
                self.forgot = True
                if self.keep:
                    self.gone.append(oldest)
                    self.lapsed.append(oldest)
        if self.first > 4096 and self.first * 2 > len(self.closed):
            self.closed = self.closed[self.first :]
            self.first = 0

    def tidy(self) -> None:
        """Let go of closed streams whose keys were used again: late frames are not theirs."""
        kept: list[Stream] = []
        for stream in self.closed[self.first :]:
            if self.find(stream.key) is stream:
                kept.append(stream)
        self.closed = kept
        self.first = 0
        self.replaced = 0

    def remove(self, key: i64) -> None:
        """Take a key out; the entries after it move up, so that no probe is broken."""
        mask = self.mask
        i = self.home(key)
        while self.slots[i].key != key or self.slots[i] is self.none:
            i = (i + 1) & mask
        self.used -= 1
        hole = i
        while True:
            i = (i + 1) & mask
            stream = self.slots[i]
            if stream is self.none:
                break
            home = self.home(stream.key)
            if ((i - home) & mask) >= ((i - hole) & mask):
                self.slots[hole] = stream
                hole = i
        self.slots[hole] = self.none

    def clear(self) -> None:
        """Forget every stream, the closed ones too."""
        self.slots = vec[Stream]([self.none] * 64)
        self.mask = 63
        self.shift = SHIFT
        self.used = 0
        self.closed = []
        self.first = 0
        self.replaced = 0

    def save_closed(self) -> list[int]:
        """What `load_closed` needs: of each tombstone the serial, -1 where its key was used again;
        and `replaced`."""
        serials = [
            int(stream.serial) if self.find(stream.key) is stream else -1
            for stream in self.closed[self.first :]
        ]
        return [*serials, int(self.replaced)]

    def load_closed(self, saved: list[int]) -> None:
        """The tombstones as they were, among streams that have been put already."""
        filed = {stream.serial: stream for stream in self.all()}
        self.closed = [filed.get(serial, self.none) for serial in saved[:-1]]
        self.first = 0
        self.replaced = saved[-1]

    def all(self) -> list[Stream]:
        """Every stream in the table, in the order they were made."""
        found = [stream for stream in self.slots if stream is not self.none]
        found.sort(key=serial_of)
        return found


def serial_of(stream: Stream) -> int:
    return stream.serial
