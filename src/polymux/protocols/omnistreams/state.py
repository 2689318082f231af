# mypyc: compiled
"""The law of omnistreams, and the bookkeeping it relies on.

A stream is one-way: its initiator writes and its acceptor asks for messages or cancels. An id
belongs to the initiator and is used again and again, with nothing to say when the other side has
let go of it; see `omnistreams_ids` for what that asks of a judge.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.causality import Causality
from polymux.core.frames import FrameHeader
from polymux.core.protocol import NO_STREAM
from polymux.core.rules import CROSSED
from polymux.core.streams import ABORTED, ENDED, OPEN, HalfStream, StreamState
from polymux.core.websocket.layer import MessageProtocol
from polymux.protocols.omnistreams.id_history import IdHistory, has_read, load_id_history
from polymux.protocols.omnistreams.rules import (
    BAD_LENGTH,
    CANCEL_ON_UNKNOWN_ID,
    CANCEL_RECEIVE,
    CANCEL_SEND,
    CANCEL_WITH_PAYLOAD,
    CREATE,
    CREATE_ON_OPEN_ID,
    CREDIT_EXCEEDED,
    DATA,
    DATA_ON_UNKNOWN_ID,
    DATA_UNANSWERED,
    EMPTY_MESSAGE,
    END,
    END_ON_UNKNOWN_ID,
    END_WITH_PAYLOAD,
    MESSAGE_TOO_LONG,
    METADATA_TOO_LONG,
    REQUEST,
    REQUEST_ON_UNKNOWN_ID,
    SENT_AFTER_CANCEL,
    UNKNOWN_MESSAGE,
    UNKNOWN_TYPE,
)

KEY_COUNT: Final[i64] = 512  # 256 of each side
MAX_REQUEST_COUNT: Final[i64] = 255  # one byte
MAX_REQUEST_AMOUNT: Final = 1048576  # messages asked for at once; that is 4113 requests on the wire
REMEMBER_ALL: Final[i64] = 1_000_000_000_000  # as many as there will ever be


class OmnistreamsState(MessageProtocol):
    """State and law. `legacy`: the numbering of all code, which has no CANCEL_RECEIVE_STREAM."""

    legacy: bool
    id_histories: list[IdHistory | None]
    streams_closed: i64

    # --- law

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        if kind == DATA and stream is not None:
            return self.validate_data(sender, head, stream)
        if kind == UNKNOWN_MESSAGE:
            return EMPTY_MESSAGE if head.payload_size == 0 else UNKNOWN_TYPE
        verdict: i64 = 0
        if head.payload_size > self.max_control_bytes:
            verdict = MESSAGE_TOO_LONG
        if head.opener == NO_STREAM:
            return verdict  # a control message, or one without an id (its header has said so)
        if kind == CREATE:
            if head.payload_size > self.limits.max_metadata_bytes:
                verdict |= METADATA_TOO_LONG
            if stream is not None and not self.is_over(stream):
                past = self.id_histories[stream.key]
                doubtful = past is not None and past.cancel_is_ambiguous
                verdict |= CROSSED if doubtful else CREATE_ON_OPEN_ID
        elif kind == DATA:
            verdict |= DATA_ON_UNKNOWN_ID
        elif kind == END:
            if head.payload_size > 0:
                verdict |= END_WITH_PAYLOAD
            verdict |= self.validate_writer_stop(
                sender, stream, END_ON_UNKNOWN_ID, SENT_AFTER_CANCEL
            )
        elif kind == CANCEL_RECEIVE:
            if head.payload_size > 0:
                verdict |= CANCEL_WITH_PAYLOAD
            if self.legacy:
                verdict |= UNKNOWN_TYPE
            verdict |= self.validate_writer_stop(
                sender, stream, CANCEL_ON_UNKNOWN_ID, CANCEL_ON_UNKNOWN_ID
            )
        elif kind == CANCEL_SEND:
            if head.payload_size > 0:
                verdict |= CANCEL_WITH_PAYLOAD
            if (sender, CANCEL_SEND, head.key) not in self.pending_replies:
                verdict |= self.validate_reader_message(sender, stream, CANCEL_ON_UNKNOWN_ID)
        else:
            if head.payload_size != 1 or head.amount < 0 or head.amount > MAX_REQUEST_AMOUNT:
                verdict |= BAD_LENGTH
            verdict |= self.validate_reader_message(sender, stream, REQUEST_ON_UNKNOWN_ID)
        return verdict

    def validate_data(self, sender: i64, head: FrameHeader, stream: StreamState) -> i64:
        own = stream.half(sender)
        verdict: i64 = 0
        if own.state != OPEN:
            return DATA_ON_UNKNOWN_ID
        peer = stream.half(1 - sender)
        if peer.state != OPEN:
            verdict = (
                SENT_AFTER_CANCEL
                if self.causality.had_seen(sender, peer.end_frame_index)
                else CROSSED
            )
        if own.credit_spent >= own.promised_limit:
            verdict |= CREDIT_EXCEEDED
        if head.payload_size > self.max_frame_bytes:
            verdict |= MESSAGE_TOO_LONG
        return verdict

    def validate_writer_stop(
        self, sender: i64, stream: StreamState | None, unknown_id_rule: i64, after_cancel_rule: i64
    ) -> i64:
        """The initiator ends or cancels: a stream it has not, or one that it knows is cancelled."""
        if stream is None or stream.half(sender).state != OPEN:
            return unknown_id_rule
        peer = stream.half(1 - sender)
        if peer.state == OPEN:
            return 0
        return (
            after_cancel_rule if self.causality.had_seen(sender, peer.end_frame_index) else CROSSED
        )

    def validate_reader_message(
        self, sender: i64, stream: StreamState | None, unknown_id_rule: i64
    ) -> i64:
        """The acceptor asks or cancels: too late only if it can be shown to know that."""
        if stream is None:
            return unknown_id_rule
        own = stream.half(sender)
        writer = stream.half(1 - sender)
        if own.state == OPEN and writer.state == OPEN:
            return 0
        if may_refer_to_previous_use(stream, sender, self.causality):
            return CROSSED
        if own.state != OPEN:
            return 0 if own.end_is_ambiguous else unknown_id_rule
        return (
            unknown_id_rule if self.causality.had_seen(sender, writer.end_frame_index) else CROSSED
        )

    def is_over(self, stream: StreamState) -> bool:
        return stream.dialer.state != OPEN or stream.acceptor.state != OPEN

    # --- bookkeeping

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        if kind == DATA and stream is not None:
            self.frame_stream = stream
            own = stream.half(sender)
            if own.state == OPEN:
                own.credit_spent += 1
                self.content_counts = True
                if own.credit_spent > stream.protocol_state:
                    self.use_requested_credit(sender, stream, own)
            else:
                self.apply_stray_data(sender, head.key, timestamp)
        elif head.opener == NO_STREAM:
            return
        elif kind == CREATE:
            self.apply_create(sender, head, stream)
        elif kind == DATA:
            self.apply_stray_data(sender, head.key, timestamp)
        elif kind == REQUEST:
            self.apply_request(sender, head, stream)
        elif kind == CANCEL_SEND:
            self.apply_cancel_send(sender, head, stream)
        elif stream is not None:
            self.frame_stream = stream
            own = stream.half(sender)
            if own.state == OPEN:
                own.stop(
                    ENDED if kind == END else ABORTED, self.causality.frames_sent(sender), False
                )
                if kind == CANCEL_RECEIVE and stream.reset_by < 0:
                    stream.reset_by = sender
                self.record_ending(stream, "clean" if kind == END else "cancelled")

    def apply_create(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        made = StreamState(head.key, head.stream_id, sender, self.causality.frames_sent(sender))
        own = made.half(sender)
        own.credit_granted = 0
        past = self.id_history(head.key)
        own.promised_limit = past.start_new_use(sender, self.causality)
        if stream is not None:
            made.incarnation = stream.incarnation + 1
            if has_seen_end(stream, 1 - sender, self.causality):
                if has_read(1 - sender, past.last_stray_data_index, self.causality):
                    past.had_stray_data = False
            elif has_cancelled(stream, 1 - sender):
                if stream.half(sender).credit_spent > 0:
                    past.had_stray_data = (
                        True  # to the letter, data that it cancelled is cancelled again
                    )
            else:
                made.answerable_open_index = stream.answerable_open_index
            if not self.is_over(stream):
                stream.ending = "abandoned"
                self.replaced_stream = stream
        made.name = self.frame_text if head.payload_size <= self.limits.max_metadata_bytes else None
        self.reply_received(1 - sender, CANCEL_SEND, head.key)
        self.streams.insert(made)
        self.frame_stream = made

    def apply_request(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        amount = head.amount
        if amount > 0:
            self.id_history(head.key).add_request(self.causality.frames_sent(sender), amount)
        if stream is not None:
            self.frame_stream = stream
            stream.record_reply(sender, self.causality)
            if amount > 0:
                writer = stream.half(1 - sender)
                writer.credit_granted += amount
                writer.promised_limit += amount
        while amount > MAX_REQUEST_COUNT:  # our own: on the wire it is as many messages as it takes
            self.causality.record_sent(sender)
            amount -= MAX_REQUEST_COUNT

    def apply_cancel_send(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        past = self.id_history(head.key)
        past.last_cancel_index = self.causality.frames_sent(sender)
        past.cancelled_since_create = True
        past.cancelled_silently = False
        self.reply_received(sender, CANCEL_SEND, head.key)
        if stream is None:
            return
        self.frame_stream = stream
        vague = past.had_stray_data or may_refer_to_previous_use(stream, sender, self.causality)
        if not past.had_stray_data:  # else it may answer data that came before the stream
            stream.record_reply(sender, self.causality)
        own = stream.half(sender)
        if own.state == OPEN or (own.end_is_ambiguous and not vague):
            own.stop(ABORTED, self.causality.frames_sent(sender), vague)
            if stream.reset_by < 0:
                stream.reset_by = sender
            self.record_ending(stream, "cancelled")

    def apply_stray_data(self, sender: i64, key: i64, timestamp: i64) -> None:
        """Data for no stream: the other side owes one cancel, until the id is used again."""
        past = self.id_history(key)
        past.had_stray_data = True
        past.last_stray_data_index = self.causality.frames_sent(sender)
        if not past.cancelled_since_create:
            self.expect_reply(1 - sender, CANCEL_SEND, key, DATA_UNANSWERED, timestamp)

    def use_requested_credit(self, sender: i64, stream: StreamState, own: HalfStream) -> None:
        """Data needs leave from the next request, which its sender has therefore read."""
        past = self.id_history(stream.key)
        while own.credit_spent > stream.protocol_state:
            amount = past.use_next_request(sender, self.causality)
            if amount == 0:
                return
            stream.protocol_state += amount

    def record_ending(self, stream: StreamState, ending: str) -> None:
        """What passes first decides how a stream ended."""
        if not stream.ending:
            stream.ending = ending
            self.streams_closed += 1
            self.id_history(stream.key).close_order = self.streams_closed

    def ending(self, stream: StreamState) -> str:
        return stream.ending if stream.ending else "open"

    def id_history(self, key: i64) -> IdHistory:
        found = self.id_histories[key]
        if found is None:
            found = IdHistory()
            self.id_histories[key] = found
        return found

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        text = super().explain(rule, sender, head, stream)
        if rule == UNKNOWN_TYPE and head.kind == UNKNOWN_MESSAGE:
            return f"{text}, type {head.stream_id}"
        if rule == METADATA_TOO_LONG:
            return f"{text}: {self.limits.describe('max_metadata_bytes')}"
        if rule == MESSAGE_TOO_LONG:
            return f"{text}: limit max_frame_bytes={self.max_frame_bytes}; raise it with Limits(max_frame_bytes=...)"
        if rule == CREDIT_EXCEEDED and stream is not None:
            own = stream.half(sender)
            return (
                f"{text}: message {own.credit_spent + 1}, and {own.credit_granted} were requested"
            )
        if stream is None and head.opener != NO_STREAM:
            return f"{text}: id {head.stream_id} was never created"
        return text

    # --- saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["freed"] = int(self.streams_closed)
        kept: list[object] = []
        for key in range(KEY_COUNT):
            past = self.id_histories[key]
            if past is not None:
                kept.append([key, past.save()])
        saved["pasts"] = kept
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        freed, kept = saved["freed"], saved["pasts"]
        assert isinstance(freed, int)
        assert isinstance(kept, list)
        self.streams_closed = freed
        for key, past in kept:
            self.id_histories[key] = load_id_history(past)


def may_refer_to_previous_use(stream: StreamState, reader: i64, causality: Causality) -> bool:
    """May a message of the acceptor still speak of an earlier use of the id?"""
    return stream.answerable_open_index != stream.open_frame_index and not causality.had_seen(
        reader, stream.open_frame_index
    )


def has_seen_end(stream: StreamState, reader: i64, causality: Causality) -> bool:
    """Has the acceptor provably read that this stream is over, and all that came before?"""
    writer = stream.half(1 - reader)
    return writer.state != OPEN and has_read(reader, writer.end_frame_index, causality)


def has_cancelled(stream: StreamState, reader: i64) -> bool:
    """Has the acceptor cancelled this very use of the id?"""
    own = stream.half(reader)
    return own.state != OPEN and not own.end_is_ambiguous
