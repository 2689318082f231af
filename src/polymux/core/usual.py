# mypyc: compiled
"""The usual frame, by the short way: whole content, on a known stream, that breaks nothing.

Nearly every frame is one. `Usual.usual` takes them in one loop, with all that does not change from
frame to frame in locals, and leaves the first frame that is different to the long way
(`Conversation.frame`), which would have done the same with those before it.
"""

from typing import Final

from mypy_extensions import i64, u8

from polymux.core.direction import Direction
from polymux.core.events import EventSink, NullSink
from polymux.core.frames import CLEAN_ROW, CONTENT, FrameHeader, FrameRowBatches, FrameRows
from polymux.core.proceedings import Proceedings
from polymux.core.protocol import NO_STREAM, Protocol
from polymux.core.side import DIALER
from polymux.core.streams import NEVER, NOT_YET, OPEN, StreamState
from polymux.core.varint import clamp_to_i64

UNBOXED_INT_LIMIT: Final = (
    0x1000000000000000  # the largest amount that is compared without allocating
)


class Usual(Proceedings):
    """Proceedings that can take many frames at once. Rows go to `rows`, if somebody wants them."""

    def __init__(
        self, protocol: Protocol, sink: EventSink | None, rows: FrameRowBatches | None
    ) -> None:
        super().__init__(protocol, sink if sink is not None else NullSink())
        self.rows = rows
        self.unused_batch: FrameRows = FrameRows(0)

    def decode_fast(
        self, d: Direction, data: bytes, pos: i64, end: i64, base_offset: i64, timestamp: i64
    ) -> i64:
        """Take the usual frames from `pos` on; returns where the first that is not one begins."""
        rows = self.rows
        if rows is None:
            return self._fast_loop(
                d, data, pos, end, base_offset, timestamp, self.unused_batch, False
            )
        while True:
            batch = rows.batch
            pos = self._fast_loop(d, data, pos, end, base_offset, timestamp, batch, True)
            if batch.used < batch.capacity:
                return pos
            rows.start_new_batch()

    def _fast_loop(
        self,
        d: Direction,
        data: bytes,
        pos: i64,
        end: i64,
        base_offset: i64,
        timestamp: i64,
        batch: FrameRows,
        write_rows: bool,
    ) -> i64:
        """The loop of `usual`, until the batch is full."""
        p = self.protocol
        head = self.head
        sight = p.causality
        streams = p.streams
        effects = p.effects
        sink = self.sink
        side = d.side
        reading = sink.wants_content
        marking = sink.wants_frame_ends
        credit = p.has_credit
        most: i64 = p.max_frame_bytes if p.content_is_messages else NEVER
        i = batch.used
        senders = batch.sender
        ordinals = batch.frame_index
        instants = batch.time
        offsets = batch.byte_offset
        sizes = batch.size
        kinds = batch.kind
        openers = batch.opener
        numbers = batch.stream_id
        incarnations = batch.incarnation
        amounts = batch.amount
        payloads = batch.payload_bytes
        verdicts = batch.verdict
        while pos < end and not d.decoding_stopped:
            if not d.frame_started:
                sight.snapshot_seen(side)
            start = p.decode_header(side, data, pos, end, head)
            if (
                start < 0
                or effects[head.kind] != CONTENT
                or head.format_violations != 0
                or head.parts_left != 0
            ):
                return pos
            size = head.payload_size
            if size > end - start - head.trailer_size or size > most:
                return pos
            stream = streams.find(head.key)
            if stream is None:
                return pos
            half = stream.dialer if side == DIALER else stream.acceptor
            before = half.state
            ordinal = sight.frames_sent(side)
            if not p.validate_and_apply_content(side, head, stream, timestamp):
                return pos
            sight.record_sent(side)
            touched = p.frame_stream
            if touched is not stream and touched is not None:  # a new use of the id
                stream = touched
                half = stream.half(side)
                before = OPEN
                self.register_stream(side, stream, timestamp)
            half.frames += 1
            d.frame_started = False
            d.frames += 1
            after = start + size + head.trailer_size
            d.framed_bytes += after - pos
            if credit:
                self.update_credit_after_content(stream, half, timestamp)
            counted = p.content_counts
            if counted:
                half.content_bytes += size
                half.content_units += head.credit_cost
                half.last_at = timestamp
                if half.first_at == NOT_YET:
                    half.first_at = timestamp
            if reading and counted:
                sink.content(side, stream, data, start, start + size, True)
            if marking:
                sink.content_frame_ended(side, stream if counted else None, ordinal, timestamp)
            if write_rows:
                senders[i] = u8(side)
                ordinals[i] = ordinal
                instants[i] = timestamp
                offsets[i] = base_offset + pos
                sizes[i] = after - pos
                kinds[i] = u8(head.kind)
                openers[i] = u8(stream.opener)
                numbers[i] = stream.stream_id
                incarnations[i] = stream.incarnation
                amount = head.amount
                amounts[i] = i64(amount) if amount < UNBOXED_INT_LIMIT else clamp_to_i64(amount)
                payloads[i] = size
                verdicts[i] = u8(CLEAN_ROW)
                i += 1
                batch.used = i
            pos = after
            if half.state != before:
                self.state_before = before
                self.finish_frame(side, stream, b"", timestamp)
            if write_rows and i == batch.capacity:
                return pos
        return pos

    def write_row(
        self,
        side: i64,
        head: FrameHeader,
        stream: StreamState | None,
        frame_index: i64,
        timestamp: i64,
        offset: i64,
        frame_size: i64,
        payload_size: i64,
        verdict: i64,
    ) -> None:
        """One row of the frames table, by the long way."""
        rows = self.rows
        if rows is None:
            return
        batch = rows.batch
        i = batch.used
        batch.sender[i] = u8(side)
        batch.frame_index[i] = frame_index
        batch.time[i] = timestamp
        batch.byte_offset[i] = offset
        batch.size[i] = frame_size
        batch.kind[i] = u8(head.kind)
        if stream is None:
            batch.opener[i] = u8(NO_STREAM)
        else:
            batch.opener[i] = u8(stream.opener)
            batch.stream_id[i] = stream.stream_id
            batch.incarnation[i] = stream.incarnation
        amount = head.amount
        batch.amount[i] = i64(amount) if amount < UNBOXED_INT_LIMIT else clamp_to_i64(amount)
        batch.payload_bytes[i] = payload_size
        batch.verdict[i] = u8(verdict)
        batch.used = i + 1
        if batch.used == batch.capacity:
            rows.start_new_batch()
