"""Where an endpoint puts what came: content into its stream's lane, all else into events."""

from typing import Final

from mypy_extensions import i64

from .events import (
    Aborted,
    Accepted,
    Closed,
    Control,
    Credit,
    Crossed,
    Data,
    Ended,
    Event,
    Opened,
    Sink,
)  # fmt: skip
from .streams import ABORTED, Lane, Stream

VIEWED: Final[i64] = 4096  # parts from here on are views of the chunk; smaller ones are copied


class Inbox(Sink):
    """Mailboxes. With `direct`, content waits in each stream's lane and `ready` lists the lanes
    with news, once each; otherwise content becomes `Data` events."""

    def __init__(self, side: i64, direct: bool) -> None:
        self.side: i64 = side
        self.direct = direct
        self.events: list[Event] = []
        self.ready: list[Lane] = []
        self.unread: i64 = 0  # octets in all lanes
        self.dropped: i64 = 0  # octets that nobody will read

    def opened(self, sender: i64, stream: Stream) -> None:
        if stream.lane is None:
            stream.lane = Lane(stream)
        if sender != self.side:
            self.events.append(Opened(stream))

    def accepted(self, sender: i64, stream: Stream) -> None:
        if sender != self.side:
            self.events.append(Accepted(stream))

    def content(
        self, sender: i64, stream: Stream, data: bytes, start: i64, end: i64, final: bool
    ) -> None:
        if sender == self.side:
            return
        lane = stream.lane
        if lane is None or lane.dropped or stream.half(self.side).state == ABORTED:
            self.dropped += end - start
            return
        part: bytes | memoryview
        if end - start < VIEWED:
            part = data[start:end]
        else:
            part = memoryview(data)[start:end]
        if not self.direct:
            self.events.append(Data(stream, part, final))
            return
        lane.inbox.append(part)
        lane.unread += end - start
        self.unread += end - start
        if not lane.noted:
            lane.noted = True
            self.ready.append(lane)

    def note(self, stream: Stream) -> None:
        """Something happened on a stream that a waiting reader or writer must look at."""
        lane = stream.lane
        if self.direct and lane is not None and not lane.noted:
            lane.noted = True
            self.ready.append(lane)

    def granted(self, sender: i64, stream: Stream) -> None:
        if sender != self.side:
            self.events.append(Credit(stream))

    def ended(self, sender: i64, stream: Stream) -> None:
        if sender != self.side:
            self.events.append(Ended(stream))
            self.note(stream)

    def aborted(self, sender: i64, stream: Stream, text: bytes) -> None:
        if sender != self.side:
            self.events.append(Aborted(stream, text))
            self.note(stream)

    def closed(self, stream: Stream) -> None:
        self.events.append(Closed(stream))

    def control(
        self, sender: i64, stream: Stream | None, kind: i64, amount: int, text: bytes
    ) -> None:
        if sender != self.side:
            self.events.append(Control(stream, kind, amount, text))

    def crossed(self, sender: i64, stream: Stream) -> None:
        if sender != self.side:
            self.events.append(Crossed(stream))

    def take(self, lane: Lane) -> list[bytes | memoryview]:
        """Everything that waits in a lane; the caller owns it."""
        parts = lane.inbox
        lane.inbox = []
        self.unread -= lane.unread
        lane.unread = 0
        return parts
