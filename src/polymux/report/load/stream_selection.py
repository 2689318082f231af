"""Select the streams of the detailed sessions that are listed, and those that have a timeline.

Streams with findings come first, then the largest. Streams that are left out are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from polymux.report.budget import Budget, fair_shares
from polymux.report.load.findings import STALL_COLUMNS, VIOLATION_COLUMNS, Findings
from polymux.report.load.overview import SessionRow
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import StreamKeyIndex, TopRows, index_in

if TYPE_CHECKING:
    import pyarrow as pa

STREAM_COLUMNS: Final = (
    "stream",
    "session_id",
    "opener",
    "name",
    "opened_at",
    "accepted_at",
    "closed_at",
    "ending",
    "reset_by",
    "error",
    "bytes_dialer",
    "bytes_acceptor",
    "units_dialer",
    "units_acceptor",
    "frames_dialer",
    "frames_acceptor",
    "credit_granted_dialer",
    "credit_granted_acceptor",
    "peak_in_flight_bytes_dialer",
    "peak_in_flight_bytes_acceptor",
    "blocked_us_dialer",
    "blocked_us_acceptor",
    "first_at_dialer",
    "first_at_acceptor",
    "last_at_dialer",
    "last_at_acceptor",
    "ended_dialer",
    "ended_acceptor",
    "hol_blocked_us_dialer",
    "hol_blocked_us_acceptor",
)
_START_COLUMNS: Final = ("opened_at", "first_at_dialer", "first_at_acceptor")


@dataclass(slots=True)
class StreamRow:
    """One listed stream: its row, whether it has a timeline, and counts of its findings."""

    key: str
    row: dict[str, object]
    has_timeline: bool = False
    errors: int = 0
    warnings: int = 0
    stalls: int = 0

    def integer(self, column: str) -> int | None:
        """An integer column, or None where it is null."""
        value = self.row[column]
        return value if isinstance(value, int) else None

    @property
    def frames(self) -> int:
        return (self.integer("frames_dialer") or 0) + (self.integer("frames_acceptor") or 0)

    @property
    def started_us(self) -> int:
        seen = [at for name in _START_COLUMNS if (at := self.integer(name)) is not None]
        return min(seen, default=1 << 62)


def select_streams(
    tables: Tables, detailed: list[SessionRow], findings: Findings, budget: Budget
) -> list[list[StreamRow]]:
    """The listed streams of each detailed session, in the order they were opened."""
    ids = [session.id for session in detailed]
    demands = [max(1, session.integer("streams")) for session in detailed]
    limits = fair_shares(demands, budget.streams)
    timelines = fair_shares(
        [min(n, budget.timelines_per_session) for n in limits], budget.timelines
    )
    with_findings = _streams_with_findings(findings)
    best = TopRows(limits)
    for batch in tables.batches("streams", STREAM_COLUMNS):
        session = index_in(batch["session_id"], ids)
        best.add(session, _rank(batch, session, with_findings), batch)
    chosen: list[list[StreamRow]] = []
    for group in range(len(detailed)):
        rows = [dict(zip(STREAM_COLUMNS, row, strict=True)) for row in best.rows(group)]
        streams = [StreamRow(str(row["stream"]), row) for row in rows]
        for stream in streams[: timelines[group]]:
            stream.has_timeline = True
        chosen.append(
            sorted(streams, key=lambda stream: (stream.started_us, len(stream.key), stream.key))
        )
    _count_findings(tables, ids, chosen)
    return chosen


def list_stream_keys(streams_by_session: list[list[StreamRow]]) -> list[tuple[int, str | None]]:
    """(session, stream) of every listed stream, session by session."""
    return [
        (group, stream.key)
        for group, streams in enumerate(streams_by_session)
        for stream in streams
    ]


def _streams_with_findings(findings: Findings) -> StreamKeyIndex:
    """The streams with violations or stalls, and those that blocked others."""
    wanted: set[tuple[int, str | None]] = set()
    for group, marks in enumerate(findings.session_violations):
        place = VIOLATION_COLUMNS.index("stream")
        wanted |= {(group, str(row[place])) for row in marks if row[place] is not None}
    for group, stalls in enumerate(findings.session_stalls):
        for name in ("stream", "blocking_stream"):
            place = STALL_COLUMNS.index(name)
            wanted |= {(group, str(row[place])) for row in stalls if row[place] is not None}
    return StreamKeyIndex(sorted(wanted, key=lambda pair: (pair[0], pair[1] or "")))


def _rank(batch: pa.RecordBatch, session: pa.Array, with_findings: StreamKeyIndex) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    data = pc.add(pc.fill_null(batch["bytes_dialer"], 0), pc.fill_null(batch["bytes_acceptor"], 0))
    weight = pc.min_element_wise(data, pa.scalar(1 << 58, pa.int64()))
    flag = pc.is_valid(with_findings.index_of(session, batch["stream"])).cast(pa.int64())
    return pc.negate(pc.add(weight, pc.multiply(flag, 1 << 60)))


def _count_findings(
    tables: Tables, ids: list[str], streams_by_session: list[list[StreamRow]]
) -> None:
    """Count the violations and stalls of each listed stream."""
    import pyarrow.compute as pc

    pairs = StreamKeyIndex(list_stream_keys(streams_by_session))
    flat = [stream for streams in streams_by_session for stream in streams]
    for batch in tables.batches("violations", ("session_id", "stream", "severity")):
        for place, count in _count_by_stream(
            batch.filter(pc.equal(batch["severity"], "error")), ids, pairs
        ):
            flat[place].errors += count
        for place, count in _count_by_stream(
            batch.filter(pc.equal(batch["severity"], "warning")), ids, pairs
        ):
            flat[place].warnings += count
    for batch in tables.batches("stalls", ("session_id", "stream", "cause")):
        real = batch.filter(pc.not_equal(batch["cause"], "sender-idle"))
        for place, count in _count_by_stream(real, ids, pairs):
            flat[place].stalls += count


def _count_by_stream(
    batch: pa.RecordBatch, ids: list[str], stream_keys: StreamKeyIndex
) -> list[tuple[int, int]]:
    found = stream_keys.index_of(index_in(batch["session_id"], ids), batch["stream"])
    entries = found.drop_null().value_counts().to_pylist()
    return [(entry["values"], entry["counts"]) for entry in entries]
