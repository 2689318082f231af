# mypyc: compiled
"""What is to go: answers first, then fair turns between the streams that have data and leave.

Frames are formed when they leave, never before: nothing formed before a stop leaves after it.
While several streams have data, none puts more than 16 KiB into a frame.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.connection import Connection
from polymux.core.frames import CONTENT, Frame
from polymux.core.protocol import Protocol
from polymux.core.streams import ABANDONED, NEVER, OPEN, StreamBuffers, StreamState

QUANTUM_BYTES: Final[i64] = 16384  # bytes a stream may send before it is another's turn
SOLE_QUANTUM_BYTES: Final[i64] = 65536  # and while no other stream wants to send
ZERO_COPY_MIN_BYTES: Final[i64] = (
    16384  # payloads from here on are handed out beside their header, not copied
)


class SendScheduler:
    """Forms the bytes of one side. Sends nothing that breaks a rule of severity error."""

    def __init__(self, connection: Connection, side: i64) -> None:
        self.connection = connection
        self.protocol: Protocol = connection.protocol
        self.side: i64 = side
        self.control_queue: list[Frame] = []
        self.ready_streams: list[StreamState] = []
        self.next_ready: i64 = 0  # whose turn it is in `turns`
        self.ready_bytes: i64 = 0  # bytes that wait for their turn; not those that wait for leave
        self.writer: BytesWriter = BytesWriter()
        self.chunks: list[bytes] = []
        self.obsolete_frames: i64 = 0  # answers dropped because they had become pointless
        self.report_blocked: bool = False  # does somebody want to know who has no leave left?
        self.blocked_streams: list[StreamState] = []

    def enqueue(self, stream: StreamState, buffers: StreamBuffers, size: i64) -> None:
        """`size` more bytes have been put into this stream's lane."""
        buffers.queued_bytes += size
        if buffers.scheduled:
            self.ready_bytes += size
        else:
            self.schedule(stream, buffers)

    def undo_enqueue(self, buffers: StreamBuffers, size: i64) -> None:
        """The last `size` bytes of this stream's lane were taken out again."""
        buffers.queued_bytes -= size
        if buffers.scheduled:
            self.ready_bytes -= size

    def schedule(self, stream: StreamState, buffers: StreamBuffers) -> None:
        """This stream has something to send, or may send again."""
        if not buffers.scheduled and (
            buffers.queued_bytes > 0
            or buffers.end_queued
            or buffers.next_piece < len(buffers.outgoing)
        ):
            buffers.scheduled = True
            self.ready_streams.append(stream)
            self.ready_bytes += buffers.queued_bytes

    def discard_outgoing(self, buffers: StreamBuffers) -> None:
        """Forget what this stream had to send."""
        if buffers.scheduled:
            self.ready_bytes -= buffers.queued_bytes
        buffers.clear_outgoing()
        buffers.end_queued = False

    def flush(self, now: i64, room: i64) -> list[bytes]:
        """The next bytes to send, about `room` of them; the caller owns the list."""
        for frame in self.control_queue:
            self.send_frame(frame, now)
        self.control_queue.clear()
        made: i64 = 0
        while made < room and self.next_ready < len(self.ready_streams):
            stream = self.ready_streams[self.next_ready]
            lane = stream.buffers
            if lane is not None and stream.ending == ABANDONED:  # its id belongs to another
                self.discard_outgoing(lane)
                lane.scheduled = False
            elif lane is not None:  # else it has been forgotten meanwhile
                alone = len(self.ready_streams) - self.next_ready == 1
                made += self.run_quantum(
                    stream, lane, SOLE_QUANTUM_BYTES if alone else QUANTUM_BYTES, now
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
        """One stream's turn: up to `quantum` bytes, frame by frame; returns what it used."""
        used: i64 = 0
        buffers.scheduled = False
        self.ready_bytes -= buffers.queued_bytes
        while buffers.next_piece < len(buffers.outgoing):
            piece = buffers.outgoing[buffers.next_piece]
            rest = len(piece) - buffers.piece_bytes_sent
            limit = quantum - used
            if limit > self.protocol.max_sent_frame_bytes:
                limit = self.protocol.max_sent_frame_bytes
            last = buffers.next_piece + 1 == len(buffers.outgoing)
            size = self.protocol.next_frame_size(
                self.side, stream, rest, limit, last and not buffers.end_queued
            )
            if size < 0:  # no leave: `add` is called again when some comes
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
        """Judge, write and apply one frame of content."""
        p = self.protocol
        c = self.connection
        head = c.head
        head.clear()
        head.key = stream.key
        head.stream_id = stream.stream_id
        head.opener = stream.opener
        head.payload_size = len(data)
        p.fill_content_header(self.side, stream, head, final)
        p.causality.snapshot_seen(self.side)
        if p.validate(self.side, head, stream) & p.error_mask:
            self.obsolete_frames += 1
            return
        p.encode_frame(self.writer, self.side, head, b"")
        if head.payload_size >= ZERO_COPY_MIN_BYTES:
            self.chunks.append(self.writer.getvalue())
            self.writer = BytesWriter()
            self.chunks.append(data)
        else:
            self.writer.write(data)
        c.state_before = stream.half(self.side).state
        p.reset_frame_state()
        p.apply(self.side, head, stream, now)
        p.causality.record_sent(self.side)
        if stream.serial < 0:
            c.register_stream(self.side, stream, now)
        half = stream.half(self.side)
        half.frames += 1
        c.count_content(half, head.payload_size, head.credit_cost, now)
        if half.state != c.state_before:
            c.finish_frame(self.side, stream, b"", now)

    def send_content_run(
        self, stream: StreamState, buffers: StreamBuffers, room: i64, now: i64
    ) -> i64:
        """More whole pieces of the stream that has just spoken, judged by its last frame."""
        if stream.incarnation > 1 or stream.dialer.state != OPEN or stream.acceptor.state != OPEN:
            return 0
        p = self.protocol
        head = self.connection.head
        most = (
            p.max_sent_frame_bytes
            if p.max_sent_frame_bytes < ZERO_COPY_MIN_BYTES
            else ZERO_COPY_MIN_BYTES - 1
        )
        pieces = buffers.outgoing
        first = buffers.next_piece
        place = first
        used: i64 = 0
        while place < len(pieces):
            piece = pieces[place]
            size: i64 = len(piece)
            if size > most or size > room - used:
                break
            head.payload_size = size
            p.encode_frame(self.writer, self.side, head, b"")
            self.writer.write(piece)
            used += size
            place += 1
        if place > first:
            buffers.next_piece = place
            buffers.queued_bytes -= used
            half = stream.half(self.side)
            half.frames += place - first
            p.causality.record_sent(self.side, place - first)
            self.connection.count_content(half, used, used, now)
        return used

    def send_frame(self, frame: Frame, now: i64) -> bool:
        """Judge, write and apply one whole frame; False if it has become pointless."""
        p = self.protocol
        c = self.connection
        verdict = c.validate_outgoing(self.side, frame, len(frame.payload))
        if verdict & p.error_mask:
            self.obsolete_frames += 1
            return False
        stream = p.streams.find(frame.key)
        if frame.incarnation >= 0 and frame.incarnation != (
            stream.incarnation if stream is not None else 0
        ):
            self.obsolete_frames += 1  # meant for an earlier use of the id
            return False
        if stream is not None and stream.half(1 - self.side).last_frame_index != NEVER:
            # The peer said that nothing more may follow but our own last word.
            last = p.abort_frame(self.side, stream, b"")
            if last is None or frame.kind != last.kind:
                self.obsolete_frames += 1
                return False
        self.write_validated_frame(frame, now)
        return True

    def write_validated_frame(self, frame: Frame, now: i64) -> None:
        """Write and apply the frame that was judged last, whatever was said of it."""
        p = self.protocol
        p.encode_frame(self.writer, self.side, self.connection.head, frame.payload)
        if p.effects[frame.kind] == CONTENT:
            self.writer.write(frame.payload)
        self.connection.apply_outgoing(self.side, frame.payload, now)
