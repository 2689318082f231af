# mypyc: compiled
"""Decides what an endpoint sends next: control frames first, then deficit round robin by weight.

A stream takes part while it is ready, that is while it has queued data and credit. In each round
it may send a share of `QUANTUM_BYTES` times its weight, one quantum at a time: streams with a part
of their share left follow one another, so that a large stream delays a small one by at most one
quantum each time (head-of-line blocking is bounded), whatever the weights. A stream that has used
its share goes on in the next round, which begins when no stream has any left.

- A frame that is larger than what was left of the share is paid for by the shares of later rounds.
- A share that was not used is lost, so a stream without credit or data saves up nothing.
- A stream that becomes ready joins the round that is in progress, so that a short message does not
  wait for the large ones of a whole round. The streams that join may weigh as much together as
  those the round began with (`MIN_JOINING_WEIGHT` at least); further ones are in the next round.
  So the next round always begins, however many streams are opened meanwhile.
- The only ready stream is not limited and is charged nothing.

Each visit costs the same however many streams there are, and sends a quantum or is paid for by a
large frame.

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
STREAM_SEND_BUFFER_BYTES: Final[i64] = 262144  # queued on one stream; see `lacks_room`
SESSION_SEND_BUFFER_BYTES: Final[i64] = 524288  # queued on all ready streams together
MAX_WEIGHT: Final = 256  # of a stream; the smallest is 1
MIN_JOINING_WEIGHT: Final[i64] = 64  # of the streams that may join a round in progress
MIN_CUT_BYTES: Final[i64] = 512  # a frame is not cut shorter than this to fill a quantum
ZERO_COPY_MIN_BYTES: Final[i64] = 4096  # payloads from this size on are passed on uncopied


def check_weight(weight: object) -> int:
    """Return a stream's weight; TypeError if it is not an int, ValueError if it is out of range."""
    if not isinstance(weight, int) or isinstance(weight, bool):
        raise TypeError(f"a weight is an int, not {type(weight).__name__}")
    if not 1 <= weight <= MAX_WEIGHT:
        raise ValueError(f"a weight is 1 (the default) to {MAX_WEIGHT}, not {weight}")
    return weight


class SendScheduler:
    """Encodes what one side sends. Frames that would break a rule of severity error are dropped."""

    def __init__(self, connection: Connection, side: i64) -> None:
        self.connection = connection
        self.protocol: Protocol = connection.protocol
        self.side: i64 = side
        self.control_queue: list[Frame] = []  # frames other than content, in order
        self.round_streams: list[StreamState] = []  # ready in this round, from `next_ready` on
        self.next_ready: i64 = 0
        self.next_round_streams: list[StreamState] = []  # ready, and their share is used
        self.next_round_weight: i64 = 0  # of these streams together
        self.round: i64 = 1  # number of the round
        self.joining_weight: i64 = MIN_JOINING_WEIGHT  # of the streams that may still join it
        self.ready_bytes: i64 = 0  # queued bytes of the ready streams; not of those without credit
        # Several streams wait for room: each queues no more than its `queue_grant`.
        self.contended: bool = False
        self.room_share: i64 = (
            STREAM_SEND_BUFFER_BYTES  # granted at a time, for each unit of weight
        )
        self.writer: BytesWriter = BytesWriter()
        self.chunks: list[bytes] = []  # encoded; what is in `writer` follows
        self.report_blocked: bool = False  # collect streams without credit in `blocked_streams`
        self.blocked_streams: list[StreamState] = []

    def enqueue(self, stream: StreamState, buffers: StreamBuffers, size: i64) -> None:
        """`size` bytes were appended to this stream's buffers: account for them and schedule it."""
        buffers.queued_bytes += size
        if self.contended:
            buffers.queue_grant -= size
        if buffers.scheduled:
            self.ready_bytes += size
        else:
            self.schedule(stream, buffers)

    def undo_enqueue(self, buffers: StreamBuffers, size: i64) -> None:
        """The last `size` bytes were removed from this stream's buffers again."""
        buffers.queued_bytes -= size
        if self.contended:
            buffers.queue_grant += size
        if buffers.scheduled:
            self.ready_bytes -= size

    def lacks_room(self, buffers: StreamBuffers) -> bool:
        """Whether a caller that bounds what it queues has to wait before it queues more here.

        So it is while the stream, or all streams that are ready, have enough queued; and while
        streams wait for room and this one has queued what it was granted (`grant_room`). Content
        that has no credit counts for its own stream only.
        """
        return (
            buffers.queued_bytes >= STREAM_SEND_BUFFER_BYTES
            or self.ready_bytes >= SESSION_SEND_BUFFER_BYTES
            or (self.contended and buffers.queue_grant <= 0)
        )

    def grant_room(self, buffers: StreamBuffers) -> i64:
        """Let a stream that waits queue one more share, in proportion to its weight.

        `room_time` then is later by the same for all: the stream with the earliest is next.
        The heaviest stream fills its buffer with one, unless it is heavier than 16.

        Returns:
            How many bytes it may queue now; 0 if it has queued more than it was granted before.
        """
        buffers.queue_grant += buffers.weight * self.room_share
        buffers.room_time += self.room_share
        return self.granted_room(buffers)

    def granted_room(self, buffers: StreamBuffers) -> i64:
        """How many bytes a stream may queue of what it was granted, as its own buffer allows."""
        room = STREAM_SEND_BUFFER_BYTES - buffers.queued_bytes
        if room > buffers.queue_grant:
            room = buffers.queue_grant
        return room if room > 0 else 0

    def schedule(self, stream: StreamState, buffers: StreamBuffers) -> None:
        """Make a stream ready if it has data or its end to send, and is not ready yet."""
        if not buffers.scheduled and (
            buffers.queued_bytes > 0
            or buffers.end_queued
            or buffers.next_piece < len(buffers.outgoing)
        ):
            buffers.scheduled = True
            self.ready_bytes += buffers.queued_bytes
            if buffers.round != self.round and self.joining_weight >= buffers.weight:
                self.joining_weight -= buffers.weight
                begin_share(buffers, self.round)
            self.append_ready(stream, buffers)

    def append_ready(self, stream: StreamState, buffers: StreamBuffers) -> None:
        """Put a ready stream behind those of this round, or of the next if its share is used."""
        if buffers.round == self.round and buffers.share_left >= MIN_CUT_BYTES:
            self.round_streams.append(stream)
        else:
            self.next_round_streams.append(stream)
            self.next_round_weight += buffers.weight

    def ready_count(self) -> int:
        """Number of streams that are ready, or were and have nothing left to send."""
        return len(self.round_streams) - self.next_ready + len(self.next_round_streams)

    def begin_round(self) -> None:
        """Begin the next round with the streams that wait for it."""
        self.round += 1
        self.round_streams = self.next_round_streams
        self.next_ready = 0
        self.next_round_streams = []
        self.joining_weight = (
            self.next_round_weight
            if self.next_round_weight > MIN_JOINING_WEIGHT
            else MIN_JOINING_WEIGHT
        )
        self.next_round_weight = 0

    def set_weight(self, buffers: StreamBuffers, weight: i64) -> None:
        """Change a stream's weight; it applies from the stream's next share, a smaller one now.

        Args:
            buffers: the stream's.
            weight: a number that `check_weight` has returned.
        """
        buffers.weight = weight
        if buffers.share_left > weight * QUANTUM_BYTES:
            buffers.share_left = weight * QUANTUM_BYTES
        while (
            self.room_share > QUANTUM_BYTES and weight * self.room_share > STREAM_SEND_BUFFER_BYTES
        ):
            self.room_share //= 2

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
        while encoded < room:
            if self.next_ready == len(self.round_streams):
                if len(self.next_round_streams) == 0:
                    break
                self.begin_round()
            stream = self.round_streams[self.next_ready]
            self.next_ready += 1
            buffers = stream.buffers
            if buffers is not None and stream.ending == ABANDONED:  # its id was used again
                self.discard_outgoing(buffers)
                buffers.scheduled = False
            elif buffers is not None:
                encoded += self.visit(stream, buffers, now)
            if self.next_ready > 1024:
                self.round_streams = self.round_streams[self.next_ready :]
                self.next_ready = 0
            if len(self.control_queue) > 0:
                for frame in self.control_queue:
                    self.send_frame(frame, now)
                self.control_queue.clear()
        if self.next_ready == len(self.round_streams):
            self.round_streams.clear()
            self.next_ready = 0
        if len(self.writer) > 0:
            self.chunks.append(self.writer.getvalue())
            self.writer = BytesWriter()
        chunks = self.chunks
        self.chunks = []
        return chunks

    def visit(self, stream: StreamState, buffers: StreamBuffers, now: i64) -> i64:
        """Let a ready stream send what it may before the next one; return the bytes sent."""
        if self.next_ready == len(self.round_streams) and len(self.next_round_streams) == 0:
            if buffers.share_left < 0:
                buffers.share_left = 0
            return self.run_quantum(stream, buffers, SOLE_QUANTUM_BYTES, False, now)
        if buffers.round != self.round:
            begin_share(buffers, self.round)
            if buffers.share_left < MIN_CUT_BYTES:  # it still pays for a large frame
                self.append_ready(stream, buffers)
                return 0
        quantum = buffers.share_left if buffers.share_left < QUANTUM_BYTES else QUANTUM_BYTES
        return self.run_quantum(stream, buffers, quantum, True, now)

    def run_quantum(
        self, stream: StreamState, buffers: StreamBuffers, quantum: i64, charged: bool, now: i64
    ) -> i64:
        """Send up to `quantum` bytes of one stream, frame by frame; return the bytes sent.

        With `charged` they are taken from the stream's share.
        """
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
                if charged:
                    buffers.share_left -= used
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
                buffers.outgoing[buffers.next_piece] = b""  # not kept until the queue is empty
                buffers.next_piece += 1
                buffers.piece_bytes_sent = 0
            buffers.queued_bytes -= size
            used += size
            if self.protocol.uniform_content and buffers.piece_bytes_sent == 0:
                used += self.send_content_run(stream, buffers, quantum - used, now)
            if used >= quantum:
                break
        if charged:
            buffers.share_left -= used
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
            pieces[index] = b""
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


def begin_share(buffers: StreamBuffers, round_number: i64) -> None:
    """Give a stream its share of the round, less what earlier shares did not pay for."""
    share = buffers.weight * QUANTUM_BYTES
    left = buffers.share_left
    if left >= MIN_CUT_BYTES:
        left = 0  # it had no more to send
    elif left < 0:
        left += (round_number - buffers.round - 1) * share  # of the rounds it took no part in
        if left > 0:
            left = 0
    buffers.share_left = left + share
    buffers.round = round_number
