"""Findings of sessions whose bytes contradict the named protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polymux.analysis.detection.detector import MISMATCH_PREFIX
from polymux.report.budget import Budget
from polymux.report.load.findings import FindingGroup
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import Row, TopRows
from polymux.report.render.report_data import Json, ReportData, location_of

if TYPE_CHECKING:
    import pyarrow as pa

MISMATCH_CAUSE: Final = "protocol"
_COLUMNS: Final = ("session_id", "note")
_MAX_NOTE_CHARS: Final = 400


def load_protocol_mismatches(tables: Tables, budget: Budget) -> list[FindingGroup]:
    """The finding that precedes all others, if there is such a session."""
    import pyarrow as pa
    import pyarrow.compute as pc

    finding = FindingGroup("warning", "The bytes look like another protocol", cause=MISMATCH_CAUSE)
    first = TopRows([budget.examples_per_finding])
    for batch in tables.batches("sessions", _COLUMNS):
        mismatched: pa.RecordBatch = batch.filter(pc.starts_with(batch["note"], MISMATCH_PREFIX))
        finding.count += mismatched.num_rows
        zeros = pa.repeat(pa.scalar(0, pa.int64()), mismatched.num_rows)
        first.add(zeros, zeros, mismatched)
    finding.rows = first.rows(0)
    return [finding] if finding.count else []


def mismatch_item(data: ReportData, row: Row) -> Json:
    """An example session of the finding, as the page shows it."""
    named = dict(zip(_COLUMNS, row, strict=True))
    return {
        "text": data.escaped(named["note"], _MAX_NOTE_CHARS),
        **location_of(data, named["session_id"], None, None),
    }
