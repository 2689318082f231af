"""Findings of streams that were aborted, or had not ended when the capture did."""

from __future__ import annotations

from typing import Final

from polymux.analysis.schema.tables import UNFINISHED_ENDINGS
from polymux.report.budget import Budget
from polymux.report.load.findings import FindingGroup
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import Row, TopRows, index_in
from polymux.report.render.report_data import MAX_KEY_CHARS, Json, ReportData, location_of
from polymux.report.render.wording import StreamEnding, ending_sentence

ENDING_COLUMNS: Final = (
    "session_id", "stream", "ending", "closed_at", "opener", "reset_by", "error", "ended_dialer",
    "ended_acceptor",
)  # fmt: skip
ENDING_HEADLINES: Final = {
    "reset": "Streams were reset",
    "cancelled": "Streams were cancelled",
    "rejected": "Offers were rejected",
    "never-accepted": "Offers were not seen to be accepted",
    "abandoned": "Streams were abandoned: their id was used again",
    "half-closed": "Streams were seen to end on one side only",
    "open": "Streams were not seen to end",
}
_ENDINGS: Final = tuple(ENDING_HEADLINES)


def load_stream_endings(tables: Tables, budget: Budget) -> list[FindingGroup]:
    """One finding for each ending but `clean`, with the first streams that ended so."""
    import pyarrow.compute as pc

    counts = [0] * len(_ENDINGS)
    first = TopRows([budget.examples_per_finding] * len(_ENDINGS), key_columns=2)
    for batch in tables.batches("streams", ENDING_COLUMNS):
        group = index_in(batch["ending"], _ENDINGS)
        for entry in group.drop_null().value_counts().to_pylist():
            counts[entry["values"]] += entry["counts"]
        first.add(group, pc.fill_null(batch["closed_at"], 0), batch)
    return [
        FindingGroup(
            "note",
            ENDING_HEADLINES[ending],
            cause=ending,
            count=counts[group],
            rows=first.rows(group),
        )
        for group, ending in enumerate(_ENDINGS)
        if counts[group]
    ]


def count_unfinished(findings: list[FindingGroup]) -> int:
    """The number of unfinished streams, from the findings of `load_stream_endings`."""
    return sum(finding.count for finding in findings if finding.cause in UNFINISHED_ENDINGS)


def ending_item(data: ReportData, row: Row) -> Json:
    """An example stream of such a finding, as the page shows it."""
    named = dict(zip(ENDING_COLUMNS, row, strict=True))
    end = StreamEnding.from_row(
        named
        | {
            "stream": data.escaped(named["stream"], MAX_KEY_CHARS),
            "error": data.escaped(named["error"]),
        }
    )
    return {
        "text": ending_sentence(end),
        **location_of(data, named["session_id"], named["stream"], named["closed_at"]),
    }
