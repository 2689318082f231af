# mypyc: compiled
"""Pages of frame rows: those of one session, and those of several short sessions together."""

from librt.vecs import vec
from mypy_extensions import i32, i64

from polymux.analysis.output.string_dictionary import StringDictionary
from polymux.core.frames import FrameRows


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
