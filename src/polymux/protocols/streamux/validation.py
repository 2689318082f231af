# mypyc: compiled
"""The law of Streamux: which rules a frame breaks.

A stream is one exchange: the request is the asker's half, the reply the other's. Only the asker
opens, ends and cancels; only the other side replies and acknowledges. An id is free again at the
final reply or, once cancelled, at the ack.

With two honest peers nothing on an id can be stale: the asker waits for the last word about one
use before it begins the next. If one side breaks that order, a watcher who does not stand beside
the other side no longer knows what that one could see, so it is not blamed on this id any more.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.frames import FrameHeader
from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.core.rules import CROSSED, byte_count_text
from polymux.core.side import DIALER
from polymux.core.streams import ABORTED, ENDED, NEVER, OPEN, StreamState
from polymux.protocols.streamux.initiator import (
    INITIATOR_MISSING,
    INITIATOR_VALID,
    HeaderLayout,
    IdAllocator,
    announced_header_size,
    initiator_violations,
)
from polymux.protocols.streamux.rules import (
    ACK_NOT_CANCELLED,
    BAD_BIT_COUNTS,
    BAD_VERSION,
    CANCEL,
    CANCEL_ACK,
    CANCEL_TWICE,
    CANCEL_UNKNOWN,
    CHUNK_TOO_LONG,
    EMPTY_REPLY,
    ID_IN_FLIGHT,
    INITIATOR,
    KEEPALIVE_BUSY_ID,
    KINDS,
    MIXED_HEADER_SIZES,
    REPLY_AFTER_CANCEL,
    REPLY_BEFORE_END,
    REPLY_BIT,
    REPLY_LAST,
    REPLY_UNKNOWN,
    REQUEST_LAST,
    RULES,
    TERMINATION_BIT,
    TRUNCATED,
)

MAX_CHUNK_BYTES: Final[i64] = 65536  # bytes of a chunk we take at most

REQUEST_COMPLETE: Final[i64] = 1  # mark of a stream: the last chunk of its request has passed

# What an id is to a request chunk:
ID_FREE: Final[i64] = 0
ID_REQUESTING: Final[i64] = 1
ID_BUSY: Final[i64] = 2

# Who is not blamed on an id any more, because the other side broke its order:
REQUESTER: Final[i64] = 1
REPLIER: Final[i64] = 2
REPLIER_ACKS: Final[i64] = 4  # the replier, but only for acks


class StreamuxValidation(Protocol):
    """State and law."""

    def __init__(self, limits: Limits, vantage: i64) -> None:
        super().__init__("streamux", RULES, KINDS, limits, vantage)
        self.max_frame_bytes = (
            limits.max_frame_bytes if limits.max_frame_bytes > 0 else MAX_CHUNK_BYTES
        )
        self.max_sent_frame_bytes = (
            self.max_frame_bytes if self.max_frame_bytes < MAX_CHUNK_BYTES else MAX_CHUNK_BYTES
        )
        self.too_long_rule = CHUNK_TOO_LONG
        self.truncated_rule = TRUNCATED
        self.peer_dependent_rules = (
            REPLY_UNKNOWN
            | REPLY_BEFORE_END
            | REPLY_AFTER_CANCEL
            | ACK_NOT_CANCELLED
            | ID_IN_FLIGHT
            | KEEPALIVE_BUSY_ID
            | CANCEL_TWICE
            | CANCEL_UNKNOWN
        )
        self.handshake_done = False
        self.dialer_layout: HeaderLayout = HeaderLayout()
        self.acceptor_layout: HeaderLayout = HeaderLayout()
        self.shared_fields_mask: i64 = (
            0  # of both layouts where they are alike and wide; 0: they are not
        )
        self.shared_id_bits: i64 = 0
        self.shared_max_id: i64 = 0
        self.dialer_ids: IdAllocator = IdAllocator()
        self.acceptor_ids: IdAllocator = IdAllocator()
        self.locked_keys: set[int] = set()  # keys cancelled and not acknowledged since
        self.unacknowledged_cancels: dict[
            int, tuple[int, int]
        ] = {}  # key: cancels without ack, ordinal of the first
        self.ambiguous_ids: dict[int, int] = {}  # key: who is excused
        self.ambiguous_everywhere: i64 = (
            0  # who is excused on every key, since some keys were forgotten
        )

    def layout_of(self, side: i64) -> HeaderLayout:
        """What `side` announced; its requests and the replies to them are laid out so."""
        return self.dialer_layout if side == DIALER else self.acceptor_layout

    def update_shared_layout(self) -> None:
        """Both sides usually announce the same; their headers are then read the short way."""
        one, other = self.dialer_layout, self.acceptor_layout
        if one.header_size == 4 and other.header_size == 4 and one.id_bits == other.id_bits:
            self.shared_fields_mask = one.fields_mask
            self.shared_id_bits = one.id_bits
            self.shared_max_id = one.max_id

    def ids_of(self, side: i64) -> IdAllocator:
        return self.dialer_ids if side == DIALER else self.acceptor_ids

    # --- law

    def validate(self, sender: i64, head: FrameHeader, stream: StreamState | None) -> i64:
        kind = head.kind
        if kind == INITIATOR:
            return self.validate_initiator(sender)
        if not self.fits_header(sender, head):
            return BAD_BIT_COUNTS
        if (
            kind <= REPLY_LAST
            and head.payload_size == 0
            and not self.ends_started_message(sender, kind, stream)
        ):
            return BAD_BIT_COUNTS  # would be read as one of the special messages
        if kind <= REQUEST_LAST:
            if self.id_status(head.key, stream) != ID_BUSY:
                return 0
            return self.excuse_if_ambiguous(head.key, REQUESTER, ID_IN_FLIGHT)
        if kind <= REPLY_LAST or kind == EMPTY_REPLY:
            return self.validate_reply(sender, head.key, stream)
        if kind == CANCEL:
            return self.validate_cancel(sender, head.key, stream)
        if kind == CANCEL_ACK:
            if head.key in self.unacknowledged_cancels:
                return 0
            return (
                CROSSED
                if stream is not None and self.ambiguous_everywhere & REPLIER_ACKS
                else ACK_NOT_CANCELLED
            )
        if self.id_status(head.key, self.streams.find(head.key)) == ID_FREE:
            return 0
        return self.excuse_if_ambiguous(head.key, REQUESTER, KEEPALIVE_BUSY_ID)

    def fits_header(self, sender: i64, head: FrameHeader) -> bool:
        """Can the header say this? What came in one always fits; what a caller made may not."""
        own = self.layout_of(sender)
        layout = own if not head.kind & REPLY_BIT else self.layout_of(1 - sender)
        return (
            own.status == INITIATOR_VALID
            and layout.status == INITIATOR_VALID
            and head.payload_size <= (layout.max_chunk_bytes if head.kind <= REPLY_LAST else 0)
            and head.stream_id >= 0
            and head.stream_id <= layout.max_id
        )

    def validate_initiator(self, sender: i64) -> i64:
        if self.layout_of(sender).status != INITIATOR_MISSING:
            return BAD_BIT_COUNTS  # a second one would be read as a header
        flaws = initiator_violations(self.frame_text)
        if flaws != 0:
            return flaws
        other = self.layout_of(1 - sender)
        mixed = other.status == INITIATOR_VALID and other.header_size != announced_header_size(
            self.frame_text
        )
        return MIXED_HEADER_SIZES if mixed else 0

    def validate_reply(self, sender: i64, key: i64, stream: StreamState | None) -> i64:
        if stream is None:
            return self.excuse_if_ambiguous(key, REPLIER, REPLY_UNKNOWN)
        verdict: i64 = 0
        if stream.half(sender).last_frame_index != NEVER:
            verdict = REPLY_UNKNOWN
        elif not stream.protocol_state & REQUEST_COMPLETE:
            verdict = REPLY_BEFORE_END
        else:
            asker = stream.half(1 - sender)
            if asker.state != ABORTED:
                return 0
            if not self.causality.had_seen(sender, asker.end_frame_index):
                return CROSSED
            verdict = REPLY_AFTER_CANCEL
        return self.excuse_if_ambiguous(key, REPLIER, verdict)

    def validate_cancel(self, sender: i64, key: i64, stream: StreamState | None) -> i64:
        if key in self.locked_keys:
            return self.excuse_if_ambiguous(key, REQUESTER, CANCEL_TWICE)
        if stream is None:
            return CANCEL_UNKNOWN
        if not self.is_over(stream):
            return 0
        return CROSSED if self.final_reply_in_flight(sender, stream) else CANCEL_UNKNOWN

    def final_reply_in_flight(self, sender: i64, stream: StreamState) -> bool:
        """Was the final reply still on its way to the asker that cancels now?"""
        reply = stream.half(1 - sender)
        late = stream.half(sender).state != ABORTED and reply.state == ENDED
        return late and not self.causality.had_seen(sender, reply.end_frame_index)

    def excuse_if_ambiguous(self, key: i64, role: i64, violation_mask: i64) -> i64:
        """The verdict, or CROSSED where the other side's fault may have misled this one."""
        if self.ambiguous_everywhere & role or (
            self.ambiguous_ids and self.ambiguous_ids.get(key, 0) & role
        ):
            return CROSSED
        return violation_mask

    def id_status(self, key: i64, stream: StreamState | None) -> i64:
        """What this id is to its owner: free, in the middle of a request, or in flight."""
        if self.locked_keys and key in self.locked_keys:
            return ID_BUSY
        if stream is None:
            return ID_FREE
        if stream.serial < 0:  # prepared: its first content would open it
            filed = self.streams.find(key)
            return ID_FREE if filed is None or self.is_over(filed) else ID_BUSY
        if self.is_over(stream):
            return ID_FREE
        return ID_REQUESTING if stream.half(stream.opener).state == OPEN else ID_BUSY

    def ends_started_message(self, sender: i64, kind: i64, stream: StreamState | None) -> bool:
        """Is a chunk without data the end of a message that has begun?"""
        if stream is None or not kind & TERMINATION_BIT:
            return False
        half = stream.half(sender)
        return half.state == OPEN and half.last_frame_index == NEVER and half.credit_spent > 0

    def is_over(self, stream: StreamState) -> bool:
        asker, replier = stream.half(stream.opener), stream.half(1 - stream.opener)
        return asker.state != OPEN and replier.last_frame_index != NEVER

    # --- words

    def version(self) -> str:
        return (
            "1"
            if self.dialer_layout.status == INITIATOR_VALID
            or self.acceptor_layout.status == INITIATOR_VALID
            else ""
        )

    def dialect(self) -> str:
        """How each side splits its headers, the dialer first."""
        splits: list[str] = []
        for layout in (self.dialer_layout, self.acceptor_layout):
            if layout.status == INITIATOR_VALID:
                splits.append(f"{layout.length_bits}/{layout.id_bits}")
        if len(splits) == 2 and splits[0] == splits[1]:
            return splits[0]
        return ", ".join(splits)

    def explain(self, rule: i64, sender: i64, head: FrameHeader, stream: StreamState | None) -> str:
        if head.kind == INITIATOR:
            return self.explain_initiator(rule, sender)
        text = f"{super().explain(rule, sender, head, stream)} on id {head.stream_id}"
        if rule == CHUNK_TOO_LONG:
            return f"{text}: limit max_frame_bytes={self.max_frame_bytes}; raise it with Limits(max_frame_bytes=...)"
        if rule == BAD_BIT_COUNTS:
            layout = self.layout_of(sender if not head.kind & REPLY_BIT else 1 - sender)
            if layout.status != INITIATOR_VALID or self.layout_of(sender).status != INITIATOR_VALID:
                return f"{text}: the initiators must come first"
            if head.payload_size == 0 and head.kind <= REPLY_LAST:
                return f"{text}: a chunk without data would be read as something else"
            return f"{text}: does not fit a {layout.length_bits}/{layout.id_bits} header"
        if rule == ID_IN_FLIGHT:
            locked = head.key in self.locked_keys
            why = "cancelled, and no ack has come" if locked else "its reply is not complete"
            return f"{text}: {why}"
        if rule == REPLY_UNKNOWN:
            why = "there was no such request" if stream is None else "the exchange was over"
            return f"{text}: {why}"
        return text

    def explain_initiator(self, rule: i64, sender: i64) -> str:
        said = self.frame_text
        if rule == BAD_VERSION:
            return f"Initiator {said.hex(' ')} of version {said[0]}"
        if rule == MIXED_HEADER_SIZES:
            width = self.layout_of(1 - sender).header_size
            return f"Initiator {said.hex(' ')}: the other side's headers have {width} bytes"
        if self.layout_of(sender).status != INITIATOR_MISSING:
            return "Initiator: it has been sent already"
        if len(said) != 4:
            return f"Initiator of {byte_count_text(len(said))}"
        return f"Initiator {said.hex(' ')} of {said[1]} length bits and {said[2]} id bits"
