"""What a worker holds: no pages of which it needs a few rows, no maps of what it has read."""

from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.random_captures import conversations, record

from polymux.analysis.arrow.batches import SCHEMAS
from polymux.analysis.output.parquet import COMPACT_AFTER_BYTES, TableWriter, read_table
from polymux.capture import CaptureLimits, FlowRefs, index_file, sessions_of
from polymux.capture.io import lean_files
from polymux.capture.io.lean_files import BoundedFilePool, MappedExtent

PAGE = 1 << 16


def page_of(rows: int) -> pa.RecordBatch:
    """A few rows of a page that has room for many."""
    columns = {"session_id": ["s"] * PAGE, "stream": ["d1"] * PAGE, "sender": ["dialer"] * PAGE}
    schema = SCHEMAS["timeline"]
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.array([1] * PAGE, pa.int64()).cast(field.type)
        for field in schema
    ]
    return pa.record_batch(arrays, schema=schema).slice(0, rows)


def test_a_writer_keeps_rows_and_not_the_pages_they_came_in(tmp_path: Path) -> None:
    batch = page_of(10)
    assert batch.get_total_buffer_size() > 100 * batch.nbytes
    writer = TableWriter(tmp_path)
    with writer:
        for _ in range(100):
            writer.emit("timeline", batch)
            file = writer.files["timeline"]
            held = sum(
                each.get_total_buffer_size() for each in [*file.compacted, *file.uncompacted]
            )
            assert held <= COMPACT_AFTER_BYTES + 2 * batch.get_total_buffer_size()
    assert read_table(tmp_path, "timeline").num_rows == 1000


def test_what_was_read_through_a_map_is_right_after_its_pages_were_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = tmp_path / "all.pcapng"
    record([capture], conversations(70, 12))
    flows: dict[bytes, list[FlowRefs]] = {}
    for row in index_file(str(capture)).rows:
        flows.setdefault(row.flow, []).append(row)

    def raw_bytes() -> list[bytes]:
        with BoundedFilePool(CaptureLimits()) as files:
            return [
                b"".join(batch.data for batch in session.batches(2000))
                for rows in flows.values()
                for session in sessions_of(rows, files.reader)
            ]

    whole = raw_bytes()
    assert any(whole)
    monkeypatch.setattr(lean_files, "MAX_MAPPED_BYTES", 1)
    assert raw_bytes() == whole


def test_what_is_mapped_is_bounded_by_the_span_and_by_the_pieces() -> None:
    class Run:
        def __init__(self, begin: int, end: int, pieces: int) -> None:
            self.begin, self.end, self.pieces = begin, end, pieces

    file = MappedExtent()
    assert file.mapped_bytes() == 0
    file.add(Run(100, 5000, 3))  # type: ignore[arg-type]  # all it looks at
    assert file.mapped_bytes() == 4900
    file.add(Run(1 << 30, (1 << 30) + 9, 1))  # type: ignore[arg-type]  # the same
    assert file.mapped_bytes() == 4 * lean_files.FAULT_AROUND_BYTES
