# mypyc: compiled
"""multiplex / mplex: duplex streams with names, half-close and reset; no flow control.

A frame is `uvarint(id * 8 + flag) uvarint(length) payload`. The flag gives the frame's
kind and whether its sender opened the stream, so both sides may use the same id at once.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from polymux.core.frames import ABORTS, CONTENT, CONTROL, ENDS, OPENS, Frame, FrameHeader, FrameKind
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, NO_STREAM, Protocol
from polymux.core.rules import CROSSED, PendingReply
from polymux.core.side import DIALER, UNORDERED
from polymux.core.streams import ABANDONED, ABORTED, ENDED, NEVER, NOT_YET, OPEN, StreamState
from polymux.core.varint import INVALID, put_uvarint, uvarint
from polymux.protocols.mplex.id_reuse import (
    PREVIOUS_USE_POSSIBLE,
    ReusedIds,
    is_allowed_in_state,
    state_by_own_frames,
)
from polymux.protocols.mplex.rules import (
    BAD_FLAG,
    CLOSE_TWICE,
    CLOSE_WITH_PAYLOAD,
    FRAME_TOO_LONG,
    ID_PARITY,
    ID_RECYCLED,
    ID_REUSED,
    RESET_AFTER_CLOSE,
    RESET_WITH_PAYLOAD,
    RULES,
    TRUNCATED,
    UNKNOWN_STREAM,
    VARINT_NONCANONICAL,
    VARINT_TOO_LONG,
    WRITE_AFTER_CLOSE,
    WRITE_AFTER_PEER_RESET,
    WRITE_AFTER_RESET,
    WRONG_ROLE_FLAG,
)
from polymux.protocols.option_values import parse_integer

NEW_STREAM: Final[i64] = 0
MESSAGE_RECEIVER: Final[i64] = 1
MESSAGE_INITIATOR: Final[i64] = 2
CLOSE_RECEIVER: Final[i64] = 3
CLOSE_INITIATOR: Final[i64] = 4
RESET_RECEIVER: Final[i64] = 5
RESET_INITIATOR: Final[i64] = 6
UNDEFINED: Final[i64] = 7

KINDS: Final = {
    0: FrameKind("NewStream", OPENS),
    1: FrameKind("MessageReceiver", CONTENT),
    2: FrameKind("MessageInitiator", CONTENT),
    3: FrameKind("CloseReceiver", ENDS),
    4: FrameKind("CloseInitiator", ENDS),
    5: FrameKind("ResetReceiver", ABORTS),
    6: FrameKind("ResetInitiator", ABORTS),
    7: FrameKind("Undefined", CONTROL),
}

MAX_PAYLOAD: Final = 1048576  # bytes, inclusive, in every implementation that has a limit
NEEDS_SLOW_PATH: Final[i64] = -1  # a varint of more than two bytes or not in shortest form
# Of a header whose position is only assumed:
CLOSE_BITS: Final[i64] = 6  # evidence of a close or reset without payload
MAX_PLAUSIBLE_ID: Final[i64] = 0xFFFFFFFF
MAX_PLAUSIBLE_NAME: Final[i64] = 1024  # bytes of a name or of the text of a reset
MAX_ID: Final[i64] = 0x0FFFFFFFFFFFFFFF  # nine varint bytes less three bits of flag


def is_open_and_unambiguous(sender: i64, stream: StreamState) -> bool:
    """Return whether any content frame of `sender` is valid on this stream.

    That is so if the stream is open both ways and its frames cannot belong to an earlier use.
    """
    return (
        stream.dialer.state == OPEN
        and stream.acceptor.state == OPEN
        and (stream.protocol_state & PREVIOUS_USE_POSSIBLE == 0 or stream.opener == sender)
    )


class Mplex(Protocol):
    """mplex on one connection.

    `sequential_ids` allocates 0, 1, 2... on both sides; otherwise the dialer allocates odd ids and
    the acceptor even ones.
    """

    def __init__(self, limits: Limits, vantage: i64, sequential_ids: bool = False) -> None:
        super().__init__("mplex", RULES, KINDS, limits, vantage)
        self.max_frame_bytes = limits.max_frame_bytes if limits.max_frame_bytes > 0 else MAX_PAYLOAD
        self.max_sent_frame_bytes = (
            MAX_PAYLOAD if self.max_frame_bytes > MAX_PAYLOAD else self.max_frame_bytes
        )
        self.too_long_rule = FRAME_TOO_LONG
        self.truncated_rule = TRUNCATED
        self.peer_dependent_rules = ID_REUSED | UNKNOWN_STREAM | WRONG_ROLE_FLAG
        self.history_dependent_rules = WRITE_AFTER_PEER_RESET | RESET_AFTER_CLOSE
        self.frame_rules = BAD_FLAG | CLOSE_WITH_PAYLOAD | RESET_WITH_PAYLOAD | ID_PARITY
        self.can_begin_anywhere = True
        self.uniform_content = True
        self.control_is_text = True
        self.sequential_ids = sequential_ids
        self.next_dialer_id: i64 = 0 if sequential_ids else 1
        self.next_acceptor_id: i64 = 0
        self.reused_ids: ReusedIds = ReusedIds(self.causality, self.streams)

    # Decoding and encoding

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        if end - pos >= 4:  # fast path: two varints of one or two bytes
            word: i64 = data[pos]
            mid = pos + 1
            if word > 127:
                more: i64 = data[mid]
                mid += 1
                word = more * 128 + word - 128 if 0 < more < 128 else NEEDS_SLOW_PATH
            if word >= 0:
                size: i64 = data[mid]
                start = mid + 1
                if size > 127:
                    more = data[start]
                    start += 1
                    size = more * 128 + size - 128 if 0 < more < 128 else NEEDS_SLOW_PATH
                if size >= 0:
                    return self.fill_header(sender, word, size, 0, start, head)
        return self.decode_header_slow(sender, data, pos, end, head)

    def decode_header_slow(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> i64:
        """Decode varints of any length and form, or report that the header is incomplete."""
        word, mid = uvarint(data, pos, end)
        if mid < 0:
            if mid == INVALID:
                head.format_violations = VARINT_TOO_LONG
            return mid
        size, start = uvarint(data, mid, end)
        if start < 0:
            if start == INVALID:
                head.format_violations = VARINT_TOO_LONG
            return start
        violations: i64 = 0
        if (data[mid - 1] == 0 and mid - pos > 1) or (data[start - 1] == 0 and start - mid > 1):
            violations = VARINT_NONCANONICAL
        return self.fill_header(sender, word, size, violations, start, head)

    def fill_header(
        self,
        sender: i64,
        word: i64,
        size: i64,
        format_violations: i64,
        start: i64,
        head: FrameHeader,
    ) -> i64:
        if size > self.max_frame_bytes:
            format_violations |= FRAME_TOO_LONG
        kind = word & 7
        number = word >> 3
        opener = sender ^ (kind & 1)  # odd flags are sent by the side that did not open it
        head.kind = kind
        head.stream_id = number
        head.opener = opener if kind != UNDEFINED else NO_STREAM
        head.key = number * 2 + opener
        head.payload_size = size
        head.credit_cost = size
        head.trailer_size = 0
        head.parts_left = 0
        head.amount = -1
        head.text_size = -1
        head.format_violations = format_violations
        return start

    def decode_body(
        self, sender: i64, data: bytes, start: i64, end: i64, head: FrameHeader
    ) -> None:
        head.text_start = start
        head.text_size = end - start

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        word = head.stream_id * 8 + head.kind
        if word < 128 and head.payload_size < 128:  # fast path: two varints of one byte
            out.append(u8(word))
            out.append(u8(head.payload_size))
        else:
            put_uvarint(out, word)
            put_uvarint(out, head.payload_size)
        if head.kind != MESSAGE_RECEIVER and head.kind != MESSAGE_INITIATOR:
            out.write(text)

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        head.stream_id = head.key >> 1
        opener = sender ^ (head.kind & 1)
        head.key = head.stream_id * 2 + opener
        head.opener = opener if head.kind != UNDEFINED else NO_STREAM

    def header_evidence(self, sender: i64, head: FrameHeader) -> i64:
        kind = head.kind
        size = head.payload_size
        if (
            kind == UNDEFINED
            or head.stream_id > MAX_PLAUSIBLE_ID
            or (kind == NEW_STREAM and size > MAX_PLAUSIBLE_NAME)
            or (CLOSE_RECEIVER <= kind <= CLOSE_INITIATOR and size > 0)
            or (kind >= RESET_RECEIVER and size > MAX_PLAUSIBLE_NAME)
        ):
            return -1
        if kind <= MESSAGE_INITIATOR:
            return 1  # most pairs of bytes are such a header
        return CLOSE_BITS if size == 0 else 1

    # Validation

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        if (
            stream is not None
            and (kind == MESSAGE_INITIATOR or kind == MESSAGE_RECEIVER)
            and is_open_and_unambiguous(sender, stream)
        ):
            return 0  # fast path: no rule below applies
        if kind == NEW_STREAM:
            return self.validate_open(sender, head, stream)
        if kind == UNDEFINED:
            return BAD_FLAG
        if stream is None:
            if kind & 1 and self.causality.vantage == UNORDERED:
                return CROSSED  # the NewStream in the other direction may have come first
            other = self.streams.find(head.key ^ 1)
            return WRONG_ROLE_FLAG if other is not None and not other.over else UNKNOWN_STREAM
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        violations: i64 = 0
        if head.payload_size > 0 and kind >= CLOSE_RECEIVER:
            violations = CLOSE_WITH_PAYLOAD if kind <= CLOSE_INITIATOR else RESET_WITH_PAYLOAD
        if (
            stream.protocol_state & PREVIOUS_USE_POSSIBLE
            and sender != stream.opener
            and not self.reused_ids.is_certainly_about(sender, self.effects[kind], stream)
        ):
            return violations | CROSSED  # may be about an earlier use of this id
        reset_known = False
        if peer.state == ABORTED:
            reset_known = self.causality.had_seen(sender, peer.end_frame_index)
            if peer.end_is_ambiguous and self.causality.vantage == UNORDERED:
                reset_known = False  # it may have been read before the id was reused
            if not reset_known:
                violations |= CROSSED
        if (
            self.causality.vantage == UNORDERED
            and sender != stream.opener
            and (own.state != OPEN or peer.state == ABORTED)
        ):
            return violations | CROSSED  # the id may have been reused before this frame
        # A side knows its own frames, whatever crossed them in flight.
        if own.last_frame_index != NEVER and not own.end_is_ambiguous:
            return violations | WRITE_AFTER_RESET
        certain = self.reused_ids.certain_state(stream) if own.end_is_ambiguous else own.state
        if certain == ENDED and kind <= CLOSE_INITIATOR:
            return violations | (WRITE_AFTER_CLOSE if kind <= MESSAGE_INITIATOR else CLOSE_TWICE)
        if peer.state == ABORTED:
            if reset_known:
                violations |= (
                    WRITE_AFTER_PEER_RESET if kind <= CLOSE_INITIATOR else RESET_AFTER_CLOSE
                )
        elif (
            own.state == ENDED
            and not own.end_is_ambiguous
            and peer.state == ENDED
            and self.causality.had_seen(sender, peer.end_frame_index)
        ):
            violations |= RESET_AFTER_CLOSE
        return violations

    def drop_peer_dependent(self, head: FrameHeader, violation_mask: i64) -> i64:
        if head.kind & 1:  # the opener may have reused the id
            violation_mask &= ~(
                WRITE_AFTER_CLOSE
                | CLOSE_TWICE
                | WRITE_AFTER_RESET
                | WRITE_AFTER_PEER_RESET
                | RESET_AFTER_CLOSE
            )
        return super().drop_peer_dependent(head, violation_mask)

    def validate_open(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        violations: i64 = 0 if (head.stream_id & 1) == 1 - sender else ID_PARITY
        if stream is not None:
            free = self.reused_ids.may_be_free(stream)
            violations |= ID_RECYCLED if free else ID_REUSED
        return violations

    def is_over(self, stream: StreamState) -> bool:
        d, a = stream.dialer.state, stream.acceptor.state
        return d == ABORTED or a == ABORTED or (d == ENDED and a == ENDED)

    # State changes

    def resolve_incarnation(
        self, sender: i64, head: FrameHeader, stream: StreamState
    ) -> StreamState:
        if head.kind == NEW_STREAM or sender == stream.opener:
            return stream
        return self.reused_ids.resolve_incarnation(sender, self.effects[head.kind], stream)

    def may_receive_late_frames(self, stream: StreamState) -> bool:
        return self.reused_ids.may_receive_late_frames(stream)

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        if kind == NEW_STREAM:
            self.apply_open(sender, head, stream)
            return
        if stream is None:
            return
        self.frame_stream = stream
        ambiguous = False
        own = stream.half(sender)
        if sender != stream.opener and (len(self.reused_ids.histories) > 0 or own.state != OPEN):
            ambiguous = self.reused_ids.track_receiver_frame(sender, self.effects[kind], stream)
        stream.record_reply(sender, self.causality)
        if own.end_is_ambiguous and not is_allowed_in_state(
            self.effects[kind], state_by_own_frames(own)
        ):
            self.retract_stop(sender, stream)
        if kind <= MESSAGE_INITIATOR:
            self.content_counts = own.state == OPEN
            return
        if own.state == OPEN or (
            kind >= RESET_RECEIVER and not self.reset_has_no_effect(sender, stream)
        ):
            if ambiguous and not own.end_is_ambiguous:
                self.reused_ids.mark_stop_ambiguous(stream, own.state)
            own.stop(
                ENDED if kind <= CLOSE_INITIATOR else ABORTED,
                self.causality.frames_sent(sender),
                ambiguous,
            )
            if kind >= RESET_RECEIVER and stream.ending != ABANDONED:
                self.record_reset(sender, stream)
            if self.causality.vantage == UNORDERED and self.is_over(stream):
                stream.ending = ""  # it was over before its id was reused
        if kind >= RESET_RECEIVER and own.last_frame_index == NEVER:
            own.last_frame_index = self.causality.frames_sent(sender)

    def apply_open(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        """Start a use of an id. `stream` is the previous use, if any."""
        made = StreamState(head.key, head.stream_id, sender, self.causality.frames_sent(sender))
        if stream is not None:
            made.incarnation = stream.incarnation + 1
            if not self.is_over(stream):
                if not stream.unseen:
                    stream.ending = ABANDONED
                self.replaced_stream = stream
            self.reused_ids.start_new_use(stream, made, self.peer_frame_started)
        made.name = self.frame_text
        self.streams.insert(made)
        self.frame_stream = made

    def retract_stop(self, sender: i64, stream: StreamState) -> None:
        """Undo a stop of `sender`, which has sent more: the stop belonged to an earlier use."""
        own, peer = stream.half(sender), stream.half(1 - sender)
        own.stop(self.reused_ids.retract_stop(stream), own.end_frame_index, False)
        own.last_frame_index = NEVER
        if stream.reset_by == sender:
            stream.reset_by = -1
            stream.error = None
            if peer.last_frame_index != NEVER:
                stream.reset_by = 1 - sender
                stream.error = self.reused_ids.opener_reset_text(stream)
        if stream.over and not self.is_over(stream):
            stream.over = False
            stream.closed_at = NOT_YET

    def record_reset(self, sender: i64, stream: StreamState) -> None:
        """Record the side that reset the stream first, and its text."""
        text = self.frame_text if len(self.frame_text) > 0 else None
        if stream.reset_by < 0:
            stream.reset_by = sender
            stream.error = text
        elif stream.reset_by != sender and stream.half(1 - sender).end_is_ambiguous:
            self.reused_ids.store_opener_reset_text(stream, text)

    def validate_and_apply_content(
        self, sender: i64, head: FrameHeader, stream: StreamState, timestamp: i64
    ) -> bool:
        if not is_open_and_unambiguous(sender, stream):
            return super().validate_and_apply_content(sender, head, stream, timestamp)
        self.frame_stream = stream
        if sender != stream.opener:
            self.causality.record_seen(sender, stream.answerable_open_index)
        self.content_counts = True
        return True

    def reset_has_no_effect(self, sender: i64, stream: StreamState) -> bool:
        """Return whether a reset of `sender` changes nothing: the first stop decides the ending."""
        own, peer = stream.half(sender), stream.half(1 - sender)
        return own.state == ABORTED or (
            own.state == ENDED and peer.state == ENDED and not peer.end_is_ambiguous
        )

    def finish(self, ended: bool) -> list[PendingReply]:
        self.reused_ids.finish()
        return super().finish(ended)

    # Frames to send

    def allocate(self, side: i64) -> i64:
        number = self.next_dialer_id if side == DIALER else self.next_acceptor_id
        if number > MAX_ID:
            return NO_ID
        step: i64 = 1 if self.sequential_ids else 2
        if side == DIALER:
            self.next_dialer_id = number + step
        else:
            self.next_acceptor_id = number + step
        return number * 2 + side

    def open_frame(self, side: i64, key: i64, name: bytes, window: int) -> Frame | None:
        return Frame(NEW_STREAM, key, name)

    def fill_content_header(
        self, side: i64, stream: StreamState, head: FrameHeader, final: bool
    ) -> None:
        head.kind = MESSAGE_INITIATOR if stream.opener == side else MESSAGE_RECEIVER
        head.credit_cost = head.payload_size

    def end_frame(self, side: i64, stream: StreamState) -> Frame | None:
        return Frame(CLOSE_INITIATOR if stream.opener == side else CLOSE_RECEIVER, stream.key)

    def abort_frame(self, side: i64, stream: StreamState, text: bytes) -> Frame | None:
        return Frame(RESET_INITIATOR if stream.opener == side else RESET_RECEIVER, stream.key)

    # Saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["next_ids"] = [self.next_dialer_id, self.next_acceptor_id]
        saved["reused_ids"] = self.reused_ids.save()
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        next_ids, reused_ids = saved["next_ids"], saved["reused_ids"]
        # Saved state is untyped; `save` writes these lists.
        assert isinstance(next_ids, list)
        assert isinstance(reused_ids, list)
        self.next_dialer_id, self.next_acceptor_id = next_ids[0], next_ids[1]
        self.reused_ids.load(reused_ids)

    def relink(self, gone: list[StreamState]) -> None:
        self.reused_ids.relink(gone)


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """Make an `Mplex` from the options of a protocol string.

    `ids=parity|counting` selects the ids to allocate, `max_frame` is the largest payload accepted
    in bytes.
    """
    ids = options.get("ids", "parity")
    if ids not in ("parity", "counting"):
        raise ValueError(f"ids is parity or counting, not {ids!r}")
    if "max_frame" in options:
        limits.max_frame_bytes = parse_integer(options["max_frame"], "max_frame", 1)
    return Mplex(limits, vantage, ids == "counting")
