# mypyc: compiled
"""Streams: two one-way halves, each with its ledger of leave; and the table that finds them."""

from os import urandom
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from polymux.core.side import ACCEPTOR, DIALER, NEITHER_SIDE, Causality

OPEN: Final[i64] = 0
ENDED: Final[i64] = 1
ABORTED: Final[i64] = 2
NEVER: Final[i64] = 0x2000000000000000
NOT_YET: Final[i64] = -1  # an instant that has not come
ABANDONED: Final = "abandoned"  # the ending of a stream whose id was used again while it was live

ID_MODULUS: Final = 2**64  # ids are 64 bits; keys keep the bit pattern in an i64

# Thousands of closed streams are remembered: nothing in them leads back to them, so that Python's
# collector need not visit them again and again (`acyclic`).


@mypyc_attr(acyclic=True)
class HalfStream:
    """What one side may send on a stream, and did.

    `granted` and `spent` count leave in the protocol's unit, as plain ints: exact at any size. The
    rest is measured by whoever watches: content bytes and units, frames, instants, time without
    leave.
    """

    __slots__ = (
        "blocked_ns",
        "blocked_since",
        "last_frame_index",
        "first_at",
        "frames",
        "credit_granted",
        "last_at",
        "promised_limit",
        "content_bytes",
        "peak_in_flight",
        "credit_spent",
        "state",
        "end_frame_index",
        "content_units",
        "end_is_ambiguous",
        "window",
    )

    def __init__(self) -> None:
        # What every content frame touches stands first, in as few cache lines as can be.
        self.state: i64 = OPEN
        self.last_frame_index: i64 = (
            NEVER  # ordinal of the frame after which it may send nothing at all
        )
        self.credit_spent: int = 0
        self.credit_granted: int = -1  # all leave ever given; -1: this half needs none
        self.window: int = -1  # largest window announced to this half; -1: none, no limit known
        self.content_bytes: i64 = 0
        self.content_units: i64 = 0
        self.frames: i64 = 0
        self.last_at: i64 = NOT_YET
        self.first_at: i64 = NOT_YET
        self.end_is_ambiguous: bool = False  # its stop may belong to an earlier use of the id
        self.peak_in_flight: int = 0
        self.end_frame_index: i64 = NEVER  # ordinal, among its side's frames, of its end or abort
        self.promised_limit: int = (
            -1
        )  # what this half has promised not to exceed (Minmux); -1: nothing
        self.blocked_ns: i64 = 0
        self.blocked_since: i64 = NOT_YET

    def stop(self, state: i64, frame_index: i64, ambiguous: bool) -> None:
        self.state = state
        self.end_frame_index = frame_index
        self.end_is_ambiguous = ambiguous

    def mark_blocked(self, timestamp: i64) -> None:
        """Leave has run out."""
        if self.blocked_since == NOT_YET:
            self.blocked_since = timestamp

    def mark_unblocked(self, timestamp: i64) -> None:
        """Leave has come, or is no longer wanted."""
        if self.blocked_since != NOT_YET:
            if timestamp > self.blocked_since:
                self.blocked_ns += timestamp - self.blocked_since
            self.blocked_since = NOT_YET

    def save(self) -> list[int]:
        return [
            self.credit_granted,
            self.credit_spent,
            self.window,
            self.promised_limit,
            self.state,
            self.end_frame_index,
            int(self.end_is_ambiguous),
            self.content_bytes,
            self.content_units,
            self.frames,
            self.peak_in_flight,
            self.first_at,
            self.last_at,
            self.blocked_ns,
            self.blocked_since,
            self.last_frame_index,
        ]

    def load(self, saved: list[int]) -> None:
        self.credit_granted = saved[0]
        self.credit_spent = saved[1]
        self.window = saved[2]
        self.promised_limit = saved[3]
        self.state = saved[4]
        self.end_frame_index = saved[5]
        self.end_is_ambiguous = saved[6] != 0
        self.content_bytes = saved[7]
        self.content_units = saved[8]
        self.frames = saved[9]
        self.peak_in_flight = saved[10]
        self.first_at = saved[11]
        self.last_at = saved[12]
        self.blocked_ns = saved[13]
        self.blocked_since = saved[14]
        self.last_frame_index = saved[15]


@mypyc_attr(acyclic=True)
class StreamBuffers:
    """The live side of a stream: what came and was not read, what is to go and was not sent.

    Only an endpoint's streams have one.
    """

    __slots__ = (
        "discarding",
        "end_queued",
        "aborted",
        "window_may_grow",
        "unreturned_credit",
        "received",
        "next_piece",
        "marked_readable",
        "outgoing",
        "queued_bytes",
        "piece_bytes_sent",
        "scheduled",
        "unread_bytes",
        "bytes_read_since_grant",
        "target_window",
    )

    def __init__(self) -> None:
        self.received: list[bytes | memoryview] = []
        self.unread_bytes: i64 = 0  # bytes in the inbox
        self.unreturned_credit: i64 = 0  # leave to give back once the inbox has been read
        self.outgoing: list[bytes] = []
        self.next_piece: i64 = 0  # the first piece of `outgoing` that has not left
        self.piece_bytes_sent: i64 = 0  # bytes of that piece that have
        self.queued_bytes: i64 = 0  # bytes in `outgoing`
        self.end_queued: bool = False  # end this half once `outgoing` is empty
        self.scheduled: bool = False  # waits for its turn in the outbox
        self.marked_readable: bool = False  # stands in the list of streams with news
        self.aborted: bool = False  # the peer is being told, or knows
        self.discarding: bool = False  # nobody will read: drop what comes
        self.target_window: int = (
            0  # units of leave to keep the peer supplied with; 0: the half's window
        )
        self.window_may_grow: bool = False  # may that become more while messages are small?
        self.bytes_read_since_grant: i64 = (
            0  # bytes of the messages read since leave was given back
        )

    def clear_outgoing(self) -> None:
        """Forget what was to go."""
        self.outgoing = []
        self.next_piece = 0
        self.piece_bytes_sent = 0
        self.queued_bytes = 0


@mypyc_attr(acyclic=True)
class StreamState:
    """One use of a stream id."""

    __slots__ = (
        "accepted",
        "accepted_at",
        "acceptor",
        "answerable_open_index",
        "closed_at",
        "dialer",
        "ending",
        "error",
        "protocol_state",
        "incarnation",
        "key",
        "buffers",
        "name",
        "stream_id",
        "open_frame_index",
        "opened_at",
        "opener",
        "over",
        "reset_by",
        "serial",
    )

    def __init__(self, key: i64, stream_id: i64, opener: i64, open_frame_index: i64) -> None:
        self.key: i64 = key
        self.dialer: HalfStream = HalfStream()
        self.acceptor: HalfStream = HalfStream()
        self.opener: i64 = opener
        self.incarnation: i64 = 1
        self.stream_id: i64 = stream_id  # 64 bits; negative stands for 2**63 and more
        self.answerable_open_index: i64 = (
            open_frame_index  # the oldest opening a frame on this id could answer
        )
        self.accepted: bool = False
        self.over: bool = False
        self.buffers: StreamBuffers | None = None
        self.open_frame_index: i64 = (
            open_frame_index  # ordinal of the opening frame among the opener's frames
        )
        self.serial: i64 = -1
        self.protocol_state: i64 = 0  # a protocol's own mark
        self.name: bytes | None = None
        self.ending: str = ""
        self.reset_by: i64 = -1
        self.error: bytes | None = None
        self.opened_at: i64 = NOT_YET
        self.accepted_at: i64 = NOT_YET
        self.closed_at: i64 = NOT_YET

    def half(self, side: i64) -> HalfStream:
        return self.dialer if side == DIALER else self.acceptor

    def label(self) -> str:
        """The text key of the tables: opener's letter, number, and the use from the second on."""
        letter = "d" if self.opener == DIALER else "a" if self.opener == ACCEPTOR else "s"
        number: int = self.stream_id
        if number < 0:
            number += ID_MODULUS
        return (
            f"{letter}{number}" if self.incarnation == 1 else f"{letter}{number}.{self.incarnation}"
        )

    def record_reply(self, sender: i64, causality: Causality) -> None:
        """A frame of `sender` on this stream proves that it read the (oldest possible) opening."""
        if sender != self.opener and self.opener != NEITHER_SIDE:
            causality.record_seen(sender, self.answerable_open_index)

    def save(self) -> list[object]:
        return [
            self.key,
            self.stream_id,
            self.opener,
            self.open_frame_index,
            self.answerable_open_index,
            self.incarnation,
            self.serial,
            self.accepted,
            self.over,
            self.protocol_state,
            self.name,
            self.ending,
            self.reset_by,
            self.error,
            self.opened_at,
            self.accepted_at,
            self.closed_at,
            self.dialer.save(),
            self.acceptor.save(),
        ]


def load_stream(saved: list[object]) -> StreamState:
    numbers = [entry if isinstance(entry, int) else 0 for entry in saved]
    stream = StreamState(numbers[0], numbers[1], numbers[2], numbers[3])
    stream.answerable_open_index = numbers[4]
    stream.incarnation = numbers[5]
    stream.serial = numbers[6]
    stream.accepted = bool(saved[7])
    stream.over = bool(saved[8])
    stream.protocol_state = numbers[9]
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
HASH_MULTIPLIER: Final = int.from_bytes(urandom(8), "little", signed=True) | 1
LOW_32_BITS: Final[i64] = 0xFFFFFFFF
INITIAL_SHIFT: Final[i64] = 58  # of a product, to keep its top six bits: the slots of a new table

COMPACT_THRESHOLD: Final[i64] = 512  # streams whose keys were used again, before they are let go


class StreamTable:
    """Stream key to stream: open addressing over native objects, three times a dict's speed.

    Closed streams stay as tombstones, so that late frames can be told from unknown ones; past
    `remembered` of them the oldest are forgotten. Of a key that is used again the last one stays.
    """

    def __init__(self, max_closed: i64) -> None:
        self.empty_slot: StreamState = StreamState(-1, -1, NEITHER_SIDE, 0)
        self.slots: vec[StreamState] = vec[StreamState]([self.empty_slot] * 64)
        self.mask: i64 = 63
        self.shift: i64 = INITIAL_SHIFT
        self.multiplier: i64 = HASH_MULTIPLIER
        self.used_slots: i64 = 0
        self.max_closed: i64 = max_closed
        self.closed: list[StreamState] = []  # tombstones, oldest first, from `first` on
        self.first_closed: i64 = 0
        self.replaced: i64 = 0  # how many of them, at most, have left the table already
        self.has_evicted: bool = False
        self.keep_removed: bool = False  # does somebody want the streams that leave the table?
        self.removed: list[StreamState] = []
        self.just_evicted: list[StreamState] = []  # those of them that were forgotten just now

    def find(self, key: i64) -> StreamState | None:
        slots = self.slots
        mask = self.mask
        none = self.empty_slot
        product = key * self.multiplier  # as in `home`, which is not called for speed
        i = ((product ^ (product >> 32 & LOW_32_BITS)) * self.multiplier >> self.shift) & mask
        while True:
            stream = slots[i]
            if stream is none:
                return None
            if stream.key == key:
                return stream
            i = (i + 1) & mask

    def _slot(self, key: i64) -> i64:
        """Where a key belongs: the top bits of a product, of which wider ints have the same.

        Multiplied twice: once would put ids that count up side by side in some processes.
        """
        product = key * self.multiplier
        return (
            (product ^ (product >> 32 & LOW_32_BITS)) * self.multiplier >> self.shift
        ) & self.mask

    def insert(self, new_stream: StreamState) -> None:
        """File a stream under its key; a stream that stood there leaves the table."""
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
        """The stream is over: remember it among the closed ones, forget the oldest if too many."""
        self.closed.append(stream)
        while len(self.closed) - self.first_closed > self.max_closed:
            oldest = self.closed[self.first_closed]
            self.first_closed += 1
            if oldest.over and self.find(oldest.key) is oldest:  # it may be live again
                self.remove(oldest.key)
                self.has_evicted = True
                if self.keep_removed:
                    self.removed.append(oldest)
                    self.just_evicted.append(oldest)
        if self.first_closed > 4096 and self.first_closed * 2 > len(self.closed):
            self.closed = self.closed[self.first_closed :]
            self.first_closed = 0

    def compact(self) -> None:
        """Let go of closed streams whose keys were used again: late frames are not theirs."""
        kept: list[StreamState] = []
        for stream in self.closed[self.first_closed :]:
            if self.find(stream.key) is stream:
                kept.append(stream)
        self.closed = kept
        self.first_closed = 0
        self.replaced = 0

    def remove(self, key: i64) -> None:
        """Take a key out; the entries after it move up, so that no probe is broken."""
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
        """Forget every stream, the closed ones too."""
        self.slots = vec[StreamState]([self.empty_slot] * 64)
        self.mask = 63
        self.shift = INITIAL_SHIFT
        self.used_slots = 0
        self.closed = []
        self.first_closed = 0
        self.replaced = 0

    def save_closed(self) -> list[int]:
        """What `load_closed` needs: of each tombstone the serial, -1 where its key was used again;
        and `replaced`."""
        serials = [
            int(stream.serial) if self.find(stream.key) is stream else -1
            for stream in self.closed[self.first_closed :]
        ]
        return [*serials, int(self.replaced)]

    def load_closed(self, saved: list[int]) -> None:
        """The tombstones as they were, among streams that have been put already."""
        filed = {stream.serial: stream for stream in self.all()}
        self.closed = [filed.get(serial, self.empty_slot) for serial in saved[:-1]]
        self.first_closed = 0
        self.replaced = saved[-1]

    def all(self) -> list[StreamState]:
        """Every stream in the table, in the order they were made."""
        found = [stream for stream in self.slots if stream is not self.empty_slot]
        found.sort(key=serial_of)
        return found


def serial_of(stream: StreamState) -> int:
    return stream.serial
