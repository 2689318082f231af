"""Streams that somebody gave up: worth a line, whoever was right."""

from __future__ import annotations

from typing import Final

from .budget import Budget
from .findings import Finding
from .grouping import Best, Row, codes
from .material import KEY, Json, Material, place_of
from .reading import Tables

ENDING_COLUMNS: Final = ("session_id", "stream", "ending", "closed_at", "reset_by", "error")
HEADLINES: Final = {
    "reset": "Streams were reset",
    "cancelled": "Streams were cancelled",
    "rejected": "Offers were rejected",
    "never-accepted": "Offers were never accepted",
    "abandoned": "Streams were abandoned: their id was used again",
}
_ENDINGS: Final = tuple(HEADLINES)


def given_up(tables: Tables, budget: Budget) -> list[Finding]:
    """One finding for each such ending, with the first streams that ended so."""
    import pyarrow.compute as pc

    counts = [0] * len(_ENDINGS)
    first = Best([budget.examples] * len(_ENDINGS), keys=2)
    for batch in tables.batches("streams", ENDING_COLUMNS):
        group = codes(batch["ending"], _ENDINGS)
        for entry in group.drop_null().value_counts().to_pylist():
            counts[entry["values"]] += entry["counts"]
        first.offer(group, pc.fill_null(batch["closed_at"], 0), batch)
    return [
        Finding(
            "note", HEADLINES[ending], cause=ending, count=counts[group], rows=first.rows(group)
        )
        for group, ending in enumerate(_ENDINGS)
        if counts[group]
    ]


def ending_item(material: Material, row: Row) -> Json:
    """One stream that was given up, as the page shows it."""
    named = dict(zip(ENDING_COLUMNS, row, strict=True))
    known = material.stream(named["session_id"], named["stream"])
    name = material.clean(known.row["name"], KEY) if known else None
    key = material.clean(named["stream"], KEY)
    told = f"stream {key}" + (f" ({name})" if name else "")
    by = f" by the {named['reset_by']}" if named["reset_by"] in ("dialer", "acceptor") else ""
    why = f": {material.clean(named['error'])}" if named["error"] else ""
    return {
        "text": f"{told}: {named['ending']}{by}{why}",
        **place_of(material, named["session_id"], named["stream"], named["closed_at"]),
    }
