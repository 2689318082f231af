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
    EventSink,
    Opened,
)
from polymux.core.frames import FrameHeader
from polymux.core.streams import ABORTED, StreamBuffers, StreamState

MIN_VIEW_BYTES: Final[i64] = (
    4096  # parts from here on are views of the chunk; smaller ones are copied
)


class ReceiveQueue(EventSink):
    """Mailboxes. With `direct`, content waits in each stream's lane and `ready` lists the streams
    with news, once each; otherwise content becomes `Data` events."""

    def __init__(self, side: i64, direct: bool, content_is_messages: bool = False) -> None:
        self.wants_frame_ends = False
        self.side: i64 = side
        self.direct = direct
        self.content_is_messages = (
            content_is_messages  # is content handed on message by message, empty ones too?
        )
        self.events: list[Event] = []
        self.readable_streams: list[StreamState] = []
        self.discarded_streams: list[
            StreamState
        ] = []  # whose content was dropped since the endpoint last looked
        self.unread_bytes: i64 = 0  # bytes in all lanes
        self.discarded_bytes: i64 = 0  # bytes that nobody will read
        # What the endpoint weighs after each chunk:
        self.content_parts: i64 = 0  # parts of content
        self.empty_frames: i64 = 0  # frames that brought nothing
        self.expected_control: i64 = (
            0  # control frames that are nobody's fault: a stop for every stream
        )
        self.peer_resets: i64 = 0  # streams that the peer opened and gave up
        self.peer_opens: i64 = 0
        self.max_opens_per_chunk: i64 = 0x7FFFFFFF  # in one chunk; no more are believed
        self.max_empty_per_chunk: i64 = 0x7FFFFFFF
        self.guarded_direction: Direction | None = None  # what to stop decoding past those two
        self.head: FrameHeader | None = None  # of the frame at hand

    def opened(self, sender: i64, stream: StreamState) -> None:
        if stream.buffers is None:
            stream.buffers = StreamBuffers()
        if self.expected_control < self.max_opens_per_chunk:
            self.expected_control += 1
        if sender != self.side:
            self.peer_opens += 1
            if self.peer_opens > self.max_opens_per_chunk:
                self.stop_decoding()
            self.events.append(Opened(stream))

    def stop_decoding(self) -> None:
        """Enough: each of these frames costs us more than it cost the peer."""
        if self.guarded_direction is not None:
            self.guarded_direction.decoding_stopped = True
            self.guarded_direction.stop_reason = "too many frames that only cost"

    def accepted(self, sender: i64, stream: StreamState) -> None:
        if sender != self.side:
            self.events.append(Accepted(stream))

    def content(
        self, sender: i64, stream: StreamState, data: bytes, start: i64, end: i64, final: bool
    ) -> None:
        if sender == self.side:
            return
        size = end - start
        lane = stream.buffers
        if size == 0:
            head = self.head
            if head is not None and head.credit_cost == 0:
                self.empty_frames += 1
            if (
                self.direct and not self.content_is_messages
            ):  # nothing to read, and no end of data either
                self.mark_readable(stream)
                return
        else:
            self.content_parts += 1
        if lane is None or lane.discarding or stream.half(self.side).state == ABORTED:
            self.discarded_bytes += size
            if lane is not None and lane.discarding:
                lane.unread_bytes += size
                if (
                    lane.unread_bytes == size and size > 0
                ):  # the first since the endpoint last looked
                    self.discarded_streams.append(stream)
            return
        part: bytes | memoryview
        if size == len(data):
            part = data
        elif (
            size < MIN_VIEW_BYTES or self.content_is_messages
        ):  # a message is copied once anyway, when it is read
            part = data[start:end]
        else:
            part = memoryview(data)[start:end]
        if not self.direct:
            self.events.append(Data(stream, part, final))
            return
        lane.received.append(part)
        lane.unread_bytes += size
        self.unread_bytes += size
        if not lane.marked_readable:
            lane.marked_readable = True
            self.readable_streams.append(stream)

    def mark_readable(self, stream: StreamState) -> None:
        """Something happened on a stream that a waiting reader or writer must look at."""
        lane = stream.buffers
        if self.direct and lane is not None and not lane.marked_readable:
            lane.marked_readable = True
            self.readable_streams.append(stream)

    def granted(self, sender: i64, stream: StreamState) -> None:
        if sender != self.side:
            if len(self.events) > 0:
                last = self.events[-1]
                if isinstance(last, Credit) and last.stream is stream:
                    return
            self.events.append(Credit(stream))

    def ended(self, sender: i64, stream: StreamState) -> None:
        if sender != self.side:
            if (
                self.empty_frames > 0
            ):  # the frame that ended a half was not idle; a half ends only once
                self.empty_frames -= 1
            self.events.append(Ended(stream))
            self.mark_readable(stream)

    def aborted(self, sender: i64, stream: StreamState, text: bytes) -> None:
        if sender != self.side:
            if stream.opener != self.side and stream.half(self.side).state != ABORTED:
                self.peer_resets += 1  # else it only answers our own
            self.events.append(Aborted(stream, text))
            self.mark_readable(stream)

    def closed(self, stream: StreamState) -> None:
        self.events.append(Closed(stream))

    def control(
        self, sender: i64, stream: StreamState | None, kind: i64, amount: int, text: bytes
    ) -> None:
        if sender != self.side:
            if len(text) == 0 and self.expected_control > 0:
                self.expected_control -= 1
            elif len(text) == 0:
                self.empty_frames += 1
                if self.empty_frames - self.content_parts > self.max_empty_per_chunk:
                    self.stop_decoding()
            self.events.append(Control(stream, kind, amount, text))

    def crossed(self, sender: i64, stream: StreamState) -> None:
        if sender != self.side and not self.direct:
            self.events.append(Crossed(stream))

    def take_received(self, buffers: StreamBuffers) -> list[bytes | memoryview]:
        """Everything that waits in a lane; the caller owns it."""
        parts = buffers.received
        if not buffers.discarding:
            buffers.received = []
            self.unread_bytes -= buffers.unread_bytes
            buffers.unread_bytes = 0
        return parts

    def discard(self, buffers: StreamBuffers) -> i64:
        """Nobody will read this lane: forget what waits, and whatever comes. Bytes forgotten."""
        size = buffers.unread_bytes
        if buffers.discarding:
            return 0
        buffers.received = []
        buffers.unread_bytes = 0
        buffers.discarding = True
        self.unread_bytes -= size
        self.discarded_bytes += size
        return size
