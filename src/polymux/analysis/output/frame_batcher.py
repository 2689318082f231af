"""Frames of many sessions, made into batches together.

Those of a short session are some dozens, and a batch of them costs more than they do. A page of
many rows is a batch by itself, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from polymux.analysis.arrow.batches import frames_batch, kind_words
from polymux.analysis.output.frame_page import Page
from polymux.analysis.output.shared_page import SharedPage
from polymux.core.protocol import Protocol

OCTETS: Final = 1 << 20  # of texts, which may be long: more of them do not wait


class FrameGathering:
    """Collects pages of frames; `emit("frames", batch)` gets `rows` of them at most, and pages with
    a quarter of that as they are. The rows of a session keep their order.

    Each protocol has a page of its own, as it has its own names for kinds of frames.
    """

    def __init__(self, emit: Callable[[str, Any], None], rows: int) -> None:
        self._emit = emit
        self._rows = rows
        self._waiting: dict[str, SharedPage] = {}
        self._kinds: dict[str, Any] = {}

    def put(self, page: Page, session_id: str, protocol: Protocol) -> None:
        name = protocol.name
        kinds = self._kinds[name] = kind_words(protocol)
        waiting = self._waiting.get(name)
        if page.done >= self._rows // 4:
            if waiting is not None and session_id in waiting.sessions:
                self._hand_on(name)
            self._emit("frames", frames_batch(page, kinds, [session_id]))
            return
        if waiting is not None and not waiting.has_room(page):
            self._hand_on(name)
            waiting = None
        if waiting is None:
            waiting = self._waiting[name] = SharedPage(self._rows)
        waiting.add(page, session_id)
        if waiting.streams.octets >= OCTETS:
            self._hand_on(name)

    def flush(self) -> None:
        """Hand on what waits."""
        for name in list(self._waiting):
            self._hand_on(name)

    def _hand_on(self, name: str) -> None:
        shared = self._waiting.pop(name)
        sessions = list(shared.sessions)
        self._emit("frames", frames_batch(shared.page, self._kinds[name], sessions, shared.session))
