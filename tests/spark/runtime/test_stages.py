"""Stages: one function, many specifications, one result each."""

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polymux.core.errors import CaptureUnavailable, PolymuxError
from polymux.spark.runtime.stages import run_stage
from polymux.spark.runtime.stored_tasks import StoredTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def squared(number: int) -> tuple[int, int]:
    return number, number * number


def test_every_task_has_one_result_and_they_come_in_order(
    spark: "SparkSession", tmp_path: Path
) -> None:
    def run(number: int) -> tuple[int, int]:  # by value: the workers have no tests
        return number, number * number

    found = list(run_stage(spark, run, range(9, 0, -1), str(tmp_path)))
    assert found == [squared(number) for number in range(9, 0, -1)]
    assert list(tmp_path.iterdir()) == []


def test_a_stage_without_tasks_runs_no_job(spark: "SparkSession", tmp_path: Path) -> None:
    assert list(run_stage(spark, squared, [], str(tmp_path / "nowhere"))) == []


def test_the_error_of_a_task_keeps_its_type_and_its_file(
    spark: "SparkSession", tmp_path: Path
) -> None:
    def run(path: str) -> None:
        from polymux.capture.io.sources import LostInput

        raise LostInput(f"{path}: is gone")

    with pytest.raises(CaptureUnavailable, match=r"/captures/a b\.pcapng: is gone$"):
        list(run_stage(spark, run, ["/captures/a b.pcapng"], str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_task_reads_its_own_specification(tmp_path: Path) -> None:
    tasks = [("x" * size, size) for size in range(100)]
    stored = StoredTasks.write(str(tmp_path), tasks)
    assert [stored.read(number) for number in (99, 0, 57)] == [tasks[99], tasks[0], tasks[57]]


def test_what_spark_gets_does_not_grow_with_the_number_of_tasks(tmp_path: Path) -> None:
    few, many = (StoredTasks.write(str(tmp_path), range(count)) for count in (1, 10_000))
    assert len(pickle.dumps(many)) <= len(pickle.dumps(few)) + 8


def test_a_specification_that_another_process_has_written_is_refused(tmp_path: Path) -> None:
    stored = StoredTasks.write(str(tmp_path), ["right", "right"])
    other = StoredTasks.write(str(tmp_path), ["wrong", "wrong"])
    os.replace(other.path, stored.path)
    with pytest.raises(PolymuxError, match="task 1 is not what the driver has written"):
        stored.read(1)


def test_a_specification_is_good_for_its_own_task_only(tmp_path: Path) -> None:
    stored = StoredTasks.write(str(tmp_path), ["one", "two"])
    path = Path(stored.path)
    data = path.read_bytes()
    size = (len(data) - 24) // 2
    path.write_bytes(data[size : 2 * size] + data[:size] + data[2 * size :])
    with pytest.raises(PolymuxError, match="task 0 is not"):
        stored.read(0)


def test_a_file_that_a_worker_does_not_see_is_named_with_the_remedy(tmp_path: Path) -> None:
    stored = StoredTasks.write(str(tmp_path), ["one"])
    os.unlink(stored.path)
    with pytest.raises(PolymuxError, match=r"\.tasks: .*--out must be on a file system"):
        stored.read(0)
