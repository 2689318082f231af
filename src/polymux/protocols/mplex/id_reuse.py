# mypyc: compiled
"""What outlives an mplex stream when its opener uses the id again.

npm `multiplex` gives a new stream the lowest id that is free on its own side: free as soon as it
has reset the stream, has read the receiver's reset, or has sent its own close and read the
receiver's. No frame says which use of an id it belongs to, so frames that are under way meanwhile
have two readings:

- The receiver may not have read the new NewStream yet. What it sends then is about an earlier use.
  It moves on at the latest where the earlier use allows no further frame of it.
- The opener takes every frame that it reads after its NewStream for one about the new use. A late
  close or reset of an earlier use therefore frees the id once more, although the receiver still
  has the new stream open. npm then keeps both streams alive at the receiver, and both write on the
  same id: its frames can no longer be told apart (`mixed`).
- A receiver that has closed does not notice the opener's close, in npm, before its application has
  read all content. If the next opening comes before that, the earlier stream may still be reset at
  any time (`spare`).

`History` keeps the bounds of what each side can have known of one id, `Uses` those of a connection.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import CONTENT, ENDS
from polymux.core.side import UNORDERED, Sight
from polymux.core.streams import ABORTED, ENDED, NEVER, OPEN, Half, Stream, Table

FORGOTTEN: Final[i64] = (
    1024  # histories of ids that the table has forgotten, before they are let go
)
NONE: Final[i64] = -1
CLOUDED: Final[i64] = 1  # `stream.extra`: a frame of the receiver may be about an earlier use


class History:
    """One id of one opener: from its second use on, or a second stop of the receiver."""

    __slots__ = ("behind", "closed", "error", "kept", "late", "mixed", "older", "read", "reset",
                 "spare", "state", "sure")  # fmt: skip

    def __init__(self, first: Stream) -> None:
        receiver = first.half(1 - first.opener)
        self.behind: i64 = 0  # how many uses the receiver may be behind the newest
        self.state: i64 = OPEN  # what it has said in the oldest use that it may still be in
        self.mixed: bool = False  # several uses may be alive at the receiver
        self.spare: bool = False  # one reset of the receiver may be about an earlier use
        self.sure: i64 = OPEN  # the receiver's state in the newest use, but for stops in doubt
        # Ordinals of the receiver's last close and last reset on this id, in any use.
        self.closed: i64 = receiver.stopped if receiver.state != OPEN else NONE
        self.reset: i64 = receiver.final if receiver.final != NEVER else NONE
        self.read: i64 = 0  # receiver's frames provably read when the newest use was opened
        self.late: i64 = NONE  # ordinal of the receiver's frame that was passing at that moment
        self.older: Stream | None = None  # the use before, while a frame may still be about it
        self.kept: i64 = NONE  # serial of `older`, between `load` and `relink`
        self.error: bytes | None = None  # text of the opener's reset, if the receiver's came first

    def note(self, effect: i64, ordinal: i64) -> None:
        """A frame of the receiver on this id."""
        if effect == ENDS:
            self.closed = ordinal
        elif effect != CONTENT:
            self.reset = ordinal

    def settles(self, effect: i64, known: bool) -> bool:
        """Is this frame of the receiver surely about the newest use?

        `known`: the receiver has provably read the newest opening.
        """
        return not self.mixed and (
            known or (self.behind == 1 and not may_follow(effect, self.state))
        )

    def advance(self, effect: i64, known: bool) -> bool:
        """Follow the receiver by one frame; True if it is now surely in the newest use."""
        if self.mixed:
            return False
        if known:
            self.behind = 0
        elif not may_follow(effect, self.state):
            self.behind -= 1
            self.state = OPEN
        if self.behind <= 0:
            self.behind = 0
            self.older = None
            self.late = NONE
            return True
        self.state = following(effect, self.state)
        return False

    def save(self) -> list[object]:
        older = self.older.serial if self.older is not None else NONE
        return [
            int(self.behind), int(self.state), self.mixed, int(self.closed), int(self.reset),
            int(self.read), int(self.late), int(older), self.error, self.spare,
            int(self.sure),
        ]  # fmt: skip

    def load(self, saved: list[object]) -> None:
        numbers = [entry if isinstance(entry, int) else 0 for entry in saved]
        self.behind = numbers[0]
        self.state = numbers[1]
        self.mixed = bool(saved[2])
        self.closed = numbers[3]
        self.reset = numbers[4]
        self.read = numbers[5]
        self.late = numbers[6]
        self.kept = numbers[7]
        error = saved[8]
        self.error = error if isinstance(error, bytes) else None
        self.spare = bool(saved[9])
        self.sure = numbers[10]


def may_follow(effect: i64, state: i64) -> bool:
    """May a side send this in a use of an id in which it has ended or aborted so far?"""
    return state == OPEN or (state == ENDED and effect != CONTENT and effect != ENDS)


def said_in(half: Half) -> i64:
    """The state of a half by its own frames, also where its reset came too late to matter."""
    return ABORTED if half.final != NEVER else half.state


def following(effect: i64, state: i64) -> i64:
    """The state of a half after this frame."""
    if effect == CONTENT:
        return state
    return ENDED if effect == ENDS else ABORTED


def surely_over(stream: Stream) -> bool:
    """Has the receiver nothing more to say about this use once it reads the next opening?"""
    own, receiver = stream.half(stream.opener), stream.half(1 - stream.opener)
    if own.final != NEVER:
        return True
    if receiver.state == OPEN or receiver.vague:
        return False
    return receiver.final != NEVER or own.state == ENDED


class Uses:
    """The ids of one connection that were used again, by key."""

    def __init__(self, sight: Sight, streams: Table) -> None:
        self.sight = sight
        self.streams = streams
        self.histories: dict[int, History] = {}
        self.crowd: i64 = FORGOTTEN  # so many make a look for forgotten ones worth its time

    # --- what a frame can be about

    def may_be_free(self, stream: Stream) -> bool:
        """Can the opener have believed that this use of its id was over?

        It has reset the stream; or it may have read, since it opened it, a reset of the receiver,
        or a close after its own. Frames that passed before the opening count unless they were
        provably read before it: the opener cannot tell that they are about an earlier use.
        """
        own, receiver = stream.half(stream.opener), stream.half(1 - stream.opener)
        if own.final != NEVER or self.sight.beside == UNORDERED:
            return True
        read: i64 = 0
        closed = receiver.stopped if receiver.state != OPEN else NONE
        reset = receiver.final if receiver.final != NEVER else NONE
        history = self.histories.get(stream.key)
        if history is not None:
            read, closed, reset = history.read, history.closed, history.reset
        return reset >= read or (own.state == ENDED and closed >= read)

    def settles(self, sender: i64, effect: i64, stream: Stream) -> bool:
        """Is this frame of the receiver surely about this stream?"""
        history = self.histories.get(stream.key)
        if history is None or history.older is stream:
            return False
        return history.settles(effect, self.sight.knows(sender, stream.opened))

    def meant(self, sender: i64, effect: i64, stream: Stream) -> Stream:
        """The use that a frame of the receiver is about: the newest, unless the receiver cannot
        have known of it."""
        history = self.histories.get(stream.key)
        older = history.older if history is not None else None
        if history is None or older is None:
            return stream
        if history.late == self.sight.sent(sender):  # it began to pass before the opening
            return older
        if (
            self.sight.beside == UNORDERED  # the opener has read a stop that is yet to come
            and not self.sight.knows(sender, stream.opened)
            and may_follow(effect, history.state)
        ):
            return older
        return stream

    def may_be_meant(self, stream: Stream) -> bool:
        """May a frame still be about this stream, whose id is used again?"""
        history = self.histories.get(stream.key)
        return history is not None and history.older is stream

    # --- bookkeeping

    def renew(self, stream: Stream, made: Stream, midway: bool) -> None:
        """`made` takes the id of `stream`. `midway`: a frame of the receiver is passing."""
        opener = made.opener
        history = self.history(stream)
        made.answerable = stream.answerable
        if not stream.extra & CLOUDED:
            made.answerable = stream.opened
            history.behind = 0
            receiver = stream.half(1 - opener)
            history.state = history.sure if receiver.vague else said_in(receiver)
        history.behind += 1
        history.sure = OPEN
        history.read = self.sight.known(opener)
        history.error = None
        if not midway or history.late != self.sight.sent(1 - opener):
            history.older = None
            history.late = NONE
        if self.sight.beside != 1 - opener and not surely_over(stream):
            history.mixed = True
        if self.sight.beside != 1 - opener and stream.half(opener).final == NEVER:
            history.spare = True
        certain = history.state == ABORTED and not history.mixed and not midway
        if certain and history.behind == 1:
            history.behind = 0
            history.older = None
            made.answerable = made.opened
            return
        made.extra = CLOUDED
        if history.older is not None:
            return  # the frame that is passing was already before the use before
        if midway:
            history.late = self.sight.sent(1 - opener)
            history.older = stream
        elif self.sight.beside == UNORDERED and history.behind == 1:
            history.older = stream

    def history(self, stream: Stream) -> History:
        """The history of this stream's id, from now on at the latest."""
        history = self.histories.get(stream.key)
        if history is None:
            history = History(stream)
            self.histories[stream.key] = history
            if len(self.histories) > self.crowd:
                self.tidy()
        return history

    def tidy(self) -> None:
        """Let go of the histories of ids that the table has forgotten."""
        self.histories = {
            key: history
            for key, history in self.histories.items()
            if self.streams.find(key) is not None
        }
        self.crowd = len(self.histories) * 2 + FORGOTTEN

    def follow(self, sender: i64, effect: i64, stream: Stream) -> bool:
        """A frame of the receiver has passed; True if it may be about an earlier use."""
        history = self.histories.get(stream.key)
        if history is None:
            if effect == CONTENT or stream.half(sender).state == OPEN:
                return False  # the half itself says all that is to be known
            history = self.history(stream)
        history.note(effect, self.sight.sent(sender))
        older = history.older is stream
        if not older or self.sight.beside != UNORDERED:
            history.older = None
            history.late = NONE
        if older:
            history.state = following(effect, history.state)
            return stream.extra & CLOUDED != 0
        if not stream.extra & CLOUDED:
            return history.spare and effect != CONTENT and effect != ENDS
        if history.advance(effect, self.sight.knows(sender, stream.opened)):
            stream.extra &= ~CLOUDED
            stream.answerable = stream.opened
            return history.spare and effect != CONTENT and effect != ENDS
        return True

    def disown(self, stream: Stream) -> i64:
        """The receiver's stop has turned out to be about an earlier use; its state without it."""
        history = self.histories.get(stream.key)
        if history is None:
            return OPEN
        if not stream.extra & CLOUDED:
            history.spare = False
        return history.sure

    def doubt(self, stream: Stream, state: i64) -> None:
        """The receiver, in this state so far, stops; the stop may be about an earlier use."""
        history = self.histories.get(stream.key)
        if history is not None:
            history.sure = state

    def sure(self, stream: Stream) -> i64:
        """The receiver's state but for stops that may be about an earlier use."""
        history = self.histories.get(stream.key)
        return history.sure if history is not None else OPEN

    def keep_reason(self, stream: Stream, text: bytes | None) -> None:
        """The opener's reset came after one that may turn out to be about an earlier use."""
        history = self.histories.get(stream.key)
        if history is not None:
            history.error = text

    def reason(self, stream: Stream) -> bytes | None:
        history = self.histories.get(stream.key)
        return history.error if history is not None else None

    def finish(self) -> None:
        """No more frames will come."""
        for history in self.histories.values():
            history.older = None

    # --- saved state

    def save(self) -> list[object]:
        return [[key, *history.save()] for key, history in self.histories.items()]

    def load(self, saved: list[list[object]]) -> None:
        for entry in saved:
            key = entry[0]
            assert isinstance(key, int)
            stream = self.streams.find(key)
            if stream is not None:
                history = History(stream)
                history.load(entry[1:])
                self.histories[key] = history

    def relink(self, gone: list[Stream]) -> None:
        held = {stream.serial: stream for stream in gone}
        for history in self.histories.values():
            history.older = held.get(history.kept)
            history.kept = NONE
