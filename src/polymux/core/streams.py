# mypyc: compiled
"""Stream records: a stream is two one-way halves, each with its own credit.

A stream id can be used several times in one connection (an incarnation each), and every use is a
`StreamState` of its own. `polymux.core.stream_table` finds the current one by its key.

The classes are `acyclic`: thousands of closed streams are remembered, and since no reference in
them leads back to them, Python's cycle collector need not visit them.
"""

from typing import Final

from mypy_extensions import i64, mypyc_attr

from polymux.core.causality import Causality
from polymux.core.side import ACCEPTOR, DIALER, NEITHER_SIDE

OPEN: Final[i64] = 0
ENDED: Final[i64] = 1
ABORTED: Final[i64] = 2
NEVER: Final[i64] = 0x2000000000000000  # a frame index that no frame reaches
NOT_YET: Final[i64] = -1  # a timestamp that is not set
FIRST_QUEUE_GRANT: Final[i64] = 16384
PART_BYTES: Final[i64] = 64  # memory of a part of unread content besides its bytes
ABANDONED: Final = "abandoned"  # ending of a stream whose id was reused while it was open

ID_MODULUS: Final = 2**64  # ids are 64 bits; keys keep the bit pattern in an i64


def id_text(stream_id: i64) -> str:
    """A stream id as decimal digits; a negative one is that of the same 64 bits without a sign.

    Not `str` of the sum with `ID_MODULUS`: compiled code never frees an integer beyond 62 bits that
    it makes a text of.
    """
    if stream_id >= 0:
        return str(stream_id)
    half = (stream_id >> 1) & 0x7FFFFFFFFFFFFFFF
    return f"{half // 5}{half % 5 * 2 + (stream_id & 1)}"


@mypyc_attr(acyclic=True)
class HalfStream:
    """What one side may send on a stream, and what it has sent.

    `credit_granted` and `credit_spent` are in the protocol's unit (bytes or items) and plain ints,
    so that they are exact at any size. Timestamps and `blocked_ns` are nanoseconds.
    """

    __slots__ = (
        "blocked_ns",
        "blocked_since",
        "content_bytes",
        "content_units",
        "credit_granted",
        "credit_spent",
        "end_frame_index",
        "end_is_ambiguous",
        "first_at",
        "frames",
        "last_at",
        "last_frame_index",
        "peak_in_flight",
        "promised_limit",
        "state",
        "window",
    )

    def __init__(self) -> None:
        # What every content frame touches comes first, to lie in few cache lines.
        self.state: i64 = OPEN
        self.last_frame_index: i64 = NEVER  # frame after which this half may send nothing at all
        self.credit_spent: int = 0
        self.credit_granted: int = -1  # all credit ever granted; -1: this half needs none
        self.window: int = -1  # largest window announced to this half; -1: none
        self.content_bytes: i64 = 0
        self.content_units: i64 = 0  # credit that the content cost
        self.frames: i64 = 0
        self.last_at: i64 = NOT_YET
        self.first_at: i64 = NOT_YET
        self.end_is_ambiguous: bool = False  # its end may belong to an earlier use of the id
        self.peak_in_flight: int = 0  # most credit in use at once
        self.end_frame_index: i64 = NEVER  # index of its end or abort frame
        self.promised_limit: int = -1  # what this half promised not to exceed (Minmux); -1: none
        self.blocked_ns: i64 = 0  # time without credit, up to `blocked_since`
        self.blocked_since: i64 = NOT_YET

    def stop(self, state: i64, frame_index: i64, ambiguous: bool) -> None:
        """End (ENDED) or abort (ABORTED) this half with the frame of this index."""
        self.state = state
        self.end_frame_index = frame_index
        self.end_is_ambiguous = ambiguous

    def mark_blocked(self, timestamp: i64) -> None:
        """The credit is used up."""
        if self.blocked_since == NOT_YET:
            self.blocked_since = timestamp

    def mark_unblocked(self, timestamp: i64) -> None:
        """Credit was granted, or is no longer needed."""
        if self.blocked_since != NOT_YET:
            if timestamp > self.blocked_since:
                self.blocked_ns += timestamp - self.blocked_since
            self.blocked_since = NOT_YET

    def save(self) -> list[int]:
        """The half as plain data, for `load`."""
        return [
            self.credit_granted,
            self.credit_spent,
            self.window,
            self.promised_limit,
            self.state,
            self.end_frame_index,
            int(self.end_is_ambiguous),
            self.content_bytes,
            self.content_units,
            self.frames,
            self.peak_in_flight,
            self.first_at,
            self.last_at,
            self.blocked_ns,
            self.blocked_since,
            self.last_frame_index,
        ]

    def load(self, saved: list[int]) -> None:
        """Restore what `save` returned."""
        self.credit_granted = saved[0]
        self.credit_spent = saved[1]
        self.window = saved[2]
        self.promised_limit = saved[3]
        self.state = saved[4]
        self.end_frame_index = saved[5]
        self.end_is_ambiguous = saved[6] != 0
        self.content_bytes = saved[7]
        self.content_units = saved[8]
        self.frames = saved[9]
        self.peak_in_flight = saved[10]
        self.first_at = saved[11]
        self.last_at = saved[12]
        self.blocked_ns = saved[13]
        self.blocked_since = saved[14]
        self.last_frame_index = saved[15]


@mypyc_attr(acyclic=True)
class StreamBuffers:
    """Data of a stream that was received and not read, or queued and not sent.

    Only streams of an endpoint have buffers; those of an observer have none.
    """

    __slots__ = (
        "aborted",
        "all_received",
        "bytes_read_since_grant",
        "counted_window",
        "discarding",
        "end_queued",
        "epoch_began",
        "epoch_credit",
        "marked_readable",
        "next_piece",
        "outgoing",
        "piece_bytes_sent",
        "queue_grant",
        "queued_bytes",
        "received",
        "room_time",
        "round",
        "scheduled",
        "share_left",
        "target_window",
        "unread_bytes",
        "unread_parts",
        "unreturned_credit",
        "weight",
        "window_may_grow",
    )

    def __init__(self) -> None:
        self.received: list[bytes | memoryview] = []
        self.unread_bytes: i64 = 0  # bytes in `received`
        self.unread_parts: i64 = 0  # parts in `received`, for what they cost besides their bytes
        # The peer's half has ended, and its last byte has arrived: the header of a last frame ends
        # the half in some protocols.
        self.all_received: bool = False
        self.unreturned_credit: i64 = 0  # credit to grant again; units that were read
        self.outgoing: list[bytes] = []
        self.next_piece: i64 = 0  # index of the first piece of `outgoing` not completely sent
        self.piece_bytes_sent: i64 = 0  # bytes of that piece that were sent
        self.queued_bytes: i64 = 0  # unsent bytes in `outgoing`
        self.end_queued: bool = False  # end this half once `outgoing` is empty
        self.scheduled: bool = False  # is in one of the lists of `SendScheduler`
        self.weight: i64 = 1  # its share of the connection, relative to that of other streams
        self.round: i64 = 0  # of the scheduler; the last one this stream had a share of
        self.share_left: i64 = 0  # bytes of that share; negative: owed by the next shares
        # Bytes it may queue while streams wait for room; some at first, for a short message:
        self.queue_grant: i64 = FIRST_QUEUE_GRANT
        self.room_time: i64 = 0  # bytes granted for each unit of its weight, as a time; see there
        self.marked_readable: bool = False  # is in `ReceiveQueue.readable_streams`
        self.aborted: bool = False  # an abort is queued, sent or was received
        self.discarding: bool = False  # the application reads no more: drop what arrives
        self.target_window: int = 0  # credit to keep the peer supplied with; 0: the half's window
        self.window_may_grow: bool = False  # `target_window` may grow while messages are small
        self.bytes_read_since_grant: i64 = 0  # bytes of messages read since credit was granted
        # Since when credit of a whole window is being returned (nanoseconds), and how much was:
        self.epoch_began: i64 = NOT_YET
        self.epoch_credit: int = 0
        self.counted_window: i64 = 0  # the peer's part of `ReceiveQueue.window_bytes`

    @property
    def held_bytes(self) -> i64:
        """Memory of what is unread: its bytes, and `PART_BYTES` for each part."""
        return self.unread_bytes + self.unread_parts * PART_BYTES

    def clear_outgoing(self) -> None:
        """Drop the data that was queued."""
        self.outgoing = []
        self.next_piece = 0
        self.piece_bytes_sent = 0
        self.queued_bytes = 0


@mypyc_attr(acyclic=True)
class StreamState:
    """One use of a stream id: its two halves, and when and how it began and ended."""

    __slots__ = (
        "accepted",
        "accepted_at",
        "acceptor",
        "answerable_open_index",
        "buffers",
        "closed_at",
        "dialer",
        "ending",
        "error",
        "incarnation",
        "key",
        "losses",
        "name",
        "open_frame_index",
        "opened_at",
        "opener",
        "over",
        "protocol_state",
        "reset_by",
        "serial",
        "stream_id",
        "unseen",
    )

    def __init__(self, key: i64, stream_id: i64, opener: i64, open_frame_index: i64) -> None:
        self.key: i64 = key
        self.dialer: HalfStream = HalfStream()
        self.acceptor: HalfStream = HalfStream()
        self.opener: i64 = opener
        self.incarnation: i64 = 1
        self.stream_id: i64 = stream_id  # 64 bits; ids from 2**63 on are negative
        # The oldest opening frame that a frame on this id could be a reply to:
        self.answerable_open_index: i64 = open_frame_index
        self.accepted: bool = False
        self.over: bool = False
        self.unseen: bool = False  # its opening, or other frames of it, may not have been seen
        self.losses: i64 = 0  # `Connection.losses` that its state takes into account
        self.buffers: StreamBuffers | None = None
        self.open_frame_index: i64 = open_frame_index  # among the opener's frames
        self.serial: i64 = -1  # in the order of opening; -1: not registered yet
        self.protocol_state: i64 = 0  # for the protocol implementation
        self.name: bytes | None = None
        self.ending: str = ""  # set where `Protocol.ending` cannot tell it from the halves
        self.reset_by: i64 = -1
        self.error: bytes | None = None
        self.opened_at: i64 = NOT_YET
        self.accepted_at: i64 = NOT_YET
        self.closed_at: i64 = NOT_YET

    def half(self, side: i64) -> HalfStream:
        """The half on which `side` sends."""
        return self.dialer if side == DIALER else self.acceptor

    def label(self) -> str:
        """The text key of the tables: opener's letter, id, incarnation from the second on."""
        letter = "d" if self.opener == DIALER else "a" if self.opener == ACCEPTOR else "s"
        number = id_text(self.stream_id)
        return (
            f"{letter}{number}" if self.incarnation == 1 else f"{letter}{number}.{self.incarnation}"
        )

    def record_reply(self, sender: i64, causality: Causality) -> None:
        """A frame of `sender` here proves that it had read its oldest possible opening."""
        if sender != self.opener and self.opener != NEITHER_SIDE:
            causality.record_seen(sender, self.answerable_open_index)

    def save(self) -> list[object]:
        """The stream as plain data, for `load_stream`. Buffers are not saved."""
        return [
            self.key,
            self.stream_id,
            self.opener,
            self.open_frame_index,
            self.answerable_open_index,
            self.incarnation,
            self.serial,
            self.accepted,
            self.over,
            self.protocol_state,
            self.name,
            self.ending,
            self.reset_by,
            self.error,
            self.opened_at,
            self.accepted_at,
            self.closed_at,
            self.dialer.save(),
            self.acceptor.save(),
            self.unseen,
            self.losses,
        ]


def load_stream(saved: list[object]) -> StreamState:
    """A stream from what `StreamState.save` returned."""
    numbers = [entry if isinstance(entry, int) else 0 for entry in saved]
    stream = StreamState(numbers[0], numbers[1], numbers[2], numbers[3])
    stream.answerable_open_index = numbers[4]
    stream.incarnation = numbers[5]
    stream.serial = numbers[6]
    stream.accepted = bool(saved[7])
    stream.over = bool(saved[8])
    stream.protocol_state = numbers[9]
    name, ending, error = saved[10], saved[11], saved[13]
    stream.name = name if isinstance(name, bytes) else None
    stream.ending = ending if isinstance(ending, str) else ""
    stream.reset_by = numbers[12]
    stream.error = error if isinstance(error, bytes) else None
    stream.opened_at = numbers[14]
    stream.accepted_at = numbers[15]
    stream.closed_at = numbers[16]
    for half, kept in ((stream.dialer, saved[17]), (stream.acceptor, saved[18])):
        if isinstance(kept, list):
            half.load(kept)
    stream.unseen = bool(saved[19])
    stream.losses = numbers[20]
    return stream
