"""`Collector`: accepts sessions of any protocol and stores their bytes as captures.

A sender learns that its data was processed from returned credit, from the answer to the end of its
stream, or from a reply. The collector sends none of these before the data is durable. Files that a
killed collector leaves behind are published by the next one in the same directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from polymux.aio import Server, Session, serve
from polymux.aio.hooks import RecorderFactory
from polymux.capture import write_index
from polymux.capture.io.atomic_write import PART_SUFFIX
from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.pcapng.rotation import RotatingWriter, rotation_files
from polymux.core.errors import CaptureError, PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.record.crash_recovery import RecoveryResult, recover_partial_captures
from polymux.record.durable_log import DurableLog, NotDurable, SyncPolicy
from polymux.record.ingest import SessionIngest
from polymux.record.session_recorder import Recorder

log = logging.getLogger("polymux.record")

MIB = 1024 * 1024
CAPTURE_NAME = "collect.pcapng"
MIN_SESSION_BUFFER_BYTES = 64 * 1024  # lower bound of a session's share of the memory


@dataclass
class CollectorLimits:
    """Limits of a collector.

    Args:
        clients: Sessions open at a time; further connections are rejected.
        per_host: Sessions open at a time from one address; 0 for no limit besides `clients`.
        streams: Streams of one session open at a time.
        buffer_bytes: Received bytes in memory that are not durable, all sessions together.
        session_buffer_bytes: The same for one session.
    """

    clients: int = 1024
    per_host: int = 0
    streams: int = 1024
    buffer_bytes: int = 256 * MIB
    session_buffer_bytes: int = 16 * MIB


@dataclass
class CollectorStats:
    """Counters of a collector since its start.

    Args:
        sessions: Sessions accepted.
        open: Sessions that are open.
        rejected: Connections rejected because of a limit or a failed disk.
        streams: Streams begun.
        open_streams: Streams that are not finished.
    """

    sessions: int = 0
    open: int = 0
    rejected: int = 0
    streams: int = 0
    open_streams: int = 0

    def stream_count_changed(self, change: int) -> None:
        """Count a stream that has begun (+1) or is finished (-1)."""
        self.open_streams += change
        self.streams += max(0, change)


class Collector:
    """Accepts sessions on any number of URLs and writes `OUT/collect-00001.pcapng` and so on.

        async with Collector("captures") as collector:
            await collector.listen("tcp://127.0.0.1:9000", protocol="mplex")
            await collector.wait_failed()

    Files are published together with their index. A collector belongs to the event loop in which
    it is started.

    Args:
        out: Directory of the captures; created if it does not exist.
        sync: When received data counts as durable. "always": after a sync, which is started at once
            and shared by all senders that wait; a number: the same, with at least that many
            seconds between syncs; "none": when the operating system has it.
        rotate_bytes: Publish a file when it has reached this size.
        rotate_seconds: Publish a file that is not empty at this age; 0 stands for one hour.
        limits: See `CollectorLimits`.
        timeouts: Timeouts of the sessions.
        minmux_streams: Ids of Minmux streams that get credit before the peer uses them.
        comment: Comment written into every file.
        wrap_recorder: Called with the recorder factory of each listener; returns the one to use,
            for example to observe the traffic as well.
    """

    def __init__(
        self,
        out: AnyPath,
        *,
        sync: SyncPolicy = "always",
        rotate_bytes: int = 64 * MIB,
        rotate_seconds: float = 10.0,
        limits: CollectorLimits | None = None,
        timeouts: Timeouts | None = None,
        minmux_streams: Sequence[int] = (),
        comment: str = "",
        wrap_recorder: Callable[[RecorderFactory], RecorderFactory] | None = None,
    ) -> None:
        self.out = one_path(out)
        self.stats = CollectorStats()
        self.limits = limits or CollectorLimits()
        self.timeouts = timeouts or Timeouts()
        self.recovered = RecoveryResult()
        """Files of an earlier collector that `start` has published."""
        self.published: list[str] = []
        self._sync = sync
        self._rotation = (rotate_bytes, rotate_seconds or 3600.0)
        self._minmux_streams = list(minmux_streams)
        self._comment = comment
        self._wrap_recorder = wrap_recorder
        self._durable_log: DurableLog | None = None
        self._servers: list[Server] = []
        self._sessions: dict[Session, SessionIngest | None] = {}
        self._sessions_per_host: Counter[str] = Counter()
        self._failed = asyncio.Event()
        self._disk_full = False
        self._closing = False

    def __repr__(self) -> str:
        return f"<polymux collector at {', '.join(self.urls) or 'no URL yet'} into {self.out}>"

    @property
    def durable_log(self) -> DurableLog:
        """The log that all sessions write to; available after `start`."""
        assert self._durable_log is not None, "the collector was not started"
        return self._durable_log

    @property
    def urls(self) -> list[str]:
        """The URLs that the collector listens on."""
        return [server.url for server in self._servers]

    @property
    def failure(self) -> str:
        """Why received data is no longer confirmed; empty while there is no failure."""
        return self.durable_log.failure

    async def start(self) -> None:
        """Publish files that an earlier collector left behind, and begin the first file.

        Raises:
            CaptureError: The directory or the file cannot be created.
        """
        path = os.path.join(self.out, CAPTURE_NAME)
        try:
            os.makedirs(self.out, exist_ok=True)
        except OSError as problem:
            raise CaptureError(f"cannot be made: {problem.strerror}", self.out) from None
        loop = asyncio.get_running_loop()
        self.recovered = await loop.run_in_executor(None, partial(recover_and_index, path))
        size, seconds = self._rotation
        writer = RotatingWriter(
            path, max_bytes=size, max_seconds=seconds, sync="none", index=True, background=True,
            comment=self._comment,
        )  # fmt: skip
        self._durable_log = DurableLog(writer, self._sync, self._on_disk_full, self._failed.set)

    async def listen(self, url: str, protocol: str, *, tls: ssl.SSLContext | None = None) -> str:
        """Accept sessions at a URL.

        Args:
            url: tcp://, tls://, unix://, ws:// or wss://; port 0 takes a free port.
            protocol: Protocol string of the sessions, as for `polymux.serve`.
            tls: Server context; needed for tls:// and wss://.

        Returns:
            The URL with the actual port.

        Raises:
            BadUrl: The URL is invalid, or cannot be listened on.
        """
        limits = Limits(
            max_streams=self.limits.streams,
            accept_backlog=max(128, self.limits.streams),
            session_buffer_bytes=self.limits.session_buffer_bytes,
        )
        recorder: RecorderFactory = Recorder(self.durable_log)
        if self._wrap_recorder is not None:
            recorder = self._wrap_recorder(recorder)
        server = await serve(
            self._handle_session,
            url,
            protocol=protocol,
            limits=limits,
            timeouts=self.timeouts,
            tls=tls,
            recorder=recorder,
        )
        self._servers.append(server)
        return server.url

    async def wait_failed(self) -> None:
        """Wait until a write or sync fails; without a failure, until cancelled.

        Raises:
            NotDurable: Always, when it ends by itself.
        """
        await self._failed.wait()
        raise NotDurable(self.failure)

    async def close(self, grace: float = 5.0) -> list[str]:
        """Stop listening, wait for open streams, close the sessions and publish the last file.

        Data of streams that are not finished by then was not confirmed beyond what is durable.

        Args:
            grace: Seconds that open streams have to finish.

        Returns:
            The names of all published files.

        Raises:
            CaptureError: The last file could not be published.
        """
        if self._closing:
            return self.published
        self._closing = True
        for server in self._servers:
            if server.listener is not None:
                server.listener.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while self.stats.open_streams and loop.time() < deadline and not self._failed.is_set():
            await asyncio.sleep(0.01)
        try:
            if self._sessions and not self.failure:
                async with asyncio.timeout(max(1.0, grace)):
                    await self.durable_log.wait_durable()
        except (NotDurable, TimeoutError) as problem:
            log.warning("the last bytes are not durable: %s", problem or "the disk is too slow")
        await asyncio.gather(*(server.close() for server in self._servers))
        self.published = await self.durable_log.close()
        return self.published

    async def __aenter__(self) -> Collector:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    # Sessions

    async def _handle_session(self, session: Session) -> None:
        """Serve one session until it ends."""
        host = session.peer.rpartition(":")[0]
        reason = self._reject_reason(host)
        if reason:
            self.stats.rejected += 1
            log.warning("%s rejected: %s", session, reason)
            session.abort(reason)
            return
        ingest = SessionIngest(
            session, self.durable_log, self.stats.stream_count_changed, self._minmux_streams
        )
        self.stats.sessions += 1
        self.stats.open += 1
        self._sessions_per_host[host] += 1
        self._sessions[session] = ingest
        self._divide_memory()
        if self._disk_full:
            session.read_backpressure.hold(True)
        try:
            await ingest.run()
        finally:
            self.stats.open -= 1
            self._sessions_per_host[host] -= 1
            if not self._sessions_per_host[host]:
                del self._sessions_per_host[host]
            del self._sessions[session]
            self._divide_memory()

    def _reject_reason(self, host: str) -> str:
        limits = self.limits
        if self.durable_log.failure:
            return self.durable_log.failure
        if self.stats.open >= limits.clients:
            return f"limit clients={limits.clients}: that many sessions are open"
        if limits.per_host and self._sessions_per_host[host] >= limits.per_host:
            return f"limit per_host={limits.per_host}: that many sessions of this address are open"
        return ""

    def _divide_memory(self) -> None:
        """Give every session an equal share of the memory limit."""
        limits = self.limits
        share = max(MIN_SESSION_BUFFER_BYTES, limits.buffer_bytes // max(1, len(self._sessions)))
        for session in self._sessions:
            session.endpoint.limits.session_buffer_bytes = min(limits.session_buffer_bytes, share)

    def _on_disk_full(self, full: bool) -> None:
        """Pause reading from all sessions while the disk is full."""
        self._disk_full = full
        for session in self._sessions:
            session.read_backpressure.hold(full)


async def collect(
    url: str,
    *,
    protocol: str,
    out: AnyPath,
    tls: ssl.SSLContext | None = None,
    sync: SyncPolicy = "always",
    rotate_bytes: int = 64 * MIB,
    rotate_seconds: float = 10.0,
    limits: CollectorLimits | None = None,
    timeouts: Timeouts | None = None,
    minmux_streams: Sequence[int] = (),
) -> Collector:
    """Start a collector that listens on one URL.

    Args:
        url: See `Collector.listen`.
        protocol: See `Collector.listen`.
        out: Directory of the captures.
        tls: See `Collector.listen`.
        sync: See `Collector`, also for the other arguments.

    Returns:
        The started collector. The caller closes it with `Collector.close`.

    Raises:
        BadUrl: The URL is invalid, or cannot be listened on.
        CaptureError: The directory or the file cannot be created.
    """
    collector = Collector(
        out, sync=sync, rotate_bytes=rotate_bytes, rotate_seconds=rotate_seconds,
        limits=limits, timeouts=timeouts, minmux_streams=minmux_streams,
    )  # fmt: skip
    await collector.start()
    try:
        await collector.listen(url, protocol, tls=tls)
    except BaseException:
        await collector.close(0)
        raise
    return collector


def recover_and_index(path: str) -> RecoveryResult:
    """Publish files left behind by a killed writer, and write missing index files."""
    result = recover_partial_captures(path)
    for _, name in rotation_files(path):
        if name.endswith(PART_SUFFIX) or os.path.exists(f"{name}.idx"):
            continue
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{name}.idx{PART_SUFFIX}")  # partial index of a killed writer
            write_index(name)
        except (PolymuxError, OSError) as problem:  # an index is optional
            result.problems.append(f"{name}: has no index: {problem}")
    return result
