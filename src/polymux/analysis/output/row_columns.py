# mypyc: compiled
"""Rows of the tables as columns in memory, before they become Arrow arrays (`arrow_batches`).

`frames` and `timeline` rows are columns of native integers; several short sessions share a page
of them. The row of a stream is a list, those of `content` are columns of lists. Streams are named
by labels, which are dictionary encoded (`StringDictionary`).

Arrow refers to the integers in place; `FrameColumns` and `TimelineColumns` add the buffers it
needs besides: 32-bit dictionary indices and validity bitmaps. Interpreted code passes whole pages
to them, never single columns: a `vec` that is passed from interpreted to compiled code is never
freed.
"""

from typing import Final

from librt.strings import BytesWriter
from librt.vecs import append, vec
from mypy_extensions import i32, i64, u8

from polymux.analysis.tracking.stream_tracker import StreamTracker, side_name
from polymux.core.frames import FrameRows
from polymux.core.protocol import Protocol
from polymux.core.side import ACCEPTOR, DIALER
from polymux.core.streams import ABORTED, ID_MODULUS, NOT_YET, OPEN, HalfStream, StreamState

MAX_DECIMAL20: Final = 99_999_999_999_999_999_999  # the largest value of decimal(20,0)
MAX_INT64: Final = 9_223_372_036_854_775_807  # the largest value of an integer column
MAX_FRAME_CONTENT_BYTES: Final[i64] = 67108864  # kept of one frame: beyond any protocol's frames


class StringDictionary:
    """Distinct strings in order of first use, as an Arrow dictionary requires.

    `total_length` is the sum of their lengths.
    """

    def __init__(self) -> None:
        self.strings: list[str] = []
        self.indices: dict[str, int] = {}
        self.total_length: i64 = 0

    def index_of(self, string: str) -> i64:
        """The index of a string, which is appended if it is new."""
        index = self.indices.get(string)
        if index is None:
            index = len(self.strings)
            self.indices[string] = index
            self.strings.append(string)
            self.total_length += len(string)
        return index


class FramePage:
    """A batch of frame rows with the columns that the `frames` table needs in addition.

    `time_us` is each row's time in microseconds, `label_index` its stream as an index into `labels`
    (-1: none). The first `row_count` rows are filled.
    """

    def __init__(self, batch: FrameRows, page_id: i64) -> None:
        self.batch: FrameRows = batch
        self.page_id: i64 = page_id
        self.row_count: i64 = 0
        self.time_us: vec[i64] = vec[i64]([i64(0)] * batch.capacity)
        self.label_index: vec[i64] = vec[i64]([i64(-1)] * batch.capacity)
        self.labels: list[str] = []


class SharedFramePage:
    """Rows of several sessions of one protocol, copied from their own pages in order of arrival.

    `session_index` is each row's session as an index into `sessions`. The page is emitted as one
    batch and never reused, because Arrow arrays refer to its memory.
    """

    def __init__(self, capacity: i64) -> None:
        self.page: FramePage = FramePage(FrameRows(capacity), 0)
        self.session_index: vec[i32] = vec[i32]([i32(0)] * capacity)
        self.sessions: dict[str, int] = {}
        self.stream_labels: StringDictionary = StringDictionary()
        self.page.labels = self.stream_labels.strings

    def has_room(self, page: FramePage) -> bool:
        """Whether the rows of this page can be added."""
        return page.row_count <= self.page.batch.capacity - self.page.row_count

    def add(self, page: FramePage, session_id: str) -> None:
        """Copy the rows of a page; `has_room` must be true for it."""
        assert self.has_room(page)
        own = i32(self.sessions.setdefault(session_id, len(self.sessions)))
        label_indices: vec[i64] = vec[i64]([0] * len(page.labels))
        for n in range(i64(len(page.labels))):
            label_indices[n] = self.stream_labels.index_of(page.labels[n])
        new = self.page
        to = new.batch
        rows = page.batch
        end = new.row_count
        for i in range(page.row_count):
            self.session_index[end] = own
            to.sender[end] = rows.sender[i]
            to.frame_index[end] = rows.frame_index[i]
            new.time_us[end] = page.time_us[i]
            to.byte_offset[end] = rows.byte_offset[i]
            to.size[end] = rows.size[i]
            to.kind[end] = rows.kind[i]
            stream = page.label_index[i]
            new.label_index[end] = label_indices[stream] if stream >= 0 else stream
            to.amount[end] = rows.amount[i]
            to.payload_bytes[end] = rows.payload_bytes[i]
            to.verdict[end] = rows.verdict[i]
            end += 1
        new.row_count = end


class TimelineRows:
    """Columns of the `timeline` table with `row_count` rows.

    `label_index` is an index into `stream_labels`, -1 for none; `blocked_us` is -1 where the half
    needs no credit.
    """

    def __init__(self) -> None:
        self.row_count: i64 = 0
        self.stream_labels: StringDictionary = StringDictionary()
        self.label_index: vec[i64] = vec[i64]()
        self.sender: vec[u8] = vec[u8]()
        self.bucket: vec[i64] = vec[i64]()
        self.frames: vec[i64] = vec[i64]()
        self.content_bytes: vec[i64] = vec[i64]()
        self.blocked_us: vec[i64] = vec[i64]()

    def add(
        self,
        label_index: i64,
        sender: i64,
        bucket: i64,
        frames: i64,
        content_bytes: i64,
        blocked_us: i64,
    ) -> None:
        self.label_index = append(self.label_index, label_index)
        self.sender = append(self.sender, u8(sender))
        self.bucket = append(self.bucket, bucket)
        self.frames = append(self.frames, frames)
        self.content_bytes = append(self.content_bytes, content_bytes)
        self.blocked_us = append(self.blocked_us, blocked_us)
        self.row_count += 1


class SharedTimelineRows:
    """Rows of several sessions; `session_index` is each row's index into `sessions`."""

    def __init__(self) -> None:
        self.rows: TimelineRows = TimelineRows()
        self.sessions: dict[str, int] = {}
        self.session_index: vec[i64] = vec[i64]()

    def add(self, rows: TimelineRows, session_id: str) -> None:
        own: i64 = self.sessions.setdefault(session_id, len(self.sessions))
        to = self.rows
        label_indices: vec[i64] = vec[i64]()
        for label in rows.stream_labels.strings:
            label_indices = append(label_indices, to.stream_labels.index_of(label))
        for i in range(rows.row_count):
            stream = rows.label_index[i]
            if stream >= 0:
                stream = label_indices[stream]
            sender = i64(rows.sender[i])
            to.add(
                stream,
                sender,
                rows.bucket[i],
                rows.frames[i],
                rows.content_bytes[i],
                rows.blocked_us[i],
            )
            self.session_index = append(self.session_index, own)


class FrameColumns:
    """Buffers of a page of frames. `*_validity` is b"" where no value is null."""

    def __init__(self, page: FramePage) -> None:
        batch = page.batch
        rows = page.row_count
        self.sender: vec[i32] = dictionary_indices_u8(batch.sender, rows)
        self.kind: vec[i32] = dictionary_indices_u8(batch.kind, rows)
        self.verdict: vec[i32] = dictionary_indices_u8(batch.verdict, rows)
        self.stream: vec[i32] = dictionary_indices(page.label_index, rows)
        self.stream_validity: bytes = validity_bitmap(page.label_index, rows)
        self.amount_validity: bytes = validity_bitmap(batch.amount, rows)


class TimelineColumns:
    """Buffers of timeline rows, as in `FrameColumns`."""

    def __init__(self, rows: TimelineRows) -> None:
        self.sender: vec[i32] = dictionary_indices_u8(rows.sender, rows.row_count)
        self.stream: vec[i32] = dictionary_indices(rows.label_index, rows.row_count)
        self.stream_validity: bytes = validity_bitmap(rows.label_index, rows.row_count)
        self.blocked_validity: bytes = validity_bitmap(rows.blocked_us, rows.row_count)


def dictionary_indices_u8(column: vec[u8], rows: i64) -> vec[i32]:
    indices: vec[i32] = vec[i32]([i32(0)] * rows)
    for n in range(rows):
        indices[n] = i32(column[n])
    return indices


def dictionary_indices(column: vec[i64], rows: i64) -> vec[i32]:
    """Indices as 32 bits. Negative numbers, which are null, become 0, a valid index."""
    indices: vec[i32] = vec[i32]([i32(0)] * rows)
    for n in range(rows):
        if column[n] > 0:
            indices[n] = i32(column[n])
    return indices


def validity_bitmap(column: vec[i64], rows: i64) -> bytes:
    """A bitmap with a bit set for each number that is not negative; b"" if all are set."""
    first: i64 = 0
    while first < rows and column[first] >= 0:
        first += 1
    if first == rows:
        return b""
    out = BytesWriter()
    for start in range(i64(0), rows, 8):
        bits: i64 = 0
        bit: i64 = 1
        end = start + 8 if start + 8 < rows else rows
        for n in range(start, end):
            if column[n] >= 0:
                bits |= bit
            bit *= 2
        out.append(u8(bits))
    return out.getvalue()


def stream_row(
    session_id: str,
    protocol: Protocol,
    stream: StreamState,
    tracker: StreamTracker,
    ending: str,
    rtt_ns: i64,
) -> list[object]:
    """The row of a stream in `streams`; `rtt_ns` is its session's round trip, 0 or less if unknown.

    `ending` is the stream's (`Protocol.ending`).
    """
    stream_id: int = stream.stream_id
    one = stream.dialer
    two = stream.acceptor
    tracked = tracker.dialer
    tracked_too = tracker.acceptor
    return [
        session_id,
        tracker.label,
        nullable_side_name(stream.opener),
        stream_id if stream_id >= 0 else stream_id + ID_MODULUS,
        int(stream.incarnation),
        decoded_text(stream.name),
        stream.name,
        timestamp_us(stream.opened_at),
        timestamp_us(stream.accepted_at),
        timestamp_us(stream.closed_at),
        ending,
        nullable_side_name(stream.reset_by),
        decoded_text(stream.error),
        int(one.content_bytes),
        int(two.content_bytes),
        int(one.content_units),
        int(two.content_units),
        int(one.frames),
        int(two.frames),
        half_ending(one),
        half_ending(two),
        total_credit(one),
        total_credit(two),
        one.peak_in_flight if one.window >= 0 else None,
        two.peak_in_flight if two.window >= 0 else None,
        blocked_us(one),
        blocked_us(two),
        timestamp_us(tracked.first_at),
        timestamp_us(tracked_too.first_at),
        timestamp_us(tracked.last_at),
        timestamp_us(tracked_too.last_at),
        min(one.window, MAX_INT64) if one.window > 0 else None,
        min(two.window, MAX_INT64) if two.window > 0 else None,
        bits_per_second(one.window, rtt_ns) if one.window > 0 else None,
        bits_per_second(two.window, rtt_ns) if two.window > 0 else None,
        bits_per_second(one.content_bytes, tracked.last_at - tracked.first_at),
        bits_per_second(two.content_bytes, tracked_too.last_at - tracked_too.first_at),
        int(tracked.stalled_ns // 1000),
        int(tracked_too.stalled_ns // 1000),
        int(tracked.hol_blocked_ns // 1000),
        int(tracked_too.hol_blocked_ns // 1000),
    ]


def decoded_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def half_ending(half: HalfStream) -> str | None:
    """How a side ended its half; None if it has not."""
    if half.state == OPEN:
        return None
    return "aborted" if half.state == ABORTED else "ended"


def total_credit(half: HalfStream) -> int | None:
    """All credit granted to a side; None if the protocol has none."""
    if half.credit_granted < 0:
        return None
    return half.credit_granted if half.credit_granted < MAX_DECIMAL20 else MAX_DECIMAL20


def blocked_us(half: HalfStream) -> int | None:
    """The time a side had no credit; None if the protocol has none."""
    return int(half.blocked_ns // 1000) if half.credit_granted >= 0 else None


def timestamp_us(timestamp: i64) -> int | None:
    """Nanoseconds to microseconds; None for NOT_YET."""
    return int(timestamp // 1000) if timestamp != NOT_YET else None


def bits_per_second(size: int, ns: i64) -> int | None:
    """The rate of `size` bytes in `ns` nanoseconds; None if either is 0 or less."""
    if ns <= 0 or size <= 0:
        return None
    return min(size * 8_000_000_000 // int(ns), MAX_INT64)


def nullable_side_name(side: i64) -> str | None:
    """The name of a side; None for any other number (a seeded stream's opener, no reset)."""
    return side_name(side) if side == DIALER or side == ACCEPTOR else None


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
