"""What a worker holds: no pages of which it needs a few rows, no maps of what it has read."""

from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.random_captures import conversations, record

from polymux.analysis.output.arrow_batches import SCHEMAS
from polymux.analysis.output.parquet import PORTION_BYTES, TableWriter, read_table
from polymux.capture import FilePool, FlowRefs, index_file, sessions_of
from polymux.capture.io.file_pool import WORKER_RESIDENT_LIMIT
from polymux.capture.io.mmap_gather import LIBC

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
    page = page_of(10).get_total_buffer_size()
    assert page > 100 * page_of(10).nbytes
    assert 20 * page > 2 * (PORTION_BYTES + 2 * page)
    before = pa.total_allocated_bytes()
    writer = TableWriter(tmp_path)
    with writer:
        for _ in range(20):
            writer.emit("timeline", page_of(10))
            assert pa.total_allocated_bytes() - before <= PORTION_BYTES + 2 * page
    assert read_table(tmp_path, "timeline").num_rows == 200


@pytest.mark.parametrize("blocks", [0, 1, 4])
def test_payload_is_the_same_however_few_mapped_pages_may_be_resident(
    tmp_path: Path, blocks: int
) -> None:
    capture = tmp_path / "all.pcapng"
    record([capture], conversations(70, 12))
    flows: dict[bytes, list[FlowRefs]] = {}
    for row in index_file(str(capture)).rows:
        flows.setdefault(row.flow, []).append(row)

    def payloads(resident_limit: int) -> list[bytes]:
        with FilePool(resident_limit=resident_limit) as files:
            found = [
                b"".join(batch.data for batch in session.batches(2000))
                for rows in flows.values()
                for session in sessions_of(rows, files.reader)
            ]
            # A run of its own may exceed the limit: it lies within the file.
            assert files.resident_bytes <= max(resident_limit, capture.stat().st_size + PAGE)
            assert files.resident_bytes > 0 or LIBC is None
            return found

    expected = payloads(WORKER_RESIDENT_LIMIT)
    assert any(expected)
    assert payloads(blocks * PAGE) == expected
