"""Arrow reads the buffers that compiled code makes of a page as the same values."""

from __future__ import annotations

import gc
import tracemalloc
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.analysis.output.arrow_batches import frames_batch, kind_names, timeline_batch
from polymux.analysis.output.row_columns import (
    FrameColumns,
    FramePage,
    SharedTimelineRows,
    TimelineColumns,
    TimelineRows,
)
from polymux.core.frames import FrameRows
from polymux.protocols.registry import create


def page_of(amounts: list[int], streams: list[int]) -> FramePage:
    page = FramePage(FrameRows(len(amounts) + 3), 0)
    page.labels = [f"d{n}" for n in range(9)]
    for n, (amount, stream) in enumerate(zip(amounts, streams, strict=True)):
        page.batch.amount[n] = amount
        page.label_index[n] = stream
        page.batch.sender[n] = n % 2
        page.batch.kind[n] = n % 256
        page.batch.verdict[n] = n % 3
    page.row_count = len(amounts)
    return page


def bits(there: bytes, rows: int) -> list[bool]:
    if not there:
        return [True] * rows
    assert len(there) == (rows + 7) // 8
    return [bool(there[n // 8] >> n % 8 & 1) for n in range(rows)]


numbers = st.lists(st.tuples(st.integers(-2, 2**62), st.integers(-1, 8)), min_size=1, max_size=40)


@given(numbers)
def test_values_are_there_where_they_are_not_negative(given_rows: list[tuple[int, int]]) -> None:
    amounts, streams = [row[0] for row in given_rows], [row[1] for row in given_rows]
    rows = len(given_rows)
    made = FrameColumns(page_of(amounts, streams))
    assert bits(made.amount_validity, rows) == [amount >= 0 for amount in amounts]
    assert bits(made.stream_validity, rows) == [stream >= 0 for stream in streams]
    assert list(made.stream) == [max(0, stream) for stream in streams]
    assert list(made.sender) == [n % 2 for n in range(rows)]
    assert list(made.kind) == [n % 256 for n in range(rows)]
    assert list(made.verdict) == [n % 3 for n in range(rows)]
    batch = frames_batch(page_of(amounts, streams), kind_names(create("mplex")), ["s"])
    batch.validate(full=True)
    assert batch["amount"].to_pylist() == [a if a >= 0 else None for a in amounts]
    assert batch["stream"].to_pylist() == [f"d{n}" if n >= 0 else None for n in streams]
    assert batch["session_id"].to_pylist() == ["s"] * rows


@pytest.mark.parametrize("there", [True, False])
def test_columns_that_were_handed_over_are_freed(there: bool) -> None:
    rng = Random(1)
    column = 8 * 4000

    def rounds(count: int) -> None:
        for _ in range(count):
            amounts = [rng.randrange(9) if there else -1 for _ in range(4000)]
            page = page_of(amounts, amounts if there else [-1] * 4000)
            assert frames_batch(page, kind_names(create("mplex")), ["s"]).num_rows == 4000
            shared, rows = SharedTimelineRows(), TimelineRows()
            for amount in amounts:
                rows.add(rows.stream_labels.index_of("d1") if there else -1, 0, 0, 1, 1, amount)
            shared.add(rows, "s")
            assert TimelineColumns(rows).stream_validity == (b"" if there else b"\0" * 500)
            assert isinstance(timeline_batch(shared), pa.RecordBatch)

    rounds(1)
    gc.collect()
    tracemalloc.start()
    try:
        rounds(1)
        before = tracemalloc.get_traced_memory()[0]
        rounds(3)
        assert tracemalloc.get_traced_memory()[0] - before < column
    finally:
        tracemalloc.stop()
