"""Sessions whose bytes look like another protocol than the one that was named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polymux.analysis.options import DOUBT
from polymux.report.budget import Budget
from polymux.report.load.findings import Finding
from polymux.report.load.tables import Tables
from polymux.report.load.top_rows import Best, Row
from polymux.report.render.report_data import Json, Material, place_of

if TYPE_CHECKING:
    import pyarrow as pa

DOUBTED: Final = "protocol"
_COLUMNS: Final = ("session_id", "note")
_NOTE: Final = 400  # characters


def doubts(tables: Tables, budget: Budget) -> list[Finding]:
    """The finding that comes before all others, if there is such a session."""
    import pyarrow as pa
    import pyarrow.compute as pc

    finding = Finding("warning", "The bytes look like another protocol", cause=DOUBTED)
    first = Best([budget.examples])
    for batch in tables.batches("sessions", _COLUMNS):
        doubted: pa.RecordBatch = batch.filter(pc.starts_with(batch["note"], DOUBT))
        finding.count += doubted.num_rows
        zeros = pa.repeat(pa.scalar(0, pa.int64()), doubted.num_rows)
        first.offer(zeros, zeros, doubted)
    finding.rows = first.rows(0)
    return [finding] if finding.count else []


def doubt_item(material: Material, row: Row) -> Json:
    """One such session, as the page shows it."""
    named = dict(zip(_COLUMNS, row, strict=True))
    return {
        "text": material.clean(named["note"], _NOTE),
        **place_of(material, named["session_id"], None, None),
    }
