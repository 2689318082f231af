# mypyc: compiled
"""The sink of an endpoint: queues received content on its stream, and everything else as events."""

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
from polymux.core.limits import MAX_LIMIT
from polymux.core.side import DIALER
from polymux.core.streams import ABORTED, PART_BYTES, StreamBuffers, StreamState

MIN_VIEW_BYTES: Final[i64] = 4096  # larger parts of a chunk are views of it, smaller ones copies
# `compact` copies a view of a chunk this many times its size, and joins parts smaller than these.
MAX_VIEW_WASTE: Final[i64] = 4
SMALL_PART_BYTES: Final[i64] = 512


class ReceiveQueue(EventSink):
    """What a peer's bytes have brought and the application has not taken yet.

    Args:
        side: the endpoint's own side.
        direct: content is appended to the stream's `StreamBuffers.received`, and the stream is
            listed once in `readable_streams`; otherwise content becomes `Data` events.
        content_is_messages: content is delivered message by message, empty ones included.
    """

    def __init__(self, side: i64, direct: bool, content_is_messages: bool = False) -> None:
        self.wants_frame_ends = False
        self.side: i64 = side
        self.direct = direct
        self.content_is_messages = content_is_messages
        self.events: list[Event] = []
        self.readable_streams: list[StreamState] = []
        # Streams whose content was discarded since the endpoint last took this list:
        self.discarded_streams: list[StreamState] = []
        self.unread_bytes: i64 = 0  # of all streams
        # Memory of what is unread: its bytes, and `PART_BYTES` for each part.
        self.held_bytes: i64 = 0
        self.held_threshold: i64 = 0  # with more held than this, the session has to act
        self.window_bytes: i64 = 0  # of the windows that the peer has on open streams
        self.discarded_bytes: i64 = 0  # received, and never to be read
        # In the chunk being received:
        self.content_parts: i64 = 0  # parts of content
        self.empty_frames: i64 = 0  # frames without content
        self.peer_resets: i64 = 0  # streams that the peer opened and aborted
        self.peer_opens: i64 = 0
        # Control frames that are part of normal use: one stop for every stream. Not per chunk.
        self.expected_control: i64 = 0
        # A chunk with more than this is not decoded further:
        self.max_opens_per_chunk: i64 = 0x7FFFFFFF
        self.max_empty_per_chunk: i64 = 0x7FFFFFFF
        self.guarded_direction: Direction | None = None  # the peer's
        self.head: FrameHeader | None = None  # of the current frame

    @property
    def unread_parts(self) -> i64:
        """The parts of what is unread, of all streams."""
        return (self.held_bytes - self.unread_bytes) // PART_BYTES

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
        else:
            self.count_window(stream)

    def stop_decoding(self) -> None:
        """Stop decoding the chunk: each of these frames costs us more than it costs the peer."""
        if self.guarded_direction is not None:
            self.guarded_direction.decoding_stopped = True
            self.guarded_direction.stop_reason = "too many frames without content in one chunk"

    def accepted(self, sender: i64, stream: StreamState) -> None:
        if sender != self.side:
            self.events.append(Accepted(stream))
        else:
            self.count_window(stream)

    def content(
        self, sender: i64, stream: StreamState, data: bytes, start: i64, end: i64, final: bool
    ) -> None:
        if sender == self.side:
            return
        size = end - start
        buffers = stream.buffers
        if size == 0:
            head = self.head
            if head is not None and head.credit_cost == 0:
                self.empty_frames += 1
            if self.direct and not self.content_is_messages:  # nothing to read
                self.mark_readable(stream)
                return
        else:
            self.content_parts += 1
        own = stream.dialer if self.side == DIALER else stream.acceptor
        if buffers is None or buffers.discarding or own.state == ABORTED:
            self.discarded_bytes += size
            if buffers is not None and buffers.discarding:
                buffers.unread_bytes += size
                if buffers.unread_bytes == size and size > 0:  # not in the list yet
                    self.discarded_streams.append(stream)
            return
        part: bytes | memoryview
        if size == len(data):
            part = data
        elif size < MIN_VIEW_BYTES or self.content_is_messages:  # messages become bytes anyway
            part = data[start:end]
        else:
            part = memoryview(data)[start:end]
        if not self.direct:
            self.events.append(Data(stream, part, final))
            return
        buffers.received.append(part)
        buffers.unread_bytes += size
        self.unread_bytes += size
        if size > 0:  # an empty message costs nothing
            buffers.unread_parts += 1
            self.held_bytes += size + PART_BYTES
        if not buffers.marked_readable:
            buffers.marked_readable = True
            self.readable_streams.append(stream)

    def mark_readable(self, stream: StreamState) -> None:
        """List a stream on which a waiting reader or writer has to be woken."""
        buffers = stream.buffers
        if self.direct and buffers is not None and not buffers.marked_readable:
            buffers.marked_readable = True
            self.readable_streams.append(stream)

    def granted(self, sender: i64, stream: StreamState) -> None:
        if sender != self.side:
            if len(self.events) > 0:
                last = self.events[-1]
                if isinstance(last, Credit) and last.stream is stream:
                    return
            self.events.append(Credit(stream))
        else:
            self.count_window(stream)

    def count_window(self, stream: StreamState) -> None:
        """Count the window that this side has announced on a stream, or its growth."""
        buffers = stream.buffers
        window = stream.half(1 - self.side).window
        if buffers is not None and window > buffers.counted_window:
            self.set_window(buffers, window)

    def set_window(self, buffers: StreamBuffers, window: int) -> None:
        """Count `window` bytes as what the peer may send on a stream."""
        counted: i64 = min(window, MAX_LIMIT)
        self.window_bytes += counted - buffers.counted_window
        buffers.counted_window = counted

    def ended(self, sender: i64, stream: StreamState) -> None:
        if sender != self.side:
            if self.empty_frames > 0:  # the empty frame ended a half, which happens only once
                self.empty_frames -= 1
            if stream.buffers is not None:
                stream.buffers.all_received = True
            self.events.append(Ended(stream))
            self.mark_readable(stream)

    def aborted(self, sender: i64, stream: StreamState, text: bytes) -> None:
        if sender != self.side:
            if stream.opener != self.side and stream.half(self.side).state != ABORTED:
                self.peer_resets += 1  # otherwise it answers our abort
            self.events.append(Aborted(stream, text))
            self.mark_readable(stream)

    def closed(self, stream: StreamState) -> None:
        buffers = stream.buffers
        if buffers is not None:
            self.window_bytes -= buffers.counted_window
            buffers.counted_window = 0
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

    def compact(self, buffers: StreamBuffers) -> None:
        """Join unread parts that hold much more memory than they have bytes.

        These are views of a small part of a chunk, which keep the whole chunk, and runs of small
        parts. Messages are left as they are: each is one part.
        """
        if self.content_is_messages or len(buffers.received) == 0:
            return
        kept: list[bytes | memoryview] = []
        wasteful: list[bytes | memoryview] = []
        for part in buffers.received:
            if isinstance(part, bytes):
                is_wasteful = len(part) < SMALL_PART_BYTES
            else:
                is_wasteful = len(part) * MAX_VIEW_WASTE < memoryview(part.obj).nbytes
            if is_wasteful:
                wasteful.append(part)
                continue
            if len(wasteful) > 0:
                kept.append(b"".join(wasteful))
                wasteful = []
            kept.append(part)
        if len(wasteful) > 0:
            kept.append(b"".join(wasteful))
        self.replace_received(buffers, kept)

    def replace_received(self, buffers: StreamBuffers, parts: list[bytes | memoryview]) -> None:
        """Let the unread content of a stream be in other parts."""
        buffers.received = parts
        if buffers.unread_bytes > 0:  # else it is not counted: the stream is over
            change: i64 = len(parts) - buffers.unread_parts
            buffers.unread_parts += change
            self.held_bytes += change * PART_BYTES

    def count_taken(self, buffers: StreamBuffers, size: i64, parts: i64) -> None:
        """Count bytes and parts that were removed from `received` of a stream."""
        if buffers.unread_bytes > 0:  # else they were not counted: the stream is over
            buffers.unread_bytes -= size
            buffers.unread_parts -= parts
            self.unread_bytes -= size
            self.held_bytes -= size + parts * PART_BYTES

    def count_returned(self, buffers: StreamBuffers, size: i64, parts: i64) -> None:
        """Count bytes and parts that were returned to `received` of a stream."""
        buffers.unread_bytes += size
        buffers.unread_parts += parts
        self.unread_bytes += size
        self.held_bytes += size + parts * PART_BYTES

    def take_received(self, buffers: StreamBuffers) -> list[bytes | memoryview]:
        """Remove and return all unread parts of a stream; the caller owns the list."""
        parts = buffers.received
        if not buffers.discarding:
            buffers.received = []
            self.unread_bytes -= buffers.unread_bytes
            self.held_bytes -= buffers.unread_bytes + buffers.unread_parts * PART_BYTES
            buffers.unread_bytes = 0
            buffers.unread_parts = 0
        return parts

    def discard(self, buffers: StreamBuffers) -> i64:
        """Drop the unread parts of a stream and all that will arrive; return the bytes dropped."""
        size = buffers.unread_bytes
        if buffers.discarding:
            return 0
        self.held_bytes -= buffers.unread_bytes + buffers.unread_parts * PART_BYTES
        buffers.received = []
        buffers.unread_bytes = 0
        buffers.unread_parts = 0
        buffers.discarding = True
        self.unread_bytes -= size
        self.discarded_bytes += size
        return size
