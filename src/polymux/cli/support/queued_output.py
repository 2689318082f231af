"""Standard output and standard error that never block the event loop.

A write to a pipe whose reader has stopped, or to a terminal stopped with Ctrl-S, blocks. In a
command with live sessions it would block the event loop, and with it every session and the handling
of signals. Inside `queued_output`, what is printed goes to a bounded queue, and a thread writes it.
When the queue is full, whole lines are dropped and counted, and a line on standard error says how
many as soon as it can. A caller that can wait keeps the queue from filling up with `wait_for_room`.

Where both outputs are one file, such as a terminal, what was printed first is written first. Where
several processes print to the same outputs, each writes its lines alone.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import math
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from polymux.cli.support.output import plural
from polymux.live.process_lock import process_lock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_QUEUED_BYTES = 1 << 20
WRITE_BYTES = 4096  # a pipe takes as much at once, or nothing
STUCK_SECONDS = 2.0  # without progress: the reader has stopped
INTERRUPTED_SECONDS = 0.2  # of waiting for the reader after Ctrl-C
ROOM_POLL_SECONDS = 0.005
LINE_END_SECONDS = 0.05  # for the end of a line to follow its text


class QueuedOutput(io.RawIOBase):
    """Writes to a descriptor in a thread of its own. Never blocks the caller.

    Args:
        descriptor: Where to write.
        label: What it is, for the notice about dropped lines.
        notices: Where that notice goes; None for this output itself.
        raises: Whether `write` raises the error of an earlier write; otherwise everything after
            an error is discarded.
        lossless: Nothing is dropped; callers bound the queue with `wait_for_room`.
        beside: Another output, of the same file: what is queued by both is written in order.
        lock: Descriptor of a file, and the number of a byte in it, that processes lock which write
            to the same descriptor; None: there are no others.
    """

    def __init__(
        self,
        descriptor: int,
        label: str,
        notices: QueuedOutput | None = None,
        raises: bool = False,
        lossless: bool = False,
        beside: QueuedOutput | None = None,
        lock: tuple[int, int] | None = None,
    ) -> None:
        self.dropped_lines = 0
        self.dropped_bytes = 0
        self._descriptor = descriptor
        self._label = label
        self._notices = notices or self
        self._raises = raises
        self._lock = lock
        self._lossless = lossless
        self._error: OSError | None = None
        self._queue: deque[tuple[int, bytes]] = deque()  # with their numbers in the order
        self._queued_bytes = 0
        self._in_line = False  # the last accepted bytes did not end a line
        self._in_dropped_line = False
        self._noticed_bytes = 0  # dropped bytes that a notice has reported
        self._closing = False
        self._progress_at = time.monotonic()
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._beside = beside
        if beside is not None:
            self._changed, self._order, beside._beside = beside._changed, beside._order, self
        threading.Thread(target=self._run, daemon=True).start()

    # The interface of a raw stream

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        """Queue `data`, or drop the line that it belongs to. Return its length.

        Raises:
            OSError: An earlier write failed, if `raises`.
        """
        content = bytes(data)
        with self._changed:
            self._check_error()
            if self._error is None and content:
                self._accept(content)
                self._changed.notify_all()
        return len(content)

    def _accept(self, content: bytes) -> None:
        if self._in_dropped_line:
            end = content.find(b"\n") + 1
            self.dropped_bytes += end or len(content)
            if not end:
                return
            self._in_dropped_line = False
            content = content[end:]
            if not content:
                return
        queued = self._queued_bytes
        # One piece may be larger than the queue.
        full = queued > MAX_QUEUED_BYTES // 2 and queued + len(content) > MAX_QUEUED_BYTES
        if full and not self._lossless and not (self._in_line and content == b"\n"):
            self.dropped_lines += max(1, content.count(b"\n"))
            self.dropped_bytes += len(content)
            self._in_dropped_line = not content.endswith(b"\n")
            return
        if not self._queue:
            self._progress_at = time.monotonic()
        self._queue.append((next(self._order), content))
        self._queued_bytes += len(content)
        self._in_line = not content.endswith(b"\n")

    def _check_error(self) -> None:
        if self._error is not None and self._raises:
            raise self._error

    # Waiting

    @property
    def stuck_seconds(self) -> float:
        """For how long nothing of a queue that is not empty could be written."""
        with self._changed:
            return time.monotonic() - self._progress_at if self._queue else 0.0

    async def wait_for_room(self, patience: float = math.inf) -> None:
        """Wait until half of the queue is free, or nothing was written for `patience` seconds.

        Raises:
            OSError: A write failed, if `raises`.
        """
        while True:
            with self._changed:
                self._check_error()
                if self._queued_bytes <= MAX_QUEUED_BYTES // 2:
                    return
            if self.stuck_seconds >= patience:
                return
            await asyncio.sleep(ROOM_POLL_SECONDS)

    def wait_written(self) -> None:
        """Wait until all is written, or a write has failed. For threads without an event loop."""
        with self._changed:
            while self._queue:
                self._changed.wait()

    def finish(self, patience: float) -> None:
        """Wait until all is written, or nothing was for `patience` seconds; then stop.

        Raises:
            OSError: A write failed, if `raises`.
        """
        with self._changed:
            while self._queue and self._error is None:
                waited = time.monotonic() - self._progress_at
                if waited >= patience:
                    self.dropped_lines += sum(part.count(b"\n") for _, part in self._queue)
                    self.dropped_bytes += self._queued_bytes
                    break
                self._changed.wait(None if patience == math.inf else patience - waited)
            self._closing = True
            self._changed.notify_all()
            self._check_error()

    def drop_notice(self) -> str:
        """Return a text about dropped lines that was not reported yet; empty if there are none."""
        with self._changed:
            if self.dropped_bytes == self._noticed_bytes:
                return ""
            self._noticed_bytes = self.dropped_bytes
            lines, size = plural(self.dropped_lines, "line"), plural(self.dropped_bytes, "byte")
        return f"polymux: {lines} ({size}) dropped so far: {self._label} was not read in time\n"

    # The thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closing and not (self._queue and self._is_next()):
                    self._changed.wait()
                if self._closing:
                    return
                content = self._joined_line()
            try:
                self._write_alone(content)
            except OSError as problem:
                with self._changed:
                    self._error = problem
                    self._queue.clear()
                    self._queued_bytes = 0
                    self._changed.notify_all()
                return
            with self._changed:
                self._queue.popleft()
                self._queued_bytes -= len(content)
                self._changed.notify_all()
                drained = not self._queue
            if drained:
                notice = self.drop_notice()
                if notice:
                    self._notices.write(notice.encode())

    def _joined_line(self) -> bytes:
        """Return what is written next, which stays in the queue; called with the lock held.

        Where other processes print too, it ends a line if possible: print() writes the end of a
        long line by itself, and another process could write before it.
        """
        number, content = self._queue[0]
        deadline = time.monotonic() + LINE_END_SECONDS
        while self._lock is not None and not (self._closing or content.endswith(b"\n")):
            if len(self._queue) > 1:
                self._queue.popleft()
                content += self._queue[0][1]
                self._queue[0] = number, content
            elif (seconds := deadline - time.monotonic()) > 0:
                self._changed.wait(seconds)
            else:
                break
        return content

    def _is_next(self) -> bool:
        """Whether the output beside this one has nothing to write before it."""
        other = self._beside
        if other is None or other._closing or not other._queue:
            return True
        return self._queue[0] < other._queue[0]

    def _write_alone(self, content: bytes) -> None:
        """Write `content`, while no other process writes."""
        if self._lock is None:
            self._write_all(content)
            return
        with process_lock(*self._lock):
            self._write_all(content)

    def _write_all(self, content: bytes) -> None:
        position = 0
        while position < len(content):
            try:
                written = os.write(self._descriptor, content[position : position + WRITE_BYTES])
            except BlockingIOError:  # another process has made it non-blocking
                select.select([], [self._descriptor], [])
                continue
            position += written
            with self._changed:
                self._progress_at = time.monotonic()
                if self._beside is not None:  # which waits for this one, and not for the reader
                    self._beside._progress_at = self._progress_at


@contextmanager
def queued_output(*, lossless: bool = False, lock: int | None = None) -> Iterator[None]:
    """Queue what is printed to `sys.stdout` and `sys.stderr` inside the block.

    At the end of the block, what is queued is written first, as long as its reader takes anything
    within `STUCK_SECONDS`. Streams without a descriptor are left as they are.

    Args:
        lossless: Nothing is dropped from standard output, and the end of the block waits for its
            reader without end; Ctrl-C interrupts that.
        lock: Descriptor of a file that processes lock which print to the same outputs.

    Raises:
        OSError: At the end of the block: standard output cannot be written.
    """
    former = sys.stdout, sys.stderr
    patience = math.inf if lossless else STUCK_SECONDS
    stderr = _queued_stream(sys.stderr, "standard error", lock=lock)
    notices = queue_of(stderr)
    stdout = _queued_stream(sys.stdout, "standard output", notices, True, lossless, lock)
    sys.stdout, sys.stderr = stdout or sys.stdout, stderr or sys.stderr
    try:
        yield
    except BaseException as problem:
        interrupted = isinstance(problem, KeyboardInterrupt | asyncio.CancelledError)
        with suppress(OSError):  # the first problem is the one to report
            _finish(stdout, stderr, INTERRUPTED_SECONDS if interrupted else patience)
        raise
    else:
        _finish(stdout, stderr, patience)
    finally:
        sys.stdout, sys.stderr = former


def queue_of(stream: TextIO | None) -> QueuedOutput | None:
    """Return the queue behind a stream; None if it has none."""
    output = getattr(stream, "buffer", None)
    return output if isinstance(output, QueuedOutput) else None


async def wait_for_room(patience: float = math.inf) -> None:
    """Wait until standard output has room, or nothing was read from it for `patience` seconds.

    Returns at once outside of `queued_output`.

    Raises:
        OSError: An earlier write failed.
    """
    output = queue_of(sys.stdout)
    if output is not None:
        await output.wait_for_room(patience)


def _queued_stream(
    stream: TextIO | None,
    label: str,
    notices: QueuedOutput | None = None,
    raises: bool = False,
    lossless: bool = False,
    lock: int | None = None,
) -> io.TextIOWrapper | None:
    """Return a text stream like `stream` that queues; None if `stream` has no descriptor."""
    try:
        if stream is None:
            return None
        stream.flush()
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return None
    beside = notices if notices is not None and _same_file(notices.fileno(), descriptor) else None
    # Locks are of the process: of two outputs that are different files, each has a byte of its own.
    byte = None if lock is None else (lock, int(notices is not None and beside is None))
    output = QueuedOutput(descriptor, label, notices, raises, lossless, beside, byte)
    # A raw stream that takes everything it is given is as good as a buffered one.
    return io.TextIOWrapper(
        output,  # type: ignore[arg-type]
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


def _same_file(one: int, other: int) -> bool:
    return os.path.samestat(os.fstat(one), os.fstat(other))


def _finish(
    stdout: io.TextIOWrapper | None, stderr: io.TextIOWrapper | None, patience: float
) -> None:
    """Write what is queued, standard output first, because its notice goes to standard error."""
    failure: OSError | None = None
    for stream in (stdout, stderr):
        output = queue_of(stream)
        if stream is None or output is None:
            continue
        try:
            stream.flush()
            output.finish(patience if stream is stdout else min(patience, STUCK_SECONDS))
        except OSError as problem:
            failure = problem
        if stream is stdout and stderr is not None:
            stderr.write(output.drop_notice())
    if failure is not None:
        raise failure
