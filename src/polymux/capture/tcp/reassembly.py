# mypyc: compiled
"""TCP reassembly: a session's packets in, pieces of its two byte streams out, nothing copied.

A piece says where its octets lie. Octets come out in order, each once, the first copy of them.
A hole waits for its retransmission; it becomes a gap when it has waited too long, when too much
waits behind it, or when the other side acknowledged what was never captured.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_le
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
from polymux.capture.tcp.direction import SPAN_REORDERED, Held, Lane
from polymux.capture.tcp.events import ABORTED, FINISHED, GAP, OCTETS, Events
from polymux.capture.tcp.flow_order import Flow

# SYN, FIN and RST where a reference has them, which a plain packet has not; and its ACK.
TURNS: Final[i64] = 0x070000
ACKNOWLEDGES: Final[i64] = 0x100000

# A cell of a file, as flows side by side look at them together: 16 MiB. The bits of its number
# within a reference.
CELL_BITS: Final[i64] = 44

# Rows of a batch; with small packets a batch is full before it has its octets.
BATCH_ROWS: Final[i64] = 2048
FEW_ROWS: Final[i64] = 64


class Reassembler:
    """Walks one session of a flow: call `run` until `closed`.

    `flip` is 1 if the flow's second endpoint is the dialer. What the lanes say (ends, spans,
    counts) is complete once `run` has given its last event.
    """

    def __init__(
        self,
        flow: Flow,
        begin: i64,
        end: i64,
        flip: i64,
        ordered: bool,
        octet_limit: i64,
        segment_limit: i64,
        hole_wait: i64,
    ) -> None:
        self.flow: Flow = flow
        self.place: i64 = begin
        self.end: i64 = end
        self.flip: i64 = flip
        self.ordered: bool = ordered
        self.octet_limit: i64 = octet_limit
        self.segment_limit: i64 = segment_limit
        self.hole_wait: i64 = hole_wait
        self.dialer: Lane = Lane(0)
        self.acceptor: Lane = Lane(1)
        self.out: Events = Events(0)
        self.at: i64 = 0
        self.closed: bool = False
        self.rows: i64 = BATCH_ROWS  # of the next batch
        self.syn_at: i64 = -1
        self.greeted: bool = False
        self.handshake: i64 = -1  # nanoseconds from SYN to the ACK that answers the SYN-ACK

    def run(self, octets: i64, cells: bool = False) -> Events:
        """Events with at least `octets` of payload in all, or fewer if few are left.

        With `cells`, from a quarter up to twice as many, so that they end where the next packet
        lies in another cell of its file: so what flows side by side read begins and ends together.
        """
        # A packet is a row as a rule; where that is not enough, the rest waits for the next batch.
        rows = self.end - self.place
        if rows > self.rows:
            rows = self.rows
        self.rows = BATCH_ROWS
        out = Events(rows + 2 * self.room())
        self.out = out
        order = self.flow.order
        blobs = self.flow.blobs
        number: i64 = 0
        blob = blobs[0]
        enough = octets
        if cells:
            enough = octets // 4
            octets *= 2
        cell: i64 = -1
        while self.place < self.end and out.octets < octets:
            entry = order[self.place]
            if entry >> 32 != number:
                number = entry >> 32
                blob = blobs[number]
            pos = blob.seek(entry & LOW32)
            if cell < 0 or out.octets < enough:
                cell = read_i64_le(blob.refs, pos) >> CELL_BITS
            elif read_i64_le(blob.refs, pos) >> CELL_BITS != cell:
                break
            side = blob.direction ^ self.flip
            lane = self.dialer if side == 0 else self.acceptor
            peer = self.acceptor if side == 0 else self.dialer
            if out.count == out.rows or not self.plain(blob.refs, pos, lane, peer, blob.file):
                if out.rows - out.count < self.room():
                    return out
                self.packet(blob.refs, pos, lane, peer, blob.file)
            self.place += 1
        if out.count < BATCH_ROWS // 2:  # room that is not needed costs as much as room that is
            self.rows = out.count * 2 + FEW_ROWS
        if self.place >= self.end and not self.closed and out.rows - out.count >= self.room():
            self.closed = True
            self.close(self.dialer)
            self.close(self.acceptor)
        return out

    def round_trip(self) -> i64:
        """The shortest way there and back that was seen, in nanoseconds; -1 if none was."""
        if self.handshake > 0:
            return self.handshake
        if self.handshake == 0:  # none at all: it was written down, not measured
            return -1
        # Seen from the middle, each direction's delay is one part of the way and back.
        there = self.dialer.quickest
        back = self.acceptor.quickest
        if there < 0 or back < 0:
            return there if back < 0 else back
        return there + back

    def room(self) -> i64:
        """Rows one packet may need: it can release all that waits, cut up and with gaps."""
        waiting: i64 = len(self.dialer.held) + len(self.acceptor.held)
        return waiting * 4 + 16

    def plain(self, refs: bytes, pos: i64, lane: Lane, peer: Lane, file: i64) -> bool:
        """Take a packet that is just what was to come next, as nearly all are, in one go.

        False, with nothing changed, if there is more to it: `packet` takes any.
        """
        header = read_i64_le(refs, pos + 24)
        if header >> 32 != 0 or header & TURNS != 0 or header & 0xFFFF == 0:
            return False
        if not lane.started or lane.hole or peer.hole or lane.fin >= 0 or lane.closed_since >= 0:
            return False
        if self.greeted and self.handshake < 0:
            return False
        place = read_i64_le(refs, pos)
        both = read_i64_le(refs, pos + 16)
        size = place & CAPTURED_MASK
        if size > 0 and (
            (both >> 32) & LOW32 != (lane.base + lane.next) & LOW32 or lane.head < len(lane.held)
        ):
            return False
        at = read_i64_le(refs, pos + 8)
        if header & ACKNOWLEDGES != 0 and peer.started:
            upto = peer.relative(both & LOW32)
            if upto > peer.next:
                return False
            if upto > peer.confirmed:
                peer.confirmed = upto
            if not peer.scaled:
                peer.offer(upto, header & 0xFFFF, at)
            if peer.timed_end >= 0 and upto >= peer.timed_end:
                peer.sample(at - peer.timed_at)
        self.at = at
        if size > 0:
            if not lane.scaled:
                lane.reach(lane.next + size)
            lane.progress_at = at
            self.emit(lane, size, file, place >> CAPTURED_BITS, at)
            if lane.timed_end < 0:
                lane.timed_end = lane.next
                lane.timed_at = at
        return True

    def packet(self, refs: bytes, pos: i64, lane: Lane, peer: Lane, file: i64) -> None:
        place = read_i64_le(refs, pos)
        at = read_i64_le(refs, pos + 8)
        both = read_i64_le(refs, pos + 16)
        header = read_i64_le(refs, pos + 24)
        flags = (header >> 16) & 255
        captured = place & CAPTURED_MASK
        size = captured + (header >> 32)
        seq = (both >> 32) & LOW32
        self.at = at
        if lane.hole:
            self.expire(lane)
        if peer.hole:
            self.expire(peer)
        if flags & RST == 0:
            lane.window(header & 0xFFFF, flags & SYN, at)
        if flags & ACK != 0 and peer.started:
            if not peer.scaled and flags & RST == 0:
                upto = peer.relative(both & LOW32)
                if upto <= peer.next:
                    peer.offer(upto, header & 0xFFFF, at)
            self.acknowledged(peer, both & LOW32, size > 0)
        if flags & SYN != 0:
            self.greet(lane, peer, flags, seq, both & LOW32)
            seq = (seq + 1) & LOW32
        elif self.greeted and lane.side == 0 and self.handshake < 0 and flags & ACK != 0:
            self.handshake = at - self.syn_at
        if not lane.started and (size > 0 or flags & FIN != 0):
            lane.begin(seq)
        if size > 0:
            self.segment(lane, lane.relative(seq), size, captured, file, place >> CAPTURED_BITS)
        if flags & FIN != 0 and lane.fin < 0:
            lane.fin = lane.relative(seq) + size
        if lane.fin >= 0:
            self.settle(lane)
        if flags & RST != 0:
            lane.reset = True
            self.close(lane)
            if not lane.finished and not lane.aborted:
                lane.aborted = True
                self.out.put(lane.side, ABORTED, at, 0, 0, 0)

    def greet(self, lane: Lane, peer: Lane, flags: i64, seq: i64, ack: i64) -> None:
        """A SYN: sequence numbers start here."""
        if not lane.started:
            lane.begin((seq + 1) & LOW32)
        if flags & ACK == 0:
            if not self.greeted:
                self.syn_at = self.at
        else:
            if not peer.started:
                peer.begin(ack)
            self.greeted = self.syn_at >= 0

    def segment(
        self, lane: Lane, start: i64, size: i64, captured: i64, file: i64, offset: i64
    ) -> None:
        """`size` octets at `start` of the lane, of which the first `captured` are in the file."""
        if self.ordered and start > lane.next and lane.acked > lane.next:
            # What lies between was acknowledged before this packet came: it was not captured.
            self.give_up(lane, lane.acked if lane.acked < start else start)
        if start < lane.next:
            if start + size <= lane.next:
                # One octet that was acknowledged before is a keep-alive probe.
                if size > 1 or start + size < lane.next or lane.confirmed < lane.next:
                    lane.repeated(self.at)
                return
            lane.repeated(self.at)
            cut = lane.next - start
            start = lane.next
            size -= cut
            captured -= cut
            offset += cut
            if captured < 0:
                captured = 0
        if lane.finished:
            lane.late += size
            return
        if not lane.scaled:
            lane.reach(start + size)
        lane.progress_at = self.at
        if start == lane.next and lane.head == len(lane.held):
            self.emit(lane, captured, file, offset, self.at)
            self.lose(lane, size - captured, self.at)
            if lane.timed_end < 0:
                lane.timed_end = lane.next
                lane.timed_at = self.at
            if lane.hole and lane.claimed() <= lane.next:
                lane.hole = False
            return
        if not lane.hole:
            lane.hole = True
            lane.hole_at = self.at
        lane.hold(start, captured, size, file, offset, self.at)
        self.settle(lane)
        while lane.held_octets > self.octet_limit or (
            i64(len(lane.held)) - lane.head > self.segment_limit
        ):
            self.give_up(lane, lane.held[lane.head].start)

    def acknowledged(self, lane: Lane, ack: i64, with_octets: bool) -> None:
        """The other side says it has everything of `lane` up to `ack`."""
        upto = lane.relative(ack)
        if upto > lane.confirmed:
            lane.confirmed = upto
        if lane.timed_end >= 0 and upto >= lane.timed_end:
            lane.sample(self.at - lane.timed_at)
        if upto <= lane.next:
            return
        if upto > lane.acked:
            lane.acked = upto
        upto = lane.claimed()
        if upto <= lane.next:
            return
        if not lane.hole:
            lane.hole = True
            lane.hole_at = self.at
        # Octets that answer what we never saw: in a capture whose order can be trusted it was
        # lost, and the gap must stand before the answer.
        if self.ordered and with_octets:
            self.give_up(lane, upto)

    def expire(self, lane: Lane) -> None:
        """Give up holes that waited too long. A clock that went back starts the wait again."""
        while lane.hole:
            if self.at < lane.hole_at:
                lane.hole_at = self.at
            if self.at - lane.hole_at <= self.hole_wait:
                return
            if lane.head < len(lane.held):
                self.give_up(lane, lane.held[lane.head].start)
            elif lane.claimed() > lane.next:
                self.give_up(lane, lane.claimed())
            else:
                lane.hole = False

    def give_up(self, lane: Lane, upto: i64) -> None:
        """What is missing before `upto` will not come."""
        if upto > lane.lost:
            lane.lost = upto
        self.settle(lane)

    def settle(self, lane: Lane) -> None:
        """Let out what is in order now, gaps where octets were given up, and then the FIN."""
        filled = True
        waited = lane.hole
        before = lane.next
        while True:
            if lane.head < len(lane.held):
                first: Held = lane.held[lane.head]
                if first.start <= lane.next:
                    lane.release()
                    at = self.at if filled else first.at
                    if first.missing:
                        self.lose(lane, first.size, at)
                    else:
                        self.emit(lane, first.size, first.file, first.offset, at)
                    continue
                if lane.next < lane.lost:
                    stop = lane.lost if lane.lost < first.start else first.start
                    self.lose(lane, stop - lane.next, lane.hole_at if waited else self.at)
                    filled = False
                    continue
            elif lane.next < lane.lost:
                self.lose(lane, lane.lost - lane.next, lane.hole_at if waited else self.at)
                filled = False
                continue
            break
        if waited and lane.next > before:
            if filled and self.at - lane.hole_at > SPAN_REORDERED:
                lane.span(lane.hole_at, self.at)
            lane.hole = False
            if lane.head < len(lane.held):
                lane.hole = True
                lane.hole_at = lane.held[lane.head].at
            elif lane.claimed() > lane.next:
                lane.hole = True
                lane.hole_at = self.at
        if lane.fin >= 0 and lane.next >= lane.fin and not lane.finished:
            lane.finished = True
            if not lane.aborted:
                self.out.put(lane.side, FINISHED, self.at, 0, 0, 0)

    def close(self, lane: Lane) -> None:
        """Nothing more will come: all holes are gaps now."""
        upto = lane.claimed()
        if lane.head < len(lane.held):
            last = lane.held[len(lane.held) - 1]
            if last.start > upto:
                upto = last.start
        if lane.fin > upto:
            upto = lane.fin
        self.give_up(lane, upto)
        lane.window(1, 0, self.at)

    def emit(self, lane: Lane, size: i64, file: i64, offset: i64, at: i64) -> None:
        if size > 0:
            lane.next += size
            lane.octets += size
            self.out.put(lane.side, OCTETS, at, size, file, offset)

    def lose(self, lane: Lane, size: i64, at: i64) -> None:
        if size > 0:
            lane.next += size
            lane.gaps += size
            self.out.put(lane.side, GAP, at, size, 0, 0)
