# mypyc: compiled
"""The law of Nerdbank MultiplexingStream, the same for all three versions.

`judge` and its parts say what a frame breaks; below it the bookkeeping that `judge` relies on.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import Head
from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.core.rules import CROSSED, Duty, octets_text
from polymux.core.side import ACCEPTOR, DIALER, NOBODY
from polymux.core.streams import ABORTED, ENDED, NEVER, OPEN, Half, Stream
from polymux.protocols.nerdbank.codec import (
    ACCEPTED,
    BAD_ACCEPTANCE,
    BAD_FRAME,
    COMPLETED,
    CONTENT_FRAME,
    GROWTH_REQUEST,
    HANDSHAKE,
    MALFORMED,
    OFFER,
    PAYLOAD,
    PROCESSED,
    READING_COMPLETED,
    TERMINATED,
    WINDOW_ADJUST,
    WRONG_SOURCE,
)
from polymux.protocols.nerdbank.rules import (
    ACCEPTED_UNKNOWN,
    ACKED_TOO_MUCH,
    AFTER_COMPLETED,
    AFTER_PEER_TERMINATION,
    AFTER_TERMINATION,
    BEFORE_ACCEPTANCE,
    COMPLETED_TWICE,
    EQUAL_RANDOMS,
    FRAME_TOO_LONG,
    ID_PARITY,
    ID_RECYCLED,
    ID_REUSED,
    KINDS,
    NOT_TERMINATED,
    RULES,
    TERMINATED_TWICE,
    TRUNCATED,
    UNANSWERED,
    UNKNOWN_CHANNEL,
    UNKNOWN_CODE,
    WINDOW_EXCEEDED,
    WINDOW_SHRUNK,
)

RECEIVED: Final = 65536  # what we take at most
OFFERED_TWICE: Final[i64] = 1  # mark of a channel: of its id's use before, frames may yet come


class NerdbankLaw(Protocol):
    """State and law. `seeded`: windows of the channels both sides were configured with (v3)."""

    def __init__(
        self, limits: Limits, vantage: i64, version: i64 = 3, seeded: tuple[int, ...] | None = None
    ) -> None:
        super().__init__("nerdbank", RULES, KINDS, limits, vantage)
        self.major: i64 = version
        self.seeded = seeded
        self.credit = version >= 2
        self.max_frame = limits.frame if limits.frame > 0 else RECEIVED
        self.send_frame = PAYLOAD
        self.too_long = FRAME_TOO_LONG
        self.truncated = TRUNCATED
        self.mutual = (
            ID_REUSED | ACCEPTED_UNKNOWN | UNKNOWN_CHANNEL | WINDOW_EXCEEDED | ACKED_TOO_MUCH
        )
        self.handshaken = version == 3
        self.random0: bytes = b""
        self.random1: bytes = b""
        self.odd: i64 = -1  # the side with the odd ids (v1, v2)
        self.next0: i64 = 0
        self.next1: i64 = 0

    # --- law

    def judge(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        kind = head.kind
        if kind == CONTENT_FRAME and stream is not None:
            return self.judge_content(sender, head, stream)
        if kind >= MALFORMED:
            return self.judge_handshake(sender) if kind == HANDSHAKE else 0
        if kind == OFFER:
            return self.judge_offer(sender, head, stream)
        if kind > GROWTH_REQUEST or (self.major == 1 and kind > PROCESSED):
            return UNKNOWN_CODE
        if stream is None:
            if head.opener != NOBODY or not self.is_seeded(head.number):
                return ACCEPTED_UNKNOWN if kind == ACCEPTED else UNKNOWN_CHANNEL
            stream = self.seed(head.number)
            if kind == CONTENT_FRAME:
                return self.judge_content(sender, head, stream)
        if stream.extra != 0 and self.is_late(sender, stream):
            return CROSSED
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        if own.final != NEVER:
            return TERMINATED_TWICE if kind == TERMINATED else AFTER_TERMINATION
        if kind == TERMINATED:
            return 0
        verdict = self.passing(sender, peer)
        if kind == ACCEPTED:
            if stream.opener == sender or stream.opener == NOBODY or stream.accepted:
                verdict |= BAD_ACCEPTANCE
        elif kind == COMPLETED:
            if stream.opener == 1 - sender and not stream.accepted:
                verdict |= BEFORE_ACCEPTANCE
            if own.state == ENDED:
                verdict |= COMPLETED_TWICE
        elif kind == PROCESSED:
            if self.major == 1:
                verdict |= BAD_FRAME
            elif peer.granted >= 0 and head.amount > peer.spent - (peer.granted - peer.window):
                verdict |= ACKED_TOO_MUCH
        elif kind == WINDOW_ADJUST and 0 <= head.amount < peer.window:
            verdict |= WINDOW_SHRUNK
        return verdict

    def judge_content(self, sender: i64, head: Head, stream: Stream) -> i64:
        if stream.extra != 0 and self.is_late(sender, stream):
            return CROSSED
        own = stream.half(sender)
        if own.final != NEVER:
            return AFTER_TERMINATION
        verdict: i64 = 0
        peer = stream.half(1 - sender)
        if peer.final != NEVER:
            verdict = self.passing(sender, peer)
        if not stream.accepted and stream.opener == 1 - sender:
            verdict |= BEFORE_ACCEPTANCE
        if own.state != OPEN:
            verdict |= AFTER_COMPLETED
        size: int = head.size  # no native number: a peer may grant more than 2^63
        if own.granted >= 0 and own.spent + size > own.granted:
            verdict |= WINDOW_EXCEEDED
        return verdict

    def judge_offer(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        if head.opener != sender:
            return WRONG_SOURCE if self.major == 3 else ID_PARITY
        if stream is None:
            return 0
        return ID_RECYCLED if self.is_over(stream) else ID_REUSED

    def judge_handshake(self, sender: i64) -> i64:
        other = self.random1 if sender == DIALER else self.random0
        return EQUAL_RANDOMS if len(other) > 0 and other == self.said else 0

    def is_late(self, sender: i64, stream: Stream) -> bool:
        """May a frame of the side that did not offer this speak of the id's use before?"""
        return sender != stream.opener and not self.sight.knows(sender, stream.opened)

    def passing(self, sender: i64, peer: Half) -> i64:
        """A frame behind the peer's termination: it crossed, or its sender had read that."""
        if peer.final == NEVER:
            return 0
        return AFTER_PEER_TERMINATION if self.sight.knows(sender, peer.final) else CROSSED

    def is_seeded(self, number: i64) -> bool:
        return self.major == 3 and (self.seeded is None or number < len(self.seeded))

    def is_over(self, stream: Stream) -> bool:
        d, a = stream.dialer, stream.acceptor
        return (d.final != NEVER or d.state != OPEN) and (a.final != NEVER or a.state != OPEN)

    # --- bookkeeping

    def apply(self, sender: i64, head: Head, stream: Stream | None, at: i64) -> None:
        kind = head.kind
        if kind == CONTENT_FRAME and stream is not None:
            self.touched = stream
            stream.answer(sender, self.sight)
            own = stream.half(sender)
            if own.state == OPEN and own.final == NEVER:
                own.spent += head.size
                self.counted = True
            return
        if kind >= MALFORMED:
            if kind == HANDSHAKE:
                self.greet(sender)
            return
        if kind == OFFER:
            self.offer(sender, head, stream)
            return
        if stream is None:
            if head.opener != NOBODY or not self.is_seeded(head.number):
                return
            stream = self.sow(head.number)
            if kind == CONTENT_FRAME:
                stream.half(sender).spent = head.size
                self.counted = True
        self.touched = stream
        stream.answer(sender, self.sight)
        if stream.half(sender).final == NEVER:
            self.control(sender, head, stream, at)

    def control(self, sender: i64, head: Head, stream: Stream, at: i64) -> None:
        kind = head.kind
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        if kind == ACCEPTED:
            if stream.opener == 1 - sender and not stream.accepted:
                stream.accepted = True
                grant_window(peer, head.amount, self.credit)
        elif kind == PROCESSED:
            if peer.granted >= 0 and head.amount > 0:
                peer.granted += head.amount
        elif kind == WINDOW_ADJUST:
            self.settle(sender, WINDOW_ADJUST, stream.key)
            if peer.granted >= 0 and head.amount > peer.window:
                peer.granted += head.amount - peer.window
                peer.window = head.amount
        elif kind == GROWTH_REQUEST:
            if peer.final == NEVER:  # behind its own termination nobody can answer any more
                self.owe(1 - sender, WINDOW_ADJUST, stream.key, 0, at)
        elif kind == READING_COMPLETED:
            if peer.state == OPEN:
                self.owe(1 - sender, COMPLETED, stream.key, 0, at)
        elif kind == COMPLETED:
            self.settle(sender, COMPLETED, stream.key)
            if own.state == OPEN:
                own.stop(ENDED, self.sight.sent(sender), False)
            if peer.state == ENDED and peer.final == NEVER:
                self.owe(DIALER, TERMINATED, stream.key, NOT_TERMINATED, at)
                self.owe(ACCEPTOR, TERMINATED, stream.key, NOT_TERMINATED, at)
        elif kind == TERMINATED:
            self.terminate(sender, stream, own, peer, at)

    def terminate(self, sender: i64, stream: Stream, own: Half, peer: Half, at: i64) -> None:
        if stream.reset_by < 0:
            stream.reset_by = sender
            stream.error = self.said if len(self.said) > 0 else None
            if not stream.accepted and stream.opener != NOBODY:
                stream.ending = "cancelled" if stream.opener == sender else "rejected"
            elif own.state == ENDED and peer.state == ENDED:
                stream.ending = "clean"
            else:
                stream.ending = "reset"
        own.final = self.sight.sent(sender)
        if own.state == OPEN:
            own.stop(ABORTED, own.final, False)
        for kind in (TERMINATED, COMPLETED, WINDOW_ADJUST):
            self.settle(sender, kind, stream.key)
        if peer.final == NEVER:
            self.settle(1 - sender, TERMINATED, stream.key)
            self.owe(1 - sender, TERMINATED, stream.key, UNANSWERED, at)

    def offer(self, sender: i64, head: Head, stream: Stream | None) -> None:
        made = Stream(head.key, head.number, head.opener, self.sight.sent(sender))
        if stream is not None:
            made.incarnation = stream.incarnation + 1
            made.answerable = stream.answerable
            if stream.half(1 - head.opener).final == NEVER:
                made.extra = OFFERED_TWICE
            if not self.is_over(stream):
                stream.ending = "abandoned"
                self.displaced = stream
        made.name = self.said
        if self.credit:
            grant_window(made.half(sender), 0, True)
            grant_window(made.half(1 - sender), head.amount, True)
        self.streams.put(made)
        self.touched = made

    def sow(self, number: i64) -> Stream:
        """A channel both sides were configured with; made at its first use."""
        key = number * 4 + NOBODY
        stream = self.streams.find(key)
        if stream is not None:
            return stream
        made = self.seed(number)
        self.streams.put(made)
        return made

    def seed(self, number: i64) -> Stream:
        """A seeded channel on which nothing has passed."""
        made = Stream(number * 4 + NOBODY, number, NOBODY, 0)
        made.accepted = True
        if self.seeded is not None:
            grant_window(made.dialer, self.seeded[number], True)
            grant_window(made.acceptor, self.seeded[number], True)
        return made

    def greet(self, sender: i64) -> None:
        if sender == DIALER:
            self.random0 = self.said
        else:
            self.random1 = self.said
        if len(self.random0) > 0 and len(self.random1) > 0:
            self.odd = DIALER if self.random0 > self.random1 else ACCEPTOR
            self.handshaken = True
            self.unlocked = True

    def tells(self, duty: Duty, stream: Stream | None) -> bool:
        if duty.rule == NOT_TERMINATED and stream is not None:  # owed by both: said once
            return duty.side == (DIALER if stream.opener == NOBODY else stream.opener)
        return duty.rule != 0

    def ending(self, stream: Stream) -> str:
        if not stream.ending and not stream.accepted and stream.opener != NOBODY:
            return "never-accepted"
        return super().ending(stream)

    def explain(self, rule: i64, sender: i64, head: Head, stream: Stream | None) -> str:
        text = super().explain(rule, sender, head, stream)
        if stream is None:
            return text
        own, peer = stream.half(sender), stream.half(1 - sender)
        if rule == WINDOW_EXCEEDED:
            size: int = head.size
            over = own.spent + size - own.granted
            return f"{text}: {octets_text(over)} beyond the window of {own.window}"
        if rule == ACKED_TOO_MUCH:
            outstanding = max(0, peer.spent - (peer.granted - peer.window))
            were = "was" if outstanding == 1 else "were"
            return f"{text}: only {octets_text(outstanding)} {were} outstanding"
        return text


def grant_window(half: Half, amount: int, credit: bool) -> None:
    """Announce a window to a half; none announced is no leave at all."""
    if credit:
        half.window = amount if amount > 0 else 0
        half.granted = half.window
