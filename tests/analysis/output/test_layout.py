"""The layout of tables: sorted by session, partitioned, with filters that find one session."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.recorded_conversation import MS, START, Found, save

import polymux
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output import parquet
from polymux.analysis.output.arrow_batches import make_batch
from polymux.analysis.output.layout import BadLayout, TableLayout, partition_values
from polymux.analysis.output.manifest import table_files
from polymux.analysis.output.parquet import TableWriter, merge_files, read_table
from polymux.analysis.output.sorted_rows import RUN_BATCH_BYTES, SortedRows
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions
from polymux.testing.simulator import Simulation

DAY_US = 86_400_000_000
NOON = 1_762_171_200_000_000  # 2025-11-03, 12:00 UTC
Rows = list[tuple[str, int]]


def requests(rows: Rows, encoded: bool = False) -> pa.RecordBatch:
    """A batch of any rows with a session, and a number by which a row is recognised."""
    sessions = pa.array([session for session, _ in rows], pa.string())
    column = sessions.dictionary_encode() if encoded else sessions
    numbers = pa.array([number for _, number in rows], pa.int64())
    return pa.record_batch({"session_id": column, "number": numbers})


def timeline(rows: Rows) -> pa.RecordBatch:
    count = len(rows)
    return make_batch(
        "timeline",
        {
            "session_id": [session for session, _ in rows], "stream": ["d1"] * count,
            "sender": ["dialer"] * count, "bucket": [number for _, number in rows],
            "frames": [1] * count, "bytes": [1] * count, "blocked_us": [None] * count,
        },
    )  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 700)), max_size=6), max_size=9),
    st.booleans(),
    st.lists(st.integers(0, 8), max_size=4),
)
def test_rows_are_sorted_by_place_and_session_and_keep_their_order(
    batches: list[list[tuple[int, int]]], encoded: bool, spills: list[int]
) -> None:
    """Whatever was held or written to the temporary file, and however long the sessions are."""
    added: Rows = []
    rows = SortedRows(lambda session: int(session) % 3)
    for number, blocks in enumerate(batches):
        names = [str(session) for session, count in blocks for _ in range(count)]
        batch = [(name, len(added) + n) for n, name in enumerate(names)]
        added += batch
        if batch:
            rows.add([requests(batch, encoded)])
        if number in spills:
            rows.spill()
    merged = list(rows.merged())
    found = [(row["session_id"], row["number"]) for batch in merged for row in batch.to_pylist()]
    assert found == sorted(added, key=lambda row: (int(row[0]) % 3, row[0]))
    for batch in merged:  # of one place each
        assert len({int(row["session_id"]) % 3 for row in batch.to_pylist()}) == 1
    rows.close()


def test_merging_holds_little_of_each_portion() -> None:
    """Of wide rows few are in a batch, and few ids of short sessions."""
    rows = SortedRows(lambda _: 0)
    count, width = 2_000, 1_000
    for portion in range(5):
        names = pa.array([f"{n * 5 + portion:08}" for n in range(count)]).dictionary_encode()
        texts = pa.array(["x" * width] * count)
        rows.add([pa.record_batch({"session_id": names, "text": texts})])
        rows.spill()
    merged = list(rows.merged())
    rows.close()
    assert sum(batch.num_rows for batch in merged) == 5 * count
    assert max(batch.num_rows for batch in merged) * width < 2 * 5 * RUN_BATCH_BYTES
    for batch in merged:
        assert len(batch.column("session_id").dictionary) * width < 2 * 5 * RUN_BATCH_BYTES


def test_every_file_is_sorted_though_its_rows_did_not_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "PORTION_BYTES", 20_000)
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 1000)
    with TableWriter(tmp_path, layout=TableLayout(sorts_files=True)) as tables:
        for number in range(50):
            tables.emit("timeline", timeline([(f"{n * 7 % 90:016x}", number) for n in range(90)]))
        assert tables.pending_bytes < 20_000
    (file,) = tables.files
    stored = pq.ParquetFile(file.path)
    rows = [(row["session_id"], row["bucket"]) for row in stored.read().to_pylist()]
    assert rows == sorted(rows)
    assert len(rows) == file.rows == 50 * 90
    sizes = [stored.metadata.row_group(n).num_rows for n in range(stored.num_row_groups)]
    assert sizes == [1000, 1000, 1000, 1000, 500]


def test_without_sorted_files_each_row_group_is_sorted_and_nothing_is_stored_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "PORTION_BYTES", 5_000)
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 20_000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with TableWriter(tmp_path) as tables:
        for number in range(50):
            tables.emit("timeline", timeline([(f"{n * 7 % 90:016x}", number) for n in range(90)]))
            assert tables.pending_bytes < 30_000
    (file,) = tables.files
    stored = pq.ParquetFile(file.path)
    assert stored.num_row_groups > 3
    found = []
    for group in range(stored.num_row_groups):
        told = stored.read_row_group(group).to_pylist()
        rows = [(row["session_id"], row["bucket"]) for row in told]
        assert rows == sorted(rows)
        found += rows
    assert sorted(found) == [(f"{n:016x}", number) for n in range(90) for number in range(50)]


def test_one_session_is_found_in_a_few_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By DuckDB, which reads the Bloom filters and the bounds of each row group."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 400)
    for task in range(10):
        layout = TableLayout(sorts_files=True)
        with TableWriter(tmp_path, f"part-{task}", layout) as tables:
            for number in range(4):
                tables.emit(
                    "timeline",
                    timeline(
                        [(f"{(n * 2654435761 + task) % 2**32:016x}", number) for n in range(500)]
                    ),
                )
    wanted = f"{(123 * 2654435761 + 7) % 2**32:016x}"
    probed = 0
    groups = 0
    for path in table_files(tmp_path, "timeline"):
        answers = duckdb.execute(
            "select bloom_filter_excludes from parquet_bloom_probe(?, 'session_id', ?)",
            [str(path), wanted],
        ).fetchall()
        bounds = duckdb.execute(
            "select stats_min_value <= $2 and $2 <= stats_max_value from parquet_metadata($1) "
            "where path_in_schema = 'session_id' order by row_group_id",
            [str(path), wanted],
        ).fetchall()
        groups += len(answers)
        probed += sum(
            not excluded and within for (excluded,), (within,) in zip(answers, bounds, strict=True)
        )
    assert groups == 50
    assert probed <= 2
    found = duckdb.execute(
        "select count(*) from read_parquet(?) where session_id = ?",
        [[str(path) for path in table_files(tmp_path, "timeline")], wanted],
    ).fetchone()
    assert found == (4,)


def test_rows_are_in_the_folder_of_the_day_and_sensor_of_their_session(tmp_path: Path) -> None:
    layout = TableLayout(("date", "sensor"))
    sessions = {
        "a" * 16: (NOON, "lab"),
        "b" * 16: (NOON + DAY_US, "rack 2/left"),
        "c" * 16: (NOON, "lab"),
        "d" * 16: (NOON - 13 * 3_600_000_000, "default"),
    }
    with TableWriter(tmp_path, "part-1", layout) as tables:
        for name, (started, sensor) in sessions.items():
            tables.add_session(name, started, sensor)
        for number in range(3):
            tables.emit("timeline", timeline([(name, number) for name in sessions]))
    assert {file.name: file.rows for file in tables.files} == {
        "timeline/date=2025-11-03/sensor=lab/part-1.parquet": 6,
        "timeline/date=2025-11-04/sensor=rack 2%2Fleft/part-1.parquet": 3,
        "timeline/date=2025-11-02/sensor=default/part-1.parquet": 3,
    }
    found = duckdb.execute(
        "select session_id, date::text, sensor, count(*) from read_parquet(?, "
        "hive_partitioning = true) group by all order by all",
        [str(tmp_path / "timeline/*/*/*.parquet")],
    ).fetchall()
    assert found == [
        ("a" * 16, "2025-11-03", "lab", 3),
        ("b" * 16, "2025-11-04", "rack 2/left", 3),
        ("c" * 16, "2025-11-03", "lab", 3),
        ("d" * 16, "2025-11-02", "default", 3),
    ]
    assert read_table(tmp_path, "timeline").num_rows == 12


@pytest.mark.parametrize(
    ("sensor", "folder"),
    [
        ("Büro 2", "sensor=Büro 2"),  # Spark reads the escapes of ASCII only
        ("100%", "sensor=100%25"),
        ("=" * 200, f"sensor={'%3D' * 50}~[0-9a-f]{{16}}"),
        ("é" * 130, f"sensor={'é' * 50}~[0-9a-f]{{16}}"),
    ],
)
def test_any_sensor_has_a_folder(sensor: str, folder: str, tmp_path: Path) -> None:
    with TableWriter(tmp_path, "part-1", TableLayout(("date", "sensor"))) as tables:
        tables.add_session("a" * 16, NOON, sensor)
        tables.emit("timeline", timeline([("a" * 16, 1)]))
    (found,) = (file.path.parent.name for file in tables.files)
    assert re.fullmatch(folder, found)
    shown = duckdb.execute(
        "select sensor from read_parquet(?, hive_partitioning = true)", [str(tables.files[0].path)]
    ).fetchone()
    assert shown == (partition_values(found)["sensor"],)


def test_partitions_that_are_not_known_are_refused() -> None:
    for columns in (("sensor",), ("sensor", "date"), ("date", "protocol")):
        with pytest.raises(BadLayout, match="by date, or by date,sensor"):
            TableLayout(columns)


def test_the_content_of_partitions_is_private(tmp_path: Path) -> None:
    world = Simulation("mplex", 5)
    world.run(100)
    record = [(side, data, START + at) for side, data, at in world.record]
    path = save(tmp_path / "a.pcapng", record, START + world.now + MS)
    found = Found()
    with (
        read_sessions([path]) as reading,
        TableWriter(tmp_path / "out", layout=TableLayout(("date",))) as tables,
    ):
        for session in reading:
            options = AnalysisOptions().with_content()
            summary = analyze_session(session, options, found.emit)
            tables.add_session(summary.session_id, summary.started_at, summary.sensor)
            analyze_session(session, options, tables.emit)
    content = [file.path for file in tables.files if file.table == "content"]
    assert [path.stat().st_mode & 0o777 for path in content] == [0o600]
    assert {path.stat().st_mode & 0o777 for path in content[0].parents[:2]} == {0o700}
    assert read_table(tmp_path / "out", "content").to_pylist() == found.rows("content")


def test_a_file_says_which_run_wrote_it(tmp_path: Path) -> None:
    layout = TableLayout(run="3f", options='{"protocol": "mplex"}')
    with TableWriter(tmp_path, layout=layout) as tables:
        tables.emit("timeline", timeline([("a", 1)]))
    stored = pq.ParquetFile(tables.files[0].path).metadata
    assert stored.metadata is not None
    assert {
        name: value for name, value in stored.metadata.items() if name.startswith(b"polymux.")
    } == {
        b"polymux.version": polymux.__version__.encode(),
        b"polymux.run": b"3f",
        b"polymux.options": b'{"protocol": "mplex"}',
    }
    assert [column.column_index for column in stored.row_group(0).sorting_columns] == [0]


def test_files_are_merged_in_the_order_of_their_sessions(tmp_path: Path) -> None:
    for name, sessions in (("one", "ace"), ("two", "bdf")):
        with TableWriter(tmp_path, name) as tables:
            tables.emit(
                "timeline", timeline([(session, n) for session in sessions for n in (1, 2)])
            )
    paths = table_files(tmp_path, "timeline")
    merge_files(paths, "timeline", tmp_path / "timeline" / "merged.parquet")
    rows = pq.read_table(tmp_path / "timeline" / "merged.parquet").to_pylist()
    assert [row["session_id"] + str(row["bucket"]) for row in rows] == [
        f"{session}{n}" for session in "abcdef" for n in (1, 2)
    ]


def test_a_temporary_file_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "PORTION_BYTES", 100)
    monkeypatch.setattr("polymux.analysis.output.sorted_rows.tempfile.TemporaryFile", full)
    tables = TableWriter(tmp_path, layout=TableLayout(sorts_files=True))
    with pytest.raises(parquet.OutputError, match="temporary file: No space left on device"):
        tables.emit("timeline", timeline([("a", n) for n in range(100)]))
