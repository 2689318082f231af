"""The pipeline on a real local Spark: the same tables however the work is split."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.spark.random_captures import (
    blocks_of,
    conversations,
    record,
    rotate,
    roughen,
    without_spark,
)

from polymux.analysis.output.parquet import read_table
from polymux.analysis.output.table_digest import digest_tables
from polymux.core.errors import PolymuxError
from polymux.spark.batch.pipeline import analyze
from polymux.spark.runtime.run_counters import run_counters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """One capture of 24 sessions, and the digests of its tables from an analysis without Spark."""
    folder = tmp_path_factory.mktemp("captures")
    capture = folder / "all.pcapng"
    record([capture], conversations(100, 24))
    without_spark([capture], folder / "plain")
    return capture, digest_tables(folder / "plain")


@pytest.mark.parametrize("splits", [1, 2, 7, 64])
def test_any_number_of_splits_gives_the_tables_of_the_walk_without_spark(
    spark: "SparkSession", material: tuple[Path, dict[str, str]], tmp_path: Path, splits: int
) -> None:
    capture, expected = material
    task_bytes = max(1, capture.stat().st_size // splits)
    done = analyze(
        spark, [str(capture)], str(tmp_path / "t"), content=True, max_partition_bytes=task_bytes
    )
    assert done.conserved
    assert done.total.sessions == 24
    assert digest_tables(tmp_path / "t") == expected


def test_sessions_cut_over_five_files_in_any_order_give_the_same_tables(
    spark: "SparkSession", material: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    paths = [tmp_path / f"r-{number}.pcapng" for number in range(5)]
    record(paths, conversations(100, 24), seed=5)
    given = [str(path) for path in paths]
    random.Random(1).shuffle(given)
    done = analyze(spark, [*given, given[0]], str(tmp_path / "t"), content=True)
    assert done.conserved
    assert digest_tables(tmp_path / "t") == material[1]
    assert read_table(tmp_path / "t", "captures").num_rows == 5


def test_reordered_and_repeated_packets_give_the_same_tables_however_they_are_cut(
    spark: "SparkSession", material: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    capture, smooth = material
    head, packets = blocks_of(capture)
    rough = roughen(packets, 9)
    assert len(rough) > len(packets)
    whole = tmp_path / "rough.pcapng"
    rotate(head, rough, [whole], 0)
    without_spark([whole], tmp_path / "plain")
    expected = digest_tables(tmp_path / "plain")
    assert expected["frames"] != smooth["frames"]  # instants have moved
    parts = [tmp_path / f"part-{number}.pcapng" for number in range(5)]
    rotate(head, rough, parts, 4)
    for number, files in enumerate([[whole], [parts[n] for n in (3, 0, 4, 2, 1)]]):
        out = tmp_path / f"t{number}"
        size = whole.stat().st_size // 7
        done = analyze(spark, map(str, files), str(out), content=True, max_partition_bytes=size)
        assert done.conserved
        assert digest_tables(out) == expected
    assert carried(tmp_path / "plain") == carried(capture.parent / "plain")


def carried(tables: Path) -> set[tuple[object, ...]]:
    """What every session carried, which no reordering changes."""
    names = ("session_id", "bytes_dialer", "bytes_acceptor")
    rows = read_table(tables, "sessions").to_pylist()
    return {tuple(row[name] for name in names) for row in rows}


def test_a_second_run_replaces_the_first_and_a_failed_one_changes_nothing(
    spark: "SparkSession", material: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    capture, _ = material
    out = tmp_path / "t"
    analyze(spark, [str(capture)], str(out))
    before = digest_tables(out)
    analyze(spark, [str(capture)], str(out))
    assert digest_tables(out) == before

    class Stop(Exception):
        pass

    def stop(stage: str) -> None:
        if stage == "publish":
            raise Stop

    with pytest.raises(Stop):
        analyze(spark, [str(capture)], str(out), protocol="mplex", on_stage=stop)
    assert digest_tables(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_the_counters_of_a_run_are_in_the_metrics_of_spark(
    spark: "SparkSession", material: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    capture, _ = material
    counters = run_counters(spark)
    before = counters.metrics()
    done = analyze(spark, [str(capture)], str(tmp_path / "t"), max_partition_bytes=30_000)
    after = counters.metrics()
    written = [tmp_path / "t" / "_current" / name for name in done.total.files]
    assert {name: after[name] - before[name] for name in after} == {
        "input_bytes": done.read_bytes,
        "input_packets": done.indexed_packets,
        "output_rows": sum(pq.read_metadata(path).num_rows for path in written),
        "output_bytes": sum(path.stat().st_size for path in written),
        "sessions": 24,
        "frames": done.total.frames,
        "violations": done.total.violations,
    }


def test_a_damaged_file_among_many_is_a_row_and_the_job_goes_on(
    spark: "SparkSession", material: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    capture, _ = material
    (tmp_path / "no-capture.pcap").write_bytes(b"this is not a capture at all")
    (tmp_path / "torn.pcapng").write_bytes(capture.read_bytes()[:-7])
    done = analyze(spark, [str(capture), str(tmp_path)], str(tmp_path / "out" / "t"))
    rows = read_table(tmp_path / "out" / "t", "captures").to_pylist()
    status = {Path(row["file"]).name: row["status"] for row in rows}
    assert status == {
        "all.pcapng": "whole", "no-capture.pcap": "unreadable", "torn.pcapng": "truncated",
    }  # fmt: skip
    assert len(done.unread) == 2
    assert done.total.sessions == 24


def test_missing_paths_and_unwritable_outputs_are_said_before_any_work(
    spark: "SparkSession", material: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    capture, _ = material
    with pytest.raises(PolymuxError, match="nowhere"):
        analyze(spark, [str(tmp_path / "nowhere.pcapng")], str(tmp_path / "t"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(PolymuxError, match="is a file"):
        analyze(spark, [str(capture)], str(tmp_path / "file"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(PolymuxError, match="something other than polymux tables"):
        analyze(spark, [str(capture)], str(tmp_path / "mine"))
