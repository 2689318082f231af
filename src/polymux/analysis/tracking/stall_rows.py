# mypyc: compiled
"""The causes of stalls, and the rows of the `stalls` table as columns."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import StreamTracker

NO_CREDIT: Final = "no-credit"
SLOW_READER: Final = "slow-reader"
HEAD_OF_LINE: Final = "head-of-line"
TRANSPORT: Final = "transport"
NO_REPLY: Final = "no-reply"
SENDER_IDLE: Final = "sender-idle"


class StallRows:
    """Rows as columns; `blocking_stream` is "" for none, times are microseconds."""

    def __init__(self) -> None:
        self.stream: list[str] = []
        self.sender: list[int] = []
        self.started_us: list[int] = []
        self.duration_us: list[int] = []
        self.cause: list[str] = []
        self.blocking_stream: list[str] = []
        self.detail: list[str] = []

    def add(
        self,
        track: StreamTracker,
        side: i64,
        began: i64,
        ended: i64,
        cause: str,
        blocking_stream: str,
        detail: str,
    ) -> None:
        """Add a row (times in nanoseconds); unless idle, add its time to `stalled_ns` too."""
        if cause != SENDER_IDLE:
            track.half(side).stalled_ns += ended - began
        self.stream.append(track.label)
        self.sender.append(int(side))
        self.started_us.append(int(began // 1000))
        self.duration_us.append(int((ended - began) // 1000))
        self.cause.append(cause)
        self.blocking_stream.append(blocking_stream)
        self.detail.append(detail)
