# mypyc: compiled
"""What a live endpoint puts up with: token buckets for frames that cost a peer next to nothing.

A chunk is weighed once it was decoded. Within a chunk the inbox stops the decoding where a flood
alone would fill the memory.
"""

from mypy_extensions import i64

from polymux.core.connection import Connection
from polymux.core.direction import Direction
from polymux.core.errors import LimitExceeded
from polymux.core.frames import FrameHeader
from polymux.core.limits import Counters, Limits, TokenBucket
from polymux.core.receive_queue import ReceiveQueue


class FloodGuard:
    """The buckets of one session. Every refusal names its limit and is counted under that name."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self.limits = limits
        self.counters = counters
        self.reset_bucket = TokenBucket(limits.open_reset_burst, limits.open_reset_rate)
        self.forced_abort_bucket = TokenBucket(limits.open_reset_burst, limits.open_reset_rate)
        self.unknown_stream_bucket = TokenBucket(
            limits.unknown_stream_burst, limits.unknown_stream_rate
        )
        self.empty_frame_bucket = TokenBucket(limits.empty_frame_burst, limits.empty_frame_rate)

    def set_chunk_limits(
        self, receive_queue: ReceiveQueue, direction: Direction, head: FrameHeader
    ) -> None:
        """Tell the inbox when to stop in the middle of a chunk: far past what a bucket allows."""
        receive_queue.max_opens_per_chunk = self.limits.max_streams + self.limits.open_reset_burst
        receive_queue.max_empty_per_chunk = 2 * self.limits.empty_frame_burst
        receive_queue.guarded_direction = direction
        receive_queue.head = head

    def charge_chunk(self, receive_queue: ReceiveQueue, connection: Connection, now: i64) -> None:
        """After a chunk. LimitExceeded when a bucket is empty: the session is to end."""
        resets, openings = receive_queue.peer_resets, receive_queue.peer_opens
        # Frames that bring something pay for as many that bring nothing.
        idle = (
            receive_queue.empty_frames
            + connection.closed_stream_frames
            - receive_queue.content_parts
        )
        strays = connection.unknown_stream_frames
        flooded = openings > receive_queue.max_opens_per_chunk
        receive_queue.peer_resets = 0
        receive_queue.peer_opens = 0
        receive_queue.empty_frames = 0
        receive_queue.content_parts = 0
        connection.closed_stream_frames = 0
        connection.unknown_stream_frames = 0
        if flooded:  # whatever the bucket holds: the rest of the chunk was not decoded
            self.raise_limit_exceeded("open_reset_burst", "the peer opens streams too fast")
        if resets > 0:
            self._charge(
                self.reset_bucket,
                "open_reset_burst",
                resets,
                now,
                "the peer opens and gives up streams too fast",
            )
        if strays > 0:
            self._charge(self.unknown_stream_bucket, "unknown_stream_burst", strays, now,
                        "too many frames for streams that do not exist")  # fmt: skip
        if idle > 0:
            self._charge(self.empty_frame_bucket, "empty_frame_burst", idle, now,
                        "too many frames that carry nothing")  # fmt: skip

    def charge_forced_abort(self, now: i64) -> None:
        """The peer has made us give up or turn away one of its streams."""
        self._charge(self.forced_abort_bucket, "open_reset_burst", 1, now,
                    "the peer makes us give up streams too fast")  # fmt: skip

    def check_reply_queue(self, queued_replies: i64) -> None:
        """Answers are left from before more bytes are read: does the peer take them?"""
        if queued_replies >= self.limits.max_queued_replies:
            self.raise_limit_exceeded("max_queued_replies", "the peer does not read our answers")

    def _charge(self, bucket: TokenBucket, limit: str, amount: i64, now: i64, what: str) -> None:
        if not bucket.take(float(now) / 1e9, float(amount)):
            self.raise_limit_exceeded(limit, what)

    def raise_limit_exceeded(self, limit: str, what: str) -> None:
        self.counters.count(limit)
        raise LimitExceeded(f"{what}: {self.limits.describe(limit)}")
