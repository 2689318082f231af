# mypyc: compiled
"""One direction of a connection: its decoding state, and the frame that is still arriving."""

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.frames import FrameHeader
from polymux.core.streams import OPEN, StreamState


class Direction:
    """The bytes that one side sends, in order.

    `in_payload` is True while a frame's header was decoded and its payload continues in the next
    chunk. Offsets count the bytes of this direction, from 0.
    """

    __slots__ = (
        "amount",
        "bytes_needed",
        "content_counts",
        "credit_cost",
        "decoding_stopped",
        "format_violations",
        "frame_bytes_seen",
        "frame_index",
        "frame_offset",
        "frame_size",
        "frame_started",
        "framed_bytes",
        "frames",
        "frames_missing",
        "in_payload",
        "is_content",
        "key",
        "kind",
        "missing_bytes",
        "offset",
        "overhead_bytes",
        "part_bytes_left",
        "parts_left",
        "payload_size",
        "pending",
        "received_at",
        "searching",
        "side",
        "state_before",
        "stop_reason",
        "stopped_by_gap",
        "stream",
        "total_bytes",
        "trusted_from",
        "undecoded_bytes",
        "unjoined",
        "verdict",
    )

    def __init__(self, side: i64) -> None:
        self.side: i64 = side
        self.pending: bytes = b""  # the beginning of an incomplete frame
        self.unjoined: BytesWriter = BytesWriter()  # bytes after `pending`, not joined to it yet
        self.bytes_needed: i64 = 0  # decoding is not tried again until so many are buffered
        self.offset: i64 = 0  # of the first pending byte, or else of the next byte
        self.frame_started: bool = False  # the first byte of the frame at `offset` has arrived
        self.received_at: i64 = 0  # timestamp of the last bytes, in nanoseconds
        self.decoding_stopped: bool = False  # the start of the next frame is not known
        self.stopped_by_gap: bool = False  # that is because bytes are missing
        self.searching: bool = False  # it is searched for (`boundary_search`)
        self.trusted_from: i64 = 0  # frame from which on a boundary that was found is beyond doubt
        self.frames_missing: bool = False  # frames are missing, and decoding continued after them
        self.stop_reason: str = ""
        # Accounting: total = framed + missing + undecoded + overhead, plus what is incomplete.
        self.total_bytes: i64 = 0
        self.framed_bytes: i64 = 0
        self.missing_bytes: i64 = 0
        self.undecoded_bytes: i64 = 0
        self.overhead_bytes: i64 = 0
        self.frames: i64 = 0
        # The frame whose payload is arriving:
        self.in_payload: bool = False
        self.part_bytes_left: i64 = 0  # bytes of its current part still to arrive
        self.parts_left: i64 = 0  # further parts, whose sizes are not known yet
        self.frame_bytes_seen: i64 = 0  # bytes of it that have arrived
        self.stream: StreamState | None = None
        self.content_counts: bool = False
        self.is_content: bool = False
        self.kind: i64 = 0
        self.key: i64 = 0
        self.amount: int = -1
        self.credit_cost: i64 = 0
        self.frame_index: i64 = 0
        self.frame_offset: i64 = 0
        self.frame_size: i64 = 0
        self.payload_size: i64 = 0
        self.verdict: i64 = 0
        self.state_before: i64 = OPEN
        self.format_violations: i64 = 0  # rules its encoding has broken so far

    def start_payload(
        self,
        head: FrameHeader,
        stream: StreamState | None,
        content_counts: bool,
        is_content: bool,
        frame_index: i64,
        frame_offset: i64,
        header_size: i64,
        verdict: i64,
        state_before: i64,
    ) -> None:
        """A frame's header was decoded, and its payload is not complete: remember the frame."""
        self.in_payload = True
        self.part_bytes_left = head.payload_size
        self.parts_left = head.parts_left
        self.frame_bytes_seen = header_size
        self.stream = stream
        self.content_counts = content_counts
        self.is_content = is_content
        self.kind = head.kind
        self.key = head.key
        self.amount = head.amount
        self.credit_cost = head.credit_cost
        self.frame_index = frame_index
        self.frame_offset = frame_offset
        self.frame_size = header_size + head.payload_size
        self.payload_size = head.payload_size
        self.verdict = verdict
        self.state_before = state_before
        self.format_violations = head.format_violations

    def is_mid_content(self, stream: StreamState) -> bool:
        """Whether a content frame of this stream is arriving and not complete yet."""
        return self.in_payload and self.is_content and self.stream is stream

    def has_unseen_frames(self) -> bool:
        """Whether this side has sent, or may have sent, frames that were not decoded."""
        return self.decoding_stopped or self.frames_missing

    def buffered_bytes(self) -> i64:
        """Buffered bytes of an incomplete frame."""
        return len(self.pending) + len(self.unjoined)

    def join_buffered(self) -> None:
        """Join everything that is buffered in `pending`."""
        self.bytes_needed = 0
        if len(self.unjoined) > 0:
            later = self.unjoined.getvalue()
            self.unjoined = BytesWriter()  # freed before the next copy is made
            self.pending = self.pending + later

    def accounts_for_all_bytes(self) -> bool:
        """Whether every byte is counted as framed, missing, undecoded, overhead or incomplete."""
        incomplete = self.buffered_bytes() + (self.frame_bytes_seen if self.in_payload else 0)
        return (
            self.total_bytes
            == self.framed_bytes
            + self.missing_bytes
            + self.undecoded_bytes
            + self.overhead_bytes
            + incomplete
        )

    def save(self) -> dict[str, object]:
        """The state as plain data, for `load`."""
        self.join_buffered()
        return {
            "pending": self.pending,
            "reason": self.stop_reason,
            "flags": [
                self.frame_started,
                self.decoding_stopped,
                self.in_payload,
                self.content_counts,
                self.is_content,
                self.stopped_by_gap,
                self.frames_missing,
                self.searching,
            ],
            "numbers": [
                self.offset,
                self.received_at,
                self.total_bytes,
                self.framed_bytes,
                self.missing_bytes,
                self.undecoded_bytes,
                self.overhead_bytes,
                self.frames,
                self.part_bytes_left,
                self.parts_left,
                self.frame_bytes_seen,
                self.kind,
                self.key,
                self.amount,
                self.credit_cost,
                self.frame_index,
                self.frame_offset,
                self.frame_size,
                self.payload_size,
                self.verdict,
                self.state_before,
                self.format_violations,
                self.trusted_from,
            ],
            "stream": self.stream.serial if self.stream is not None else -1,
        }

    def load(self, saved: dict[str, object], stream: StreamState | None) -> None:
        """Restore what `save` returned; `stream` is the one whose payload is arriving.

        The assertions narrow `object` for mypy: a snapshot is plain data of mixed types.
        """
        pending, reason = saved["pending"], saved["reason"]
        flags, numbers = saved["flags"], saved["numbers"]
        assert isinstance(pending, bytes)
        assert isinstance(reason, str)
        assert isinstance(flags, list)
        assert isinstance(numbers, list)
        self.pending = pending
        self.stop_reason = reason
        self.frame_started = flags[0]
        self.decoding_stopped = flags[1]
        self.in_payload = flags[2]
        self.content_counts = flags[3]
        self.is_content = flags[4]
        self.stopped_by_gap = flags[5]
        self.frames_missing = flags[6]
        self.searching = flags[7]
        self.offset = numbers[0]
        self.received_at = numbers[1]
        self.total_bytes = numbers[2]
        self.framed_bytes = numbers[3]
        self.missing_bytes = numbers[4]
        self.undecoded_bytes = numbers[5]
        self.overhead_bytes = numbers[6]
        self.frames = numbers[7]
        self.part_bytes_left = numbers[8]
        self.parts_left = numbers[9]
        self.frame_bytes_seen = numbers[10]
        self.kind = numbers[11]
        self.key = numbers[12]
        self.amount = numbers[13]
        self.credit_cost = numbers[14]
        self.frame_index = numbers[15]
        self.frame_offset = numbers[16]
        self.frame_size = numbers[17]
        self.payload_size = numbers[18]
        self.verdict = numbers[19]
        self.state_before = numbers[20]
        self.format_violations = numbers[21]
        self.trusted_from = numbers[22]
        self.stream = stream
