"""Daily appends to lakes of Delta and Iceberg tables on an object store (moto, on loopback).

With POLYMUX_SOAK ten days of about 10 MB each; with POLYMUX_SOAK=full 30 days of about 100 MB each,
which takes more than an hour for each format.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.capture import capture_builder as build
from tests.spark.incremental.daily_captures import (
    DAY,
    FIRST_DAY,
    deliver,
    differences,
    rows_of_lake,
    rows_of_tables,
    talks,
    texts,
    write_days,
)
from tests.spark.lake.object_store_process import ObjectStoreProcess, object_store_process
from tests.spark.lake.test_formats import read_as_format
from tests.spark.object_store import ObjectStore

from polymux.analysis.schema.tables import TABLES
from polymux.capture import SensorNaming
from polymux.spark import LakeOptions, analyze
from polymux.spark.incremental.ledger import ChangedCaptures
from polymux.spark.lake.lake import open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
FULL = os.environ.get("POLYMUX_SOAK") == "full"
DAYS, TALKS, STEPS = (30, 2400, 4000) if FULL else (10, 80, 4000) if SOAK else (3, 8, 60)
KINDS = 50  # of conversations in each protocol, in the soak
SENSORS = SensorNaming(pattern="captures/{sensor}/*.pcapng")
pytestmark = pytest.mark.timeout(12_000 if FULL else 3000 if SOAK else 300)


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
    made, captures, url = tmp_path / "made", tmp_path / "captures", store.lake(f"lake-{format}")
    of_days = write_days(made, talks(6, DAYS, TALKS, STEPS, KINDS if SOAK else 1 << 30), DAYS)
    late = of_days[0].pop(1)
    of_days[-1].append(late)
    replaced = 0
    for number, paths in enumerate(of_days):
        if number not in (1, DAYS - 1):  # the captures of days before are not needed
            shutil.rmtree(captures, ignore_errors=True)
        if number == DAYS - 1:  # but for a late one, and for a day that is read again
            deliver([path for paths in of_days for path in paths], made, captures)
        deliver(paths, made, captures)
        days = (datetime.fromtimestamp(FIRST_DAY / 1e9, UTC).date(),) if number == 1 else ()
        how = LakeOptions(format, reprocess=days)
        done = analyze(spark, captures, url, sensors=SENSORS, lake=how, append=True)
        assert done.lake is not None
        assert done.lake.version == number + 1
        assert done.lake.open
        replaced += done.lake.replaced
    assert replaced
    again = analyze(spark, captures, url, sensors=SENSORS, append=True)
    assert again.lake is not None
    assert not again.captures
    analyze(spark, captures, tmp_path / "tables", sensors=SENSORS)
    rows = rows_of_lake(url)
    assert differences(rows, rows_of_tables(tmp_path / "tables")) == {}
    assert rows_by_format(url) == rows
    if not SOAK:
        return

    lake = open_lake(url)
    lake.compact()
    assert rows_of_lake(url) == rows
    assert rows_by_format(url) == rows
    last = datetime.fromtimestamp((FIRST_DAY + (DAYS - 1) * DAY) / 1e9, UTC).date()
    gone = {file.date for file in lake.expire(3, today=last)}
    assert len(gone) == DAYS - 3
    left = rows_of_lake(url)
    assert left["captures"] == rows["captures"]
    assert set(left["frames"]) < set(rows["frames"])
    assert rows_by_format(url) == left


def rows_by_format(url: str) -> dict[str, list[str]]:
    """The rows of each table of a lake, as the library of its format reads them."""
    lake = open_lake(url)
    version = lake.current()
    assert version is not None
    found = {}
    for table in TABLES:
        rows: list[str] = []
        if table in version.tables:
            whole = read_as_format(lake, version, table)
            rows = texts(whole.select(TABLES[table].column_names()).to_batches())
        found[table] = rows
    return found


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


def test_an_object_that_has_grown_is_read_again_and_another_one_is_an_error(
    spark: SparkSession, captures: ObjectStore, tmp_path: Path
) -> None:
    path, lake, url = tmp_path / "a.pcap", tmp_path / "lake", captures.url("grown")
    lines = ((0, b"\x00\x01a"), (0, b"\x02\x01x"))
    whole = build.talk(*lines)

    def put(packets: list[build.Packet]) -> None:
        path.write_bytes(build.pcap(packets, nano=True))
        captures.put("grown/a.pcap", path)

    put(whole[:4])
    analyze(spark, url, lake, append=True)
    put(whole)
    done = analyze(spark, url, lake, append=True)
    assert [summary.tcp_packets for summary in done.captures] == [len(whole)]
    analyze(spark, url, tmp_path / "tables")
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}
    put(build.talk(*lines, *lines, start=build.START + 1))
    with pytest.raises(ChangedCaptures):
        analyze(spark, url, lake, append=True)
