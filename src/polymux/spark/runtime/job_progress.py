"""Progress of Spark jobs, and their cancellation on errors and on Ctrl-C."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from polymux.spark.runtime import jvm_output
from polymux.spark.runtime.session_jobs import JobGroup, Progress, jobs_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Progress", "interruptible", "job_description", "progress", "quiet_interrupts"]

_CALLS = ("py4j", "pyspark", "grpc")  # packages whose functions wait for Spark


@contextmanager
def progress(
    spark: "SparkSession",
    callback: Callable[[Progress], None],
    *,
    interval: float = 0.2,
    description: str = "polymux",
) -> Iterator[JobGroup]:
    """Report the progress of the jobs that this thread starts in the block.

    If the block ends with an exception, including Ctrl-C, running jobs are cancelled. The thread's
    former job group, or its former tags, are restored.

    Args:
        spark: The session, of either kind.
        callback: Called in another thread with each stage whose numbers have changed, and once more
            when the block has ended. If it raises, it is not called again, and the block raises
            the same exception at its end.
        interval: Seconds between two checks.
        description: The description of the jobs in Spark's UI.

    Yields:
        The group of these jobs.
    """
    group = jobs_of(spark).group(description)
    poller = _ProgressPoller(group, callback, interval)
    poller.start()
    try:
        with interruptible(group.cancel):
            yield group
    except BaseException:
        poller.cancel = True
        raise
    finally:
        poller.stop_event.set()
        poller.join()
        group.close()
    if poller.failure is not None:
        raise poller.failure


@contextmanager
def job_description(spark: "SparkSession", text: str) -> Iterator[None]:
    """Describe the jobs that this thread starts in the block, for Spark's UI and its event log."""
    with jobs_of(spark).described(text):
        yield


@contextmanager
def interruptible(cancel: Callable[[], object]) -> Iterator[None]:
    """Make Ctrl-C call `cancel` while the main thread waits for Spark, then end the block.

    A KeyboardInterrupt in the middle of a py4j call breaks the thread's connection to Java, and
    later calls may fail; in the middle of a call of Spark Connect, the job would go on. Instead,
    `cancel` runs in another thread, the call returns with Spark's error, and the block raises
    KeyboardInterrupt in its place. Outside of a call, and for a second Ctrl-C, the former handler
    is used.
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
        if pressed or not _in_call(frame):
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


def _in_call(frame: FrameType | None) -> bool:
    """Whether a call of Spark is on the stack."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _CALLS:
            return True
        frame = frame.f_back
    return False


def _call_ignoring_errors(act: Callable[[], object]) -> None:
    with suppress(Exception):  # if Java has died, the waiting call fails by itself
        act()


class _ProgressPoller(threading.Thread):
    """A thread that polls the status of one job group until `stop_event` is set."""

    def __init__(
        self, group: JobGroup, callback: Callable[[Progress], None], interval: float
    ) -> None:
        super().__init__(name="polymux-progress", daemon=True)
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
            _call_ignoring_errors(self.group.cancel)

    def poll(self) -> None:
        for now in self.group.stages():
            if self.reported.get(now.stage) != now:
                self.reported[now.stage] = now
                self.callback(now)
