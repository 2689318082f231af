"""An append that fails or is killed: the lake has the version before, and the next run goes on.

Drivers are killed at random moments of a run, once in the suite and 20 times with POLYMUX_SOAK; the
commit by itself is killed in `tests/spark/lake`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
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

from polymux.spark import analyze
from polymux.spark.lake.lake import open_lake
from polymux.spark.runtime.spark_home import package_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
KILLS = 20 if SOAK else 1
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


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"] if SOAK else ["delta"])
def test_a_driver_killed_at_any_moment_leaves_a_version_and_the_next_run_completes_it(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    days = KILLS + 1
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    of_days = write_days(made, talks(4, days, 6 * days), days)
    rng = random.Random(None if SOAK else 5)
    usual = 0.0
    for number, paths in enumerate(of_days):
        deliver(paths, made, captures)
        known = open_lake(str(lake)).current() if number else None
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
        begun = time.monotonic()
        if number == 0:
            assert driver.stdout.readline() == "done\n"
            usual = time.monotonic() - begun
            driver.wait()
            continue
        try:
            driver.wait(rng.uniform(0, 1.2) * usual)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        driver.stdout.close()
        now = open_lake(str(lake)).current()
        assert known is not None
        assert now is not None
        assert now.number in (known.number, known.number + 1)
        assert rows_of_lake(lake)["sessions"]
        if rng.random() < 0.5:  # otherwise the next day's run does both
            analyze(spark, captures, lake, append=True)
    analyze(spark, captures, lake, append=True)
    analyze(spark, captures, tmp_path / "tables")
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}
