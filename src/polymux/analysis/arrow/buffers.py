# mypyc: compiled
"""Columns as Arrow wants them: indices of 32 bits, and a bit for each value that is there.

What is called from interpreted code takes whole pages, never a column by itself: a `vec` that is
handed over alone is never freed.
"""

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i32, i64, u8

from polymux.analysis.output.frame_page import FramePage
from polymux.analysis.output.timeline_rows import TimelineRows


class FrameColumns:
    """Of a page. `*_there` is nothing at all where every value is there."""

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
    """The same of rows of the timeline."""

    def __init__(self, rows: TimelineRows) -> None:
        self.sender: vec[i32] = dictionary_indices_u8(rows.sender, rows.row_count)
        self.stream: vec[i32] = dictionary_indices(rows.label_index, rows.row_count)
        self.stream_validity: bytes = validity_bitmap(rows.label_index, rows.row_count)
        self.blocked_validity: bytes = validity_bitmap(rows.blocked_us, rows.row_count)


def dictionary_indices_u8(column: vec[u8], rows: i64) -> vec[i32]:
    found: vec[i32] = vec[i32]([i32(0)] * rows)
    for n in range(rows):
        found[n] = i32(column[n])
    return found


def dictionary_indices(column: vec[i64], rows: i64) -> vec[i32]:
    """Negative numbers, which are none, become 0: nobody may look beyond a dictionary there."""
    found: vec[i32] = vec[i32]([i32(0)] * rows)
    for n in range(rows):
        if column[n] > 0:
            found[n] = i32(column[n])
    return found


def validity_bitmap(column: vec[i64], rows: i64) -> bytes:
    """A bit for each number, set if it is not negative; no byte at all if every bit were."""
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
