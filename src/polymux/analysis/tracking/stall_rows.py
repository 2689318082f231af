# mypyc: compiled
"""The causes of stalls, and their rows as columns."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import Track

NO_CREDIT: Final = "no-credit"
SLOW_READER: Final = "slow-reader"
BEHIND: Final = "head-of-line"
TRANSPORT: Final = "transport"
NO_REPLY: Final = "no-reply"
IDLE: Final = "sender-idle"


class StallRows:
    """Rows as columns; `blocking_stream` "" for none."""

    def __init__(self) -> None:
        self.stream: list[str] = []
        self.sender: list[int] = []
        self.began_us: list[int] = []
        self.duration_us: list[int] = []
        self.cause: list[str] = []
        self.culprit: list[str] = []
        self.detail: list[str] = []

    def put(
        self, track: Track, side: i64, began: i64, ended: i64, cause: str, culprit: str, detail: str
    ) -> None:
        """Add a row, and its time to the stream's sum unless the sender was only idle."""
        if cause != IDLE:
            track.side(side).stalled += ended - began
        self.stream.append(track.label)
        self.sender.append(int(side))
        self.began_us.append(int(began // 1000))
        self.duration_us.append(int((ended - began) // 1000))
        self.cause.append(cause)
        self.culprit.append(culprit)
        self.detail.append(detail)
