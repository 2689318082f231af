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

from polymux.analysis.tracking.busy_runs import Runs
from polymux.analysis.tracking.direction_history import QUANTUM, Path
from polymux.analysis.tracking.intervals import Spans
from polymux.analysis.tracking.missing_replies import Replies
from polymux.analysis.tracking.stall_rows import BEHIND, IDLE, NO_CREDIT, SLOW_READER, StallRows
from polymux.analysis.tracking.stall_text import closed_text, credit_text
from polymux.analysis.tracking.stream_tracker import NO_GRANTS, HalfTrack, Track
from polymux.core.streams import ENDED, OPEN, UNSEEN, Half
from polymux.text.units import duration_text, size_text

LEAST: Final[i64] = 50_000_000
PAUSE: Final[i64] = 10_000_000  # a direction silent for this long had nothing waiting
LARGE: Final[i64] = 1024  # a full frame of less than this says nothing about what follows
GRANTS: Final = 64  # late grants remembered of one pause
HELD: Final = 64  # pauses of one direction that wait for what follows them


class Stalls:
    """Both directions of a session. Instants are nanoseconds; `rtt` is -1 if it was not seen."""

    def __init__(
        self,
        none: Track,
        rtt: i64,
        closed0: list[tuple[int, int]],
        closed1: list[tuple[int, int]],
        repaired0: list[tuple[int, int]],
        repaired1: list[tuple[int, int]],
        two_way: bool = True,
        offers: bool = False,
        requests: bool = False,
    ) -> None:
        """`closed` are the spans in which each side offered no window or too small a one,
        `repaired` those in which each side's octets were being sent again. The rest as in
        `Replies`."""
        self.rtt: i64 = rtt
        self.least: i64 = rtt * 5 if rtt * 5 > LEAST else LEAST
        self.pause: i64 = rtt if rtt > PAUSE else PAUSE
        self.dialer: Path = Path(Runs(none, self.pause, 0), Spans(closed1), Spans(repaired0))
        self.acceptor: Path = Path(Runs(none, self.pause, 1), Spans(closed0), Spans(repaired1))
        self.replies: Replies = Replies(rtt, two_way, offers, requests, self.dialer, self.acceptor)
        self.rows: StallRows = StallRows()

    def path(self, side: i64) -> Path:
        return self.dialer if side == 0 else self.acceptor

    # --- what passes

    def begin(self, track: Track) -> None:
        """The first frame of a stream is about to pass."""
        track.fresh = False
        for side in (0, 1):
            own = track.side(side)
            runs = self.path(side).runs
            own.passed_work = runs.work
            own.passed_full = runs.full

    def passes(self, track: Track, side: i64, began: i64) -> None:
        """A frame of this stream begins to pass: does it decide a pause that is held?"""
        path = self.path(side)
        kept: list[Track] = []
        for held in path.held:
            own = held.side(side)
            if own.held_at == UNSEEN:
                continue
            if began - own.held_at > self.pause:
                self.decide(held, side, own, True)
            elif track.label == own.held_culprit:  # it goes on: it did not make room
                self.decide(held, side, own, False)
            else:
                kept.append(held)
        path.held = kept

    def progress(self, track: Track, side: i64, began: i64, at: i64, size: i64, more: bool) -> None:
        """A content frame of `size` octets began to pass at `began` and was whole at `at`; `more`
        of this side's content came with it."""
        own = track.side(side)
        if own.held_at != UNSEEN and not own.held_weak:
            self.decide(track, side, own, began - own.held_at <= self.pause)
        if own.progress_at != UNSEEN and began - own.progress_at >= self.least:
            self.judge(track, side, own, began, at, size, more)
        else:
            own.behind += self.wait(track, side, own, began, size)
        own.progress_at = at
        own.span_began = UNSEEN
        own.span_ended = UNSEEN
        own.asked_at = UNSEEN
        own.spent = own.half.spent
        if len(own.grants) > 0:
            own.grants = NO_GRANTS
        if size > own.largest:
            own.largest = size
        own.full = size >= LARGE and size == own.largest
        peer = track.side(1 - side)
        peer.asked_at = at
        peer.asked_work = self.path(1 - side).runs.work

    def granted(self, track: Track, side: i64, at: i64) -> None:
        """The peer has given `side` more credit."""
        own = track.side(side)
        half = own.half
        before = own.granted - half.spent
        if before >= 0 and at - own.progress_at >= self.least:
            if len(own.grants) == 0:
                own.grants = [(int(at), before)]
            elif len(own.grants) < GRANTS:
                own.grants.append((int(at), before))

    def released(self, track: Track, side: i64, began: i64, ended: i64) -> None:
        """A time without leave is over."""
        own = track.side(side)
        half = own.half
        if half.state == OPEN and half.granted > half.spent and not track.stream.over:
            if own.span_began == UNSEEN or ended - began > own.span_ended - own.span_began:
                own.span_began = began
                own.span_ended = ended
                own.span_work = self.path(side).runs.work
        else:
            self.starved(track, side, half, began, ended)

    def stopped(self, track: Track, side: i64, state: i64, at: i64) -> None:
        """One side has just ended its half, or reset or cancelled the stream."""
        self.replies.stopped(self.rows, track, side, at)
        own = track.side(side)
        own.ended_at = at if state == ENDED else UNSEEN
        own.state = state
        track.side(1 - side).owed_full = self.path(1 - side).runs.full

    def accepted(self, track: Track, at: i64) -> None:
        """An offer has just been accepted."""
        if self.replies.accepted(self.rows, track, at):
            own = track.side(track.opener)  # that it had no credit until now is said with this
            own.span_began = UNSEEN
            own.span_ended = UNSEEN
            own.progress_at = at

    def silence(self, track: Track, side: i64, began: i64, ended: i64) -> None:
        """Nothing came in the middle of a frame of this stream."""
        if ended - began >= self.least:
            cause, detail = self.path(side).held_up(began, ended)
            if cause == IDLE:
                detail = f"the sender stopped inside a frame for {duration_text(ended - began)}"
            self.put(track, side, began, ended, cause, "", detail)

    def finish(self, track: Track, ended: i64, whole: bool) -> None:
        """No more will come on this stream; `ended` is the end of the capture or of the stream.
        `whole`: what passed could be read to the end, and the stream was not displaced."""
        over = track.stream.over
        for side in (0, 1):
            own = track.side(side)
            if own.held_at != UNSEEN:
                self.decide(track, side, own, own.held_weak)
            half = own.half
            closed = self.path(side).closed
            last = closed.last_began()
            if (
                half.state == OPEN
                and half.octets > 0
                and not over
                and last >= 0
                and closed.last_ended() >= ended
                and own.progress_at >= last - self.least
                and ended - last >= self.least
            ):
                began = last if last > own.progress_at else own.progress_at
                detail = f"the peer closed its TCP window for {duration_text(ended - last)}"
                self.put(track, side, began, ended, SLOW_READER, "",
                         f"{detail} and did not open it again")  # fmt: skip
        if whole and not over and track.stream.reset_by < 0:
            self.replies.unanswered(self.rows, track, ended)

    # --- causes

    def wait(self, track: Track, side: i64, own: HalfTrack, began: i64, size: i64) -> i64:
        """How long the frame that begins now waited behind frames of other streams."""
        runs = self.path(side).runs
        if runs.last is track or not runs.follows(size, began):
            return 0
        ready = own.passed_work
        if own.span_began != UNSEEN:
            ready = own.span_work
        elif own.asked_at != UNSEEN:
            ready = own.asked_work
        elif not own.full and (own.octets > 0 or track.opener != side):
            # Nothing shows that it was ready: only what surely filled the line counts, and after a
            # long pause only the frame right before.
            full = runs.full - (
                own.passed_full if own.passed_full > runs.pause_full else runs.pause_full
            )
            long = own.progress_at != UNSEEN and began - own.progress_at >= self.least
            return runs.last_full if long and runs.last_full < full else full
        if ready < own.passed_work:
            ready = own.passed_work
        if ready < runs.pause_work:
            ready = runs.pause_work
        return runs.work - ready

    def judge(
        self, track: Track, side: i64, own: HalfTrack, until: i64, at: i64, size: i64, more: bool
    ) -> None:
        """The stream stood still from its last content to `until`: say why."""
        since = own.progress_at
        path = self.path(side)
        waited = self.wait(track, side, own, until, size)
        credit = self.credit_until(track, side, own, until, more)
        if credit != UNSEEN:
            began = own.span_began if own.span_began != UNSEEN else since
            rest = until - credit
            if credit - began >= self.least or (rest < self.least and credit - began >= rest):
                cause, detail = self.path(1 - side).held_up(began, credit)
                if cause == IDLE:
                    detail = credit_text(own, self.rtt, credit - began, size)
                    self.put(track, side, began, credit, NO_CREDIT, "", detail)
                else:  # the grant was on its way, and could not come
                    self.put(track, 1 - side, began, credit, cause, "", detail)
                if rest < self.least:
                    own.behind += waited
                    return
            since = credit
        closed = path.closed.overlap(since, until)
        if closed >= self.least:
            first = path.closed.began_after(since)
            last = path.closed.ended_before(until)
            if closed * 2 >= last - first:
                self.put(track, side, first, last, SLOW_READER, "", closed_text(closed))
                since = last
                if until - since < self.least:
                    own.behind += waited
                    return
        cause, detail = self.path(side).held_up(since, until)
        if cause == SLOW_READER:
            self.put(track, side, since, until, cause, "", detail)
            return
        asked = own.asked_at != UNSEEN
        ready = credit != UNSEEN or (not asked and (own.full or more))
        weak = not ready and (asked or (own.octets == 0 and track.opener == side))
        start = own.asked_at if weak and own.asked_at > since else since
        stretch = path.runs.before(track, start, until)
        length = until - stretch.began
        share = size if size > QUANTUM else QUANTUM
        if weak and until - start >= self.least and path.runs.last_full < waited:
            waited = path.runs.last_full
        busy = not weak or stretch.work * 2 >= length
        if stretch.culprits > share and length >= self.least and busy:
            own.held_at = at
            own.held_weak = weak
            own.held_wait = waited
            own.held_since = since
            own.held_until = until
            own.held_began = stretch.began
            own.held_culprit = stretch.culprit.label
            own.held_octets = stretch.culprits
            if ready or (weak and stretch.full * 5 >= length * 4):
                self.decide(track, side, own, True)
            elif weak:
                if len(path.held) >= HELD:  # so many at once: the culprit let them all wait
                    self.decide(track, side, own, True)
                else:
                    path.held.append(track)
            return
        own.behind += waited
        if cause == IDLE:
            self.idle(track, side, since, until)
        else:
            self.put(track, side, since, until, cause, "", detail)

    def credit_until(self, track: Track, side: i64, own: HalfTrack, until: i64, more: bool) -> i64:
        """When there was credit enough for the frame that begins at `until`; UNSEEN if there was
        all the time since its stream's last content."""
        enough = own.span_ended
        if more:  # of several frames: which of them it was for cannot be told
            return enough
        size = own.half.spent - own.spent
        for n in range(len(own.grants) - 1, -1, -1):
            came, before = own.grants[n]
            if before < size:
                # A sender that waits for room goes on as soon as there is, unless it has to wait
                # for others then.
                late: i64 = until - came
                if late > self.pause:
                    late = self.path(side).runs.before(track, came, until).began - came
                if came > enough and late <= self.pause:
                    enough = came
                break
        return enough

    def decide(self, track: Track, side: i64, own: HalfTrack, behind: bool) -> None:
        """A pause behind another stream: was this stream really waiting?"""
        until = own.held_until
        if behind:
            began = own.held_began
            own.behind += until - began
            text = f"{size_text(own.held_octets)} of {own.held_culprit} passed first"
            self.put(track, side, began, until, BEHIND, own.held_culprit,
                     f"{text}, in {duration_text(until - began)}")  # fmt: skip
        else:
            own.behind += own.held_wait
            self.idle(track, side, own.held_since, until)
        own.held_at = UNSEEN

    def idle(self, track: Track, side: i64, since: i64, until: i64) -> None:
        """Nothing held the sender up: was its peer waiting for it?"""
        waited = self.replies.waited_since(track, side, until)
        if waited != UNSEEN and since > waited:  # the time before has a cause of its own
            waited = since if until - since >= self.replies.late else UNSEEN
        if waited == UNSEEN or not self.replies.put_reply(
            self.rows, track, side, waited, until, True
        ):
            self.put(track, side, since, until, IDLE, "",
                     f"the sender sent nothing for {duration_text(until - since)}")  # fmt: skip

    def starved(self, track: Track, side: i64, half: Half, began: i64, ended: i64) -> None:
        """Leave ran out and never came again."""
        outstanding = half.spent - (half.granted - half.window)
        if half.window > 0 and outstanding > 0 and ended - began >= self.least:
            text = f"{size_text(outstanding)} were never acknowledged"
            self.put(track, side, began, ended, SLOW_READER, "",
                     f"{text}, for {duration_text(ended - began)}")  # fmt: skip

    def put(
        self, track: Track, side: i64, began: i64, ended: i64, cause: str, culprit: str, detail: str
    ) -> None:
        self.rows.put(track, side, began, ended, cause, culprit, detail)

    def take(self) -> StallRows:
        rows = self.rows
        self.rows = StallRows()
        return rows
