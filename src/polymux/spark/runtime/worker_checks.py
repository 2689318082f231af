"""Running a function on every worker of a session, and checks of the workers before a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from polymux.capture.io.paths import is_url
from polymux.core.errors import PolymuxError
from polymux.spark.runtime.job_progress import progress
from polymux.spark.runtime.session_jobs import JobGroup, Row, is_connect, jobs_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER_SECONDS = 60.0  # without free cores a job would wait forever
MAX_CHECKED_FILES = 20  # most files whose access is checked

WorkerProbe = Callable[[], Row]


def run_on_workers(
    spark: SparkSession, probe: WorkerProbe[Row], timeout: float = WORKER_SECONDS
) -> set[Row]:
    """Call `probe` on every running executor and return the results; empty if no task has begun
    within `timeout` seconds. One that has begun may take its time.

    `probe` should sleep for a moment, so that one fast executor does not take all tasks, and must
    be pickled by value; see `_access_probe`. Its result is a tuple of texts and truth values.
    """
    timed_out = threading.Event()

    def cancel_if_idle(group: JobGroup) -> None:
        if not group.stages():
            timed_out.set()
            group.cancel()

    rows: set[Row] = set()
    try:
        with progress(spark, lambda _: None, description="polymux: checking the workers") as group:
            timer = threading.Timer(timeout, cancel_if_idle, [group])
            timer.daemon = True
            timer.start()
            try:
                # The first round waits for an executor; after it the number of cores is known.
                for tasks in (4, None):
                    count = tasks or max(4, 3 * jobs_of(spark).parallelism())
                    rows.update(jobs_of(spark).call(probe, count))
            finally:
                timer.cancel()
    except Exception:
        if timed_out.is_set():
            return set()
        raise
    return rows


def check_workers(spark: SparkSession, paths: Sequence[str], staging: str) -> None:
    """Check that every worker can import polymux, read the captures and write to `staging`.

    In local mode the workers are children of this process, and nothing is checked.

    Raises:
        PolymuxError: A worker cannot, or no worker runs a task within `WORKER_SECONDS`.
    """
    master = spark.conf.get("spark.master", "") or ""
    if is_connect(spark):
        master = "the server of this Spark Connect session"
    elif master == "local" or master.startswith("local["):
        return
    files = [path for path in paths if not is_url(path)][:MAX_CHECKED_FILES]
    answers = run_on_workers(spark, _access_probe(files, staging))
    if not answers:
        raise PolymuxError(
            f"{master}: no worker took a task within {WORKER_SECONDS:.0f} s; check that workers "
            "are running and have free cores"
        )
    for host, missing, unseen, writable in sorted(answers):
        if missing:
            raise PolymuxError(
                f"worker {host} cannot run polymux: {missing}; start the session with "
                "polymux.spark.spark_session, which ships it, or install "
                "polymux[spark] for the Python of the workers"
            )
        if unseen:
            raise PolymuxError(
                f"worker {host} does not see {unseen}; put captures where driver and workers "
                "both reach them: a shared directory, or an URL (s3://, hdfs://, gs://)"
            )
        if not writable:
            raise PolymuxError(
                f"worker {host} cannot write to {staging}; --out must be on a file system that "
                "the driver and all workers share"
            )


def _access_probe(files: Sequence[str], staging: str) -> WorkerProbe[tuple[str, str, str, bool]]:
    """Return the function that runs on a worker: a closure, which is pickled by value.

    A function of this module would be pickled by name, and a worker without polymux could not run
    it.
    """
    paths, folder = list(files), staging

    def probe() -> tuple[str, str, str, bool]:
        import os
        import socket
        import time

        time.sleep(0.1)
        missing = ""
        try:
            import polymux.spark.batch.analyze_stage  # noqa: F401
        except ImportError as problem:
            missing = str(problem)
        unseen = next((path for path in paths if not os.access(path, os.R_OK)), "")
        return socket.gethostname(), missing, unseen, os.access(folder, os.W_OK)

    return probe
