# mypyc: compiled
"""TCP reassembly: from the packets of a session to events of its two byte streams.

Problem: segments are lost, repeated, reordered, cut off by the snap length, or were never captured
although the receiver got them. The analysis needs each byte of both streams once and in order, and
must know where bytes are missing.

Idea: payload is not copied. An event names the file and offset of its bytes (`TcpEvents`). Each
`TcpDirection` has the next position to emit and a buffer of segments beyond it. A hole, bytes
missing before the buffered ones or before an acknowledgement, waits for a retransmission. It is
declared lost and becomes a gap when

- it has waited for `max_hole_wait_ns`,
- more than `max_buffered_bytes` or `max_buffered_segments` wait behind it,
- the receiver acknowledged it although it was not captured, and payload follows from either side,
  if the order of the two directions is proven: the answer to bytes must not be emitted before the
  gap that stands for them,
- or the session ends.

On the way, each direction records the spans of time in which a closed window or a retransmission
held the sender up, from which the analysis explains stalls.

Invariants:

- Bytes are emitted in order and once; of several copies, the first captured one.
- `next_position` never decreases, and `delivered_bytes` + `missing_bytes` equals it.
- `has_hole` is set while something waits: buffered segments, or an acknowledgement beyond the
  captured bytes. `hole_since` is the start of the wait.
- A packet emits at most `max_rows_per_packet` rows, so that a batch never overflows.

Nearly all packets are in order and take `fast_packet`; any other takes `packet`, with the same
result.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.packets.packet_refs import (
    ACK,
    CAPTURED_BITS,
    CAPTURED_MASK,
    FIN,
    LOW32,
    RST,
    SYN,
)
from polymux.capture.tcp.flow_order import FlowOrder

PAYLOAD: Final[i64] = 0
GAP: Final[i64] = 1
FINISHED: Final[i64] = 2
ABORTED: Final[i64] = 3
UNDECODABLE: Final[i64] = 4  # made by encapsulations: what follows of this side is not readable


class TcpEvents:
    """Events in the order of delivery: columns of `capacity` rows, the first `count` filled.

    `kind` PAYLOAD: `size` bytes are at `offset` of file number `file`. GAP: `size` bytes are
    missing. FINISHED, ABORTED: the FIN or RST of the side. `side` is 0 for the dialer,
    `timestamp` nanoseconds since 1970.
    """

    def __init__(self, capacity: i64) -> None:
        self.capacity: i64 = capacity
        self.count: i64 = 0
        self.payload_bytes: i64 = 0
        self.side: vec[i64] = vec[i64]([0] * capacity)
        self.kind: vec[i64] = vec[i64]([0] * capacity)
        self.timestamp: vec[i64] = vec[i64]([0] * capacity)
        self.size: vec[i64] = vec[i64]([0] * capacity)
        self.file: vec[i64] = vec[i64]([0] * capacity)
        self.offset: vec[i64] = vec[i64]([0] * capacity)

    def add(self, side: i64, kind: i64, timestamp: i64, size: i64, file: i64, offset: i64) -> None:
        """Append an event. The caller makes sure that there is room."""
        row = self.count
        # The columns are initialised with zeros, which is what most rows need.
        if side != 0:
            self.side[row] = side
        if kind != PAYLOAD:
            self.kind[row] = kind
        if file != 0:
            self.file[row] = file
        self.timestamp[row] = timestamp
        self.size[row] = size
        self.offset[row] = offset
        self.count = row + 1
        if kind == PAYLOAD:
            self.payload_bytes += size


# A hole filled within this time was reordering; later, a retransmission.
MAX_REORDERING_NS: Final[i64] = 3000000
# Spans kept for a direction. Further retransmission spans extend the last; others are dropped.
MAX_SPANS: Final = 65536
# If a window opens this long after the last new byte, the next bytes may have waited for it.
LATE_WINDOW_OPENING_NS: Final[i64] = 20000000
MAX_WINDOW_OPENINGS: Final = 64  # remembered until bytes follow
# Packets with repeated bytes that are kept for a session, to compare the copies.
MAX_REPEATED_PACKETS: Final = 4096
# Sequence numbers are taken as at most 1 GiB behind and less than 3 GiB ahead of the next byte:
# TCP's window keeps a sender within 1 GiB, while a capture may have lost more than that.
BEHIND_THRESHOLD: Final[i64] = 0xC0000000


class BufferedSegment:
    """Bytes buffered behind a hole; `missing` if they were cut off by the snap length."""

    def __init__(
        self, start: i64, size: i64, missing: bool, file: i64, offset: i64, timestamp: i64
    ) -> None:
        self.start: i64 = start
        self.size: i64 = size
        self.missing: bool = missing
        self.file: i64 = file
        self.offset: i64 = offset
        self.timestamp: i64 = timestamp


class TcpDirection:
    """State of one direction. Positions count its bytes from 0; times are in nanoseconds."""

    def __init__(self, side: i64) -> None:
        self.side: i64 = side
        self.started: bool = False
        self.base_seq: i64 = 0  # sequence number of byte 0
        self.next_position: i64 = 0  # the next byte to be emitted
        self.lost_until: i64 = 0  # bytes missing before this are declared lost
        self.highest_ack: i64 = 0  # highest acknowledgement
        self.ack_beyond_captured: i64 = 0  # the highest that acknowledges bytes not captured yet
        # By start, without overlaps; those before `buffer_head` have been emitted.
        self.buffered: list[BufferedSegment] = []
        self.buffer_head: i64 = 0
        self.buffered_bytes: i64 = 0
        self.has_hole: bool = False
        self.hole_since: i64 = 0
        self.fin_position: i64 = -1
        self.finished: bool = False
        self.aborted: bool = False
        self.sent_rst: bool = False  # possibly after its FIN
        self.delivered_bytes: i64 = 0
        self.missing_bytes: i64 = 0
        self.bytes_after_fin: i64 = 0  # payload beyond the position of the FIN
        self.progress_at: i64 = 0
        self.rtt_probe_end: i64 = -1
        self.rtt_probe_at: i64 = 0
        self.min_ack_delay: i64 = -1  # shortest time from a byte to its acknowledgement
        self.zero_window_since: i64 = -1
        self.zero_window_spans: list[tuple[int, int]] = []  # in which this side offered no window
        self.retransmission_spans: list[tuple[int, int]] = []  # without progress because of loss
        # The window that the other side offers, as in its packets, without scaling. Once bytes
        # sent beyond it prove that it is scaled, it is no longer evaluated.
        self.window_is_scaled: bool = False
        self.offered_window: i64 = -1
        self.offered_since: i64 = 0  # time of its last change
        self.window_edge: i64 = -1  # position of the end of the window
        self.window_wait_since: i64 = 0  # start of the wait for the first of `late_openings`
        self.late_openings: list[tuple[int, int]] = []  # their time, and the window's end before
        # Spans in which the window was too small for the bytes that followed.
        self.small_window_spans: list[tuple[int, int]] = []

    def begin(self, seq: i64) -> None:
        """Start at sequence number `seq`: position 0."""
        self.started = True
        self.base_seq = seq

    def position_of(self, seq: i64) -> i64:
        """The position of a sequence number, relative to the next position."""
        away = (seq - self.base_seq - self.next_position) & 0xFFFFFFFF
        if away >= BEHIND_THRESHOLD:
            away -= 0x100000000
        return self.next_position + away

    def acknowledged_end(self) -> i64:
        """The position up to which acknowledgements prove that bytes were sent.

        An acknowledgement also counts the FIN: if it was captured, it is subtracted; if not, the
        last acknowledged number may be the FIN.
        """
        if self.fin_position >= 0 and self.ack_beyond_captured > self.fin_position:
            return self.fin_position
        if (
            self.fin_position < 0
            and self.ack_beyond_captured == self.next_position + 1
            and self.buffer_head == len(self.buffered)
        ):
            return self.next_position
        return self.ack_beyond_captured

    def end_state(self, peer: TcpDirection) -> str | None:
        """How this side ended: "fin", "rst" or None.

        A RST after its FIN counts if it also ended the peer.
        """
        if self.aborted or (self.sent_rst and not peer.finished and not peer.aborted):
            return "rst"
        return "fin" if self.finished else None

    def buffer(
        self, start: i64, captured: i64, size: i64, file: i64, offset: i64, timestamp: i64
    ) -> None:
        """Buffer those of these bytes that are not buffered yet: the first copy wins.

        The first `captured` of `size` bytes are at `offset` of `file`, the others are missing.
        """
        n = self.insertion_index(start)
        if n > self.buffer_head:
            before = self.buffered[n - 1]
            cut = before.start + before.size - start
            if cut > 0:
                start += cut
                size -= cut
                captured -= cut
                offset += cut
        while size > 0:
            # The bytes up to the next buffered segment are free.
            free = size
            if n < len(self.buffered):
                following = self.buffered[n]
                free = following.start - start
                if free > size:
                    free = size
            if free > 0:
                n = self.insert(n, start, captured, free, file, offset, timestamp)
            if n >= len(self.buffered):
                return
            following = self.buffered[n]
            cut = following.start + following.size - start
            start += cut
            size -= cut
            captured -= cut
            offset += cut
            n += 1

    def insertion_index(self, start: i64) -> i64:
        """Index of the first buffered segment that starts at or after `start`."""
        high: i64 = len(self.buffered)
        if high == self.buffer_head or self.buffered[high - 1].start < start:
            return high  # nearly always: segments usually arrive in order
        low = self.buffer_head
        while low < high:
            middle = (low + high) >> 1
            if self.buffered[middle].start < start:
                low = middle + 1
            else:
                high = middle
        return low

    def insert(
        self, n: i64, start: i64, captured: i64, size: i64, file: i64, offset: i64, timestamp: i64
    ) -> i64:
        """Insert free bytes at index `n`, captured and missing ones; returns the next index."""
        present = captured if captured < size else size
        if present < 0:
            present = 0
        if present > 0:
            self.buffered.insert(n, BufferedSegment(start, present, False, file, offset, timestamp))
            self.buffered_bytes += present
            n += 1
        if present < size:
            self.buffered.insert(
                n, BufferedSegment(start + present, size - present, True, file, 0, timestamp)
            )
            n += 1
        return n

    def pop_buffered(self) -> None:
        """Remove the first buffered segment."""
        if not self.buffered[self.buffer_head].missing:
            self.buffered_bytes -= self.buffered[self.buffer_head].size
        self.buffer_head += 1
        # Removing from the front of a list moves the rest, so it is done rarely.
        if self.buffer_head == len(self.buffered):
            self.buffered = []
            self.buffer_head = 0
        elif self.buffer_head >= 1024:
            self.buffered = self.buffered[self.buffer_head :]
            self.buffer_head = 0

    def track_zero_window(self, window: i64, syn: i64, timestamp: i64) -> None:
        """This side offered `window` bytes: record the spans in which it offered none."""
        if window == 0 and syn == 0:
            if self.zero_window_since < 0:
                self.zero_window_since = timestamp
        elif self.zero_window_since >= 0:
            if len(self.zero_window_spans) < MAX_SPANS:
                self.zero_window_spans.append((self.zero_window_since, timestamp))
            self.zero_window_since = -1

    def track_offered_window(self, upto: i64, window: i64, timestamp: i64) -> None:
        """The other side acknowledged everything up to `upto` and offers `window` bytes more."""
        if upto < self.highest_ack:
            return  # an older packet, out of order
        edge = upto + window
        if (
            edge > self.window_edge
            and window >= self.offered_window * 2
            and self.window_edge >= 0
            and timestamp - self.progress_at >= LATE_WINDOW_OPENING_NS
            and len(self.late_openings) < MAX_WINDOW_OPENINGS
        ):
            if len(self.late_openings) == 0:
                since = self.offered_since
                self.window_wait_since = since if since > self.progress_at else self.progress_at
            self.late_openings.append((int(timestamp), int(self.window_edge)))
        self.window_edge = edge
        if window != self.offered_window:
            self.offered_window = window
            self.offered_since = timestamp

    def check_window_wait(self, end: i64) -> None:
        """New bytes up to `end` were sent: record a span if they had to wait for the window."""
        if end > self.window_edge + 1:  # one byte more may be a zero-window probe
            if self.window_edge >= 0:
                self.window_is_scaled = True
                self.small_window_spans = []
        else:
            for at, before in reversed(self.late_openings):
                if before < end:
                    if len(self.small_window_spans) < MAX_SPANS:
                        self.small_window_spans.append((int(self.window_wait_since), at))
                    break
        if len(self.late_openings) > 0:
            self.late_openings = []

    def receive_blocked_spans(self, peer: TcpDirection) -> list[tuple[int, int]]:
        """Spans in which this side's window was zero, or too small for what the peer sent next."""
        return sorted([*self.zero_window_spans, *peer.small_window_spans])

    def note_retransmission(self, timestamp: i64) -> None:
        """Bytes were repeated: the time since the last new byte was lost to a retransmission."""
        self.rtt_probe_end = -1  # Karn: an acknowledgement could answer either copy
        self.add_retransmission_span(self.progress_at, timestamp)

    def add_retransmission_span(self, began: i64, ended: i64) -> None:
        """Record a span; it replaces the last one if both begin at the same time."""
        spans = self.retransmission_spans
        if len(spans) > 0 and (spans[len(spans) - 1][0] == began or len(spans) >= MAX_SPANS):
            began = spans[len(spans) - 1][0]
            spans[len(spans) - 1] = (began, ended)
        else:
            spans.append((began, ended))

    def add_ack_delay(self, delay: i64) -> None:
        """Record the time from a byte to its acknowledgement, which ends the measurement."""
        self.rtt_probe_end = -1
        if delay >= 0 and (self.min_ack_delay < 0 or delay < self.min_ack_delay):
            self.min_ack_delay = delay


# The flags SYN, FIN and RST in word 3 of a reference, which exclude the fast path; and ACK.
SYN_FIN_RST_BITS: Final[i64] = 0x070000
ACK_BIT: Final[i64] = 0x100000

# Bits of word 0 of a reference below the number of its region: a region of a file is 16 MiB. Flows
# that are analyzed side by side read region by region.
REGION_SHIFT: Final[i64] = 44

# Rows of a batch; with small packets a batch is full before it has its target bytes.
BATCH_ROWS: Final[i64] = 2048
EXTRA_BATCH_ROWS: Final[i64] = 64


class Reassembler:
    """Reassembles one session of a flow: call `run` until `closed`.

    It has the packets from `begin` to before `end` of the flow's order. `flip` is 1 if the flow's
    second endpoint is the dialer, `ordered` tells whether the order of the two directions is
    proven. The ends, spans and counts of the directions are complete when `closed`.
    """

    def __init__(
        self,
        flow: FlowOrder,
        begin: i64,
        end: i64,
        flip: i64,
        ordered: bool,
        max_buffered_bytes: i64,
        max_buffered_segments: i64,
        max_hole_wait_ns: i64,
    ) -> None:
        self.flow: FlowOrder = flow
        self.next_index: i64 = begin
        self.end: i64 = end
        self.flip: i64 = flip
        self.ordered: bool = ordered
        self.max_buffered_bytes: i64 = max_buffered_bytes
        self.max_buffered_segments: i64 = max_buffered_segments
        self.max_hole_wait_ns: i64 = max_hole_wait_ns
        self.dialer: TcpDirection = TcpDirection(0)
        self.acceptor: TcpDirection = TcpDirection(1)
        self.out: TcpEvents = TcpEvents(0)
        self.timestamp: i64 = 0
        self.closed: bool = False
        self.next_batch_rows: i64 = BATCH_ROWS
        self.syn_at: i64 = -1
        self.syn_answered: bool = False
        self.handshake_ns: i64 = -1  # nanoseconds from SYN to the ACK that answers the SYN-ACK
        # Packets with bytes that were captured before: index in the flow's order, side, position
        # of the first byte, timestamp.
        self.repeated: list[tuple[int, int, int, int]] = []

    def run(self, target_bytes: i64, align_to_regions: bool = False) -> TcpEvents:
        """The next events, with at least `target_bytes` of payload unless the session ends before.

        With `align_to_regions`, from a quarter up to twice as many bytes, so that the batch ends
        where the next packet is in another region of its file: batches of flows that are analyzed
        side by side then cover the same regions.
        """
        # A packet usually needs one row. If that is not enough, the batch ends early.
        rows = self.end - self.next_index
        if rows > self.next_batch_rows:
            rows = self.next_batch_rows
        self.next_batch_rows = BATCH_ROWS
        out = TcpEvents(rows + 2 * self.max_rows_per_packet())
        self.out = out
        order = self.flow.order
        blocks = self.flow.ref_blocks
        number: i64 = 0
        block = blocks[0]
        enough = target_bytes
        if align_to_regions:
            enough = target_bytes // 4
            target_bytes *= 2
        region: i64 = -1
        while self.next_index < self.end and out.payload_bytes < target_bytes:
            entry = order[self.next_index]
            if entry >> 32 != number:
                number = entry >> 32
                block = blocks[number]
            pos = block.seek(entry & LOW32)
            if region < 0 or out.payload_bytes < enough:
                region = read_i64_le(block.refs, pos) >> REGION_SHIFT
            elif read_i64_le(block.refs, pos) >> REGION_SHIFT != region:
                break
            side = block.direction ^ self.flip
            direction = self.dialer if side == 0 else self.acceptor
            peer = self.acceptor if side == 0 else self.dialer
            if out.count == out.capacity or not self.fast_packet(
                block.refs, pos, direction, peer, block.file
            ):
                if out.capacity - out.count < self.max_rows_per_packet():
                    return out
                self.packet(block.refs, pos, direction, peer, block.file)
            self.next_index += 1
        if out.count < BATCH_ROWS // 2:  # allocating unused rows costs as much as used ones
            self.next_batch_rows = out.count * 2 + EXTRA_BATCH_ROWS
        if (
            self.next_index >= self.end
            and not self.closed
            and out.capacity - out.count >= self.max_rows_per_packet()
        ):
            self.closed = True
            self.close_direction(self.dialer)
            self.close_direction(self.acceptor)
        return out

    def round_trip(self) -> i64:
        """The round-trip time in nanoseconds: the handshake's, or the shortest; -1 if unknown."""
        if self.handshake_ns > 0:
            return self.handshake_ns
        if self.handshake_ns == 0:  # synthesised packets, not captured ones
            return -1
        # Captured in the middle, each direction's delay covers one part of the path.
        there = self.dialer.min_ack_delay
        back = self.acceptor.min_ack_delay
        if there < 0 or back < 0:
            return there if back < 0 else back
        return there + back

    def max_rows_per_packet(self) -> i64:
        """Upper bound of the rows of one packet, which can release all buffered segments."""
        waiting: i64 = len(self.dialer.buffered) + len(self.acceptor.buffered)
        return waiting * 4 + 16

    def fast_packet(
        self, refs: bytes, pos: i64, direction: TcpDirection, peer: TcpDirection, file: i64
    ) -> bool:
        """Fast path for a packet that is exactly the next one expected, as nearly all are.

        Returns False, with nothing changed, for any other packet: `packet` handles those.
        """
        header = read_i64_le(refs, pos + 24)
        if header >> 32 != 0 or header & SYN_FIN_RST_BITS != 0 or header & 0xFFFF == 0:
            return False
        if (
            not direction.started
            or direction.has_hole
            or peer.has_hole
            or direction.fin_position >= 0
            or direction.zero_window_since >= 0
        ):
            return False
        if self.syn_answered and self.handshake_ns < 0:
            return False
        location = read_i64_le(refs, pos)
        seq_ack = read_i64_le(refs, pos + 16)
        size = location & CAPTURED_MASK
        if size > 0 and (
            (seq_ack >> 32) & LOW32 != (direction.base_seq + direction.next_position) & LOW32
            or direction.buffer_head < len(direction.buffered)
        ):
            return False
        timestamp = read_i64_le(refs, pos + 8)
        if header & ACK_BIT != 0 and peer.started:
            upto = peer.position_of(seq_ack & LOW32)
            if upto > peer.next_position:
                return False
            if upto > peer.highest_ack:
                peer.highest_ack = upto
            if not peer.window_is_scaled:
                peer.track_offered_window(upto, header & 0xFFFF, timestamp)
            if peer.rtt_probe_end >= 0 and upto >= peer.rtt_probe_end:
                peer.add_ack_delay(timestamp - peer.rtt_probe_at)
        self.timestamp = timestamp
        if size > 0:
            if not direction.window_is_scaled:
                direction.check_window_wait(direction.next_position + size)
            direction.progress_at = timestamp
            self.emit_payload(direction, size, file, location >> CAPTURED_BITS, timestamp)
            if direction.rtt_probe_end < 0:
                direction.rtt_probe_end = direction.next_position
                direction.rtt_probe_at = timestamp
        return True

    def packet(
        self, refs: bytes, pos: i64, direction: TcpDirection, peer: TcpDirection, file: i64
    ) -> None:
        """Handle any packet: acknowledgement, SYN, payload, FIN and RST, in this order."""
        location = read_i64_le(refs, pos)
        timestamp = read_i64_le(refs, pos + 8)
        seq_ack = read_i64_le(refs, pos + 16)
        header = read_i64_le(refs, pos + 24)
        flags = (header >> 16) & 255
        captured = location & CAPTURED_MASK
        size = captured + (header >> 32)
        seq = (seq_ack >> 32) & LOW32
        self.timestamp = timestamp
        if direction.has_hole:
            self.expire_holes(direction)
        if peer.has_hole:
            self.expire_holes(peer)
        if flags & RST == 0:
            direction.track_zero_window(header & 0xFFFF, flags & SYN, timestamp)
        if flags & ACK != 0 and peer.started:
            if not peer.window_is_scaled and flags & RST == 0:
                upto = peer.position_of(seq_ack & LOW32)
                if upto <= peer.next_position:
                    peer.track_offered_window(upto, header & 0xFFFF, timestamp)
            self.handle_ack(peer, seq_ack & LOW32, size > 0)
        if flags & SYN != 0:
            self.handle_syn(direction, peer, flags, seq, seq_ack & LOW32)
            seq = (seq + 1) & LOW32
        elif (
            self.syn_answered and direction.side == 0 and self.handshake_ns < 0 and flags & ACK != 0
        ):
            self.handshake_ns = timestamp - self.syn_at
        if not direction.started and (size > 0 or flags & FIN != 0):
            direction.begin(seq)
        if size > 0:
            self.handle_segment(
                direction,
                direction.position_of(seq),
                size,
                captured,
                file,
                location >> CAPTURED_BITS,
            )
        if flags & FIN != 0 and direction.fin_position < 0:
            direction.fin_position = direction.position_of(seq) + size
        if direction.fin_position >= 0:
            self.emit_in_order(direction)
        if flags & RST != 0:
            direction.sent_rst = True
            self.close_direction(direction)
            if not direction.finished and not direction.aborted:
                direction.aborted = True
                self.out.add(direction.side, ABORTED, timestamp, 0, 0, 0)

    def handle_syn(
        self, direction: TcpDirection, peer: TcpDirection, flags: i64, seq: i64, ack: i64
    ) -> None:
        """Handle a SYN, which sets the initial sequence number."""
        if not direction.started:
            direction.begin((seq + 1) & LOW32)
        if flags & ACK == 0:
            if not self.syn_answered:
                self.syn_at = self.timestamp
        else:
            if not peer.started:
                peer.begin(ack)
            self.syn_answered = self.syn_at >= 0

    def handle_segment(
        self, direction: TcpDirection, start: i64, size: i64, captured: i64, file: i64, offset: i64
    ) -> None:
        """Handle `size` bytes at position `start`; the first `captured` are in the file."""
        if (
            self.ordered
            and start > direction.next_position
            and direction.ack_beyond_captured > direction.next_position
        ):
            # The bytes before were acknowledged before this packet: they were not captured.
            self.declare_lost(
                direction,
                direction.ack_beyond_captured if direction.ack_beyond_captured < start else start,
            )
        if start < direction.next_position:
            if start + size <= direction.next_position:
                # One byte that was already acknowledged is a keep-alive probe.
                if (
                    size > 1
                    or start + size < direction.next_position
                    or direction.highest_ack < direction.next_position
                ):
                    direction.note_retransmission(self.timestamp)
                # A keep-alive probe has one byte of any value.
                if size > 1 or start + size < direction.next_position:
                    self.note_repeated(direction, start)
                return
            direction.note_retransmission(self.timestamp)
            self.note_repeated(direction, start)
            cut = direction.next_position - start
            start = direction.next_position
            size -= cut
            captured -= cut
            offset += cut
            if captured < 0:
                captured = 0
        if direction.finished:
            direction.bytes_after_fin += size
            return
        if not direction.window_is_scaled:
            direction.check_window_wait(start + size)
        direction.progress_at = self.timestamp
        if start == direction.next_position and direction.buffer_head == len(direction.buffered):
            self.emit_payload(direction, captured, file, offset, self.timestamp)
            self.emit_gap(direction, size - captured, self.timestamp)
            if direction.rtt_probe_end < 0:
                direction.rtt_probe_end = direction.next_position
                direction.rtt_probe_at = self.timestamp
            if direction.has_hole and direction.acknowledged_end() <= direction.next_position:
                direction.has_hole = False
            return
        if not direction.has_hole:
            direction.has_hole = True
            direction.hole_since = self.timestamp
        before = direction.buffered_bytes
        direction.buffer(start, captured, size, file, offset, self.timestamp)
        if direction.buffered_bytes - before < captured:
            self.note_repeated(direction, start)
        self.emit_in_order(direction)
        while direction.buffered_bytes > self.max_buffered_bytes or (
            i64(len(direction.buffered)) - direction.buffer_head > self.max_buffered_segments
        ):
            self.declare_lost(direction, direction.buffered[direction.buffer_head].start)

    def note_repeated(self, direction: TcpDirection, start: i64) -> None:
        """The current packet, whose bytes begin at position `start`, repeats some of them."""
        if len(self.repeated) < MAX_REPEATED_PACKETS:
            self.repeated.append(
                (int(self.next_index), int(direction.side), int(start), int(self.timestamp))
            )

    def handle_ack(self, direction: TcpDirection, ack: i64, has_payload: bool) -> None:
        """Handle an acknowledgement, by the other side, of everything up to `ack`."""
        upto = direction.position_of(ack)
        if upto > direction.highest_ack:
            direction.highest_ack = upto
        if direction.rtt_probe_end >= 0 and upto >= direction.rtt_probe_end:
            direction.add_ack_delay(self.timestamp - direction.rtt_probe_at)
        if upto <= direction.next_position:
            return
        if upto > direction.ack_beyond_captured:
            direction.ack_beyond_captured = upto
        upto = direction.acknowledged_end()
        if upto <= direction.next_position:
            return
        if not direction.has_hole:
            direction.has_hole = True
            direction.hole_since = self.timestamp
        # Payload that acknowledges bytes never captured: if the order is proven, the capture lost
        # them, and the gap must be emitted before this answer.
        if self.ordered and has_payload:
            self.declare_lost(direction, upto)

    def expire_holes(self, direction: TcpDirection) -> None:
        """Declare holes lost that waited too long. A clock that steps back restarts the wait."""
        while direction.has_hole:
            if self.timestamp < direction.hole_since:
                direction.hole_since = self.timestamp
            if self.timestamp - direction.hole_since <= self.max_hole_wait_ns:
                return
            if direction.buffer_head < len(direction.buffered):
                self.declare_lost(direction, direction.buffered[direction.buffer_head].start)
            elif direction.acknowledged_end() > direction.next_position:
                self.declare_lost(direction, direction.acknowledged_end())
            else:
                direction.has_hole = False

    def declare_lost(self, direction: TcpDirection, upto: i64) -> None:
        """Turn the bytes missing before `upto` into gaps."""
        if upto > direction.lost_until:
            direction.lost_until = upto
        self.emit_in_order(direction)

    def emit_in_order(self, direction: TcpDirection) -> None:
        """Emit what is in order now, gaps for bytes declared lost, and then the FIN."""
        filled = True
        waited = direction.has_hole
        before = direction.next_position
        while True:
            if direction.buffer_head < len(direction.buffered):
                first: BufferedSegment = direction.buffered[direction.buffer_head]
                if first.start <= direction.next_position:
                    direction.pop_buffered()
                    at = self.timestamp if filled else first.timestamp
                    if first.missing:
                        self.emit_gap(direction, first.size, at)
                    else:
                        self.emit_payload(direction, first.size, first.file, first.offset, at)
                    continue
                if direction.next_position < direction.lost_until:
                    stop = (
                        direction.lost_until if direction.lost_until < first.start else first.start
                    )
                    self.emit_gap(
                        direction,
                        stop - direction.next_position,
                        direction.hole_since if waited else self.timestamp,
                    )
                    filled = False
                    continue
            elif direction.next_position < direction.lost_until:
                self.emit_gap(
                    direction,
                    direction.lost_until - direction.next_position,
                    direction.hole_since if waited else self.timestamp,
                )
                filled = False
                continue
            break
        if waited and direction.next_position > before:
            if filled and self.timestamp - direction.hole_since > MAX_REORDERING_NS:
                direction.add_retransmission_span(direction.hole_since, self.timestamp)
            direction.has_hole = False
            if direction.buffer_head < len(direction.buffered):
                direction.has_hole = True
                direction.hole_since = direction.buffered[direction.buffer_head].timestamp
            elif direction.acknowledged_end() > direction.next_position:
                direction.has_hole = True
                direction.hole_since = self.timestamp
        if (
            direction.fin_position >= 0
            and direction.next_position >= direction.fin_position
            and not direction.finished
        ):
            direction.finished = True
            if not direction.aborted:
                self.out.add(direction.side, FINISHED, self.timestamp, 0, 0, 0)

    def close_direction(self, direction: TcpDirection) -> None:
        """No more packets follow: turn all holes into gaps."""
        upto = direction.acknowledged_end()
        if direction.buffer_head < len(direction.buffered):
            last = direction.buffered[len(direction.buffered) - 1]
            if last.start > upto:
                upto = last.start
        if direction.fin_position > upto:
            upto = direction.fin_position
        self.declare_lost(direction, upto)
        direction.track_zero_window(1, 0, self.timestamp)

    def emit_payload(
        self, direction: TcpDirection, size: i64, file: i64, offset: i64, timestamp: i64
    ) -> None:
        """Emit `size` bytes at `offset` of a file and advance the position."""
        if size > 0:
            direction.next_position += size
            direction.delivered_bytes += size
            self.out.add(direction.side, PAYLOAD, timestamp, size, file, offset)

    def emit_gap(self, direction: TcpDirection, size: i64, timestamp: i64) -> None:
        """Emit `size` missing bytes and advance the position."""
        if size > 0:
            direction.next_position += size
            direction.missing_bytes += size
            self.out.add(direction.side, GAP, timestamp, size, 0, 0)
