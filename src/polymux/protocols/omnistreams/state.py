# mypyc: compiled
"""The law of omnistreams, and the bookkeeping it relies on.

A stream is one-way: its initiator writes and its acceptor asks for messages or cancels. An id
belongs to the initiator and is used again and again, with nothing to say when the other side has
let go of it; see `omnistreams_ids` for what that asks of a judge.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import Head
from polymux.core.protocol import NO_STREAM
from polymux.core.rules import CROSSED
from polymux.core.side import Sight
from polymux.core.streams import ABORTED, ENDED, OPEN, Half, Stream
from polymux.core.websocket.layer import Enveloped
from polymux.protocols.omnistreams.id_history import Past, has_read, load_past
from polymux.protocols.omnistreams.rules import (
    BAD_LENGTH,
    CANCEL_ON_UNKNOWN_ID,
    CANCEL_RECEIVE,
    CANCEL_SEND,
    CANCEL_WITH_PAYLOAD,
    CREATE,
    CREATE_ON_OPEN_ID,
    CREDIT_EXCEEDED,
    DATA,
    DATA_ON_UNKNOWN_ID,
    DATA_UNANSWERED,
    EMPTY_MESSAGE,
    END,
    END_ON_UNKNOWN_ID,
    END_WITH_PAYLOAD,
    MESSAGE_TOO_LONG,
    METADATA_TOO_LONG,
    REQUEST,
    REQUEST_ON_UNKNOWN_ID,
    SENT_AFTER_CANCEL,
    UNKNOWN,
    UNKNOWN_TYPE,
)

IDS: Final[i64] = 512  # 256 of each side
COUNT_MAX: Final[i64] = 255  # one octet
ASK_MAX: Final = 1048576  # messages asked for at once; that is 4113 requests on the wire
ALWAYS: Final[i64] = 1_000_000_000_000  # as many as there will ever be


class OmnistreamsLaw(Enveloped):
    """State and law. `legacy`: the numbering of all code, which has no CANCEL_RECEIVE_STREAM."""

    legacy: bool
    pasts: list[Past | None]
    freed: i64

    # --- law

    def judge(self, sender: i64, head: Head, stream: Stream | None) -> i64:
        kind = head.kind
        if kind == DATA and stream is not None:
            return self.judge_data(sender, head, stream)
        if kind == UNKNOWN:
            return EMPTY_MESSAGE if head.size == 0 else UNKNOWN_TYPE
        verdict: i64 = 0
        if head.size > self.max_control:
            verdict = MESSAGE_TOO_LONG
        if head.opener == NO_STREAM:
            return verdict  # a control message, or one without an id (its header has said so)
        if kind == CREATE:
            if head.size > self.limits.metadata:
                verdict |= METADATA_TOO_LONG
            if stream is not None and not self.is_over(stream):
                past = self.pasts[stream.key]
                doubtful = past is not None and past.doubtful
                verdict |= CROSSED if doubtful else CREATE_ON_OPEN_ID
        elif kind == DATA:
            verdict |= DATA_ON_UNKNOWN_ID
        elif kind == END:
            if head.size > 0:
                verdict |= END_WITH_PAYLOAD
            verdict |= self.judge_stop(sender, stream, END_ON_UNKNOWN_ID, SENT_AFTER_CANCEL)
        elif kind == CANCEL_RECEIVE:
            if head.size > 0:
                verdict |= CANCEL_WITH_PAYLOAD
            if self.legacy:
                verdict |= UNKNOWN_TYPE
            verdict |= self.judge_stop(sender, stream, CANCEL_ON_UNKNOWN_ID, CANCEL_ON_UNKNOWN_ID)
        elif kind == CANCEL_SEND:
            if head.size > 0:
                verdict |= CANCEL_WITH_PAYLOAD
            if (sender, CANCEL_SEND, head.key) not in self.duties:
                verdict |= self.judge_reader(sender, stream, CANCEL_ON_UNKNOWN_ID)
        else:
            if head.size != 1 or head.amount < 0 or head.amount > ASK_MAX:
                verdict |= BAD_LENGTH
            verdict |= self.judge_reader(sender, stream, REQUEST_ON_UNKNOWN_ID)
        return verdict

    def judge_data(self, sender: i64, head: Head, stream: Stream) -> i64:
        own = stream.half(sender)
        verdict: i64 = 0
        if own.state != OPEN:
            return DATA_ON_UNKNOWN_ID
        peer = stream.half(1 - sender)
        if peer.state != OPEN:
            verdict = SENT_AFTER_CANCEL if self.sight.knows(sender, peer.stopped) else CROSSED
        if own.spent >= own.limit:
            verdict |= CREDIT_EXCEEDED
        if head.size > self.max_frame:
            verdict |= MESSAGE_TOO_LONG
        return verdict

    def judge_stop(self, sender: i64, stream: Stream | None, unknown: i64, late: i64) -> i64:
        """The initiator ends or cancels: a stream it has not, or one that it knows is cancelled."""
        if stream is None or stream.half(sender).state != OPEN:
            return unknown
        peer = stream.half(1 - sender)
        if peer.state == OPEN:
            return 0
        return late if self.sight.knows(sender, peer.stopped) else CROSSED

    def judge_reader(self, sender: i64, stream: Stream | None, unknown: i64) -> i64:
        """The acceptor asks or cancels: too late only if it can be shown to know that."""
        if stream is None:
            return unknown
        own = stream.half(sender)
        writer = stream.half(1 - sender)
        if own.state == OPEN and writer.state == OPEN:
            return 0
        if stale(stream, sender, self.sight):
            return CROSSED
        if own.state != OPEN:
            return 0 if own.vague else unknown
        return unknown if self.sight.knows(sender, writer.stopped) else CROSSED

    def is_over(self, stream: Stream) -> bool:
        return stream.dialer.state != OPEN or stream.acceptor.state != OPEN

    # --- bookkeeping

    def apply(self, sender: i64, head: Head, stream: Stream | None, at: i64) -> None:
        kind = head.kind
        if kind == DATA and stream is not None:
            self.touched = stream
            own = stream.half(sender)
            if own.state == OPEN:
                own.spent += 1
                self.counted = True
                if own.spent > stream.extra:
                    self.pay(sender, stream, own)
            else:
                self.stray(sender, head.key, at)
        elif head.opener == NO_STREAM:
            return
        elif kind == CREATE:
            self.create(sender, head, stream)
        elif kind == DATA:
            self.stray(sender, head.key, at)
        elif kind == REQUEST:
            self.request(sender, head, stream)
        elif kind == CANCEL_SEND:
            self.cancel_send(sender, head, stream)
        elif stream is not None:
            self.touched = stream
            own = stream.half(sender)
            if own.state == OPEN:
                own.stop(ENDED if kind == END else ABORTED, self.sight.sent(sender), False)
                if kind == CANCEL_RECEIVE and stream.reset_by < 0:
                    stream.reset_by = sender
                self.close(stream, "clean" if kind == END else "cancelled")

    def create(self, sender: i64, head: Head, stream: Stream | None) -> None:
        made = Stream(head.key, head.number, sender, self.sight.sent(sender))
        own = made.half(sender)
        own.granted = 0
        past = self.past(head.key)
        own.limit = past.renew(sender, self.sight)
        if stream is not None:
            made.incarnation = stream.incarnation + 1
            if saw_the_end(stream, 1 - sender, self.sight):
                if has_read(1 - sender, past.stray, self.sight):
                    past.strayed = False
            elif gave_up(stream, 1 - sender):
                if stream.half(sender).spent > 0:
                    past.strayed = True  # to the letter, data that it cancelled is cancelled again
            else:
                made.answerable = stream.answerable
            if not self.is_over(stream):
                stream.ending = "abandoned"
                self.displaced = stream
        made.name = self.said if head.size <= self.limits.metadata else None
        self.settle(1 - sender, CANCEL_SEND, head.key)
        self.streams.put(made)
        self.touched = made

    def request(self, sender: i64, head: Head, stream: Stream | None) -> None:
        amount = head.amount
        if amount > 0:
            self.past(head.key).request(self.sight.sent(sender), amount)
        if stream is not None:
            self.touched = stream
            stream.answer(sender, self.sight)
            if amount > 0:
                writer = stream.half(1 - sender)
                writer.granted += amount
                writer.limit += amount
        while amount > COUNT_MAX:  # our own: on the wire it is as many messages as it takes
            self.sight.step(sender)
            amount -= COUNT_MAX

    def cancel_send(self, sender: i64, head: Head, stream: Stream | None) -> None:
        past = self.past(head.key)
        past.cancelled = self.sight.sent(sender)
        past.answered = True
        past.withdrawn = False
        self.settle(sender, CANCEL_SEND, head.key)
        if stream is None:
            return
        self.touched = stream
        vague = past.strayed or stale(stream, sender, self.sight)
        if not past.strayed:  # else it may answer data that came before the stream
            stream.answer(sender, self.sight)
        own = stream.half(sender)
        if own.state == OPEN or (own.vague and not vague):
            own.stop(ABORTED, self.sight.sent(sender), vague)
            if stream.reset_by < 0:
                stream.reset_by = sender
            self.close(stream, "cancelled")

    def stray(self, sender: i64, key: i64, at: i64) -> None:
        """Data for no stream: the other side owes one cancel, until the id is used again."""
        past = self.past(key)
        past.strayed = True
        past.stray = self.sight.sent(sender)
        if not past.answered:
            self.owe(1 - sender, CANCEL_SEND, key, DATA_UNANSWERED, at)

    def pay(self, sender: i64, stream: Stream, own: Half) -> None:
        """Data needs leave from the next request, which its sender has therefore read."""
        past = self.past(stream.key)
        while own.spent > stream.extra:
            amount = past.pay(sender, self.sight)
            if amount == 0:
                return
            stream.extra += amount

    def close(self, stream: Stream, ending: str) -> None:
        """What passes first decides how a stream ended."""
        if not stream.ending:
            stream.ending = ending
            self.freed += 1
            self.past(stream.key).freed = self.freed

    def ending(self, stream: Stream) -> str:
        return stream.ending if stream.ending else "open"

    def past(self, key: i64) -> Past:
        found = self.pasts[key]
        if found is None:
            found = Past()
            self.pasts[key] = found
        return found

    def explain(self, rule: i64, sender: i64, head: Head, stream: Stream | None) -> str:
        text = super().explain(rule, sender, head, stream)
        if rule == UNKNOWN_TYPE and head.kind == UNKNOWN:
            return f"{text}, type {head.number}"
        if rule == METADATA_TOO_LONG:
            return f"{text}: {self.limits.describe('metadata')}"
        if rule == MESSAGE_TOO_LONG:
            return f"{text}: limit frame={self.max_frame}; raise it with Limits(frame=...)"
        if rule == CREDIT_EXCEEDED and stream is not None:
            own = stream.half(sender)
            return f"{text}: message {own.spent + 1}, and {own.granted} were requested"
        if stream is None and head.opener != NO_STREAM:
            return f"{text}: id {head.number} was never created"
        return text

    # --- saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["freed"] = int(self.freed)
        kept: list[object] = []
        for key in range(IDS):
            past = self.pasts[key]
            if past is not None:
                kept.append([key, past.save()])
        saved["pasts"] = kept
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        freed, kept = saved["freed"], saved["pasts"]
        assert isinstance(freed, int)
        assert isinstance(kept, list)
        self.freed = freed
        for key, past in kept:
            self.pasts[key] = load_past(past)


def stale(stream: Stream, reader: i64, sight: Sight) -> bool:
    """May a message of the acceptor still speak of an earlier use of the id?"""
    return stream.answerable != stream.opened and not sight.knows(reader, stream.opened)


def saw_the_end(stream: Stream, reader: i64, sight: Sight) -> bool:
    """Has the acceptor provably read that this stream is over, and all that came before?"""
    writer = stream.half(1 - reader)
    return writer.state != OPEN and has_read(reader, writer.stopped, sight)


def gave_up(stream: Stream, reader: i64) -> bool:
    """Has the acceptor cancelled this very use of the id?"""
    own = stream.half(reader)
    return own.state != OPEN and not own.vague
