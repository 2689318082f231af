"""The jobs of a classic session, whose driver is in this process; see `session_jobs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from polymux.spark.runtime.run_counters import RunCounters, run_counters
from polymux.spark.runtime.session_jobs import Progress, Result, Row, Task

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
_INTERRUPT = "spark.job.interruptOnCancel"


class ClassicJobs:
    """Implements `SessionJobs`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def parallelism(self) -> int:
        return self._spark.sparkContext.defaultParallelism

    @contextmanager
    def described(self, text: str) -> Iterator[None]:
        context = self._spark.sparkContext
        former = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, text)
        try:
            yield
        finally:
            with suppress(Exception):  # the session may have ended, or its Java died
                context.setLocalProperty(_DESCRIPTION, former)  # type: ignore[arg-type] # None removes it

    def group(self, description: str) -> ClassicJobGroup:
        return ClassicJobGroup(self._spark.sparkContext, description)

    def counters(self) -> RunCounters:
        return run_counters(self._spark)

    def run(
        self, run_task: Callable[[Task], Result], tasks: Sequence[Task], folder: str
    ) -> list[Result]:
        return self._spark.sparkContext.parallelize(tasks, len(tasks)).map(run_task).collect()

    def call(self, probe: Callable[[], Row], count: int) -> list[Row]:
        def run(_: int) -> Row:
            return probe()

        return self._spark.sparkContext.parallelize(range(count), count).map(run).collect()


class ClassicJobGroup:
    """A job group of Spark; the former one of the thread is restored. Implements `JobGroup`."""

    def __init__(self, context: SparkContext, description: str) -> None:
        self.name = f"polymux-{uuid4()}"
        self._context = context
        names = (_GROUP, _DESCRIPTION, _INTERRUPT)
        self._former = {name: context.getLocalProperty(name) for name in names}
        context.setJobGroup(self.name, description, interruptOnCancel=True)

    def cancel(self) -> None:
        self._context.cancelJobGroup(self.name)

    def stages(self) -> list[Progress]:
        tracker = self._context.statusTracker()
        try:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self.name)]
            stages = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
            found = [(stage, tracker.getStageInfo(stage)) for stage in stages]
        except Exception:
            return []  # Java has died or the session has ended: what waits for the jobs raises that
        return [
            Progress(stage, info.numCompletedTasks, info.numTasks)
            for stage, info in found
            # Not one that has not started, or was skipped because its output exists.
            if info is not None and (info.numActiveTasks or info.numCompletedTasks)
        ]

    def close(self) -> None:
        with suppress(Exception):  # the session may have ended, or its Java died
            for name, value in self._former.items():
                self._context.setLocalProperty(name, value)  # type: ignore[arg-type] # None removes it


jobs = ClassicJobs
