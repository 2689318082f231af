"""Streams whose peer does not answer.

A side waits for an answer once it has ended its half (in Streamux: sent the last of a request), or
has offered a channel (Nerdbank). Its peer answers with content, with its own end or a reset; an
offer, by accepting or rejecting it. Where a side never ends its half, nothing says that it waits:
it may be sending one way. A peer that has no credit, or whose receiver's TCP window is closed, is
kept from answering, and what keeps it is the cause.
"""

from typing import Final

from mypy_extensions import i64

from ...core.side import DIALER, NOBODY
from ...core.streams import NEVER, OPEN, UNSEEN
from .figures import duration_text
from .spans import Spans
from .tracks import Track

# An answer that takes this long is a finding, whatever came in the end: people and programs give up
# after seconds, and ordinary work takes less.
LATE: Final[i64] = 2_000_000_000
# No answer at all when the capture ends: after less than this it may have been on its way.
NEVER_CAME: Final[i64] = 1_000_000_000


class Replies:
    """What is owed on the streams of one session.

    `two_way`: both sides send on a stream; where they do not, nothing is ever owed. `offers`: a
    stream must be accepted. `requests`: a stream is a request and its reply.
    """

    def __init__(self, rtt: i64, two_way: bool, offers: bool, requests: bool) -> None:
        trips = rtt * 5
        self.late: i64 = trips if trips > LATE else LATE
        self.never: i64 = trips if trips > NEVER_CAME else NEVER_CAME
        self.two_way: bool = two_way
        self.offers: bool = offers
        self.requests: bool = requests

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

    def owes(self, track: Track, side: i64, ended: i64, closed: Spans) -> i64:
        """Since when `side` is silent although its peer waits; UNSEEN if it owes nothing.

        `ended` is the end of the capture, `closed` when the peer took nothing from it.
        """
        own = track.side(side)
        half = own.half
        since = track.side(1 - side).ended_at
        if not self.two_way or since == UNSEEN or half.state != OPEN or half.final != NEVER:
            return UNSEEN
        if own.speaking:
            return UNSEEN
        if half.first_at != UNSEEN and own.progress_at > since:
            if not self.requests:
                return UNSEEN  # it has answered, and may have more to say later
            since = own.progress_at
        if ended - since < self.never or 0 <= half.granted <= half.spent:
            return UNSEEN
        if closed.count > 0 and closed.last_ended() >= ended:
            return UNSEEN
        return since

    # --- in words

    def offer_text(self, track: Track, lasted: i64, came: bool) -> str:
        waited = duration_text(lasted)
        if came:
            return f"the {side_text(track.opener)}'s offer waited {waited} for an answer"
        return f"the {side_text(track.opener)}'s offer was not answered for {waited}"

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
