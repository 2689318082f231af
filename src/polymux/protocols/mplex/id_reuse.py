# mypyc: compiled
"""Repeated use of mplex stream ids.

The problem. npm `multiplex` gives a new stream the lowest id that is free on its own side. An id is
free as soon as its opener has reset the stream, has read the receiver's reset, or has sent its own
close and read the receiver's. No frame says which use of an id it belongs to, so frames in flight
at that moment can be read in two ways:

- The receiver may not have read the new NewStream yet. What it sends until then belongs to an
  earlier use. It moves on at the latest where the earlier use allows it no further frame.
- The opener assigns every frame that it reads after its NewStream to the new use. A late close or
  reset of an earlier use therefore frees the id once more while the receiver still has the new
  stream open. npm then keeps both streams alive at the receiver, both write on the same id, and
  their frames cannot be told apart (`several_uses_open`).
- An npm receiver that has closed notices the opener's close only when its application has read all
  content. If the next NewStream arrives before that, the earlier stream may still be reset at any
  time (`late_reset_possible`).

The idea. `ReusedIdHistory` keeps, for one id, bounds on what each side can have known: how many
uses the receiver may be behind the newest, what it has sent in the oldest of them, and which of its
stops the opener had provably read when it opened the newest use. `ReusedIds` holds the histories of
a connection. A violation is reported only if it holds under every remaining reading; otherwise the
frame counts as crossed in flight.

Invariants: a history exists from the second use of an id on, or from a second stop of the receiver;
`uses_behind` is 0 exactly when the receiver is certainly in the newest use, and only then is
PREVIOUS_USE_POSSIBLE cleared in the stream's `protocol_state`; `previous_use` is set only while a
frame may still belong to it.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.causality import Causality
from polymux.core.frames import CONTENT, ENDS
from polymux.core.side import UNORDERED
from polymux.core.stream_table import StreamTable
from polymux.core.streams import ABORTED, ENDED, NEVER, OPEN, HalfStream, StreamState

CLEANUP_INTERVAL: Final[i64] = 1024  # new histories before those of evicted streams are dropped
UNSET: Final[i64] = -1
# Flag in `StreamState.protocol_state`: a frame of the receiver may belong to an earlier use.
PREVIOUS_USE_POSSIBLE: Final[i64] = 1


class ReusedIdHistory:
    """The uses of one id of one opener. Frame indexes count the receiver's frames."""

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
        self.oldest_use_state: i64 = OPEN  # its state in the oldest use it may still be in
        self.several_uses_open: bool = False  # at the receiver
        self.late_reset_possible: bool = False  # one reset may belong to an earlier use
        self.certain_state: i64 = OPEN  # in the newest use, without ambiguous stops
        # Frame indexes of the receiver's last close and last reset on this id, in any use.
        self.last_close_index: i64 = receiver.end_frame_index if receiver.state != OPEN else UNSET
        self.last_reset_index: i64 = (
            receiver.last_frame_index if receiver.last_frame_index != NEVER else UNSET
        )
        # When the newest use was opened: frames of the receiver that the opener had provably read,
        # and the index of the frame that was partly received.
        self.frames_read_at_open: i64 = 0
        self.passing_frame_index: i64 = UNSET
        self.previous_use: StreamState | None = None  # while a frame may still belong to it
        self.previous_use_serial: i64 = UNSET  # serial of it, between `load` and `relink`
        self.opener_reset_text: bytes | None = None  # set if the receiver's reset came first

    def record_frame(self, effect: i64, frame_index: i64) -> None:
        """Record a frame of the receiver on this id."""
        if effect == ENDS:
            self.last_close_index = frame_index
        elif effect != CONTENT:
            self.last_reset_index = frame_index

    def is_newest_use_certain(self, effect: i64, open_was_read: bool) -> bool:
        """Return whether this frame of the receiver certainly belongs to the newest use.

        `open_was_read`: the receiver has provably read the newest NewStream.
        """
        return not self.several_uses_open and (
            open_was_read
            or (self.uses_behind == 1 and not is_allowed_in_state(effect, self.oldest_use_state))
        )

    def advance(self, effect: i64, open_was_read: bool) -> bool:
        """Process a frame of the receiver. Return True if it is now certainly in the newest use."""
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
        previous = self.previous_use.serial if self.previous_use is not None else UNSET
        return [
            int(self.uses_behind),
            int(self.oldest_use_state),
            self.several_uses_open,
            int(self.last_close_index),
            int(self.last_reset_index),
            int(self.frames_read_at_open),
            int(self.passing_frame_index),
            int(previous),
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
    """Return whether a side whose half is in `state` may send a frame of this effect."""
    return state == OPEN or (state == ENDED and effect != CONTENT and effect != ENDS)


def state_by_own_frames(half: HalfStream) -> i64:
    """Return the state of a half by its own frames, including a reset without effect."""
    return ABORTED if half.last_frame_index != NEVER else half.state


def state_after(effect: i64, state: i64) -> i64:
    """Return the state of a half after a frame of this effect."""
    if effect == CONTENT:
        return state
    return ENDED if effect == ENDS else ABORTED


def is_certainly_over(stream: StreamState) -> bool:
    """Return whether the receiver sends nothing in this use after reading the next NewStream."""
    own, receiver = stream.half(stream.opener), stream.half(1 - stream.opener)
    if own.last_frame_index != NEVER:
        return True
    if receiver.state == OPEN or receiver.end_is_ambiguous:
        return False
    return receiver.last_frame_index != NEVER or own.state == ENDED


class ReusedIds:
    """The histories of all reused ids of one connection, by stream key."""

    def __init__(self, causality: Causality, streams: StreamTable) -> None:
        self.causality = causality
        self.streams = streams
        self.histories: dict[int, ReusedIdHistory] = {}
        self.cleanup_threshold: i64 = CLEANUP_INTERVAL  # histories that trigger a cleanup

    # Which use a frame belongs to

    def may_be_free(self, stream: StreamState) -> bool:
        """Return whether the opener may regard this use of its id as over.

        It has reset the stream; or, since opening it, it may have read a reset of the receiver or,
        after its own close, a close. Frames that were sent before the opening count unless they
        were provably read before it: the opener cannot tell that they belong to an earlier use.
        """
        own, receiver = stream.half(stream.opener), stream.half(1 - stream.opener)
        if own.last_frame_index != NEVER or self.causality.vantage == UNORDERED:
            return True
        read: i64 = 0
        close = receiver.end_frame_index if receiver.state != OPEN else UNSET
        reset = receiver.last_frame_index if receiver.last_frame_index != NEVER else UNSET
        history = self.histories.get(stream.key)
        if history is not None:
            read, close, reset = (
                history.frames_read_at_open,
                history.last_close_index,
                history.last_reset_index,
            )
        return reset >= read or (own.state == ENDED and close >= read)

    def is_certainly_about(self, sender: i64, effect: i64, stream: StreamState) -> bool:
        """Return whether this frame of the receiver certainly belongs to this stream."""
        history = self.histories.get(stream.key)
        if history is None or history.previous_use is stream:
            return False
        return history.is_newest_use_certain(
            effect, self.causality.had_seen(sender, stream.open_frame_index)
        )

    def resolve_incarnation(self, sender: i64, effect: i64, stream: StreamState) -> StreamState:
        """Return the use that a frame of the receiver belongs to.

        That is the newest use, unless the receiver cannot have known of it.
        """
        history = self.histories.get(stream.key)
        previous = history.previous_use if history is not None else None
        if history is None or previous is None:
            return stream
        if history.passing_frame_index == self.causality.frames_sent(sender):
            return previous  # its first bytes came before the opening
        if (
            self.causality.vantage == UNORDERED  # the stop that the opener has read comes later
            and not self.causality.had_seen(sender, stream.open_frame_index)
            and is_allowed_in_state(effect, history.oldest_use_state)
        ):
            return previous
        return stream

    def may_receive_late_frames(self, stream: StreamState) -> bool:
        """Return whether a frame may still belong to this stream, whose id was reused."""
        history = self.histories.get(stream.key)
        return history is not None and history.previous_use is stream

    # State changes

    def start_new_use(
        self, stream: StreamState, new_stream: StreamState, receiver_mid_frame: bool
    ) -> None:
        """Record that `new_stream` takes over the id of `stream`.

        `receiver_mid_frame`: a frame of the receiver has been received in part.
        """
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
            return  # the partly received frame began before the previous use
        if receiver_mid_frame:
            history.passing_frame_index = self.causality.frames_sent(1 - opener)
            history.previous_use = stream
        elif self.causality.vantage == UNORDERED and history.uses_behind == 1:
            history.previous_use = stream

    def get_or_create(self, stream: StreamState) -> ReusedIdHistory:
        """Return the history of this stream's id; create it if there is none."""
        history = self.histories.get(stream.key)
        if history is None:
            history = ReusedIdHistory(stream)
            self.histories[stream.key] = history
            if len(self.histories) > self.cleanup_threshold:
                self.drop_forgotten()
        return history

    def drop_forgotten(self) -> None:
        """Drop the histories of ids that the stream table has evicted."""
        self.histories = {
            key: history
            for key, history in self.histories.items()
            if self.streams.find(key) is not None
        }
        self.cleanup_threshold = len(self.histories) * 2 + CLEANUP_INTERVAL

    def track_receiver_frame(self, sender: i64, effect: i64, stream: StreamState) -> bool:
        """Record a frame of the receiver. Return True if it may belong to an earlier use."""
        history = self.histories.get(stream.key)
        if history is None:
            if effect == CONTENT or stream.half(sender).state == OPEN:
                return False  # the half itself holds all that is needed
            history = self.get_or_create(stream)
        history.record_frame(effect, self.causality.frames_sent(sender))
        is_previous = history.previous_use is stream
        if not is_previous or self.causality.vantage != UNORDERED:
            history.previous_use = None
            history.passing_frame_index = UNSET
        if is_previous:
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
        """Handle a stop of the receiver that belonged to an earlier use. Return its real state."""
        history = self.histories.get(stream.key)
        if history is None:
            return OPEN
        if not stream.protocol_state & PREVIOUS_USE_POSSIBLE:
            history.late_reset_possible = False
        return history.certain_state

    def mark_stop_ambiguous(self, stream: StreamState, state: i64) -> None:
        """Record the receiver's state before a stop that may belong to an earlier use."""
        history = self.histories.get(stream.key)
        if history is not None:
            history.certain_state = state

    def certain_state(self, stream: StreamState) -> i64:
        """Return the receiver's state without stops that may belong to an earlier use."""
        history = self.histories.get(stream.key)
        return history.certain_state if history is not None else OPEN

    def store_opener_reset_text(self, stream: StreamState, text: bytes | None) -> None:
        """Keep the text of the opener's reset.

        It is needed if the receiver's earlier reset turns out to belong to an earlier use.
        """
        history = self.histories.get(stream.key)
        if history is not None:
            history.opener_reset_text = text

    def opener_reset_text(self, stream: StreamState) -> bytes | None:
        history = self.histories.get(stream.key)
        return history.opener_reset_text if history is not None else None

    def finish(self) -> None:
        """Release the previous uses. Called when no more frames will come."""
        for history in self.histories.values():
            history.previous_use = None

    # Saved state

    def save(self) -> list[object]:
        return [[key, *history.save()] for key, history in self.histories.items()]

    def load(self, saved: list[list[object]]) -> None:
        for entry in saved:
            key = entry[0]
            assert isinstance(key, int)  # saved state is untyped; `save` writes integers
            stream = self.streams.find(key)
            if stream is not None:
                history = ReusedIdHistory(stream)
                history.load(entry[1:])
                self.histories[key] = history

    def relink(self, gone: list[StreamState]) -> None:
        """Restore the references to previous uses, after `load`, by serial number."""
        held = {stream.serial: stream for stream in gone}
        for history in self.histories.values():
            history.previous_use = held.get(history.previous_use_serial)
            history.previous_use_serial = UNSET
