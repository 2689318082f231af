# mypyc: compiled
"""Streamux's bookkeeping: what a frame changes, whatever was said of it."""

from collections import OrderedDict

from mypy_extensions import i64

from polymux.core.frames import FrameHeader
from polymux.core.limits import Limits
from polymux.core.rules import PendingReply
from polymux.core.side import DIALER
from polymux.core.streams import ABORTED, ENDED, NEVER, StreamState
from polymux.protocols.streamux.initiator import (
    INITIATOR_INVALID,
    INITIATOR_MISSING,
    INITIATOR_VALID,
)
from polymux.protocols.streamux.rules import (
    CANCEL,
    CANCEL_ACK,
    CANCEL_UNANSWERED,
    EMPTY_REPLY,
    ID_IN_FLIGHT,
    INITIATOR,
    KEEP_ALIVE,
    REPLY_BIT,
    REQUEST_LAST,
    TERMINATION_BIT,
)
from polymux.protocols.streamux.validation import (
    ID_BUSY,
    ID_REQUESTING,
    REPLIER,
    REPLIER_ACKS,
    REQUEST_COMPLETE,
    REQUESTER,
    StreamuxValidation,
)


class StreamuxState(StreamuxValidation):
    """The law, and the state it rests on."""

    def __init__(self, limits: Limits, vantage: i64) -> None:
        super().__init__(limits, vantage)
        self.dialer_locked_count: i64 = 0  # keys in `locked` that the dialer cancelled
        self.acceptor_locked_count: i64 = 0
        self.repeated_pending_acks: int = 0  # duties for cancels of ids that had one already
        self.max_repeated_pending_acks: int = max(
            limits.max_queued_replies, limits.closed_streams_remembered
        )
        self.keys_without_stream: OrderedDict[int, None] = (
            OrderedDict()
        )  # ids without a stream, oldest first

    def apply(
        self, sender: i64, head: FrameHeader, stream: StreamState | None, timestamp: i64
    ) -> None:
        kind = head.kind
        self.frame_stream = stream
        if kind == INITIATOR:
            self.apply_initiator(sender)
        elif kind == CANCEL:
            self.apply_cancel(sender, head.key, stream, timestamp)
        elif kind == CANCEL_ACK:
            self.apply_cancel_ack(sender, head.key, stream)
        elif kind & REPLY_BIT:
            self.apply_reply(sender, head, stream)
        elif kind != KEEP_ALIVE:
            self.apply_request(sender, head, stream)

    # --- initiators

    def apply_initiator(self, sender: i64) -> None:
        own, other = self.layout_of(sender), self.layout_of(1 - sender)
        own.set_from_initiator(self.frame_text)
        self.update_shared_layout()
        self.peer_unblocked = own.status == INITIATOR_INVALID or other.status != INITIATOR_MISSING
        self.handshake_done = own.status == INITIATOR_VALID and other.header_size == own.header_size

    def why_undecodable(self, side: i64) -> str:
        own, other = self.layout_of(side), self.layout_of(1 - side)
        if own.status == INITIATOR_INVALID:
            return "the initiator cannot be understood"
        if (
            own.status == INITIATOR_VALID
            and other.status == INITIATOR_VALID
            and own.header_size != other.header_size
        ):
            return f"mixed header sizes: {own.header_size} bytes here, {other.header_size} the other way"
        return ""

    # --- the asker's frames

    def apply_request(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        key = head.key
        standing = self.id_status(key, stream)
        if standing == ID_BUSY:
            if self.excuse_if_ambiguous(key, REQUESTER, ID_IN_FLIGHT) == ID_IN_FLIGHT:
                self.mark_ambiguous(key, 1 - sender, REPLIER)
                return  # dropped: it belongs to nothing
            self.unlock(key)
        if stream is None or standing != ID_REQUESTING:
            stream = self.open_exchange(sender, head, stream)
        own = stream.half(sender)
        own.credit_spent += head.payload_size
        self.content_counts = True
        if head.kind == REQUEST_LAST:
            own.stop(ENDED, self.causality.frames_sent(sender), False)
            stream.protocol_state |= REQUEST_COMPLETE
            if stream.half(1 - sender).last_frame_index != NEVER:  # answered before it was asked
                self.ids_of(sender).release(head.stream_id)

    def open_exchange(
        self, sender: i64, head: FrameHeader, stream: StreamState | None
    ) -> StreamState:
        """A request's first chunk opens a stream: the one prepared for it, or a new one."""
        made: StreamState
        if stream is not None and stream.serial < 0:
            made = stream
        else:
            made = StreamState(head.key, head.stream_id, sender, 0)
        made.open_frame_index = self.causality.frames_sent(sender)
        made.answerable_open_index = made.open_frame_index
        before = self.streams.find(head.key)
        if before is not None:
            made.incarnation = before.incarnation + 1
            over = self.is_over(before)
            if not over:  # excused: the other side's fault made the asker believe that it was
                before.ending = "abandoned"
            if over and head.key not in self.ambiguous_ids and self.ambiguous_everywhere == 0:
                # The asker has read the last word about the former use; nobody can answer that now.
                self.causality.record_seen(sender, before.half(1 - sender).last_frame_index)
            else:
                made.answerable_open_index = before.answerable_open_index
        self.ids_of(sender).reserved.discard(head.stream_id)
        self.streams.insert(made)
        self.frame_stream = made
        return made

    def apply_cancel(
        self, sender: i64, key: i64, stream: StreamState | None, timestamp: i64
    ) -> None:
        server = 1 - sender
        ordinal = self.causality.frames_sent(sender)
        count = 0
        first: int = ordinal
        if key in self.unacknowledged_cancels:
            count, first = self.unacknowledged_cancels[key]
        self.unacknowledged_cancels[key] = (count + 1, first)
        if count == 0 or (
            count <= self.limits.max_queued_replies
            and self.repeated_pending_acks < self.max_repeated_pending_acks
        ):
            # Each is answered, so each is a duty of its own.
            duty = PendingReply(server, CANCEL_ACK, key, CANCEL_UNANSWERED, ordinal, timestamp)
            self.pending_replies[(server, CANCEL_ACK + 256 * count, key)] = duty
            if count > 0:
                self.repeated_pending_acks += 1
        if key in self.locked_keys:
            self.mark_ambiguous(key, server, REPLIER)
        else:
            self.lock(key)
            if stream is not None and not self.is_over(stream):
                stream.half(sender).stop(ABORTED, ordinal, False)
                stream.ending = "cancelled"
                stream.reset_by = sender
                self.reply_received(server, EMPTY_REPLY, key)
            elif stream is not None and self.final_reply_in_flight(sender, stream):
                # The asker discards the reply. A live replier has closed the call already.
                if self.streams.keep_removed:
                    stream.half(sender).stop(ABORTED, ordinal, False)
                stream.ending = "cancelled"
                stream.reset_by = sender
        if stream is None:
            self.track_key_without_stream(key)

    def lock(self, key: i64) -> None:
        """Cancelled: the id may not be used before the ack."""
        self.locked_keys.add(key)
        if key & 1 == DIALER:
            self.dialer_locked_count += 1
        else:
            self.acceptor_locked_count += 1

    def unlock(self, key: i64) -> None:
        if key in self.locked_keys:
            self.locked_keys.remove(key)
            if key & 1 == DIALER:
                self.dialer_locked_count -= 1
            else:
                self.acceptor_locked_count -= 1

    def locked_count(self, side: i64) -> int:
        """How many ids this side has cancelled and waits for the ack of."""
        return self.dialer_locked_count if side == DIALER else self.acceptor_locked_count

    # --- the other side's frames

    def apply_reply(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> None:
        if stream is None or stream.half(sender).last_frame_index != NEVER:
            if head.kind & TERMINATION_BIT:
                self.mark_ambiguous(head.key, 1 - sender, REQUESTER)
            return
        stream.record_reply(sender, self.causality)
        own = stream.half(sender)
        own.credit_spent += head.payload_size
        self.content_counts = True
        if head.kind & TERMINATION_BIT:
            own.last_frame_index = self.causality.frames_sent(sender)
            own.stop(ENDED, own.last_frame_index, False)
            self.reply_received(sender, EMPTY_REPLY, head.key)
            if self.is_over(stream):
                self.ids_of(1 - sender).release(head.stream_id)

    def apply_cancel_ack(self, sender: i64, key: i64, stream: StreamState | None) -> None:
        if key not in self.unacknowledged_cancels:
            if not self.ambiguous_everywhere & REPLIER_ACKS:
                self.mark_ambiguous(key, 1 - sender, REQUESTER)
            elif self.causality.vantage != 1 - sender:  # for a forgotten cancel, or for nothing
                self.ambiguous_everywhere |= REQUESTER
            return
        count, first = self.unacknowledged_cancels[key]
        self.causality.record_seen(sender, first)
        count -= 1
        if count > 0:
            self.unacknowledged_cancels[key] = (count, first)
        else:
            del self.unacknowledged_cancels[key]
        if count > 0 and (sender, CANCEL_ACK + 256 * count, key) in self.pending_replies:
            self.repeated_pending_acks -= 1
        self.reply_received(sender, CANCEL_ACK + 256 * count, key)
        if key in self.locked_keys:
            self.unlock(key)
            if stream is not None:
                stream.half(sender).last_frame_index = self.causality.frames_sent(sender)
            self.ids_of(1 - sender).release(key >> 1)
        if self.keys_without_stream and not self.has_key_state(key):
            self.keys_without_stream.pop(key, None)

    def mark_ambiguous(self, key: i64, misled_side: i64, role: i64) -> None:
        """A fault on this id may mislead the other side, unless we see just what it sees."""
        if self.causality.vantage != misled_side:
            self.ambiguous_ids[key] = self.ambiguous_ids.get(key, 0) | role
            if self.streams.find(key) is None:
                self.track_key_without_stream(key)

    # --- what is kept of ids without a stream

    def has_key_state(self, key: i64) -> bool:
        return (
            key in self.unacknowledged_cancels
            or key in self.locked_keys
            or key in self.ambiguous_ids
        )

    def track_key_without_stream(self, key: i64) -> None:
        """Something is kept of an id without a stream; an observer bounds that, oldest first."""
        if not self.streams.keep_removed:
            return
        self.keys_without_stream[key] = None
        while len(self.keys_without_stream) > self.limits.closed_streams_remembered:
            oldest = self.keys_without_stream.popitem(last=False)[0]
            if self.streams.find(oldest) is None:
                self.forget_key(oldest)

    def forget_key(self, key: i64) -> None:
        """Forget an id. Who was excused on it, or owed an ack, cannot be told from now on."""
        self.streams.has_evicted = True
        self.expire_replies(key, None)
        self.ambiguous_everywhere |= self.ambiguous_ids.pop(key, 0)
        if self.unacknowledged_cancels.pop(key, None) is not None:
            self.ambiguous_everywhere |= REPLIER_ACKS
        self.unlock(key)

    def expire_replies(self, key: i64, stream: StreamState | None) -> None:
        super().expire_replies(key, stream)
        if key in self.unacknowledged_cancels:
            server = 1 - (key & 1)
            for count in range(
                1, min(self.unacknowledged_cancels[key][0], self.limits.max_queued_replies + 1)
            ):
                duty = self.pending_replies.pop((server, CANCEL_ACK + 256 * count, key), None)
                if duty is not None:
                    self.repeated_pending_acks -= 1
                    self.report_expired(duty, stream)
        if stream is not None and self.has_key_state(key):
            self.track_key_without_stream(key)

    def is_reportable(self, reply: PendingReply, stream: StreamState | None) -> bool:
        """Acks that are owed, except by a side that cannot be read: it may have sent them."""
        return reply.rule != 0 and not self.why_undecodable(reply.side)

    # --- saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["layouts"] = [self.dialer_layout.save(), self.acceptor_layout.save()]
        saved["ids"] = [self.dialer_ids.save(), self.acceptor_ids.save()]
        saved["locked"] = sorted(self.locked_keys)
        saved["owed"] = [
            [key, owed[0], owed[1]] for key, owed in self.unacknowledged_cancels.items()
        ]
        saved["muddled"] = [[key, who] for key, who in self.ambiguous_ids.items()]
        saved["misled"] = [int(self.ambiguous_everywhere)]
        saved["strays"] = list(self.keys_without_stream)
        saved["places"] = [
            place[1] for place in self.pending_replies
        ]  # many acks may be owed on one id
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        layouts, ids, duties = saved["layouts"], saved["ids"], saved["duties"]
        locked, owed, muddled = saved["locked"], saved["owed"], saved["muddled"]
        misled, strays, places = saved["misled"], saved["strays"], saved["places"]
        assert isinstance(layouts, list)
        assert isinstance(ids, list)
        assert isinstance(duties, list)
        assert isinstance(locked, list)
        assert isinstance(owed, list)
        assert isinstance(muddled, list)
        assert isinstance(misled, list)
        assert isinstance(strays, list)
        assert isinstance(places, list)
        self.dialer_layout.load(layouts[0])
        self.acceptor_layout.load(layouts[1])
        self.update_shared_layout()
        self.dialer_ids.load(ids[0])
        self.acceptor_ids.load(ids[1])
        for key in locked:
            self.lock(key)
        self.ambiguous_everywhere = misled[0]
        self.keys_without_stream = OrderedDict.fromkeys(strays)
        self.unacknowledged_cancels = {entry[0]: (entry[1], entry[2]) for entry in owed}
        self.ambiguous_ids = {entry[0]: entry[1] for entry in muddled}
        self.pending_replies = {}
        for d, place in zip(duties, places, strict=True):
            self.pending_replies[(d[0], place, d[2])] = PendingReply(
                d[0], d[1], d[2], d[3], d[4], d[5]
            )
            if place >= 256:
                self.repeated_pending_acks += 1
