"""What the running of jobs needs of a session, and the two kinds of session name differently.

A classic session has a driver in this process, which PySpark reaches through `sparkContext`. A
Spark Connect session is a client: its driver is in a server, which only takes plans, tags and
interrupts. Everything else in polymux takes either kind; what differs is behind `SessionJobs`, in
`classic_jobs` and `connect_jobs`. The former is imported for a classic session only.

Tasks of a classic session are those of an RDD: a session's first stage starts in half the time that
`mapInArrow` takes, and each further task costs 5 ms instead of 24. A Connect session has no RDDs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")
Row = TypeVar("Row", bound=tuple[object, ...])

_CLASSIC = "polymux.spark.runtime.classic_jobs"
_CONNECT = "polymux.spark.runtime.connect_jobs"


class Progress(NamedTuple):
    """Progress of one stage, in tasks."""

    stage: int
    done: int
    total: int


class JobGroup(Protocol):
    """The jobs that one thread starts until `close`."""

    @property
    def name(self) -> str:
        """Their job group or tag in Spark; no other group has the same."""

    def cancel(self) -> None:
        """Cancel those that are running. May be called in any thread."""

    def stages(self) -> list[Progress]:
        """Return the progress of each stage of which a task has begun. May be called in any thread.

        Empty if the session does not answer.
        """

    def close(self) -> None:
        """End the group, in the thread that began it; jobs that are running go on."""


class Counters(Protocol):
    """Counters of the analysis in Spark's own metrics. They travel with tasks, which may only
    `add`."""

    def add(self, counts: Mapping[str, int]) -> None:
        """Add to the counters named, in a task or on the driver."""

    def kept_current(self) -> AbstractContextManager[None]:
        """Bring the metrics of Spark up to date while the block runs, and at its end."""

    def copy_to_metrics(self) -> None:
        """Bring the metrics of Spark up to date."""


class SessionJobs(Protocol):
    """The jobs of a session."""

    def parallelism(self) -> int:
        """How many tasks can run at a time. May run a job to find out."""

    def described(self, text: str) -> AbstractContextManager[None]:
        """Describe the jobs that this thread starts in the block, for Spark's UI."""

    def group(self, description: str) -> JobGroup:
        """Begin a group of the jobs that this thread starts."""

    def counters(self) -> Counters:
        """The counters of the session's application."""

    def run(
        self, run_task: Callable[[Task], Result], tasks: Sequence[Task], folder: str
    ) -> list[Result]:
        """Call `run_task` with each of `tasks` in a task of Spark, in one job.

        Returns the results in order. `folder` is one that the driver and all workers share.
        """

    def call(self, probe: Callable[[], Row], count: int) -> list[Row]:
        """Call `probe` in `count` tasks of Spark, in one job; return the results. It is pickled by
        value, and its result is a tuple of texts and truth values."""


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of Spark Connect."""
    return ".connect." in f"{type(spark).__module__}."


def jobs_of(spark: SparkSession) -> SessionJobs:
    """Return the jobs of a session of either kind."""
    # By name: a static import of both would load PySpark's driver for a client.
    module = import_module(_CONNECT if is_connect(spark) else _CLASSIC)
    return cast(SessionJobs, module.jobs(spark))  # the modules share no base class
