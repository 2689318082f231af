"""Rows as dictionaries, without Arrow: for commands that print a few rows of each session.

A record batch costs as much as hundreds of its rows, and a capture may have a million sessions with
a row each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any, Final

from polymux.analysis.output.row_columns import FramePage, TimelineRows
from polymux.analysis.output.row_sink import RowSink, TableColumns
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.core.errors import MissingExtra
from polymux.core.protocol import Protocol

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = {
    table.name: frozenset(c.name for c in table.columns if c.type is ColumnType.TIMESTAMP)
    for table in TABLES.values()
}


class PlainRows(RowSink):
    """Passes the rows of every table but `frames`, `timeline` and `content` on as dictionaries.

    Those of `frames` and `timeline` are dropped.

    Timestamps are datetimes; what a table stores as decimals are integers.

    Args:
        emit: called with the table's name and its next rows.
        columns: the columns of a table, if not all of them.

    Raises:
        MissingExtra: pyarrow is not installed. It is not imported here, which would take as long as
            everything else that a short command does, but other commands on captures need it.
    """

    def __init__(
        self,
        emit: Callable[[str, list[dict[str, Any]]], None],
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if find_spec("pyarrow") is None:
            raise MissingExtra("captures", "analysing captures")
        self._emit_rows = emit
        self._columns = columns or {}

    def add_frames(self, page: FramePage, session_id: str, protocol: Protocol) -> None:
        return

    def add_timeline(self, rows: TimelineRows, session_id: str) -> None:
        return

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
