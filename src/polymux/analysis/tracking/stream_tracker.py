# mypyc: compiled
"""What is kept of each stream while its frames pass, and the table that finds it by a row."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from polymux.core.side import DIALER, NOBODY
from polymux.core.streams import HALF_WORD, OPEN, SHIFT, SPREAD, UNSEEN, Half, Stream

STEP: Final[i64] = 2862933555777941757
NO_GRANTS: Final[list[tuple[int, int]]] = []  # shared: nearly no half ever has others


class HalfTrack:
    """One side of a stream: what its half showed at the last look, and what has passed since."""

    __slots__ = (
        "asked_at", "asked_work", "behind", "blocked", "ended_at", "first_at",
        "frames", "full", "gained", "granted", "grants", "half", "held_at", "held_began",
        "held_culprit", "held_octets", "held_since", "held_until", "held_wait", "held_weak",
        "largest", "last_at", "octets", "owed_full", "passed_full", "passed_work", "progress_at",
        "since", "span_began", "span_ended", "span_work", "speaking", "spent", "stalled", "state",
        "told_us",
    )  # fmt: skip

    def __init__(self, half: Half, opened_at: i64) -> None:
        self.half: Half = half
        self.first_at: i64 = UNSEEN  # of all its frames
        self.last_at: i64 = UNSEEN
        self.passed_work: i64 = 0  # how long its direction had been at work by the last of them,
        self.passed_full: i64 = 0  # and surely full
        # As the half was at the last look:
        self.octets: i64 = 0
        self.blocked: i64 = 0
        self.since: i64 = UNSEEN
        self.granted: int = -1
        self.state: i64 = OPEN
        self.ended_at: i64 = UNSEEN  # when this side ended its half and began to wait for the other
        self.owed_full: i64 = (
            0  # how long this side's direction had been full when the other did so
        )
        self.speaking: bool = False  # did the capture end inside a frame of it?
        # In the timeline's current bucket:
        self.frames: i64 = 0
        self.gained: i64 = 0
        self.told_us: i64 = 0  # time without leave that earlier buckets hold
        # Since its last content:
        self.progress_at: i64 = opened_at
        self.spent: int = 0  # credit used by then
        self.span_began: i64 = UNSEEN  # the longest time without leave that a grant ended
        self.span_ended: i64 = UNSEEN
        self.span_work: i64 = 0  # how long its direction had been at work when that ended
        self.grants: list[tuple[int, int]] = NO_GRANTS  # late ones: when, and the credit before
        self.asked_at: i64 = UNSEEN  # when the peer last sent content on the stream
        self.asked_work: i64 = 0  # how long this side's direction had been at work by then
        self.largest: i64 = 0  # payload of its largest content frame
        self.full: bool = False  # was its last content frame as large as they come?
        # A pause behind another stream, until what follows shows whether this one was waiting:
        self.held_at: i64 = UNSEEN
        self.held_weak: bool = False  # it was asked or had opened a stream, and may have been slow
        self.held_wait: i64 = 0  # what it waited for the others if it was not waiting all the time
        self.held_since: i64 = 0  # the pause
        self.held_until: i64 = 0
        self.held_began: i64 = 0  # and when in it the others began
        self.held_octets: i64 = 0
        self.held_culprit: str = ""
        # All its stalls together, those of an idle sender not counted:
        self.stalled: i64 = 0
        self.behind: i64 = 0  # all its waits behind other streams, however short


class Track:
    """One stream."""

    __slots__ = (
        "acceptor", "accepted", "dialer", "dirty", "fresh", "gone", "incarnation", "label", "mark",
        "number", "opener", "place", "stream", "tally", "tally_mark", "waiting",
    )  # fmt: skip

    def __init__(self, stream: Stream) -> None:
        self.stream: Stream = stream
        self.opener: i64 = stream.opener
        self.number: i64 = stream.number
        self.incarnation: i64 = stream.incarnation
        self.label: str = stream.label()
        self.dialer: HalfTrack = HalfTrack(stream.dialer, stream.opened_at)
        self.acceptor: HalfTrack = HalfTrack(stream.acceptor, stream.opened_at)
        self.mark: i64 = -1  # the page of rows that has this stream's label last
        self.place: i64 = 0  # and where in its labels
        self.tally: i64 = 0  # octets in the stretch that is being added up
        self.tally_mark: i64 = -1
        self.fresh: bool = True  # has no frame of it been looked at?
        self.accepted: bool = False  # was it accepted at the last look?
        self.dirty: bool = False  # has it something for the current bucket?
        self.waiting: bool = False  # is it among those without leave?
        self.gone: bool = False  # no more rows will name it

    def side(self, side: i64) -> HalfTrack:
        return self.dialer if side == DIALER else self.acceptor


class TrackTable:
    """(opener, number, incarnation) to track: open addressing, as in `core.streams.Table`."""

    def __init__(self) -> None:
        self.none: Track = Track(Stream(-1, -1, NOBODY, 0))
        self.slots: vec[Track] = vec[Track]([self.none] * 64)
        self.mask: i64 = 63
        self.shift: i64 = SHIFT
        self.spread: i64 = SPREAD
        self.used: i64 = 0

    def find(self, opener: i64, number: i64, incarnation: i64) -> Track:
        """The track, or `none`."""
        slots = self.slots
        mask = self.mask
        none = self.none
        i = self.home(opener, number, incarnation)
        while True:
            track = slots[i]
            if track is none or (
                track.number == number
                and track.opener == opener
                and track.incarnation == incarnation
            ):
                return track
            i = (i + 1) & mask

    def put(self, track: Track) -> None:
        i = self.home(track.opener, track.number, track.incarnation)
        while self.slots[i] is not self.none:
            i = (i + 1) & self.mask
        self.slots[i] = track
        self.used += 1
        if self.used * 2 > self.mask:
            self.grow()

    def grow(self) -> None:
        old = self.slots
        size: i64 = (self.mask + 1) * 2
        self.slots = vec[Track]([self.none] * size)
        self.mask = size - 1
        self.shift -= 1
        for track in old:
            if track is not self.none:
                i = self.home(track.opener, track.number, track.incarnation)
                while self.slots[i] is not self.none:
                    i = (i + 1) & self.mask
                self.slots[i] = track

    def remove(self, gone: Track) -> None:
        """Take a track out; the entries after it move up, so that no probe is broken."""
        mask = self.mask
        i = self.home(gone.opener, gone.number, gone.incarnation)
        while self.slots[i] is not gone:
            if self.slots[i] is self.none:
                return
            i = (i + 1) & mask
        self.used -= 1
        hole = i
        while True:
            i = (i + 1) & mask
            track = self.slots[i]
            if track is self.none:
                break
            wanted = self.home(track.opener, track.number, track.incarnation)
            if ((i - wanted) & mask) >= ((i - hole) & mask):
                self.slots[hole] = track
                hole = i
        self.slots[hole] = self.none

    def home(self, opener: i64, number: i64, incarnation: i64) -> i64:
        """Where a track belongs."""
        product = (number * 4 + opener + incarnation * STEP) * self.spread
        return ((product ^ (product >> 32 & HALF_WORD)) * self.spread >> self.shift) & self.mask

    def all(self) -> list[Track]:
        """Every track, in the order their streams were made."""
        found = [track for track in self.slots if track is not self.none]
        found.sort(key=serial_of)
        return found


def serial_of(track: Track) -> int:
    return track.stream.serial
