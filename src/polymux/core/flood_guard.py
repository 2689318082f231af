# mypyc: compiled
"""Flood protection of an endpoint: token buckets for frames that cost the peer next to nothing.

The frames counted here are legal one by one, but cost the receiver more than the sender: streams
opened and reset at once (HTTP/2 "rapid reset"), frames for unknown streams, empty and control
frames. Each kind may come in a burst and at a steady rate; beyond that the session ends with
LimitExceeded.

A chunk of received bytes is charged after it was decoded. Inside a chunk `ReceiveQueue` stops the
decoding when the flood would otherwise take too much memory.
"""

from mypy_extensions import i64

from polymux.core.connection import Connection
from polymux.core.direction import Direction
from polymux.core.errors import LimitExceeded
from polymux.core.frames import FrameHeader
from polymux.core.limits import Counters, Limits, TokenBucket
from polymux.core.receive_queue import ReceiveQueue


class FloodGuard:
    """The token buckets of one session. Every hit of a limit is counted under the limit's name."""

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
        """Set where the receive queue stops decoding a chunk: far beyond what a bucket allows."""
        receive_queue.max_opens_per_chunk = self.limits.max_streams + self.limits.open_reset_burst
        receive_queue.max_empty_per_chunk = 2 * self.limits.empty_frame_burst
        receive_queue.guarded_direction = direction
        receive_queue.head = head

    def charge_chunk(self, receive_queue: ReceiveQueue, connection: Connection, now: i64) -> None:
        """Charge what the last chunk brought, and reset its counts but `content_parts`.

        The endpoint calls it only if one of the counts is above 0.

        Raises:
            LimitExceeded: a bucket is empty; the session must end.
        """
        resets = receive_queue.peer_resets
        # Every part of content makes up for one frame without.
        empty_frames = (
            receive_queue.empty_frames
            + connection.closed_stream_frames
            - receive_queue.content_parts
        )
        unknown_stream_frames = connection.unknown_stream_frames
        flooded = receive_queue.peer_opens > receive_queue.max_opens_per_chunk
        receive_queue.peer_resets = 0
        receive_queue.peer_opens = 0
        receive_queue.empty_frames = 0
        connection.closed_stream_frames = 0
        connection.unknown_stream_frames = 0
        if flooded:  # even if the bucket has tokens: the rest of the chunk was not decoded
            self.raise_limit_exceeded("open_reset_burst", "the peer opens streams too fast")
        if resets > 0:
            self._charge(
                self.reset_bucket,
                "open_reset_burst",
                resets,
                now,
                "the peer opens and aborts streams too fast",
            )
        if unknown_stream_frames > 0:
            self._charge(
                self.unknown_stream_bucket,
                "unknown_stream_burst",
                unknown_stream_frames,
                now,
                "too many frames for streams that do not exist",
            )
        if empty_frames > 0:
            self._charge(
                self.empty_frame_bucket,
                "empty_frame_burst",
                empty_frames,
                now,
                "too many frames without content",
            )

    def charge_forced_abort(self, now: i64) -> None:
        """The peer has made us abort or reject one of its streams: charge it.

        Raises:
            LimitExceeded: the bucket is empty; the session must end.
        """
        self._charge(
            self.forced_abort_bucket,
            "open_reset_burst",
            1,
            now,
            "the peer makes us abort streams too fast",
        )

    def _charge(self, bucket: TokenBucket, limit: str, amount: i64, now: i64, what: str) -> None:
        if not bucket.take(float(now) / 1e9, float(amount)):
            self.raise_limit_exceeded(limit, what)

    def raise_limit_exceeded(self, limit: str, what: str) -> None:
        """Count a hit of `limit` and raise LimitExceeded; `what` says what the peer did."""
        self.counters.count(limit)
        raise LimitExceeded(f"{what}: {self.limits.describe(limit)}")
