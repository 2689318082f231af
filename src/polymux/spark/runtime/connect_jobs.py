"""The jobs of a Spark Connect session, known to the server by their tags; see `session_jobs`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from polymux.spark.runtime.session_jobs import Progress, Result, Row, Task
from polymux.spark.runtime.stored_tasks import run_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

_MANY_ROWS = 1 << 14  # more than there are cores


class ConnectJobs:
    """Implements `SessionJobs`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def parallelism(self) -> int:
        """Counts the partitions of rows that Spark divides by itself."""

        def one_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield next(batches).slice(0, 1)

        rows = self._spark.range(_MANY_ROWS).mapInArrow(one_row, "id long")
        return max(1, len(rows.collect()))

    @contextmanager
    def described(self, text: str) -> Iterator[None]:
        tag = text.replace(",", ";")  # the server separates tags by commas
        self._spark.addTag(tag)
        try:
            yield
        finally:
            self._spark.removeTag(tag)

    def group(self, description: str) -> ConnectJobGroup:
        return ConnectJobGroup(self._spark)

    def counters(self) -> NoCounters:
        return NoCounters()

    def run(
        self, run_task: Callable[[Task], Result], tasks: Sequence[Task], folder: str
    ) -> list[Result]:
        return run_rows(self._spark, run_task, tasks, folder)

    def call(self, probe: Callable[[], Row], count: int) -> list[Row]:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import json

            import pyarrow

            for _ in batches:
                yield pyarrow.record_batch({"result": pyarrow.array([json.dumps(probe())])})

        plan = self._spark.range(0, count, 1, count).mapInArrow(run, "result string")
        answers = [tuple(json.loads(row["result"])) for row in plan.collect()]
        return cast("list[Row]", answers)  # what `probe` returned, as JSON


class ConnectJobGroup:
    """The operations with a tag of their own. Implements `JobGroup`.

    The session calls it with the progress of all of its operations, each in the thread that waits
    for it, which has the tags of the operation.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.name = f"polymux-{uuid4()}"
        self._spark = spark
        self._stages: dict[int, Progress] = {}
        spark.addTag(self.name)
        spark.registerProgressHandler(cast("ProgressHandler", self))  # a base class only for types

    def cancel(self) -> None:
        self._spark.interruptTag(self.name)

    def stages(self) -> list[Progress]:
        return sorted(self._stages.values())

    def close(self) -> None:
        with suppress(Exception):
            self._spark.removeProgressHandler(cast("ProgressHandler", self))
        self._spark.removeTag(self.name)

    def __call__(
        self,
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        if self.name in self._spark.getTags():
            for stage in stages or ():
                if stage.num_completed_tasks or inflight_tasks:
                    self._stages[stage.stage_id] = Progress(
                        stage.stage_id, stage.num_completed_tasks, stage.num_tasks
                    )


class NoCounters:
    """The metrics of a server are out of reach for its clients. Implements `Counters`."""

    def add(self, counts: Mapping[str, int]) -> None:
        pass

    def kept_current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def copy_to_metrics(self) -> None:
        pass


jobs = ConnectJobs
