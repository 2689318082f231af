"""Progress of the jobs of a block, and Ctrl-C while Spark works."""

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from polymux.spark.runtime.job_progress import Progress, interruptible, job_description, progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_stage_is_told_up_to_its_last_task(spark: "SparkSession") -> None:
    told: list[Progress] = []
    with progress(spark, told.append, interval=0.02):
        spark.sparkContext.parallelize(range(6), 6).map(lambda n: n).collect()
    assert told[-1].done == told[-1].total == 6
    assert [row.done for row in told] == sorted(row.done for row in told)
    assert len({row.stage for row in told}) == 1


def test_the_stages_of_a_shuffle_are_told_once_each(spark: "SparkSession") -> None:
    """Spark plans the first stage again for the second job, and skips it there."""
    told: list[Progress] = []
    rows = spark.range(100, numPartitions=3).selectExpr("id % 7 as key")
    with progress(spark, told.append):
        assert len(rows.groupBy("key").count().collect()) == 7
    last = {row.stage: row for row in told}
    assert len(last) == 2
    assert all(row.done == row.total for row in last.values())


def test_jobs_outside_the_block_are_not_told(spark: "SparkSession") -> None:
    told: list[Progress] = []
    spark.sparkContext.parallelize(range(2), 2).collect()
    with progress(spark, told.append):
        pass
    spark.sparkContext.parallelize(range(2), 2).collect()
    assert told == []


def test_the_former_job_group_is_put_back(spark: "SparkSession") -> None:
    context = spark.sparkContext
    with progress(spark, lambda row: None) as outer:
        with progress(spark, lambda row: None) as inner:
            assert context.getLocalProperty("spark.jobGroup.id") == inner.name
        assert context.getLocalProperty("spark.jobGroup.id") == outer.name
    assert context.getLocalProperty("spark.jobGroup.id") is None


def test_a_callback_that_fails_is_heard_when_the_block_ends(spark: "SparkSession") -> None:
    calls = 0

    def fail(row: Progress) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("no terminal")

    done = []
    with pytest.raises(RuntimeError, match="no terminal"), progress(spark, fail, interval=0.02):
        done.append(spark.sparkContext.parallelize(range(4), 4).collect())
    assert done == [[0, 1, 2, 3]]
    assert calls == 1


def wait_until_idle(spark: "SparkSession") -> None:
    deadline = time.monotonic() + 90
    while spark.sparkContext.statusTracker().getActiveJobsIds():
        assert time.monotonic() < deadline, "the job is still running"
        time.sleep(0.05)


def press_when_running(spark: "SparkSession") -> threading.Thread:
    """Ctrl-C as soon as a task is at work."""

    def press() -> None:
        tracker = spark.sparkContext.statusTracker()
        while True:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if any(stage is not None and stage.numActiveTasks for stage in stages):
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def test_ctrl_c_cancels_the_jobs_and_the_session_goes_on(spark: "SparkSession") -> None:
    def slow(number: int) -> int:
        import time

        time.sleep(0.5)
        return number

    handler = signal.getsignal(signal.SIGINT)
    began = time.monotonic()
    thread = press_when_running(spark)
    with pytest.raises(KeyboardInterrupt), progress(spark, lambda row: None):
        spark.sparkContext.parallelize(range(400), 200).map(slow).collect()
    thread.join()
    assert time.monotonic() - began < 60  # 100 s if it ran to its end
    wait_until_idle(spark)
    assert spark.sparkContext.parallelize(range(4), 2).map(lambda n: n).collect() == [0, 1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is handler


def test_leaving_the_block_cancels_what_another_thread_of_it_started(
    spark: "SparkSession",
) -> None:
    from pyspark import InheritableThread

    def slow(number: int) -> int:
        import time

        time.sleep(0.5)
        return number

    def work() -> None:
        with pytest.raises(Exception, match="cancelled"):
            spark.sparkContext.parallelize(range(400), 200).map(slow).collect()

    def enter() -> InheritableThread:
        with progress(spark, lambda row: None):
            thread = InheritableThread(target=work, session=spark)
            thread.start()
            while not spark.sparkContext.statusTracker().getActiveJobsIds():
                time.sleep(0.02)
            raise ZeroDivisionError(thread)

    with pytest.raises(ZeroDivisionError) as raised:
        enter()
    wait_until_idle(spark)
    raised.value.args[0].join(90)
    assert not raised.value.args[0].is_alive()


def test_ctrl_c_outside_a_call_to_java_is_raised_at_once() -> None:
    handler = signal.getsignal(signal.SIGINT)
    cancelled = threading.Event()
    with pytest.raises(KeyboardInterrupt), interruptible(cancelled.set):
        signal.raise_signal(signal.SIGINT)
    assert not cancelled.is_set()
    assert signal.getsignal(signal.SIGINT) is handler


def test_jobs_have_a_description_while_a_block_runs(spark: "SparkSession") -> None:
    context = spark.sparkContext
    name = "spark.job.description"
    former = context.getLocalProperty(name)
    with job_description(spark, "polymux: index 3 captures"):
        assert context.getLocalProperty(name) == "polymux: index 3 captures"
    assert context.getLocalProperty(name) == former
