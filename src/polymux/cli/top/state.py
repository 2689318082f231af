"""What `polymux top` shows at one moment, whatever it watches. Texts are as they were sent.

Durations are nanoseconds. Texts of the wire are escaped when they are drawn (`screen`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

MAX_FINDINGS: Final = 1000  # kept: the latest
MAX_ENDED_SESSIONS: Final = 200  # kept: the latest


@dataclass(slots=True)
class HalfLine:
    """What one side does on a stream. `title` names the side; the other values may be unknown."""

    title: str
    content_bytes: int = 0
    frames: int | None = None
    ended: bool = False
    window: int | None = None
    in_use: int | None = None
    credit: int | None = None
    blocked_ns: int | None = None
    stalled_ns: int | None = None
    hol_blocked_ns: int | None = None
    queued_bytes: int | None = None
    unread_bytes: int | None = None


@dataclass(slots=True)
class StreamLine:
    """One open stream.

    Attributes:
        session_id: of its session; with `key` it tells the stream from all others.
        cause: why it is stalled, as in the `stalls` table; "" if it is not.
        waits_ns: for how long, so far.
        behind: the stream that it waits for, if there is one.
        window_use: the largest part of a window that is in use, from 0 to 1; None without windows.
        rate: bytes in a second, both ways.
        stalled_ns: of all its stalls that have ended.
    """

    session_id: str
    key: str
    name: str | None
    cause: str = ""
    waits_ns: int = 0
    behind: str = ""
    detail: str = ""
    window_use: float | None = None
    rate: float = 0.0
    content_bytes: int = 0
    frames: int = 0
    stalled_ns: int = 0
    age_ns: int | None = None
    halves: tuple[HalfLine, ...] = ()

    @property
    def identity(self) -> tuple[str, str]:
        return self.session_id, self.key


@dataclass(slots=True)
class SessionLine:
    """One session, open or ended. `findings` includes the `stalls`."""

    session_id: str
    protocol: str
    peers: str
    over: bool
    stream_count: int = 0
    open_streams: int = 0
    stalled_streams: int = 0
    frames: int = 0
    total_bytes: int = 0
    rate: float = 0.0
    findings: int = 0
    stalls: int = 0
    lasted_ns: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class FindingLine:
    """A violation or a stall that has ended. `clock` is its time of day as text."""

    clock: str
    session_id: str
    stream: str
    level: str
    text: str


@dataclass(slots=True)
class Totals:
    """Sums over all sessions, ended ones included: those of `polymux ls`."""

    sessions: int = 0
    streams: int = 0
    frames: int = 0
    findings: int = 0
    stalls: int = 0
    unfinished: int = 0
    open_sessions: int = 0
    open_streams: int = 0
    stalled_streams: int = 0
    total_bytes: int = 0


@dataclass(slots=True)
class TopState:
    """Everything that is shown.

    Attributes:
        title: what is watched.
        status: `recording`, `complete` and the like.
        extra: a line about the recorder; "" for none.
        failure: why nothing could be read, if there is no more to come; otherwise "".
        rate: bytes in a second, all sessions together.
    """

    title: str
    status: str = ""
    extra: str = ""
    failure: str = ""
    rate: float = 0.0
    totals: Totals = field(default_factory=Totals)
    streams: list[StreamLine] = field(default_factory=list)
    sessions: list[SessionLine] = field(default_factory=list)
    findings: deque[FindingLine] = field(default_factory=lambda: deque(maxlen=MAX_FINDINGS))


class Rates:
    """Rates of counters by key, each over the last second or so.

    Call `update` with all counters; `of` is the rate of one.
    """

    MIN_SECONDS: Final = 1.0

    def __init__(self) -> None:
        self._at: float | None = None
        self._before: dict[object, int] = {}
        self._complete = True  # whether `_before` has all counters there were
        self._rates: dict[object, float] = {}

    def update(self, counts: dict[object, int], now: float, complete: bool = True) -> None:
        """Take the counters at `now`, in seconds of any clock.

        A counter that was not there before began at 0; unless they were not `complete`: then it may
        have been left out, and its rate is not known yet.
        """
        if self._at is None:
            self._at, self._before, self._complete = now, counts, complete
            return
        passed = now - self._at
        if passed < self.MIN_SECONDS:
            return
        before = self._before
        self._rates = {
            key: (count - before.get(key, 0 if self._complete else count)) / passed
            for key, count in counts.items()
        }
        self._at, self._before, self._complete = now, counts, complete

    def of(self, key: object) -> float:
        return self._rates.get(key, 0.0)
