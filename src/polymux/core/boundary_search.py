# mypyc: compiled
"""Finding the start of a frame where the bytes before it were not captured.

The problem. A capture may begin in the middle of a connection, or miss bytes of it. Then it is not
known where the next frame of a direction begins, and most of the protocols have no mark by which a
frame could be recognised.

The idea. A header gives the length of its frame, and so the position of the next header. From an
assumed boundary the headers are followed to the end of the bytes that are there (a chain). An
implausible header refutes the assumption. Otherwise every header adds evidence, in bits: what the
protocol says about it (`Protocol.header_evidence`), a stream that is known or that occurs again,
and a position at which a packet begins, since most senders write whole frames. A short header that
repeats an earlier one, or the bytes right before it, adds none: a payload that repeats itself may
be read as frames for ever.

The chain with the most evidence that begins with a packet wins if it has STRONG_EVIDENCE. If the
decision can wait no longer (`MAX_HELD_BYTES`, a gap, the end of the capture), WEAK_EVIDENCE
suffices, and if there is none, other positions are tried too, which need STRONG_EVIDENCE. Otherwise
the bytes stay undecoded, and the search goes on with the next ones.

Order. While a direction is searched, the bytes of both are held, and released in the order in
which they came: what one side knew when it sent a frame depends on the other side's frames before
it.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.direction import Direction
from polymux.core.frames import OPENS, FrameHeader
from polymux.core.protocol import NO_STREAM, Protocol
from polymux.core.varint import AWAITING_HANDSHAKE, INCOMPLETE, INVALID

STRONG_EVIDENCE: Final[i64] = 40  # bits
WEAK_EVIDENCE: Final[i64] = 16
MAX_HELD_BYTES: Final[i64] = 262144  # of both directions, until a boundary is found or given up
MAX_HELD_CHUNKS: Final[i64] = 4096
MAX_CHAINS: Final[i64] = 64  # chains without an implausible header that are compared
MAX_POSITIONS: Final[i64] = 65536  # at which a chain is begun, besides the starts of packets
MAX_SCANNED_FAILURES: Final[i64] = 16  # after so many in a row, only starts of packets are tried
MAX_SCANNED_HEADERS: Final[i64] = 1048576  # in one decision

KNOWN_STREAM_BITS: Final[i64] = 5
UNKNOWN_STREAM_BITS: Final[i64] = 2  # against
FEW_STREAMS_BITS: Final[i64] = 6  # less log2 of the streams: evidence of one that occurs again
MAX_PACKET_START_BITS: Final[i64] = 8
MAX_REPEAT_DISTANCE: Final[i64] = 16  # a header equal to the bytes so far before it is a pattern
RIVAL_POSITIONS: Final[i64] = 32  # after a boundary, at which other chains are begun
MIN_RIVAL_HEADERS: Final[i64] = 3
MAX_PATTERN_HEADERS: Final[i64] = 32  # headers in a row that repeat each other: no chain goes on
# The most that `header_evidence` can be for the chain of one header to stay below STRONG_EVIDENCE:
# with its stream, and packets that begin with it and after it.
MAX_SINGLE_HEADER_BITS: Final[i64] = (
    STRONG_EVIDENCE - UNKNOWN_STREAM_BITS - FEW_STREAMS_BITS - 2 * MAX_PACKET_START_BITS
)
NO_KEY: Final[i64] = -1
HEAD_BYTES: Final[i64] = 8  # of a frame that are compared with those of earlier frames
MIN_DISTINCTIVE_BITS: Final[i64] = 12  # headers with so much evidence may repeat themselves

# Kinds of `HeldChunk`:
RECEIVED: Final[i64] = 0  # bytes to be decoded
GAP: Final[i64] = 1  # bytes that were not captured
SKIPPED: Final[i64] = 2  # bytes that cannot be decoded: no boundary precedes them
BOUNDARY: Final[i64] = 3  # a frame begins here


class HeldChunk:
    """A part of a direction, in the order of arrival. `size` counts the bytes of a gap."""

    __slots__ = ("data", "kind", "side", "size", "timestamp")

    def __init__(self, kind: i64, side: i64, data: bytes, size: i64, timestamp: i64) -> None:
        self.kind: i64 = kind
        self.side: i64 = side
        self.data: bytes = data
        self.size: i64 = size
        self.timestamp: i64 = timestamp


class HeaderScanner:
    """Reads a header without any effect on the streams.

    After `scan`, `evidence` is that of the header in bits, `key` its stream (NO_KEY: none) and
    `opens` says whether it opens it.
    """

    def __init__(self) -> None:
        self.evidence: i64 = 0
        self.key: i64 = NO_KEY
        self.opens: bool = False
        # If one direction is seen from its beginning, so is the other:
        self.begins_both: bool = False

    def scan(self, side: i64, data: bytes, pos: i64, end: i64) -> i64:
        """Where the frame at `pos` ends (perhaps after `end`), or INCOMPLETE or INVALID."""
        raise NotImplementedError

    def begin_chain(self) -> None:
        """The next header that is read is the first of a chain."""
        return

    def learn(self, side: i64) -> None:
        """The header that `scan` has just read is one: pass it to the protocol."""
        return

    def begins_connection(self, side: i64, data: bytes, other: bytes) -> i64:
        """Whether these are a side's first bytes in a connection: 1, 0, or INCOMPLETE.

        `other` are the bytes of the other side at that time.
        """
        return 0


class FrameScanner(HeaderScanner):
    """Reads the headers of a protocol's own frames."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.head: FrameHeader = FrameHeader()

    def scan(self, side: i64, data: bytes, pos: i64, end: i64) -> i64:
        p = self.protocol
        head = self.head
        start = p.decode_header(side, data, pos, end, head)
        if start < 0:
            return INVALID if start == AWAITING_HANDSHAKE else start
        evidence = p.header_evidence(side, head)
        if head.format_violations != 0 or evidence < 0:
            return INVALID
        self.evidence = evidence
        self.key = head.key if head.opener != NO_STREAM else NO_KEY
        self.opens = p.effects[head.kind] == OPENS
        pos = start + head.payload_size + head.trailer_size
        while head.parts_left > 0:
            if pos >= end:
                return end + 1  # it ends somewhere after the bytes that are there
            head.format_violations = 0
            size = p.decode_part_size(side, data, pos, end, head)
            if size == INVALID or head.format_violations != 0:
                return INVALID
            if size < 0:
                return end + 1
            pos += size
        return pos

    def learn(self, side: i64) -> None:
        self.protocol.learn_from_header(side, self.head)

    def begins_connection(self, side: i64, data: bytes, other: bytes) -> i64:
        p = self.protocol
        if not p.awaits_handshake(side):
            return 0
        start = p.decode_header(side, data, 0, len(data), self.head)
        if start == INCOMPLETE:
            return INCOMPLETE
        head = self.head
        if start < 0 or head.format_violations != 0:
            return 0
        p.decode_body(side, data, start, start + head.payload_size, head)
        text = data[head.text_start : head.text_start + head.text_size]
        return 1 if p.is_handshake(text) else 0


class DirectionSearch:
    """The bytes of one direction in which a boundary is searched, and the best one found."""

    def __init__(self, side: i64) -> None:
        self.side: i64 = side
        self.parts: list[bytes] = []
        self.starts: list[int] = []  # where each of them begins
        self.size: i64 = 0
        self.next_try: i64 = 1  # parts at which the search is tried again
        self.at_beginning: bool = False  # the bytes may be the first of the connection
        self.failures: i64 = 0  # searches in a row that were given up
        # Results:
        self.boundary: i64 = -1
        self.evidence: i64 = 0
        self.keys: set[int] = set()  # streams of the chain that was chosen

    def add(self, data: bytes) -> None:
        """Append the next bytes."""
        self.starts.append(int(self.size))
        self.parts.append(data)
        self.size += len(data)

    def clear(self) -> None:
        """Forget the bytes; the search goes on with those that follow."""
        self.parts = []
        self.starts = []
        self.size = 0
        self.next_try = 1
        self.at_beginning = False
        self.boundary = -1
        self.evidence = 0
        self.keys = set()

    def packet_start_bits(self) -> i64:
        """The evidence of a header at the start of a packet: log2 of the packets' mean size."""
        bits = log2(self.size // len(self.starts))
        return bits if bits < MAX_PACKET_START_BITS else MAX_PACKET_START_BITS


def log2(number: i64) -> i64:
    """The binary logarithm, rounded down; 0 for a number below 2."""
    bits: i64 = 0
    while number > 1:
        number >>= 1
        bits += 1
    return bits


class ChainWalk:
    """Follows chains of headers through the bytes of one direction.

    After `follow`, `boundary` is the position on the chain with the most evidence after it, and
    `evidence` that evidence: a chain may begin with bytes that are no frames, and reach one.
    """

    def __init__(
        self, scanner: HeaderScanner, search: DirectionSearch, other_keys: set[int], p: Protocol
    ) -> None:
        self.scanner = scanner
        self.protocol = p
        self.side: i64 = search.side
        self.data: bytes = b"".join(search.parts)
        self.end: i64 = len(self.data)
        self.starts: set[int] = set(search.starts)
        self.starts.add(int(self.end))
        self.other_keys = other_keys
        self.start_bits: i64 = search.packet_start_bits()
        self.budget: i64 = MAX_SCANNED_HEADERS
        self.refuted: set[int] = set()  # positions from which a chain fails
        self.followed: dict[int, int] = {}  # others, with the last position of their chains
        # Of the current chain:
        self.positions: list[int] = []
        self.header_bits: list[int] = []
        self.header_keys: list[int] = []
        self.heads: set[bytes] = set()  # first bytes of its frames
        self.keys: set[int] = set()
        self.boundary: i64 = -1
        self.evidence: i64 = -1

    def follow(self, start: i64, at_packet_start: bool, joined: int = -1) -> bool:
        """Follow the chain from `start`. Return False if it is refuted, or joins another.

        Args:
            start: where it begins.
            at_packet_start: only positions at which packets begin may become `boundary`.
            joined: the last position of the other chain; -1: none.
        """
        self.positions = []
        self.header_bits = []
        self.header_keys = []
        self.heads = set()
        scanner = self.scanner
        scanner.begin_chain()
        pos = start
        refuted = False
        patterned: i64 = 0  # headers in a row that only repeat what is before them
        while pos < self.end and not refuted:
            at: int = pos
            if at in self.refuted:
                refuted = True
                break
            if joined >= 0 and self.followed.get(at, -1) == joined:
                return False
            after = scanner.scan(self.side, self.data, pos, self.end)
            self.budget -= 1
            self.positions.append(at)
            if after < 0:
                refuted = after == INVALID
                self.header_bits.append(0)
                self.header_keys.append(NO_KEY)
                break
            self.add_header(pos, after)
            patterned += 1
            if self.header_bits[-1] >= 0:
                patterned = 0
            if patterned > MAX_PATTERN_HEADERS:
                break  # a payload that repeats itself: what follows is another chain's evidence
            pos = after
        if refuted:
            self.refuted.update(self.positions)
            return False
        last = self.last_position()
        for at in self.positions:
            self.followed[at] = last
        self.choose_boundary(at_packet_start)
        return True

    def is_single_header(self, start: i64) -> bool:
        """Whether the chain from `start` is one header that cannot be strong evidence, or refuted.

        Then it is noted as `follow` would, which takes several times as long. In bytes that are
        no frames, most chains are such: a payload of text is longer than what is there.
        """
        scanner = self.scanner
        scanner.begin_chain()
        after = scanner.scan(self.side, self.data, start, self.end)
        if after == INVALID:
            self.refuted.add(int(start))
        elif after < 0 or (after >= self.end and scanner.evidence < MAX_SINGLE_HEADER_BITS):
            self.followed[int(start)] = int(start)
        else:
            return False
        self.budget -= 1
        return True

    def last_position(self) -> int:
        """Where the last header of the chain begins: the same for chains that join."""
        return self.positions[-1] if self.positions else -1

    def add_header(self, pos: i64, after: i64) -> None:
        """Add what speaks for the header that was just read, without its stream."""
        scanner = self.scanner
        bits = scanner.evidence
        key: int = scanner.key
        if scanner.opens:
            bits += UNKNOWN_STREAM_BITS  # it may well be the first of its stream
        if scanner.evidence < MIN_DISTINCTIVE_BITS:
            head = self.data[pos : pos + HEAD_BYTES]
            if self.repeats(pos, after):
                bits = -1
                key = NO_KEY
            elif head in self.heads:
                bits = 0
                key = NO_KEY
            self.heads.add(head)
        if int(after) in self.starts:
            aligned = log2(after - pos)
            bits += aligned if aligned < self.start_bits else self.start_bits
        self.header_bits.append(int(bits))
        self.header_keys.append(key)

    def choose_boundary(self, at_packet_start: bool) -> None:
        """Sum up the evidence from the end of the chain, and find where it is the most."""
        self.boundary = -1
        self.evidence = -1
        self.keys = set()
        total: i64 = 0
        for n in range(len(self.positions) - 1, -1, -1):
            total += self.header_bits[n] + self.stream_evidence(self.header_keys[n])
            at = self.positions[n]
            is_start = at in self.starts
            here = total + self.start_bits if is_start else total
            if here >= self.evidence and (is_start or not at_packet_start):
                self.evidence = here
                self.boundary = at

    def stream_evidence(self, key: int) -> i64:
        """The evidence of a header's stream, which is added to those that occur after it."""
        if key == NO_KEY:
            return 0
        if key in self.keys:
            few = FEW_STREAMS_BITS - log2(len(self.keys))
            if few < 0:
                few = 0
            return few
        self.keys.add(key)
        if key in self.other_keys:
            return KNOWN_STREAM_BITS
        stream = self.protocol.streams.find(key)
        known = stream is not None and not stream.over
        return KNOWN_STREAM_BITS if known else -UNKNOWN_STREAM_BITS

    def repeats(self, pos: i64, after: i64) -> bool:
        """Whether the first bytes of the frame repeat those right before them."""
        size: i64 = after - pos
        if size > 4:
            size = 4
        if size > self.end - pos:
            size = self.end - pos
        head = self.data[pos : pos + size]
        before: i64 = pos - MAX_REPEAT_DISTANCE
        if before < 0:
            before = 0
        return head in self.data[before : pos + size - 1]


class BoundarySearch:
    """Holds the bytes of a connection while the start of a frame is searched in a direction.

    `scanners` are the readings that are possible (an encapsulation, none); `chosen` is the one that
    a boundary was found with, -1 until then.
    """

    def __init__(
        self, protocol: Protocol, dialer: Direction, acceptor: Direction,
        scanners: list[HeaderScanner],
    ) -> None:  # fmt: skip
        self.protocol = protocol
        self.dialer_direction = dialer
        self.acceptor_direction = acceptor
        self.scanners = scanners
        self.chosen: i64 = -1 if len(scanners) > 1 else 0
        self.from_beginning: bool = False  # the bytes are the first of the connection after all
        self.held: list[HeldChunk] = []
        self.held_bytes: i64 = 0
        self.dialer: DirectionSearch = DirectionSearch(0)
        self.acceptor: DirectionSearch = DirectionSearch(1)
        self.queue: list[HeldChunk] = []  # to be taken by `next_ready`, from `queue_start` on
        self.queue_start: i64 = 0

    def direction(self, side: i64) -> Direction:
        return self.dialer_direction if side == 0 else self.acceptor_direction

    def search(self, side: i64) -> DirectionSearch:
        return self.dialer if side == 0 else self.acceptor

    def begin_in_middle(self) -> None:
        """Search in both directions, in bytes that may still be the first of the connection."""
        self.dialer.at_beginning = True
        self.acceptor.at_beginning = True

    # Holding and releasing

    def push(self, chunk: HeldChunk) -> None:
        """Add what arrived; `next_ready` returns it when it may be processed."""
        self.queue.append(chunk)

    def next_ready(self) -> HeldChunk | None:
        """The next chunk to be processed, or None if everything else is held."""
        while self.queue_start < len(self.queue):
            chunk = self.queue[self.queue_start]
            self.queue_start += 1
            if chunk.kind >= SKIPPED or not self.must_hold(chunk):
                return chunk
            self.hold(chunk)
        self.queue = []
        self.queue_start = 0
        return None

    def must_hold(self, chunk: HeldChunk) -> bool:
        """Whether a chunk waits for a decision."""
        return len(self.held) > 0 or (len(chunk.data) > 0 and self.direction(chunk.side).searching)

    def hold(self, chunk: HeldChunk) -> None:
        """Hold a chunk, and release everything held if it brings the decision."""
        search = self.search(chunk.side)
        undecided = self.direction(chunk.side).searching and search.boundary < 0
        if chunk.kind == GAP and undecided:
            self.decide(search, True)
            if search.boundary < 0:
                self.give_up(search)
        self.held.append(chunk)
        if chunk.kind == RECEIVED:
            self.held_bytes += len(chunk.data)
            if undecided:
                search.add(chunk.data)
                if len(search.parts) >= search.next_try:
                    self.decide(search, False)
                    search.next_try = len(search.parts) + len(search.parts) // 2 + 1
        if self.is_decided():
            self.release()
        elif self.held_bytes > MAX_HELD_BYTES or len(self.held) > MAX_HELD_CHUNKS:
            self.decide_now()

    def is_decided(self) -> bool:
        """Whether no held bytes wait for a boundary."""
        for search in (self.dialer, self.acceptor):
            if search.size > 0 and search.boundary < 0:
                return False
        return True

    def decide_now(self) -> None:
        """Decide by the bytes that are there, and release everything held."""
        for search in (self.dialer, self.acceptor):
            if search.size > 0 and search.boundary < 0:
                self.decide(search, True)
                if search.boundary < 0:
                    self.give_up(search)
        self.release()

    def give_up(self, search: DirectionSearch) -> None:
        """No frame begins in the held bytes of a direction."""
        for chunk in self.held:
            if chunk.side == search.side and chunk.kind == RECEIVED:
                chunk.kind = SKIPPED
        search.clear()
        search.failures += 1

    def release(self) -> None:
        """Put what is held back in front of the queue, with the boundaries that were found."""
        ready: list[HeldChunk] = []
        for chunk in self.held:
            search = self.search(chunk.side)
            if chunk.kind != RECEIVED or search.boundary < 0:
                ready.append(chunk)
                continue
            size: i64 = len(chunk.data)
            if search.boundary >= size:
                search.boundary -= size
                ready.append(HeldChunk(SKIPPED, chunk.side, chunk.data, 0, chunk.timestamp))
                if search.boundary == 0:
                    self.add_boundary(ready, search, chunk.timestamp)
                continue
            if search.boundary > 0:
                before = chunk.data[: search.boundary]
                ready.append(HeldChunk(SKIPPED, chunk.side, before, 0, chunk.timestamp))
            rest = chunk.data[search.boundary :]
            self.add_boundary(ready, search, chunk.timestamp)
            ready.append(HeldChunk(RECEIVED, chunk.side, rest, 0, chunk.timestamp))
        self.held = []
        self.held_bytes = 0
        self.queue = ready + self.queue[self.queue_start :]
        self.queue_start = 0

    def add_boundary(self, ready: list[HeldChunk], search: DirectionSearch, timestamp: i64) -> None:
        ready.append(HeldChunk(BOUNDARY, search.side, b"", search.evidence, timestamp))
        search.clear()
        search.failures = 0

    def save(self) -> list[object]:
        """The state as plain data, for `load`."""
        chunks = [
            [int(chunk.kind), int(chunk.side), chunk.data, int(chunk.size), int(chunk.timestamp)]
            for chunk in [*self.held, *self.queue[self.queue_start :]]
        ]
        flags = [self.dialer.at_beginning, self.acceptor.at_beginning, self.from_beginning]
        failures = [int(self.dialer.failures), int(self.acceptor.failures)]
        return [chunks, flags, int(self.chosen), failures]

    def load(self, saved: list[object]) -> None:
        """Restore what `save` returned: what was held is held again by `next_ready`.

        The assertions narrow `object` for mypy: a snapshot is plain data of mixed types.
        """
        chunks, flags, chosen, failures = saved[0], saved[1], saved[2], saved[3]
        assert isinstance(chunks, list)
        assert isinstance(failures, list)
        self.dialer.failures, self.acceptor.failures = failures[0], failures[1]
        assert isinstance(flags, list)
        assert isinstance(chosen, int)
        self.dialer.at_beginning, self.acceptor.at_beginning = flags[0], flags[1]
        self.from_beginning = flags[2]
        self.chosen = chosen
        self.queue = [HeldChunk(c[0], c[1], c[2], c[3], c[4]) for c in chunks]
        self.queue_start = 0

    # Deciding

    def decide(self, search: DirectionSearch, force: bool) -> None:
        """Set `boundary` of a direction's search if there is enough evidence for one."""
        if search.size == 0:
            return
        if search.at_beginning and not self.from_beginning:
            other = b"".join(self.search(1 - search.side).parts)
            for number, scanner in enumerate(self.scanners):
                begins = scanner.begins_connection(search.side, b"".join(search.parts), other)
                if begins == INCOMPLETE and not force:
                    return
                if begins == 1:
                    search.boundary = 0
                    self.from_beginning = scanner.begins_both
                    self.chosen = number
        if search.boundary == 0 or self.from_beginning:
            search.boundary = 0
            search.evidence = STRONG_EVIDENCE
            return
        if not self.protocol.can_begin_anywhere:
            return
        self.protocol.skip_handshake(search.side)
        best: i64 = -1
        chosen: i64 = 0
        every = force and search.failures < MAX_SCANNED_FAILURES
        other_keys = self.search(1 - search.side).keys
        for number, scanner in enumerate(self.scanners):
            if self.chosen >= 0 and self.chosen != number:
                continue
            walk = ChainWalk(scanner, search, other_keys, self.protocol)
            found = self.best_chain(walk, search.starts, force)
            if not found and every:
                found = self.first_strong_chain(walk)
            if found and walk.evidence > best:
                best = walk.evidence
                search.boundary = walk.boundary
                search.evidence = best
                search.keys = walk.keys
                chosen = number
        if best >= 0:
            self.chosen = chosen
            self.learn_from_chain(search)

    def learn_from_chain(self, search: DirectionSearch) -> None:
        """Pass the headers after the boundary that was chosen to the protocol."""
        scanner = self.scanners[self.chosen]
        scanner.begin_chain()
        data = b"".join(search.parts)
        end: i64 = len(data)
        pos = search.boundary
        while 0 <= pos < end:
            pos = scanner.scan(search.side, data, pos, end)
            if pos >= 0:
                scanner.learn(search.side)

    def best_chain(self, walk: ChainWalk, starts: list[int], force: bool) -> bool:
        """Find the chain with the most evidence that begins where a packet begins.

        Return whether it has enough, and more than any other; the walk has then been on it last.
        """
        best: i64 = -1
        best_start: i64 = -1
        chains: i64 = 0
        for start in starts:
            if walk.budget <= 0:
                break
            if start in walk.followed or not walk.follow(start, force):
                continue
            if walk.evidence > best:
                best, best_start = walk.evidence, start
            chains += 1
            if chains >= MAX_CHAINS:
                break
        if best < (WEAK_EVIDENCE if force else STRONG_EVIDENCE):
            return False
        walk.follow(best_start, force)
        return not self.has_rival(walk, starts)

    def has_rival(self, walk: ChainWalk, starts: list[int]) -> bool:
        """Whether another chain, which does not join the last one, has much evidence too.

        If the bytes are such that a chain can begin anywhere, as in a payload that repeats itself,
        that a chain is not refuted says nothing. Chains are also begun right after the boundary.
        The results of the last chain are kept.
        """
        boundary, end, evidence = walk.boundary, walk.last_position(), walk.evidence
        keys = walk.keys
        found = False
        others = [*range(boundary + 1, min(boundary + 1 + RIVAL_POSITIONS, walk.end))]
        for start in [*others, *starts[:MAX_CHAINS]]:
            if not walk.follow(start, False, end) or walk.last_position() == end:
                continue
            if len(walk.positions) >= MIN_RIVAL_HEADERS and walk.evidence * 2 > evidence:
                found = True
                break
        walk.boundary, walk.evidence, walk.keys = boundary, evidence, keys
        return found

    def first_strong_chain(self, walk: ChainWalk) -> bool:
        """Find the first chain with strong evidence, whatever its position."""
        for start in range(walk.end if walk.end < MAX_POSITIONS else MAX_POSITIONS):
            if walk.budget <= 0:
                return False
            if start in walk.followed or start in walk.refuted or walk.is_single_header(start):
                continue
            if walk.follow(start, False) and walk.evidence >= STRONG_EVIDENCE:
                return not self.has_rival(walk, [])
        return False
