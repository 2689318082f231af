# mypyc: compiled
"""One direction of a TCP session: what is next, what waits behind a hole, what slowed it down."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

# A hole filled sooner than this was reordering on the way; later, a retransmission.
SPAN_REORDERED: Final[i64] = 3000000
# Spans kept for a direction; further ones extend the last.
SPANS: Final = 65536
# A window that opens this long after the last new octet may be what those that follow waited for.
LATE_OPENING: Final[i64] = 20000000
OPENINGS: Final = 64  # of them remembered until octets follow
# Sequence numbers are read as at most 1 GiB behind and less than 3 GiB ahead of the next octet:
# TCP's window keeps a sender within 1 GiB, while a capture may have missed much.
BEHIND: Final[i64] = 0xC0000000


class Held:
    """Octets that wait behind a hole; `missing` if they were cut off by the snap length."""

    def __init__(
        self, start: i64, size: i64, missing: bool, file: i64, offset: i64, at: i64
    ) -> None:
        self.start: i64 = start
        self.size: i64 = size
        self.missing: bool = missing
        self.file: i64 = file
        self.offset: i64 = offset
        self.at: i64 = at


class Lane:
    """State of one direction. Positions count its octets from 0; instants are nanoseconds."""

    def __init__(self, side: i64) -> None:
        self.side: i64 = side
        self.started: bool = False
        self.base: i64 = 0  # sequence number of octet 0
        self.next: i64 = 0  # the octet to be let out next
        self.lost: i64 = 0  # what is missing before this was given up
        self.confirmed: i64 = 0  # highest acknowledgement
        self.acked: i64 = 0  # the same where it goes beyond what was captured
        self.held: list[Held] = []  # by start, without overlaps; before `head` already out
        self.head: i64 = 0
        self.held_octets: i64 = 0
        self.hole: bool = False
        self.hole_at: i64 = 0
        self.fin: i64 = -1
        self.finished: bool = False
        self.aborted: bool = False
        self.reset: bool = False  # sent a RST, be it after its FIN
        self.octets: i64 = 0
        self.gaps: i64 = 0
        self.late: i64 = 0  # octets behind the FIN
        self.progress_at: i64 = 0
        self.timed_end: i64 = -1
        self.timed_at: i64 = 0
        self.quickest: i64 = -1  # shortest time from an octet to its acknowledgement
        self.closed_since: i64 = -1
        self.closed: list[tuple[int, int]] = []  # spans in which this side's window was zero
        self.retransmitted: list[tuple[int, int]] = []  # spans lost to retransmission
        # The window the other side offers this one, as the number in its packets says. Where that
        # is scaled, which octets sent beyond it prove, nothing is concluded from it.
        self.scaled: bool = False
        self.offered: i64 = -1
        self.offered_at: i64 = 0  # since when it is that number
        self.edge: i64 = -1  # the octet it ends at
        self.waiting_since: i64 = 0  # when it became too small, if one of the openings was needed
        self.openings: list[tuple[int, int]] = []  # late ones: when, and the edge before
        self.small: list[tuple[int, int]] = []  # spans in which it was too small for what followed

    def begin(self, seq: i64) -> None:
        self.started = True
        self.base = seq

    def relative(self, seq: i64) -> i64:
        """The position a sequence number means now."""
        away = (seq - self.base - self.next) & 0xFFFFFFFF
        if away >= BEHIND:
            away -= 0x100000000
        return self.next + away

    def claimed(self) -> i64:
        """How far the other side's acknowledgements prove that there were octets.

        A FIN counts as one too: seen, it is no octet; not seen, it may be the last one acked.
        """
        if self.fin >= 0 and self.acked > self.fin:
            return self.fin
        if self.fin < 0 and self.acked == self.next + 1 and self.head == len(self.held):
            return self.next
        return self.acked

    def ended(self, peer: Lane) -> str | None:
        """How this side ended. After its FIN a RST still counts if it ended the peer as well."""
        if self.aborted or (self.reset and not peer.finished and not peer.aborted):
            return "rst"
        return "fin" if self.finished else None

    def hold(self, start: i64, captured: i64, size: i64, file: i64, offset: i64, at: i64) -> None:
        """Keep what is not kept yet of these octets: the first copy wins."""
        n = self.place(start)
        if n > self.head:
            before = self.held[n - 1]
            cut = before.start + before.size - start
            if cut > 0:
                start += cut
                size -= cut
                captured -= cut
                offset += cut
        while size > 0:
            # Between the neighbour before and the one behind lies a free stretch.
            free = size
            if n < len(self.held):
                behind = self.held[n]
                free = behind.start - start
                if free > size:
                    free = size
            if free > 0:
                n = self.insert(n, start, captured, free, file, offset, at)
            if n >= len(self.held):
                return
            behind = self.held[n]
            cut = behind.start + behind.size - start
            start += cut
            size -= cut
            captured -= cut
            offset += cut
            n += 1

    def place(self, start: i64) -> i64:
        """Where among those held the first stands that begins at `start` or behind it."""
        behind: i64 = len(self.held)
        if behind == self.head or self.held[behind - 1].start < start:
            return behind  # nearly always: what comes later lies further on
        place = self.head
        while place < behind:
            middle = (place + behind) >> 1
            if self.held[middle].start < start:
                place = middle + 1
            else:
                behind = middle
        return place

    def insert(
        self, n: i64, start: i64, captured: i64, size: i64, file: i64, offset: i64, at: i64
    ) -> i64:
        """Put a free stretch in at `n`, cut where capturing stopped; returns the place after."""
        there = captured if captured < size else size
        if there < 0:
            there = 0
        if there > 0:
            self.held.insert(n, Held(start, there, False, file, offset, at))
            self.held_octets += there
            n += 1
        if there < size:
            self.held.insert(n, Held(start + there, size - there, True, file, 0, at))
            n += 1
        return n

    def release(self) -> None:
        """The first held octets go out."""
        if not self.held[self.head].missing:
            self.held_octets -= self.held[self.head].size
        self.head += 1
        # Dropping from the front moves the rest, so it is done seldom.
        if self.head == len(self.held):
            self.held = []
            self.head = 0
        elif self.head >= 1024:
            self.held = self.held[self.head :]
            self.head = 0

    def window(self, window: i64, syn: i64, at: i64) -> None:
        """This side offered `window` octets: note the spans in which it offered none."""
        if window == 0 and syn == 0:
            if self.closed_since < 0:
                self.closed_since = at
        elif self.closed_since >= 0:
            if len(self.closed) < SPANS:
                self.closed.append((self.closed_since, at))
            self.closed_since = -1

    def offer(self, upto: i64, window: i64, at: i64) -> None:
        """The other side has everything up to `upto`, and room for `window` octets more."""
        if upto < self.confirmed:
            return  # an older packet
        edge = upto + window
        if (
            edge > self.edge
            and window >= self.offered * 2
            and self.edge >= 0
            and at - self.progress_at >= LATE_OPENING
            and len(self.openings) < OPENINGS
        ):
            if len(self.openings) == 0:
                since = self.offered_at
                self.waiting_since = since if since > self.progress_at else self.progress_at
            self.openings.append((int(at), int(self.edge)))
        self.edge = edge
        if window != self.offered:
            self.offered = window
            self.offered_at = at

    def reach(self, end: i64) -> None:
        """New octets up to `end` are being sent: did they have to wait for the window?"""
        if end > self.edge + 1:  # one octet more may be a probe of a closed window
            if self.edge >= 0:
                self.scaled = True
                self.small = []
        else:
            for at, before in reversed(self.openings):
                if before < end:
                    if len(self.small) < SPANS:
                        self.small.append((int(self.waiting_since), at))
                    break
        if len(self.openings) > 0:
            self.openings = []

    def unready(self, peer: Lane) -> list[tuple[int, int]]:
        """Spans in which this side took nothing, or not what the peer had to send."""
        return sorted([*self.closed, *peer.small])

    def repeated(self, at: i64) -> None:
        """Octets came again: time since the last new octet went to a retransmission."""
        self.timed_end = -1  # its acknowledgement could answer either copy
        self.span(self.progress_at, at)

    def span(self, began: i64, ended: i64) -> None:
        spans = self.retransmitted
        if len(spans) > 0 and (spans[len(spans) - 1][0] == began or len(spans) >= SPANS):
            began = spans[len(spans) - 1][0]
            spans[len(spans) - 1] = (began, ended)
        else:
            spans.append((began, ended))

    def sample(self, took: i64) -> None:
        self.timed_end = -1
        if took >= 0 and (self.quickest < 0 or took < self.quickest):
            self.quickest = took
