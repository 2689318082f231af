"""Tables on disk: every folder exists, every file is complete, every row unchanged."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.analysis.recorded_conversation import MS, START, Found, save

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output import parquet
from polymux.analysis.output.layout import TableLayout
from polymux.analysis.output.manifest import table_files
from polymux.analysis.output.parquet import (
    ROW_GROUP_ROWS,
    OutputError,
    TableWriter,
    read_table,
    write_empty_tables,
)
from polymux.analysis.output.table_digest import digest_batches, digest_tables
from polymux.analysis.schema.tables import TABLES
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions
from polymux.testing.simulator import Simulation


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    world = Simulation("mplex", 5)
    world.run(500)
    record = [(side, data, START + at) for side, data, at in world.record]
    path = tmp_path_factory.mktemp("recorded") / "a.pcapng"
    return save(path, record, START + world.now + MS)


def written(path: str, folder: Path) -> Found:
    """Analyse a capture to a folder; the same rows in memory for comparison."""
    found = Found()
    with read_sessions([path]) as reading, TableWriter(folder) as tables:
        tables.add_captures(reading.files)
        for session in reading:
            found.sessions.append(
                analyze_session(session, AnalysisOptions().with_content(), tables.emit)
            )
            analyze_session(session, AnalysisOptions().with_content(), found.emit)
    write_empty_tables(folder)
    return found


def test_every_table_has_a_folder_with_exactly_its_schema(recorded: str, tmp_path: Path) -> None:
    written(recorded, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(TABLES)
    for name, table in TABLES.items():
        for path in (tmp_path / "out" / name).iterdir():
            assert path.suffix == ".parquet"
            stored = pq.read_schema(path)
            assert stored.names == table.to_arrow().names
            assert stored.types == table.to_arrow().types
            assert [f.nullable for f in stored] == [f.nullable for f in table.to_arrow()]


def test_what_is_read_back_is_what_was_made(recorded: str, tmp_path: Path) -> None:
    found = written(recorded, tmp_path / "out")
    for name in TABLES:
        if name != "captures":
            assert read_table(tmp_path / "out", name).to_pylist() == found.rows(name)
    assert digest_tables(tmp_path / "out") == digest_batches(found.batches)


def test_the_captures_table_says_how_reading_went(recorded: str, tmp_path: Path) -> None:
    torn = tmp_path / "torn.pcapng"
    torn.write_bytes(Path(recorded).read_bytes()[:-7])
    written(str(torn), tmp_path / "out")
    (row,) = read_table(tmp_path / "out", "captures").to_pylist()
    assert (row["file"], row["status"], row["format"]) == (str(torn), "truncated", "pcapng")
    assert row["error_offset"] > 0


def test_two_runs_write_the_same_bytes(recorded: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        written(recorded, tmp_path / name)
    for first in (tmp_path / "one").rglob("*.parquet"):
        second = tmp_path / "two" / first.relative_to(tmp_path / "one")
        assert first.read_bytes() == second.read_bytes()


def test_groups_of_rows_are_full_and_say_what_readers_can_skip_them_by(
    recorded: str, tmp_path: Path
) -> None:
    found = Found()
    with read_sessions([recorded]) as reading:
        for session in reading:
            analyze_session(session, AnalysisOptions(), found.emit)
    (batch, *_) = found.batches["frames"]
    with TableWriter(tmp_path, layout=TableLayout(sorts_files=True)) as tables:
        times = 5 * ROW_GROUP_ROWS // 2 // batch.num_rows
        for _ in range(times):
            tables.emit("frames", batch)
    (path,) = (tmp_path / "frames").iterdir()
    stored = pq.ParquetFile(path).metadata
    groups = [stored.row_group(n) for n in range(stored.num_row_groups)]
    assert [round(group.num_rows / ROW_GROUP_ROWS, 1) for group in groups] == [0.7, 0.7, 0.7, 0.4]
    assert sum(group.num_rows for group in groups) == times * batch.num_rows
    known = {
        group.column(n).path_in_schema
        for group in groups
        for n in range(stored.num_columns)
        if group.column(n).is_stats_set
    }
    assert {"session_id", "time", "frame_index", "size", "verdict"} <= known
    assert known.isdisjoint({"sender", "kind", "stream"})


@pytest.mark.parametrize("sorts_files", [True, False])
def test_all_tables_together_hold_back_a_bounded_amount(
    sorts_files: bool, recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short sessions fill five tables at once, and each alone is far from a full row group."""
    found = Found()
    with read_sessions([recorded]) as reading:
        for session in reading:
            analyze_session(session, AnalysisOptions(), found.emit)
    batches = {table: rows[0] for table, rows in found.batches.items()}
    most = 1 << 20
    for name in ("MAX_PENDING_BYTES", "MAX_UNWRITTEN_BYTES"):
        monkeypatch.setattr(parquet, name, most)
    with TableWriter(tmp_path, layout=TableLayout(sorts_files=sorts_files)) as tables:
        for _ in range(300):
            for table, batch in batches.items():
                tables.emit(table, batch)
                assert tables.pending_bytes <= most
    for table, batch in batches.items():
        assert read_table(tmp_path, table).num_rows == 300 * batch.num_rows


def test_an_empty_run_still_has_every_table(tmp_path: Path) -> None:
    write_empty_tables(tmp_path)
    write_empty_tables(tmp_path)
    for name in TABLES:
        if name == "content":
            assert not (tmp_path / name).exists()
        else:
            assert read_table(tmp_path, name).num_rows == 0
            assert len(list((tmp_path / name).iterdir())) == 1


def test_nothing_appears_when_a_run_fails(recorded: str, tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with read_sessions([recorded]) as reading, TableWriter(tmp_path / "out") as tables:
            for session in reading:
                analyze_session(session, AnalysisOptions(), tables.emit)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert list((tmp_path / "out").rglob("*.*")) == []


def test_a_folder_that_cannot_be_written_is_one_clear_error(recorded: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match="cannot be written"):
        written(recorded, tmp_path / "out")


def test_lists_are_written_as_the_format_asks_for(tmp_path: Path) -> None:
    """Iceberg finds the elements of a list by the name that the specification gives them."""
    write_empty_tables(tmp_path)
    (path,) = (tmp_path / "sessions").glob("*.parquet")
    columns = pq.ParquetFile(path).schema
    names = [columns.column(number).path for number in range(len(columns))]
    assert "capture.list.element" in names


def test_a_table_whose_files_are_merged_while_it_is_read_is_read_merged(
    recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(recorded, tmp_path)
    [path] = (tmp_path / "frames").iterdir()

    def listed(folder: Path, table: str) -> list[Path]:
        names = table_files(folder, table)
        if path.exists():  # as soon as the reader knows their names
            path.rename(path.with_name("merged.parquet"))
        return names

    monkeypatch.setattr("polymux.analysis.output.parquet.table_files", listed)
    assert read_table(tmp_path, "frames").to_pylist() == found.rows("frames")
    path.with_name("merged.parquet").unlink()
    monkeypatch.setattr("polymux.analysis.output.parquet.table_files", lambda *_: [path])
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path, "frames")
