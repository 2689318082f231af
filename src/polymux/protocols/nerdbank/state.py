# mypyc: compiled
"""The law of Nerdbank MultiplexingStream, the same for all three versions.

`judge` and its parts say what a frame breaks; below it the bookkeeping that `judge` relies on.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.core.rules import CROSSED, PendingReply, byte_count_text
from polymux.core.side import ACCEPTOR, DIALER, NEITHER_SIDE
from polymux.core.streams import ABORTED, ENDED, NEVER, OPEN, HalfStream, StreamState
from polymux.protocols.nerdbank.codec import (
    ACCEPTED,
    BAD_ACCEPTANCE,
    BAD_FRAME,
    CONTENT_FRAME,
    GROWTH_REQUEST,
    HANDSHAKE,
    MALFORMED,
    MAX_SENT_PAYLOAD,
    OFFER,
    PROCESSED,
    READING_COMPLETED,
    TERMINATED,
    WINDOW_ADJUST,
    WRITING_COMPLETED,
    WRONG_SOURCE,
)
from polymux.protocols.nerdbank.rules import (
    ACCEPTED_UNKNOWN_OFFER,
    ACKNOWLEDGED_TOO_MUCH,
    COMPLETED_TWICE,
    CONTENT_AFTER_COMPLETED,
    CONTENT_BEFORE_ACCEPTANCE,
    EQUAL_RANDOMS,
    FRAME_AFTER_PEER_TERMINATION,
    FRAME_AFTER_TERMINATION,
    FRAME_TOO_LONG,
    ID_PARITY,
    ID_RECYCLED,
    ID_REUSED,
    KINDS,
    NOT_TERMINATED,
    RULES,
    TERMINATED_TWICE,
    TERMINATION_UNANSWERED,
    TRUNCATED,
    UNKNOWN_CHANNEL,
    UNKNOWN_CODE,
    WINDOW_EXCEEDED,
    WINDOW_SHRUNK,
)

MAX_RECEIVED_PAYLOAD: Final = 65536  # what we take at most
PREVIOUS_USE_POSSIBLE: Final[i64] = (
    1  # mark of a channel: of its id's use before, frames may yet come
)


class NerdbankState(Protocol):
    """State and law. `seeded`: windows of the channels both sides were configured with (v3)."""

    def __init__(
        self,
        limits: Limits,
        vantage: i64,
        version: i64 = 3,
        seeded_windows: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__("nerdbank", RULES, KINDS, limits, vantage)
        self.major_version: i64 = version
        self.seeded_windows = seeded_windows
        self.has_credit = version >= 2
        self.max_frame_bytes = (
            limits.max_frame_bytes if limits.max_frame_bytes > 0 else MAX_RECEIVED_PAYLOAD
        )
        self.max_sent_frame_bytes = MAX_SENT_PAYLOAD
        self.too_long_rule = FRAME_TOO_LONG
        self.truncated_rule = TRUNCATED
        self.peer_dependent_rules = (
            ID_REUSED
            | ACCEPTED_UNKNOWN_OFFER
            | UNKNOWN_CHANNEL
            | WINDOW_EXCEEDED
            | ACKNOWLEDGED_TOO_MUCH
        )
        self.handshake_done = version == 3
        self.dialer_random: bytes = b""
        self.acceptor_random: bytes = b""
        self.odd_id_side: i64 = -1  # the side with the odd ids (v1, v2)
        self.next_dialer_id: i64 = 0
        self.next_acceptor_id: i64 = 0

    # --- law

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        if kind == CONTENT_FRAME and stream is not None:
            return self.validate_content(sender, head, stream)
        if kind >= MALFORMED:
            return self.validate_handshake(sender) if kind == HANDSHAKE else 0
        if kind == OFFER:
            return self.validate_offer(sender, head, stream)
        if kind > GROWTH_REQUEST or (self.major_version == 1 and kind > PROCESSED):
            return UNKNOWN_CODE
        if stream is None:
            if head.opener != NEITHER_SIDE or not self.is_seeded(head.stream_id):
                return ACCEPTED_UNKNOWN_OFFER if kind == ACCEPTED else UNKNOWN_CHANNEL
            stream = self.new_seeded_channel(head.stream_id)
            if kind == CONTENT_FRAME:
                return self.validate_content(sender, head, stream)
        if stream.protocol_state != 0 and self.may_refer_to_previous_use(sender, stream):
            return CROSSED
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        if own.last_frame_index != NEVER:
            return TERMINATED_TWICE if kind == TERMINATED else FRAME_AFTER_TERMINATION
        if kind == TERMINATED:
            return 0
        verdict = self.validate_after_peer_termination(sender, peer)
        if kind == ACCEPTED:
            if stream.opener == sender or stream.opener == NEITHER_SIDE or stream.accepted:
                verdict |= BAD_ACCEPTANCE
        elif kind == WRITING_COMPLETED:
            if stream.opener == 1 - sender and not stream.accepted:
                verdict |= CONTENT_BEFORE_ACCEPTANCE
            if own.state == ENDED:
                verdict |= COMPLETED_TWICE
        elif kind == PROCESSED:
            if self.major_version == 1:
                verdict |= BAD_FRAME
            elif peer.credit_granted >= 0 and head.amount > peer.credit_spent - (
                peer.credit_granted - peer.window
            ):
                verdict |= ACKNOWLEDGED_TOO_MUCH
        elif kind == WINDOW_ADJUST and 0 <= head.amount < peer.window:
            verdict |= WINDOW_SHRUNK
        return verdict

    def validate_content(self, sender: i64, head: FrameHeader, stream: StreamState) -> i64:
        if stream.protocol_state != 0 and self.may_refer_to_previous_use(sender, stream):
            return CROSSED
        own = stream.half(sender)
        if own.last_frame_index != NEVER:
            return FRAME_AFTER_TERMINATION
        verdict: i64 = 0
        peer = stream.half(1 - sender)
        if peer.last_frame_index != NEVER:
            verdict = self.validate_after_peer_termination(sender, peer)
        if not stream.accepted and stream.opener == 1 - sender:
            verdict |= CONTENT_BEFORE_ACCEPTANCE
        if own.state != OPEN:
            verdict |= CONTENT_AFTER_COMPLETED
        size: int = head.payload_size  # no native number: a peer may grant more than 2^63
        if own.credit_granted >= 0 and own.credit_spent + size > own.credit_granted:
            verdict |= WINDOW_EXCEEDED
        return verdict

    def validate_offer(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        if head.opener != sender:
            return WRONG_SOURCE if self.major_version == 3 else ID_PARITY
        if stream is None:
            return 0
        return ID_RECYCLED if self.is_over(stream) else ID_REUSED

    def validate_handshake(self, sender: i64) -> i64:
        other = self.acceptor_random if sender == DIALER else self.dialer_random
        return EQUAL_RANDOMS if len(other) > 0 and other == self.frame_text else 0

    def may_refer_to_previous_use(self, sender: i64, stream: StreamState) -> bool:
        """May a frame of the side that did not offer this speak of the id's use before?"""
        return sender != stream.opener and not self.causality.had_seen(
            sender, stream.open_frame_index
        )

    def validate_after_peer_termination(self, sender: i64, peer: HalfStream) -> i64:
        """A frame behind the peer's termination: it crossed, or its sender had read that."""
        if peer.last_frame_index == NEVER:
            return 0
        return (
            FRAME_AFTER_PEER_TERMINATION
            if self.causality.had_seen(sender, peer.last_frame_index)
            else CROSSED
        )

    def is_seeded(self, channel_id: i64) -> bool:
        return self.major_version == 3 and (
            self.seeded_windows is None or channel_id < len(self.seeded_windows)
        )

    def is_over(self, stream: StreamState) -> bool:
        d, a = stream.dialer, stream.acceptor
        return (d.last_frame_index != NEVER or d.state != OPEN) and (
            a.last_frame_index != NEVER or a.state != OPEN
        )

    # --- bookkeeping

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        if kind == CONTENT_FRAME and stream is not None:
            self.frame_stream = stream
            stream.record_reply(sender, self.causality)
            own = stream.half(sender)
            if own.state == OPEN and own.last_frame_index == NEVER:
                own.credit_spent += head.payload_size
                self.content_counts = True
            return
        if kind >= MALFORMED:
            if kind == HANDSHAKE:
                self.apply_handshake(sender)
            return
        if kind == OFFER:
            self.apply_offer(sender, head, stream)
            return
        if stream is None:
            if head.opener != NEITHER_SIDE or not self.is_seeded(head.stream_id):
                return
            stream = self.open_seeded_channel(head.stream_id)
            if kind == CONTENT_FRAME:
                stream.half(sender).credit_spent = head.payload_size
                self.content_counts = True
        self.frame_stream = stream
        stream.record_reply(sender, self.causality)
        if stream.half(sender).last_frame_index == NEVER:
            self.apply_control(sender, head, stream, timestamp)

    def apply_control(
        self, sender: i64, head: FrameHeader, stream: StreamState, timestamp: i64
    ) -> None:
        kind = head.kind
        own = stream.half(sender)
        peer = stream.half(1 - sender)
        if kind == ACCEPTED:
            if stream.opener == 1 - sender and not stream.accepted:
                stream.accepted = True
                grant_window(peer, head.amount, self.has_credit)
        elif kind == PROCESSED:
            if peer.credit_granted >= 0 and head.amount > 0:
                peer.credit_granted += head.amount
        elif kind == WINDOW_ADJUST:
            self.reply_received(sender, WINDOW_ADJUST, stream.key)
            if peer.credit_granted >= 0 and head.amount > peer.window:
                peer.credit_granted += head.amount - peer.window
                peer.window = head.amount
        elif kind == GROWTH_REQUEST:
            if (
                peer.last_frame_index == NEVER
            ):  # behind its own termination nobody can answer any more
                self.expect_reply(1 - sender, WINDOW_ADJUST, stream.key, 0, timestamp)
        elif kind == READING_COMPLETED:
            if peer.state == OPEN:
                self.expect_reply(1 - sender, WRITING_COMPLETED, stream.key, 0, timestamp)
        elif kind == WRITING_COMPLETED:
            self.reply_received(sender, WRITING_COMPLETED, stream.key)
            if own.state == OPEN:
                own.stop(ENDED, self.causality.frames_sent(sender), False)
            if peer.state == ENDED and peer.last_frame_index == NEVER:
                self.expect_reply(DIALER, TERMINATED, stream.key, NOT_TERMINATED, timestamp)
                self.expect_reply(ACCEPTOR, TERMINATED, stream.key, NOT_TERMINATED, timestamp)
        elif kind == TERMINATED:
            self.apply_termination(sender, stream, own, peer, timestamp)

    def apply_termination(
        self, sender: i64, stream: StreamState, own: HalfStream, peer: HalfStream, timestamp: i64
    ) -> None:
        if stream.reset_by < 0:
            stream.reset_by = sender
            stream.error = self.frame_text if len(self.frame_text) > 0 else None
            if not stream.accepted and stream.opener != NEITHER_SIDE:
                stream.ending = "cancelled" if stream.opener == sender else "rejected"
            elif own.state == ENDED and peer.state == ENDED:
                stream.ending = "clean"
            else:
                stream.ending = "reset"
        own.last_frame_index = self.causality.frames_sent(sender)
        if own.state == OPEN:
            own.stop(ABORTED, own.last_frame_index, False)
        for kind in (TERMINATED, WRITING_COMPLETED, WINDOW_ADJUST):
            self.reply_received(sender, kind, stream.key)
        if peer.last_frame_index == NEVER:
            self.reply_received(1 - sender, TERMINATED, stream.key)
            self.expect_reply(1 - sender, TERMINATED, stream.key, TERMINATION_UNANSWERED, timestamp)

    def apply_offer(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        made = StreamState(
            head.key, head.stream_id, head.opener, self.causality.frames_sent(sender)
        )
        if stream is not None:
            made.incarnation = stream.incarnation + 1
            made.answerable_open_index = stream.answerable_open_index
            if stream.half(1 - head.opener).last_frame_index == NEVER:
                made.protocol_state = PREVIOUS_USE_POSSIBLE
            if not self.is_over(stream):
                stream.ending = "abandoned"
                self.replaced_stream = stream
        made.name = self.frame_text
        if self.has_credit:
            grant_window(made.half(sender), 0, True)
            grant_window(made.half(1 - sender), head.amount, True)
        self.streams.insert(made)
        self.frame_stream = made

    def open_seeded_channel(self, channel_id: i64) -> StreamState:
        """A channel both sides were configured with; made at its first use."""
        key = channel_id * 4 + NEITHER_SIDE
        stream = self.streams.find(key)
        if stream is not None:
            return stream
        made = self.new_seeded_channel(channel_id)
        self.streams.insert(made)
        return made

    def new_seeded_channel(self, channel_id: i64) -> StreamState:
        """A seeded channel on which nothing has passed."""
        made = StreamState(channel_id * 4 + NEITHER_SIDE, channel_id, NEITHER_SIDE, 0)
        made.accepted = True
        if self.seeded_windows is not None:
            grant_window(made.dialer, self.seeded_windows[channel_id], True)
            grant_window(made.acceptor, self.seeded_windows[channel_id], True)
        return made

    def apply_handshake(self, sender: i64) -> None:
        if sender == DIALER:
            self.dialer_random = self.frame_text
        else:
            self.acceptor_random = self.frame_text
        if len(self.dialer_random) > 0 and len(self.acceptor_random) > 0:
            self.odd_id_side = DIALER if self.dialer_random > self.acceptor_random else ACCEPTOR
            self.handshake_done = True
            self.peer_unblocked = True

    def is_reportable(self, reply: PendingReply, stream: StreamState | None) -> bool:
        if reply.rule == NOT_TERMINATED and stream is not None:  # owed by both: said once
            return reply.side == (DIALER if stream.opener == NEITHER_SIDE else stream.opener)
        return reply.rule != 0

    def ending(self, stream: StreamState) -> str:
        if not stream.ending and not stream.accepted and stream.opener != NEITHER_SIDE:
            return "never-accepted"
        return super().ending(stream)

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        text = super().explain(rule, sender, head, stream)
        if stream is None:
            return text
        own, peer = stream.half(sender), stream.half(1 - sender)
        if rule == WINDOW_EXCEEDED:
            size: int = head.payload_size
            over = own.credit_spent + size - own.credit_granted
            return f"{text}: {byte_count_text(over)} beyond the window of {own.window}"
        if rule == ACKNOWLEDGED_TOO_MUCH:
            outstanding = max(0, peer.credit_spent - (peer.credit_granted - peer.window))
            were = "was" if outstanding == 1 else "were"
            return f"{text}: only {byte_count_text(outstanding)} {were} outstanding"
        return text


def grant_window(half: HalfStream, amount: int, has_credit: bool) -> None:
    """Announce a window to a half; none announced is no leave at all."""
    if has_credit:
        half.window = amount if amount > 0 else 0
        half.credit_granted = half.window
