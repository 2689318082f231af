"""`report`, `sql` and `diff` read the newest version of a lake as they read tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Ran

from polymux.analysis.output.parquet import read_table
from polymux.analysis.schema.tables import TABLES
from polymux.cli.support.capture_options import CaptureRequest
from polymux.cli.support.capture_tables import write_tables
from polymux.spark.lake.lake import open_lake

Run = Callable[..., Ran]


@pytest.fixture
def tables(tmp_path: Path, capture: Callable[..., str]) -> Path:
    write_tables(CaptureRequest((capture(),)), tmp_path / "tables")
    return tmp_path / "tables"


def lake_of(tables: Path, place: Path, format: str = "parquet") -> Path:
    """A lake with these tables in its second version; the first has all their rows twice."""
    lake = open_lake(str(place), format)
    for copies in (2, 1):
        staging = lake.begin()
        with staging.output.folder() as folder:
            for table in TABLES:
                if (tables / table).exists():
                    rows = read_table(tables, table)
                    partition = "." if table == "captures" else "date=2026-01-01"
                    (folder / table / partition).mkdir(parents=True)
                    for number in range(copies):
                        pq.write_table(rows, folder / table / partition / f"{number}.parquet")
            added = staging.output.store(folder)
        removed = [] if staging.parent is None else staging.parent.all_files()
        lake.commit(staging, added=added, removed=removed)
    return place


def test_sql_answers_from_the_newest_version(tables: Path, tmp_path: Path, run: Run) -> None:
    lake = lake_of(tables, tmp_path / "lake")
    for table in ("sessions", "streams", "frames", "violations", "stalls", "timeline"):
        query = f"select * from {table} order by all"
        expected, found = run("sql", str(tables), query), run("sql", str(lake), query)
        assert (found.code, found.out) == (0, expected.out)
    assert json.loads(run("sql", str(lake), "select count(*) as n from sessions").out) == {"n": 1}


def test_diff_finds_no_change_and_the_report_is_written(
    tables: Path, tmp_path: Path, run: Run
) -> None:
    lake = lake_of(tables, tmp_path / "lake", "delta")
    ran = run("diff", str(tables), str(lake))
    assert (ran.code, ran.out) == (0, "")
    page = tmp_path / "page.html"
    assert run("report", str(lake), "--out", str(page)).code == 0
    assert page.stat().st_size > 10_000


def test_a_lake_that_has_no_version_yet_has_empty_tables(tmp_path: Path, run: Run) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    lake.discard(lake.begin())
    ran = run("sql", lake.url, "select count(*) as n from frames")
    assert (ran.code, json.loads(ran.out)) == (0, {"n": 0})
