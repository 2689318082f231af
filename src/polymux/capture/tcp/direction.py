# mypyc: compiled
"""One direction of a TCP session: what is next, what waits behind a hole, what slowed it down."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

# A hole filled sooner than this was reordering on the way; later, a retransmission.
MAX_REORDERING_NS: Final[i64] = 3000000
# Spans kept for a direction; further ones extend the last.
MAX_SPANS: Final = 65536
# A window that opens this long after the last new byte may be what those that follow waited for.
LATE_WINDOW_OPENING_NS: Final[i64] = 20000000
MAX_WINDOW_OPENINGS: Final = 64  # of them remembered until bytes follow
# Sequence numbers are read as at most 1 GiB behind and less than 3 GiB ahead of the next byte:
# TCP's window keeps a sender within 1 GiB, while a capture may have missed much.
BEHIND_THRESHOLD: Final[i64] = 0xC0000000


class BufferedSegment:
    """Bytes that wait behind a hole; `missing` if they were cut off by the snap length."""

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
    """State of one direction. Positions count its bytes from 0; instants are nanoseconds."""

    def __init__(self, side: i64) -> None:
        self.side: i64 = side
        self.started: bool = False
        self.base_seq: i64 = 0  # sequence number of byte 0
        self.next_position: i64 = 0  # the byte to be let out next
        self.lost_until: i64 = 0  # what is missing before this was given up
        self.highest_ack: i64 = 0  # highest acknowledgement
        self.ack_beyond_captured: i64 = 0  # the same where it goes beyond what was captured
        self.buffered: list[
            BufferedSegment
        ] = []  # by start, without overlaps; before `head` already out
        self.buffer_head: i64 = 0
        self.buffered_bytes: i64 = 0
        self.has_hole: bool = False
        self.hole_since: i64 = 0
        self.fin_position: i64 = -1
        self.finished: bool = False
        self.aborted: bool = False
        self.sent_rst: bool = False  # sent a RST, be it after its FIN
        self.delivered_bytes: i64 = 0
        self.missing_bytes: i64 = 0
        self.bytes_after_fin: i64 = 0  # bytes behind the FIN
        self.progress_at: i64 = 0
        self.rtt_probe_end: i64 = -1
        self.rtt_probe_at: i64 = 0
        self.min_ack_delay: i64 = -1  # shortest time from a byte to its acknowledgement
        self.zero_window_since: i64 = -1
        self.zero_window_spans: list[
            tuple[int, int]
        ] = []  # spans in which this side's window was zero
        self.retransmission_spans: list[tuple[int, int]] = []  # spans lost to retransmission
        # The window the other side offers this one, as the number in its packets says. Where that
        # is scaled, which bytes sent beyond it prove, nothing is concluded from it.
        self.window_is_scaled: bool = False
        self.offered_window: i64 = -1
        self.offered_since: i64 = 0  # since when it is that number
        self.window_edge: i64 = -1  # the byte it ends at
        self.window_wait_since: i64 = (
            0  # when it became too small, if one of the openings was needed
        )
        self.late_openings: list[tuple[int, int]] = []  # late ones: when, and the edge before
        self.small_window_spans: list[
            tuple[int, int]
        ] = []  # spans in which it was too small for what followed

    def begin(self, seq: i64) -> None:
        self.started = True
        self.base_seq = seq

    def position_of(self, seq: i64) -> i64:
        """The position a sequence number means now."""
        away = (seq - self.base_seq - self.next_position) & 0xFFFFFFFF
        if away >= BEHIND_THRESHOLD:
            away -= 0x100000000
        return self.next_position + away

    def acknowledged_end(self) -> i64:
        """How far the other side's acknowledgements prove that there were bytes.

        A FIN counts as one too: seen, it is no byte; not seen, it may be the last one acked.
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
        """How this side ended. After its FIN a RST still counts if it ended the peer as well."""
        if self.aborted or (self.sent_rst and not peer.finished and not peer.aborted):
            return "rst"
        return "fin" if self.finished else None

    def buffer(
        self, start: i64, captured: i64, size: i64, file: i64, offset: i64, timestamp: i64
    ) -> None:
        """Keep what is not kept yet of these bytes: the first copy wins."""
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
            # Between the neighbour before and the one behind lies a free stretch.
            free = size
            if n < len(self.buffered):
                behind = self.buffered[n]
                free = behind.start - start
                if free > size:
                    free = size
            if free > 0:
                n = self.insert(n, start, captured, free, file, offset, timestamp)
            if n >= len(self.buffered):
                return
            behind = self.buffered[n]
            cut = behind.start + behind.size - start
            start += cut
            size -= cut
            captured -= cut
            offset += cut
            n += 1

    def insertion_index(self, start: i64) -> i64:
        """Where among those held the first stands that begins at `start` or behind it."""
        behind: i64 = len(self.buffered)
        if behind == self.buffer_head or self.buffered[behind - 1].start < start:
            return behind  # nearly always: what comes later lies further on
        place = self.buffer_head
        while place < behind:
            middle = (place + behind) >> 1
            if self.buffered[middle].start < start:
                place = middle + 1
            else:
                behind = middle
        return place

    def insert(
        self, n: i64, start: i64, captured: i64, size: i64, file: i64, offset: i64, timestamp: i64
    ) -> i64:
        """Put a free stretch in at `n`, cut where capturing stopped; returns the place after."""
        there = captured if captured < size else size
        if there < 0:
            there = 0
        if there > 0:
            self.buffered.insert(n, BufferedSegment(start, there, False, file, offset, timestamp))
            self.buffered_bytes += there
            n += 1
        if there < size:
            self.buffered.insert(
                n, BufferedSegment(start + there, size - there, True, file, 0, timestamp)
            )
            n += 1
        return n

    def pop_buffered(self) -> None:
        """The first held bytes go out."""
        if not self.buffered[self.buffer_head].missing:
            self.buffered_bytes -= self.buffered[self.buffer_head].size
        self.buffer_head += 1
        # Dropping from the front moves the rest, so it is done seldom.
        if self.buffer_head == len(self.buffered):
            self.buffered = []
            self.buffer_head = 0
        elif self.buffer_head >= 1024:
            self.buffered = self.buffered[self.buffer_head :]
            self.buffer_head = 0

    def track_zero_window(self, window: i64, syn: i64, timestamp: i64) -> None:
        """This side offered `window` bytes: note the spans in which it offered none."""
        if window == 0 and syn == 0:
            if self.zero_window_since < 0:
                self.zero_window_since = timestamp
        elif self.zero_window_since >= 0:
            if len(self.zero_window_spans) < MAX_SPANS:
                self.zero_window_spans.append((self.zero_window_since, timestamp))
            self.zero_window_since = -1

    def track_offered_window(self, upto: i64, window: i64, timestamp: i64) -> None:
        """The other side has everything up to `upto`, and room for `window` bytes more."""
        if upto < self.highest_ack:
            return  # an older packet
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
        """New bytes up to `end` are being sent: did they have to wait for the window?"""
        if end > self.window_edge + 1:  # one byte more may be a probe of a closed window
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
        """Spans in which this side took nothing, or not what the peer had to send."""
        return sorted([*self.zero_window_spans, *peer.small_window_spans])

    def note_retransmission(self, timestamp: i64) -> None:
        """Bytes came again: time since the last new byte went to a retransmission."""
        self.rtt_probe_end = -1  # its acknowledgement could answer either copy
        self.add_retransmission_span(self.progress_at, timestamp)

    def add_retransmission_span(self, began: i64, ended: i64) -> None:
        spans = self.retransmission_spans
        if len(spans) > 0 and (spans[len(spans) - 1][0] == began or len(spans) >= MAX_SPANS):
            began = spans[len(spans) - 1][0]
            spans[len(spans) - 1] = (began, ended)
        else:
            spans.append((began, ended))

    def add_ack_delay(self, delay: i64) -> None:
        self.rtt_probe_end = -1
        if delay >= 0 and (self.min_ack_delay < 0 or delay < self.min_ack_delay):
            self.min_ack_delay = delay
