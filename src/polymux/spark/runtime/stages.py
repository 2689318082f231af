"""Stages: a function called once for each of many specifications, in tasks of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from polymux.spark.runtime.session_jobs import Result, Task, jobs_of
from polymux.spark.runtime.task_errors import task_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_stage(
    spark: SparkSession,
    run_task: Callable[[Task], Result],
    tasks: Sequence[Task],
    folder: str,
) -> Iterator[Result]:
    """Call `run_task` with each of `tasks` on the workers, in one job; yield the results in order.

    A task that fails is tried again by Spark, on another worker where there is one; of the attempts
    one result counts. Spark begins the tasks in their order.

    Args:
        spark: The session, of either kind.
        run_task: Pickled once for all tasks: what they have in common belongs into it.
        tasks: What is different in each.
        folder: A directory that the driver and all workers share.

    Raises:
        PolymuxError: The error of a task that failed for good; see `task_errors`.
        OSError: `folder` cannot be written.
    """
    if not tasks:
        return
    with task_errors():
        results = jobs_of(spark).run(run_task, tasks, folder)
    yield from results
