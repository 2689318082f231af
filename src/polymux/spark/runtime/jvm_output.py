"""What Java prints, as records of the logger `polymux.spark`.

Java's lines must not fall into a table or a progress bar, nor into output another program reads.
"""

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

log = logging.getLogger("polymux.spark")

MAX_LINES_KEPT = 50  # lines, for the reason why Spark did not start
MAX_LINE_BYTES = 64 * 1024  # bytes of a line that are kept
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
    """A pipe for Java to write to, and the thread that reads it until Java is gone."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=MAX_LINES_KEPT)
        self._thread: threading.Thread | None = None

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """The end to hand to Java; closed here when the block ends, as Java then has its own."""
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
        """What most likely says why Java ended; call it when Java has."""
        if self._thread is not None:
            self._thread.join(1.0)
        return failure_reason(self.lines)

    def _read(self, reading: int) -> None:
        level = logging.INFO
        with os.fdopen(reading, "rb") as pipe:
            # A line is taken in parts if it is very long, so memory stays bounded.
            while part := pipe.readline(MAX_LINE_BYTES):
                line = part.decode("utf-8", "replace").rstrip()
                self.lines.append(line)
                level = level_of(line, level)
                log.log(level, "%s", line)


def failure_reason(lines: Iterable[str]) -> str:
    """Of all that Java said, the first complaint, on one line; else the last thing it said."""
    said = [line.strip() for line in lines if line.strip()]
    for number, line in enumerate(said):
        if line.startswith("Error occurred during initialization of VM"):
            return ": ".join(said[number : number + 2])  # what it was comes after
        if re.match(r"(Exception|Error|Caused by|ERROR|Unrecognized|Invalid)\b", line):
            return line
        if re.search(r"\b\w+(Exception|Error): ", line):
            return line
    return said[-1] if said else ""


def level_of(line: str, previous: int) -> int:
    """The level a line belongs to; a line of a stack trace belongs to the line before it."""
    if any(noise in line for noise in _NOISE):
        return logging.DEBUG
    found = re.match(r"(?:\S+ \S+ )?(FATAL|ERROR|WARN|INFO|DEBUG|TRACE) ", line)
    if found is not None:
        return _LEVELS[found[1]]
    if re.match(r"\s|Caused by:|\.\.\. \d+ more|[\w.$]+(Exception|Error)\b", line):
        return previous
    return logging.INFO
