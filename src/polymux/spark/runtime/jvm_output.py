"""Redirection of Java's output to the logger `polymux.spark`.

Java would otherwise print into tables, progress bars and output that another program reads.
"""

import logging
import os
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

log = logging.getLogger("polymux.spark")

MAX_LINES_KEPT = 50  # most lines searched for the reason of a failed start
MAX_LINE_BYTES = 64 * 1024  # a longer line is split
INTERRUPT_SECONDS = 10.0  # in which what Java reports is the consequence of a Ctrl-C
_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
_NOISE = ("Using incubator modules", "Using Spark's default log4j profile")


class JvmOutput:
    """A pipe for Java's output, and the thread that reads it until Java has exited."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=MAX_LINES_KEPT)
        self._thread: threading.Thread | None = None
        self._interrupted_at = -INTERRUPT_SECONDS
        _outputs.add(self)

    def on_interrupt(self) -> None:
        """The user has pressed Ctrl-C. Errors that Java reports in the next seconds are of tasks
        that were cancelled: they are logged at level info."""
        self._interrupted_at = time.monotonic()

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """Yield the write end for Java. It is closed when the block ends; Java has its own copy."""
        reading, writing = os.pipe()
        self._thread = threading.Thread(
            target=self._read, args=(reading,), name="polymux-java-output", daemon=True
        )
        self._thread.start()
        try:
            yield writing
        finally:
            os.close(writing)

    def reason(self) -> str:
        """Return the most likely reason why Java exited. Call it after Java has exited."""
        if self._thread is not None:
            self._thread.join(1.0)
        return failure_reason(self.lines)

    def _read(self, reading: int) -> None:
        level = logging.INFO
        with os.fdopen(reading, "rb") as pipe:
            while part := pipe.readline(MAX_LINE_BYTES):
                line = part.decode("utf-8", "replace").rstrip()
                self.lines.append(line)
                level = level_of(line, level)
                interrupted = time.monotonic() - self._interrupted_at < INTERRUPT_SECONDS
                log.log(min(level, logging.INFO) if interrupted else level, "%s", line)


_outputs: "weakref.WeakSet[JvmOutput]" = weakref.WeakSet()  # of the Javas that were started


def on_interrupt() -> None:
    """Tell the output of every Java that the user has pressed Ctrl-C."""
    for output in list(_outputs):
        output.on_interrupt()


def failure_reason(lines: Iterable[str]) -> str:
    """Return the first error in Java's output, on one line; without one, the last line."""
    texts = [line.strip() for line in lines if line.strip()]
    for number, line in enumerate(texts):
        if line.startswith("Error occurred during initialization of VM"):
            return ": ".join(texts[number : number + 2])  # the next line has the details
        if re.match(r"(Exception|Error|Caused by|ERROR|Unrecognized|Invalid)\b", line):
            return line
        if re.search(r"\b\w+(Exception|Error): ", line):
            return line
    return texts[-1] if texts else ""


def level_of(line: str, previous: int) -> int:
    """Return the logging level of a line; a stack trace has the level of the line before it."""
    if any(noise in line for noise in _NOISE):
        return logging.DEBUG
    found = re.match(r"(?:\S+ \S+ )?(FATAL|ERROR|WARN|INFO|DEBUG|TRACE) ", line)
    if found is not None:
        return _LEVELS[found[1]]
    if re.match(r"\s|Caused by:|\.\.\. \d+ more|[\w.$]+(Exception|Error)\b", line):
        return previous
    return logging.INFO
