# mypyc: compiled
"""State of one direction of a TCP session: position, buffered segments, and what slowed it down.

It records the spans of time in which a closed window or a retransmission held the sender up, from
which the analysis explains stalls.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

# A hole filled within this time was reordering; later, a retransmission.
MAX_REORDERING_NS: Final[i64] = 3000000
# Spans kept for a direction. Further retransmission spans extend the last; others are dropped.
MAX_SPANS: Final = 65536
# If a window opens this long after the last new byte, the next bytes may have waited for it.
LATE_WINDOW_OPENING_NS: Final[i64] = 20000000
MAX_WINDOW_OPENINGS: Final = 64  # remembered until bytes follow
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
        """Index of the first buffered segment that starts at or after `start`."""
        behind: i64 = len(self.buffered)
        if behind == self.buffer_head or self.buffered[behind - 1].start < start:
            return behind  # nearly always: segments usually arrive in order
        low = self.buffer_head
        while low < behind:
            middle = (low + behind) >> 1
            if self.buffered[middle].start < start:
                low = middle + 1
            else:
                behind = middle
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
