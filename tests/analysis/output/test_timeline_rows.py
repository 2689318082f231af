"""Timeline rows of many sessions share batches without being changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.recorded_conversation import Found, Row

from polymux.analysis.output import row_batcher as batcher
from polymux.analysis.output.arrow_batches import SCHEMAS
from polymux.analysis.output.row_batcher import MAX_PENDING_TEXT_BYTES, RowBatcher
from polymux.analysis.output.row_columns import TimelineRows

numbers = st.integers(0, 2**62)
rows = st.tuples(
    st.sampled_from(["", "d1", "a2", "d1#2", "ä"]),
    st.integers(0, 1),
    st.integers(0, 499),
    numbers,
    numbers,
    st.integers(-1, 2**62),
)
Told = tuple[str, int, int, int, int, int]


def told(session: str, row: Told) -> Row:
    label, side, bucket, frames, size, blocked = row
    return {
        "session_id": session,
        "stream": label or None,
        "sender": ("dialer", "acceptor")[side],
        "bucket": bucket,
        "frames": frames,
        "bytes": size,
        "blocked_us": blocked if blocked >= 0 else None,
    }


def rows_of(given_rows: list[Told]) -> TimelineRows:
    made = TimelineRows()
    for label, *numbers in given_rows:
        made.add(made.stream_labels.index_of(label) if label else -1, *numbers)
    return made


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(rows, min_size=1, max_size=90)), max_size=12),
    st.sampled_from([1, 7, 100, batcher.DEFAULT_BATCH_ROWS]),
)
def test_rows_of_interleaved_sessions_are_complete_and_in_order(
    asked: list[tuple[int, list[Told]]], enough: int
) -> None:
    found = Found()
    batcher = RowBatcher(found.emit, enough)
    expected: list[Row] = []
    for whose, given_rows in asked:
        batcher.add_timeline(rows_of(given_rows), f"s{whose}")
        expected += [told(f"s{whose}", row) for row in given_rows]
        handed = len(found.rows("timeline"))
        assert handed <= len(expected)
        assert len(expected) - handed < enough
    batcher.flush()
    assert found.rows("timeline") == expected
    for batch in found.batches["timeline"]:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMAS["timeline"])


def test_long_labels_do_not_wait_for_thousands_of_rows() -> None:
    found = Found()
    batcher = RowBatcher(found.emit)
    half = "x" * (MAX_PENDING_TEXT_BYTES // 2)
    batcher.add_timeline(rows_of([(half, 0, 0, 1, 1, -1)]), "one")
    batcher.add_timeline(rows_of([(half, 1, 0, 1, 1, -1)]), "two")  # is there already
    assert not found.batches["timeline"]
    batcher.add_timeline(rows_of([(half + "y", 0, 0, 1, 1, -1)]), "two")
    assert [batch.num_rows for batch in found.batches["timeline"]] == [3]
