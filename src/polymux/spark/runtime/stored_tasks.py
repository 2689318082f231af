"""The tasks of a stage on a Spark Connect session: rows, whose specifications are in a file.

A stage is `mapInArrow` over `spark.range` with one row for each task. The row only has the number
of the task. What it is to do is in a file in the staging folder, which client and workers share:
the plan that Spark gets does not grow with the number of tasks, and a task reads its own
specification only. Its result comes back as one small row.

Spark's own serializer carries specifications and results, as it carries functions. The folder may
be one that others write to: each specification is therefore signed with a key that travels with the
plan, and is read only if the client wrote it.

Layout of the file: the specifications, each behind its signature, one after another; then their
positions and the end of the last, 8 bytes each, little-endian.
"""

from __future__ import annotations

import hmac
import os
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from polymux.core.errors import PolymuxError
from polymux.spark.runtime.session_jobs import Result, Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_RESULT_SCHEMA = "task long, result binary"
_SIGNATURE_BYTES = 32
_OFFSET_BYTES = 8


def run_rows(
    spark: SparkSession, run_task: Callable[[Task], Result], tasks: Sequence[Task], folder: str
) -> list[Result]:
    """Call `run_task` with each of `tasks` on the workers, in one job; see `stages.run_stage`."""
    stored = StoredTasks.write(folder, tasks)
    try:
        plan = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(
            _task_runner(stored, run_task), _RESULT_SCHEMA
        )
        rows = plan.collect()
    finally:
        os.unlink(stored.path)
    return [cast("Result", _unpack(row["result"])) for row in rows]  # what `run_task` returned


def _pack(value: object) -> bytes:
    from pyspark.serializers import CPickleSerializer

    packed: bytes = CPickleSerializer().dumps(value)  # type: ignore[no-untyped-call]  # PySpark's
    return packed


def _unpack(data: bytes) -> object:
    from pyspark.serializers import CPickleSerializer

    value: object = CPickleSerializer().loads(data)  # type: ignore[no-untyped-call]  # PySpark's
    return value


@dataclass(frozen=True, slots=True)
class StoredTasks:
    """The file of the specifications of a stage."""

    path: str
    key: bytes = field(repr=False)
    count: int

    @classmethod
    def write(cls, folder: str, tasks: Sequence[object]) -> StoredTasks:
        """Write the specifications to a new file in `folder`."""
        key = os.urandom(_SIGNATURE_BYTES)
        path = os.path.join(os.path.abspath(folder), f"stage-{uuid.uuid4().hex}.tasks")
        positions = array("q")
        with open(path, "wb") as file:
            for number, task in enumerate(tasks):
                positions.append(file.tell())
                pickled = _pack(task)
                file.write(_signature(key, number, pickled) + pickled)
            positions.append(file.tell())
            file.write(positions.tobytes())
        return cls(path, key, len(tasks))

    def read(self, number: int) -> object:
        """Read one specification, in a task.

        Raises:
            PolymuxError: The file is not there, or is not what the driver has written.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek((number - self.count - 1) * _OFFSET_BYTES, os.SEEK_END)
                start, end = array("q", file.read(2 * _OFFSET_BYTES))
                file.seek(start)
                signed = file.read(end - start)
        except FileNotFoundError:
            raise PolymuxError(
                f"{self.path}: the driver wrote it, but it is not here: --out must be on a file "
                "system that the driver and all workers share"
            ) from None
        signature, pickled = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, _signature(self.key, number, pickled)):
            raise PolymuxError(f"{self.path}: task {number} is not what the driver has written")
        return _unpack(pickled)


def _signature(key: bytes, number: int, pickled: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(_OFFSET_BYTES, "little") + pickled, "sha256")


def _task_runner(
    stored: StoredTasks, run_task: Callable[[Task], Result]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = _pack(run_task(stored.read(number)))  # type: ignore[arg-type]
                yield pa.record_batch({"task": pa.array([number]), "result": pa.array([result])})

    return run
