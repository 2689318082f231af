"""Workers keep what they have imported, and do not look through it after every task."""

import gc
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import InputPartition
from tests.spark.random_captures import conversations, record

from polymux.spark.batch.pipeline import analyze
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.stream_reader import table_stream_reader
from polymux.spark.runtime.worker_memory import freeze_gc, use_spark_local_dirs
from polymux.spark.streaming.micro_batches import BatchTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_that_had_a_task_leave_their_imports_out_of_collections(
    spark: "SparkSession", tmp_path: Path
) -> None:
    capture = tmp_path / "all.pcapng"
    record([capture], conversations(3, 4))

    def kept(_: Iterable[int]) -> Iterator[int]:
        yield gc.get_freeze_count()

    analyze(spark, [str(capture)], str(tmp_path / "out"))
    counts = spark.sparkContext.parallelize(range(8), 8).mapPartitions(kept).collect()
    assert max(counts) > 10_000


def test_each_stage_keeps_once_what_there_is_at_its_first_task() -> None:
    try:
        freeze_gc("one of a test")
        count = gc.get_freeze_count()
        assert count > 0
        later: list[list[int]] = [[] for _ in range(1000)]
        freeze_gc("one of a test")
        assert gc.get_freeze_count() <= count
        freeze_gc("another of a test")
        assert gc.get_freeze_count() > count
        del later
    finally:
        gc.unfreeze()


def test_temporary_files_of_a_worker_lie_where_spark_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'missing'},{tmp_path}")
    use_spark_local_dirs()
    assert tempfile.gettempdir() == str(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    use_spark_local_dirs()
    assert tempfile.tempdir is None


def test_tasks_of_a_stream_of_rows_put_temporary_files_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    reader = table_stream_reader(SourceOptions.parse({"path": str(tmp_path)}), {})
    assert list(reader.read(InputPartition(BatchTask()))) == []
    assert tempfile.gettempdir() == str(tmp_path)
