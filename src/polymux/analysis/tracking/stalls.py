# mypyc: compiled
"""Times a stream stood still, and why.

A stall is the time between two content frames of one side of a stream, or inside one, of at least
50 ms and five round trips. Each cause has a test on what was captured, tried in this order. A pause
with two causes in turn, each long enough, is two stalls.

no-credit            credit was 0, or too little for the next frame, and a grant ended that
slow-reader          the peer's TCP window was closed, or too small for the next segment; or credit
                     was 0 with bytes outstanding until the sender gave up or the capture ended
head-of-line  the direction was at work for others without a pause, one of which sent more
                     than its fair share (a quantum, or this stream's own frame if that is larger),
                     and this stream was ready: credit had just come, it was in the middle of large
                     frames, or a backlog came out behind. A stream that was asked, or was opened,
                     may have had nothing to send yet: it was waiting if the direction was full, or
                     if it came as soon as the other stream paused
transport            retransmission or missing bytes cover half of it or more
no-reply             the peer had ended its half, sent a request or made an offer, and no answer
                     came for seconds, or until the capture ended (`replies`)
sender-idle          none of these: it is the sender's own time

Waits behind other streams are added up too short for a stall as well: the time the direction was at
work since the stream was ready; or, where nothing shows that it was, for the one frame before its.
"""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.busy_runs import BusyRuns
from polymux.analysis.tracking.direction_history import FAIR_QUANTUM_BYTES, DirectionHistory
from polymux.analysis.tracking.intervals import Intervals
from polymux.analysis.tracking.missing_replies import MissingReplyDetector
from polymux.analysis.tracking.stall_rows import (
    HEAD_OF_LINE,
    NO_CREDIT,
    SENDER_IDLE,
    SLOW_READER,
    StallRows,
)
from polymux.analysis.tracking.stall_text import no_credit_text, window_closed_text
from polymux.analysis.tracking.stream_tracker import NO_GRANTS, HalfTracker, StreamTracker
from polymux.core.streams import ENDED, NOT_YET, OPEN, HalfStream
from polymux.text.units import duration_text, size_text

MIN_STALL_NS: Final[i64] = 50_000_000
MIN_PAUSE_NS: Final[i64] = 10_000_000  # a direction silent for this long had nothing waiting
MIN_FULL_FRAME_BYTES: Final[i64] = (
    1024  # a full frame of less than this says nothing about what follows
)
MAX_LATE_GRANTS: Final = 64  # late grants remembered of one pause
MAX_HOL_SUSPECTS: Final = 64  # pauses of one direction that wait for what follows them


class StallDetector:
    """Both directions of a session. Instants are nanoseconds; `rtt` is -1 if it was not seen."""

    def __init__(
        self,
        no_stream: StreamTracker,
        rtt_ns: i64,
        dialer_window_closed: list[tuple[int, int]],
        acceptor_window_closed: list[tuple[int, int]],
        dialer_retransmissions: list[tuple[int, int]],
        acceptor_retransmissions: list[tuple[int, int]],
        two_way: bool = True,
        has_offers: bool = False,
        has_requests: bool = False,
    ) -> None:
        """`closed` are the spans in which each side offered no window or too small a one,
        `repaired` those in which each side's bytes were being sent again. The rest as in
        `Replies`."""
        self.rtt_ns: i64 = rtt_ns
        self.min_stall_ns: i64 = rtt_ns * 5 if rtt_ns * 5 > MIN_STALL_NS else MIN_STALL_NS
        self.pause_ns: i64 = rtt_ns if rtt_ns > MIN_PAUSE_NS else MIN_PAUSE_NS
        self.dialer: DirectionHistory = DirectionHistory(
            BusyRuns(no_stream, self.pause_ns, 0),
            Intervals(acceptor_window_closed),
            Intervals(dialer_retransmissions),
        )
        self.acceptor: DirectionHistory = DirectionHistory(
            BusyRuns(no_stream, self.pause_ns, 1),
            Intervals(dialer_window_closed),
            Intervals(acceptor_retransmissions),
        )
        self.reply_detector: MissingReplyDetector = MissingReplyDetector(
            rtt_ns, two_way, has_offers, has_requests, self.dialer, self.acceptor
        )
        self.rows: StallRows = StallRows()

    def history(self, side: i64) -> DirectionHistory:
        return self.dialer if side == 0 else self.acceptor

    # --- what passes

    def on_first_frame(self, track: StreamTracker) -> None:
        """The first frame of a stream is about to pass."""
        track.is_new = False
        for side in (0, 1):
            own = track.half(side)
            runs = self.history(side).runs
            own.busy_ns_at_last_frame = runs.busy_ns
            own.saturated_ns_at_last_frame = runs.saturated_ns

    def on_frame_start(self, track: StreamTracker, side: i64, began: i64) -> None:
        """A frame of this stream begins to pass: does it decide a pause that is held?"""
        path = self.history(side)
        kept: list[StreamTracker] = []
        for held in path.hol_suspects:
            own = held.half(side)
            if own.hol_suspected_at == NOT_YET:
                continue
            if began - own.hol_suspected_at > self.pause_ns:
                self.resolve_hol_suspect(held, side, own, True)
            elif track.label == own.hol_blocking_stream:  # it goes on: it did not make room
                self.resolve_hol_suspect(held, side, own, False)
            else:
                kept.append(held)
        path.hol_suspects = kept

    def on_content(
        self,
        track: StreamTracker,
        side: i64,
        began: i64,
        timestamp: i64,
        size: i64,
        more_content: bool,
    ) -> None:
        """A content frame of `size` bytes began to pass at `began` and was whole at `at`; `more`
        of this side's content came with it."""
        own = track.half(side)
        if own.hol_suspected_at != NOT_YET and not own.hol_evidence_weak:
            self.resolve_hol_suspect(
                track, side, own, began - own.hol_suspected_at <= self.pause_ns
            )
        if own.last_content_at != NOT_YET and began - own.last_content_at >= self.min_stall_ns:
            self.classify(track, side, own, began, timestamp, size, more_content)
        else:
            own.hol_blocked_ns += self.hol_wait(track, side, own, began, size)
        own.last_content_at = timestamp
        own.blocked_span_start = NOT_YET
        own.blocked_span_end = NOT_YET
        own.peer_content_at = NOT_YET
        own.spent_at_last_content = own.half.credit_spent
        if len(own.late_grants) > 0:
            own.late_grants = NO_GRANTS
        if size > own.largest_payload:
            own.largest_payload = size
        own.last_frame_was_full_size = size >= MIN_FULL_FRAME_BYTES and size == own.largest_payload
        peer = track.half(1 - side)
        peer.peer_content_at = timestamp
        peer.busy_ns_at_peer_content = self.history(1 - side).runs.busy_ns

    def on_credit(self, track: StreamTracker, side: i64, timestamp: i64) -> None:
        """The peer has given `side` more credit."""
        own = track.half(side)
        half = own.half
        before = own.seen_granted - half.credit_spent
        if before >= 0 and timestamp - own.last_content_at >= self.min_stall_ns:
            if len(own.late_grants) == 0:
                own.late_grants = [(int(timestamp), before)]
            elif len(own.late_grants) < MAX_LATE_GRANTS:
                own.late_grants.append((int(timestamp), before))

    def on_unblocked(self, track: StreamTracker, side: i64, began: i64, ended: i64) -> None:
        """A time without leave is over."""
        own = track.half(side)
        half = own.half
        if half.state == OPEN and half.credit_granted > half.credit_spent and not track.stream.over:
            if (
                own.blocked_span_start == NOT_YET
                or ended - began > own.blocked_span_end - own.blocked_span_start
            ):
                own.blocked_span_start = began
                own.blocked_span_end = ended
                own.busy_ns_at_unblock = self.history(side).runs.busy_ns
        else:
            self.add_never_granted(track, side, half, began, ended)

    def on_half_ended(self, track: StreamTracker, side: i64, state: i64, timestamp: i64) -> None:
        """One side has just ended its half, or reset or cancelled the stream."""
        self.reply_detector.on_half_ended(self.rows, track, side, timestamp)
        own = track.half(side)
        own.ended_at = timestamp if state == ENDED else NOT_YET
        own.seen_state = state
        track.half(1 - side).saturated_ns_at_peer_end = self.history(1 - side).runs.saturated_ns

    def on_accepted(self, track: StreamTracker, timestamp: i64) -> None:
        """An offer has just been accepted."""
        if self.reply_detector.on_accepted(self.rows, track, timestamp):
            own = track.half(track.opener)  # that it had no credit until now is said with this
            own.blocked_span_start = NOT_YET
            own.blocked_span_end = NOT_YET
            own.last_content_at = timestamp

    def on_mid_frame_silence(self, track: StreamTracker, side: i64, began: i64, ended: i64) -> None:
        """Nothing came in the middle of a frame of this stream."""
        if ended - began >= self.min_stall_ns:
            cause, detail = self.history(side).transport_cause(began, ended)
            if cause == SENDER_IDLE:
                detail = f"the sender stopped inside a frame for {duration_text(ended - began)}"
            self.add_row(track, side, began, ended, cause, "", detail)

    def finish(self, track: StreamTracker, ended: i64, complete: bool) -> None:
        """No more will come on this stream; `ended` is the end of the capture or of the stream.
        `whole`: what passed could be read to the end, and the stream was not displaced."""
        over = track.stream.over
        for side in (0, 1):
            own = track.half(side)
            if own.hol_suspected_at != NOT_YET:
                self.resolve_hol_suspect(track, side, own, own.hol_evidence_weak)
            half = own.half
            closed = self.history(side).window_closed
            last = closed.last_start()
            if (
                half.state == OPEN
                and half.content_bytes > 0
                and not over
                and last >= 0
                and closed.last_end() >= ended
                and own.last_content_at >= last - self.min_stall_ns
                and ended - last >= self.min_stall_ns
            ):
                began = last if last > own.last_content_at else own.last_content_at
                detail = f"the peer closed its TCP window for {duration_text(ended - last)}"
                self.add_row(track, side, began, ended, SLOW_READER, "",
                         f"{detail} and did not open it again")  # fmt: skip
        if complete and not over and track.stream.reset_by < 0:
            self.reply_detector.on_capture_end(self.rows, track, ended)

    # --- causes

    def hol_wait(
        self, track: StreamTracker, side: i64, own: HalfTracker, began: i64, size: i64
    ) -> i64:
        """How long the frame that begins now waited behind frames of other streams."""
        runs = self.history(side).runs
        if runs.last_stream is track or not runs.is_back_to_back(size, began):
            return 0
        ready = own.busy_ns_at_last_frame
        if own.blocked_span_start != NOT_YET:
            ready = own.busy_ns_at_unblock
        elif own.peer_content_at != NOT_YET:
            ready = own.busy_ns_at_peer_content
        elif not own.last_frame_was_full_size and (
            own.seen_content_bytes > 0 or track.opener != side
        ):
            # Nothing shows that it was ready: only what surely filled the line counts, and after a
            # long pause only the frame right before.
            full = runs.saturated_ns - (
                own.saturated_ns_at_last_frame
                if own.saturated_ns_at_last_frame > runs.saturated_ns_at_pause
                else runs.saturated_ns_at_pause
            )
            long = (
                own.last_content_at != NOT_YET and began - own.last_content_at >= self.min_stall_ns
            )
            return (
                runs.last_frame_saturated_ns
                if long and runs.last_frame_saturated_ns < full
                else full
            )
        if ready < own.busy_ns_at_last_frame:
            ready = own.busy_ns_at_last_frame
        if ready < runs.busy_ns_at_pause:
            ready = runs.busy_ns_at_pause
        return runs.busy_ns - ready

    def classify(
        self,
        track: StreamTracker,
        side: i64,
        own: HalfTracker,
        until: i64,
        timestamp: i64,
        size: i64,
        more_content: bool,
    ) -> None:
        """The stream stood still from its last content to `until`: say why."""
        since = own.last_content_at
        path = self.history(side)
        waited = self.hol_wait(track, side, own, until, size)
        credit = self.credit_available_at(track, side, own, until, more_content)
        if credit != NOT_YET:
            began = own.blocked_span_start if own.blocked_span_start != NOT_YET else since
            rest = until - credit
            if credit - began >= self.min_stall_ns or (
                rest < self.min_stall_ns and credit - began >= rest
            ):
                cause, detail = self.history(1 - side).transport_cause(began, credit)
                if cause == SENDER_IDLE:
                    detail = no_credit_text(own, self.rtt_ns, credit - began, size)
                    self.add_row(track, side, began, credit, NO_CREDIT, "", detail)
                else:  # the grant was on its way, and could not come
                    self.add_row(track, 1 - side, began, credit, cause, "", detail)
                if rest < self.min_stall_ns:
                    own.hol_blocked_ns += waited
                    return
            since = credit
        closed = path.window_closed.overlap(since, until)
        if closed >= self.min_stall_ns:
            first = path.window_closed.start_after(since)
            last = path.window_closed.end_before(until)
            if closed * 2 >= last - first:
                self.add_row(track, side, first, last, SLOW_READER, "", window_closed_text(closed))
                since = last
                if until - since < self.min_stall_ns:
                    own.hol_blocked_ns += waited
                    return
        cause, detail = self.history(side).transport_cause(since, until)
        if cause == SLOW_READER:
            self.add_row(track, side, since, until, cause, "", detail)
            return
        asked = own.peer_content_at != NOT_YET
        ready = credit != NOT_YET or (not asked and (own.last_frame_was_full_size or more_content))
        weak = not ready and (asked or (own.seen_content_bytes == 0 and track.opener == side))
        start = own.peer_content_at if weak and own.peer_content_at > since else since
        stretch = path.runs.busy_before(track, start, until)
        length = until - stretch.start
        share = size if size > FAIR_QUANTUM_BYTES else FAIR_QUANTUM_BYTES
        if (
            weak
            and until - start >= self.min_stall_ns
            and path.runs.last_frame_saturated_ns < waited
        ):
            waited = path.runs.last_frame_saturated_ns
        busy = not weak or stretch.busy_ns * 2 >= length
        if stretch.blocking_bytes > share and length >= self.min_stall_ns and busy:
            own.hol_suspected_at = timestamp
            own.hol_evidence_weak = weak
            own.hol_fallback_wait_ns = waited
            own.hol_pause_start = since
            own.hol_pause_end = until
            own.hol_blocking_start = stretch.start
            own.hol_blocking_stream = stretch.blocking_stream.label
            own.hol_blocking_bytes = stretch.blocking_bytes
            if ready or (weak and stretch.saturated_ns * 5 >= length * 4):
                self.resolve_hol_suspect(track, side, own, True)
            elif weak:
                if (
                    len(path.hol_suspects) >= MAX_HOL_SUSPECTS
                ):  # so many at once: the culprit let them all wait
                    self.resolve_hol_suspect(track, side, own, True)
                else:
                    path.hol_suspects.append(track)
            return
        own.hol_blocked_ns += waited
        if cause == SENDER_IDLE:
            self.add_idle(track, side, since, until)
        else:
            self.add_row(track, side, since, until, cause, "", detail)

    def credit_available_at(
        self, track: StreamTracker, side: i64, own: HalfTracker, until: i64, more_content: bool
    ) -> i64:
        """When there was credit enough for the frame that begins at `until`; UNSEEN if there was
        all the time since its stream's last content."""
        enough = own.blocked_span_end
        if more_content:  # of several frames: which of them it was for cannot be told
            return enough
        size = own.half.credit_spent - own.spent_at_last_content
        for n in range(len(own.late_grants) - 1, -1, -1):
            came, before = own.late_grants[n]
            if before < size:
                # A sender that waits for room goes on as soon as there is, unless it has to wait
                # for others then.
                late: i64 = until - came
                if late > self.pause_ns:
                    late = self.history(side).runs.busy_before(track, came, until).start - came
                if came > enough and late <= self.pause_ns:
                    enough = came
                break
        return enough

    def resolve_hol_suspect(
        self, track: StreamTracker, side: i64, own: HalfTracker, confirmed: bool
    ) -> None:
        """A pause behind another stream: was this stream really waiting?"""
        until = own.hol_pause_end
        if confirmed:
            began = own.hol_blocking_start
            own.hol_blocked_ns += until - began
            text = f"{size_text(own.hol_blocking_bytes)} of {own.hol_blocking_stream} passed first"
            self.add_row(
                track,
                side,
                began,
                until,
                HEAD_OF_LINE,
                own.hol_blocking_stream,
                f"{text}, in {duration_text(until - began)}",
            )
        else:
            own.hol_blocked_ns += own.hol_fallback_wait_ns
            self.add_idle(track, side, own.hol_pause_start, until)
        own.hol_suspected_at = NOT_YET

    def add_idle(self, track: StreamTracker, side: i64, since: i64, until: i64) -> None:
        """Nothing held the sender up: was its peer waiting for it?"""
        waited = self.reply_detector.waited_since(track, side, until)
        if waited != NOT_YET and since > waited:  # the time before has a cause of its own
            waited = since if until - since >= self.reply_detector.late_ns else NOT_YET
        if waited == NOT_YET or not self.reply_detector.add_reply(
            self.rows, track, side, waited, until, True
        ):
            self.add_row(track, side, since, until, SENDER_IDLE, "",
                     f"the sender sent nothing for {duration_text(until - since)}")  # fmt: skip

    def add_never_granted(
        self, track: StreamTracker, side: i64, half: HalfStream, began: i64, ended: i64
    ) -> None:
        """Leave ran out and never came again."""
        outstanding = half.credit_spent - (half.credit_granted - half.window)
        if half.window > 0 and outstanding > 0 and ended - began >= self.min_stall_ns:
            text = f"{size_text(outstanding)} were never acknowledged"
            self.add_row(
                track,
                side,
                began,
                ended,
                SLOW_READER,
                "",
                f"{text}, for {duration_text(ended - began)}",
            )

    def add_row(
        self,
        track: StreamTracker,
        side: i64,
        began: i64,
        ended: i64,
        cause: str,
        blocking_stream: str,
        detail: str,
    ) -> None:
        self.rows.add(track, side, began, ended, cause, blocking_stream, detail)

    def take_rows(self) -> StallRows:
        rows = self.rows
        self.rows = StallRows()
        return rows
