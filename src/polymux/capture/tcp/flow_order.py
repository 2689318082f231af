# mypyc: compiled
"""The references of one flow, from all files, in the order of capture, cut into sessions.

Within a file the file's own order counts, never its clock. Files that follow one another in time
follow one another here; files that overlap are merged by their clocks, and if that interleaves
them, `interleaved` says that the two directions are not in one proven order. The same packet
given twice counts once.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_le
from librt.vecs import append, vec
from mypy_extensions import i64

from polymux.capture.packets.packet_refs import (
    ACK,
    CAPTURED_MASK,
    FIN,
    LOW32,
    RECORD,
    RST,
    SAME_PACKET,
    SYN,
)
from polymux.capture.tcp.ref_storage import NOWHERE, Blob, Pages, Spool, Store, Stored
from polymux.capture.tcp.session_survey import Survey

DONE: Final[i64] = -1
# Packets of one instant that are remembered to find a second copy of one of them.
RECENT: Final[i64] = 64
# After a session is over, octets this far from where it ended belong to another one.
STRANGE: Final[i64] = 1048576


class Cursor:
    """Walks one file's blobs: ranges in order, both directions of a range by offset."""

    def __init__(self, file: i64) -> None:
        self.file: i64 = file
        self.forth: list[Blob] = []
        self.back: list[Blob] = []
        self.range: i64 = -1
        # The one that holds the next reference.
        self.blob: Blob = Blob((b"", None, 0), 0, file, 0, Store())
        self.ours: Blob = self.blob  # the two of the range, and where their next packets lie
        self.theirs: Blob = self.blob
        self.near: i64 = NOWHERE
        self.far: i64 = NOWHERE
        self.key: i64 = -0x4000000000000000  # latest instant so far: what files are merged by
        self.left: bool = False

    def advance(self) -> bool:
        """Find the next reference, the one before being used; False if there is none."""
        if self.blob is self.ours:
            self.near = self.ours.ahead()
        else:
            self.far = self.theirs.ahead()
        while self.near == NOWHERE and self.far == NOWHERE:
            self.range += 1
            if self.range >= len(self.forth):
                return False
            self.ours = self.forth[self.range]
            self.theirs = self.back[self.range]
            self.near = self.ours.ahead()
            self.far = self.theirs.ahead()
        blob = self.theirs if self.far < self.near else self.ours
        self.blob = blob
        pos = blob.seek(blob.next)  # which may change what is in memory
        at = read_i64_le(blob.refs, pos + 8)
        if at > self.key:
            self.key = at
        return True


class Flow:
    """One flow's references in capture order: `order[i]` is blob number << 32 | record."""

    def __init__(self, spool: Spool | None = None) -> None:
        self.blobs: list[Blob] = []
        self.store: Store = Store()
        self.cursors: list[Cursor] = []
        self.order: Pages = Pages(spool)
        self.count: i64 = 0
        self.sessions: vec[i64] = vec[i64]()  # where in `order` each session starts
        self.surveys: list[Survey] = []  # what is known of each
        self.interleaved: bool = False
        self.repeated: i64 = 0  # packets that were there before

    def add_file(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """The references of file 0, then 1, ...: both directions of each range in order."""
        given: list[tuple[Stored, Stored]] = []
        for forth, back in ranges:
            given.append(((forth, None, len(forth) // RECORD), (back, None, len(back) // RECORD)))
        self.add_stored(given)

    def add_stored(self, ranges: list[tuple[Stored, Stored]]) -> None:
        """The same, of references that may be stored elsewhere."""
        cursor = Cursor(len(self.cursors))
        for forth, back in ranges:
            cursor.forth.append(self.blob(forth, 0, cursor.file))
            cursor.back.append(self.blob(back, 1, cursor.file))
        cursor.advance()
        self.cursors.append(cursor)

    def blob(self, given: Stored, direction: i64, file: i64) -> Blob:
        made = Blob(given, direction, file, len(self.blobs), self.store)
        self.blobs.append(made)
        return made

    def arrange(self) -> None:
        """Fill `order` and `sessions`."""
        total: i64 = 0
        for blob in self.blobs:
            total += blob.count
        order = self.order
        order.expect(total)
        self.cursors.sort(key=first_instant)
        recent = Recent()
        cut = SessionCut()
        survey = Survey()
        torn: list[int] = []  # sessions whose packets were told apart only later
        active: list[Cursor] = []
        waiting: i64 = 0
        last: Cursor | None = None
        while True:
            cursor: Cursor | None = None
            if len(active) == 1:  # nearly always
                cursor = active[0]
            else:
                for candidate in active:
                    if cursor is None or candidate.key < cursor.key:
                        cursor = candidate
            if waiting < len(self.cursors):
                following = self.cursors[waiting]
                if cursor is None or following.key <= cursor.key:
                    waiting += 1
                    active.append(following)
                    self.store.expect(len(active))
                    continue
            if cursor is None:
                break
            blob = cursor.blob
            record = blob.next
            blob.next = record + 1
            pos = blob.seek(record)
            refs = blob.refs
            captured = read_i64_le(refs, pos) & CAPTURED_MASK
            both = read_i64_le(refs, pos + 16)
            header = read_i64_le(refs, pos + 24)
            at = read_i64_le(refs, pos + 8)
            if recent.seen(at, captured * 2 + blob.direction, both, header & SAME_PACKET):
                self.repeated += 1
            else:
                if cursor is not last:
                    if cursor.left:
                        self.interleaved = True
                    if last is not None:
                        last.left = True
                    last = cursor
                size = captured + (header >> 32)
                starts = cut.starts_at(both, (header >> 16) & 255, size, blob.direction, self.count)
                if starts >= 0:
                    self.sessions = append(self.sessions, starts)
                    survey = Survey()
                    self.surveys.append(survey)
                    if starts < self.count:  # it, and the one before, which is too long
                        number = len(self.surveys) - 1
                        if number - 1 not in torn[-1:]:
                            torn.append(number - 1)
                        torn.append(number)
                survey.take(blob, size, both, header, at)
                order.add(blob.number * 0x100000000 + record)
                self.count += 1
            if not cursor.advance():
                active.remove(cursor)
        order.finish()
        for each in torn:
            self.surveys[each] = self.survey(each)

    def survey(self, number: i64) -> Survey:
        """Look at a session's packets once more."""
        end = self.count
        if number + 1 < len(self.sessions):
            end = self.sessions[number + 1]
        survey = Survey()
        for place in range(self.sessions[number], end):
            entry = self.order[place]
            blob = self.blobs[entry >> 32]
            pos = blob.seek(entry & LOW32)
            refs = blob.refs
            header = read_i64_le(refs, pos + 24)
            size = (read_i64_le(refs, pos) & CAPTURED_MASK) + (header >> 32)
            survey.take(blob, size, read_i64_le(refs, pos + 16), header, read_i64_le(refs, pos + 8))
        return survey


def first_instant(cursor: Cursor) -> int:
    return cursor.key


class Recent:
    """The packets of the current instant, to tell a packet that was given twice."""

    def __init__(self) -> None:
        self.at: i64 = 0
        self.first: i64 = -1  # size, sequence and header of the first: mostly there is no other
        self.first_sequence: i64 = 0
        self.first_header: i64 = 0
        self.count: i64 = 0  # and how many more
        self.size: vec[i64] = vec[i64]()
        self.sequence: vec[i64] = vec[i64]()
        self.header: vec[i64] = vec[i64]()

    def seen(self, at: i64, size: i64, sequence: i64, header: i64) -> bool:
        """Whether such a packet was given before at this instant; it is remembered otherwise."""
        if at != self.at or self.first < 0:
            self.at = at
            self.first = size
            self.first_sequence = sequence
            self.first_header = header
            self.count = 0
            return False
        if self.first_sequence == sequence and self.first == size and self.first_header == header:
            return True
        for n in range(self.count):
            if self.sequence[n] == sequence and self.size[n] == size and self.header[n] == header:
                return True
        if self.count < RECENT:
            if len(self.size) == 0:  # few flows have any
                self.size = vec[i64]([0] * RECENT)
                self.sequence = vec[i64]([0] * RECENT)
                self.header = vec[i64]([0] * RECENT)
            self.size[self.count] = size
            self.sequence[self.count] = sequence
            self.header[self.count] = header
            self.count += 1
        return False


class SessionCut:
    """Decides which packet starts a new session on the same two endpoints.

    A SYN with another first sequence number does, at once if the session before is over. While
    that is not seen, the SYN must be answered or followed up: a stray one cuts nothing.
    """

    def __init__(self) -> None:
        self.open: bool = False
        self.plain: bool = False  # in the midst of a session: octets cannot start another one
        self.isn: vec[i64] = vec[i64]([-1, -1])
        self.first: vec[i64] = vec[i64]([-1, -1])  # first sequence number a side's octets have
        self.high: vec[i64] = vec[i64]([-1, -1])  # where its last segment ended
        self.over: vec[i64] = vec[i64]([0, 0])
        self.asked: i64 = -1  # first sequence number of a SYN that waits for its proof
        self.asked_by: i64 = 0
        self.asked_at: i64 = 0

    def starts_at(self, both: i64, flags: i64, size: i64, side: i64, place: i64) -> i64:
        """`place` (or where the proven SYN stood) if a session starts there, else DONE.

        `both`: sequence number << 32 | acknowledgement.
        """
        seq = (both >> 32) & LOW32
        if self.plain and size > 0 and flags & (SYN | FIN | RST) == 0 and self.first[side] >= 0:
            self.high[side] = (seq + size) & LOW32
            return DONE
        ack = both & LOW32
        found = DONE
        over = self.over[0] + self.over[1] == 2
        if self.asked >= 0 and self.proves(flags, seq, ack, side, size):
            found = self.asked_at
            asked = self.asked
            self.begin()
            self.isn[self.asked_by] = asked
            self.first[self.asked_by] = (asked + 1) & LOW32
        elif not self.open or (over and size > 0 and flags & SYN == 0 and self.far(seq, side)):
            found = place
            self.begin()
        elif flags & SYN != 0 and self.is_new(flags, seq, ack, side):
            if over:
                found = place
                self.begin()
            elif self.asked != seq or self.asked_by != side:
                self.asked = seq
                self.asked_by = side
                self.asked_at = place
        self.note(flags, seq, ack, side, size)
        self.plain = self.open and self.asked < 0 and self.over[0] + self.over[1] == 0
        return found

    def begin(self) -> None:
        self.open = True
        self.asked = -1
        for side in range(i64(2)):
            self.isn[side] = -1
            self.first[side] = -1
            self.high[side] = -1
            self.over[side] = 0

    def is_new(self, flags: i64, seq: i64, ack: i64, side: i64) -> bool:
        if self.isn[side] == seq:
            return False  # sent again
        if self.isn[side] >= 0:
            return True
        if self.first[side] >= 0:
            return self.first[side] != (seq + 1) & LOW32  # not the beginning of what we saw
        other = self.isn[1 - side]
        if flags & ACK != 0 and other >= 0:
            return not follows(other, ack)
        return flags & ACK == 0 and self.high[side] >= 0

    def proves(self, flags: i64, seq: i64, ack: i64, side: i64, size: i64) -> bool:
        """Whether this packet can only belong to the session the waiting SYN asked for."""
        if side == self.asked_by:
            return size > 0 and follows(self.asked, seq) and flags & SYN == 0
        return flags & ACK != 0 and follows(self.asked, ack)

    def far(self, seq: i64, side: i64) -> bool:
        if self.high[side] < 0:
            return True
        away = (seq - self.high[side]) & LOW32
        return STRANGE < away < 0x100000000 - STRANGE

    def note(self, flags: i64, seq: i64, ack: i64, side: i64, size: i64) -> None:
        if self.asked >= 0 and side == self.asked_by and seq == self.asked and flags & SYN != 0:
            return
        if flags & SYN != 0:
            self.isn[side] = seq
            seq = (seq + 1) & LOW32
            if flags & ACK != 0 and self.first[1 - side] < 0:
                self.first[1 - side] = ack
        if self.first[side] < 0 and (size > 0 or flags & SYN != 0):
            self.first[side] = seq
        self.high[side] = (seq + size) & LOW32
        if flags & RST != 0:
            self.over[0] = 1
            self.over[1] = 1
        elif flags & FIN != 0:
            self.over[side] = 1


def follows(isn: i64, seq: i64) -> bool:
    """Whether `seq` comes right after a SYN with first sequence number `isn` and its octets."""
    return (seq - isn - 1) & LOW32 < 65536
