"""Frames of many sessions, made into batches together.

Those of a short session are some dozens, and a batch of them costs more than they do. A page of
many rows is a batch by itself, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from polymux.analysis.arrow.batches import frames_batch, kind_names
from polymux.analysis.output.frame_page import FramePage, SharedFramePage
from polymux.core.protocol import Protocol

MAX_PENDING_TEXT_BYTES: Final = 1 << 20  # of texts, which may be long: more of them do not wait


class FrameBatcher:
    """Collects pages of frames; `emit("frames", batch)` gets `rows` of them at most, and pages with
    a quarter of that as they are. The rows of a session keep their order.

    Each protocol has a page of its own, as it has its own names for kinds of frames.
    """

    def __init__(self, emit: Callable[[str, Any], None], batch_rows: int) -> None:
        self._emit = emit
        self._batch_rows = batch_rows
        self._pending: dict[str, SharedFramePage] = {}
        self._kind_names: dict[str, Any] = {}

    def add(self, page: FramePage, session_id: str, protocol: Protocol) -> None:
        name = protocol.name
        kinds = self._kind_names[name] = kind_names(protocol)
        waiting = self._pending.get(name)
        if page.row_count >= self._batch_rows // 4:
            if waiting is not None and session_id in waiting.sessions:
                self._flush_protocol(name)
            self._emit("frames", frames_batch(page, kinds, [session_id]))
            return
        if waiting is not None and not waiting.has_room(page):
            self._flush_protocol(name)
            waiting = None
        if waiting is None:
            waiting = self._pending[name] = SharedFramePage(self._batch_rows)
        waiting.add(page, session_id)
        if waiting.stream_labels.total_length >= MAX_PENDING_TEXT_BYTES:
            self._flush_protocol(name)

    def flush(self) -> None:
        """Hand on what waits."""
        for name in list(self._pending):
            self._flush_protocol(name)

    def _flush_protocol(self, name: str) -> None:
        shared = self._pending.pop(name)
        sessions = list(shared.sessions)
        self._emit(
            "frames",
            frames_batch(shared.page, self._kind_names[name], sessions, shared.session_index),
        )
