# mypyc: compiled
"""The packets of one flow, from all files, in the order of capture, divided into sessions.

Problem: the packets of a connection may be spread over several capture files: a rotation, two
interfaces, a file for each direction. Clocks may step or differ between files, files may overlap
and contain the same packet twice, and a pair of endpoints may be reused for another connection.

Idea: a merge of sorted inputs, in one pass over the references, without reading payload.

- Within a file, the order of the file counts, not its timestamps. `FileCursor` merges the two
  directions of each range by file offset.
- Between files, cursors are merged by `merge_key`, the latest timestamp each has reached, which
  never decreases even if the clock of the file does. Files that do not overlap in time therefore
  follow each other completely.
- `DuplicateFilter` drops a packet that was already seen at the same timestamp.
- `ConnectionSplitter` decides which packet starts a new session.
- `SessionPrescan` collects facts about each session on the way.

Invariants after `arrange`:

- `order[i]` is block index << 32 | record number, and each reference occurs at most once.
- Session `n` has the packets from `session_starts[n]` to before `session_starts[n + 1]`.
- If `interleaved` is set, the merge returned to a file it had left: the order of the two
  directions against each other depends on clocks and is not proven.
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
# Packets with the same timestamp that are remembered, beside the first, to detect duplicates.
MAX_REMEMBERED_PACKETS: Final[i64] = 64
# After a session has ended, bytes further than this from its end belong to another session.
NEW_SESSION_DISTANCE: Final[i64] = 1048576


class FileCursor:
    """Iterates over the references of one file: ranges in order, both directions by offset."""

    def __init__(self, file: i64) -> None:
        self.file: i64 = file
        self.forward_blocks: list[RefBlock] = []
        self.backward_blocks: list[RefBlock] = []
        self.range_index: i64 = -1
        # The block that has the next reference.
        self.current_block: RefBlock = RefBlock((b"", None, 0), 0, file, 0, RefWindowCache())
        # The two blocks of the current range, and the file offsets of their next packets.
        self.forward_block: RefBlock = self.current_block
        self.backward_block: RefBlock = self.current_block
        self.forward_offset: i64 = NO_OFFSET
        self.backward_offset: i64 = NO_OFFSET
        self.merge_key: i64 = -0x4000000000000000  # latest timestamp so far: files are merged by it
        self.was_left: bool = False  # a packet of another file came after one of this

    def advance(self) -> bool:
        """Go to the next reference after `current_block` was advanced; False if there is none."""
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
        block = self.forward_block
        if self.backward_offset < self.forward_offset:
            block = self.backward_block
        self.current_block = block
        pos = block.seek(block.next_record)  # before `refs` is read: it may load a window
        timestamp = read_i64_le(block.refs, pos + 8)
        if timestamp > self.merge_key:
            self.merge_key = timestamp
        return True


class FlowOrder:
    """The references of one flow in capture order, divided into sessions.

    Call `add_file` for each file, then `arrange` once.
    """

    def __init__(self, spool: SpoolFactory | None = None) -> None:
        self.ref_blocks: list[RefBlock] = []
        self.window_cache: RefWindowCache = RefWindowCache()
        self.cursors: list[FileCursor] = []
        self.order: PagedInts = PagedInts(spool)
        self.count: i64 = 0
        self.session_starts: vec[i64] = vec[i64]()  # indexes into `order`
        self.prescans: list[SessionPrescan] = []  # one for each session
        self.interleaved: bool = False
        self.duplicate_packets: i64 = 0

    def add_file(self, ranges: list[tuple[StoredRefs, StoredRefs]]) -> None:
        """Add the references of the next file: both directions of each of its ranges, in order."""
        cursor = FileCursor(len(self.cursors))
        for forth, back in ranges:
            cursor.forward_blocks.append(self.add_ref_block(forth, 0, cursor.file))
            cursor.backward_blocks.append(self.add_ref_block(back, 1, cursor.file))
        cursor.advance()
        self.cursors.append(cursor)

    def add_ref_block(self, stored: StoredRefs, direction: i64, file: i64) -> RefBlock:
        block = RefBlock(stored, direction, file, len(self.ref_blocks), self.window_cache)
        self.ref_blocks.append(block)
        return block

    def arrange(self) -> None:
        """Fill `order`, `session_starts` and `prescans`.

        One long loop on purpose: it runs for every packet, and splitting it would pass its state
        through calls. Its phases are marked: choose a file, read a reference, drop duplicates,
        divide into sessions.
        """
        total: i64 = 0
        for block in self.ref_blocks:
            total += block.count
        order = self.order
        order.allocate(total)
        self.cursors.sort(key=first_timestamp)
        duplicates = DuplicateFilter()
        splitter = ConnectionSplitter()
        prescan = SessionPrescan()
        outdated: list[int] = []  # sessions whose boundary was found only after their pre-scan
        active: list[FileCursor] = []
        waiting: i64 = 0
        last: FileCursor | None = None
        while True:
            # Choose the file with the lowest merge key; start the next file when it is its turn.
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
            # Read its next reference.
            block = cursor.current_block
            record = block.next_record
            block.next_record = record + 1
            pos = block.seek(record)
            refs = block.refs
            captured = read_i64_le(refs, pos) & CAPTURED_MASK
            timestamp = read_i64_le(refs, pos + 8)
            seq_ack = read_i64_le(refs, pos + 16)
            header = read_i64_le(refs, pos + 24)
            # Drop a duplicate.
            if duplicates.is_duplicate(
                timestamp, captured * 2 + block.direction, seq_ack, header & SAME_PACKET_MASK
            ):
                self.duplicate_packets += 1
            else:
                if cursor is not last:
                    if cursor.was_left:
                        self.interleaved = True
                    if last is not None:
                        last.was_left = True
                    last = cursor
                # Start a session, here or at an earlier SYN that this packet confirms.
                size = captured + (header >> 32)
                start = splitter.session_start(
                    seq_ack, (header >> 16) & 255, size, block.direction, self.count
                )
                if start >= 0:
                    self.session_starts = append(self.session_starts, start)
                    prescan = SessionPrescan()
                    self.prescans.append(prescan)
                    if start < self.count:
                        # The session before has packets of this one: pre-scan both again.
                        number = len(self.prescans) - 1
                        if number - 1 not in outdated[-1:]:
                            outdated.append(number - 1)
                        outdated.append(number)
                prescan.add_packet(block, size, seq_ack, header, timestamp)
                order.add(block.index * 0x100000000 + record)
                self.count += 1
            if not cursor.advance():
                active.remove(cursor)
        order.finish()
        for session in outdated:
            self.prescans[session] = self.prescan_session(session)

    def prescan_session(self, number: i64) -> SessionPrescan:
        """Pre-scan a session again, once its boundaries are known."""
        end = self.count
        if number + 1 < len(self.session_starts):
            end = self.session_starts[number + 1]
        prescan = SessionPrescan()
        for index in range(self.session_starts[number], end):
            entry = self.order[index]
            block = self.ref_blocks[entry >> 32]
            pos = block.seek(entry & LOW32)
            refs = block.refs
            header = read_i64_le(refs, pos + 24)
            size = (read_i64_le(refs, pos) & CAPTURED_MASK) + (header >> 32)
            prescan.add_packet(
                block, size, read_i64_le(refs, pos + 16), header, read_i64_le(refs, pos + 8)
            )
        return prescan


def first_timestamp(cursor: FileCursor) -> int:
    return cursor.merge_key


class DuplicateFilter:
    """Remembers the packets of the current timestamp, to detect a packet that occurs twice."""

    def __init__(self) -> None:
        self.timestamp: i64 = 0
        # The first packet of the timestamp: usually there is no other.
        self.first_size: i64 = -1
        self.first_sequence: i64 = 0
        self.first_header: i64 = 0
        self.extra_count: i64 = 0  # packets beside the first, in the columns below
        self.sizes: vec[i64] = vec[i64]()
        self.sequences: vec[i64] = vec[i64]()
        self.headers: vec[i64] = vec[i64]()

    def is_duplicate(self, timestamp: i64, size: i64, sequence: i64, header: i64) -> bool:
        """Whether the same packet was seen at this timestamp; remembers it otherwise."""
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
            if len(self.sizes) == 0:  # few flows need them
                self.sizes = vec[i64]([0] * MAX_REMEMBERED_PACKETS)
                self.sequences = vec[i64]([0] * MAX_REMEMBERED_PACKETS)
                self.headers = vec[i64]([0] * MAX_REMEMBERED_PACKETS)
            self.sizes[self.extra_count] = size
            self.sequences[self.extra_count] = sequence
            self.headers[self.extra_count] = header
            self.extra_count += 1
        return False


class ConnectionSplitter:
    """Decides which packet starts a new session between the same two endpoints.

    A SYN with another initial sequence number does: immediately if the session before has ended,
    otherwise only once a packet confirms it by an acknowledgement or by payload that follows it. A
    stray SYN therefore does not end a session.
    """

    def __init__(self) -> None:
        self.is_open: bool = False
        self.mid_session: bool = False  # no end, no pending SYN: payload cannot start a session
        self.isn: vec[i64] = vec[i64]([-1, -1])
        self.first_seq: vec[i64] = vec[i64]([-1, -1])  # sequence number of a side's first byte
        self.end_seq: vec[i64] = vec[i64]([-1, -1])  # sequence number after its last segment
        self.ended: vec[i64] = vec[i64]([0, 0])
        self.pending_isn: i64 = -1  # initial sequence number of a SYN not confirmed yet
        self.pending_side: i64 = 0
        self.pending_index: i64 = 0

    def session_start(self, seq_ack: i64, flags: i64, size: i64, side: i64, index: i64) -> i64:
        """The index of the packet that starts a new session; NO_SESSION_START if none does.

        That is `index`, the current packet, or the index of an earlier SYN that it confirms.
        `seq_ack` is sequence number << 32 | acknowledgement.
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
            isn = self.pending_isn
            self.reset()
            self.isn[self.pending_side] = isn
            self.first_seq[self.pending_side] = (isn + 1) & LOW32
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
            return False  # a retransmission
        if self.isn[side] >= 0:
            return True
        if self.first_seq[side] >= 0:
            return self.first_seq[side] != (seq + 1) & LOW32  # not the start of the captured bytes
        other = self.isn[1 - side]
        if flags & ACK != 0 and other >= 0:
            return not follows_syn(other, ack)
        return flags & ACK == 0 and self.end_seq[side] >= 0

    def confirms_pending_syn(self, flags: i64, seq: i64, ack: i64, side: i64, size: i64) -> bool:
        """Whether this packet can only belong to the session of the pending SYN."""
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
    """Whether `seq` is at most 64 KiB after a SYN with initial sequence number `isn`."""
    return (seq - isn - 1) & LOW32 < 65536
