"""Streams in the order in which somebody should look at them, each with the reason why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..analysis.hot.figures import duration_text, size_text

Row = Mapping[str, object]
GIVEN_UP = ("reset", "cancelled", "rejected", "abandoned", "never-accepted")
UNFINISHED = ("half-closed", "open")
BLOCKED_LEAST = (
    50_000  # microseconds without leave that are worth a word, if also a fifth of a life
)


@dataclass(slots=True)
class Trouble:
    """What the other tables say about a stream."""

    errors: int = 0
    warnings: int = 0
    notes: int = 0
    rule: str = ""
    stalled_us: int = 0
    stall: str = ""


@dataclass(order=True, slots=True)
class Listed:
    """A stream and its place: lower is worse."""

    rank: int
    weight: int
    serial: int
    why: str = field(compare=False)
    row: Row = field(compare=False)


class Worst:
    """Takes the rows of `violations`, `stalls` and `streams` as they come and keeps the worst."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.streams = 0
        self.loose: dict[str, Trouble] = {}  # of sessions: what belongs to no stream
        self._trouble: dict[tuple[str, str], Trouble] = {}
        self._kept: list[Listed] = []

    def violation(self, row: Row) -> None:
        trouble = self._of(row)
        severity = row["severity"]
        if severity == "error":
            if not trouble.errors:
                trouble.rule = str(row["rule"])
            trouble.errors += 1
        elif severity == "warning":
            trouble.warnings += 1
        else:
            trouble.notes += 1
        trouble.rule = trouble.rule or str(row["rule"])

    def stall(self, row: Row) -> None:
        if row["cause"] != "sender-idle":
            trouble = self._of(row)
            lasted = row["lasted_us"]
            assert isinstance(lasted, int)
            if lasted > trouble.stalled_us:
                trouble.stalled_us = lasted
                trouble.stall = f"{row['cause']}, {row['detail']}"

    def stream(self, row: Row) -> None:
        self.streams += 1
        found = self._trouble.pop((str(row["session_id"]), str(row["stream"])), Trouble())
        rank, weight, why = judge(row, found)
        self._kept.append(Listed(rank, -weight, self.streams, why, row))
        if len(self._kept) >= 2 * self.most + 64:
            self._kept = sorted(self._kept)[: self.most]

    def take(self) -> list[Listed]:
        """The worst streams, worst first."""
        return sorted(self._kept)[: self.most]

    def _of(self, row: Row) -> Trouble:
        if row["stream"] is None:
            return self.loose.setdefault(str(row["session_id"]), Trouble())
        return self._trouble.setdefault((str(row["session_id"]), str(row["stream"])), Trouble())


def judge(row: Row, trouble: Trouble) -> tuple[int, int, str]:
    """How bad a stream is: a rank (0 is worst), a weight within it, and why."""
    octets = _count(row, "octets_dialer") + _count(row, "octets_acceptor")
    if trouble.errors:
        return 0, trouble.errors, f"{_times(trouble.errors)} {trouble.rule}{_stall(trouble)}"
    if trouble.stall:
        return 1, trouble.stalled_us, _stall(trouble).removeprefix("; ")
    if trouble.warnings:
        return 2, trouble.warnings, f"{_times(trouble.warnings)} {trouble.rule}"
    ending = str(row["ending"])
    if ending in GIVEN_UP:
        who = f" by the {row['reset_by']}" if row["reset_by"] else ""
        said = f": {row['error']}" if row["error"] else ""
        return 3, octets, f"{ending}{who}{said}"
    blocked = max(_count(row, "blocked_us_dialer"), _count(row, "blocked_us_acceptor"))
    if blocked >= BLOCKED_LEAST and blocked * 5 >= lifetime_us(row):
        return 4, blocked, f"without leave for {duration_text(blocked * 1000)}"
    if ending in UNFINISHED:
        return 5, octets, ending
    if trouble.notes:
        return 6, trouble.notes, f"note: {trouble.rule}"
    return 7, octets, f"carried {size_text(octets)}"


def lifetime_us(row: Row) -> int:
    """From the opening to the last frame."""
    instants = [
        int(moment.timestamp() * 1_000_000)  # type: ignore[attr-defined]  # a datetime, if any
        for name in ("opened_at", "last_at_dialer", "last_at_acceptor")
        if (moment := row[name]) is not None
    ]
    return max(instants) - min(instants) if instants else 0


def _count(row: Row, name: str) -> int:
    value = row[name]
    return value if isinstance(value, int) else 0


def _times(count: int) -> str:
    return "broke" if count == 1 else f"broke {count} rules, first"


def _stall(trouble: Trouble) -> str:
    if not trouble.stall:
        return ""
    return f"; stalled {duration_text(trouble.stalled_us * 1000)}: {trouble.stall}"
