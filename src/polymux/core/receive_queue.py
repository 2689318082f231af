# mypyc: compiled
"""Where an endpoint puts what came: content into its stream's lane, all else into events."""

from typing import Final

from mypy_extensions import i64

from polymux.core.direction import Direction
from polymux.core.events import (
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
)
from polymux.core.frames import Head
from polymux.core.streams import ABORTED, Lane, Stream

VIEWED: Final[i64] = 4096  # parts from here on are views of the chunk; smaller ones are copied


class Inbox(Sink):
    """Mailboxes. With `direct`, content waits in each stream's lane and `ready` lists the streams
    with news, once each; otherwise content becomes `Data` events."""

    def __init__(self, side: i64, direct: bool, messages: bool = False) -> None:
        self.marking = False
        self.side: i64 = side
        self.direct = direct
        self.messages = messages  # is content handed on message by message, empty ones too?
        self.events: list[Event] = []
        self.ready: list[Stream] = []
        self.shed: list[Stream] = []  # whose content was dropped since the endpoint last looked
        self.unread: i64 = 0  # octets in all lanes
        self.dropped: i64 = 0  # octets that nobody will read
        # What the endpoint weighs after each chunk:
        self.parts: i64 = 0  # parts of content
        self.idle: i64 = 0  # frames that brought nothing
        self.due: i64 = 0  # control frames that are nobody's fault: a stop for every stream
        self.resets: i64 = 0  # streams that the peer opened and gave up
        self.openings: i64 = 0
        self.most_openings: i64 = 0x7FFFFFFF  # in one chunk; no more are believed
        self.most_idle: i64 = 0x7FFFFFFF
        self.stopped: Direction | None = None  # what to stop decoding past those two
        self.head: Head | None = None  # of the frame at hand

    def opened(self, sender: i64, stream: Stream) -> None:
        if stream.lane is None:
            stream.lane = Lane()
        if self.due < self.most_openings:
            self.due += 1
        if sender != self.side:
            self.openings += 1
            if self.openings > self.most_openings:
                self.stop()
            self.events.append(Opened(stream))

    def stop(self) -> None:
        """Enough: each of these frames costs us more than it cost the peer."""
        if self.stopped is not None:
            self.stopped.lost = True
            self.stopped.reason = "too many frames that only cost"

    def accepted(self, sender: i64, stream: Stream) -> None:
        if sender != self.side:
            self.events.append(Accepted(stream))

    def content(
        self, sender: i64, stream: Stream, data: bytes, start: i64, end: i64, final: bool
    ) -> None:
        if sender == self.side:
            return
        size = end - start
        lane = stream.lane
        if size == 0:
            head = self.head
            if head is not None and head.units == 0:
                self.idle += 1
            if self.direct and not self.messages:  # nothing to read, and no end of data either
                self.note(stream)
                return
        else:
            self.parts += 1
        if lane is None or lane.dropped or stream.half(self.side).state == ABORTED:
            self.dropped += size
            if lane is not None and lane.dropped:
                lane.unread += size
                if lane.unread == size and size > 0:  # the first since the endpoint last looked
                    self.shed.append(stream)
            return
        part: bytes | memoryview
        if size == len(data):
            part = data
        elif size < VIEWED or self.messages:  # a message is copied once anyway, when it is read
            part = data[start:end]
        else:
            part = memoryview(data)[start:end]
        if not self.direct:
            self.events.append(Data(stream, part, final))
            return
        lane.inbox.append(part)
        lane.unread += size
        self.unread += size
        if not lane.noted:
            lane.noted = True
            self.ready.append(stream)

    def note(self, stream: Stream) -> None:
        """Something happened on a stream that a waiting reader or writer must look at."""
        lane = stream.lane
        if self.direct and lane is not None and not lane.noted:
            lane.noted = True
            self.ready.append(stream)

    def granted(self, sender: i64, stream: Stream) -> None:
        if sender != self.side:
            if len(self.events) > 0:
                last = self.events[-1]
                if isinstance(last, Credit) and last.stream is stream:
                    return
            self.events.append(Credit(stream))

    def ended(self, sender: i64, stream: Stream) -> None:
        if sender != self.side:
            if self.idle > 0:  # the frame that ended a half was not idle; a half ends only once
                self.idle -= 1
            self.events.append(Ended(stream))
            self.note(stream)

    def aborted(self, sender: i64, stream: Stream, text: bytes) -> None:
        if sender != self.side:
            if stream.opener != self.side and stream.half(self.side).state != ABORTED:
                self.resets += 1  # else it only answers our own
            self.events.append(Aborted(stream, text))
            self.note(stream)

    def closed(self, stream: Stream) -> None:
        self.events.append(Closed(stream))

    def control(
        self, sender: i64, stream: Stream | None, kind: i64, amount: int, text: bytes
    ) -> None:
        if sender != self.side:
            if len(text) == 0 and self.due > 0:
                self.due -= 1
            elif len(text) == 0:
                self.idle += 1
                if self.idle - self.parts > self.most_idle:
                    self.stop()
            self.events.append(Control(stream, kind, amount, text))

    def crossed(self, sender: i64, stream: Stream) -> None:
        if sender != self.side and not self.direct:
            self.events.append(Crossed(stream))

    def take(self, lane: Lane) -> list[bytes | memoryview]:
        """Everything that waits in a lane; the caller owns it."""
        parts = lane.inbox
        if not lane.dropped:
            lane.inbox = []
            self.unread -= lane.unread
            lane.unread = 0
        return parts

    def drop(self, lane: Lane) -> i64:
        """Nobody will read this lane: forget what waits, and whatever comes. Octets forgotten."""
        size = lane.unread
        if lane.dropped:
            return 0
        lane.inbox = []
        lane.unread = 0
        lane.dropped = True
        self.unread -= size
        self.dropped += size
        return size
