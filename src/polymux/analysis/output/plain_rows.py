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
from polymux.analysis.output.row_sink import Row, RowSink
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
        self._chosen: dict[str, list[tuple[str, int, bool]]] = {}

    def add_frames(self, page: FramePage, session_id: str, protocol: Protocol) -> None:
        return

    def add_timeline(self, rows: TimelineRows, session_id: str) -> None:
        return

    def add(self, table: str, rows: Sequence[Row]) -> None:
        chosen = self._chosen.get(table)
        if chosen is None:
            chosen = self._chosen[table] = self._choose_columns(table)
        found: list[dict[str, Any]] = []
        for row in rows:
            values: dict[str, Any] = {}
            for name, position, is_time in chosen:
                value: Any = row[position]
                if is_time and value is not None:
                    value = EPOCH + timedelta(microseconds=value)
                values[name] = value
            found.append(values)
        self._emit_rows(table, found)

    def _choose_columns(self, table: str) -> list[tuple[str, int, bool]]:
        """The columns that are passed on: name, position, and whether it is a timestamp."""
        all_names, times = TABLES[table].column_names(), _TIMES[table]
        names = self._columns.get(table) or all_names
        return [(name, all_names.index(name), name in times) for name in names]
