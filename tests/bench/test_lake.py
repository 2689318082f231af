"""The part `lake` of the benchmark, at a small size and without Spark."""

from pathlib import Path

import duckdb
import pytest
from bench import lake
from bench.harness import Figure

from polymux.spark.lake.store import FORMATS


def test_a_session_of_a_lake_is_in_one_row_group_of_each_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake, "SESSIONS", 1800)
    sessions = lake.write_lake(tmp_path)
    assert len(set(sessions)) == 1800
    for table, rows in (("frames", lake.FRAMES_PER_SESSION), ("sessions", 1)):
        paths = lake.lake_files(tmp_path, table)
        assert len(paths) == lake.DAYS * lake.TASKS_PER_DAY
        shares = [lake.groups_read(paths, session) for session in sessions[::300]]
        assert all(1 / len(paths) <= share <= lake.MAX_GROUP_SHARE for share in shares)
        found = duckdb.execute(
            "select count(*) from read_parquet(?) where session_id = ?", [paths, sessions[700]]
        ).fetchone()
        assert found == (rows,)


def test_runs_of_any_size_are_planned_from_simulated_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lake, "PLANNED_FILES", (300, 3000))
    lines = lake.planner()
    assert [line.name for line in lines if isinstance(line, Figure)][:2] == [
        "plan of 300 files, 30000 sessions: for each file",
        "plan of 300 files, 30000 sessions: driver",
    ]
    assert len(lines) == 5


def test_commits_of_any_size_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "COMMITTED_FILES", dict.fromkeys(FORMATS, (30, 300)))
    lines = lake.commits(tmp_path)
    assert [line.name for line in lines if isinstance(line, Figure)][-2:] == [
        "commit of 100 files to 300, iceberg",
        "commit, iceberg: time for each file, 10 times the files",
    ]
    assert len(lines) == 15
