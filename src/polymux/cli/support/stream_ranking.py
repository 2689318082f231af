"""Ranking of streams for `polymux ls`: worst first, each with the reason in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polymux.analysis.schema.tables import SIDES, UNFINISHED_ENDINGS
from polymux.report.render.wording import (
    ABORTED_ENDINGS,
    STALL_HEADLINES,
    Stall,
    StreamEnding,
    credit_sentence,
    ending_sentence,
    stall_sentence,
    violation_text,
)
from polymux.text.units import size_text

Row = Mapping[str, object]
MIN_BLOCKED_US = 50_000  # least time without credit that is a reason, if also 1/5 of the lifetime


@dataclass(slots=True)
class StreamProblems:
    """Violations and stalls of a stream: counts, and the worst of each as a sentence."""

    errors: int = 0
    warnings: int = 0
    notes: int = 0
    worst_violation: str = ""  # the first error, else the first warning, else the first note
    stalls: int = 0
    longest_stall_us: int = 0
    longest_stall: str = ""

    @property
    def findings(self) -> int:
        return self.errors + self.warnings + self.stalls

    def describe(self) -> str:
        """The findings as text: the worst violation, then the longest stall."""
        violations = self.errors + self.warnings
        parts = []
        if violations:
            parts.append(self.worst_violation + _more(violations))
        if self.stalls:
            parts.append(self.longest_stall + _more(self.stalls))
        return "; ".join(parts)


@dataclass(order=True, slots=True)
class RankedStream:
    """A stream with its sort key: lower is worse."""

    rank: int
    weight: int
    serial: int
    reason: str = field(compare=False)
    row: Row = field(compare=False)


class StreamRanking:
    """Collects rows of `violations`, `stalls` and `streams`, and keeps the worst streams.

    The rows of a stream's violations and stalls must come before its row of `streams`, and
    `end_session` is called after the last row of each session. Memory is bounded by `max_streams`
    and by one session.
    """

    def __init__(self, max_streams: int) -> None:
        self.max_streams = max_streams
        self.stream_count = 0
        self._session_problems = StreamProblems()  # findings that belong to no stream
        self._problems: dict[tuple[str, str], StreamProblems] = {}
        self._ranked: list[RankedStream] = []

    def add_violation(self, row: Row) -> None:
        problems = self._problems_of(row)
        if row["severity"] == "error":
            is_worst = not problems.errors
            problems.errors += 1
        elif row["severity"] == "warning":
            is_worst = not problems.errors + problems.warnings
            problems.warnings += 1
        else:
            is_worst = not problems.worst_violation
            problems.notes += 1
        if is_worst:
            problems.worst_violation = violation_text(row)

    def add_stall(self, row: Row) -> None:
        if row["cause"] in STALL_HEADLINES:
            problems = self._problems_of(row)
            problems.stalls += 1
            duration = _count(row, "duration_us")
            if duration > problems.longest_stall_us or not problems.longest_stall:
                problems.longest_stall_us = duration
                problems.longest_stall = stall_sentence(Stall.from_row(row))

    def rank(self, row: Row) -> RankedStream:
        """Count a stream and return its place, without keeping it."""
        self.stream_count += 1
        key = (str(row["session_id"]), str(row["stream"]))
        rank, weight, reason = rank_stream(row, self._problems.pop(key, StreamProblems()))
        return RankedStream(rank, -weight, self.stream_count, reason, row)

    def end_session(self) -> StreamProblems:
        """Return the findings of the session that belong to no stream, and forget the session."""
        problems, self._session_problems = self._session_problems, StreamProblems()
        self._problems.clear()
        return problems

    def add_stream(self, row: Row) -> None:
        """Keep a stream if it is among the worst."""
        self._ranked.append(self.rank(row))
        if len(self._ranked) >= 2 * self.max_streams + 64:
            self._ranked = sorted(self._ranked)[: self.max_streams]

    def worst_streams(self) -> list[RankedStream]:
        """The worst streams, worst first."""
        return sorted(self._ranked)[: self.max_streams]

    def _problems_of(self, row: Row) -> StreamProblems:
        if row["stream"] is None:
            return self._session_problems
        return self._problems.setdefault(
            (str(row["session_id"]), str(row["stream"])), StreamProblems()
        )


def rank_stream(row: Row, problems: StreamProblems) -> tuple[int, int, str]:
    """Return a rank (0 is worst), a weight within the rank (more is worse), and the reason."""
    size = _count(row, "bytes_dialer") + _count(row, "bytes_acceptor")
    if problems.errors:
        return 0, problems.errors, problems.describe()
    if problems.stalls:
        return 1, problems.longest_stall_us, problems.describe()
    if problems.warnings:
        return 2, problems.warnings, problems.describe()
    ending = str(row["ending"])
    if ending in ABORTED_ENDINGS or ending == "never-accepted":
        return 3, size, ending_sentence(StreamEnding.from_row(row))
    blocked = {side: _count(row, f"blocked_us_{side}") for side in SIDES}
    side = max(blocked, key=lambda each: blocked[each])
    if blocked[side] >= MIN_BLOCKED_US and blocked[side] * 5 >= lifetime_us(row):
        return 4, blocked[side], credit_sentence(str(row["stream"]), side, blocked[side])
    if ending in UNFINISHED_ENDINGS:
        return 5, size, ending_sentence(StreamEnding.from_row(row))
    if problems.notes:
        return 6, problems.notes, f"note: {problems.worst_violation}{_more(problems.notes)}"
    return 7, size, f"carried {size_text(size)}"


def lifetime_us(row: Row) -> int:
    """Microseconds from the opening of the stream to its last frame."""
    timestamps = [
        int(moment.timestamp() * 1_000_000)  # type: ignore[attr-defined]  # a datetime, if any
        for name in ("opened_at", "last_at_dialer", "last_at_acceptor")
        if (moment := row[name]) is not None
    ]
    return max(timestamps) - min(timestamps) if timestamps else 0


def _count(row: Row, name: str) -> int:
    value = row[name]
    return value if isinstance(value, int) else 0


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
