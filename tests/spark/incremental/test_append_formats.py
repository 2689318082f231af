"""Daily appends to lakes of Delta and Iceberg tables on an object store (moto, on loopback)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.incremental.daily_captures import (
    deliver,
    differences,
    rows_of_lake,
    rows_of_tables,
    talks,
    write_days,
)
from tests.spark.lake.object_store_process import ObjectStoreProcess, object_store_process
from tests.spark.object_store import ObjectStore

from polymux.capture import SensorNaming
from polymux.spark import LakeOptions, analyze

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreProcess]:
    with object_store_process() as found:
        yield found


@pytest.fixture
def captures() -> Iterator[ObjectStore]:
    found = ObjectStore()
    yield found
    found.close()


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_daily_appends_to_an_object_store_have_the_rows_of_one_analysis(
    spark: SparkSession,
    store: ObjectStoreProcess,
    format: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made, captures, lake = tmp_path / "made", tmp_path / "captures", store.lake(f"lake-{format}")
    (first, second) = write_days(made, talks(6, 2, 6), 2)
    deliver(first, made, captures)
    before = analyze(spark, captures, lake, lake=LakeOptions(format))
    shutil.rmtree(captures)
    deliver(second, made, captures)
    after = analyze(spark, captures, lake, append=True)
    assert before.lake is not None
    assert after.lake is not None
    assert (before.lake.version, after.lake.version) == (1, 2)
    assert before.lake.open
    deliver(first, made, captures)
    again = analyze(spark, captures, lake, append=True)
    assert again.lake is not None
    assert not again.captures
    analyze(spark, captures, tmp_path / "tables")
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


def test_captures_are_known_again_with_other_credentials_which_are_kept_nowhere(
    spark: SparkSession, captures: ObjectStore, tmp_path: Path
) -> None:
    made, lake, url = tmp_path / "made", tmp_path / "lake", captures.url("in")
    paths = [path for paths in write_days(made, talks(8, 3, 18), 3) for path in paths]
    late = paths.pop(1)
    by_path = SensorNaming(pattern="in/{sensor}/*.pcapng")
    for path in paths:
        captures.put(f"in/{path.relative_to(made)}", path)
    analyze(spark, url, lake, sensors=by_path, append=True)
    other = url.replace("key:secret", "other:password")
    again = analyze(spark, other, lake, sensors=by_path, append=True)
    assert again.lake is not None
    assert (again.captures, again.lake.skipped) == ([], len(paths))
    captures.put(f"in/{late.relative_to(made)}", late)
    done = analyze(spark, other, lake, sensors=by_path, append=True)
    assert done.lake is not None
    assert done.lake.replaced  # sessions that were over, whose captures are read again
    analyze(spark, url, tmp_path / "tables", sensors=by_path)
    rows = rows_of_lake(lake)
    assert differences(rows, rows_of_tables(tmp_path / "tables")) == {}
    assert "'s3://captures/in/web-1/00-0.pcapng'" in rows["captures"][0]
    written = [path.read_bytes() for path in lake.rglob("*") if path.is_file()]
    assert written
    assert not [data for data in written if b"secret" in data or b"password" in data]
