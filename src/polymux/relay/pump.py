"""The pump: moves the content of one stream from one channel to another.

`RelayedStream` joins two channels, of the same or of different ends, with a `Pump` for each
direction. What is passed on:

- **Content**, only as much as the other channel takes. While that is full, nothing is read, so the
  sender gets no credit (or finds its socket's window closed) and waits. At most one window of
  content is held for a stream, and no other stream waits for it.
- **The end** of a direction (half-close), after its content.
- **An abort**, with its reason. It overtakes content that waits, where the protocol of the aborted
  stream discards what was not read; elsewhere it follows that content.
- **That a peer reads no more**, where the other protocol can express it. Elsewhere what comes is
  discarded.

A `Filter` can be put into a direction. It decides how much is read, and gets the content, the end
and an abort instead of the other channel, to pass them on unchanged, changed, later or never.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from polymux.core.errors import PolymuxError, StreamEnded
from polymux.relay.channels import ALL, LOST_REASON, MAX_PIECE_BYTES, Channel


class Filter:
    """Acts on one direction of a relayed stream; this base class changes nothing.

    `pump` is set before any other method is called. Methods run in the event loop and must not
    block. What a filter keeps is up to it to bound, by `read_limit`.
    """

    pump: Pump

    def read_limit(self) -> int:
        """How many bytes may be read from the sender now; ALL for no limit, 0 for none.

        Content that is not read gives its sender no credit. After returning 0, the filter calls
        `pump.resume` when that may have changed.
        """
        return ALL

    def content(self, data: bytes) -> None:
        """Content was read: one chunk, or one message where the protocol has messages."""
        self.pump.forward(data)

    def end(self) -> None:
        """The sender has ended its direction, after all its content."""
        self.pump.forward_end()

    def aborted(self, reason: str) -> None:
        """The sender has aborted the stream, or its connection was lost."""
        self.pump.forward_abort(reason)

    def closed(self) -> None:
        """The direction is over, whatever ended it: cancel timers, and forward nothing more."""


class Pump:
    """One direction of a relayed stream, from `source` to `sink`.

    Attributes:
        bytes: Content that was read from the source.
        stalled_at: Since when content waits for room in the sink (`time.monotonic`); 0: it does
            not.
        stalls: How often content had to wait.
        finished: Whether nothing more will be passed on.
    """

    __slots__ = (
        "_sink_is_read",
        "_waiting_for_room",
        "bytes",
        "filter",
        "finished",
        "relayed",
        "sink",
        "source",
        "source_ended",
        "stalled_at",
        "stalled_seconds",
        "stalls",
    )

    def __init__(
        self, relayed: RelayedStream, source: Channel, sink: Channel, filter: Filter | None
    ) -> None:
        self.relayed = relayed
        self.source = source
        self.sink = sink
        self.filter = filter
        self.bytes = 0
        self.stalls = 0
        self.stalled_at = 0.0
        self.stalled_seconds = 0.0  # in stalls that are over
        self.finished = False
        self.source_ended = False  # the filter has been told of the end
        self._waiting_for_room = False
        self._sink_is_read = True  # the sink's peer has not said that it reads no more
        if filter is not None:
            filter.pump = self

    # Moving content

    def resume(self) -> None:
        """Move what can be moved; called when a channel or the filter has changed."""
        if self.finished or self.source_ended:
            return
        source, sink, filter = self.source, self.sink, self.filter
        try:
            while source.has_unread():
                if not self._sink_is_read:
                    self.relayed.abort(source, "")
                    return
                if self._waiting_for_room or sink.is_full():
                    self._wait_for_room()
                    return
                if filter is None:
                    data = source.take(MAX_PIECE_BYTES)
                    self.bytes += len(data)
                    sink.put(data)
                    continue
                limit = filter.read_limit()
                if limit == 0:
                    return
                data = source.take(MAX_PIECE_BYTES if limit == ALL else min(limit, MAX_PIECE_BYTES))
                self.bytes += len(data)
                filter.content(data)
                if self.finished:
                    return
        except PolymuxError:
            self.on_sink_lost()
            return
        self._check_source()

    def _check_source(self) -> None:
        """Nothing is unread: pass on the end or an abort of the source, if there is one."""
        try:
            ended = self.source.at_end()
        except PolymuxError:
            reason = self.source.abort_reason
            if self.filter is not None:
                self.filter.aborted(reason)
            else:
                self.forward_abort(reason)
            return
        if ended:
            self.source_ended = True
            if self.filter is not None:
                self.filter.end()
            else:
                self.forward_end()

    def _wait_for_room(self) -> None:
        if not self._waiting_for_room:
            self._waiting_for_room = True
            self.stalls += 1
            self.stalled_at = monotonic()
            self.sink.wait_for_room()

    def on_room(self) -> None:
        """The sink may have room again, or nothing can be sent to it any more."""
        if self._waiting_for_room:
            self._waiting_for_room = False
            self.stalled_seconds += monotonic() - self.stalled_at
            self.stalled_at = 0.0
            self.resume()

    # For filters

    def forward(self, data: bytes) -> None:
        """Pass content on to the sink, whether or not it is full."""
        if not self.finished:
            try:
                self.sink.put(data)
            except PolymuxError:
                self.on_sink_lost()

    def forward_end(self) -> None:
        """End the sink's direction after what was forwarded."""
        if not self.finished:
            if self.sink.write_failure() is None:
                self.sink.end()
            self.finish()

    def forward_abort(self, reason: str) -> None:
        """Abort both channels: the sink with this reason."""
        self.relayed.abort(self.sink, reason)

    # Ending

    def on_sink_lost(self) -> None:
        """Nothing can be sent to the sink any more."""
        if self.finished or not self._sink_is_read:
            return
        other = self.relayed.other(self)
        if isinstance(self.sink.write_failure(), StreamEnded) and other is not None:
            # If the source's peer cannot be told, the stream goes on until it sends more.
            self._sink_is_read = False
            if self.source.stop_reading():
                self.finish()
            else:
                self.relayed.lose("stop_reading")
                self.resume()
        elif other is None or other.finished:
            self.relayed.abort(self.source, self.sink.abort_reason)
        else:  # its abort is passed on by the other direction, after the content before it
            self.finish()

    def finish(self) -> None:
        """Nothing more is passed on in this direction."""
        if not self.finished:
            self.finished = True
            if self.stalled_at:
                self.stalled_seconds += monotonic() - self.stalled_at
                self.stalled_at = 0.0
            if self.filter is not None:
                self.filter.closed()
            self.relayed.on_finished()

    @property
    def stall_cause(self) -> str:
        """Why content waits: the cause that the sink names; empty if none waits."""
        return self.sink.why_full() if self.stalled_at else ""


class RelayedStream:
    """A stream that is relayed: two channels, and a pump for each direction that there is.

    Args:
        near: The channel on which the stream was opened.
        far: The channel on which it was re-opened.
        name: The name it was opened with.
        on_done: Called once when both directions are over.
        on_lost: Called with the name of what could not be passed on; see `Losses`.
        one_way: Content flows from `near` to `far` only.
    """

    __slots__ = (
        "_aborting",
        "_on_done",
        "_on_lost",
        "aborted",
        "backward",
        "began",
        "far",
        "forward",
        "name",
        "near",
    )

    def __init__(
        self,
        near: Channel,
        far: Channel,
        name: bytes,
        on_done: Callable[[RelayedStream], None],
        on_lost: Callable[[str], None],
        *,
        one_way: bool = False,
        filters: tuple[Filter | None, Filter | None] = (None, None),
    ) -> None:
        self.near = near
        self.far = far
        self.name = name
        self.began = monotonic()
        self.aborted = ""  # why, if it was
        self._on_done: Callable[[RelayedStream], None] | None = on_done
        self._on_lost = on_lost
        self._aborting = False
        self.forward = Pump(self, near, far, filters[0])
        self.backward = None if one_way else Pump(self, far, near, filters[1])

    @property
    def is_stalled(self) -> bool:
        """Whether content of a direction waits for room in its sink."""
        backward = self.backward
        return self.forward.stalled_at > 0 or (backward is not None and backward.stalled_at > 0)

    @property
    def bytes_moved(self) -> int:
        """Content that was read, in both directions."""
        return self.forward.bytes + (0 if self.backward is None else self.backward.bytes)

    def start(self) -> None:
        """Begin to move content."""
        near, far = self.near, self.far
        backward = self.backward
        near.watch(self._on_near_changed, backward.on_room if backward is not None else ignore)
        far.watch(self._on_far_changed, self.forward.on_room)
        self._on_near_changed()
        if self._on_done is not None:
            self._on_far_changed()

    def other(self, pump: Pump) -> Pump | None:
        """The pump of the other direction; None if there is none."""
        return self.backward if pump is self.forward else self.forward

    def abort(self, channel: Channel, reason: str) -> None:
        """Abort a channel with this reason, and end the relayed stream."""
        if self._aborting or self._on_done is None:
            return
        self._aborting = True
        self.aborted = reason or "aborted"
        if not channel.abort(reason) and reason != LOST_REASON:
            self._on_lost("reset_reason")
        (self.far if channel is self.near else self.near).abort("")
        self.forward.finish()
        if self.backward is not None:
            self.backward.finish()

    def abort_both(self, reason: str) -> None:
        """Abort both channels with this reason; used where the relay itself is the cause."""
        if self._aborting or self._on_done is None:
            return
        self.near.abort(reason)
        self.abort(self.far, reason)

    def lose(self, what: str) -> None:
        """Count something that cannot be passed on."""
        self._on_lost(what)

    def on_finished(self) -> None:
        """A direction is over; report when both are."""
        on_done = self._on_done
        if on_done is None or not self.forward.finished:
            return
        if self.backward is not None and not self.backward.finished:
            return
        self._on_done = None
        self.near.release()
        self.far.release()
        on_done(self)

    def _on_near_changed(self) -> None:
        self._on_changed(self.forward, self.backward)

    def _on_far_changed(self) -> None:
        self._on_changed(self.backward, self.forward)

    def _on_changed(self, outward: Pump | None, inward: Pump | None) -> None:
        """A channel changed: `outward` reads from it, `inward` writes to it."""
        if outward is not None:
            outward.resume()
        if inward is not None and not inward.finished:
            failure = inward.sink.write_failure()
            if failure is not None:
                inward.on_sink_lost()


def ignore() -> None:
    """The callback of a channel that is never written."""
