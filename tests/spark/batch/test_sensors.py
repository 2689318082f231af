"""Hosts with the same private addresses: the tables of all are the union of those of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.analysis.session.test_sensors import HOSTS, conversation, recorded

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.parquet import read_table
from polymux.capture import CaptureLimits, FlowFilter, SensorNaming, index_file
from polymux.spark.batch.analyze_stage import analyze_flows
from polymux.spark.batch.pipeline import analyze
from polymux.spark.batch.reference_shuffle import (
    MIN_BUCKETS,
    FlowSelection,
    ReferenceReader,
    ReferenceWriter,
)
from polymux.spark.datasource.source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMING = SensorNaming(pattern="captures/{sensor}/**")
TABLES = ("sessions", "streams", "frames", "violations", "stalls", "timeline")
Rows = list[tuple[str, ...]]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("hosts") / "captures"
    return [
        recorded(folder / f"host-{n:02}" / "talk.pcapng", conversation(n), n) for n in range(HOSTS)
    ]


def rows_of(folder: Path, table: str) -> Rows:
    return [tuple(map(str, row.values())) for row in read_table(folder, table).to_pylist()]


def separate_run(path: str, out: Path) -> None:
    """The two stages of the pipeline for one capture, in this process."""
    out.mkdir()
    options = AnalysisOptions("mplex", sensors=NAMING)
    with ReferenceWriter(str(out)) as writer:
        writer.add(index_file(path, wanted=FlowFilter(sensors=NAMING)).rows)
    flows = ReferenceReader(str(out), [writer.result.name], FlowSelection(range(MIN_BUCKETS)))
    analyze_flows(flows, str(out), options, CaptureLimits())


def test_fifty_sensors_at_once_equal_the_union_of_fifty_runs(
    spark: SparkSession, hosts: list[str], tmp_path: Path
) -> None:
    done = analyze(spark, hosts, tmp_path / "all", protocol="mplex", sensors=NAMING)
    assert done.conserved
    assert done.total.sessions == HOSTS
    union: dict[str, Rows] = {table: [] for table in TABLES}
    for number, path in enumerate(hosts):
        separate_run(path, tmp_path / str(number))
        for table in TABLES:
            if (tmp_path / str(number) / table).is_dir():
                union[table] += rows_of(tmp_path / str(number), table)
    for table in TABLES:
        assert sorted(rows_of(tmp_path / "all", table)) == sorted(union[table]), table
    files = read_table(tmp_path / "all", "captures").to_pylist()
    assert [row["sensor"] for row in files] == [f"host-{n:02}" for n in range(HOSTS)]


def test_the_data_source_keeps_sensors_apart_too(spark: SparkSession, hosts: list[str]) -> None:
    register(spark)
    reader = spark.read.format("polymux").option("protocol", "mplex").option("table", "sessions")
    found = reader.option("sensorFrom", NAMING.pattern).load(hosts[:5]).collect()
    assert sorted(row["sensor"] for row in found) == [f"host-{n:02}" for n in range(5)]
