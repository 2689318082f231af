# mypyc: compiled
"""Streams whose peer does not answer.

A side waits for an answer once it has ended its half (in Streamux: sent the last of a request), or
has offered a channel (Nerdbank). Its peer answers with content, with its own end or a reset; an
offer, by accepting or rejecting it. Where a side never ends its half, nothing says that it waits:
it may be sending one way; and a peer that has sent content before has answered. A peer that has no
credit, whose receiver's TCP window is closed, whose bytes were lost, or whose direction was full of
other streams is kept from answering: an answer that came late has that cause, and where none came
nothing is said.
"""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.direction_history import QUANTUM, Path
from polymux.analysis.tracking.stall_rows import BEHIND, IDLE, NO_REPLY, SLOW_READER, StallRows
from polymux.analysis.tracking.stream_tracker import Track
from polymux.core.side import DIALER, NOBODY
from polymux.core.streams import NEVER, OPEN, UNSEEN
from polymux.text.units import duration_text, size_text

# An answer that takes this long is a finding, whatever came in the end: people and programs give up
# after seconds, and ordinary work takes less.
LATE: Final[i64] = 2_000_000_000
# No answer at all when the capture ends: after less than this it may have been on its way.
NEVER_CAME: Final[i64] = 1_000_000_000


class Replies:
    """What is owed on the streams of one session.

    `two_way`: both sides send on a stream; where they do not, nothing is ever owed. `offers`: a
    stream must be accepted. `requests`: a stream is a request and its reply. `dialer` and
    `acceptor` are the directions in which each of them sends.
    """

    def __init__(
        self,
        rtt: i64,
        two_way: bool,
        offers: bool,
        requests: bool,
        dialer: Path,
        acceptor: Path,
    ) -> None:
        trips = rtt * 5
        self.late: i64 = trips if trips > LATE else LATE
        self.never: i64 = trips if trips > NEVER_CAME else NEVER_CAME
        self.two_way: bool = two_way
        self.offers: bool = offers
        self.requests: bool = requests
        self.dialer: Path = dialer
        self.acceptor: Path = acceptor

    def accepted(self, rows: StallRows, track: Track, at: i64) -> bool:
        """The offer has just been accepted: did that take seconds? Then its wait is told."""
        waited = self.offer_waited(track, at)
        if waited:
            self.put_offer(rows, track, at, True)
        return waited

    def stopped(self, rows: StallRows, track: Track, side: i64, at: i64) -> None:
        """One side has just ended its half, or reset or cancelled the stream."""
        own = track.side(side)
        given_up = track.stream.reset_by == side
        if self.offers and not track.accepted:
            if given_up and self.offer_waited(track, at):
                self.put_offer(rows, track, at, side != track.opener)
        elif own.state == OPEN:  # its end is an answer too, if no content came before it
            since = self.waited_since(track, side, at)
            if since != UNSEEN and own.half.first_at == UNSEEN:
                self.put_reply(rows, track, side, since, at, True)
        elif given_up and track.side(1 - side).half.state == OPEN and own.ended_at != UNSEEN:
            since = self.waited_since(track, 1 - side, at)
            if since != UNSEEN:
                self.put_reply(rows, track, 1 - side, since, at, False)

    def unanswered(self, rows: StallRows, track: Track, ended: i64) -> None:
        """The capture ends at `ended`: does a side still wait for an answer on this stream?"""
        stream = track.stream
        if self.offers and not stream.accepted and track.opener != NOBODY:
            if stream.opened_at != UNSEEN and ended - stream.opened_at >= self.never:
                self.put_offer(rows, track, ended, False)
            return
        for side in (0, 1):
            since = self.owes(track, side, ended)
            if since != UNSEEN:
                self.put_reply(rows, track, side, since, ended, False)

    # --- what is owed

    def offer_waited(self, track: Track, at: i64) -> bool:
        """The offer has just been accepted, rejected or withdrawn: did that take seconds?"""
        opened = track.stream.opened_at
        return (
            self.offers and track.opener != NOBODY and opened != UNSEEN and at - opened >= self.late
        )

    def waited_since(self, track: Track, side: i64, until: i64) -> i64:
        """Since when the peer had waited for the first answer of `side`, which came at `until`;
        UNSEEN if that was not for seconds, or `side` had sent content before."""
        since = track.side(1 - side).ended_at
        first = track.side(side).half.first_at
        if not self.two_way or since == UNSEEN or until - since < self.late:
            return UNSEEN
        return since if first == UNSEEN or first >= until else UNSEEN

    def owes(self, track: Track, side: i64, ended: i64) -> i64:
        """Since when `side` is silent although its peer waits; UNSEEN if it owes nothing.

        `ended` is the end of the capture.
        """
        own = track.side(side)
        half = own.half
        since = track.side(1 - side).ended_at
        if not self.two_way or since == UNSEEN or half.state != OPEN or half.final != NEVER:
            return UNSEEN
        if own.speaking:
            return UNSEEN
        if half.first_at != UNSEEN:
            if not self.requests:
                return UNSEEN  # it has answered, and may have more to say later
            if own.progress_at > since:
                since = own.progress_at
        if ended - since < self.never or 0 <= half.granted <= half.spent:
            return UNSEEN
        return since

    # --- in words

    def put_offer(self, rows: StallRows, track: Track, until: i64, came: bool) -> None:
        opened = track.stream.opened_at
        offer = f"the {side_text(track.opener)}'s offer"
        waited = duration_text(until - opened)
        if came:
            detail = f"{offer} waited {waited} for an answer"
        else:
            detail = f"{offer} was not answered for {waited}"
        side = 1 - track.opener
        full = self.path(side).runs.full - track.side(side).passed_full
        self.blame(rows, track, side, opened, until, full, came, detail)

    def put_reply(
        self, rows: StallRows, track: Track, side: i64, since: i64, until: i64, came: bool
    ) -> bool:
        """`side` owed an answer from `since` to `until`, when it `came` or did not. False if
        nothing is said of that."""
        own = track.side(side)
        before = own.passed_full if since == own.progress_at else own.owed_full
        full = self.path(side).runs.full - before
        detail = self.reply_text(track, side, until - since, came)
        return self.blame(rows, track, side, since, until, full, came, detail)

    def blame(
        self,
        rows: StallRows,
        track: Track,
        side: i64,
        since: i64,
        until: i64,
        full: i64,
        came: bool,
        detail: str,
    ) -> bool:
        """`side` was silent: put a row with that, or with what held up the answer that `came`.
        `full` is how long its direction was surely full. False if there is no row."""
        path = self.path(side)
        closed = path.closed
        lasted = until - since
        cause, said = path.held_up(since, until)
        if cause == IDLE and full * 3 >= lasted * 2:
            stretch = path.runs.before(track, since, until)
            if not came or full * 5 < lasted * 4 or stretch.culprits <= QUANTUM:
                return False
            culprit = stretch.culprit.label
            since = stretch.began
            track.side(side).behind += until - since
            passed = f"{size_text(stretch.culprits)} of {culprit} passed first"
            rows.put(track, side, since, until, BEHIND, culprit,
                     f"{passed}, in {duration_text(until - since)}")  # fmt: skip
            return True
        if cause == IDLE:
            if closed.overlap(since, until) > 0:
                able = until - closed.ended_before(until)
                if able < (self.late if came else self.never):
                    return False  # it could send for too short a time to be blamed
            rows.put(track, side, since, until, NO_REPLY, "", detail)
            return True
        if came and cause == SLOW_READER:
            since = closed.began_after(since)
            until = closed.ended_before(until)
        if came:
            rows.put(track, side, since, until, cause, "", said)
        return came

    def path(self, side: i64) -> Path:
        return self.dialer if side == DIALER else self.acceptor

    def reply_text(self, track: Track, side: i64, lasted: i64, came: bool) -> str:
        """What is said of `side`, which owed an answer."""
        peer = side_text(1 - side)
        waited = duration_text(lasted)
        own = track.side(side)
        if self.requests:
            if came:
                return f"the reply came {waited} after the {peer}'s request"
            if own.half.first_at != UNSEEN:
                return f"the reply to the {peer}'s request stopped for {waited} and never ended"
            return f"no reply for {waited} to the {peer}'s request"
        if came:
            return f"the answer came {waited} after the {peer} had ended its half"
        return f"no answer for {waited} after the {peer} had ended its half"


def side_text(side: i64) -> str:
    return "dialer" if side == DIALER else "acceptor"
