# mypyc: compiled
"""The packets of one flow, from all files, in the order of capture, divided into sessions.

Problem: the packets of a connection may be spread over several capture files: a rotation, two
interfaces, a file for each direction. Clocks may step or differ between files, files may overlap
and contain the same packet twice, and a pair of endpoints may be reused for another connection.
A huge flow has more references than fit into memory.

Idea: a merge of sorted inputs, in one pass over the references, without reading payload.

- Within a file, the order of the file counts, not its timestamps. `FileCursor` merges the two
  directions of each range by file offset.
- Between files, cursors are merged by `merge_key`, the latest timestamp each has reached, which
  never decreases even if the clock of the file does. Files that do not overlap in time therefore
  follow each other completely.
- The files of one rotated recording say their number. Each begins where the one before ends, and
  its merge key goes on from there, however the clock has stepped in between (`RecordedFiles`).
- `DuplicateFilter` drops a packet that was already seen at the same timestamp.
- `ConnectionSplitter` decides which packet starts a new session.
- `SessionPrescan` collects facts about each session on the way: the dialer, first and last
  timestamp, files and hint, and whether the captured order of the two directions can be trusted.
- References (`RefBlock`) and their order (`PagedInts`) are read from front to back, a few times.
  What is stored outside of memory is read a window at a time, so that a flow of any length takes
  the same memory.

Invariants after `arrange`:

- `order[i]` is block index << 32 | record number, and each reference occurs at most once.
- Session `n` has the packets from `session_starts[n]` to before `session_starts[n + 1]`.
- If a session is `interleaved`, the merge returned to a file that it had left within the session:
  the order of its two directions against each other depends on clocks and is not proven. Another
  connection of the same endpoints has no part in that, whenever its packets are added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Final

from librt.strings import read_i64_le
from librt.vecs import append, vec
from mypy_extensions import i64

from polymux.capture.packets.packet_refs import (
    ACK,
    CAPTURED_BITS,
    CAPTURED_MASK,
    FIN,
    LOW32,
    REF_BYTES,
    RST,
    SAME_PACKET_MASK,
    SYN,
    as_byte_view,
)
from polymux.capture.pcapng.scanner import MAX_TIMESTAMP

NO_SESSION_START: Final[i64] = -1
MIN_MERGE_KEY: Final[i64] = -0x4000000000000000  # before every timestamp
# Bound of `FileCursor.key_shift`, 73 years: a timestamp plus this does not overflow.
MAX_KEY_SHIFT: Final[i64] = 0x1FFFFFFFFFFFFFFF
# Packets with the same timestamp that are remembered, beside the first, to detect duplicates.
MAX_REMEMBERED_PACKETS: Final[i64] = 64
# Bytes between two positions of one connection at about the same time are fewer than this.
MAX_POSITION_DISTANCE: Final[i64] = 67108864
MAX_SYN_DISTANCE: Final[i64] = 65536  # the same of a SYN
# Connections of one flow that are watched for bytes of an earlier one: those that began last.
MAX_RIVALS: Final[i64] = 4
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
        self.merge_key: i64 = MIN_MERGE_KEY  # latest timestamp so far: files are merged by it
        self.key_shift: i64 = 0  # added to timestamps for `merge_key`: the clock stepped back
        self.recorded: RecordedFiles | None = None
        self.file_number: i64 = 0  # in `recorded`

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
        timestamp = read_i64_le(block.refs, pos + 8) + self.key_shift
        if timestamp > self.merge_key:
            self.merge_key = timestamp
        return True

    def begin_after(self, key: i64, first: i64) -> None:
        """Begin no earlier than at merge key `key`, for a file whose clock began at `first`."""
        if key > MAX_TIMESTAMP:
            key = MAX_TIMESTAMP
        if key > first:
            self.key_shift = key - first
            if self.key_shift > MAX_KEY_SHIFT:
                self.key_shift = MAX_KEY_SHIFT
            self.merge_key += self.key_shift


class RecordedFiles:
    """The files of one rotated recording, in the order in which they were written.

    Files with the same number, copies or pieces of one, are merged with each other.
    """

    def __init__(self) -> None:
        self.cursors: list[FileCursor] = []  # by ascending number after `sort`
        self.started: i64 = 0  # how many of them were started
        self.unfinished: i64 = 0  # how many of those have packets left

    def sort(self) -> None:
        self.cursors.sort(key=file_number)

    def start_next(self, key: i64) -> list[FileCursor]:
        """Start the files with the next number; those before ended at merge key `key`."""
        following: list[FileCursor] = []
        while self.started < len(self.cursors):
            cursor = self.cursors[self.started]
            if len(following) > 0 and cursor.file_number != following[0].file_number:
                break
            following.append(cursor)
            self.started += 1
        self.unfinished = len(following)
        if len(following) > 0:
            first = following[0].merge_key
            for cursor in following:
                if cursor.merge_key < first:
                    first = cursor.merge_key
            for cursor in following:
                cursor.begin_after(key, first)
        return following


class FlowOrder:
    """The references of one flow in capture order, divided into sessions.

    Call `add_file` for each file, then `arrange` once. With `lanes`, one for each block, only the
    packets of `lane` are arranged (`conversations`).
    """

    def __init__(
        self, spool: SpoolFactory | None = None, lanes: list[bytes] | None = None, lane: i64 = -1
    ) -> None:
        self.lanes: list[bytes] = lanes if lanes is not None else []
        self.lane: i64 = lane
        self.mixed: bool = False  # connections that are alive at once: see `ConnectionSplitter`
        self.ref_blocks: list[RefBlock] = []
        self.window_cache: RefWindowCache = RefWindowCache()
        self.cursors: list[FileCursor] = []
        self.order: PagedInts = PagedInts(spool)
        self.count: i64 = 0
        self.session_starts: vec[i64] = vec[i64]()  # indexes into `order`
        self.prescans: list[SessionPrescan] = []  # one for each session
        self.duplicate_packets: i64 = 0
        self.recordings: dict[str, RecordedFiles] = {}

    def add_file(
        self,
        ranges: list[tuple[StoredRefs, StoredRefs]],
        recording: str = "",
        number: i64 = 0,
    ) -> None:
        """Add the references of the next file: both directions of each of its ranges, in order.

        `recording` and `number` are its place in a rotated recording; "" if it is in none.
        """
        cursor = FileCursor(len(self.cursors))
        for forth, back in ranges:
            cursor.forward_blocks.append(self.add_ref_block(forth, 0, cursor.file))
            cursor.backward_blocks.append(self.add_ref_block(back, 1, cursor.file))
        cursor.advance()
        self.cursors.append(cursor)
        if recording != "":
            if recording not in self.recordings:
                self.recordings[recording] = RecordedFiles()
            recorded = self.recordings[recording]
            recorded.cursors.append(cursor)
            cursor.recorded = recorded
            cursor.file_number = number

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
        # Files that may start when it is their turn; of a recording only the first.
        startable = [cursor for cursor in self.cursors if cursor.recorded is None]
        for recorded in self.recordings.values():
            recorded.sort()
            startable.extend(recorded.start_next(MIN_MERGE_KEY))
        startable.sort(key=first_timestamp)
        duplicates = DuplicateFilter()
        splitter = ConnectionSplitter()
        prescan = SessionPrescan()
        outdated: list[int] = []  # sessions whose boundary was found only after their pre-scan
        active: list[FileCursor] = []
        waiting: i64 = 0
        while True:
            # Choose the file with the lowest merge key; start the next file when it is its turn.
            cursor: FileCursor | None = None
            if len(active) == 1:  # nearly always
                cursor = active[0]
            else:
                for candidate in active:
                    if (
                        cursor is None
                        or candidate.merge_key < cursor.merge_key
                        or (
                            candidate.merge_key == cursor.merge_key and candidate.file < cursor.file
                        )
                    ):
                        cursor = candidate
            if waiting < len(startable):
                following = startable[waiting]
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
            elif self.lane < 0 or self.is_in_lane(block.index, record):
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
                self.start_following(cursor, active)
        order.finish()
        self.mixed = splitter.mixed
        for session in outdated:
            self.prescans[session] = self.prescan_session(session)

    def is_in_lane(self, block: i64, record: i64) -> bool:
        """Whether a packet is in the lane that is arranged."""
        lane: i64 = self.lanes[block][record]
        return lane == self.lane

    def start_following(self, ended: FileCursor, active: list[FileCursor]) -> None:
        """Add the files that follow `ended` in its recording to those being merged."""
        recorded = ended.recorded
        if recorded is None:
            return
        recorded.unfinished -= 1
        if recorded.unfinished == 0:
            active.extend(recorded.start_next(ended.merge_key))
            self.window_cache.expect_files(len(active))

    def take_prescans(self) -> list[SessionPrescan]:
        """The facts of each session, in their order, which are held no longer."""
        found = self.prescans
        self.prescans = []
        return found

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

    def packed_packets(self, begin: i64, end: i64) -> dict[int, bytes]:
        """The references of the packets from `begin` to before `end`, packed, by block index.

        Those of a block are in their order within it.
        """
        parts: dict[int, list[bytes]] = {}
        for index in range(begin, end):
            entry = self.order[index]
            number = entry >> 32
            block = self.ref_blocks[number]
            pos = block.seek(entry & LOW32)
            if number not in parts:
                parts[number] = []
            parts[number].append(block.refs[pos : pos + REF_BYTES])
        return {number: b"".join(refs) for number, refs in parts.items()}


def file_number(cursor: FileCursor) -> int:
    return cursor.file_number


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

    From the first SYN on that comes before the session has ended, `rivals` watches whether both
    connections go on, so that they cannot be divided by a SYN at all; `mixed` is set then.
    """

    def __init__(self) -> None:
        self.is_open: bool = False
        # No end, no pending SYN, no rivals: payload cannot start a session.
        self.mid_session: bool = False
        self.mixed: bool = False
        self.rivals: RivalConnections | None = None
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
        rivals = self.rivals
        if rivals is not None and rivals.add(flags, seq, ack, side, size):
            self.mixed = True
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
                if self.rivals is None:
                    self.watch_rivals(flags, seq, ack, side)
        self.update(flags, seq, ack, side, size)
        self.mid_session = (
            self.is_open
            and self.pending_isn < 0
            and self.ended[0] + self.ended[1] == 0
            and self.rivals is None
        )
        return found

    def watch_rivals(self, flags: i64, seq: i64, ack: i64, side: i64) -> None:
        """Watch whether the current session goes on beside the connection that a SYN begins."""
        rivals = RivalConnections(self.end_seq[0], self.end_seq[1])
        rivals.add(flags, seq, ack, side, 0)
        self.rivals = rivals

    def reset(self) -> None:
        """Start a new session."""
        self.is_open = True
        self.pending_isn = -1
        for side in range(i64(2)):
            self.isn[side] = -1
            self.first_seq[side] = -1
            self.end_seq[side] = -1
            self.ended[side] = 0

    def is_new_connection(self, flags: i64, seq: i64, ack: i64, side: i64) -> bool:
        """Whether a SYN has another initial sequence number than the current session."""
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
        """Whether `seq` is too far from the end of a side to belong to the current session."""
        if self.end_seq[side] < 0:
            return True
        away = (seq - self.end_seq[side]) & LOW32
        return NEW_SESSION_DISTANCE < away < 0x100000000 - NEW_SESSION_DISTANCE

    def update(self, flags: i64, seq: i64, ack: i64, side: i64, size: i64) -> None:
        """Record a packet of the current session; a pending SYN is not part of it."""
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


class RivalConnections:
    """Where the connections of one flow are, once one has begun before another had ended.

    A host that uses a port again knows of one connection only: what it sends is of the one that
    began last. Bytes or a FIN of an earlier one, far from the position of every later one, prove
    that both are alive, once the later one was answered.
    """

    def __init__(self, forward: i64, backward: i64) -> None:
        self.count: i64 = 1  # the first is the connection that had not ended
        self.answered: i64 = 0  # the last one of which more was seen than SYNs of one side
        # Of the last `MAX_RIVALS`: the sequence number after the last packet of each side, -1 if
        # unknown; and the side that sent the first packet.
        self.end_seq: vec[i64] = vec[i64]([-1] * (2 * MAX_RIVALS))
        self.first_side: vec[i64] = vec[i64]([-1] * MAX_RIVALS)
        self.end_seq[0] = forward
        self.end_seq[1] = backward

    def add(self, flags: i64, seq: i64, ack: i64, side: i64, size: i64) -> bool:
        """Go on with a packet; return whether it proves that two connections are alive."""
        if flags & RST != 0:
            return False
        number = self.connection_of(flags, seq, ack, side)
        if number < 0:
            if flags & SYN == 0:
                return False
            number = self.count
            self.count += 1
            self.first_side[number % MAX_RIVALS] = side
            place = number % MAX_RIVALS * 2
            self.end_seq[place] = -1
            self.end_seq[place + 1] = -1
        self.move(number % MAX_RIVALS * 2, flags, seq, ack, side, size)
        if number > self.answered and (size > 0 or side != self.first_side[number % MAX_RIVALS]):
            self.answered = number
        return number < self.answered and (size > 0 or flags & FIN != 0)

    def connection_of(self, flags: i64, seq: i64, ack: i64, side: i64) -> i64:
        """The last connection that is near to a packet in both directions; -1 if none is."""
        limit: i64 = MAX_POSITION_DISTANCE
        if flags & SYN != 0:
            limit = MAX_SYN_DISTANCE
        number = self.count - 1
        while number >= 0 and number >= self.count - MAX_RIVALS:
            place = number % MAX_RIVALS * 2
            there, answers = self.end_seq[place + side], self.end_seq[place + 1 - side]
            ack_known = flags & ACK != 0 and answers >= 0
            if (
                (there >= 0 or ack_known)
                and (there < 0 or is_near(seq, there, limit))
                and (not ack_known or is_near(ack, answers, limit))
            ):
                return number
            number -= 1
        return -1

    def move(self, place: i64, flags: i64, seq: i64, ack: i64, side: i64, size: i64) -> None:
        """Note where a connection is after a packet."""
        end = seq + size
        if flags & SYN != 0:
            end += 1
        self.end_seq[place + side] = end & LOW32
        if flags & ACK != 0 and seq_after(ack, self.end_seq[place + 1 - side]):
            self.end_seq[place + 1 - side] = ack


def is_near(seq: i64, position: i64, limit: i64) -> bool:
    """Whether two sequence numbers, which wrap around, are at most `limit` bytes apart."""
    away = (seq - position) & LOW32
    return away <= limit or away >= 0x100000000 - limit


def follows_syn(isn: i64, seq: i64) -> bool:
    """Whether `seq` is at most 64 KiB after a SYN with initial sequence number `isn`."""
    return (seq - isn - 1) & LOW32 < 65536


class SessionPrescan:
    """Facts about a session, collected packet by packet.

    Directions are those of the flow, -1 if unknown. `hint_block` and `hint_index` are the
    `RefBlock` and the number of the earliest hint, -1 if there is none.
    """

    def __init__(self) -> None:
        self.packets: i64 = 0
        self.first_at: i64 = 0
        self.last_at: i64 = 0
        self.syn_direction: i64 = -1  # direction of the SYN
        self.syn_ack_direction: i64 = -1  # direction of the SYN-ACK
        self.dialer_isn: i64 = -1  # initial sequence number of the side that sent the SYN
        self.first_payload_direction: i64 = -1
        self.segment_bytes: vec[i64] = vec[i64]([0, 0])  # including retransmissions
        self.hint_block: i64 = -1
        self.hint_index: i64 = 0
        self.files: list[int] = []
        self.disordered: bool = False
        self.interleaved: bool = False  # the merge returned to a file of the session
        self.current_file: i64 = -1
        self.end_seq: vec[i64] = vec[i64]([-1, -1])  # sequence number after a direction's last byte
        self.highest_ack: vec[i64] = vec[i64]([-1, -1])  # highest acknowledgement of its bytes

    def add_packet(
        self, block: RefBlock, size: i64, seq_ack: i64, header: i64, timestamp: i64
    ) -> None:
        """Add the next packet, one of `block`: its payload size, and words of its reference."""
        direction = block.direction
        syn = header & (SYN << 16) != 0
        if size > 0:
            if self.first_payload_direction < 0:
                self.first_payload_direction = direction
            self.segment_bytes[direction] += size
            high = self.end_seq[direction]
            if acked_before_captured(seq_ack >> 32, size, high, self.highest_ack[direction]):
                self.disordered = True
            stop = ((seq_ack >> 32) + size + (1 if syn else 0)) & LOW32
            if seq_after(stop, high):
                self.end_seq[direction] = stop
        elif syn:
            stop = ((seq_ack >> 32) + 1) & LOW32
            if seq_after(stop, self.end_seq[direction]):
                self.end_seq[direction] = stop
        if header & (ACK << 16) != 0 and seq_after(
            seq_ack & LOW32, self.highest_ack[1 - direction]
        ):
            self.highest_ack[1 - direction] = seq_ack & LOW32
        if syn:
            if header & (ACK << 16) == 0:
                if self.syn_direction < 0:
                    self.syn_direction = direction
                    self.dialer_isn = (seq_ack >> 32) & LOW32
            elif self.syn_ack_direction < 0:
                self.syn_ack_direction = direction
                if self.dialer_isn < 0:
                    self.dialer_isn = (seq_ack - 1) & LOW32
        if self.hint_block < 0 and (header >> 24) & 255 != 0:
            self.hint_block = block.index
            self.hint_index = (header >> 24) & 255
        if block.file != self.current_file:
            self.current_file = block.file
            if self.current_file in self.files:
                self.interleaved = True
            else:
                self.files.append(self.current_file)
        self.last_at = timestamp
        if self.packets == 0:
            self.first_at = timestamp
        self.packets += 1

    def has_packets(self, direction: i64) -> bool:
        """Whether a packet of this direction was captured. A RST without ACK is not noticed."""
        return self.end_seq[direction] >= 0 or self.highest_ack[1 - direction] >= 0


def acked_before_captured(seq: i64, size: i64, high: i64, acked: i64) -> bool:
    """Whether the new bytes among these were acknowledged before they were captured."""
    if high < 0 or acked < 0 or not seq_after((seq + size) & LOW32, high):
        return False
    start = seq & LOW32
    if seq_after(high, start):
        start = high
    return seq_after(acked, start)


def seq_after(seq: i64, other: i64) -> bool:
    """Whether a sequence number comes after another; anything comes after -1."""
    return other < 0 or 0 < (seq - other) & LOW32 < 0x80000000


# Records of a window of stored references, and windows in memory: one for each direction of each
# file that is being merged, and two to spare.
WINDOW_RECORDS: Final[i64] = 2048
SPARE_WINDOWS: Final[i64] = 2
# Entries of a page of `PagedInts`, and pages kept in memory.
PAGE_BITS: Final[i64] = 16
PAGE_ENTRIES: Final[i64] = 65536
ENTRY_BYTES: Final[i64] = 8
MAX_PAGES_IN_MEMORY: Final[i64] = 8

NO_OFFSET: Final[i64] = 0x7FFFFFFFFFFFFFFF  # beyond every file

# Packed references; or if they are stored outside, b"" and a function that reads bytes of them by
# offset and size; and the number of records.
StoredRefs = tuple[bytes, Callable[[int, int], bytes] | None, int]
SpoolFactory = Callable[[], BinaryIO]


class RefWindowCache:
    """Limits how many stored blocks have a window in memory: those loaded last."""

    def __init__(self) -> None:
        self.loaded: list[RefBlock] = []
        self.max_loaded: i64 = SPARE_WINDOWS + 2

    def expect_files(self, files: i64) -> None:
        """Allow for windows of both directions of `files` files that are merged."""
        if SPARE_WINDOWS + 2 * files > self.max_loaded:
            self.max_loaded = SPARE_WINDOWS + 2 * files

    def load(self, block: RefBlock, record: i64) -> None:
        """Load the window with `record` into the block."""
        stored = block.stored
        if stored is None or record < 0 or record >= block.count:
            raise IndexError("no such reference")
        first = record - record % WINDOW_RECORDS
        size = block.count - first
        if size > WINDOW_RECORDS:
            size = WINDOW_RECORDS
        refs = stored(first * REF_BYTES, size * REF_BYTES)
        if len(refs) != size * REF_BYTES:
            raise ValueError("stored references are fewer than they were")
        if block.loaded_count == 0:
            self.loaded.append(block)
            if len(self.loaded) > self.max_loaded:
                oldest = self.loaded.pop(0)
                oldest.refs = b""
                oldest.loaded_count = 0
        block.refs = refs
        block.first_record = first
        block.loaded_count = size


class RefBlock:
    """References of one direction in one range of one file.

    `refs` are those in memory: `loaded_count` records from number `first_record` on.
    """

    def __init__(
        self, source: StoredRefs, direction: i64, file: i64, index: i64, cache: RefWindowCache
    ) -> None:
        self.refs: bytes = source[0]
        self.stored: Callable[[int, int], bytes] | None = source[1]
        self.count: i64 = source[2]
        self.direction: i64 = direction
        self.file: i64 = file
        self.index: i64 = index  # in `FlowOrder.ref_blocks`
        self.cache: RefWindowCache = cache
        self.first_record: i64 = 0
        self.loaded_count: i64 = len(self.refs) // REF_BYTES
        self.next_record: i64 = 0

    def seek(self, record: i64) -> i64:
        """Position of a record in `refs`. May load another window: read `refs` after this call."""
        row = record - self.first_record
        if row < 0 or row >= self.loaded_count:
            self.cache.load(self, record)
            row = record - self.first_record
        return row * REF_BYTES

    def next_offset(self) -> i64:
        """File offset of the next packet; NO_OFFSET if there is none."""
        if self.next_record >= self.count:
            return NO_OFFSET
        pos = self.seek(self.next_record)
        return read_i64_le(self.refs, pos) >> CAPTURED_BITS


class PagedInts:
    """A sequence of integers that is written once, front to back, and then read.

    Call `allocate` with the maximum number, `add` for each, then `finish`. Pages beyond
    `MAX_PAGES_IN_MEMORY` go to the file that `open_spool` returns, if given; its owner closes it.
    """

    def __init__(self, open_spool: SpoolFactory | None) -> None:
        self.count: i64 = 0
        self.open_spool: SpoolFactory | None = open_spool
        self.spool_file: BinaryIO | None = None
        self.pages: list[bytes] = []
        self.write_words: vec[i64] = vec[i64]()  # the page being written
        self.read_page: bytes = b""  # the page read last, with entries `read_begin` to `read_end`
        self.read_begin: i64 = 0
        self.read_end: i64 = 0

    def allocate(self, entries: i64) -> None:
        """Prepare for at most `entries` integers."""
        self.write_words = vec[i64]([0] * (entries if entries < PAGE_ENTRIES else PAGE_ENTRIES))

    def add(self, entry: i64) -> None:
        """Append an integer."""
        self.write_words[self.count & (PAGE_ENTRIES - 1)] = entry
        self.count += 1
        if self.count & (PAGE_ENTRIES - 1) == 0:
            self.flush_page()

    def flush_page(self) -> None:
        """Store the page being written."""
        used = self.count - ((self.count - 1) & -PAGE_ENTRIES)
        page = bytes(as_byte_view(self.write_words, used)[: used * ENTRY_BYTES])
        if len(self.pages) < MAX_PAGES_IN_MEMORY or self.open_spool is None:
            self.pages.append(page)
            return
        if self.spool_file is None:
            self.spool_file = self.open_spool()
        self.spool_file.write(page)

    def finish(self) -> None:
        """End writing; only reads may follow."""
        if self.count & (PAGE_ENTRIES - 1) != 0:
            self.flush_page()
        self.write_words = vec[i64]()

    def __getitem__(self, index: i64) -> i64:
        if index < self.read_begin or index >= self.read_end:
            self.load_page(index)
        return read_i64_le(self.read_page, (index - self.read_begin) * ENTRY_BYTES)

    def load_page(self, index: i64) -> None:
        """Load the page with the entry `index`."""
        if index < 0 or index >= self.count:
            raise IndexError("no such entry")
        number = index >> PAGE_BITS
        begin = number << PAGE_BITS
        size = self.count - begin
        if size > PAGE_ENTRIES:
            size = PAGE_ENTRIES
        if number < len(self.pages):
            self.read_page = self.pages[number]
        else:
            file = self.spool_file
            assert file is not None  # pages beyond those in memory were written to it
            file.seek((begin - (MAX_PAGES_IN_MEMORY << PAGE_BITS)) * ENTRY_BYTES)
            self.read_page = file.read(size * ENTRY_BYTES)
            if len(self.read_page) != size * ENTRY_BYTES:
                raise ValueError("the stored order of a flow is shorter than it was")
        self.read_begin = begin
        self.read_end = begin + size
