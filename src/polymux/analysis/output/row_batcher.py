"""Rows of many sessions, made into batches together.

A batch costs as much as hundreds of its rows. A session that is short has a few rows in each table,
and captures have thousands of those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from polymux.analysis.arrow.batches import Columns, batch_of, timeline_batch
from polymux.analysis.output.frame_batcher import OCTETS, FrameGathering
from polymux.analysis.output.frame_page import Page
from polymux.analysis.output.timeline_rows import SharedTimeline, TimelineRows
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.core.protocol import Protocol

ROWS: Final = 4096


class Gathering:
    """Collects columns by table; `emit(table, batch)` gets them once there are enough: `rows`, or
    fewer if their texts are long. With one row as enough, nothing waits."""

    def __init__(self, emit: Callable[[str, Any], None], rows: int = ROWS) -> None:
        self._emit = emit
        self._rows = rows
        self._frames = FrameGathering(emit, rows)
        self._timeline = SharedTimeline()
        self._waiting: dict[str, dict[str, list[Any]]] = {}
        self._octets: dict[str, int] = {}

    def put_frames(self, page: Page, session_id: str, protocol: Protocol) -> None:
        """The next rows of a session's frames."""
        self._frames.put(page, session_id, protocol)

    def put_timeline(self, rows: TimelineRows, session_id: str) -> None:
        """The next rows of a session's timeline."""
        self._timeline.add(rows, session_id)
        waiting = self._timeline.rows
        if waiting.count >= self._rows or waiting.streams.octets >= OCTETS:
            self._hand_on_timeline()

    def put(self, table: str, columns: Columns) -> None:
        """Rows of any other table."""
        octets = _octets(table, columns)
        waiting = self._waiting.get(table)
        if waiting is None:
            if self._is_enough(columns, octets):
                self._emit(table, batch_of(table, columns))
                return
            self._waiting[table] = {name: list(values) for name, values in columns.items()}
            self._octets[table] = octets
            return
        for name, values in columns.items():
            waiting[name] += values
        self._octets[table] += octets
        if self._is_enough(waiting, self._octets[table]):
            self._hand_on(table)

    def flush(self) -> None:
        """Hand on what waits."""
        for table in list(self._waiting):
            self._hand_on(table)
        if self._timeline.rows.count:
            self._hand_on_timeline()
        self._frames.flush()

    def _hand_on(self, table: str) -> None:
        self._emit(table, batch_of(table, self._waiting.pop(table)))

    def _hand_on_timeline(self) -> None:
        self._emit("timeline", timeline_batch(self._timeline))
        self._timeline = SharedTimeline()

    def _is_enough(self, columns: Columns, octets: int) -> bool:
        return octets >= OCTETS or len(next(iter(columns.values()))) >= self._rows


def _texts(*kinds: ColumnType) -> dict[str, list[str]]:
    """Columns of these kinds, by table, that may hold any text."""
    return {
        table.name: [c.name for c in table.columns if c.type in kinds and not c.words]
        for table in TABLES.values()
    }


_SINGLE: Final = _texts(ColumnType.TEXT, ColumnType.OCTETS)
_LISTS: Final = _texts(ColumnType.TEXTS)


def _octets(table: str, columns: Columns) -> int:
    """About how much the texts in these columns take."""
    octets = 0
    for name in _SINGLE[table]:
        for text in columns[name]:
            if text is not None:
                octets += len(text)
    for name in _LISTS[table]:
        for texts in columns[name]:
            octets += sum(map(len, texts or ()))
    return octets
