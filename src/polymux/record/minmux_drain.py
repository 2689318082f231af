"""`MinmuxDrain`: reads the Minmux streams of a collector, without an object for each of them.

Nothing opens a Minmux stream: any packet of the peer begins one, and each that may be read has to
be given credit. So a peer can cause streams at next to no cost, and most of them may never carry
anything. All that the collector has to know of a stream is in the protocol's record of it: credit
given and spent, and whether it has ended. Content is dropped as it arrives, because the recorder
has written it. Credit for it is given again, and the end is answered, when it is durable.

At most `Limits.max_streams` streams of a session have credit. Further ones wait for it until
another one has ended, and as many may wait; with one more the session ends.
"""

from __future__ import annotations

from collections.abc import Callable

from polymux.aio import MinmuxSession
from polymux.core.events import Closed, Ended, Event, Opened
from polymux.core.streams import OPEN, StreamState
from polymux.protocols.minmux.packets import U64_MODULUS, give_credit, stop_read

# Initial credit of a stream, in bytes or, where items carry their own length, in items.
ITEM_CREDIT_BYTES = 64 * 1024
ITEM_CREDIT_ITEMS = 16
# The outgoing data of every stream here: only the peer writes them. A list each would cost memory.
NOTHING_TO_SEND: list[bytes] = []
RECORD_BYTES = 1024  # what a stream that only has credit counts for


class MinmuxDrain:
    """The streams of one Minmux session that its peer writes.

    Args:
        session: The session; the drain becomes the reader of all its streams.
        on_stream_count: Called with +1 when a stream gets credit and -1 when it is over.
        on_change: Called when something was received that has to become durable.
    """

    def __init__(
        self,
        session: MinmuxSession,
        on_stream_count: Callable[[int], None],
        on_change: Callable[[], None],
    ) -> None:
        self._session = session
        self._on_stream_count = on_stream_count
        self._on_change = on_change
        self._credited: dict[StreamState, None] = {}  # have credit and are not over
        self._changed: dict[StreamState, None] = {}  # received something since the last sync
        session.stream_reader = self

    @property
    def has_changed(self) -> bool:
        """Whether anything was received that is not known to be durable."""
        return bool(self._changed)

    def start(self, stream_ids: list[int]) -> None:
        """Give credit on these streams, and on those that the peer has used already."""
        session = self._session
        for stream_id in stream_ids:
            state = session.protocol.get_stream(session.endpoint.side, stream_id)
            if state not in self._credited:
                self._give_first_credit(state)
        self._admit_waiting()

    def stop(self) -> None:
        """The session has ended: none of the streams is read any more."""
        self._session.stream_reader = None
        for _ in self._credited:
            self._on_stream_count(-1)
        self._credited.clear()
        self._changed.clear()

    # Called by the session

    def on_event(self, state: StreamState, event: Event) -> None:
        """The peer has begun, ended or closed a stream."""
        if isinstance(event, Opened):
            self._admit_waiting()
        elif isinstance(event, Ended) and state in self._credited:
            self._note_change(state)
        elif isinstance(event, Closed) and state in self._credited:
            del self._credited[state]
            self._changed.pop(state, None)
            state.buffers = None
            self._on_stream_count(-1)
            self._admit_waiting()
        self._count_records()

    def on_content(self, state: StreamState) -> None:
        """Content of a stream was received, and recorded: drop it."""
        if state in self._credited and state.buffers is not None:
            self._session.endpoint.take_received(state.buffers)
            self._note_change(state)

    # Called when data is durable

    def take_changed(self) -> dict[StreamState, tuple[int, bool]]:
        """Return what was received so far, for `confirm`: items by stream, and if it has ended."""
        changed, self._changed = self._changed, {}
        halves = {state: state.half(state.opener) for state in changed}
        return {state: (half.credit_spent, half.state != OPEN) for state, half in halves.items()}

    def confirm(self, durable: dict[StreamState, tuple[int, bool]]) -> None:
        """What `take_changed` returned is durable: give credit for it, and answer ends."""
        session = self._session
        if session.closed.done():
            return
        for state, (items, ended) in durable.items():
            own = state.half(1 - state.opener)
            if state not in self._credited or own.state != OPEN:
                continue
            if ended:
                session.endpoint.send_frame(stop_read(state.stream_id % U64_MODULUS))
            else:
                self._give_credit(state, items + self._initial_credit(state))
        session.schedule_flush()

    # Private helpers

    def _note_change(self, state: StreamState) -> None:
        self._changed[state] = None
        self._on_change()

    def _admit_waiting(self) -> None:
        """Give credit to streams that wait for it, while there is room."""
        session = self._session
        room = session.endpoint.limits.max_streams - len(self._credited)
        if room > 0 and session.unclaimed_streams:
            side = session.endpoint.side
            waiting = [state for state in session.unclaimed_streams if state.opener != side]
            for state in waiting[:room]:
                self._give_first_credit(state)
        self._count_records()

    def _give_first_credit(self, state: StreamState) -> None:
        session = self._session
        ended = session.unclaimed_streams.pop(state, False)
        self._credited[state] = None
        if state.buffers is not None:
            state.buffers.outgoing = NOTHING_TO_SEND
        self._on_stream_count(1)
        if not ended:
            self._give_credit(state, self._initial_credit(state))
            session.schedule_flush()
        if ended or (state.buffers is not None and state.buffers.received):
            self.on_content(state)
            self._note_change(state)

    def _initial_credit(self, state: StreamState) -> int:
        stream_format = self._session.protocol.profile.format_of(state.key)
        size = stream_format.item_size if stream_format is not None else 1
        return ITEM_CREDIT_ITEMS if size < 0 else max(1, ITEM_CREDIT_BYTES // max(1, size))

    def _give_credit(self, state: StreamState, total: int) -> None:
        """Raise the credit given so far to `total` items, as far as the writer can use it."""
        half = state.half(state.opener)
        amount = total - half.credit_granted
        if half.promised_limit >= 0:
            amount = min(amount, half.promised_limit - (half.credit_granted - half.credit_spent))
        if amount > 0 and half.state == OPEN and not state.over:
            number = state.stream_id % U64_MODULUS
            self._session.endpoint.send_frame(give_credit(number, amount))

    def _count_records(self) -> None:
        session = self._session
        session.read_backpressure.count_records(
            RECORD_BYTES * (len(self._credited) + len(session.unclaimed_streams))
        )
