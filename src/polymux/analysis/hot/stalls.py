"""Times a stream stood still, and why.

A stall is the time between two content frames of one side of a stream, or inside one, of at least
50 ms and five round trips. Each cause has a test on what was captured, tried in this order:

no-credit            leave was 0 for that long and a grant ended it
slow-reader          the peer's TCP window was closed for half of it or more; or leave was 0 with
                     octets outstanding until the sender gave up or the capture ended
behind-other-stream  the direction was busy without a pause with others, one of which sent more than
                     its fair share (a quantum, or this stream's own frame if that is larger), and
                     this stream had something to say: it was being asked, opened a stream, was in
                     the middle of large frames, or a backlog came out behind
transport            retransmission or missing octets cover half of it or more
sender-idle          none of these
"""

from typing import Final

from mypy_extensions import i64

from ...core.streams import OPEN, UNSEEN, Half
from .figures import duration_text, rate_text, size_text
from .runs import Runs
from .spans import Spans
from .tracks import HalfTrack, Track

LEAST: Final[i64] = 50_000_000
PAUSE: Final[i64] = 10_000_000  # a direction silent for this long had nothing waiting
QUANTUM: Final[i64] = 16384  # octets a fair sender gives one stream before the next has its turn
MISSING: Final = 1024  # gaps remembered
LARGE: Final[i64] = 1024  # a full frame of less than this says nothing about what follows

NO_CREDIT: Final = "no-credit"
SLOW_READER: Final = "slow-reader"
BEHIND: Final = "behind-other-stream"
TRANSPORT: Final = "transport"
IDLE: Final = "sender-idle"


class StallRows:
    """Rows as columns; `culprit` "" for none."""

    def __init__(self) -> None:
        self.stream: list[str] = []
        self.sender: list[int] = []
        self.began_us: list[int] = []
        self.lasted_us: list[int] = []
        self.cause: list[str] = []
        self.culprit: list[str] = []
        self.detail: list[str] = []


class Path:
    """What is known of one direction: its runs, and the spans in which TCP held it up."""

    def __init__(self, runs: Runs, closed: Spans, repaired: Spans) -> None:
        self.runs: Runs = runs
        self.closed: Spans = closed  # the receiver offered no window
        self.repaired: Spans = repaired  # octets were being sent again
        self.missing: list[tuple[int, int]] = []  # octets that were not captured passed here

    def lose(self, began: i64, ended: i64) -> None:
        """Octets are missing: they passed between these two instants."""
        if len(self.missing) >= MISSING:
            self.missing = self.missing[MISSING // 2 :]
        self.missing.append((int(began), int(ended)))

    def lost(self, began: i64, ended: i64) -> i64:
        """Nanoseconds of [began, ended) in which octets are missing."""
        covered: i64 = 0
        for since, until in reversed(self.missing):
            if until <= began:
                break
            start: i64 = since if since > began else began
            stop: i64 = until if until < ended else ended
            if stop > start:
                covered += stop - start
        return covered


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
    ) -> None:
        """`closed` are the spans in which each side offered no window, `repaired` those in which
        each side's octets were being sent again."""
        self.rtt: i64 = rtt
        self.least: i64 = rtt * 5 if rtt * 5 > LEAST else LEAST
        self.pause: i64 = rtt if rtt > PAUSE else PAUSE
        self.dialer: Path = Path(Runs(none, self.pause, 0), Spans(closed1), Spans(repaired0))
        self.acceptor: Path = Path(Runs(none, self.pause, 1), Spans(closed0), Spans(repaired1))
        self.rows: StallRows = StallRows()

    def path(self, side: i64) -> Path:
        return self.dialer if side == 0 else self.acceptor

    # --- what passes

    def progress(self, track: Track, side: i64, began: i64, at: i64, size: i64, more: bool) -> None:
        """A content frame of `size` octets began to pass at `began` and was whole at `at`; `more`
        of this side's content came with it."""
        own = track.side(side)
        if own.held_at != UNSEEN:
            self.decide(track, side, own, began - own.held_at <= self.pause)
        if own.progress_at != UNSEEN and began - own.progress_at >= self.least:
            self.judge(track, side, own, began, at, size, more)
        own.progress_at = at
        own.span_began = UNSEEN
        own.span_ended = UNSEEN
        own.asked = False
        if size > own.largest:
            own.largest = size
        own.full = size >= LARGE and size == own.largest
        track.side(1 - side).asked = True

    def released(self, track: Track, side: i64, began: i64, ended: i64) -> None:
        """A time without leave is over."""
        own = track.side(side)
        half = own.half
        if half.state == OPEN and half.granted > half.spent and not track.stream.over:
            if own.span_began == UNSEEN or ended - began > own.span_ended - own.span_began:
                own.span_began = began
                own.span_ended = ended
        else:
            self.starved(track, side, half, began, ended)

    def silence(self, track: Track, side: i64, began: i64, ended: i64) -> None:
        """Nothing came in the middle of a frame of this stream."""
        if ended - began >= self.least:
            cause, detail = self.held_up(side, began, ended)
            if cause == IDLE:
                detail = f"the sender stopped inside a frame for {duration_text(ended - began)}"
            self.put(track, side, began, ended, cause, "", detail)

    def finish(self, track: Track, ended: i64) -> None:
        """No more will come on this stream; `ended` is the end of the capture or of the stream."""
        for side in (0, 1):
            own = track.side(side)
            if own.held_at != UNSEEN:
                self.decide(track, side, own, False)
            half = own.half
            closed = self.path(side).closed
            last = closed.last_began()
            if (
                half.state == OPEN
                and half.octets > 0
                and not track.stream.over
                and last >= 0
                and closed.last_ended() >= ended
                and own.progress_at >= last - self.least
                and ended - last >= self.least
            ):
                began = last if last > own.progress_at else own.progress_at
                detail = f"the peer closed its TCP window for {duration_text(ended - last)}"
                self.put(track, side, began, ended, SLOW_READER, "",
                         f"{detail} and did not open it again")  # fmt: skip

    # --- causes

    def judge(
        self, track: Track, side: i64, own: HalfTrack, until: i64, at: i64, size: i64, more: bool
    ) -> None:
        """The stream stood still from its last content to `until`: say why."""
        since = own.progress_at
        if own.span_began != UNSEEN and own.span_ended - own.span_began >= self.least:
            self.put(track, side, own.span_began, own.span_ended, NO_CREDIT, "",
                     self.credit_text(own, own.span_ended - own.span_began))  # fmt: skip
            return
        cause, detail = self.held_up(side, since, until)
        if cause == SLOW_READER:
            self.put(track, side, since, until, cause, "", detail)
            return
        stretch = self.path(side).runs.before(track, since, until)
        share = size if size > QUANTUM else QUANTUM
        if stretch.culprits > share and until - stretch.began >= self.least:
            own.held_at = at
            own.held_since = since
            own.held_until = until
            own.held_began = stretch.began
            own.held_culprit = stretch.culprit.label
            own.held_octets = stretch.culprits
            opening = own.octets == 0 and track.opener == side
            if own.asked or own.full or opening or more:
                self.decide(track, side, own, True)
            return
        self.put(track, side, since, until, cause, "", detail)

    def held_up(self, side: i64, began: i64, ended: i64) -> tuple[str, str]:
        """Did TCP hold it up?"""
        path = self.path(side)
        lasted = ended - began
        closed = path.closed.overlap(began, ended)
        if closed * 2 >= lasted:
            return SLOW_READER, f"the peer's TCP window was closed for {duration_text(closed)}"
        repaired = path.repaired.overlap(began, ended)
        if repaired * 2 >= lasted:
            return TRANSPORT, f"octets were lost and sent again for {duration_text(repaired)}"
        missing = path.lost(began, ended)
        if missing * 2 >= lasted:
            return TRANSPORT, f"octets of {duration_text(missing)} were not captured"
        return IDLE, f"the sender sent nothing for {duration_text(lasted)}"

    def decide(self, track: Track, side: i64, own: HalfTrack, behind: bool) -> None:
        """A pause behind another stream: was this stream really waiting?"""
        until = own.held_until
        if behind:
            began = own.held_began
            text = f"{size_text(own.held_octets)} of {own.held_culprit} passed first"
            self.put(track, side, began, until, BEHIND, own.held_culprit,
                     f"{text}, in {duration_text(until - began)}")  # fmt: skip
        else:
            since = own.held_since
            self.put(track, side, since, until, IDLE, "",
                     f"the sender sent nothing for {duration_text(until - since)}")  # fmt: skip
        own.held_at = UNSEEN

    def starved(self, track: Track, side: i64, half: Half, began: i64, ended: i64) -> None:
        """Leave ran out and never came again."""
        outstanding = half.spent - (half.granted - half.window)
        if half.window > 0 and outstanding > 0 and ended - began >= self.least:
            text = f"{size_text(outstanding)} were never acknowledged"
            self.put(track, side, began, ended, SLOW_READER, "",
                     f"{text}, for {duration_text(ended - began)}")  # fmt: skip

    def credit_text(self, own: HalfTrack, lasted: i64) -> str:
        half = own.half
        if own.octets == 0:
            return f"no leave for {duration_text(lasted)} before its first octet"
        if half.window > 0 and self.rtt > 0:
            return (
                f"window-limited: {size_text(half.window)} window, {duration_text(self.rtt)} round "
                f"trip, so at most {rate_text(half.window, self.rtt)}; "
                f"no leave for {duration_text(lasted)}"
            )
        if half.window > 0:
            return f"the window of {size_text(half.window)} was full for {duration_text(lasted)}"
        return f"no leave for {duration_text(lasted)}, of {half.granted} given in all"

    def put(
        self, track: Track, side: i64, began: i64, ended: i64, cause: str, culprit: str, detail: str
    ) -> None:
        if cause != IDLE:
            own = track.side(side)
            own.stalled += ended - began
            if cause == BEHIND:
                own.behind += ended - began
        rows = self.rows
        rows.stream.append(track.label)
        rows.sender.append(int(side))
        rows.began_us.append(int(began // 1000))
        rows.lasted_us.append(int((ended - began) // 1000))
        rows.cause.append(cause)
        rows.culprit.append(culprit)
        rows.detail.append(detail)

    def take(self) -> StallRows:
        rows = self.rows
        self.rows = StallRows()
        return rows
