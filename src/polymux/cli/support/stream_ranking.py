"""Streams in the order in which they deserve a look, each with the reason in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polymux.analysis.session.summary import UNFINISHED
from polymux.report.render.wording import (
    GIVEN_UP,
    STALL_HEADLINES,
    Ending,
    Stall,
    credit_sentence,
    ending_sentence,
    stall_sentence,
    violation_text,
)
from polymux.text.units import size_text

Row = Mapping[str, object]
BLOCKED_LEAST = (
    50_000  # microseconds without credit that are worth a word, if also a fifth of a life
)


@dataclass(slots=True)
class Trouble:
    """What the other tables say about a stream: counts, and the worst of each kind in words."""

    errors: int = 0
    warnings: int = 0
    notes: int = 0
    broken: str = ""  # the first error, else the first warning, else the first note
    stalls: int = 0
    stalled_us: int = 0  # of the longest
    stall: str = ""  # the longest

    @property
    def findings(self) -> int:
        return self.errors + self.warnings + self.stalls

    def said(self) -> str:
        """The findings in words: what was broken, then the longest stall."""
        violations = self.errors + self.warnings
        parts = []
        if violations:
            parts.append(self.broken + _more(violations))
        if self.stalls:
            parts.append(self.stall + _more(self.stalls))
        return "; ".join(parts)


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
        worse = (
            not trouble.errors
            if severity == "error"
            else not trouble.errors + trouble.warnings
            if severity == "warning"
            else not trouble.broken
        )
        if worse:
            trouble.broken = violation_text(row)
        if severity == "error":
            trouble.errors += 1
        elif severity == "warning":
            trouble.warnings += 1
        else:
            trouble.notes += 1

    def stall(self, row: Row) -> None:
        if row["cause"] in STALL_HEADLINES:
            trouble = self._of(row)
            trouble.stalls += 1
            lasted = _count(row, "duration_us")
            if lasted > trouble.stalled_us or not trouble.stall:
                trouble.stalled_us = lasted
                trouble.stall = stall_sentence(Stall.of(row))

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
    octets = _count(row, "bytes_dialer") + _count(row, "bytes_acceptor")
    if trouble.errors:
        return 0, trouble.errors, trouble.said()
    if trouble.stalls:
        return 1, trouble.stalled_us, trouble.said()
    if trouble.warnings:
        return 2, trouble.warnings, trouble.said()
    ending = str(row["ending"])
    if ending in GIVEN_UP or ending == "never-accepted":
        return 3, octets, ending_sentence(Ending.of(row))
    blocked = {side: _count(row, f"blocked_us_{side}") for side in ("dialer", "acceptor")}
    side = max(blocked, key=lambda each: blocked[each])
    if blocked[side] >= BLOCKED_LEAST and blocked[side] * 5 >= lifetime_us(row):
        return 4, blocked[side], credit_sentence(str(row["stream"]), side, blocked[side])
    if ending in UNFINISHED:
        return 5, octets, ending_sentence(Ending.of(row))
    if trouble.notes:
        return 6, trouble.notes, f"note: {trouble.broken}{_more(trouble.notes)}"
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


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
