"""Rows as dictionaries, without Arrow: for commands that print a few rows of each session.

A record batch costs as much as hundreds of its rows, and a capture may have a million sessions with
a row each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from polymux.analysis.output.arrow_batches import TableColumns
from polymux.analysis.output.row_batcher import RowBatcher
from polymux.analysis.schema.tables import TABLES, ColumnType

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = {
    table.name: frozenset(c.name for c in table.columns if c.type is ColumnType.TIMESTAMP)
    for table in TABLES.values()
}


class PlainRows(RowBatcher):
    """Passes the rows of every table but `frames`, `timeline` and `content` on as dictionaries.

    Timestamps are datetimes; what a table stores as decimals are integers.

    Args:
        emit: called with the table's name and its next rows.
        columns: the columns of a table, if not all of them.
    """

    def __init__(
        self,
        emit: Callable[[str, list[dict[str, Any]]], None],
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(lambda table, batch: None, batch_rows=1)
        self._emit_rows = emit
        self._columns = columns or {}

    def add(self, table: str, columns: TableColumns) -> None:
        names = self._columns.get(table) or TABLES[table].column_names()
        times = _TIMES[table]
        values = [
            [us if us is None else EPOCH + timedelta(microseconds=us) for us in columns[name]]
            if name in times
            else columns[name]
            for name in names
        ]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        self._emit_rows(table, rows)
