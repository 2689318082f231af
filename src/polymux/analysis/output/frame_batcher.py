"""Batches of frames from many sessions.

A short session has a few dozen frames, for which a batch of their own costs more than the rows. A
page with many rows becomes a batch by itself, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from polymux.analysis.arrow.batches import frames_batch, kind_names
from polymux.analysis.output.frame_page import FramePage, SharedFramePage
from polymux.core.protocol import Protocol

MAX_PENDING_TEXT_BYTES: Final = 1 << 20  # a batch with longer texts is emitted early


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
