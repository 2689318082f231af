# mypyc: compiled
"""Both directions of one multiplexed connection: decode, validate, apply, notify, write the row.

Theory of operation
-------------------

`Connection` is the one state machine of polymux. An observer feeds it the bytes of both sides from
a capture; an endpoint feeds it the peer's bytes and passes its own frames through
`validate_outgoing` and `apply_outgoing`. It knows two sides, the dialer and the acceptor, and never
"us" and "them": only `enforced_side` says that the frames of one side are to be refused when they
break a rule, instead of only being reported.

Every frame takes the same steps, in this order:

1. *Decode.* `Protocol.decode_header` finds the frame. At its first byte `Causality.snapshot_seen`
   records what its sender had provably read; a frame may take long to arrive, and what its sender
   learns meanwhile does not count.
2. *Validate.* `Protocol.validate` is pure. It returns a mask of the rules the frame breaks, or
   `CROSSED`, or 0. What can be reported is decided by causality: a frame that its sender sent
   before it could have read the other side's stop has crossed it in flight and is legal. Where
   frames of the other side were not seen, rules that depend on them are dropped from the mask.
3. *Apply.* `Protocol.apply` updates the stream state and never fails, whatever `validate` found:
   an observer goes on after a violation, from the state that the peers have most likely reached.
4. *Notify.* The sink is told what was opened, accepted, granted, ended and so on.
5. *Write the row.* The row of the frames table is written last, when the frame's last byte has
   arrived, so that a row stands for a complete frame.

Content does not wait for the end of its frame: it is delivered as it arrives, and only counted at
the end. Nearly all frames are complete content frames on known streams that break no rule.
`decode_fast` handles these in one loop, with everything that stays the same from frame to frame in
local variables, and stops in front of the first frame that is different; `process_frame` takes that
one. Both give the same result for any frame that the fast path handles.

Each direction accounts for every byte: total = framed + missing + undecoded + overhead (+ the
bytes of a frame that is still arriving).
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from polymux.core.direction import Direction
from polymux.core.events import EventSink, NullSink
from polymux.core.frames import (
    ACCEPTS,
    CLEAN_ROW,
    CONTENT,
    CONTROL,
    CROSSED_ROW,
    GRANTS,
    VIOLATION_ROW,
    Frame,
    FrameHeader,
    FrameRowBatches,
    FrameRows,
)
from polymux.core.layout import LayoutSink
from polymux.core.protocol import NO_STREAM, Protocol
from polymux.core.rules import (
    CROSSED,
    Certainty,
    PendingReply,
    Violation,
    byte_count_text,
    rules_in_mask,
)
from polymux.core.side import ACCEPTOR, DIALER, SIDES, UNORDERED
from polymux.core.streams import ABORTED, ENDED, NEVER, NOT_YET, OPEN, HalfStream, StreamState
from polymux.core.varint import AWAITING_HANDSHAKE, INCOMPLETE, INVALID, clamp_to_i64

MAX_CONTENT_HEADER_BYTES: Final[i64] = 40  # no protocol's content header is longer
MAX_ZERO_FILL_BYTES: Final[i64] = 67108864  # missing content delivered as zeros, per connection
ZERO_FILL_STEP_BYTES: Final[i64] = 65536  # zeros delivered at a time
TRUSTED_AFTER_FRAMES: Final[i64] = 64  # a boundary that so many frames have followed is right
NOT_A_FRAME: Final = "no frame begins where one was expected"
UNBOXED_INT_LIMIT: Final = 0x1000000000000000  # amounts below it are compared without allocating


class Connection:
    """The decoding state of one connection and everything known about its streams.

    Args:
        protocol: the protocol implementation; holds the streams and their state. Used by one
            connection only.
        sink: is notified of what happens on the streams; None: no notifications.
        rows: where rows of the frames table are written; None: no rows.
    """

    def __init__(
        self, protocol: Protocol, sink: EventSink | None, rows: FrameRowBatches | None
    ) -> None:
        self.protocol = protocol
        self.sink: EventSink = sink if sink is not None else NullSink()
        self.rows = rows
        self.layout: LayoutSink | None = None  # is told where each frame lies
        self.unused_batch: FrameRows = FrameRows(0)  # stands in for a batch where `rows` is None
        self.dialer: Direction = Direction(DIALER)
        self.acceptor: Direction = Direction(ACCEPTOR)
        self.head: FrameHeader = FrameHeader()  # of the current frame
        self.state_before: i64 = OPEN  # state of the sender's half before the current frame
        self.next_serial: i64 = 0  # of the next stream that is registered
        # Violations:
        self.violations: list[Violation] = []  # not taken yet
        self.violation_mask: i64 = 0  # every rule broken so far
        self.uncertain: bool = protocol.causality.vantage == UNORDERED  # report as possible only
        # An endpoint enforces the rules on its peer; an observer (-1) enforces none.
        self.enforced_side: i64 = -1
        self.streams_to_abort: dict[int, StreamState] = {}  # by serial: the peer broke a rule there
        # Tolerated violations of the enforced side are counted, not recorded:
        self.tolerated_counts: list[int] = [0] * len(protocol.rules)  # by rule
        self.has_tolerated: bool = False
        self.unknown_stream_frames: i64 = 0  # frames for streams that do not exist
        self.closed_stream_frames: i64 = 0  # frames for streams that are over, or without effect
        # Missing bytes:
        self.credit_unknown: bool = False  # frames were not seen: credit is no longer tracked
        self.searching: bool = False  # the next frame of a direction is searched for
        self.adopted_streams: i64 = 0  # streams whose opening was not seen
        self.losses: i64 = 0  # how often frames were not seen, and decoding continued after them
        self.zero_filled_bytes: i64 = 0  # missing content that was delivered as zeros
        self.unfilled_bytes: i64 = 0  # missing content that was only counted

    def direction(self, side: i64) -> Direction:
        """The direction in which `side` sends."""
        return self.dialer if side == DIALER else self.acceptor

    # Receiving

    def receive(self, side: i64, data: bytes, timestamp: i64) -> None:
        """Decode the next bytes that `side` sent. Violations are recorded, never raised.

        Args:
            side: the sender, DIALER or ACCEPTOR.
            data: the bytes that follow those of the last call for this side.
            timestamp: when they became contiguous, in nanoseconds.
        """
        d = self.direction(side)
        d.total_bytes += len(data)
        d.received_at = timestamp
        self.decode(d, data, timestamp)

    def receive_message(
        self, side: i64, data: bytes, timestamp: i64, offset: i64, size: i64
    ) -> None:
        """Decode one complete message of the encapsulation (WebSocket) as one frame.

        Args:
            side: the sender, DIALER or ACCEPTOR.
            data: the message's payload.
            timestamp: when its last byte arrived, in nanoseconds.
            offset: where the message begins in the direction's bytes.
            size: the message's bytes on the wire; the row has this offset and size.
        """
        d = self.direction(side)
        d.total_bytes += size
        d.received_at = timestamp
        d.offset = offset + size
        length: i64 = len(data)
        if d.decoding_stopped or (
            self.decode_fast(d, data, 0, length, offset, timestamp) == 0
            and self.process_frame(d, data, 0, length, offset, timestamp) < 0
        ):
            d.undecoded_bytes += size
            return
        d.framed_bytes += size - length
        rows = self.rows
        if rows is not None:
            batch = rows.batch if rows.batch.used > 0 else rows.full_batches[-1]
            batch.size[batch.used - 1] = size

    def decode(self, d: Direction, data: bytes, timestamp: i64) -> None:
        """Decode as many frames as are complete; buffer the rest in the direction."""
        if d.decoding_stopped:
            d.undecoded_bytes += len(data)
            d.offset += len(data)
            return
        if d.bytes_needed > 0:
            if d.buffered_bytes() + len(data) < d.bytes_needed:
                d.unjoined.write(data)
                return
            d.join_buffered()
        pos: i64 = 0
        if len(d.pending) > 0:
            pos = self.complete_split_header(d, data, timestamp)
            if pos < 0:  # more than a header is needed: join the bytes, take the slow path
                data = d.pending + data
                pos = 0
            d.pending = b""
        base_offset = d.offset - pos  # of data[0] in the direction
        end: i64 = len(data)
        if d.in_payload and not d.decoding_stopped:
            pos = self.continue_payload(d, data, pos, end, timestamp)
        while pos < end and not d.in_payload and not d.decoding_stopped:
            pos = self.decode_fast(d, data, pos, end, base_offset, timestamp)
            if pos == end or d.decoding_stopped:
                break
            after = self.process_frame(d, data, pos, end, base_offset, timestamp)
            if after < 0:
                break
            pos = after
        if d.decoding_stopped:
            d.undecoded_bytes += end - pos
            d.offset = base_offset + end
        else:
            d.offset = base_offset + pos
            if pos < end:
                d.pending = data[pos:]

    def complete_split_header(self, d: Direction, data: bytes, timestamp: i64) -> i64:
        """Complete a small frame or content header that a chunk boundary has split.

        Only the pending bytes and the first few of `data` are joined, not the whole chunk.

        Returns:
            The position in `data` after what was consumed, or -1 if all must be joined.
        """
        p = self.protocol
        held: i64 = len(d.pending)
        if d.in_payload or p.content_is_messages or held > MAX_CONTENT_HEADER_BYTES:
            return -1
        probe = d.pending + data[:MAX_CONTENT_HEADER_BYTES]
        size: i64 = len(probe)
        start = p.decode_header(d.side, probe, 0, size, self.head)
        if start <= held or p.effects[self.head.kind] != CONTENT or self.head.trailer_size > 0:
            return -1
        if self.head.payload_size < size - start:
            size = start + self.head.payload_size
        used = self.process_frame(d, probe[:size], 0, size, d.offset, timestamp)
        if used != size or d.decoding_stopped:
            return -1
        d.offset += used
        return used - held

    # Fast path: complete, valid content frames on known streams

    def decode_fast(
        self, d: Direction, data: bytes, pos: i64, end: i64, base_offset: i64, timestamp: i64
    ) -> i64:
        """Process consecutive simple content frames from `pos` on.

        Returns:
            The position of the first frame that needs `process_frame`, or `end`.
        """
        if self.layout is not None:
            return pos  # `process_frame` reports every frame
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
        """The loop of `decode_fast`, until the batch is full.

        One long function for speed: it runs once for every frame of a busy connection.
        """
        p = self.protocol
        head = self.head
        causality = p.causality
        streams = p.streams
        effects = p.effects
        sink = self.sink
        side = d.side
        wants_content = sink.wants_content
        wants_frame_ends = sink.wants_frame_ends
        has_credit = p.has_credit
        losses = self.losses
        max_size: i64 = p.max_frame_bytes if p.content_is_messages else NEVER
        i = batch.used
        senders = batch.sender
        frame_indices = batch.frame_index
        times = batch.time
        offsets = batch.byte_offset
        sizes = batch.size
        kinds = batch.kind
        openers = batch.opener
        stream_ids = batch.stream_id
        incarnations = batch.incarnation
        amounts = batch.amount
        payload_sizes = batch.payload_bytes
        verdicts = batch.verdict
        while pos < end and not d.decoding_stopped:
            if not d.frame_started:
                causality.snapshot_seen(side)
            start = p.decode_header(side, data, pos, end, head)
            if (
                start < 0
                or effects[head.kind] != CONTENT
                or head.format_violations != 0
                or head.parts_left != 0
            ):
                return pos
            size = head.payload_size
            if size > end - start - head.trailer_size or size > max_size:
                return pos
            stream = streams.find(head.key)
            if stream is None or stream.losses != losses:
                return pos
            half = stream.dialer if side == DIALER else stream.acceptor
            before = half.state
            frame_index = d.frames
            if not p.validate_and_apply_content(side, head, stream, timestamp):
                return pos
            if side == DIALER:  # `Causality.record_sent` inlined
                causality.sent0 += 1
            else:
                causality.sent1 += 1
            used_stream = p.frame_stream
            if used_stream is not stream and used_stream is not None:  # a new use of the id
                stream = used_stream
                half = stream.half(side)
                before = OPEN
                self.register_stream(side, stream, timestamp)
            half.frames += 1
            d.frame_started = False
            d.frames += 1
            after = start + size + head.trailer_size
            d.framed_bytes += after - pos
            if has_credit:
                self.update_credit_after_content(stream, half, timestamp)
            counted = p.content_counts
            if counted:
                half.content_bytes += size
                half.content_units += head.credit_cost
                half.last_at = timestamp
                if half.first_at == NOT_YET:
                    half.first_at = timestamp
            if wants_content and counted:
                sink.content(side, stream, data, start, start + size, True)
            if wants_frame_ends:
                sink.content_frame_ended(side, stream if counted else None, frame_index, timestamp)
            if write_rows:
                senders[i] = u8(side)
                frame_indices[i] = frame_index
                times[i] = timestamp
                offsets[i] = base_offset + pos
                sizes[i] = after - pos
                kinds[i] = u8(head.kind)
                openers[i] = u8(stream.opener)
                stream_ids[i] = stream.stream_id
                incarnations[i] = stream.incarnation
                amount = head.amount
                amounts[i] = i64(amount) if amount < UNBOXED_INT_LIMIT else clamp_to_i64(amount)
                payload_sizes[i] = size
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

    # Slow path: any frame

    def process_frame(
        self, d: Direction, data: bytes, pos: i64, end: i64, base_offset: i64, timestamp: i64
    ) -> i64:
        """Process the frame that begins at `pos`, of any kind, complete or not, valid or not.

        Returns:
            Where decoding continues, or INCOMPLETE, AWAITING_HANDSHAKE or INVALID.
        """
        p = self.protocol
        head = self.head
        side = d.side
        if not d.frame_started:
            p.causality.snapshot_seen(side)
            d.frame_started = True
        start = p.decode_header(side, data, pos, end, head)
        if start < 0:
            self.on_header_status(d, start, base_offset + pos, end - pos, timestamp)
            return start
        if self.may_search(d) and (
            head.format_violations & p.error_mask or p.header_evidence(side, head) < 0
        ):
            self.search_boundary(d, base_offset + pos, timestamp, NOT_A_FRAME)
            return INVALID
        size = head.payload_size
        effect: i64 = p.effects[head.kind]
        complete = size <= end - start - head.trailer_size
        text = b""
        if effect != CONTENT or p.content_is_messages:  # buffered until it is complete
            limit = p.max_frame_bytes if effect == CONTENT else p.max_control_bytes
            if size > limit:
                if (
                    effect == CONTENT
                    or not p.control_is_text
                    or size > p.max_frame_bytes
                    or self.enforced_side >= 0
                ):
                    head.format_violations |= p.too_long_rule
                elif end - start < limit:
                    d.bytes_needed = start - pos + limit
                    return INCOMPLETE
                else:  # an observer needs no more of the text
                    text = data[start : start + limit]
            elif not complete and not head.format_violations & p.too_long_rule:
                d.bytes_needed = start - pos + size + head.trailer_size
                return INCOMPLETE
            elif effect != CONTENT and complete:
                p.decode_body(side, data, start, start + size, head)
                if head.text_size > 0:
                    text = data[head.text_start : head.text_start + head.text_size]
        frame_index = p.causality.frames_sent(side)
        mask = self.validate_and_apply(side, head, text, base_offset + pos, timestamp)
        if side == self.enforced_side and mask & p.fatal_mask:
            self.stop_decoding(d, 0, base_offset + pos, timestamp, "the peer broke the protocol")
            return INVALID
        d.frame_started = False
        d.frames += 1
        if self.layout is not None:
            self.layout.frame(side, base_offset + pos, data, pos, start, head, complete)
        stream: StreamState | None = p.frame_stream
        verdict: i64 = CLEAN_ROW
        if mask & p.finding_mask:
            verdict = VIOLATION_ROW
        elif mask & CROSSED:
            verdict = CROSSED_ROW
        if not complete or head.parts_left > 0:
            d.start_payload(
                head,
                stream,
                p.content_counts,
                effect == CONTENT,
                frame_index,
                base_offset + pos,
                start - pos,
                verdict,
                self.state_before,
            )
            p.causality.set_arriving(side, 1)
            return self.continue_payload(d, data, start, end, timestamp)
        if effect == CONTENT:
            counted = p.content_counts
            if counted and stream is not None:
                self.count_content(stream.half(side), size, head.credit_cost, timestamp)
                self.sink.content(side, stream, data, start, start + size, True)
            self.sink.content_frame_ended(side, stream if counted else None, frame_index, timestamp)
            if p.has_credit and stream is not None:
                self.update_credit_after_content(stream, stream.half(side), timestamp)
        after = start + size + head.trailer_size
        frame_size = after - pos
        d.framed_bytes += frame_size
        if self.rows is not None:
            offset = base_offset + pos
            self.write_row(
                side, head, stream, frame_index, timestamp, offset, frame_size, size, verdict
            )
        self.finish_frame(side, stream, text, timestamp)
        if p.peer_unblocked:
            p.peer_unblocked = False
            self.on_handshake(side, timestamp)
        return after

    def on_header_status(
        self, d: Direction, status: i64, offset: i64, held: i64, timestamp: i64
    ) -> None:
        """Stop decoding where the header at `offset` is invalid, or waits for too long."""
        if status == INVALID and self.layout is not None:
            self.layout.undecodable(d.side, offset, held, self.head.format_violations)
        if status == INVALID and self.may_search(d):
            self.search_boundary(d, offset, timestamp, NOT_A_FRAME)
        elif status == INVALID:
            reason = self.take_reason("the next frame cannot be found")
            self.stop_decoding(d, self.head.format_violations, offset, timestamp, reason)
        elif status == AWAITING_HANDSHAKE and held > self.protocol.limits.max_prehandshake_bytes:
            self.stop_decoding(
                d, 0, offset, timestamp, "the other direction's handshake never arrived"
            )

    # Payloads that arrive in pieces

    def continue_payload(
        self, d: Direction, data: bytes, pos: i64, end: i64, timestamp: i64
    ) -> i64:
        """Deliver more of the current frame's payload; return the position after it."""
        pos = self.deliver_payload(d, data, pos, end)
        while d.part_bytes_left == 0 and d.parts_left > 0:  # each part begins with its size
            head = self.head
            head.format_violations = 0
            head.parts_left = d.parts_left
            head.key = d.key
            size = self.protocol.decode_part_size(d.side, data, pos, end, head)
            if size == INVALID:
                offset = d.frame_offset + d.frame_bytes_seen
                reason = self.take_reason("an item's size cannot be read")
                self.stop_decoding(d, head.format_violations, offset, timestamp, reason)
                return pos
            if size < 0 or (
                head.format_violations != 0
                and self.record_part_violations(d, head.format_violations, size, timestamp)
            ):
                return pos
            if self.layout is not None:
                stop = end if size > end - pos else pos + size
                found = self.protocol.part_structure(d.side, data, pos, stop, head)
                offset = d.frame_offset + d.frame_bytes_seen
                self.layout.part(d.side, offset, pos, size, found)
            d.parts_left = head.parts_left
            d.part_bytes_left = size
            d.frame_size += size
            d.payload_size += size
            pos = self.deliver_payload(d, data, pos, end)
        if d.part_bytes_left == 0:
            self.end_payload(d, timestamp)
        return pos

    def record_part_violations(
        self, d: Direction, violation_mask: i64, size: i64, timestamp: i64
    ) -> bool:
        """Record what is wrong with a part, once per frame and rule. True: decoding has stopped."""
        p = self.protocol
        new_mask = violation_mask & ~d.format_violations
        d.format_violations |= violation_mask
        if new_mask != 0:
            detail = f"a part of {byte_count_text(size)} in a {p.kind_name(d.kind)}"
            details = [detail for _ in rules_in_mask(p.rules, new_mask)]
            self.record_violations(
                d.side, d.stream, new_mask, details, d.frame_index, d.frame_offset, timestamp
            )
            if new_mask & p.finding_mask:
                d.verdict = VIOLATION_ROW
            if d.side == self.enforced_side and new_mask & p.fatal_mask:
                self.stop_decoding(d, 0, d.frame_offset, timestamp, "the peer broke the protocol")
                return True
        return False

    def deliver_payload(self, d: Direction, data: bytes, pos: i64, end: i64) -> i64:
        """Deliver what `data` has of the payload's current part."""
        got = end - pos if end - pos < d.part_bytes_left else d.part_bytes_left
        if got > 0:
            d.part_bytes_left -= got
            d.frame_bytes_seen += got
            stream = d.stream
            if stream is not None and d.content_counts:
                final = d.part_bytes_left == 0 and d.parts_left == 0
                self.sink.content(d.side, stream, data, pos, pos + got, final)
        return pos + got

    def end_payload(self, d: Direction, timestamp: i64) -> None:
        """Count the frame whose last byte has arrived, and write its row."""
        stream = d.stream
        if d.is_content:
            if stream is not None and d.content_counts:
                self.count_content(stream.half(d.side), d.payload_size, d.credit_cost, timestamp)
            self.sink.content_frame_ended(
                d.side, stream if d.content_counts else None, d.frame_index, timestamp
            )
            if stream is not None and self.protocol.has_credit:
                self.update_credit_after_content(stream, stream.half(d.side), timestamp)
        d.in_payload = False
        self.protocol.causality.set_arriving(d.side, 0)
        d.framed_bytes += d.frame_size
        if self.rows is not None:
            head = self.head
            head.kind = d.kind
            head.amount = d.amount
            self.write_row(
                d.side,
                head,
                stream,
                d.frame_index,
                timestamp,
                d.frame_offset,
                d.frame_size,
                d.payload_size,
                d.verdict,
            )
        self.state_before = d.state_before
        self.finish_frame(d.side, stream, b"", timestamp)

    # Missing bytes, and bytes that cannot be decoded

    def gap(self, side: i64, size: i64, timestamp: i64) -> None:
        """`size` bytes of this direction were not captured.

        Inside a payload decoding continues after them, and missing content is delivered as zeros
        (up to MAX_ZERO_FILL_BYTES per connection). Anywhere else decoding of the direction stops
        until the start of a frame is found (`boundary_search`).
        """
        d = self.direction(side)
        d.total_bytes += size
        d.received_at = timestamp
        self.uncertain = True
        if d.in_payload and size <= d.part_bytes_left and not d.decoding_stopped:
            d.offset += size
            while size > 0 and self.zero_filled_bytes < MAX_ZERO_FILL_BYTES:
                step: i64 = size if size < ZERO_FILL_STEP_BYTES else ZERO_FILL_STEP_BYTES
                self.continue_payload(d, bytes(step), 0, step, timestamp)
                self.zero_filled_bytes += step
                size -= step
            if size > 0:  # a few bytes can claim any length: the rest is only counted
                d.part_bytes_left -= size
                d.frame_bytes_seen += size
                if d.stream is not None and d.content_counts:
                    self.unfilled_bytes += size
                self.continue_payload(d, b"", 0, 0, timestamp)
            return
        if not d.decoding_stopped:
            are = "is" if size == 1 else "are"
            self.search_boundary(d, d.offset, timestamp, f"{byte_count_text(size)} {are} missing")
            d.stopped_by_gap = True
        d.missing_bytes += size
        d.offset += size

    def on_handshake(self, side: i64, timestamp: i64) -> None:
        """After a handshake frame of `side`: decode what the other direction held until then."""
        for d in (self.dialer, self.acceptor):
            reason = self.protocol.why_undecodable(d.side)
            if reason and not d.decoding_stopped:
                self.stop_decoding(d, 0, d.offset, timestamp, reason)
        held = self.direction(1 - side)
        held.join_buffered()
        if len(held.pending) > 0 and not held.decoding_stopped:
            self.decode(held, b"", held.received_at)

    def stop_decoding(
        self, d: Direction, violation_mask: i64, offset: i64, timestamp: i64, reason: str
    ) -> None:
        """Stop decoding a direction: the start of its next frame is not known.

        Everything that is buffered and still arrives is counted as undecoded.

        Args:
            d: the direction.
            violation_mask: the rules that were broken; 0: none.
            offset: where decoding stops.
            timestamp: in nanoseconds.
            reason: why, for `Direction.stop_reason` and for the violations' details.
        """
        d.decoding_stopped = True
        d.stop_reason = reason
        self.stop_credit_tracking(timestamp)
        frame_index = self.protocol.causality.frames_sent(d.side)
        stream: StreamState | None = None
        frame_offset = offset
        if self.layout is not None and not d.in_payload:
            d.join_buffered()
            self.layout.incomplete(d.side, d.offset, d.pending)
        if d.in_payload:  # a frame that will never be complete
            d.undecoded_bytes += d.frame_bytes_seen
            d.in_payload = False
            violation_mask &= ~d.format_violations
            frame_index, stream, frame_offset = d.frame_index, d.stream, d.frame_offset
        d.join_buffered()
        d.undecoded_bytes += len(d.pending)
        d.offset += len(d.pending)
        d.pending = b""
        if violation_mask != 0:
            details = [
                f"{reason} (byte {offset})"
                for _ in rules_in_mask(self.protocol.rules, violation_mask)
            ]
            self.record_violations(
                d.side, stream, violation_mask, details, frame_index, frame_offset, timestamp
            )

    # Beginning in the middle

    def begin_in_middle(self) -> None:
        """Earlier frames of both directions were not seen: search for the first boundary."""
        self.uncertain = True
        for d in (self.dialer, self.acceptor):
            d.frames_missing = True
            self.search_boundary(d, d.offset, 0, "its beginning was not captured")

    def may_search(self, d: Direction) -> bool:
        """Whether a boundary that was found may be wrong, so that no side is to blame."""
        return (
            d.frames_missing
            and d.frames < d.trusted_from
            and self.protocol.can_begin_anywhere
            and self.enforced_side < 0
        )

    def search_boundary(self, d: Direction, offset: i64, timestamp: i64, reason: str) -> None:
        """Stop decoding a direction until the start of a frame is found in it, if one can be."""
        self.stop_decoding(d, 0, offset, timestamp, reason)
        self.protocol.causality.set_arriving(d.side, 0)
        d.frame_started = False
        p = self.protocol
        if self.enforced_side < 0 and (p.can_begin_anywhere or p.awaits_handshake(d.side)):
            d.searching = True
            self.searching = True
        if not p.can_begin_anywhere and p.beginning_needed:
            d.stop_reason += f" ({p.beginning_needed})"

    def skip_undecodable(self, side: i64, size: i64) -> None:
        """Count bytes of a direction that is searched, before the boundary."""
        d = self.direction(side)
        d.total_bytes += size
        d.undecoded_bytes += size
        d.offset += size

    def resume_decoding(self, side: i64) -> None:
        """A frame of this direction begins at the next byte: decode it again.

        Nothing is judged any more that depends on the frames that were not seen.
        """
        d = self.direction(side)
        d.searching = False
        d.decoding_stopped = False
        d.stopped_by_gap = False
        d.stop_reason = ""
        d.frames_missing = True
        d.trusted_from = d.frames + TRUSTED_AFTER_FRAMES
        self.searching = self.dialer.searching or self.acceptor.searching
        self.losses += 1  # each stream is updated at its next frame: there may be many
        for held in (self.dialer, self.acceptor):
            if len(held.pending) > 0 and not held.decoding_stopped:  # waits for the handshake
                self.decode(held, b"", held.received_at)

    def update_after_loss(
        self, side: i64, head: FrameHeader, stream: StreamState, timestamp: i64
    ) -> StreamState:
        """Frames were not seen since the last frame of this stream: they may have changed it.

        Returns the stream, or the next use of its id if it was over and this frame is content.
        """
        stream.losses = self.losses
        stream.unseen = True
        self.protocol.forget_unseen(stream)
        if stream.over and self.protocol.effects[head.kind] == CONTENT:
            again = self.adopt_stream(side, head, timestamp, stream.incarnation + 1)
            if again is not None:
                return again
        return stream

    def adopt_stream(
        self, side: i64, head: FrameHeader, timestamp: i64, incarnation: i64
    ) -> StreamState | None:
        """The stream of a frame whose opening was not seen; None if it must have been seen."""
        p = self.protocol
        if head.opener > ACCEPTOR or not self.direction(head.opener).has_unseen_frames():
            return None
        stream = p.adopt_stream(side, head)
        if stream is not None and stream.serial < 0:
            stream.unseen = True
            stream.incarnation = incarnation
            p.streams.insert(stream)
            self.adopted_streams += 1
            self.register_stream(side, stream, timestamp)
        return stream

    def take_reason(self, default: str) -> str:
        """The protocol's own reason why it cannot decode further, or `default`."""
        reason = self.protocol.undecodable_reason
        self.protocol.undecodable_reason = ""
        return reason if reason else default

    # Validating and applying

    def validate_and_apply(
        self, side: i64, head: FrameHeader, text: bytes, offset: i64, timestamp: i64
    ) -> i64:
        """Validate and apply a frame; notify the sink of what it opened, accepted or granted.

        Returns:
            The mask of the rules it breaks, with CROSSED if it crossed in flight. A frame of the
            enforced side that breaks a fatal rule is not applied: the session is over.
        """
        p = self.protocol
        stream = p.streams.find(head.key) if head.opener != NO_STREAM else None
        if stream is not None and stream.incarnation > 1:
            stream = p.resolve_incarnation(side, head, stream)
        if stream is None and self.credit_unknown and p.can_begin_anywhere:
            stream = self.adopt_stream(side, head, timestamp, 1)
        if stream is not None and stream.losses != self.losses:
            stream = self.update_after_loss(side, head, stream, timestamp)
        p.frame_text = text
        p.peer_frame_started = self.direction(1 - side).frame_started
        mask = p.validate(side, head, stream)
        if mask != 0:
            if self.direction(1 - side).has_unseen_frames():
                mask = p.drop_peer_dependent(head, mask)
            if self.direction(side).frames_missing:
                mask &= ~(p.peer_dependent_rules | p.history_dependent_rules)
            if stream is not None and stream.unseen:
                mask &= p.frame_rules | CROSSED
        mask |= head.format_violations
        broken = mask & ~CROSSED
        details: list[str] = []
        recorded = True  # as violations; else they are only counted
        if side == self.enforced_side:
            already_aborting = stream is not None and stream.serial in self.streams_to_abort
            serious = p.fatal_mask if already_aborting else p.fatal_mask | p.stream_abort_mask
            recorded = mask & serious != 0
        if broken != 0 and recorded:
            details = self.explain_violations(side, head, stream, broken)
        self.state_before = stream.half(side).state if stream is not None else OPEN
        frame_index = p.causality.frames_sent(side)
        p.reset_frame_state()
        if side == self.enforced_side and mask & p.fatal_mask:
            self.record_violations(side, stream, broken, details, frame_index, offset, timestamp)
            return mask
        p.apply(side, head, stream, timestamp)
        p.causality.record_sent(side)
        used_stream: StreamState | None = p.frame_stream
        effect: i64 = p.effects[head.kind]
        if used_stream is not None:
            if used_stream is not stream:  # a new use of the id
                self.state_before = OPEN
            self.notify_applied(side, used_stream, effect, mask, timestamp)
        if side == self.enforced_side and mask & p.stream_abort_mask:
            p.content_counts = False  # the endpoint will abort the stream
            if used_stream is not None:
                self.streams_to_abort[used_stream.serial] = used_stream
        if effect == CONTROL:
            self.sink.control(side, used_stream, head.kind, head.amount, text)
        if broken != 0:
            if recorded:
                self.record_violations(
                    side, used_stream, broken, details, frame_index, offset, timestamp
                )
            else:
                self.count_tolerated(broken, used_stream)
                if used_stream is None and effect != CONTROL and not mask & p.error_mask:
                    # It breaks only advice, but concerns no stream: counted like an empty frame.
                    self.closed_stream_frames += 1
        return mask

    def notify_applied(
        self, side: i64, stream: StreamState, effect: i64, mask: i64, timestamp: i64
    ) -> None:
        """Count an applied frame on its stream and notify the sink of its effect."""
        p = self.protocol
        if stream.serial < 0:
            self.register_stream(side, stream, timestamp)
        stream.half(side).frames += 1
        if p.has_credit and effect != CONTENT:  # content: when its last byte has arrived
            self.update_credit_state(stream, timestamp)
        if effect == ACCEPTS or (effect == CONTENT and p.content_accepts):
            if stream.accepted and stream.accepted_at == NOT_YET:
                stream.accepted_at = timestamp
                self.sink.accepted(side, stream)
        elif effect == GRANTS:
            self.sink.granted(side, stream)
        if mask & CROSSED:
            self.sink.crossed(side, stream)
        replaced = p.replaced_stream
        if replaced is not None:
            replaced.dialer.mark_unblocked(timestamp)
            replaced.acceptor.mark_unblocked(timestamp)
            self.sink.aborted(side, replaced, b"")

    def register_stream(self, side: i64, stream: StreamState, timestamp: i64) -> None:
        """Number a stream that has just been opened, and notify the sink."""
        stream.serial = self.next_serial
        self.next_serial += 1
        stream.losses = self.losses
        if stream.open_frame_index >= 0:
            stream.opened_at = timestamp
        self.sink.opened(side, stream)

    def count_tolerated(self, violation_mask: i64, stream: StreamState | None) -> None:
        """Count violations that an endpoint tolerates, without allocating: the peer may flood."""
        self.violation_mask |= violation_mask
        self.has_tolerated = True
        bit: i64 = 1
        for i in range(len(self.tolerated_counts)):
            if violation_mask & bit:
                self.tolerated_counts[i] += 1
            bit <<= 1
        if violation_mask & self.protocol.error_mask:
            if stream is None:
                self.unknown_stream_frames += 1
            else:
                self.closed_stream_frames += 1

    def finish_frame(
        self, side: i64, stream: StreamState | None, text: bytes, timestamp: i64
    ) -> None:
        """After a frame's last byte: notify the sink of ended, aborted and closed streams.

        Also reports the replies that were still expected on streams that have just been evicted.
        """
        p = self.protocol
        if stream is not None:
            half = stream.half(side)
            if half.state != self.state_before:
                if half.state == ABORTED:
                    self.sink.aborted(side, stream, text)
                elif half.state == ENDED:
                    self.sink.ended(side, stream)
            if not stream.over and p.is_over(stream):
                stream.over = True
                stream.closed_at = timestamp
                p.streams.mark_closed(stream)
                self.sink.closed(stream)
        if len(p.streams.just_evicted) > 0:
            for evicted in p.streams.just_evicted:
                p.expire_replies(evicted.key, evicted)
            p.streams.just_evicted = []
        if len(p.expired_replies) > 0:
            self.report_expired_replies(timestamp)

    # Sending

    def validate_outgoing(self, side: i64, frame: Frame, credit_cost: i64) -> i64:
        """Validate a frame that `side` is about to send, without applying it.

        Fills `head` from the frame. Returns the mask of the rules the frame would break.
        """
        p = self.protocol
        head = self.head
        head.clear()
        head.kind = frame.kind
        head.key = frame.key
        head.amount = frame.amount
        head.payload_size = len(frame.payload)
        head.credit_cost = credit_cost
        head.text_size = head.payload_size
        p.resolve_ids(side, head)
        p.frame_text = frame.payload
        p.causality.snapshot_seen(side)
        stream = p.streams.find(head.key) if head.opener != NO_STREAM else None
        return p.validate(side, head, stream)

    def apply_outgoing(self, side: i64, text: bytes, timestamp: i64) -> StreamState | None:
        """Apply the frame that `validate_outgoing` has just validated: it is being sent.

        Returns the stream it belongs to.
        """
        p = self.protocol
        d = self.direction(side)
        effect: i64 = p.effects[self.head.kind]
        size = self.head.payload_size
        credit_cost = self.head.credit_cost
        self.validate_and_apply(
            side, self.head, b"" if effect == CONTENT else text, d.offset, timestamp
        )
        d.frames += 1
        stream = p.frame_stream
        if stream is not None and effect == CONTENT and p.content_counts:
            self.count_content(stream.half(side), size, credit_cost, timestamp)
        if stream is not None and effect == CONTENT and p.has_credit:
            self.update_credit_after_content(stream, stream.half(side), timestamp)
        self.finish_frame(side, stream, text, timestamp)
        return stream

    def send_content(
        self, side: i64, stream: StreamState, size: i64, final: bool, out: BytesWriter, now: i64
    ) -> bool:
        """Validate, apply and encode a content frame of `size` bytes that `side` sends.

        The same steps as `validate_outgoing` and `apply_outgoing`, for the one kind of frame that
        is sent all the time: the header is not made from a `Frame`, and where the protocol can it
        validates and applies in one call.

        Args:
            side: the sender.
            stream: an open stream of it.
            size: bytes of the payload. The caller writes the payload itself, after the header.
            final: the frame ends this side's half, if the protocol ends halves in that way.
            out: the header is appended to it.
            now: timestamp in nanoseconds.

        Returns:
            False if the frame would break a rule: nothing has changed.
        """
        p = self.protocol
        head = self.head
        head.key = stream.key
        head.stream_id = stream.stream_id
        head.opener = stream.opener
        head.payload_size = size
        head.trailer_size = 0
        head.credit_cost = 0
        head.parts_left = 0
        head.amount = -1
        head.text_size = -1
        head.format_violations = 0
        p.fill_content_header(side, stream, head, final)
        p.causality.snapshot_seen(side)
        half = stream.dialer if side == DIALER else stream.acceptor
        before = half.state
        if not p.validate_and_apply_content(side, head, stream, now):
            if p.validate(side, head, stream) & p.error_mask:
                return False
            p.reset_frame_state()
            p.apply(side, head, stream, now)
        p.encode_frame(out, side, head, b"")
        p.causality.record_sent(side)
        if stream.serial < 0:
            self.register_stream(side, stream, now)
        half.frames += 1
        self.count_content(half, size, head.credit_cost, now)
        if half.state != before:
            self.state_before = before
            self.finish_frame(side, stream, b"", now)
        return True

    # Content and credit

    def count_content(self, half: HalfStream, size: i64, credit_cost: i64, timestamp: i64) -> None:
        """Count a complete content frame of `size` bytes."""
        half.content_bytes += size
        half.content_units += credit_cost
        if half.first_at == NOT_YET:
            half.first_at = timestamp
        half.last_at = timestamp

    def update_credit_after_content(
        self, stream: StreamState, half: HalfStream, timestamp: i64
    ) -> None:
        """After content: update the peak in flight; mark a half that has used all its credit."""
        granted = half.credit_granted
        if granted >= 0 and not self.credit_unknown:
            spent = half.credit_spent
            if spent >= granted:
                half.mark_blocked(timestamp)
            if half.window >= 0:
                in_flight = spent - (granted - half.window)
                if in_flight > half.peak_in_flight:
                    half.peak_in_flight = in_flight
            if half.state != OPEN or stream.over:
                half.mark_unblocked(timestamp)

    def update_credit_state(self, stream: StreamState, timestamp: i64) -> None:
        """After any other frame: mark both halves as blocked or unblocked."""
        over = self.protocol.is_over(stream)
        for side in (DIALER, ACCEPTOR):
            half = stream.half(side)
            if half.credit_granted >= 0:
                if half.state != OPEN or half.credit_granted > half.credit_spent or over:
                    half.mark_unblocked(timestamp)
                elif not self.credit_unknown and not self.direction(side).is_mid_content(stream):
                    half.mark_blocked(timestamp)

    def stop_credit_tracking(self, timestamp: i64) -> None:
        """Frames were not seen: from now on neither spent nor granted credit is known."""
        self.credit_unknown = True
        if self.protocol.has_credit:
            for stream in self.protocol.streams.all():
                stream.dialer.mark_unblocked(timestamp)
                stream.acceptor.mark_unblocked(timestamp)

    # Violations

    def explain_violations(
        self, side: i64, head: FrameHeader, stream: StreamState | None, violation_mask: i64
    ) -> list[str]:
        """One explanation for each rule in the mask. Called before the frame is applied."""
        details: list[str] = []
        bit: i64 = 1
        for _ in self.protocol.rules:
            if violation_mask & bit:
                details.append(self.protocol.explain(bit, side, head, stream))
            bit <<= 1
        return details

    def record_violations(
        self,
        side: i64,
        stream: StreamState | None,
        violation_mask: i64,
        details: list[str],
        frame_index: i64,
        offset: i64,
        timestamp: i64,
    ) -> None:
        """Append a violation for each rule in the mask; `details` has one text for each."""
        self.violation_mask |= violation_mask
        uncertain = self.uncertain or (stream is None and self.protocol.streams.has_evicted)
        certainty = Certainty.POSSIBLE if uncertain else Certainty.CERTAIN
        label = stream.label() if stream is not None else ""
        for i, rule in enumerate(rules_in_mask(self.protocol.rules, violation_mask)):
            self.violations.append(
                Violation(
                    rule, SIDES[side], frame_index, offset, timestamp, label, certainty, details[i]
                )
            )

    def report_expired_replies(self, timestamp: i64) -> None:
        """Report the replies that never came before their streams were evicted."""
        p = self.protocol
        for reply, label in p.expired_replies:
            d = self.direction(reply.side)
            if d.has_unseen_frames():
                continue  # the reply may be among the frames that were not seen
            # Not `d.offset`: this sum does not depend on how the bytes were cut into chunks.
            offset = d.framed_bytes + d.missing_bytes + d.undecoded_bytes + d.overhead_bytes
            self.report_missing_reply(reply, label, Certainty.POSSIBLE, offset, timestamp)
        p.expired_replies = []

    def report_missing_reply(
        self, reply: PendingReply, label: str, certainty: Certainty, offset: i64, timestamp: i64
    ) -> None:
        """Report a reply that did not come before the end, or before its stream was evicted."""
        p = self.protocol
        frame_index = max(0, p.causality.frames_sent(reply.side) - 1)
        kind, request = p.kind_name(reply.kind), reply.request_index
        detail = f"no {kind} in reply to frame {request} of the other side"
        for rule in rules_in_mask(p.rules, reply.rule):
            self.violations.append(
                Violation(
                    rule,
                    SIDES[reply.side],
                    frame_index,
                    offset,
                    timestamp,
                    label,
                    certainty,
                    detail,
                )
            )

    # Rows

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
        """Write a row of the frames table; the fast path writes its own."""
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
