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

from polymux.core.causality import Causality
from polymux.core.frames import CONTENT, ENDS
from polymux.core.side import UNORDERED
from polymux.core.stream_table import StreamTable
from polymux.core.streams import ABORTED, ENDED, NEVER, OPEN, HalfStream, StreamState

CLEANUP_INTERVAL: Final[i64] = (
    1024  # histories of ids that the table has forgotten, before they are let go
)
UNSET: Final[i64] = -1
PREVIOUS_USE_POSSIBLE: Final[i64] = (
    1  # `stream.extra`: a frame of the receiver may be about an earlier use
)


class ReusedIdHistory:
    """One id of one opener: from its second use on, or a second stop of the receiver."""

    __slots__ = (
        "uses_behind",
        "last_close_index",
        "opener_reset_text",
        "previous_use_serial",
        "passing_frame_index",
        "several_uses_open",
        "previous_use",
        "frames_read_at_open",
        "last_reset_index",
        "late_reset_possible",
        "oldest_use_state",
        "certain_state",
    )

    def __init__(self, first: StreamState) -> None:
        receiver = first.half(1 - first.opener)
        self.uses_behind: i64 = 0  # how many uses the receiver may be behind the newest
        self.oldest_use_state: i64 = (
            OPEN  # what it has said in the oldest use that it may still be in
        )
        self.several_uses_open: bool = False  # several uses may be alive at the receiver
        self.late_reset_possible: bool = (
            False  # one reset of the receiver may be about an earlier use
        )
        self.certain_state: i64 = (
            OPEN  # the receiver's state in the newest use, but for stops in doubt
        )
        # Ordinals of the receiver's last close and last reset on this id, in any use.
        self.last_close_index: i64 = receiver.end_frame_index if receiver.state != OPEN else UNSET
        self.last_reset_index: i64 = (
            receiver.last_frame_index if receiver.last_frame_index != NEVER else UNSET
        )
        self.frames_read_at_open: i64 = (
            0  # receiver's frames provably read when the newest use was opened
        )
        self.passing_frame_index: i64 = (
            UNSET  # ordinal of the receiver's frame that was passing at that moment
        )
        self.previous_use: StreamState | None = (
            None  # the use before, while a frame may still be about it
        )
        self.previous_use_serial: i64 = UNSET  # serial of `older`, between `load` and `relink`
        self.opener_reset_text: bytes | None = (
            None  # text of the opener's reset, if the receiver's came first
        )

    def record_frame(self, effect: i64, frame_index: i64) -> None:
        """A frame of the receiver on this id."""
        if effect == ENDS:
            self.last_close_index = frame_index
        elif effect != CONTENT:
            self.last_reset_index = frame_index

    def is_newest_use_certain(self, effect: i64, open_was_read: bool) -> bool:
        """Is this frame of the receiver surely about the newest use?

        `known`: the receiver has provably read the newest opening.
        """
        return not self.several_uses_open and (
            open_was_read
            or (self.uses_behind == 1 and not is_allowed_in_state(effect, self.oldest_use_state))
        )

    def advance(self, effect: i64, open_was_read: bool) -> bool:
        """Follow the receiver by one frame; True if it is now surely in the newest use."""
        if self.several_uses_open:
            return False
        if open_was_read:
            self.uses_behind = 0
        elif not is_allowed_in_state(effect, self.oldest_use_state):
            self.uses_behind -= 1
            self.oldest_use_state = OPEN
        if self.uses_behind <= 0:
            self.uses_behind = 0
            self.previous_use = None
            self.passing_frame_index = UNSET
            return True
        self.oldest_use_state = state_after(effect, self.oldest_use_state)
        return False

    def save(self) -> list[object]:
        older = self.previous_use.serial if self.previous_use is not None else UNSET
        return [
            int(self.uses_behind),
            int(self.oldest_use_state),
            self.several_uses_open,
            int(self.last_close_index),
            int(self.last_reset_index),
            int(self.frames_read_at_open),
            int(self.passing_frame_index),
            int(older),
            self.opener_reset_text,
            self.late_reset_possible,
            int(self.certain_state),
        ]

    def load(self, saved: list[object]) -> None:
        numbers = [entry if isinstance(entry, int) else 0 for entry in saved]
        self.uses_behind = numbers[0]
        self.oldest_use_state = numbers[1]
        self.several_uses_open = bool(saved[2])
        self.last_close_index = numbers[3]
        self.last_reset_index = numbers[4]
        self.frames_read_at_open = numbers[5]
        self.passing_frame_index = numbers[6]
        self.previous_use_serial = numbers[7]
        error = saved[8]
        self.opener_reset_text = error if isinstance(error, bytes) else None
        self.late_reset_possible = bool(saved[9])
        self.certain_state = numbers[10]


def is_allowed_in_state(effect: i64, state: i64) -> bool:
    """May a side send this in a use of an id in which it has ended or aborted so far?"""
    return state == OPEN or (state == ENDED and effect != CONTENT and effect != ENDS)


def state_by_own_frames(half: HalfStream) -> i64:
    """The state of a half by its own frames, also where its reset came too late to matter."""
    return ABORTED if half.last_frame_index != NEVER else half.state


def state_after(effect: i64, state: i64) -> i64:
    """The state of a half after this frame."""
    if effect == CONTENT:
        return state
    return ENDED if effect == ENDS else ABORTED


def is_certainly_over(stream: StreamState) -> bool:
    """Has the receiver nothing more to say about this use once it reads the next opening?"""
    own, receiver = stream.half(stream.opener), stream.half(1 - stream.opener)
    if own.last_frame_index != NEVER:
        return True
    if receiver.state == OPEN or receiver.end_is_ambiguous:
        return False
    return receiver.last_frame_index != NEVER or own.state == ENDED


class ReusedIds:
    """The ids of one connection that were used again, by key."""

    def __init__(self, causality: Causality, streams: StreamTable) -> None:
        self.causality = causality
        self.streams = streams
        self.histories: dict[int, ReusedIdHistory] = {}
        self.cleanup_threshold: i64 = (
            CLEANUP_INTERVAL  # so many make a look for forgotten ones worth its time
        )

    # --- what a frame can be about

    def may_be_free(self, stream: StreamState) -> bool:
        """Can the opener have believed that this use of its id was over?

        It has reset the stream; or it may have read, since it opened it, a reset of the receiver,
        or a close after its own. Frames that passed before the opening count unless they were
        provably read before it: the opener cannot tell that they are about an earlier use.
        """
        own, receiver = stream.half(stream.opener), stream.half(1 - stream.opener)
        if own.last_frame_index != NEVER or self.causality.vantage == UNORDERED:
            return True
        read: i64 = 0
        closed = receiver.end_frame_index if receiver.state != OPEN else UNSET
        reset = receiver.last_frame_index if receiver.last_frame_index != NEVER else UNSET
        history = self.histories.get(stream.key)
        if history is not None:
            read, closed, reset = (
                history.frames_read_at_open,
                history.last_close_index,
                history.last_reset_index,
            )
        return reset >= read or (own.state == ENDED and closed >= read)

    def is_certainly_about(self, sender: i64, effect: i64, stream: StreamState) -> bool:
        """Is this frame of the receiver surely about this stream?"""
        history = self.histories.get(stream.key)
        if history is None or history.previous_use is stream:
            return False
        return history.is_newest_use_certain(
            effect, self.causality.had_seen(sender, stream.open_frame_index)
        )

    def resolve_incarnation(self, sender: i64, effect: i64, stream: StreamState) -> StreamState:
        """The use that a frame of the receiver is about: the newest, unless the receiver cannot
        have known of it."""
        history = self.histories.get(stream.key)
        older = history.previous_use if history is not None else None
        if history is None or older is None:
            return stream
        if history.passing_frame_index == self.causality.frames_sent(
            sender
        ):  # it began to pass before the opening
            return older
        if (
            self.causality.vantage == UNORDERED  # the opener has read a stop that is yet to come
            and not self.causality.had_seen(sender, stream.open_frame_index)
            and is_allowed_in_state(effect, history.oldest_use_state)
        ):
            return older
        return stream

    def may_receive_late_frames(self, stream: StreamState) -> bool:
        """May a frame still be about this stream, whose id is used again?"""
        history = self.histories.get(stream.key)
        return history is not None and history.previous_use is stream

    # --- bookkeeping

    def start_new_use(
        self, stream: StreamState, new_stream: StreamState, receiver_mid_frame: bool
    ) -> None:
        """`made` takes the id of `stream`. `midway`: a frame of the receiver is passing."""
        opener = new_stream.opener
        history = self.get_or_create(stream)
        new_stream.answerable_open_index = stream.answerable_open_index
        if not stream.protocol_state & PREVIOUS_USE_POSSIBLE:
            new_stream.answerable_open_index = stream.open_frame_index
            history.uses_behind = 0
            receiver = stream.half(1 - opener)
            history.oldest_use_state = (
                history.certain_state
                if receiver.end_is_ambiguous
                else state_by_own_frames(receiver)
            )
        history.uses_behind += 1
        history.certain_state = OPEN
        history.frames_read_at_open = self.causality.seen_count(opener)
        history.opener_reset_text = None
        if not receiver_mid_frame or history.passing_frame_index != self.causality.frames_sent(
            1 - opener
        ):
            history.previous_use = None
            history.passing_frame_index = UNSET
        if self.causality.vantage != 1 - opener and not is_certainly_over(stream):
            history.several_uses_open = True
        if self.causality.vantage != 1 - opener and stream.half(opener).last_frame_index == NEVER:
            history.late_reset_possible = True
        certain = (
            history.oldest_use_state == ABORTED
            and not history.several_uses_open
            and not receiver_mid_frame
        )
        if certain and history.uses_behind == 1:
            history.uses_behind = 0
            history.previous_use = None
            new_stream.answerable_open_index = new_stream.open_frame_index
            return
        new_stream.protocol_state = PREVIOUS_USE_POSSIBLE
        if history.previous_use is not None:
            return  # the frame that is passing was already before the use before
        if receiver_mid_frame:
            history.passing_frame_index = self.causality.frames_sent(1 - opener)
            history.previous_use = stream
        elif self.causality.vantage == UNORDERED and history.uses_behind == 1:
            history.previous_use = stream

    def get_or_create(self, stream: StreamState) -> ReusedIdHistory:
        """The history of this stream's id, from now on at the latest."""
        history = self.histories.get(stream.key)
        if history is None:
            history = ReusedIdHistory(stream)
            self.histories[stream.key] = history
            if len(self.histories) > self.cleanup_threshold:
                self.drop_forgotten()
        return history

    def drop_forgotten(self) -> None:
        """Let go of the histories of ids that the table has forgotten."""
        self.histories = {
            key: history
            for key, history in self.histories.items()
            if self.streams.find(key) is not None
        }
        self.cleanup_threshold = len(self.histories) * 2 + CLEANUP_INTERVAL

    def track_receiver_frame(self, sender: i64, effect: i64, stream: StreamState) -> bool:
        """A frame of the receiver has passed; True if it may be about an earlier use."""
        history = self.histories.get(stream.key)
        if history is None:
            if effect == CONTENT or stream.half(sender).state == OPEN:
                return False  # the half itself says all that is to be known
            history = self.get_or_create(stream)
        history.record_frame(effect, self.causality.frames_sent(sender))
        older = history.previous_use is stream
        if not older or self.causality.vantage != UNORDERED:
            history.previous_use = None
            history.passing_frame_index = UNSET
        if older:
            history.oldest_use_state = state_after(effect, history.oldest_use_state)
            return stream.protocol_state & PREVIOUS_USE_POSSIBLE != 0
        if not stream.protocol_state & PREVIOUS_USE_POSSIBLE:
            return history.late_reset_possible and effect != CONTENT and effect != ENDS
        if history.advance(effect, self.causality.had_seen(sender, stream.open_frame_index)):
            stream.protocol_state &= ~PREVIOUS_USE_POSSIBLE
            stream.answerable_open_index = stream.open_frame_index
            return history.late_reset_possible and effect != CONTENT and effect != ENDS
        return True

    def retract_stop(self, stream: StreamState) -> i64:
        """The receiver's stop has turned out to be about an earlier use; its state without it."""
        history = self.histories.get(stream.key)
        if history is None:
            return OPEN
        if not stream.protocol_state & PREVIOUS_USE_POSSIBLE:
            history.late_reset_possible = False
        return history.certain_state

    def mark_stop_ambiguous(self, stream: StreamState, state: i64) -> None:
        """The receiver, in this state so far, stops; the stop may be about an earlier use."""
        history = self.histories.get(stream.key)
        if history is not None:
            history.certain_state = state

    def certain_state(self, stream: StreamState) -> i64:
        """The receiver's state but for stops that may be about an earlier use."""
        history = self.histories.get(stream.key)
        return history.certain_state if history is not None else OPEN

    def store_opener_reset_text(self, stream: StreamState, text: bytes | None) -> None:
        """The opener's reset came after one that may turn out to be about an earlier use."""
        history = self.histories.get(stream.key)
        if history is not None:
            history.opener_reset_text = text

    def opener_reset_text(self, stream: StreamState) -> bytes | None:
        history = self.histories.get(stream.key)
        return history.opener_reset_text if history is not None else None

    def finish(self) -> None:
        """No more frames will come."""
        for history in self.histories.values():
            history.previous_use = None

    # --- saved state

    def save(self) -> list[object]:
        return [[key, *history.save()] for key, history in self.histories.items()]

    def load(self, saved: list[list[object]]) -> None:
        for entry in saved:
            key = entry[0]
            assert isinstance(key, int)
            stream = self.streams.find(key)
            if stream is not None:
                history = ReusedIdHistory(stream)
                history.load(entry[1:])
                self.histories[key] = history

    def relink(self, gone: list[StreamState]) -> None:
        held = {stream.serial: stream for stream in gone}
        for history in self.histories.values():
            history.previous_use = held.get(history.previous_use_serial)
            history.previous_use_serial = UNSET
