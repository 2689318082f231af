"""Rows of many sessions, made into batches together.

A batch costs as much as hundreds of its rows. A session that is short has a few rows in each table,
and captures have thousands of those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from polymux.analysis.arrow_rows import Columns, batch_of

Put = Callable[[str, Columns], None]

ROWS: Final = 4096
OCTETS: Final = 1 << 20  # of texts, which may be long
_TEXTS: Final = ("name_bytes", "error", "detail", "note", "evidence")


class Gathering:
    """Collects columns by table; `emit(table, batch)` gets them once there are enough."""

    def __init__(self, emit: Callable[[str, Any], None]) -> None:
        self._emit = emit
        self._waiting: dict[str, dict[str, list[Any]]] = {}
        self._octets: dict[str, int] = {}

    def put(self, table: str, columns: Columns) -> None:
        waiting = self._waiting.get(table)
        if waiting is None:
            self._waiting[table] = {name: list(values) for name, values in columns.items()}
            self._octets[table] = 0
        else:
            for name, values in columns.items():
                waiting[name] += values
        self._octets[table] += sum(
            len(text) for name in _TEXTS for text in columns.get(name, ()) if text is not None
        )
        rows = len(next(iter(self._waiting[table].values())))
        if rows >= ROWS or self._octets[table] >= OCTETS:
            self._hand_on(table)

    def flush(self) -> None:
        """Hand on what waits."""
        for table in list(self._waiting):
            self._hand_on(table)

    def _hand_on(self, table: str) -> None:
        columns = self._waiting.pop(table)
        self._emit(table, batch_of(table, columns))


def at_once(emit: Callable[[str, Any], None]) -> Put:
    """Nothing waits: a batch for the rows of each session."""
    return lambda table, columns: emit(table, batch_of(table, columns))
