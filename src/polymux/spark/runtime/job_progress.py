"""Progress of Spark jobs, and their cancellation on errors and on Ctrl-C."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from polymux.spark.runtime import jvm_output

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
_INTERRUPT = "spark.job.interruptOnCancel"


class Progress(NamedTuple):
    """Progress of one stage, in tasks."""

    stage: int
    done: int
    total: int


@contextmanager
def progress(
    spark: "SparkSession",
    callback: Callable[[Progress], None],
    *,
    interval: float = 0.2,
    description: str = "polymux",
) -> Iterator[str]:
    """Report the progress of the jobs that this thread starts in the block.

    If the block ends with an exception, including Ctrl-C, running jobs are cancelled. The thread's
    former job group is restored.

    Args:
        spark: The session.
        callback: Called in another thread with each stage whose numbers have changed, and once more
            when the block has ended. If it raises, it is not called again, and the block raises
            the same exception at its end.
        interval: Seconds between two checks.
        description: The description of the jobs in Spark's UI.

    Yields:
        The id of the job group.
    """
    context = spark.sparkContext
    former = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION, _INTERRUPT)}
    group = f"polymux-{uuid4()}"
    context.setJobGroup(group, description, interruptOnCancel=True)
    poller = _ProgressPoller(context, group, callback, interval)
    poller.start()
    try:
        with interruptible(lambda: context.cancelJobGroup(group)):
            yield group
    except BaseException:
        poller.cancel = True
        raise
    finally:
        poller.stop_event.set()
        poller.join()
        with suppress(Exception):  # the session may have ended, or its Java died
            for name, value in former.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type] # None removes it
    if poller.failure is not None:
        raise poller.failure


@contextmanager
def job_description(spark: "SparkSession", text: str) -> Iterator[None]:
    """Describe the jobs that this thread starts in the block, for Spark's UI and its event log."""
    context = spark.sparkContext
    former = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        with suppress(Exception):  # the session may have ended, or its Java died
            context.setLocalProperty(_DESCRIPTION, former)  # type: ignore[arg-type] # None removes it


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """Make Ctrl-C call `cancel` while the main thread waits for Java, then end the block.

    A KeyboardInterrupt in the middle of a py4j call breaks the thread's connection to Java, and
    later calls may fail. Instead, `cancel` runs in another thread, the call returns with Spark's
    error, and the block raises KeyboardInterrupt in its place. Outside of a call, and for a second
    Ctrl-C, the former handler is used.
    """
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        yield
        return
    handler = former
    pressed = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        jvm_output.on_interrupt()
        if pressed or not _in_java_call(frame):
            handler(number, frame)
        else:
            pressed = True
            threading.Thread(target=_call_ignoring_errors, args=(cancel,), daemon=True).start()

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    except Exception:
        if pressed:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, former)
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Keep py4j from logging the traceback of a Ctrl-C, which it raises again anyway."""
    loggers = [logging.getLogger(name) for name in (None, "py4j.clientserver", "py4j.java_gateway")]
    for logger in loggers:
        logger.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """A logging filter that drops records made while a KeyboardInterrupt is handled."""
    failure = record.exc_info[1] if record.exc_info else None
    while failure is not None:
        if isinstance(failure, KeyboardInterrupt):
            return False
        failure = failure.__context__
    return True


def _in_java_call(frame: FrameType | None) -> bool:
    """Whether a frame of py4j is on the stack."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("py4j."):
            return True
        frame = frame.f_back
    return False


def _call_ignoring_errors(act: Callable[[], None]) -> None:
    with suppress(Exception):  # if Java has died, the waiting call fails by itself
        act()


class _ProgressPoller(threading.Thread):
    """A thread that polls the status of one job group until `stop_event` is set."""

    def __init__(
        self,
        context: "SparkContext",
        group: str,
        callback: Callable[[Progress], None],
        interval: float,
    ) -> None:
        super().__init__(name="polymux-progress", daemon=True)
        self.context = context
        self.group = group
        self.callback = callback
        self.interval = interval
        self.stop_event = threading.Event()
        self.cancel = False
        self.failure: BaseException | None = None
        self.reported: dict[int, Progress] = {}

    def run(self) -> None:
        running = True
        while running:
            running = not self.stop_event.wait(self.interval)
            if self.failure is None:
                try:
                    self.poll()
                except BaseException as failure:
                    self.failure = failure
        if self.cancel:
            _call_ignoring_errors(lambda: self.context.cancelJobGroup(self.group))

    def poll(self) -> None:
        tracker = self.context.statusTracker()
        try:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self.group)]
            stages = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
            found = [(stage, tracker.getStageInfo(stage)) for stage in stages]
        except Exception:
            # Java has died or the session has ended: the block itself will raise that.
            return
        for stage, info in found:
            if info is None or not (info.numActiveTasks or info.numCompletedTasks):
                continue  # not started, or skipped because its output exists
            now = Progress(stage, info.numCompletedTasks, info.numTasks)
            if self.reported.get(stage) != now:
                self.reported[stage] = now
                self.callback(now)
