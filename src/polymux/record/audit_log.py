"""`AuditLog`: which peers connected, were refused, broke rules or limits, and how much they sent.

One JSON object on a line for each event. A peer decides how often it connects, so the log is
bounded in size and in rate, and never holds up a session: what cannot be written is counted. Those
that are refused have a rate of their own, so that they hide no peer that is served.

Several processes may write to one file. Each locks it for one line, and first looks whether the
file still has its name: another process, or a program that rotates logs, may have renamed it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import time

from polymux.capture.io.atomic_write import names_file
from polymux.capture.io.paths import AnyPath, one_path
from polymux.core.errors import UnwritableOutput
from polymux.live.session.session import Session
from polymux.live.session.socket_options import peer_name
from polymux.text.sanitize import escape_hidden

log = logging.getLogger("polymux.record")

MAX_FILE_BYTES = 64 << 20  # then the file becomes FILE.1, replacing an earlier one
MAX_EVENTS_PER_SECOND = 200.0
MAX_BURST_EVENTS = 2000.0
MAX_TEXT_CHARS = 500  # of a text that a peer can influence
OLD_SUFFIX = ".1"


class EventRate:
    """So many events a second in the long run, and `burst` of them at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._tokens = self._burst = burst
        self._refilled_at = time.monotonic()

    def take(self) -> bool:
        """Return whether there may be one more event now."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._refilled_at) * self._rate)
        self._refilled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class AuditLog:
    """Writes events to a file. Give it to `serve` as `meter`, or to a `RecordingProxy`.

    The file is created for its owner only, and appended to if it exists. Use as a context manager,
    or call `close`.

    Args:
        path: The file.
        max_bytes: Bytes of the file; then it is renamed to `FILE.1`.
        rate: Events per second in the long run, of connections, and of refusals and limits of a
            server; more are counted and reported by an event `suppressed`.
        burst: Events of each kind that may be written at once.
        process: A number that each event has as `process`, such as the process id, where several
            processes write to the file: `connection` counts those of one process. None for none.

    Raises:
        UnwritableOutput: The file cannot be opened.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        rate: float = MAX_EVENTS_PER_SECOND,
        burst: float = MAX_BURST_EVENTS,
        process: int | None = None,
    ) -> None:
        self.path = one_path(path)
        self.suppressed = 0
        """Events that were not written, because there were too many or the disk failed."""
        self._max_bytes = max_bytes
        self._served = EventRate(rate, burst)
        self._refused = EventRate(rate, burst)
        self._process = process
        self._unreported = 0
        self._failed = False
        self._numbers: dict[int, int] = {}  # of open sessions, by identity of the object
        self._begun: dict[int, float] = {}
        self._count = 0
        try:
            self._descriptor = self._open()
        except OSError as problem:
            raise UnwritableOutput(f"{self.path}: cannot be written: {problem.strerror}") from None

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.path, flags, 0o600)

    # Called by sessions (`live.hooks.SessionMeter`) and servers

    def begun(self, session: Session) -> None:
        """A session has begun."""
        self._count += 1
        self._numbers[id(session)] = self._count
        self._begun[id(session)] = time.monotonic()
        self.write(
            "connected",
            connection=self._count,
            peer=session_peer(session),
            identity=text_or_none(session.peer_identity),
            protocol=session.endpoint.protocol.name,
        )

    def refused(self, peer: str, reason: str) -> None:
        """A connection was refused before it became a session, or as its first event."""
        self._write(self._refused, "refused", {"peer": peer, "reason": reason})

    def limit_hit(self, protocol: str, limit: str) -> None:
        """A limit on the connections of a server was hit: one was refused, or made room."""
        self._write(self._refused, "limit", {"limit": limit, "protocol": protocol})

    def ended(self, session: Session) -> None:
        """A session has ended: its limits and violations, then its end."""
        number = self._numbers.pop(id(session), None)
        if number is None:
            return
        seconds = time.monotonic() - self._begun.pop(id(session))
        endpoint = session.endpoint
        rules = {rule.name for rule in endpoint.protocol.rules}
        for name, count in list(endpoint.counters.hits.items()):
            broken = name in rules or name.startswith("websocket.")
            event, key = ("violation", "rule") if broken else ("limit", "limit")
            self.write(event, connection=number, **{key: name}, count=count)
        self.write(
            "disconnected",
            connection=number,
            peer=session_peer(session),
            seconds=round(seconds, 3),
            bytes_received=int(endpoint.connection.direction(1 - endpoint.side).total_bytes),
            bytes_sent=session.bytes_sent,
            reason=text_or_none(session.failure),
        )

    # Writing

    def write(self, event: str, **facts: object) -> None:
        """Write an event, unless there are too many. Never raises."""
        self._write(self._served, event, facts)

    def _write(self, rate: EventRate, event: str, facts: dict[str, object]) -> None:
        written = (
            rate.take() and self._report_suppressed() and self._append(self._line(event, facts))
        )
        if not written:
            self.suppressed += 1
            self._unreported += 1

    def _report_suppressed(self) -> bool:
        """Write how many events are missing here, if any. Return whether that could be written."""
        if self._unreported and self._append(self._line("suppressed", {"count": self._unreported})):
            self._unreported = 0
        return not self._unreported

    def _line(self, event: str, facts: dict[str, object]) -> bytes:
        now = time.time_ns()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 1_000_000_000))
        micros = now // 1000 % 1_000_000
        row: dict[str, object] = {"time": f"{moment}.{micros:06d}Z", "event": event}
        if self._process is not None:
            row["process"] = self._process
        for name, value in facts.items():
            row[name] = escape_hidden(value, MAX_TEXT_CHARS) if isinstance(value, str) else value
        return json.dumps(row, ensure_ascii=True).encode() + b"\n"

    def _append(self, line: bytes) -> bool:
        """Append a line. Return whether it could be written."""
        try:
            used = self._lock_with_room(len(line))
            if os.write(self._descriptor, line) < len(line):
                os.ftruncate(self._descriptor, used)  # the next event begins a line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as problem:
            if not self._failed:
                log.warning("%s: events are missing: %s", self.path, problem.strerror)
            self._failed = True
            return False
        finally:
            lock_file(self._descriptor, fcntl.LOCK_UN)
        self._failed = False
        return True

    def _lock_with_room(self, size: int) -> int:
        """Lock the file that has the name now, after renaming one without room for so many bytes.

        Returns:
            The bytes of the file.

        Raises:
            OSError: It cannot be renamed, or opened.
        """
        while True:
            lock_file(self._descriptor, fcntl.LOCK_EX)
            if not names_file(self.path, self._descriptor):
                opened = self._open()
                os.close(self._descriptor)
                self._descriptor = opened
                continue
            used = os.fstat(self._descriptor).st_size
            if not used or used + size <= self._max_bytes:
                return used
            os.replace(self.path, self.path + OLD_SUFFIX)

    def close(self) -> None:
        """Write how many events are missing, and close the file. A second call has no effect."""
        if self._descriptor < 0:
            return
        self._report_suppressed()
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()


def lock_file(descriptor: int, operation: int) -> None:
    """Lock or unlock a file. Where the file system has no locks, do nothing."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, operation)


def session_peer(session: Session) -> str:
    """The address of the peer as `host:port`, also before the server has named it."""
    return session.peer or peer_name(session.transport, "")


def text_or_none(value: object | None) -> str | None:
    return None if value is None else str(value)
