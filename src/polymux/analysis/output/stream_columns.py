# mypyc: compiled
"""Streams as the columns of the `streams` table."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import HalfTracker, StreamTracker, side_name
from polymux.core.protocol import Protocol
from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.streams import ABORTED, ID_MODULUS, NOT_YET, OPEN, HalfStream, StreamState

MAX_DECIMAL20: Final = 99_999_999_999_999_999_999  # the largest value of decimal(20,0)
MAX_INT64: Final = 9_223_372_036_854_775_807  # the largest value of an integer column


class HalfColumns:
    """The columns that exist once for each side; None is null."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.units: list[int] = []
        self.frames: list[int] = []
        self.ended: list[str | None] = []
        self.credit_granted: list[int | None] = []
        self.peak_in_flight_bytes: list[int | None] = []
        self.window_bytes: list[int | None] = []
        self.window_limit_bps: list[int | None] = []
        self.throughput_bps: list[int | None] = []
        self.stalled_us: list[int] = []
        self.hol_blocked_us: list[int] = []
        self.blocked_us: list[int | None] = []
        self.first_at: list[int | None] = []
        self.last_at: list[int | None] = []

    def add(self, half: HalfStream, tracker: HalfTracker, rtt_ns: i64) -> None:
        self.bytes.append(int(half.content_bytes))
        self.units.append(int(half.content_units))
        self.frames.append(int(half.frames))
        if half.state == OPEN:
            self.ended.append(None)
        else:
            self.ended.append("aborted" if half.state == ABORTED else "ended")
        if half.credit_granted >= 0:
            self.credit_granted.append(
                half.credit_granted if half.credit_granted < MAX_DECIMAL20 else MAX_DECIMAL20
            )
            self.blocked_us.append(int(half.blocked_ns // 1000))
        else:
            self.credit_granted.append(None)
            self.blocked_us.append(None)
        self.peak_in_flight_bytes.append(half.peak_in_flight if half.window >= 0 else None)
        window: int = half.window
        self.window_bytes.append(min(window, MAX_INT64) if window > 0 else None)
        self.window_limit_bps.append(bits_per_second(window, rtt_ns) if window > 0 else None)
        self.throughput_bps.append(
            bits_per_second(half.content_bytes, tracker.last_at - tracker.first_at)
        )
        self.stalled_us.append(int(tracker.stalled_ns // 1000))
        self.hol_blocked_us.append(int(tracker.hol_blocked_ns // 1000))
        self.first_at.append(timestamp_us(tracker.first_at))
        self.last_at.append(timestamp_us(tracker.last_at))


class StreamColumns:
    """The columns of `row_count` streams."""

    def __init__(self) -> None:
        self.row_count: i64 = 0
        self.stream: list[str] = []
        self.opener: list[str | None] = []
        self.stream_id: list[int] = []
        self.incarnation: list[int] = []
        self.name: list[bytes | None] = []
        self.opened_at: list[int | None] = []
        self.accepted_at: list[int | None] = []
        self.closed_at: list[int | None] = []
        self.ending: list[str] = []
        self.reset_by: list[str | None] = []
        self.error: list[bytes | None] = []
        self.dialer: HalfColumns = HalfColumns()
        self.acceptor: HalfColumns = HalfColumns()

    def add(
        self, protocol: Protocol, stream: StreamState, tracker: StreamTracker, rtt_ns: i64
    ) -> None:
        """Add a stream; `rtt_ns` is its session's round trip, 0 or less if unknown."""
        stream_id: int = stream.stream_id
        self.row_count += 1
        self.stream.append(tracker.label)
        self.opener.append(nullable_side_name(stream.opener))
        self.stream_id.append(stream_id if stream_id >= 0 else stream_id + ID_MODULUS)
        self.incarnation.append(int(stream.incarnation))
        self.name.append(stream.name)
        self.opened_at.append(timestamp_us(stream.opened_at))
        self.accepted_at.append(timestamp_us(stream.accepted_at))
        self.closed_at.append(timestamp_us(stream.closed_at))
        self.ending.append(protocol.ending(stream))
        self.reset_by.append(nullable_side_name(stream.reset_by))
        self.error.append(stream.error)
        self.dialer.add(stream.dialer, tracker.dialer, rtt_ns)
        self.acceptor.add(stream.acceptor, tracker.acceptor, rtt_ns)


def timestamp_us(timestamp: i64) -> int | None:
    """Nanoseconds to microseconds; None for NOT_YET."""
    return int(timestamp // 1000) if timestamp != NOT_YET else None


def bits_per_second(size: int, ns: i64) -> int | None:
    """The rate of `size` bytes in `ns` nanoseconds; None if either is 0 or less."""
    if ns <= 0 or size <= 0:
        return None
    return min(size * 8_000_000_000 // int(ns), MAX_INT64)


def nullable_side_name(side: i64) -> str | None:
    """The name of a side; None for any other number (a seeded stream's opener, no reset)."""
    return side_name(side) if side == DIALER or side == ACCEPTOR else None
