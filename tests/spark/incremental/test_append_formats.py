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

from polymux.spark import LakeOptions, analyze

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreProcess]:
    with object_store_process() as found:
        yield found


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
