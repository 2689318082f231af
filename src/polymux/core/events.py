# mypyc: compiled
"""Events of the sans-IO endpoint, and the sink interface that a connection notifies.

`Connection` calls an `EventSink` for everything that happens. An endpoint's sink (`ReceiveQueue`)
turns this into `Event` objects and stream buffers; an observer's sink writes tables, or is absent.
"""

from mypy_extensions import i64, mypyc_attr

from polymux.core.streams import StreamState


@mypyc_attr(acyclic=True)
class Event:
    """Something that happened; `stream` is None if it concerns the whole session."""

    __slots__ = ("stream",)

    def __init__(self, stream: StreamState | None) -> None:
        self.stream = stream

    def __repr__(self) -> str:
        where = self.stream.label() if self.stream is not None else "session"
        return f"{type(self).__name__}({where})"


@mypyc_attr(acyclic=True)
class Opened(Event):
    """The peer opened a stream; its name is `stream.name`."""


@mypyc_attr(acyclic=True)
class Accepted(Event):
    """The peer accepted a stream we offered."""


@mypyc_attr(acyclic=True)
class Data(Event):
    """Content arrived. `final` marks the end of a message where the protocol has messages."""

    __slots__ = ("data", "final")

    def __init__(self, stream: StreamState | None, data: bytes | memoryview, final: bool) -> None:
        super().__init__(stream)
        self.data = data
        self.final = final


@mypyc_attr(acyclic=True)
class Credit(Event):
    """The peer granted more send credit."""


@mypyc_attr(acyclic=True)
class Ended(Event):
    """The peer ended its half: no more content will arrive."""


@mypyc_attr(acyclic=True)
class Aborted(Event):
    """The peer reset, cancelled or terminated the stream; `text` is the reason it sent."""

    __slots__ = ("text",)

    def __init__(self, stream: StreamState | None, text: bytes) -> None:
        super().__init__(stream)
        self.text = text


@mypyc_attr(acyclic=True)
class Closed(Event):
    """Both halves of the stream are over."""


@mypyc_attr(acyclic=True)
class Control(Event):
    """Any other frame: handshakes, control messages, and the promises and requests of Minmux."""

    __slots__ = ("amount", "kind", "text")

    def __init__(self, stream: StreamState | None, kind: i64, amount: int, text: bytes) -> None:
        super().__init__(stream)
        self.kind: i64 = kind
        self.amount: int = amount
        self.text = text


@mypyc_attr(acyclic=True)
class Crossed(Event):
    """A frame crossed our stop in flight and was dropped; that is not a violation."""


class EventSink:
    """Is notified of what happens on the streams of a connection; this base class does nothing.

    `sender` is the side whose frame caused the notification. The fast path calls `content` only if
    `wants_content`, and `content_frame_ended` only if `wants_frame_ends`.
    """

    wants_content: bool = True
    wants_frame_ends: bool = True

    def opened(self, sender: i64, stream: StreamState) -> None:
        """`sender` opened a stream."""
        return

    def accepted(self, sender: i64, stream: StreamState) -> None:
        """`sender` accepted a stream."""
        return

    def content(
        self, sender: i64, stream: StreamState, data: bytes, start: i64, end: i64, final: bool
    ) -> None:
        """data[start:end] is content; `final`: it completes its frame."""
        return

    def content_frame_ended(
        self, sender: i64, stream: StreamState | None, frame_index: i64, timestamp: i64
    ) -> None:
        """A content frame is complete; all content since the last one was its payload."""
        return

    def granted(self, sender: i64, stream: StreamState) -> None:
        """`sender` granted credit to the other side."""
        return

    def ended(self, sender: i64, stream: StreamState) -> None:
        """`sender` ended its half."""
        return

    def aborted(self, sender: i64, stream: StreamState, text: bytes) -> None:
        """`sender` aborted the stream, with this reason."""
        return

    def closed(self, stream: StreamState) -> None:
        """Nothing more is expected on the stream."""
        return

    def control(
        self, sender: i64, stream: StreamState | None, kind: i64, amount: int, text: bytes
    ) -> None:
        """`sender` sent a frame whose effect is CONTROL."""
        return

    def crossed(self, sender: i64, stream: StreamState) -> None:
        """A frame of `sender` crossed a stop of the other side in flight."""
        return


class NullSink(EventSink):
    """Sink that ignores every notification."""

    def __init__(self) -> None:
        self.wants_content = self.wants_frame_ends = False
