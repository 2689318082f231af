"""What takes the rows of sessions, whatever becomes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from polymux.analysis.output.row_columns import FramePage, TimelineRows
from polymux.core.protocol import Protocol

Row = Sequence[object]  # the values of a row, in the order of the table's columns


class RowSink(ABC):
    """Takes the rows of all tables but `content`, of one session after another."""

    @abstractmethod
    def add_frames(self, page: FramePage, session_id: str, protocol: Protocol) -> None:
        """Add the next rows of a session's frames."""

    @abstractmethod
    def add_timeline(self, rows: TimelineRows, session_id: str) -> None:
        """Add the next rows of a session's timeline."""

    @abstractmethod
    def add(self, table: str, rows: Sequence[Row]) -> None:
        """Add rows of any other table. Timestamps are microseconds."""
