# mypyc: compiled
"""Content frames as columns, for the `content` table and for `polymux follow`."""

from typing import Final

from mypy_extensions import i64

from polymux.core.streams import StreamState

MAX_FRAME_CONTENT_BYTES: Final[i64] = 67108864  # kept of one frame: beyond any protocol's frames


class ContentRows:
    """Rows as columns; `stream` is "" for a control message."""

    def __init__(self) -> None:
        self.stream: list[str] = []
        self.sender: list[int] = []
        self.frame_index: list[int] = []
        self.time_us: list[int] = []
        self.data: list[bytes] = []


class ContentCollector:
    """Collects the content that `streams` counts.

    `control_kind` is the kind of frame that is content without a stream, or -1.
    """

    def __init__(self, control_kind: i64) -> None:
        self.control_kind: i64 = control_kind
        self.rows: ContentRows = ContentRows()
        self.parts: list[list[bytes]] = [[], []]
        self.sizes: list[int] = [0, 0]
        self.truncated_bytes: int = 0  # left out of frames over MAX_FRAME_CONTENT_BYTES
        self.buffered_bytes: i64 = 0  # in `rows`
        self.has_selection: bool = False
        self.selected_opener: i64 = 0
        self.selected_stream_id: i64 = 0
        self.selected_incarnation: i64 = 0

    def select(self, opener: i64, stream_id: i64, incarnation: i64) -> None:
        """Collect the content of this stream only."""
        self.has_selection = True
        self.selected_opener = opener
        self.selected_stream_id = stream_id
        self.selected_incarnation = incarnation

    def is_selected(self, stream: StreamState) -> bool:
        """Whether the content of this stream is collected."""
        return not self.has_selection or (
            stream.opener == self.selected_opener
            and stream.stream_id == self.selected_stream_id
            and stream.incarnation == self.selected_incarnation
        )

    def add_part(self, sender: i64, stream: StreamState, data: bytes, start: i64, end: i64) -> None:
        """Add bytes of the current content frame."""
        if not self.is_selected(stream):
            return
        room = MAX_FRAME_CONTENT_BYTES - self.sizes[sender]
        if end - start > room:
            self.truncated_bytes += int(end - start - room)
            end = start + room
        if end > start:
            self.parts[sender].append(data[start:end])
            self.sizes[sender] += int(end - start)

    def end_frame(
        self, sender: i64, stream: StreamState | None, frame_index: i64, timestamp: i64
    ) -> None:
        """The content frame is complete; without a stream, its content does not count."""
        parts = self.parts[sender]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self.parts[sender] = []
        self.sizes[sender] = 0
        if stream is not None and self.is_selected(stream):
            self.add_row(stream.label(), sender, data, frame_index, timestamp)

    def add_control_message(
        self, sender: i64, data: bytes, frame_index: i64, timestamp: i64
    ) -> None:
        """Add a control message: content that belongs to no stream."""
        if not self.has_selection:
            self.add_row("", sender, data, frame_index, timestamp)

    def add_row(
        self, label: str, sender: i64, data: bytes, frame_index: i64, timestamp: i64
    ) -> None:
        rows = self.rows
        rows.stream.append(label)
        rows.sender.append(int(sender))
        rows.frame_index.append(int(frame_index))
        rows.time_us.append(int(timestamp // 1000))
        rows.data.append(data)
        self.buffered_bytes += len(data)

    def take_rows(self) -> ContentRows:
        """The rows collected since the last call."""
        rows = self.rows
        self.rows = ContentRows()
        self.buffered_bytes = 0
        return rows
