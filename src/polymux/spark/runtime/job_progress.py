"""Watch the jobs a block starts, and stop them if the block is left early."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
_INTERRUPT = "spark.job.interruptOnCancel"


class Progress(NamedTuple):
    """How far one stage is, in tasks."""

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
    """Tell `callback` how far the jobs of this block are; yields the name of their job group.

    The callback runs in a thread of its own, once for each stage whose numbers have changed,
    looked at `every` so many seconds, and a last time when the block has ended. If it raises, it
    is not called again, and the block raises the same when it ends. If the block is left by an
    exception, Ctrl-C included, the jobs still running are cancelled. Only jobs started by the
    thread that entered the block are seen. The thread's former job group is put back.
    """
    context = spark.sparkContext
    former = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION, _INTERRUPT)}
    group = f"polymux-{uuid4()}"
    context.setJobGroup(group, description, interruptOnCancel=True)
    watcher = _ProgressPoller(context, group, callback, interval)
    watcher.start()
    try:
        with interruptible(lambda: context.cancelJobGroup(group)):
            yield group
    except BaseException:
        watcher.cancel = True
        raise
    finally:
        watcher.stop_event.set()
        watcher.join()
        with suppress(Exception):  # the session may be over by now, or its Java dead
            for name, value in former.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type] # None removes it
    if watcher.failure is not None:
        raise watcher.failure


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C call `cancel` while the main thread waits for Java, then end the block.

    A KeyboardInterrupt in the middle of a call breaks the thread's connection to Java, and the
    next call may fail in its place. So the jobs are cancelled from another thread, the call
    returns with Spark's error, and the block raises KeyboardInterrupt instead of that. Outside
    a call, and when Ctrl-C comes again, the former handler is asked.
    """
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        yield
        return
    handler = former
    pressed = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
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
    """Keep py4j from logging the traceback of a Ctrl-C, which it raises again all the same."""
    loggers = [logging.getLogger(name) for name in (None, "py4j.clientserver", "py4j.java_gateway")]
    for logger in loggers:
        logger.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """False for what was logged while a KeyboardInterrupt was handled."""
    failure = record.exc_info[1] if record.exc_info else None
    while failure is not None:
        if isinstance(failure, KeyboardInterrupt):
            return False
        failure = failure.__context__
    return True


def _in_java_call(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("py4j."):
            return True
        frame = frame.f_back
    return False


def _call_ignoring_errors(act: Callable[[], None]) -> None:
    with suppress(Exception):  # Java is gone, and the call that waits for it notices
        act()


class _ProgressPoller(threading.Thread):
    """Polls the status of one job group until told to leave."""

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
        watching = True
        while watching:
            watching = not self.stop_event.wait(self.interval)
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
            # Java is gone or the session is over: the block itself will meet that, and say so.
            return
        for stage, info in found:
            if info is None or not (info.numActiveTasks or info.numCompletedTasks):
                continue  # not begun, or skipped because its output is there already
            now = Progress(stage, info.numCompletedTasks, info.numTasks)
            if self.reported.get(stage) != now:
                self.reported[stage] = now
                self.callback(now)
