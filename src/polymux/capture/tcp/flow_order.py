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
    RST,
    SAME_PACKET_MASK,
    SYN,
)
from polymux.capture.tcp.ref_storage import (
    NO_OFFSET,
    PagedInts,
    RefBlock,
    RefWindowCache,
    SpoolFactory,
    StoredRefs,
)
from polymux.capture.tcp.session_prescan import SessionPrescan

NO_SESSION_START: Final[i64] = -1
# Packets of one instant that are remembered to find a second copy of one of them.
MAX_REMEMBERED_PACKETS: Final[i64] = 64
# After a session is over, bytes this far from where it ended belong to another one.
NEW_SESSION_DISTANCE: Final[i64] = 1048576


class FileCursor:
    """Walks one file's blobs: ranges in order, both directions of a range by offset."""

    def __init__(self, file: i64) -> None:
        self.file: i64 = file
        self.forward_blocks: list[RefBlock] = []
        self.backward_blocks: list[RefBlock] = []
        self.range_index: i64 = -1
        # The one that holds the next reference.
        self.current_block: RefBlock = RefBlock((b"", None, 0), 0, file, 0, RefWindowCache())
        self.forward_block: RefBlock = (
            self.current_block
        )  # the two of the range, and where their next packets lie
        self.backward_block: RefBlock = self.current_block
        self.forward_offset: i64 = NO_OFFSET
        self.backward_offset: i64 = NO_OFFSET
        self.merge_key: i64 = -0x4000000000000000  # latest instant so far: what files are merged by
        self.was_left: bool = False

    def advance(self) -> bool:
        """Find the next reference, the one before being used; False if there is none."""
        if self.current_block is self.forward_block:
            self.forward_offset = self.forward_block.next_offset()
        else:
            self.backward_offset = self.backward_block.next_offset()
        while self.forward_offset == NO_OFFSET and self.backward_offset == NO_OFFSET:
            self.range_index += 1
            if self.range_index >= len(self.forward_blocks):
                return False
            self.forward_block = self.forward_blocks[self.range_index]
            self.backward_block = self.backward_blocks[self.range_index]
            self.forward_offset = self.forward_block.next_offset()
            self.backward_offset = self.backward_block.next_offset()
        blob = (
            self.backward_block
            if self.backward_offset < self.forward_offset
            else self.forward_block
        )
        self.current_block = blob
        pos = blob.seek(blob.next_record)  # which may change what is in memory
        at = read_i64_le(blob.refs, pos + 8)
        if at > self.merge_key:
            self.merge_key = at
        return True


class FlowOrder:
    """One flow's references in capture order: `order[i]` is blob number << 32 | record."""

    def __init__(self, spool: SpoolFactory | None = None) -> None:
        self.ref_blocks: list[RefBlock] = []
        self.window_cache: RefWindowCache = RefWindowCache()
        self.cursors: list[FileCursor] = []
        self.order: PagedInts = PagedInts(spool)
        self.count: i64 = 0
        self.session_starts: vec[i64] = vec[i64]()  # where in `order` each session starts
        self.prescans: list[SessionPrescan] = []  # what is known of each
        self.interleaved: bool = False
        self.duplicate_packets: i64 = 0  # packets that were there before

    def add_file(self, ranges: list[tuple[StoredRefs, StoredRefs]]) -> None:
        """The same, of references that may be stored elsewhere."""
        cursor = FileCursor(len(self.cursors))
        for forth, back in ranges:
            cursor.forward_blocks.append(self.add_ref_block(forth, 0, cursor.file))
            cursor.backward_blocks.append(self.add_ref_block(back, 1, cursor.file))
        cursor.advance()
        self.cursors.append(cursor)

    def add_ref_block(self, stored: StoredRefs, direction: i64, file: i64) -> RefBlock:
        made = RefBlock(stored, direction, file, len(self.ref_blocks), self.window_cache)
        self.ref_blocks.append(made)
        return made

    def arrange(self) -> None:
        """Fill `order` and `sessions`."""
        total: i64 = 0
        for blob in self.ref_blocks:
            total += blob.count
        order = self.order
        order.allocate(total)
        self.cursors.sort(key=first_timestamp)
        recent = DuplicateFilter()
        cut = ConnectionSplitter()
        survey = SessionPrescan()
        torn: list[int] = []  # sessions whose packets were told apart only later
        active: list[FileCursor] = []
        waiting: i64 = 0
        last: FileCursor | None = None
        while True:
            cursor: FileCursor | None = None
            if len(active) == 1:  # nearly always
                cursor = active[0]
            else:
                for candidate in active:
                    if cursor is None or candidate.merge_key < cursor.merge_key:
                        cursor = candidate
            if waiting < len(self.cursors):
                following = self.cursors[waiting]
                if cursor is None or following.merge_key <= cursor.merge_key:
                    waiting += 1
                    active.append(following)
                    self.window_cache.expect_files(len(active))
                    continue
            if cursor is None:
                break
            blob = cursor.current_block
            record = blob.next_record
            blob.next_record = record + 1
            pos = blob.seek(record)
            refs = blob.refs
            captured = read_i64_le(refs, pos) & CAPTURED_MASK
            both = read_i64_le(refs, pos + 16)
            header = read_i64_le(refs, pos + 24)
            at = read_i64_le(refs, pos + 8)
            if recent.is_duplicate(
                at, captured * 2 + blob.direction, both, header & SAME_PACKET_MASK
            ):
                self.duplicate_packets += 1
            else:
                if cursor is not last:
                    if cursor.was_left:
                        self.interleaved = True
                    if last is not None:
                        last.was_left = True
                    last = cursor
                size = captured + (header >> 32)
                starts = cut.session_start(
                    both, (header >> 16) & 255, size, blob.direction, self.count
                )
                if starts >= 0:
                    self.session_starts = append(self.session_starts, starts)
                    survey = SessionPrescan()
                    self.prescans.append(survey)
                    if starts < self.count:  # it, and the one before, which is too long
                        number = len(self.prescans) - 1
                        if number - 1 not in torn[-1:]:
                            torn.append(number - 1)
                        torn.append(number)
                survey.add_packet(blob, size, both, header, at)
                order.add(blob.index * 0x100000000 + record)
                self.count += 1
            if not cursor.advance():
                active.remove(cursor)
        order.finish()
        for each in torn:
            self.prescans[each] = self.prescan_session(each)

    def prescan_session(self, number: i64) -> SessionPrescan:
        """Look at a session's packets once more."""
        end = self.count
        if number + 1 < len(self.session_starts):
            end = self.session_starts[number + 1]
        survey = SessionPrescan()
        for place in range(self.session_starts[number], end):
            entry = self.order[place]
            blob = self.ref_blocks[entry >> 32]
            pos = blob.seek(entry & LOW32)
            refs = blob.refs
            header = read_i64_le(refs, pos + 24)
            size = (read_i64_le(refs, pos) & CAPTURED_MASK) + (header >> 32)
            survey.add_packet(
                blob, size, read_i64_le(refs, pos + 16), header, read_i64_le(refs, pos + 8)
            )
        return survey


def first_timestamp(cursor: FileCursor) -> int:
    return cursor.merge_key


class DuplicateFilter:
    """The packets of the current instant, to tell a packet that was given twice."""

    def __init__(self) -> None:
        self.timestamp: i64 = 0
        self.first_size: i64 = (
            -1
        )  # size, sequence and header of the first: mostly there is no other
        self.first_sequence: i64 = 0
        self.first_header: i64 = 0
        self.extra_count: i64 = 0  # and how many more
        self.sizes: vec[i64] = vec[i64]()
        self.sequences: vec[i64] = vec[i64]()
        self.headers: vec[i64] = vec[i64]()

    def is_duplicate(self, timestamp: i64, size: i64, sequence: i64, header: i64) -> bool:
        """Whether such a packet was given before at this instant; it is remembered otherwise."""
        if timestamp != self.timestamp or self.first_size < 0:
            self.timestamp = timestamp
            self.first_size = size
            self.first_sequence = sequence
            self.first_header = header
            self.extra_count = 0
            return False
        if (
            self.first_sequence == sequence
            and self.first_size == size
            and self.first_header == header
        ):
            return True
        for n in range(self.extra_count):
            if (
                self.sequences[n] == sequence
                and self.sizes[n] == size
                and self.headers[n] == header
            ):
                return True
        if self.extra_count < MAX_REMEMBERED_PACKETS:
            if len(self.sizes) == 0:  # few flows have any
                self.sizes = vec[i64]([0] * MAX_REMEMBERED_PACKETS)
                self.sequences = vec[i64]([0] * MAX_REMEMBERED_PACKETS)
                self.headers = vec[i64]([0] * MAX_REMEMBERED_PACKETS)
            self.sizes[self.extra_count] = size
            self.sequences[self.extra_count] = sequence
            self.headers[self.extra_count] = header
            self.extra_count += 1
        return False


class ConnectionSplitter:
    """Decides which packet starts a new session on the same two endpoints.

    A SYN with another first sequence number does, at once if the session before is over. While
    that is not seen, the SYN must be answered or followed up: a stray one cuts nothing.
    """

    def __init__(self) -> None:
        self.is_open: bool = False
        self.mid_session: bool = False  # in the midst of a session: bytes cannot start another one
        self.isn: vec[i64] = vec[i64]([-1, -1])
        self.first_seq: vec[i64] = vec[i64]([-1, -1])  # first sequence number a side's bytes have
        self.end_seq: vec[i64] = vec[i64]([-1, -1])  # where its last segment ended
        self.ended: vec[i64] = vec[i64]([0, 0])
        self.pending_isn: i64 = -1  # first sequence number of a SYN that waits for its proof
        self.pending_side: i64 = 0
        self.pending_index: i64 = 0

    def session_start(self, seq_ack: i64, flags: i64, size: i64, side: i64, index: i64) -> i64:
        """`place` (or where the proven SYN stood) if a session starts there, else DONE.

        `both`: sequence number << 32 | acknowledgement.
        """
        seq = (seq_ack >> 32) & LOW32
        if (
            self.mid_session
            and size > 0
            and flags & (SYN | FIN | RST) == 0
            and self.first_seq[side] >= 0
        ):
            self.end_seq[side] = (seq + size) & LOW32
            return NO_SESSION_START
        ack = seq_ack & LOW32
        found = NO_SESSION_START
        over = self.ended[0] + self.ended[1] == 2
        if self.pending_isn >= 0 and self.confirms_pending_syn(flags, seq, ack, side, size):
            found = self.pending_index
            asked = self.pending_isn
            self.reset()
            self.isn[self.pending_side] = asked
            self.first_seq[self.pending_side] = (asked + 1) & LOW32
        elif not self.is_open or (
            over and size > 0 and flags & SYN == 0 and self.is_far_from_end(seq, side)
        ):
            found = index
            self.reset()
        elif flags & SYN != 0 and self.is_new_connection(flags, seq, ack, side):
            if over:
                found = index
                self.reset()
            elif self.pending_isn != seq or self.pending_side != side:
                self.pending_isn = seq
                self.pending_side = side
                self.pending_index = index
        self.update(flags, seq, ack, side, size)
        self.mid_session = (
            self.is_open and self.pending_isn < 0 and self.ended[0] + self.ended[1] == 0
        )
        return found

    def reset(self) -> None:
        self.is_open = True
        self.pending_isn = -1
        for side in range(i64(2)):
            self.isn[side] = -1
            self.first_seq[side] = -1
            self.end_seq[side] = -1
            self.ended[side] = 0

    def is_new_connection(self, flags: i64, seq: i64, ack: i64, side: i64) -> bool:
        if self.isn[side] == seq:
            return False  # sent again
        if self.isn[side] >= 0:
            return True
        if self.first_seq[side] >= 0:
            return self.first_seq[side] != (seq + 1) & LOW32  # not the beginning of what we saw
        other = self.isn[1 - side]
        if flags & ACK != 0 and other >= 0:
            return not follows_syn(other, ack)
        return flags & ACK == 0 and self.end_seq[side] >= 0

    def confirms_pending_syn(self, flags: i64, seq: i64, ack: i64, side: i64, size: i64) -> bool:
        """Whether this packet can only belong to the session the waiting SYN asked for."""
        if side == self.pending_side:
            return size > 0 and follows_syn(self.pending_isn, seq) and flags & SYN == 0
        return flags & ACK != 0 and follows_syn(self.pending_isn, ack)

    def is_far_from_end(self, seq: i64, side: i64) -> bool:
        if self.end_seq[side] < 0:
            return True
        away = (seq - self.end_seq[side]) & LOW32
        return NEW_SESSION_DISTANCE < away < 0x100000000 - NEW_SESSION_DISTANCE

    def update(self, flags: i64, seq: i64, ack: i64, side: i64, size: i64) -> None:
        if (
            self.pending_isn >= 0
            and side == self.pending_side
            and seq == self.pending_isn
            and flags & SYN != 0
        ):
            return
        if flags & SYN != 0:
            self.isn[side] = seq
            seq = (seq + 1) & LOW32
            if flags & ACK != 0 and self.first_seq[1 - side] < 0:
                self.first_seq[1 - side] = ack
        if self.first_seq[side] < 0 and (size > 0 or flags & SYN != 0):
            self.first_seq[side] = seq
        self.end_seq[side] = (seq + size) & LOW32
        if flags & RST != 0:
            self.ended[0] = 1
            self.ended[1] = 1
        elif flags & FIN != 0:
            self.ended[side] = 1


def follows_syn(isn: i64, seq: i64) -> bool:
    """Whether `seq` comes right after a SYN with first sequence number `isn` and its bytes."""
    return (seq - isn - 1) & LOW32 < 65536
