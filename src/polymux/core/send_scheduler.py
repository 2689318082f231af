# mypyc: compiled
"""Decides what an endpoint sends next: control frames first, then round robin over the streams.

A stream takes part in the round robin (it is in `ready_streams`) while it has queued data and
credit. Each time it is reached it may send one quantum; a large stream therefore delays a small one
by at most one quantum per stream (head-of-line blocking is bounded).

Frames are encoded when they are handed to the transport, never earlier. So a frame is validated
against everything received up to that moment, and content that was queued before the peer's stop is
dropped instead of being sent after it.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.connection import Connection
from polymux.core.frames import CONTENT, Frame
from polymux.core.protocol import Protocol
from polymux.core.streams import ABANDONED, NEVER, OPEN, StreamBuffers, StreamState

QUANTUM_BYTES: Final[i64] = 16384  # what a stream sends before the next one is reached
SOLE_QUANTUM_BYTES: Final[i64] = 65536  # the quantum of the only ready stream
MIN_CUT_BYTES: Final[i64] = 512  # a frame is not cut shorter than this to fill a quantum
ZERO_COPY_MIN_BYTES: Final[i64] = 16384  # payloads from this size on are passed on uncopied


class SendScheduler:
    """Encodes what one side sends. Frames that would break a rule of severity error are dropped."""

    def __init__(self, connection: Connection, side: i64) -> None:
        self.connection = connection
        self.protocol: Protocol = connection.protocol
        self.side: i64 = side
        self.control_queue: list[Frame] = []  # frames other than content, in order
        self.ready_streams: list[StreamState] = []  # the round robin, from `next_ready` on
        self.next_ready: i64 = 0
        self.ready_bytes: i64 = 0  # queued bytes of the ready streams; not of those without credit
        self.writer: BytesWriter = BytesWriter()
        self.chunks: list[bytes] = []  # encoded; what is in `writer` follows
        self.report_blocked: bool = False  # collect streams without credit in `blocked_streams`
        self.blocked_streams: list[StreamState] = []

    def enqueue(self, stream: StreamState, buffers: StreamBuffers, size: i64) -> None:
        """`size` bytes were appended to this stream's buffers: account for them and schedule it."""
        buffers.queued_bytes += size
        if buffers.scheduled:
            self.ready_bytes += size
        else:
            self.schedule(stream, buffers)

    def undo_enqueue(self, buffers: StreamBuffers, size: i64) -> None:
        """The last `size` bytes were removed from this stream's buffers again."""
        buffers.queued_bytes -= size
        if buffers.scheduled:
            self.ready_bytes -= size

    def schedule(self, stream: StreamState, buffers: StreamBuffers) -> None:
        """Make a stream ready if it has data or its end to send, and is not ready yet."""
        if not buffers.scheduled and (
            buffers.queued_bytes > 0
            or buffers.end_queued
            or buffers.next_piece < len(buffers.outgoing)
        ):
            buffers.scheduled = True
            self.ready_streams.append(stream)
            self.ready_bytes += buffers.queued_bytes

    def discard_outgoing(self, buffers: StreamBuffers) -> None:
        """Drop what is queued on this stream, its end included."""
        if buffers.scheduled:
            self.ready_bytes -= buffers.queued_bytes
        buffers.clear_outgoing()
        buffers.end_queued = False

    def flush(self, now: i64, room: i64) -> list[bytes]:
        """Encode what is to be sent next.

        Args:
            now: timestamp in nanoseconds.
            room: content bytes to encode, approximately; 0: only control frames.

        Returns:
            Chunks of bytes; the caller owns the list.
        """
        for frame in self.control_queue:
            self.send_frame(frame, now)
        self.control_queue.clear()
        encoded: i64 = 0
        while encoded < room and self.next_ready < len(self.ready_streams):
            stream = self.ready_streams[self.next_ready]
            buffers = stream.buffers
            if buffers is not None and stream.ending == ABANDONED:  # its id was used again
                self.discard_outgoing(buffers)
                buffers.scheduled = False
            elif buffers is not None:
                sole = len(self.ready_streams) - self.next_ready == 1
                encoded += self.run_quantum(
                    stream, buffers, SOLE_QUANTUM_BYTES if sole else QUANTUM_BYTES, now
                )
            self.next_ready += 1
            if self.next_ready > 1024:
                self.ready_streams = self.ready_streams[self.next_ready :]
                self.next_ready = 0
            if len(self.control_queue) > 0:
                for frame in self.control_queue:
                    self.send_frame(frame, now)
                self.control_queue.clear()
        if self.next_ready == len(self.ready_streams):
            self.ready_streams.clear()
            self.next_ready = 0
        if len(self.writer) > 0:
            self.chunks.append(self.writer.getvalue())
            self.writer = BytesWriter()
        chunks = self.chunks
        self.chunks = []
        return chunks

    def run_quantum(
        self, stream: StreamState, buffers: StreamBuffers, quantum: i64, now: i64
    ) -> i64:
        """Send up to `quantum` bytes of one stream, frame by frame; return the bytes sent."""
        used: i64 = 0
        buffers.scheduled = False
        self.ready_bytes -= buffers.queued_bytes
        while buffers.next_piece < len(buffers.outgoing):
            piece = buffers.outgoing[buffers.next_piece]
            rest = len(piece) - buffers.piece_bytes_sent
            limit = quantum - used
            if used > 0 and limit < MIN_CUT_BYTES and limit < rest:
                break
            if limit > self.protocol.max_sent_frame_bytes:
                limit = self.protocol.max_sent_frame_bytes
            last = buffers.next_piece + 1 == len(buffers.outgoing)
            if self.protocol.uniform_content:
                size = rest if rest < limit else limit
            else:
                size = self.protocol.next_frame_size(
                    self.side, stream, rest, limit, last and not buffers.end_queued
                )
            if size < 0:  # no credit: `schedule` is called when it is granted
                if self.report_blocked:
                    self.blocked_streams.append(stream)
                return used
            final = last and buffers.end_queued and size == rest
            if size == rest and buffers.piece_bytes_sent == 0:
                self.send_content(stream, piece, final, now)
            else:
                self.send_content(
                    stream,
                    piece[buffers.piece_bytes_sent : buffers.piece_bytes_sent + size],
                    final,
                    now,
                )
            buffers.piece_bytes_sent += size
            if buffers.piece_bytes_sent == len(piece):
                buffers.next_piece += 1
                buffers.piece_bytes_sent = 0
            buffers.queued_bytes -= size
            used += size
            if self.protocol.uniform_content and buffers.piece_bytes_sent == 0:
                used += self.send_content_run(stream, buffers, quantum - used, now)
            if used >= quantum:
                break
        if buffers.next_piece < len(buffers.outgoing):
            if buffers.next_piece > 4096:
                buffers.outgoing = buffers.outgoing[buffers.next_piece :]
                buffers.next_piece = 0
            self.schedule(stream, buffers)
        else:
            buffers.outgoing.clear()
            buffers.next_piece = 0
            if buffers.end_queued:
                buffers.end_queued = False
                if stream.half(self.side).state == OPEN:
                    frame = self.protocol.end_frame(self.side, stream)
                    if frame is not None:
                        if frame.incarnation < 0:
                            frame.incarnation = stream.incarnation
                        self.send_frame(frame, now)
        return used

    def send_content(self, stream: StreamState, data: bytes, final: bool, now: i64) -> None:
        """Send one content frame; drop it if it breaks a rule."""
        if not self.connection.send_content(self.side, stream, len(data), final, self.writer, now):
            return
        if len(data) >= ZERO_COPY_MIN_BYTES:
            self.chunks.append(self.writer.getvalue())
            self.writer = BytesWriter()
            self.chunks.append(data)
        else:
            self.writer.write(data)

    def send_content_run(
        self, stream: StreamState, buffers: StreamBuffers, room: i64, now: i64
    ) -> i64:
        """Send more complete pieces of a stream right after a content frame of it.

        Where the protocol says that uniform content is as valid as the frame before it, these
        frames are not validated one by one, which makes small messages several times as fast.

        Returns:
            The bytes sent; 0 if the stream does not qualify.
        """
        if stream.incarnation > 1 or stream.dialer.state != OPEN or stream.acceptor.state != OPEN:
            return 0
        p = self.protocol
        head = self.connection.head
        max_size = (
            p.max_sent_frame_bytes
            if p.max_sent_frame_bytes < ZERO_COPY_MIN_BYTES
            else ZERO_COPY_MIN_BYTES - 1
        )
        pieces = buffers.outgoing
        first = buffers.next_piece
        index = first
        used: i64 = 0
        while index < len(pieces):
            piece = pieces[index]
            size: i64 = len(piece)
            if size > max_size or size > room - used:
                break
            head.payload_size = size
            p.encode_frame(self.writer, self.side, head, b"")
            self.writer.write(piece)
            used += size
            index += 1
        if index > first:
            buffers.next_piece = index
            buffers.queued_bytes -= used
            half = stream.half(self.side)
            half.frames += index - first
            p.causality.record_sent(self.side, index - first)
            self.connection.count_content(half, used, used, now)
        return used

    def send_frame(self, frame: Frame, now: i64) -> bool:
        """Validate, encode and apply a frame. False: it is obsolete and was dropped."""
        p = self.protocol
        c = self.connection
        if c.validate_outgoing(self.side, frame, len(frame.payload)) & p.error_mask:
            return False
        stream = p.streams.find(frame.key)
        if frame.incarnation >= 0 and frame.incarnation != (
            stream.incarnation if stream is not None else 0
        ):
            return False  # meant for an earlier use of the id
        if stream is not None and stream.half(1 - self.side).last_frame_index != NEVER:
            # The peer has sent its last frame on this stream: only our own last may follow.
            last = p.abort_frame(self.side, stream, b"")
            if last is None or frame.kind != last.kind:
                return False
        self.write_validated_frame(frame, now)
        return True

    def write_validated_frame(self, frame: Frame, now: i64) -> None:
        """Encode and apply the frame last given to `validate_outgoing`, whatever it breaks."""
        p = self.protocol
        p.encode_frame(self.writer, self.side, self.connection.head, frame.payload)
        if p.effects[frame.kind] == CONTENT:
            self.writer.write(frame.payload)
        self.connection.apply_outgoing(self.side, frame.payload, now)
