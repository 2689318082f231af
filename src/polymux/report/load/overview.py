"""Overview: capture files, totals, and the sessions to list.

Sessions with violations come first, then those with stalls, then those that did not end cleanly,
then the largest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from polymux.report.budget import Budget
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import Row, TopRows, index_in
from polymux.text.sanitize import escape_hidden

if TYPE_CHECKING:
    import pyarrow as pa

_SESSION_COLUMNS: Final = (
    "session_id",
    "capture",
    "protocol",
    "version",
    "dialect",
    "evidence",
    "vantage",
    "dialer",
    "acceptor",
    "started_at",
    "ended_at",
    "frames",
    "streams",
    "bytes_dialer",
    "bytes_acceptor",
    "payload_bytes_dialer",
    "payload_bytes_acceptor",
    "missing_bytes_dialer",
    "missing_bytes_acceptor",
    "undecoded_bytes_dialer",
    "undecoded_bytes_acceptor",
    "violations",
    "ending",
    "note",
    "rtt_us",
    "tls",
    "server_name",
    "alpn",
    "tls_records",
    "tls_unopened",
    "tls_handshake_us",
)
_CAPTURE_COLUMNS: Final = ("file", "status", "packets", "bytes", "error", "error_offset", "format")
REQUEST_COLUMNS: Final = (
    "session_id", "opener", "requests", "answered", "latency_p50_us", "latency_p90_us",
    "latency_p99_us", "latency_max_us",
)  # fmt: skip
_SUMMED_COLUMNS: Final = ("frames", "streams", "bytes_dialer", "bytes_acceptor", "violations")


@dataclass(slots=True)
class SessionRow:
    """One listed session: its row (times in microseconds), and counts of its findings."""

    id: str
    row: dict[str, object]
    errors: int = 0
    warnings: int = 0
    notes: int = 0
    stalls: int = 0
    stalled_us: int = 0
    requests: list[Row] = field(default_factory=list)  # its rows of `requests`

    def integer(self, column: str) -> int:
        """An integer column; 0 where it is null."""
        value = self.row[column]
        return value if isinstance(value, int) else 0

    @property
    def rtt_us(self) -> int | None:
        return self.integer("rtt_us") or None

    @property
    def started_us(self) -> int:
        return self.integer("started_at")

    @property
    def duration_us(self) -> int:
        return max(0, self.integer("ended_at") - self.started_us)


@dataclass(slots=True)
class Overview:
    """Totals over all tables, the listed sessions (most significant first) and the files."""

    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMMED_COLUMNS, 0))
    session_count: int = 0
    started_us: int | None = None
    ended_us: int | None = None
    protocols: Counter[str] = field(default_factory=Counter)
    missing_bytes: int = 0
    sessions_with_gaps: int = 0
    sessions: list[SessionRow] = field(default_factory=list)
    capture_count: int = 0
    capture_statuses: Counter[str] = field(default_factory=Counter)
    captures: list[dict[str, object]] = field(default_factory=list)


def load_overview(tables: Tables, budget: Budget) -> Overview:
    """Read `captures`, `stalls` (sums only) and `sessions`."""
    found = Overview()
    _load_captures(tables, budget, found)
    stalled = _sum_stalls(tables)
    best = TopRows([budget.sessions])
    for batch in tables.batches("sessions", _SESSION_COLUMNS):
        _add_totals(batch, found)
        best.add(*_rank(batch, stalled), batch)
    for row in best.rows(0):
        named = dict(zip(_SESSION_COLUMNS, row, strict=True))
        session = SessionRow(str(named["session_id"]), named)
        session.stalls, session.stalled_us = stalled.get(session.id, (0, 0))
        found.sessions.append(session)
    _load_requests(tables, found.sessions)
    return found


def _load_requests(tables: Tables, sessions: list[SessionRow]) -> None:
    """Load the request latencies of the listed sessions: at most one row per side."""
    ids = [session.id for session in sessions]
    best = TopRows([2] * len(ids), key_columns=2)
    for batch in tables.batches("requests", REQUEST_COLUMNS):
        best.add(index_in(batch["session_id"], ids), _zeros(batch.num_rows), batch)
    for group, session in enumerate(sessions):
        session.requests = best.rows(group)


def _load_captures(tables: Tables, budget: Budget, overview: Overview) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    bad_first = pa.array([3, 2, 1, 0], pa.int64())
    best = TopRows([budget.captures])
    for batch in tables.batches("captures", _CAPTURE_COLUMNS):
        overview.capture_count += batch.num_rows
        overview.capture_statuses.update(batch["status"].to_pylist())
        how_bad = bad_first.take(
            index_in(batch["status"], ("unreadable", "damaged", "truncated", "whole"))
        )
        rank = pc.negate(pc.fill_null(how_bad, 0))
        best.add(_zeros(batch.num_rows), rank, batch)
    for row in best.rows(0):
        named = dict(zip(_CAPTURE_COLUMNS, row, strict=True))
        for name in ("file", "error", "format"):
            if isinstance(named[name], str):
                named[name] = escape_hidden(str(named[name]), budget.text_chars)
        overview.captures.append(named)


def _sum_stalls(tables: Tables) -> dict[str, tuple[int, int]]:
    """Number and total duration of the stalls of each session that has any."""
    import pyarrow.compute as pc

    sums: dict[str, tuple[int, int]] = {}
    for batch in tables.batches("stalls", ("session_id", "cause", "duration_us")):
        real = batch.filter(pc.not_equal(batch["cause"], "sender-idle"))
        grouped = (
            _table(real)
            .group_by("session_id")
            .aggregate([("duration_us", "sum"), ([], "count_all")])
        )
        for session, lasted, count in zip(
            grouped["session_id"].to_pylist(),
            grouped["duration_us_sum"].to_pylist(),
            grouped["count_all"].to_pylist(),
            strict=True,
        ):
            before = sums.get(session, (0, 0))
            sums[session] = (before[0] + count, before[1] + (lasted or 0))
    return sums


def _add_totals(batch: pa.RecordBatch, overview: Overview) -> None:
    import pyarrow.compute as pc

    overview.session_count += batch.num_rows
    for name in _SUMMED_COLUMNS:
        overview.totals[name] += pc.sum(batch[name]).as_py() or 0
    started, ended = pc.min(batch["started_at"]).as_py(), pc.max(batch["ended_at"]).as_py()
    if started is not None:
        overview.started_us = (
            started if overview.started_us is None else min(overview.started_us, started)
        )
    if ended is not None:
        overview.ended_us = ended if overview.ended_us is None else max(overview.ended_us, ended)
    for entry in batch["protocol"].value_counts().to_pylist():
        overview.protocols[escape_hidden(str(entry["values"] or "unknown"), 40)] += entry["counts"]
    gaps = pc.add(batch["missing_bytes_dialer"], batch["missing_bytes_acceptor"])
    overview.missing_bytes += pc.sum(gaps).as_py() or 0
    overview.sessions_with_gaps += pc.sum(pc.greater(gaps, 0)).as_py() or 0


def _rank(batch: pa.RecordBatch, stalled: dict[str, tuple[int, int]]) -> tuple[pa.Array, pa.Array]:
    """The group (one for all) and the rank of each session; smaller ranks come first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    data = pc.add(pc.fill_null(batch["bytes_dialer"], 0), pc.fill_null(batch["bytes_acceptor"], 0))
    weight = pc.min_element_wise(data, pa.scalar(1 << 56, pa.int64()))
    for flag, bit in (
        (pc.greater(batch["violations"], 0), 1 << 60),
        (pc.is_valid(index_in(batch["session_id"], list(stalled))), 1 << 59),
        (pc.not_equal(batch["ending"], "clean"), 1 << 58),
    ):
        weight = pc.add(weight, pc.multiply(pc.fill_null(flag, False).cast(pa.int64()), bit))
    return _zeros(batch.num_rows), pc.negate(weight)


def _zeros(rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(0, pa.int64()), rows)


def _table(batch: pa.RecordBatch) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches([batch])
