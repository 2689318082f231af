"""Batches of rows from many sessions.

A batch costs as much as hundreds of its rows. A short session has a few rows in each table and a
few dozen frames, and a capture may have thousands of such sessions. A page with many frames
becomes a batch by itself, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from polymux.analysis.output.arrow_batches import (
    frames_batch,
    kind_names,
    rows_batch,
    timeline_batch,
)
from polymux.analysis.output.row_columns import (
    FramePage,
    SharedFramePage,
    SharedTimelineRows,
    TimelineRows,
)
from polymux.analysis.output.row_sink import Row, RowSink
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.core.protocol import Protocol

DEFAULT_BATCH_ROWS: Final = 4096
MAX_PENDING_TEXT_BYTES: Final = 1 << 20  # a batch with longer texts is emitted early


class RowBatcher(RowSink):
    """Collects rows by table and emits them as batches.

    Args:
        emit: called with the table's name and the batch.
        batch_rows: rows per batch; fewer if their texts are long. 1 turns batching off.
    """

    def __init__(
        self, emit: Callable[[str, Any], None], batch_rows: int = DEFAULT_BATCH_ROWS
    ) -> None:
        self._emit = emit
        self._batch_rows = batch_rows
        self._frames = FrameBatcher(emit, batch_rows)
        self._timeline = SharedTimelineRows()
        self._pending: dict[str, list[Row]] = {}
        self._pending_text_bytes: dict[str, int] = {}

    def add_frames(self, page: FramePage, session_id: str, protocol: Protocol) -> None:
        self._frames.add(page, session_id, protocol)

    def add_timeline(self, rows: TimelineRows, session_id: str) -> None:
        self._timeline.add(rows, session_id)
        pending = self._timeline.rows
        if (
            pending.row_count >= self._batch_rows
            or pending.stream_labels.total_length >= MAX_PENDING_TEXT_BYTES
        ):
            self._flush_timeline()

    def add(self, table: str, rows: Sequence[Row]) -> None:
        pending = self._pending.setdefault(table, [])
        pending += rows
        size = self._pending_text_bytes.get(table, 0) + _text_size(table, rows)
        self._pending_text_bytes[table] = size
        if size >= MAX_PENDING_TEXT_BYTES or len(pending) >= self._batch_rows:
            self._flush_table(table)

    def flush(self) -> None:
        """Emit all pending rows."""
        for table in list(self._pending):
            self._flush_table(table)
        if self._timeline.rows.row_count:
            self._flush_timeline()
        self._frames.flush()

    def _flush_table(self, table: str) -> None:
        self._pending_text_bytes[table] = 0
        self._emit(table, rows_batch(table, self._pending.pop(table)))

    def _flush_timeline(self) -> None:
        self._emit("timeline", timeline_batch(self._timeline))
        self._timeline = SharedTimelineRows()


def _free_text_columns(*column_types: ColumnType) -> dict[str, list[int]]:
    """The positions of the columns of these types that may hold any text, by table."""
    return {
        table.name: [
            n
            for n, c in enumerate(table.columns)
            if c.type in column_types and not c.allowed_values
        ]
        for table in TABLES.values()
    }


_TEXT_COLUMNS: Final = _free_text_columns(ColumnType.TEXT, ColumnType.BINARY)
_TEXT_LIST_COLUMNS: Final = _free_text_columns(ColumnType.TEXT_LIST)


def _text_size(table: str, rows: Sequence[Sequence[Any]]) -> int:
    """Approximate size of the texts in these rows."""
    size = 0
    positions, list_positions = _TEXT_COLUMNS[table], _TEXT_LIST_COLUMNS[table]
    for row in rows:
        for n in positions:
            text = row[n]
            if text:
                size += len(text)
        for n in list_positions:
            for text in row[n] or ():
                size += len(text)
    return size


class FrameBatcher:
    """Collects pages of frames and emits them as batches of at most `batch_rows` rows.

    A page with at least a quarter of that is emitted as it is. The rows of a session keep their
    order. Each protocol has its own shared page, because the names of frame kinds differ.
    """

    def __init__(self, emit: Callable[[str, Any], None], batch_rows: int) -> None:
        self._emit = emit
        self._batch_rows = batch_rows
        self._pending: dict[str, SharedFramePage] = {}
        self._kind_names: dict[str, Any] = {}

    def add(self, page: FramePage, session_id: str, protocol: Protocol) -> None:
        """Add the next page of a session's frames."""
        name = protocol.name
        kinds = self._kind_names[name] = kind_names(protocol)
        pending = self._pending.get(name)
        if page.row_count >= self._batch_rows // 4:
            if pending is not None and session_id in pending.sessions:
                self._flush_protocol(name)
            self._emit("frames", frames_batch(page, kinds, [session_id]))
            return
        if pending is not None and not pending.has_room(page):
            self._flush_protocol(name)
            pending = None
        if pending is None:
            pending = self._pending[name] = SharedFramePage(self._batch_rows)
        pending.add(page, session_id)
        if pending.stream_labels.total_length >= MAX_PENDING_TEXT_BYTES:
            self._flush_protocol(name)

    def flush(self) -> None:
        """Emit all pending rows."""
        for name in list(self._pending):
            self._flush_protocol(name)

    def _flush_protocol(self, name: str) -> None:
        shared = self._pending.pop(name)
        sessions = list(shared.sessions)
        self._emit(
            "frames",
            frames_batch(shared.page, self._kind_names[name], sessions, shared.session_index),
        )
