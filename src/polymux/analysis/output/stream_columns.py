# mypyc: compiled
"""Streams as the columns of their table."""

from typing import Final

from mypy_extensions import i64

from polymux.analysis.tracking.stream_tracker import HalfTrack, Track
from polymux.core.protocol import Protocol
from polymux.core.side import DIALER
from polymux.core.streams import ABORTED, OPEN, UNSEEN, WORD, Half, Stream

LARGEST: Final = 99_999_999_999_999_999_999  # what decimal(20,0) can hold
MOST: Final = 9_223_372_036_854_775_807  # and what an integer column can


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

    def add(self, half: Half, own: HalfTrack, rtt: i64) -> None:
        self.bytes.append(int(half.octets))
        self.units.append(int(half.units))
        self.frames.append(int(half.frames))
        if half.state == OPEN:
            self.ended.append(None)
        else:
            self.ended.append("aborted" if half.state == ABORTED else "ended")
        if half.granted >= 0:
            self.credit_granted.append(half.granted if half.granted < LARGEST else LARGEST)
            self.blocked_us.append(int(half.blocked // 1000))
        else:
            self.credit_granted.append(None)
            self.blocked_us.append(None)
        self.peak_in_flight_bytes.append(half.peak if half.window >= 0 else None)
        window: int = half.window
        self.window_bytes.append(min(window, MOST) if window > 0 else None)
        self.window_limit_bps.append(bits_a_second(window, rtt) if window > 0 else None)
        self.throughput_bps.append(bits_a_second(half.octets, own.last_at - own.first_at))
        self.stalled_us.append(int(own.stalled // 1000))
        self.hol_blocked_us.append(int(own.behind // 1000))
        self.first_at.append(instant(own.first_at))
        self.last_at.append(instant(own.last_at))


class StreamColumns:
    """Collects streams; `rows` of them."""

    def __init__(self) -> None:
        self.rows: i64 = 0
        self.stream: list[str] = []
        self.opener: list[str | None] = []
        self.number: list[int] = []
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

    def add(self, protocol: Protocol, stream: Stream, track: Track, rtt: i64) -> None:
        """One stream; `rtt` is its session's round trip in nanoseconds, 0 or less if not seen."""
        number: int = stream.number
        self.rows += 1
        self.stream.append(track.label)
        self.opener.append(side_word(stream.opener))
        self.number.append(number if number >= 0 else number + WORD)
        self.incarnation.append(int(stream.incarnation))
        self.name.append(stream.name)
        self.opened_at.append(instant(stream.opened_at))
        self.accepted_at.append(instant(stream.accepted_at))
        self.closed_at.append(instant(stream.closed_at))
        self.ending.append(protocol.ending(stream))
        self.reset_by.append(side_word(stream.reset_by))
        self.error.append(stream.error)
        self.dialer.add(stream.dialer, track.dialer, rtt)
        self.acceptor.add(stream.acceptor, track.acceptor, rtt)


def instant(at: i64) -> int | None:
    """Microseconds, or None for an instant that never came."""
    return int(at // 1000) if at != UNSEEN else None


def bits_a_second(octets: int, ns: i64) -> int | None:
    """So many octets in so long a time; None where there was no time, or no octet."""
    if ns <= 0 or octets <= 0:
        return None
    return min(octets * 8_000_000_000 // int(ns), MOST)


def side_word(side: i64) -> str | None:
    if side == DIALER:
        return "dialer"
    return "acceptor" if side == 1 else None
