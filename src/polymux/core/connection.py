# mypyc: compiled
"""Both directions of one connection: decode, judge, apply, tell, write the row.

The one loop. An endpoint and an observer differ only in where the bytes come from.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.direction import Direction
from polymux.core.events import EventSink
from polymux.core.frames import CLEAN_ROW, CONTENT, CROSSED_ROW, VIOLATION_ROW, FrameRowBatches
from polymux.core.protocol import Protocol
from polymux.core.rules import (
    CROSSED,
    Certainty,
    PendingReply,
    Violation,
    byte_count_text,
    rules_in_mask,
)
from polymux.core.side import SIDES
from polymux.core.streams import StreamState
from polymux.core.usual import Usual
from polymux.core.varint import AWAITING_HANDSHAKE, INCOMPLETE, INVALID

MAX_CONTENT_HEADER_BYTES: Final[i64] = 40  # no protocol's content header is longer
MAX_ZERO_FILL_BYTES: Final[i64] = 67108864  # missing bytes of content that are made up, in all


class Connection(Usual):
    """Decodes both directions."""

    def __init__(
        self, protocol: Protocol, sink: EventSink | None, rows: FrameRowBatches | None
    ) -> None:
        super().__init__(protocol, sink, rows)
        self.zero_filled_bytes: i64 = (
            0  # missing bytes of content that the sink was handed as zeros
        )
        self.unfilled_bytes: i64 = 0  # and that it was not handed

    def receive(self, side: i64, data: bytes, timestamp: i64) -> None:
        """The next bytes of one direction, which became contiguous at `at`."""
        d = self.direction(side)
        d.total_bytes += len(data)
        d.received_at = timestamp
        self.decode(d, data, timestamp)

    def receive_message(
        self, side: i64, data: bytes, timestamp: i64, offset: i64, size: i64
    ) -> None:
        """One whole message of a carrier: its row has this place and size on the wire."""
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
        """Decode what can be decoded of one direction's bytes."""
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
            if pos < 0:  # more than a header is needed: take the long way, joined
                data = d.pending + data
                pos = 0
            d.pending = b""
        base = d.offset - pos  # where data[0] lies in the direction
        end: i64 = len(data)
        if d.in_payload and not d.decoding_stopped:
            pos = self.continue_payload(d, data, pos, end, timestamp)
        while pos < end and not d.in_payload and not d.decoding_stopped:
            pos = self.decode_fast(d, data, pos, end, base, timestamp)
            if pos == end or d.decoding_stopped:
                break
            after = self.process_frame(d, data, pos, end, base, timestamp)
            if after < 0:
                break
            pos = after
        if d.decoding_stopped:
            d.undecoded_bytes += end - pos
            d.offset = base + end
        else:
            d.offset = base + pos
            if pos < end:
                d.pending = data[pos:]

    def complete_split_header(self, d: Direction, data: bytes, timestamp: i64) -> i64:
        """Finish a small frame or a content header cut by a chunk's end, without joining the chunk.

        Returns the position in `data` after what was consumed, or -1 if joining is needed.
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

    def process_frame(
        self, d: Direction, data: bytes, pos: i64, end: i64, base_offset: i64, timestamp: i64
    ) -> i64:
        """One frame that begins at `pos`: where decoding goes on, or a status."""
        p = self.protocol
        head = self.head
        side = d.side
        if not d.frame_started:
            p.causality.snapshot_seen(side)
            d.frame_started = True
        start = p.decode_header(side, data, pos, end, head)
        if start < 0:
            if start == INVALID:
                self.stop_decoding(
                    d,
                    head.format_violations,
                    base_offset + pos,
                    timestamp,
                    self.take_reason("the next frame cannot be found"),
                )
            elif start == AWAITING_HANDSHAKE and end - pos > p.limits.max_prehandshake_bytes:
                self.stop_decoding(
                    d, 0, base_offset + pos, timestamp, "the other direction's handshake never came"
                )
            return start
        size = head.payload_size
        effect: i64 = p.effects[head.kind]
        whole = size <= end - start - head.trailer_size
        text = b""
        if effect != CONTENT or p.content_is_messages:
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
                else:  # an observer needs no more of it
                    text = data[start : start + limit]
            elif not whole and not head.format_violations & p.too_long_rule:
                d.bytes_needed = start - pos + size + head.trailer_size
                return INCOMPLETE
            elif effect != CONTENT and whole:
                p.decode_body(side, data, start, start + size, head)
                if head.text_size > 0:
                    text = data[head.text_start : head.text_start + head.text_size]
        ordinal = p.causality.frames_sent(side)
        verdict = self.validate_and_apply(side, head, text, base_offset + pos, timestamp)
        if side == self.enforced_side and verdict & p.fatal_mask:
            self.stop_decoding(d, 0, base_offset + pos, timestamp, "the peer broke the protocol")
            return INVALID
        d.frame_started = False
        d.frames += 1
        stream: StreamState | None = p.frame_stream
        row: i64 = CLEAN_ROW
        if verdict != 0:
            row = (
                VIOLATION_ROW
                if verdict & p.finding_mask
                else CROSSED_ROW
                if verdict & CROSSED
                else CLEAN_ROW
            )
        if not whole or head.parts_left > 0:
            d.start_payload(
                head,
                stream,
                p.content_counts,
                effect == CONTENT,
                ordinal,
                base_offset + pos,
                start - pos,
                row,
                self.state_before,
            )
            p.causality.set_arriving(side, 1)
            return self.continue_payload(d, data, start, end, timestamp)
        if effect == CONTENT:
            counted = p.content_counts
            if counted and stream is not None:
                self.count_content(stream.half(side), size, head.credit_cost, timestamp)
                self.sink.content(side, stream, data, start, start + size, True)
            self.sink.content_frame_ended(side, stream if counted else None, ordinal, timestamp)
            if p.has_credit and stream is not None:
                self.update_credit_after_content(stream, stream.half(side), timestamp)
        after = start + size + head.trailer_size
        d.framed_bytes += after - pos
        if self.rows is not None:
            self.write_row(
                side, head, stream, ordinal, timestamp, base_offset + pos, after - pos, size, row
            )
        self.finish_frame(side, stream, text, timestamp)
        if p.peer_unblocked:
            p.peer_unblocked = False
            self.release_held(side, timestamp)
        return after

    def continue_payload(
        self, d: Direction, data: bytes, pos: i64, end: i64, timestamp: i64
    ) -> i64:
        """Go on with the open frame's payload; returns the position after what was taken."""
        pos = self.deliver_payload(d, data, pos, end)
        while (
            d.part_bytes_left == 0 and d.parts_left > 0
        ):  # items are sized one by one as they come
            head = self.head
            head.format_violations = 0
            head.parts_left = d.parts_left
            head.key = d.key
            size = self.protocol.decode_part_size(d.side, data, pos, end, head)
            if size == INVALID:
                self.stop_decoding(
                    d,
                    head.format_violations,
                    d.frame_offset + d.frame_bytes_seen,
                    timestamp,
                    self.take_reason("an item's size cannot be read"),
                )
                return pos
            if size < 0 or (
                head.format_violations != 0
                and self.record_part_violations(d, head.format_violations, size, timestamp)
            ):
                return pos
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
        """Note what is wrong with a part, once a frame and rule. True if the session is over."""
        p = self.protocol
        fresh = violation_mask & ~d.format_violations
        d.format_violations |= violation_mask
        if fresh != 0:
            detail = f"a part of {byte_count_text(size)} in a {p.kind_name(d.kind)}"
            details = [detail for _ in rules_in_mask(p.rules, fresh)]
            self.record_violations(
                d.side, d.stream, fresh, details, d.frame_index, d.frame_offset, timestamp
            )
            if fresh & p.finding_mask:
                d.verdict = VIOLATION_ROW
            if d.side == self.enforced_side and fresh & p.fatal_mask:
                self.stop_decoding(d, 0, d.frame_offset, timestamp, "the peer broke the protocol")
                return True
        return False

    def deliver_payload(self, d: Direction, data: bytes, pos: i64, end: i64) -> i64:
        """Hand on as much of the payload's current part as is there."""
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
        """The last byte of a frame that came in parts has passed."""
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

    def finish_frame(
        self, side: i64, stream: StreamState | None, text: bytes, timestamp: i64
    ) -> None:
        super().finish_frame(side, stream, text, timestamp)
        p = self.protocol
        if len(p.streams.just_evicted) > 0:
            for gone in p.streams.just_evicted:
                p.expire_replies(gone.key, gone)
            p.streams.just_evicted = []
        if len(p.expired_replies) > 0:
            for duty, label in p.expired_replies:
                d = self.direction(duty.side)
                if d.has_unseen_frames():
                    continue  # it may have been paid where nothing was read
                offset = (
                    d.framed_bytes + d.missing_bytes + d.undecoded_bytes + d.overhead_bytes
                )  # the same however it was cut
                self.report_missing_reply(duty, label, Certainty.POSSIBLE, offset, timestamp)
            p.expired_replies = []

    def report_missing_reply(
        self, reply: PendingReply, label: str, certainty: Certainty, offset: i64, timestamp: i64
    ) -> None:
        """A duty was not paid before the end, or before its stream was forgotten."""
        p = self.protocol
        ordinal = max(0, p.causality.frames_sent(reply.side) - 1)
        detail = (
            f"owed {p.kind_name(reply.kind)} since frame {reply.request_index} of the other side"
        )
        for rule in rules_in_mask(p.rules, reply.rule):
            self.violations.append(
                Violation(
                    rule, SIDES[reply.side], ordinal, offset, timestamp, label, certainty, detail
                )
            )

    def gap(self, side: i64, size: i64, timestamp: i64) -> None:
        """Bytes of this direction are missing. Inside a payload decoding goes on behind them."""
        d = self.direction(side)
        d.total_bytes += size
        d.received_at = timestamp
        self.uncertain = True
        if d.in_payload and size <= d.part_bytes_left and not d.decoding_stopped:
            d.offset += size
            while size > 0 and self.zero_filled_bytes < MAX_ZERO_FILL_BYTES:
                step: i64 = size if size < 65536 else 65536
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
            self.stop_decoding(d, 0, d.offset, timestamp, f"{byte_count_text(size)} {are} missing")
            d.stopped_by_gap = True
        d.missing_bytes += size
        d.offset += size

    def release_held(self, side: i64, timestamp: i64) -> None:
        """A handshake of `side` has passed: read what was held back, as far as it can be read."""
        for each in (self.dialer, self.acceptor):
            reason = self.protocol.why_undecodable(each.side)
            if reason and not each.decoding_stopped:
                self.stop_decoding(each, 0, each.offset, timestamp, reason)
        self.decode_held(1 - side)

    def decode_held(self, side: i64) -> None:
        """Read what this direction had to hold back."""
        d = self.direction(side)
        d.join_buffered()
        if len(d.pending) > 0 and not d.decoding_stopped:
            self.decode(d, b"", d.received_at)

    def stop_decoding(
        self, d: Direction, violation_mask: i64, offset: i64, timestamp: i64, reason: str
    ) -> None:
        """The start of the next frame is lost: the rest of this direction is undecoded."""
        d.decoding_stopped = True
        d.stop_reason = reason
        self.stop_credit_tracking(timestamp)
        ordinal = self.protocol.causality.frames_sent(d.side)
        stream: StreamState | None = None
        began = offset
        if d.in_payload:  # a frame that will never be whole: its bytes are undecoded
            d.undecoded_bytes += d.frame_bytes_seen
            d.in_payload = False
            violation_mask &= ~d.format_violations
            ordinal, stream, began = d.frame_index, d.stream, d.frame_offset
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
                d.side, stream, violation_mask, details, ordinal, began, timestamp
            )

    def take_reason(self, default: str) -> str:
        """What the protocol says about the bytes it cannot read."""
        reason = self.protocol.undecodable_reason
        self.protocol.undecodable_reason = ""
        return reason if reason else default
