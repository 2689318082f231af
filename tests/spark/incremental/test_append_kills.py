"""An append that fails or is killed: the lake has the version before, and the next run goes on.

Drivers are killed at random moments of a run, once in the suite, and with POLYMUX_SOAK 20 times in
each format, in a directory and on an object store (moto); the commit by itself is killed in
`tests/spark/lake`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
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
    texts,
    write_days,
)
from tests.spark.lake.object_store_process import ObjectStoreProcess, object_store_process
from tests.spark.lake.test_formats import read_as_format

from polymux.analysis.schema.tables import TABLES
from polymux.spark import analyze
from polymux.spark.lake.lake import Lake, open_lake
from polymux.spark.lake.store import FORMATS, LakeVersion
from polymux.spark.runtime.spark_home import package_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
KILLS, STEPS = (20, 2000) if SOAK else (1, 60)
PLACES = [
    (place, format)
    for place in ("directory", "s3")
    for format in FORMATS
    if (SOAK and (place, format) != ("s3", "parquet")) or (place, format) == ("directory", "delta")
]
pytestmark = pytest.mark.timeout(3000 if SOAK else 300)

DRIVER = """
import sys
from polymux.spark import LakeOptions, analyze, spark_session

captures, lake, format = sys.argv[1:]
with spark_session("local[2]") as spark:
    print("started", flush=True)
    analyze(spark, captures, lake, lake=LakeOptions(format), append=True)
    print("done", flush=True)
"""


class Interrupted(Exception):
    """Raised where a run is interrupted."""


def test_an_append_that_fails_at_any_stage_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    first, second = write_days(made, talks(2, 2, 8), 2)
    deliver(first, made, captures)
    analyze(spark, captures, lake, append=True)
    before = rows_of_lake(lake)
    deliver(second, made, captures)
    for stage in ("index", "analyze", "publish"):

        def interrupt(name: str, stage: str = stage) -> None:
            if name == stage:
                raise Interrupted

        with pytest.raises(Interrupted):
            analyze(spark, captures, lake, append=True, on_stage=interrupt)
        assert rows_of_lake(lake) == before
    stored = {str(path) for path in lake.rglob("*") if path.is_file()}
    analyze(spark, captures, lake, append=True)
    assert rows_of_lake(lake) != before
    named = open_lake(str(lake)).current()
    assert named is not None
    assert {path for path in stored if "/_lake/tasks/" in path} == set()


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreProcess]:
    with object_store_process() as found:
        yield found


@pytest.mark.parametrize(("place", "format"), PLACES)
def test_a_driver_killed_at_any_moment_leaves_a_version_and_the_next_run_completes_it(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str,
    format: str,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    lake = str(tmp_path / "lake")
    if place == "s3":
        lake = request.getfixturevalue("store").lake(f"killed-{format}")
    days = KILLS + 1
    made, captures = tmp_path / "made", tmp_path / "captures"
    of_days = write_days(made, talks(4, days, 6 * days, STEPS), days)
    rng = random.Random(None if SOAK else 5)
    usual, committed = 0.0, 0
    for number, paths in enumerate(of_days):
        deliver(paths, made, captures)
        if number == 0:
            usual = seconds_of_run(captures, lake, format)
            continue
        opened = open_lake(lake)
        known, before = opened.current(), rows_of_lake(lake)
        assert known is not None
        kill_run(captures, lake, format, rng.uniform(0, 1.2) * usual)
        now = opened.current()
        assert now is not None
        assert now.number in (known.number, known.number + 1)
        committed += now.number - known.number
        if now.number == known.number:
            assert rows_of_lake(lake) == before
        check_readable(opened, now)
        if rng.random() < 0.5:  # otherwise the next day's run does both
            analyze(spark, captures, lake, append=True)
    analyze(spark, captures, lake, append=True)
    analyze(spark, captures, tmp_path / "tables")
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}
    now = open_lake(lake).current()
    assert now is not None
    check_readable(open_lake(lake), now)
    assert not SOAK or 0 < committed < KILLS


def started_run(captures: Path, lake: str, format: str) -> subprocess.Popen[str]:
    """A driver that appends, which has its Spark."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, captures, lake, format],
        env={**os.environ, "PYTHONPATH": str(package_folder().parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "started\n"
    return driver


def seconds_of_run(captures: Path, lake: str, format: str) -> float:
    """Let a run end; return how long it took."""
    driver = started_run(captures, lake, format)
    begun = time.monotonic()
    assert driver.stdout is not None
    assert driver.stdout.readline() == "done\n"
    usual = time.monotonic() - begun
    driver.communicate()
    return usual


def kill_run(captures: Path, lake: str, format: str, seconds: float) -> None:
    """Kill a run, if it has not ended by itself."""
    driver = started_run(captures, lake, format)
    try:
        driver.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()


def check_readable(lake: Lake, version: LakeVersion) -> None:
    """The newest version that the tables of the format have has the rows of the lake's."""
    while lake.format != "parquet" and not version.tables:  # killed before the tables had it
        version = lake.version(version.number - 1)
    for table in ("sessions", "frames"):
        rows = read_as_format(lake, version, table).select(TABLES[table].column_names())
        assert texts(rows.to_batches()) == texts(lake.batches(version.files_of(table)))
