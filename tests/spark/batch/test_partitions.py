"""Tables in a folder for each date and sensor: the same rows as without."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.spark.random_captures import conversations, record

from polymux.analysis.output.layout import BadLayout
from polymux.analysis.output.manifest import read_manifest
from polymux.analysis.output.table_digest import digest_tables
from polymux.capture import SensorNaming
from polymux.spark.batch.pipeline import analyze

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_partitioned_tables_have_the_same_rows(spark: "SparkSession", tmp_path: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / "captures" / name).mkdir(parents=True)
        record([tmp_path / "captures" / name / "a.pcapng"], conversations(70, 4), seed=5)
    sensors = SensorNaming(pattern="captures/{sensor}/*")
    out = tmp_path / "out"
    expected = None
    for columns in ((), ("date",), ("date", "sensor")):
        done = analyze(spark, tmp_path / "captures", out, sensors=sensors, partition_by=columns)
        assert done.conserved
        digests = digest_tables(out)
        expected = expected or digests
        assert digests == expected
        manifest = read_manifest(out)
        assert manifest is not None
        folders = {Path(file.path).parent.as_posix() for file in manifest.tables["frames"]}
        days = ["frames/date=2023-11-14" if columns else "frames"]
        ends = ["/sensor=left", "/sensor=right"] if "sensor" in columns else [""]
        assert folders == {day + end for day in days for end in ends}
        assert all(file.rows for file in manifest.tables["frames"])
    frames = spark.read.parquet(str(out / "frames"))
    assert {str(row.date) for row in frames.select("date").distinct().collect()} == {"2023-11-14"}
    assert frames.where("sensor = 'left'").count() * 2 == frames.count()
    assert manifest is not None
    stored = pq.read_metadata(manifest.files("frames")[0]).metadata
    assert stored is not None
    assert stored[b"polymux.run"].decode() == manifest.run
    assert json.loads(stored[b"polymux.options"])["sensor_from"] == "captures/{sensor}/*"


def test_other_partitions_are_refused_before_anything_is_written(
    spark: "SparkSession", tmp_path: Path
) -> None:
    record([tmp_path / "a.pcapng"], conversations(1, 1))
    with pytest.raises(BadLayout, match="by protocol: tables are partitioned by date"):
        analyze(spark, tmp_path / "a.pcapng", tmp_path / "out", partition_by=("protocol",))
    assert not (tmp_path / "out").exists()
