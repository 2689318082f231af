# mypyc: compiled
"""What happened, as a caller of the sans-IO endpoint sees it.

`Sink` is where a conversation reports what passes; an endpoint turns it into events and mailboxes,
an observer into content rows, or into nothing.
"""

from mypy_extensions import i64, mypyc_attr

from polymux.core.streams import StreamState


@mypyc_attr(acyclic=True)
class Event:
    """Something that happened; `stream` is None when it concerns the whole session."""

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
    """Content came. `final` marks the end of a message where the protocol has messages."""

    __slots__ = ("data", "final")

    def __init__(self, stream: StreamState | None, data: bytes | memoryview, final: bool) -> None:
        super().__init__(stream)
        self.data = data
        self.final = final


@mypyc_attr(acyclic=True)
class Credit(Event):
    """The peer gave leave to send more."""


@mypyc_attr(acyclic=True)
class Ended(Event):
    """The peer ended its half: no more content will come."""


@mypyc_attr(acyclic=True)
class Aborted(Event):
    """The peer reset, cancelled or terminated the stream; `text` is what it said."""

    __slots__ = ("text",)

    def __init__(self, stream: StreamState | None, text: bytes) -> None:
        super().__init__(stream)
        self.text = text


@mypyc_attr(acyclic=True)
class Closed(Event):
    """Both halves are over."""


@mypyc_attr(acyclic=True)
class Control(Event):
    """Any other frame: handshakes, control messages, promises and wishes."""

    __slots__ = ("amount", "kind", "text")

    def __init__(self, stream: StreamState | None, kind: i64, amount: int, text: bytes) -> None:
        super().__init__(stream)
        self.kind: i64 = kind
        self.amount: int = amount
        self.text = text


@mypyc_attr(acyclic=True)
class Crossed(Event):
    """A frame crossed our stop in flight and was dropped; nobody did wrong."""


class EventSink:
    """Told of everything that passes; does nothing itself.

    `reading`: it wants the content of frames; `marking`: and to know where each of them ends.
    """

    wants_content: bool = True
    wants_frame_ends: bool = True

    def opened(self, sender: i64, stream: StreamState) -> None:
        return

    def accepted(self, sender: i64, stream: StreamState) -> None:
        return

    def content(
        self, sender: i64, stream: StreamState, data: bytes, start: i64, end: i64, final: bool
    ) -> None:
        return

    def content_frame_ended(
        self, sender: i64, stream: StreamState | None, frame_index: i64, timestamp: i64
    ) -> None:
        """A content frame is whole; everything since the last one was its payload."""
        return

    def granted(self, sender: i64, stream: StreamState) -> None:
        return

    def ended(self, sender: i64, stream: StreamState) -> None:
        return

    def aborted(self, sender: i64, stream: StreamState, text: bytes) -> None:
        return

    def closed(self, stream: StreamState) -> None:
        return

    def control(
        self, sender: i64, stream: StreamState | None, kind: i64, amount: int, text: bytes
    ) -> None:
        return

    def crossed(self, sender: i64, stream: StreamState) -> None:
        return


class NullSink(EventSink):
    """Nobody wants to hear anything."""

    def __init__(self) -> None:
        self.wants_content = self.wants_frame_ends = False
