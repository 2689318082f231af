"""Workers keep what they have imported, and do not look through it after every task."""

import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.random_captures import conversations, record

from polymux.spark.batch.pipeline import analyze
from polymux.spark.runtime.gc_freeze import freeze_gc

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
