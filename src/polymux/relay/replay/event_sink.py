# mypyc: compiled
"""A sink that lists what both sides of a recorded session did, in the order of the recording."""

from typing import Final

from mypy_extensions import i64

from polymux.core.events import EventSink
from polymux.core.streams import StreamState

OPENED: Final = 0
ACCEPTED: Final = 1
CONTENT: Final = 2
ENDED: Final = 3
ABORTED: Final = 4
CONTROL: Final = 5


class RecordedEvent:
    """One thing that `sender` did, at `timestamp` (nanoseconds since 1970).

    `kind` is OPENED, ACCEPTED, CONTENT, ENDED, ABORTED or CONTROL; `stream` is None for a control
    message. `data` is the name of a stream that was opened, the content of a frame, the reason of
    an abort, or a control message.
    """

    def __init__(
        self, kind: int, sender: int, stream: StreamState | None, data: bytes, timestamp: int
    ) -> None:
        self.kind = kind
        self.sender = sender
        self.stream = stream
        self.data = data
        self.timestamp = timestamp


class EventLog(EventSink):
    """Collects events in `events`; the caller sets `timestamp` before it feeds bytes.

    `control_kind` is the kind of frame that is content without a stream; -1: there is none.
    `size` counts the bytes of content and control messages.
    """

    def __init__(self, control_kind: i64) -> None:
        self.events: list[RecordedEvent] = []
        self.timestamp: int = 0
        self.size: i64 = 0
        self.control_kind: i64 = control_kind
        self.parts: tuple[list[bytes], list[bytes]] = ([], [])  # of each side's current frame

    def opened(self, sender: i64, stream: StreamState) -> None:
        self.add(OPENED, sender, stream, stream.name or b"")

    def accepted(self, sender: i64, stream: StreamState) -> None:
        self.add(ACCEPTED, sender, stream, b"")

    def content(
        self, sender: i64, stream: StreamState, data: bytes, start: i64, end: i64, final: bool
    ) -> None:
        self.parts[sender].append(data[start:end])

    def content_frame_ended(
        self, sender: i64, stream: StreamState | None, frame_index: i64, timestamp: i64
    ) -> None:
        parts = self.parts[sender]
        if stream is not None:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            self.size += len(data)
            self.add(CONTENT, sender, stream, data)
        parts.clear()

    def ended(self, sender: i64, stream: StreamState) -> None:
        self.add(ENDED, sender, stream, b"")

    def aborted(self, sender: i64, stream: StreamState, text: bytes) -> None:
        self.add(ABORTED, sender, stream, text)

    def control(
        self, sender: i64, stream: StreamState | None, kind: i64, amount: int, text: bytes
    ) -> None:
        if kind == self.control_kind:
            self.size += len(text)
            self.add(CONTROL, sender, None, text)

    def add(self, kind: int, sender: i64, stream: StreamState | None, data: bytes) -> None:
        self.events.append(RecordedEvent(kind, int(sender), stream, data, self.timestamp))
