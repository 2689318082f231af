"""What runs write to a lake is there: in every format, on every store, for all readers."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]  # it has no types of its own
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError
from tests.spark.lake.lake_runs import ROWS, append, in_order, sorted_rows
from tests.spark.lake.object_store_process import ObjectStoreProcess, object_store_process

from polymux.analysis.schema.tables import TABLES
from polymux.spark.lake.iceberg import IcebergFormat, default_catalog, file_properties
from polymux.spark.lake.lake import Lake, open_lake
from polymux.spark.lake.storage import delta_options, open_storage
from polymux.spark.lake.store import FORMATS, LakeError, LakeVersion

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
DAY_1, DAY_2, DAY_3 = "2026-11-01", "2026-11-02", "2026-11-03"
# Maintenance of Iceberg tables makes hundreds of requests.
MAINTAINED = [
    (place, format)
    for place in ("directory", "s3")
    for format in FORMATS
    if SOAK or (place, format) != ("s3", "iceberg")
]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreProcess]:
    with object_store_process() as found:
        yield found


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a lake can be made."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if request.param == "directory":
        return str(tmp_path / "lake")
    found: ObjectStoreProcess = request.getfixturevalue("store")
    return found.lake(tmp_path.name)


def grown(place: str, format: str, last_of: tuple[str, ...] = ("sessions", "stalls")) -> Lake:
    """A lake of three runs: the second's files are provisional, and the third replaces them."""
    lake = open_lake(place, format)
    append(lake, 1, [DAY_1, DAY_2])
    second = append(lake, 2, [DAY_2], provisional=True)
    provisional = [file for file in second.all_files() if file.provisional]
    append(lake, 3, [DAY_2, DAY_3], removed=provisional, tables=last_of)
    return lake


def read_as_format(lake: Lake, version: LakeVersion, table: str) -> pa.Table:
    """A table of a version, as the library of its format reads it."""
    if lake.format == "delta":
        uri, options = f"{lake.location}/{table}", delta_options(lake.url)
        delta = DeltaTable(uri, int(version.tables[table]), storage_options=options)
        return delta.to_pyarrow_table()
    if lake.format == "iceberg":
        metadata = version.tables[table]
        return StaticTable.from_metadata(metadata, file_properties(lake.url)).scan().to_arrow()
    paths = [lake.storage.arrow_path(file.path) for file in version.files_of(table)]
    schema = TABLES[table].to_arrow()
    return ds.dataset(paths, schema, "parquet", lake.storage.arrow_filesystem).to_table()


@pytest.mark.parametrize("format", FORMATS)
def test_versions_are_the_same_for_all_readers(place: str, format: str) -> None:
    lake = grown(place, format)
    now = open_lake(place).current()
    assert now is not None
    assert (now.number, now.added_files, now.removed_files) == (3, 4, 3)
    assert {table: sum(file.rows for file in files) for table, files in now.files.items()} == {
        "captures": 2 * ROWS, "frames": 2 * ROWS, "sessions": 4 * ROWS, "stalls": 2 * ROWS
    }  # fmt: skip
    assert lake.read_state(now.state["ledger"]) == b"seed 3"
    for table in now.files:
        rows = read_as_format(lake, now, table)
        assert in_order(rows) == sorted_rows(lake, now, table), table
    sessions = read_as_format(lake, now, "sessions")
    files = now.files_of("sessions")
    system, stored = lake.storage.arrow_filesystem, [lake.storage.arrow_path(f.path) for f in files]
    frame = pd.concat(pd.read_parquet(path, filesystem=system) for path in stored)
    assert sorted(frame["session_id"]) == sorted(sessions["session_id"].to_pylist())
    with duckdb.connect() as database:
        # DuckDB's own access to object stores is an extension that it downloads.
        found = "found" if "://" in place else f"read_parquet({lake.paths(files)})"
        database.register("found", ds.dataset(stored, filesystem=system))
        query = f"select count(*), min(session_id) from {found}"
        assert database.sql(query).fetchall() == [(4 * ROWS, "00100000")]
        day = f"select count(*) from {found} where session_id >= '00200000'"
        assert database.sql(day).fetchall() == [(2 * ROWS,)]
    if format != "parquet":  # the partition column is there, and empty tables are too
        dates = sorted(map(str, sessions["date"].to_pylist()))
        assert dates == [DAY_1] * ROWS + [DAY_2] * 2 * ROWS + [DAY_3] * ROWS
        assert read_as_format(lake, now, "violations").num_rows == 0
        first = lake.version(1)
        assert in_order(read_as_format(lake, first, "sessions")) == sorted_rows(
            lake, first, "sessions"
        )


@pytest.mark.parametrize(("place", "format"), MAINTAINED, indirect=["place"])
def test_compacting_expiring_and_vacuuming_keep_the_answers(place: str, format: str) -> None:
    lake = grown(place, format)
    before = lake.current()
    assert before is not None
    plan = lake.compact(dry_run=True)
    assert lake.current() == before
    done = lake.compact()
    after = done.version
    assert after is not None
    assert (plan.joined, plan.version) == (done.joined, None)
    assert len(done.joined) == 4  # the two sessions files of day 2, and two of captures
    assert after.state == before.state
    for table in before.files:
        assert sorted_rows(lake, after, table) == sorted_rows(lake, before, table)
        assert in_order(read_as_format(lake, after, table)) == sorted_rows(lake, before, table)
    joined = next(file for file in done.added if file.table == "sessions")
    ids = [row for batch in lake.batches([joined]) for row in batch["session_id"].to_pylist()]
    assert ids == sorted(ids)
    assert lake.compact().version is None

    assert lake.expire(2, today=date(2026, 11, 3), dry_run=True)
    assert lake.current() == after
    gone = lake.expire(2, today=date(2026, 11, 3))
    assert {file.date for file in gone} == {DAY_1}
    left = lake.current()
    assert left is not None
    assert sum(file.rows for file in left.files_of("sessions")) == 3 * ROWS

    planned = lake.vacuum(timedelta(0), dry_run=True)
    assert lake.vacuum(timedelta(days=1)) == []
    assert len(lake.history()) == 5
    removed = lake.vacuum(timedelta(0))
    assert {file.name for file in removed} == {file.name for file in planned}
    assert [version.number for version in lake.history()] == [5]
    assert lake.current() == left
    for table in left.files:
        assert in_order(read_as_format(lake, left, table)) == sorted_rows(lake, left, table)
    assert append(lake, 4, [DAY_3]).number == 6


def test_vacuum_keeps_what_iceberg_tables_need_whichever_way_the_lake_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    append(open_lake("../lake", "iceberg"), 1, [DAY_1])
    append(open_lake(str(tmp_path / "link")), 2, [DAY_1])
    lake = open_lake(str(tmp_path / "lake"))
    lake.vacuum(timedelta(0))
    third = append(lake, 3, [DAY_1])
    assert read_as_format(lake, third, "sessions").num_rows == 3 * ROWS


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_vacuum_that_only_says_what_it_would_do_writes_nothing(
    tmp_path: Path, format: str
) -> None:
    append(open_lake(str(tmp_path / "lake"), format), 1, [DAY_1])
    (tmp_path / "lake" / "_lake" / "tables" / "00000001").unlink()  # as of a run that was killed
    (tmp_path / "lake" / "_lake" / "catalog.db").unlink(missing_ok=True)
    before = set(tmp_path.rglob("*"))
    open_lake(str(tmp_path / "lake")).vacuum(timedelta(0), dry_run=True)
    assert set(tmp_path.rglob("*")) == before


def test_vacuum_deletes_no_metadata_of_tables_that_need_metadata_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(open_lake(str(tmp_path / "lake"), "iceberg"), 1, [DAY_1])
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    before = set((tmp_path / "copy").rglob("metadata/*"))
    open_lake(str(tmp_path / "copy")).vacuum(timedelta(0))
    assert before <= set((tmp_path / "copy").rglob("metadata/*"))
    assert "which is not in the lake" in caplog.text


@pytest.mark.parametrize("place", ["directory", "s3"] if SOAK else ["directory"], indirect=True)
def test_a_catalog_of_iceberg_tables_is_made_again_from_the_lake(place: str) -> None:
    lake = grown(place, "iceberg")
    uri = default_catalog(open_storage(place))
    Path(uri.removeprefix("sqlite:///")).unlink()
    assert not open_lake(place).complete()
    catalog = SqlCatalog("polymux", uri=uri, **file_properties(place))
    now = lake.current()
    assert now is not None
    for table in now.files:
        rows = catalog.load_table(f"polymux.{table}").scan().to_arrow()
        assert in_order(rows) == sorted_rows(lake, now, table)
    some = catalog.load_table("polymux.sessions").scan(row_filter=f"date = '{DAY_3}'").to_arrow()
    assert some.num_rows == ROWS
    catalog.close()


def test_tables_have_each_version_also_if_files_are_joined_while_a_run_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = open_lake(str(tmp_path / "lake"), "delta")
    append(lake, 1, [DAY_1])
    append(lake, 2, [DAY_1])
    other = open_lake(lake.url)
    # It has looked before the run committed.
    monkeypatch.setattr(other, "complete", lambda: False)
    write = DeltaTable.create_write_transaction
    moments = iter([other.compact])

    def compact_before(*arguments: Any, **options: Any) -> None:
        for compact in moments:
            compact()
        write(*arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", compact_before)
    assert append(lake, 3, [DAY_1]).number == 3
    for number in (3, 4):
        version = open_lake(lake.url).version(number)
        assert version.tables
        for table, position in version.tables.items():
            delta = DeltaTable(f"{lake.location}/{table}", int(position))
            files = [file.size for file in version.files_of(table)]
            sizes = pa.table(delta.get_add_actions())["size_bytes"].to_pylist()
            assert sorted(sizes) == sorted(files), (number, table)


@pytest.mark.parametrize(
    "catalog", ["postgresql://user:secret@127.0.0.1:9/x", "oracle://a:secret@b"]
)
def test_a_catalog_that_cannot_be_reached_is_named_without_its_password(
    tmp_path: Path, catalog: str
) -> None:
    lake = open_lake(str(tmp_path / "lake"), "iceberg", catalog=catalog)
    with pytest.raises(LakeError) as caught:
        append(lake, 1, [DAY_1])
    assert "secret" not in str(caught.value)
    assert str(caught.value).startswith(catalog.partition(":")[0])
    assert lake.current() is None


def test_a_catalog_that_is_gone_after_a_commit_gets_the_version_in_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = open_lake(str(tmp_path / "lake"), "iceberg")
    gone = OperationalError("connect", None, OSError("refused"))

    def refuse(*arguments: object) -> None:
        raise gone

    with monkeypatch.context() as broken:
        broken.setattr(SqlCatalog, "create_namespace_if_not_exists", refuse)
        with pytest.raises(LakeError, match=r"Version 1 .* is committed"):
            append(lake, 1, [DAY_1])
    assert append(lake, 2, [DAY_1]).number == 2
    assert shown(default_catalog(lake.storage)) == lake.version(2).tables["sessions"]


def test_a_catalog_of_another_lake_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    first = append(open_lake(str(tmp_path / "one"), "iceberg", catalog=uri), 1, [DAY_1])
    other = open_lake(str(tmp_path / "other"), "iceberg", catalog=uri)
    with pytest.raises(
        LakeError, match=r"catalog\.db: .*another lake .*one/.*other.*another catal"
    ):
        append(other, 2, [DAY_1])
    assert other.current() is None
    assert shown(uri) == first.tables["sessions"]
    assert append(open_lake(str(tmp_path / "one"), catalog=uri), 3, [DAY_1]).number == 2


def test_a_lake_that_was_made_anew_has_its_own_tables_in_the_catalog_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"  # as of a lake on an object store: not in the lake
    monkeypatch.setattr("polymux.spark.lake.iceberg.default_catalog", lambda storage: uri)
    for seed in (1, 2):
        append(open_lake(str(tmp_path / "lake"), "iceberg"), seed, [DAY_1], tables=("stalls",))
    shutil.rmtree(tmp_path / "lake")
    version = append(open_lake(str(tmp_path / "lake"), "iceberg"), 3, [DAY_1])
    assert shown(uri) == version.tables["sessions"]


def test_the_newest_of_two_versions_that_are_published_at_once_stays(tmp_path: Path) -> None:
    lake = grown(str(tmp_path / "lake"), "iceberg")
    uri = f"sqlite:///{tmp_path}/catalog.db"
    tables = {number: lake.version(number).tables for number in (1, 2, 3)}
    IcebergFormat(lake.storage, uri).publish(1, tables[1])
    faster = iter([3])

    def before(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.startswith("UPDATE iceberg_namespace_properties"):
            for number in faster:
                IcebergFormat(lake.storage, uri).publish(number, tables[number])

    event.listen(Engine, "before_cursor_execute", before)
    try:
        IcebergFormat(lake.storage, uri).publish(2, tables[2])
    finally:
        event.remove(Engine, "before_cursor_execute", before)
    assert shown(uri) == tables[3]["sessions"]


def test_upkeep_of_a_lake_whose_catalog_was_named_asks_for_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    place = str(tmp_path / "lake")
    append(open_lake(place, "iceberg", catalog=uri), 1, [DAY_1, DAY_2])
    with pytest.raises(LakeError, match=r"in the catalog sqlite:.*catalog\.db: name it .--catalog"):
        open_lake(place).expire(1, today=date(2026, 11, 2))
    assert open_lake(place).expire(1, today=date(2026, 11, 2), dry_run=True)
    named = open_lake(place, catalog=uri)
    assert named.expire(1, today=date(2026, 11, 2))
    now = open_lake(place).current()
    assert now is not None
    assert now.options["catalog"] == uri
    assert shown(uri) == now.tables["sessions"]


def test_a_lake_and_its_catalog_that_an_older_polymux_made_are_taken_over(tmp_path: Path) -> None:
    uri, place = f"sqlite:///{tmp_path}/catalog.db", tmp_path / "lake"
    (place / "_lake").mkdir(parents=True)
    (place / "_lake" / "settings").write_text('{"polymux-lake": 1, "format": "iceberg"}')
    append(open_lake(str(place), catalog=uri), 1, [DAY_1])
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database, database:
        database.execute(
            "delete from iceberg_namespace_properties where property_key = 'polymux.lake'"
        )
    second = append(open_lake(str(place), catalog=uri), 2, [DAY_1])
    assert shown(uri) == second.tables["sessions"]
    with pytest.raises(LakeError, match="another lake"):
        append(open_lake(str(tmp_path / "other"), "iceberg", catalog=uri), 3, [DAY_1])


def shown(uri: str) -> str:
    """Where the metadata of the table `sessions` is by a catalog."""
    catalog = SqlCatalog("polymux", uri=uri)
    try:
        return str(catalog.load_table("polymux.sessions").metadata_location)
    finally:
        catalog.close()


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_sensors_with_special_characters_are_partitions(tmp_path: Path, format: str) -> None:
    lake = open_lake(str(tmp_path / "lake"), format)
    version = append(lake, 1, [DAY_1], tables=("frames",), sensor="eu%2Fhost%201")
    assert version.all_files()[0].partition == {"date": DAY_1, "sensor": "eu/host 1"}
    rows = read_as_format(lake, version, "frames")
    assert set(rows["sensor"].to_pylist()) == {"eu/host 1"}
    assert rows.num_rows == ROWS
    lake.compact()
    lake.expire(1, today=date(2026, 11, 2))
    left = lake.current()
    assert left is not None
    assert read_as_format(lake, left, "frames").num_rows == 0


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_table_that_gets_its_first_rows_late_is_partitioned_like_the_others(
    tmp_path: Path, format: str
) -> None:
    lake = open_lake(str(tmp_path / "lake"), format)
    append(lake, 1, [DAY_1], tables=("captures",))
    version = append(lake, 2, [DAY_1], tables=("captures", "stalls"))
    assert set(map(str, read_as_format(lake, version, "stalls")["date"].to_pylist())) == {DAY_1}
