# mypyc: compiled
"""Streams whose peer does not answer: stalls with the cause `no-reply`.

A side waits for an answer once it has ended its half (in Streamux: sent the end of a request), or
has offered a channel (Nerdbank). Content, an end and a reset are answers; to an offer, accepting
and rejecting it. A side that has not ended its half is not known to wait, because it may be sending
one way; a peer that sent content before the half ended has answered.

A peer may be prevented from answering: it has no credit, the TCP window of its receiver is closed,
its bytes were lost, or its direction was saturated by other streams. A late answer is then reported
with that cause, and a missing one is not reported.
"""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.stall_evidence import (
    FAIR_QUANTUM_BYTES,
    HEAD_OF_LINE,
    NO_REPLY,
    SENDER_IDLE,
    SLOW_READER,
    DirectionHistory,
    PendingStall,
    StallRows,
    hol_blocked_text,
)
from polymux.analysis.tracking.stream_tracker import StreamTracker, side_name
from polymux.core.side import DIALER, NEITHER_SIDE
from polymux.core.streams import NEVER, NOT_YET, OPEN
from polymux.text.units import duration_text

# An answer that takes this long is a finding: callers time out after seconds, and ordinary work
# takes less.
LATE_REPLY_NS: Final[i64] = 2_000_000_000
# No answer by the end of the capture is a finding after this time; before, it may be in flight.
MISSING_REPLY_NS: Final[i64] = 1_000_000_000


class MissingReplyDetector:
    """Finds late and missing answers on the streams of one session.

    Args:
        rtt_ns: round trip of the connection in nanoseconds; -1 if unknown.
        two_way: both sides send on a stream; otherwise no answer is ever expected.
        has_offers: a stream must be accepted.
        has_requests: a stream is a request and its reply.
        dialer, acceptor: the history of the direction in which that side sends.
    """

    def __init__(
        self,
        rtt_ns: i64,
        two_way: bool,
        has_offers: bool,
        has_requests: bool,
        dialer: DirectionHistory,
        acceptor: DirectionHistory,
    ) -> None:
        self.late_ns: i64 = LATE_REPLY_NS
        self.missing_ns: i64 = MISSING_REPLY_NS
        self.set_round_trip(rtt_ns)
        self.two_way: bool = two_way
        self.has_offers: bool = has_offers
        self.has_requests: bool = has_requests
        self.dialer: DirectionHistory = dialer
        self.acceptor: DirectionHistory = acceptor

    def set_round_trip(self, rtt_ns: i64) -> None:
        """Take another round trip; -1 if unknown."""
        trips = rtt_ns * 5
        self.late_ns = trips if trips > LATE_REPLY_NS else LATE_REPLY_NS
        self.missing_ns = trips if trips > MISSING_REPLY_NS else MISSING_REPLY_NS

    def pending(self, track: StreamTracker, side: i64, now: i64) -> PendingStall | None:
        """The answer of `side` that is missing at `now`, if one is."""
        stream = track.stream
        if self.has_offers and not stream.accepted and track.opener != NEITHER_SIDE:
            opened = stream.opened_at
            if side == track.opener or opened == NOT_YET or now - opened < self.missing_ns:
                return None
            detail = self.offer_text(track, now - opened, False)
            return PendingStall(side, opened, NO_REPLY, "", detail)
        since = self.unanswered_since(track, side, now)
        if since == NOT_YET:
            return None
        detail = self.reply_text(track, side, now - since, False)
        return PendingStall(side, since, NO_REPLY, "", detail)

    def on_accepted(self, rows: StallRows, track: StreamTracker, timestamp: i64) -> bool:
        """An offer was accepted: report the wait if it was late. Return whether it was."""
        waited = self.offer_was_late(track, timestamp)
        if waited:
            self.add_offer(rows, track, timestamp, True)
        return waited

    def on_half_ended(
        self, rows: StallRows, track: StreamTracker, side: i64, timestamp: i64
    ) -> None:
        """One side ended its half, reset or cancelled: report a late or missing answer."""
        own = track.half(side)
        aborted = track.stream.reset_by == side
        if self.has_offers and not track.seen_accepted:
            if aborted and self.offer_was_late(track, timestamp):
                self.add_offer(rows, track, timestamp, side != track.opener)
        elif own.seen_state == OPEN:  # its end is an answer if no content came before
            since = self.waited_since(track, side, timestamp)
            if since != NOT_YET and own.half.first_at == NOT_YET:
                self.add_reply(rows, track, side, since, timestamp, True)
        elif aborted and track.half(1 - side).half.state == OPEN and own.ended_at != NOT_YET:
            since = self.waited_since(track, 1 - side, timestamp)
            if since != NOT_YET:
                self.add_reply(rows, track, 1 - side, since, timestamp, False)

    def on_capture_end(self, rows: StallRows, track: StreamTracker, ended: i64) -> None:
        """The capture ends at `ended`: report the answers that are missing on this stream."""
        stream = track.stream
        if self.has_offers and not stream.accepted and track.opener != NEITHER_SIDE:
            if stream.opened_at != NOT_YET and ended - stream.opened_at >= self.missing_ns:
                self.add_offer(rows, track, ended, False)
            return
        for side in (0, 1):
            since = self.unanswered_since(track, side, ended)
            if since != NOT_YET:
                self.add_reply(rows, track, side, since, ended, False)

    # Expected answers

    def offer_was_late(self, track: StreamTracker, timestamp: i64) -> bool:
        """Whether an offer that was accepted, rejected or withdrawn at `timestamp` was late."""
        opened = track.stream.opened_at
        return (
            self.has_offers
            and track.opener != NEITHER_SIDE
            and opened != NOT_YET
            and timestamp - opened >= self.late_ns
        )

    def waited_since(self, track: StreamTracker, side: i64, until: i64) -> i64:
        """Since when the peer waited for the first answer of `side`, which came at `until`.

        NOT_YET if the answer was not late, or `side` had sent content before.
        """
        since = track.half(1 - side).ended_at
        first = track.half(side).half.first_at
        if not self.two_way or since == NOT_YET or until - since < self.late_ns:
            return NOT_YET
        if track.stream.unseen:
            return NOT_YET  # it may have answered in a frame that was not seen
        return since if first == NOT_YET or first >= until else NOT_YET

    def unanswered_since(self, track: StreamTracker, side: i64, ended: i64) -> i64:
        """Since when an answer of `side` is missing at `ended`, the end of the capture.

        NOT_YET if none is expected.
        """
        own = track.half(side)
        half = own.half
        since = track.half(1 - side).ended_at
        if (
            not self.two_way
            or track.stream.unseen
            or since == NOT_YET
            or half.state != OPEN
            or half.last_frame_index != NEVER
        ):
            return NOT_YET
        if own.ends_mid_frame:
            return NOT_YET
        if half.first_at != NOT_YET:
            if not self.has_requests:
                return NOT_YET  # it has answered, and may send more later
            if own.last_content_at > since:
                since = own.last_content_at
        if ended - since < self.missing_ns or 0 <= half.credit_granted <= half.credit_spent:
            return NOT_YET
        return since

    # Rows

    def add_offer(self, rows: StallRows, track: StreamTracker, until: i64, answered: bool) -> None:
        opened = track.stream.opened_at
        detail = self.offer_text(track, until - opened, answered)
        side = 1 - track.opener
        full = self.history(side).runs.saturated_ns - track.half(side).saturated_ns_at_last_frame
        self.add_row_with_cause(rows, track, side, opened, until, full, answered, detail)

    def add_reply(
        self,
        rows: StallRows,
        track: StreamTracker,
        side: i64,
        since: i64,
        until: i64,
        answered: bool,
    ) -> bool:
        """Report the answer of `side` that was expected from `since` to `until`.

        `answered`: it came at `until`. Return False if no row was added.
        """
        own = track.half(side)
        before = (
            own.saturated_ns_at_last_frame
            if since == own.last_content_at
            else own.saturated_ns_at_peer_end
        )
        full = self.history(side).runs.saturated_ns - before
        detail = self.reply_text(track, side, until - since, answered)
        return self.add_row_with_cause(rows, track, side, since, until, full, answered, detail)

    def add_row_with_cause(
        self,
        rows: StallRows,
        track: StreamTracker,
        side: i64,
        since: i64,
        until: i64,
        saturated_ns: i64,
        answered: bool,
        detail: str,
    ) -> bool:
        """Add a row with `detail`, or with the cause that delayed an answer which came.

        `saturated_ns` is how long the direction of `side` was saturated. Return False if no row
        was added.
        """
        history = self.history(side)
        closed = history.window_closed
        lasted = until - since
        cause, cause_detail = history.transport_cause(since, until)
        if cause == SENDER_IDLE and saturated_ns * 3 >= lasted * 2:
            busy_period = history.runs.busy_before(track, since, until)
            if (
                not answered
                or saturated_ns * 5 < lasted * 4
                or busy_period.blocking_bytes <= FAIR_QUANTUM_BYTES
            ):
                return False
            blocking = busy_period.blocking_stream.label
            since = busy_period.start
            track.half(side).hol_blocked_ns += until - since
            blocked = hol_blocked_text(busy_period.blocking_bytes, blocking, until - since)
            rows.add(track, side, since, until, HEAD_OF_LINE, blocking, blocked)
            return True
        if cause == SENDER_IDLE:
            if closed.overlap(since, until) > 0:
                able_ns = until - closed.end_before(until)
                if able_ns < (self.late_ns if answered else self.missing_ns):
                    return False  # it was able to send for too short a time to be late
            rows.add(track, side, since, until, NO_REPLY, "", detail)
            return True
        if answered and cause == SLOW_READER:
            since = closed.start_after(since)
            until = closed.end_before(until)
        if answered:
            rows.add(track, side, since, until, cause, "", cause_detail)
        return answered

    def history(self, side: i64) -> DirectionHistory:
        return self.dialer if side == DIALER else self.acceptor

    def offer_text(self, track: StreamTracker, duration_ns: i64, answered: bool) -> str:
        """The detail of a late or missing answer to an offer."""
        offer = f"the {side_name(track.opener)}'s offer"
        waited = duration_text(duration_ns)
        if answered:
            return f"{offer} waited {waited} for an answer"
        return f"{offer} was not answered for {waited}"

    def reply_text(self, track: StreamTracker, side: i64, duration_ns: i64, answered: bool) -> str:
        """The detail of a late or missing answer of `side`."""
        peer = side_name(1 - side)
        waited = duration_text(duration_ns)
        own = track.half(side)
        if self.has_requests:
            if answered:
                return f"the reply came {waited} after the {peer}'s request"
            if own.half.first_at != NOT_YET:
                return f"the reply to the {peer}'s request stopped for {waited} and never ended"
            return f"no reply for {waited} to the {peer}'s request"
        if answered:
            return f"the answer came {waited} after the {peer} had ended its half"
        return f"no answer for {waited} after the {peer} had ended its half"
