# mypyc: compiled
"""Content frames as columns, for the `content` table and for following one stream."""

from typing import Final

from mypy_extensions import i64

from polymux.core.streams import Stream

MOST: Final[i64] = 67108864  # octets of one frame that are kept: far beyond any protocol's frames


class ContentRows:
    """Rows as columns; `stream` "" for a control message."""

    def __init__(self) -> None:
        self.stream: list[str] = []
        self.sender: list[int] = []
        self.ordinal: list[int] = []
        self.at_us: list[int] = []
        self.data: list[bytes] = []


class Contents:
    """Collects the content that counts. `control`: the kind of frame that is content without a
    stream, or -1."""

    def __init__(self, control: i64) -> None:
        self.control: i64 = control
        self.rows: ContentRows = ContentRows()
        self.parts: list[list[bytes]] = [[], []]
        self.sizes: list[int] = [0, 0]
        self.cut: int = 0  # octets left out of frames over the limit
        self.octets: i64 = 0  # waiting in `rows`
        self.selecting: bool = False
        self.opener: i64 = 0
        self.number: i64 = 0
        self.incarnation: i64 = 0

    def select(self, opener: i64, number: i64, incarnation: i64) -> None:
        """Collect the content of this stream only."""
        self.selecting = True
        self.opener = opener
        self.number = number
        self.incarnation = incarnation

    def wanted(self, stream: Stream) -> bool:
        return not self.selecting or (
            stream.opener == self.opener
            and stream.number == self.number
            and stream.incarnation == self.incarnation
        )

    def part(self, sender: i64, stream: Stream, data: bytes, start: i64, end: i64) -> None:
        """Octets of the content frame that is passing."""
        if not self.wanted(stream):
            return
        room = MOST - self.sizes[sender]
        if end - start > room:
            self.cut += int(end - start - room)
            end = start + room
        if end > start:
            self.parts[sender].append(data[start:end])
            self.sizes[sender] += int(end - start)

    def whole(self, sender: i64, stream: Stream | None, ordinal: i64, at: i64) -> None:
        """The content frame is whole; no stream: it does not count."""
        parts = self.parts[sender]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self.parts[sender] = []
        self.sizes[sender] = 0
        if stream is not None and self.wanted(stream):
            self.put(stream.label(), sender, data, ordinal, at)

    def message(self, sender: i64, data: bytes, ordinal: i64, at: i64) -> None:
        """A control message: content that belongs to no stream."""
        if not self.selecting:
            self.put("", sender, data, ordinal, at)

    def put(self, label: str, sender: i64, data: bytes, ordinal: i64, at: i64) -> None:
        rows = self.rows
        rows.stream.append(label)
        rows.sender.append(int(sender))
        rows.ordinal.append(int(ordinal))
        rows.at_us.append(int(at // 1000))
        rows.data.append(data)
        self.octets += len(data)

    def take(self) -> ContentRows:
        rows = self.rows
        self.rows = ContentRows()
        self.octets = 0
        return rows
