"""Frames of sessions that go on, row by row as they become whole.

The protocol of a session is decided when its first octets suffice for it, or when nothing came for
a while; until then they are held, `LOOK` of each session and `UNDECIDED` of all together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polymux.analysis.arrow.batches import batch_of
from polymux.analysis.detection.detector import Verdict
from polymux.analysis.detection.sample import LOOK, Piece, Sample, add_pieces
from polymux.analysis.options import AUTO, Plan, choose
from polymux.analysis.output.frame_dicts import Row, take_frame_rows
from polymux.analysis.output.frame_page import Prelude
from polymux.analysis.output.session_rows import Emit, session_id
from polymux.analysis.session.analyzer import LIVE, REMEMBERED, open_streams
from polymux.capture import Batch
from polymux.capture.live_reader import LiveSession
from polymux.capture.tcp.events import GAP, OCTETS
from polymux.core.connection import Conversation
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.side import Vantage
from polymux.protocols.registry import create

SURE: Final = 4096  # octets after which a protocol that was recognised is believed at once
UNDECIDED: Final = 32 << 20  # octets of sessions whose protocol is not known yet

Doubted = Callable[[str, str], None]


class LiveWalk:
    """One session: decides its protocol, decodes it, gives its frames."""

    def __init__(self, session: LiveSession, plan: Plan) -> None:
        self.session = session
        self.name = session_id(session.flow, session.started_at)
        self.verdict: Verdict | None = None
        self.held = 0
        """Octets that wait for the protocol to be known."""
        self.doubted = False
        """It was told that the octets look like another protocol than the one that was named."""
        self.given_up = ""
        """Why it is decoded no further, if it is not."""
        self._plan = plan
        self._waiting: list[Batch] = []
        self._tried = 0
        self._observer: Observer | None = None
        self._prelude = Prelude(0, 0, True)

    def take(self) -> None:
        """Take in what has come."""
        found = self.session.take_batches()
        if self._observer is not None:
            for batch in found:
                self._feed(self._observer, batch)
        elif self.verdict is None:
            self._waiting += found
            self.held += sum(len(batch.data) for batch in found)
            if self.held >= LOOK:
                self.decide(last=True)
            elif self.held >= SURE and self.held >= 2 * self._tried:
                self.decide()

    def decide(self, last: bool = False, silent: bool = False) -> None:
        """Find out the protocol by what is there; `last`: or that it is none that is known.

        `silent`: nothing came for a while, so a named protocol waits for the other side no longer.
        """
        if self.verdict is not None or (self.held == self._tried and not last):
            return
        self._tried = self.held
        pieces: list[Piece] = []
        left = LOOK
        for batch in self._waiting:
            left = add_pieces(pieces, batch, left)
            if left <= 0:
                break
        session = self.session
        named = self._plan.given(session) != AUTO or bool(session.protocol_hint)
        if not pieces:  # it begins with a hole, behind which nothing is sampled
            if not last and not (named and silent and self._waiting):
                return
        elif named and not (last or silent) and self.held < SURE and not self._both(pieces):
            return
        sample = Sample(tuple(pieces), session.saw_syn)
        verdict = choose(session, self._plan, sample, sample)
        if verdict.protocol is None and not last:
            return
        self.verdict = verdict
        if verdict.protocol is not None:
            self._begin(verdict, verdict.protocol)
        self._waiting = []
        self.held = 0

    def rows(self) -> list[Row]:
        """The frames that became whole since the last call, as rows of the frames table."""
        observer = self._observer
        if observer is None:
            return []
        observer.take_gone()
        observer.take_violations()
        if open_streams(observer) > LIVE:
            self._give_up(observer.conversation)
        return [{"session_id": self.name, **row} for row in take_frame_rows(observer)]

    def close(self) -> None:
        """The session is over: what is left is decided and decoded now."""
        self.take()
        self.decide(last=True)
        if self._observer is not None:
            ends = self.session.ends
            self._observer.finish(
                self.session.ended_at, ends[0] is not None, ends[1] is not None
            )  # fmt: skip

    def _give_up(self, conversation: Conversation) -> None:
        """Too many streams are open at once: the rest of both directions is not decoded."""
        reason = f"more than {LIVE} streams are open at once"
        for d in (conversation.dialer, conversation.acceptor):
            if not d.lost:
                conversation.lose(d, 0, d.offset, self.session.ended_at, reason)
                self.given_up = f"{reason}: it is decoded no further"

    def _both(self, pieces: list[Piece]) -> bool:
        return len({side for side, _, _ in pieces}) == 2

    def _begin(self, verdict: Verdict, text: str) -> None:
        session = self.session
        vantage = Vantage[(session.vantage_hint or "middle").upper()]
        observer = Observer(create(text, Limits(remembered=REMEMBERED), vantage))
        if not session.saw_syn or verdict.doubt:
            observer.doubt()
        self._prelude = Prelude(verdict.skip[0], verdict.skip[1], session.saw_syn)
        for batch in self._waiting:
            self._feed(observer, batch)
        self._observer = observer

    def _feed(self, observer: Observer, batch: Batch) -> None:
        start = 0
        conversation = observer.conversation
        for n in range(batch.count):
            side, kind, at, size = (
                int(column[n]) for column in (batch.side, batch.kind, batch.at, batch.size)
            )
            if kind == OCTETS:
                stop = start + size
                if self._prelude.left > 0:
                    start += int(self._prelude.pass_over(conversation.direction(side), size))
                if stop > start:
                    observer.feed(side, batch.data[start:stop], at)
                start = stop
            elif kind == GAP:
                observer.gap(side, size, at)


class LiveFrames:
    """All sessions of a live capture; `emit("frames", batch)` gets their frames as they come.

    `doubted(session, note)` is told first of those whose octets look like another protocol than
    the one that was named, and of those that are decoded no further.
    """

    def __init__(
        self, plan: Plan, emit: Emit, only: str = "", doubted: Doubted = lambda session, note: None
    ) -> None:
        self.seen = 0
        """Sessions there were, and those whose id begins with `only`."""
        self.matched = 0
        self._plan = plan
        self._emit = emit
        self._only = only
        self._doubted = doubted
        self._walks: dict[LiveSession, LiveWalk | None] = {}
        self._undecided: dict[LiveWalk, int] = {}  # and the octets each of them holds
        self._held = 0  # by all of them together

    def take(self, session: LiveSession | None) -> None:
        """What `LiveCapture` gives: a session for which something came, or None for silence."""
        if session is None:
            for walk in list(self._undecided):
                walk.decide(silent=True)
                self._put(walk)
            return
        if session not in self._walks:
            self.seen += 1
            walk = LiveWalk(session, self._plan)
            wanted = walk.name.startswith(self._only)
            self.matched += wanted
            self._walks[session] = walk if wanted else None
        found = self._walks[session]
        if found is not None:
            if session.over:
                found.close()
            else:
                found.take()
            self._put(found)
        else:
            session.take_batches()
        if session.over:
            del self._walks[session]
        while self._held > UNDECIDED:
            largest = max(self._undecided, key=lambda walk: walk.held)
            largest.decide(last=True)
            self._put(largest)

    def _put(self, walk: LiveWalk) -> None:
        """Emit what the walk has, and count what it holds."""
        verdict = walk.verdict
        self._held -= self._undecided.pop(walk, 0)
        if verdict is None and not walk.session.over:
            self._undecided[walk] = walk.held
            self._held += walk.held
        if verdict is not None and verdict.doubt and not walk.doubted:
            walk.doubted = True
            self._doubted(walk.name, verdict.doubt)
        rows = walk.rows()
        if walk.given_up:
            self._doubted(walk.name, walk.given_up)
            walk.given_up = ""
        if rows:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self._emit("frames", batch_of("frames", columns))
