# mypyc: compiled
"""Stall detection: pauses in what one side sends on a stream, each with its cause.

The problem. A stream that sends nothing for a while may be blocked (no credit, a closed TCP window,
lost packets, another stream ahead of it) or its application may have nothing to send. A capture
shows frames and TCP segments, never what the sender had queued. A report that blames a peer for
what was the sender's own idle time is worse than no report.

The idea. A stall is the time between two content frames of one side of a stream, or inside one
frame, of at least 50 ms and five round trips. It is classified when the next content frame arrives
(or the stream or capture ends), because only then is it known what ended the pause. Each cause has
a test on captured facts; the tests run in this order, and the first that holds is the cause:

    no-credit     credit was 0, or too little for the next frame, until a grant arrived
    slow-reader   the peer's TCP window was closed, or too small for the next segment; or the
                  window of the stream stayed full until the sender aborted or the capture ended
    head-of-line  the direction was busy with other streams without a pause, one of them sent more
                  than its fair share (a scheduling quantum, or the size of this stream's own frame
                  if that is larger), and this stream was ready to send
    transport     retransmissions or missing bytes cover at least half of the pause
    no-reply      the peer had ended its half, sent a request or made an offer, and no answer came
                  for seconds, or until the capture ended (`missing_replies`)
    sender-idle   none of these: the sender's own time, never a finding

A pause with two causes in succession, each long enough, becomes two stalls: once a grant or an
opened window explains the first part, the rest of the pause is classified on its own.

No false reports. Every cause but `sender-idle` needs evidence that the sender was suspect up:

- A grant counts only if it ended the pause: the next frame needed it and follows at once.
- A stream was ready to send if credit had just arrived, if its last frame was as large as its
  frames get, or if a backlog follows. Otherwise the evidence is weak: a stream that was asked, or
  has just been opened, may have had nothing to send yet. It then counts as blocked only if the
  direction was saturated, or if its frame came as soon as the blocking stream paused. The latter
  is known only from the frames that follow, so the pause is kept as a suspect
  (`HalfTracker.hol_*`, `DirectionHistory.hol_suspects`) until one of them confirms or refutes it.
- Memory is bounded: with too many suspects or late grants at once, the oldest evidence decides.

`hol_blocked_ns` of a half adds up all head-of-line blocking, also waits too short for a stall: the
time the direction was busy since the stream was ready or, where nothing shows that it was, the time
of the one frame before its own.
"""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.missing_replies import MissingReplyDetector
from polymux.analysis.tracking.stall_evidence import (
    FAIR_QUANTUM_BYTES,
    HEAD_OF_LINE,
    NO_CREDIT,
    SENDER_IDLE,
    SLOW_READER,
    BusyPeriod,
    BusyRuns,
    DirectionHistory,
    Intervals,
    PendingStall,
    StallRows,
    hol_blocked_text,
    no_credit_text,
    still_no_credit_text,
    window_closed_text,
)
from polymux.analysis.tracking.stream_tracker import NO_GRANTS, HalfTracker, StreamTracker
from polymux.core.streams import ENDED, NOT_YET, OPEN, HalfStream
from polymux.text.units import duration_text, size_text

MIN_STALL_NS: Final[i64] = 50_000_000
MIN_PAUSE_NS: Final[i64] = 10_000_000  # a direction silent for this long had nothing queued
MIN_FULL_FRAME_BYTES: Final[i64] = 1024  # a smaller frame says nothing about what follows it
MAX_LATE_GRANTS: Final = 64  # late grants remembered per pause
MAX_HOL_SUSPECTS: Final = 64  # unresolved head-of-line suspects per direction


class StallDetector:
    """Finds the stalls of one session. Timestamps and durations are nanoseconds.

    The tracker calls `on_*` for each frame in order of time and `finish` for each stream;
    `take_rows` returns the stalls found since the last call.
    """

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
        """Create a detector for one session.

        Args:
            no_stream: placeholder for frames that belong to no stream.
            rtt_ns: round trip of the connection; -1 if unknown.
            dialer_window_closed, acceptor_window_closed: intervals in which that side offered no
                TCP window, or too small a one.
            dialer_retransmissions, acceptor_retransmissions: intervals in which that side
                retransmitted.
            two_way, has_offers, has_requests: as in `MissingReplyDetector`.
        """
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

    # Events, in order of time

    def on_first_frame(self, track: StreamTracker) -> None:
        """Before the first frame of a stream."""
        track.is_new = False
        for side in (0, 1):
            own = track.half(side)
            runs = self.history(side).runs
            own.busy_ns_at_last_frame = runs.busy_ns
            own.saturated_ns_at_last_frame = runs.saturated_ns

    def on_frame_start(self, track: StreamTracker, side: i64, began: i64) -> None:
        """A frame of this stream begins at `began`: resolve the suspects that it decides."""
        history = self.history(side)
        kept: list[StreamTracker] = []
        for suspect in history.hol_suspects:
            own = suspect.half(side)
            if own.hol_suspected_at == NOT_YET:
                continue
            if began - own.hol_suspected_at > self.pause_ns:
                self.resolve_hol_suspect(suspect, side, own, True)
            elif (
                track.label == own.hol_blocking_stream
            ):  # it continues: it had not paused for the suspect
                self.resolve_hol_suspect(suspect, side, own, False)
            else:
                kept.append(suspect)
        history.hol_suspects = kept

    def on_content(
        self,
        track: StreamTracker,
        side: i64,
        began: i64,
        timestamp: i64,
        size: i64,
        more_content: bool,
    ) -> None:
        """A content frame with `size` bytes of payload arrived from `began` to `timestamp`.

        `more_content`: further content of this side arrived with it.
        """
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
        """The peer granted `side` more credit."""
        own = track.half(side)
        half = own.half
        before = own.seen_granted - half.credit_spent
        if before >= 0 and timestamp - own.last_content_at >= self.min_stall_ns:
            if len(own.late_grants) == 0:
                own.late_grants = [(int(timestamp), before)]
            elif len(own.late_grants) < MAX_LATE_GRANTS:
                own.late_grants.append((int(timestamp), before))

    def on_unblocked(self, track: StreamTracker, side: i64, began: i64, ended: i64) -> None:
        """A time without send credit, from `began` to `ended`, is over."""
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
        """One side ended its half, or reset or cancelled the stream."""
        self.reply_detector.on_half_ended(self.rows, track, side, timestamp)
        own = track.half(side)
        own.ended_at = timestamp if state == ENDED else NOT_YET
        own.seen_state = state
        track.half(1 - side).saturated_ns_at_peer_end = self.history(1 - side).runs.saturated_ns

    def on_accepted(self, track: StreamTracker, timestamp: i64) -> None:
        """An offer was accepted."""
        if self.reply_detector.on_accepted(self.rows, track, timestamp):
            own = track.half(track.opener)  # the late reply also explains its missing credit
            own.blocked_span_start = NOT_YET
            own.blocked_span_end = NOT_YET
            own.last_content_at = timestamp

    def on_mid_frame_silence(self, track: StreamTracker, side: i64, began: i64, ended: i64) -> None:
        """Nothing arrived from `began` to `ended`, in the middle of a frame of this stream."""
        if ended - began >= self.min_stall_ns:
            cause, detail = self.history(side).transport_cause(began, ended)
            if cause == SENDER_IDLE:
                detail = f"the sender stopped inside a frame for {duration_text(ended - began)}"
            self.add_row(track, side, began, ended, cause, "", detail)

    def window_closed_since(self, track: StreamTracker, side: i64, now: i64) -> i64:
        """Since when a closed TCP window, which did not open again up to `now`, stalls this half.

        NOT_YET if none does.
        """
        own = track.half(side)
        half = own.half
        closed = self.history(side).window_closed
        last = closed.last_start()
        if (
            half.state == OPEN
            and half.content_bytes > 0
            and not track.stream.over
            and last >= 0
            and closed.last_end() >= now
            and own.last_content_at >= last - self.min_stall_ns
            and now - last >= self.min_stall_ns
        ):
            return last
        return NOT_YET

    def finish(self, track: StreamTracker, ended: i64, complete: bool) -> None:
        """No more frames follow on this stream, which or whose capture ended at `ended`.

        `complete`: both directions were decoded to the end, and the stream was not abandoned.
        """
        over = track.stream.over
        for side in (0, 1):
            own = track.half(side)
            if own.hol_suspected_at != NOT_YET:
                self.resolve_hol_suspect(track, side, own, own.hol_evidence_weak)
            last = self.window_closed_since(track, side, ended)
            if last != NOT_YET:
                began = last if last > own.last_content_at else own.last_content_at
                detail = f"the peer closed its TCP window for {duration_text(ended - last)}"
                detail += " and did not open it again"
                self.add_row(track, side, began, ended, SLOW_READER, "", detail)
        if complete and not over and track.stream.reset_by < 0:
            self.reply_detector.on_capture_end(self.rows, track, ended)

    # A capture that is still being written

    def set_tcp_facts(
        self,
        rtt_ns: i64,
        dialer_window_closed: list[tuple[int, int]],
        acceptor_window_closed: list[tuple[int, int]],
        dialer_retransmissions: list[tuple[int, int]],
        acceptor_retransmissions: list[tuple[int, int]],
    ) -> None:
        """Take what TCP has shown so far instead of what it had shown when this was created.

        The arguments are those of the constructor.
        """
        self.rtt_ns = rtt_ns
        self.min_stall_ns = rtt_ns * 5 if rtt_ns * 5 > MIN_STALL_NS else MIN_STALL_NS
        self.pause_ns = rtt_ns if rtt_ns > MIN_PAUSE_NS else MIN_PAUSE_NS
        self.dialer.runs.pause_ns = self.pause_ns
        self.acceptor.runs.pause_ns = self.pause_ns
        self.reply_detector.set_round_trip(rtt_ns)
        self.dialer.window_closed = Intervals(acceptor_window_closed)
        self.dialer.retransmissions = Intervals(dialer_retransmissions)
        self.acceptor.window_closed = Intervals(dialer_window_closed)
        self.acceptor.retransmissions = Intervals(acceptor_retransmissions)

    def pending(self, track: StreamTracker, side: i64, now: i64) -> PendingStall | None:
        """The pause in which one side of a stream is at `now`, if a cause other than its own shows.

        The tests are those of a pause that has ended, as far as they can be made before it has.
        Nothing is changed or reported: when the pause ends, it is classified as any other.
        """
        if track.stream.over:
            return None
        own = track.half(side)
        half = own.half
        history = self.history(side)
        if half.state == OPEN:
            blocked = half.blocked_since
            if blocked != NOT_YET and now - blocked >= self.min_stall_ns:
                cause, detail = self.history(1 - side).transport_cause(blocked, now)
                if cause != SENDER_IDLE:  # a grant may have been sent, and TCP delays it
                    return PendingStall(1 - side, blocked, cause, "", detail)
                detail = still_no_credit_text(own, now - blocked)
                return PendingStall(side, blocked, NO_CREDIT, "", detail)
            closed = self.window_closed_since(track, side, now)
            if closed != NOT_YET:
                detail = window_closed_text(now - closed)
                return PendingStall(side, closed, SLOW_READER, "", detail)
            since = own.last_content_at
            if since != NOT_YET and half.content_bytes > 0 and now - since >= self.min_stall_ns:
                cause, detail = history.transport_cause(since, now)
                if cause != SENDER_IDLE:
                    return PendingStall(side, since, cause, "", detail)
                if own.peer_content_at == NOT_YET and (
                    own.last_frame_was_full_size or own.blocked_span_end != NOT_YET
                ):
                    busy_period = history.runs.busy_before(track, since, now)
                    lasted = now - busy_period.start
                    if self.is_unfair(busy_period, own.largest_payload, lasted, False):
                        blocking = busy_period.blocking_stream.label
                        detail = hol_blocked_text(busy_period.blocking_bytes, blocking, lasted)
                        return PendingStall(side, busy_period.start, HEAD_OF_LINE, blocking, detail)
        return self.reply_detector.pending(track, side, now)

    # Classification

    def is_unfair(self, busy_period: BusyPeriod, size: i64, length: i64, busy: bool) -> bool:
        """Whether another stream delayed a frame of `size` bytes for the `length` of this period.

        It did if it sent more than its fair share, for long enough for a stall, while the direction
        was `busy` or is found to have been.
        """
        share = size if size > FAIR_QUANTUM_BYTES else FAIR_QUANTUM_BYTES
        return (
            busy_period.blocking_bytes > share
            and length >= self.min_stall_ns
            and (busy or busy_period.busy_ns * 2 >= length)
        )

    def hol_wait(
        self, track: StreamTracker, side: i64, own: HalfTracker, began: i64, size: i64
    ) -> i64:
        """Nanoseconds that the frame beginning at `began` waited behind frames of other streams."""
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
            # No evidence that it was ready: only time in which the line was saturated counts, and
            # after a long pause only the frame right before.
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
        """Classify the stall from the half's last content to `until`, where the next one begins.

        The causes are tried in their order; `since` is the start of the part that is not explained.
        """
        since = own.last_content_at
        waited = self.hol_wait(track, side, own, until, size)
        credit = self.credit_available_at(track, side, own, until, more_content)
        if credit != NOT_YET:
            if self.add_no_credit(track, side, own, credit, until, size):
                own.hol_blocked_ns += waited
                return
            since = credit
        opened = self.add_closed_window(track, side, since, until)
        if opened != NOT_YET:
            since = opened
            if until - since < self.min_stall_ns:
                own.hol_blocked_ns += waited
                return
        cause, detail = self.history(side).transport_cause(since, until)
        if cause == SLOW_READER:
            self.add_row(track, side, since, until, cause, "", detail)
            return
        asked = own.peer_content_at != NOT_YET
        ready = credit != NOT_YET or (not asked and (own.last_frame_was_full_size or more_content))
        if self.suspect_hol(track, side, own, since, until, timestamp, size, waited, ready):
            return
        if cause == SENDER_IDLE:
            self.add_idle(track, side, since, until)
        else:
            self.add_row(track, side, since, until, cause, "", detail)

    def add_no_credit(
        self, track: StreamTracker, side: i64, own: HalfTracker, credit: i64, until: i64, size: i64
    ) -> bool:
        """Report the time without credit, which was granted at `credit`, if it is a stall.

        It is one if it is long enough, or the larger part of the pause while the rest is too short
        for a stall. Return whether it was reported and the rest is too short.
        """
        began = own.blocked_span_start if own.blocked_span_start != NOT_YET else own.last_content_at
        rest = until - credit
        if credit - began < self.min_stall_ns and (
            rest >= self.min_stall_ns or credit - began < rest
        ):
            return False
        cause, detail = self.history(1 - side).transport_cause(began, credit)
        if cause == SENDER_IDLE:
            detail = no_credit_text(own, self.rtt_ns, credit - began, size)
            self.add_row(track, side, began, credit, NO_CREDIT, "", detail)
        else:  # the grant was sent, and TCP delayed it
            self.add_row(track, 1 - side, began, credit, cause, "", detail)
        return rest < self.min_stall_ns

    def add_closed_window(self, track: StreamTracker, side: i64, since: i64, until: i64) -> i64:
        """Report the time in which the peer's TCP window was closed, if it is a stall.

        Return when the window opened, or NOT_YET if nothing was reported.
        """
        window_closed = self.history(side).window_closed
        closed_ns = window_closed.overlap(since, until)
        if closed_ns < self.min_stall_ns:
            return NOT_YET
        first = window_closed.start_after(since)
        last = window_closed.end_before(until)
        if closed_ns * 2 < last - first:
            return NOT_YET
        self.add_row(track, side, first, last, SLOW_READER, "", window_closed_text(closed_ns))
        return last

    def suspect_hol(
        self,
        track: StreamTracker,
        side: i64,
        own: HalfTracker,
        since: i64,
        until: i64,
        timestamp: i64,
        size: i64,
        waited: i64,
        ready: bool,
    ) -> bool:
        """Suspect or report head-of-line blocking if another stream kept the direction busy.

        Return False if none did; `waited` is then counted as blocked time, though not as a stall.
        `ready`: there is evidence that the stream had something to send.
        """
        history = self.history(side)
        weak = not ready and (
            own.peer_content_at != NOT_YET or (own.seen_content_bytes == 0 and track.opener == side)
        )
        start = own.peer_content_at if weak and own.peer_content_at > since else since
        busy_period = history.runs.busy_before(track, start, until)
        length = until - busy_period.start
        if (
            weak
            and until - start >= self.min_stall_ns
            and history.runs.last_frame_saturated_ns < waited
        ):
            waited = history.runs.last_frame_saturated_ns
        if not self.is_unfair(busy_period, size, length, not weak):
            own.hol_blocked_ns += waited
            return False
        own.hol_suspected_at = timestamp
        own.hol_evidence_weak = weak
        own.hol_fallback_wait_ns = waited
        own.hol_pause_start = since
        own.hol_pause_end = until
        own.hol_blocking_start = busy_period.start
        own.hol_blocking_stream = busy_period.blocking_stream.label
        own.hol_blocking_bytes = busy_period.blocking_bytes
        if ready or (weak and busy_period.saturated_ns * 5 >= length * 4):
            self.resolve_hol_suspect(track, side, own, True)
        elif weak:
            if len(history.hol_suspects) >= MAX_HOL_SUSPECTS:
                # So many at once: the blocking stream delayed all of them.
                self.resolve_hol_suspect(track, side, own, True)
            else:
                history.hol_suspects.append(track)
        return True

    def credit_available_at(
        self, track: StreamTracker, side: i64, own: HalfTracker, until: i64, more_content: bool
    ) -> i64:
        """When there was enough credit for the frame that begins at `until`.

        NOT_YET if there was enough all the time since the half's last content.
        """
        enough = own.blocked_span_end
        if more_content:  # several frames: it is unknown which of them it was for
            return enough
        size = own.half.credit_spent - own.spent_at_last_content
        for n in range(len(own.late_grants) - 1, -1, -1):
            came, before = own.late_grants[n]
            if before < size:
                # A sender that waits for credit sends as soon as it has some, unless other streams
                # are ahead of it then.
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
        """Report a suspected head-of-line stall if it is confirmed, else the sender as idle."""
        until = own.hol_pause_end
        if confirmed:
            began = own.hol_blocking_start
            own.hol_blocked_ns += until - began
            blocking = own.hol_blocking_stream
            detail = hol_blocked_text(own.hol_blocking_bytes, blocking, until - began)
            self.add_row(track, side, began, until, HEAD_OF_LINE, blocking, detail)
        else:
            own.hol_blocked_ns += own.hol_fallback_wait_ns
            self.add_idle(track, side, own.hol_pause_start, until)
        own.hol_suspected_at = NOT_YET

    def add_idle(self, track: StreamTracker, side: i64, since: i64, until: i64) -> None:
        """Nothing blocked the sender: a missing reply if its peer was waiting, else idle time."""
        waited = self.reply_detector.waited_since(track, side, until)
        if waited != NOT_YET and since > waited:  # the time before `since` has its own cause
            waited = since if until - since >= self.reply_detector.late_ns else NOT_YET
        if waited == NOT_YET or not self.reply_detector.add_reply(
            self.rows, track, side, waited, until, True
        ):
            detail = f"the sender sent nothing for {duration_text(until - since)}"
            self.add_row(track, side, since, until, SENDER_IDLE, "", detail)

    def add_never_granted(
        self, track: StreamTracker, side: i64, half: HalfStream, began: i64, ended: i64
    ) -> None:
        """Credit ran out at `began` and none arrived until `ended`."""
        outstanding = half.credit_spent - (half.credit_granted - half.window)
        if half.window > 0 and outstanding > 0 and ended - began >= self.min_stall_ns:
            lasted = duration_text(ended - began)
            detail = f"{size_text(outstanding)} were never acknowledged, for {lasted}"
            self.add_row(track, side, began, ended, SLOW_READER, "", detail)

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
