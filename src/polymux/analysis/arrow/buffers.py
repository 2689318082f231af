# mypyc: compiled
"""Arrow buffers from compiled columns: 32-bit dictionary indices and validity bitmaps.

Functions called from interpreted code take whole pages, never single columns: a `vec` that is
passed from interpreted to compiled code is never freed.
"""

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i32, i64, u8

from polymux.analysis.output.frame_page import FramePage
from polymux.analysis.output.timeline_rows import TimelineRows


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
