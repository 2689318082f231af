# mypyc: compiled
"""Streamux's bookkeeping: what a frame changes, whatever was said of it."""

from collections import OrderedDict

from mypy_extensions import i64

from polymux.core.frames import Head
from polymux.core.limits import Limits
from polymux.core.rules import Duty
from polymux.core.side import DIALER
from polymux.core.streams import ABORTED, ENDED, NEVER, Stream
from polymux.protocols.streamux.initiator import BROKEN, GOOD, UNKNOWN
from polymux.protocols.streamux.rules import (
    CANCEL,
    CANCEL_ACK,
    CANCEL_UNANSWERED,
    EMPTY_REPLY,
    ID_IN_FLIGHT,
    INITIATOR,
    KEEP_ALIVE,
    REPLY_BIT,
    REQUEST_LAST,
    TERMINATION_BIT,
)
from polymux.protocols.streamux.validation import (
    ACKER,
    ASKED,
    ASKER,
    BUSY,
    REPLIER,
    RUNNING,
    StreamuxLaw,
)


class StreamuxBooks(StreamuxLaw):
    """The law, and the state it rests on."""

    def __init__(self, limits: Limits, vantage: i64) -> None:
        super().__init__(limits, vantage)
        self.locked0: i64 = 0  # keys in `locked` that the dialer cancelled
        self.locked1: i64 = 0
        self.repeats: int = 0  # duties for cancels of ids that had one already
        self.most_repeats: int = max(limits.control_queue, limits.remembered)
        self.strays: OrderedDict[int, None] = OrderedDict()  # ids without a stream, oldest first

    def apply(self, sender: i64, head: Head, stream: Stream | None, at: i64) -> None:
        kind = head.kind
        self.touched = stream
        if kind == INITIATOR:
            self.greet(sender)
        elif kind == CANCEL:
            self.cancel(sender, head.key, stream, at)
        elif kind == CANCEL_ACK:
            self.acknowledge(sender, head.key, stream)
        elif kind & REPLY_BIT:
            self.reply(sender, head, stream)
        elif kind != KEEP_ALIVE:
            self.request(sender, head, stream)

    # --- initiators

    def greet(self, sender: i64) -> None:
        own, other = self.layout(sender), self.layout(1 - sender)
        own.announce(self.said)
        self.compare_layouts()
        self.unlocked = own.status == BROKEN or other.status != UNKNOWN
        self.handshaken = own.status == GOOD and other.width == own.width

    def unreadable(self, side: i64) -> str:
        own, other = self.layout(side), self.layout(1 - side)
        if own.status == BROKEN:
            return "the initiator cannot be understood"
        if own.status == GOOD and other.status == GOOD and own.width != other.width:
            return f"mixed header sizes: {own.width} octets here, {other.width} the other way"
        return ""

    # --- the asker's frames

    def request(self, sender: i64, head: Head, stream: Stream | None) -> None:
        key = head.key
        standing = self.standing(key, stream)
        if standing == BUSY:
            if self.excuse(key, ASKER, ID_IN_FLIGHT) == ID_IN_FLIGHT:
                self.muddle(key, 1 - sender, REPLIER)
                return  # dropped: it belongs to nothing
            self.unlock(key)
        if stream is None or standing != RUNNING:
            stream = self.begin(sender, head, stream)
        own = stream.half(sender)
        own.spent += head.size
        self.counted = True
        if head.kind == REQUEST_LAST:
            own.stop(ENDED, self.sight.sent(sender), False)
            stream.extra |= ASKED
            if stream.half(1 - sender).final != NEVER:  # answered before it was asked
                self.ids(sender).free(head.number)

    def begin(self, sender: i64, head: Head, stream: Stream | None) -> Stream:
        """A request's first chunk opens a stream: the one prepared for it, or a new one."""
        made: Stream
        if stream is not None and stream.serial < 0:
            made = stream
        else:
            made = Stream(head.key, head.number, sender, 0)
        made.opened = self.sight.sent(sender)
        made.answerable = made.opened
        before = self.streams.find(head.key)
        if before is not None:
            made.incarnation = before.incarnation + 1
            over = self.is_over(before)
            if not over:  # excused: the other side's fault made the asker believe that it was
                before.ending = "abandoned"
            if over and head.key not in self.muddled and self.misled == 0:
                # The asker has read the last word about the former use; nobody can answer that now.
                self.sight.proves(sender, before.half(1 - sender).final)
            else:
                made.answerable = before.answerable
        self.ids(sender).reserved.discard(head.number)
        self.streams.put(made)
        self.touched = made
        return made

    def cancel(self, sender: i64, key: i64, stream: Stream | None, at: i64) -> None:
        server = 1 - sender
        ordinal = self.sight.sent(sender)
        count = 0
        first: int = ordinal
        if key in self.owed:
            count, first = self.owed[key]
        self.owed[key] = (count + 1, first)
        if count == 0 or (count <= self.limits.control_queue and self.repeats < self.most_repeats):
            # Each is answered, so each is a duty of its own.
            duty = Duty(server, CANCEL_ACK, key, CANCEL_UNANSWERED, ordinal, at)
            self.duties[(server, CANCEL_ACK + 256 * count, key)] = duty
            if count > 0:
                self.repeats += 1
        if key in self.locked:
            self.muddle(key, server, REPLIER)
        else:
            self.lock(key)
            if stream is not None and not self.is_over(stream):
                stream.half(sender).stop(ABORTED, ordinal, False)
                stream.ending = "cancelled"
                stream.reset_by = sender
                self.settle(server, EMPTY_REPLY, key)
            elif stream is not None and self.overtaken(sender, stream):
                # The asker discards the reply. A live replier has closed the call already.
                if self.streams.keep:
                    stream.half(sender).stop(ABORTED, ordinal, False)
                stream.ending = "cancelled"
                stream.reset_by = sender
        if stream is None:
            self.stray(key)

    def lock(self, key: i64) -> None:
        """Cancelled: the id may not be used before the ack."""
        self.locked.add(key)
        if key & 1 == DIALER:
            self.locked0 += 1
        else:
            self.locked1 += 1

    def unlock(self, key: i64) -> None:
        if key in self.locked:
            self.locked.remove(key)
            if key & 1 == DIALER:
                self.locked0 -= 1
            else:
                self.locked1 -= 1

    def locked_by(self, side: i64) -> int:
        """How many ids this side has cancelled and waits for the ack of."""
        return self.locked0 if side == DIALER else self.locked1

    # --- the other side's frames

    def reply(self, sender: i64, head: Head, stream: Stream | None) -> None:
        if stream is None or stream.half(sender).final != NEVER:
            if head.kind & TERMINATION_BIT:
                self.muddle(head.key, 1 - sender, ASKER)
            return
        stream.answer(sender, self.sight)
        own = stream.half(sender)
        own.spent += head.size
        self.counted = True
        if head.kind & TERMINATION_BIT:
            own.final = self.sight.sent(sender)
            own.stop(ENDED, own.final, False)
            self.settle(sender, EMPTY_REPLY, head.key)
            if self.is_over(stream):
                self.ids(1 - sender).free(head.number)

    def acknowledge(self, sender: i64, key: i64, stream: Stream | None) -> None:
        if key not in self.owed:
            if not self.misled & ACKER:
                self.muddle(key, 1 - sender, ASKER)
            elif self.sight.beside != 1 - sender:  # for a forgotten cancel, or for nothing
                self.misled |= ASKER
            return
        count, first = self.owed[key]
        self.sight.proves(sender, first)
        count -= 1
        if count > 0:
            self.owed[key] = (count, first)
        else:
            del self.owed[key]
        if count > 0 and (sender, CANCEL_ACK + 256 * count, key) in self.duties:
            self.repeats -= 1
        self.settle(sender, CANCEL_ACK + 256 * count, key)
        if key in self.locked:
            self.unlock(key)
            if stream is not None:
                stream.half(sender).final = self.sight.sent(sender)
            self.ids(1 - sender).free(key >> 1)
        if self.strays and not self.remembers(key):
            self.strays.pop(key, None)

    def muddle(self, key: i64, misled: i64, who: i64) -> None:
        """A fault on this id may mislead the other side, unless we see just what it sees."""
        if self.sight.beside != misled:
            self.muddled[key] = self.muddled.get(key, 0) | who
            if self.streams.find(key) is None:
                self.stray(key)

    # --- what is kept of ids without a stream

    def remembers(self, key: i64) -> bool:
        return key in self.owed or key in self.locked or key in self.muddled

    def stray(self, key: i64) -> None:
        """Something is kept of an id without a stream; an observer bounds that, oldest first."""
        if not self.streams.keep:
            return
        self.strays[key] = None
        while len(self.strays) > self.limits.remembered:
            oldest = self.strays.popitem(last=False)[0]
            if self.streams.find(oldest) is None:
                self.dismiss(oldest)

    def dismiss(self, key: i64) -> None:
        """Forget an id. Who was excused on it, or owed an ack, cannot be told from now on."""
        self.streams.forgot = True
        self.lapse(key, None)
        self.misled |= self.muddled.pop(key, 0)
        if self.owed.pop(key, None) is not None:
            self.misled |= ACKER
        self.unlock(key)

    def lapse(self, key: i64, stream: Stream | None) -> None:
        super().lapse(key, stream)
        if key in self.owed:
            server = 1 - (key & 1)
            for count in range(1, min(self.owed[key][0], self.limits.control_queue + 1)):
                duty = self.duties.pop((server, CANCEL_ACK + 256 * count, key), None)
                if duty is not None:
                    self.repeats -= 1
                    self.give_up(duty, stream)
        if stream is not None and self.remembers(key):
            self.stray(key)

    def tells(self, duty: Duty, stream: Stream | None) -> bool:
        """Acks that are owed, except by a side that cannot be read: it may have sent them."""
        return duty.rule != 0 and not self.unreadable(duty.side)

    # --- saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["layouts"] = [self.layout0.save(), self.layout1.save()]
        saved["ids"] = [self.ids0.save(), self.ids1.save()]
        saved["locked"] = sorted(self.locked)
        saved["owed"] = [[key, owed[0], owed[1]] for key, owed in self.owed.items()]
        saved["muddled"] = [[key, who] for key, who in self.muddled.items()]
        saved["misled"] = [int(self.misled)]
        saved["strays"] = list(self.strays)
        saved["places"] = [place[1] for place in self.duties]  # many acks may be owed on one id
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        layouts, ids, duties = saved["layouts"], saved["ids"], saved["duties"]
        locked, owed, muddled = saved["locked"], saved["owed"], saved["muddled"]
        misled, strays, places = saved["misled"], saved["strays"], saved["places"]
        assert isinstance(layouts, list)
        assert isinstance(ids, list)
        assert isinstance(duties, list)
        assert isinstance(locked, list)
        assert isinstance(owed, list)
        assert isinstance(muddled, list)
        assert isinstance(misled, list)
        assert isinstance(strays, list)
        assert isinstance(places, list)
        self.layout0.load(layouts[0])
        self.layout1.load(layouts[1])
        self.compare_layouts()
        self.ids0.load(ids[0])
        self.ids1.load(ids[1])
        for key in locked:
            self.lock(key)
        self.misled = misled[0]
        self.strays = OrderedDict.fromkeys(strays)
        self.owed = {entry[0]: (entry[1], entry[2]) for entry in owed}
        self.muddled = {entry[0]: entry[1] for entry in muddled}
        self.duties = {}
        for d, place in zip(duties, places, strict=True):
            self.duties[(d[0], place, d[2])] = Duty(d[0], d[1], d[2], d[3], d[4], d[5])
            if place >= 256:
                self.repeats += 1
