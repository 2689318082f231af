"""The collector: takes in sessions of any protocol and lands their bytes as captures.

A sender is told that something was processed, by credit, by the answer to its end or by a reply,
only when it is durable. What a killed collector leaves behind is published by the next one.
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
from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.pcapng.rotation import RotatingWriter, rotation_files
from polymux.capture.pcapng.writer import PART_SUFFIX
from polymux.core.errors import CaptureError, PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.record.crash_recovery import RecoveryResult, recover_partial_captures
from polymux.record.durable_log import DurableLog, NotDurable, SyncPolicy
from polymux.record.ingest import SessionIngest
from polymux.record.session_recorder import Recorder

log = logging.getLogger("polymux.record")

MIB = 1024 * 1024
CAPTURE_NAME = "collect.pcapng"
MIN_SESSION_BUFFER_BYTES = (
    64 * 1024
)  # bytes a session without credit may have waiting, however many there are


@dataclass
class CollectorLimits:
    """What one client and all of them may take. 0 of `per_host` means as many as in all."""

    clients: int = 1024  # sessions at once
    per_host: int = 0  # of them from one address
    streams: int = 1024  # streams a session may have open
    buffer_bytes: int = 256 * MIB  # bytes in memory, all sessions together
    session_buffer_bytes: int = 16 * MIB  # and one of them


@dataclass
class CollectorStats:
    """What has come so far."""

    sessions: int = 0
    open: int = 0
    rejected: int = 0
    streams: int = 0
    open_streams: int = 0

    def stream_count_changed(self, change: int) -> None:
        self.open_streams += change
        self.streams += max(0, change)


class Collector:
    """Listens wherever it is told to and writes `OUT/collect-00001.pcapng` and so on.

        async with Collector("captures") as collector:
            await collector.listen("tcp://127.0.0.1:9000", protocol="mplex")
            await collector.wait_failed()

    `sync` is when what came counts as durable: "always" (syncs shared by all who wait), seconds
    between syncs, or "none" for what the operating system has. Files are published, with their
    index, once they hold `rotate_bytes` or are `rotate_seconds` old. `early` are ids of Minmux
    streams that get credit before the peer says anything on them. `around` is put around what
    records each session, to see what passes too.
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
        """What an earlier collector had left in the directory."""
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
        assert self._durable_log is not None, "the collector was not started"
        return self._durable_log

    @property
    def urls(self) -> list[str]:
        """The URLs that the collector listens on."""
        return [server.url for server in self._servers]

    @property
    def failure(self) -> str:
        """Why nothing can be promised any more; empty while all is well."""
        return self.durable_log.failure

    async def start(self) -> None:
        """Publish what was left in the directory, and begin the first file."""
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
        """Take sessions of `protocol` at `url`; returns where, as port 0 takes a free one."""
        bounds = self.limits
        limits = Limits(
            max_streams=bounds.streams, accept_backlog=max(128, bounds.streams),
            session_buffer_bytes=bounds.session_buffer_bytes,
        )  # fmt: skip
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
        """Wait for the disk to fail, for ever if it does not; raises NotDurable then."""
        await self._failed.wait()
        raise NotDurable(self.failure)

    async def close(self, grace: float = 5.0) -> list[str]:
        """Stop listening, let streams that are under way finish within `grace` seconds, end the
        sessions, and publish. Returns the files published; raises CaptureError if the last could
        not be.

        What is cut by the end of the grace was not told to be processed beyond what is durable.
        """
        if self._closing:
            return self.published
        self._closing = True
        for server in self._servers:
            if server.listener is not None:
                server.listener.close()
        loop = asyncio.get_running_loop()
        limit = loop.time() + grace
        while self.stats.open_streams and loop.time() < limit and not self._failed.is_set():
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

    # --- sessions

    async def _handle_session(self, session: Session) -> None:
        """The life of one session."""
        host = session.peer.rpartition(":")[0]
        refusal = self._reject_reason(host)
        if refusal:
            self.stats.rejected += 1
            log.warning("%s turned away: %s", session, refusal)
            session.abort(refusal)
            return
        holding = SessionIngest(
            session, self.durable_log, self.stats.stream_count_changed, self._minmux_streams
        )
        self.stats.sessions += 1
        self.stats.open += 1
        self._sessions_per_host[host] += 1
        self._sessions[session] = holding
        self._divide_memory()
        if self._disk_full:
            session.read_backpressure.hold(True)
        try:
            await holding.run()
        finally:
            self.stats.open -= 1
            self._sessions_per_host[host] -= 1
            if not self._sessions_per_host[host]:
                del self._sessions_per_host[host]
            del self._sessions[session]
            self._divide_memory()

    def _reject_reason(self, host: str) -> str:
        bounds = self.limits
        if self.durable_log.failure:
            return self.durable_log.failure
        if self.stats.open >= bounds.clients:
            return f"limit clients={bounds.clients}: so many sessions are open"
        if bounds.per_host and self._sessions_per_host[host] >= bounds.per_host:
            return f"limit per_host={bounds.per_host}: so many sessions come from there"
        return ""

    def _divide_memory(self) -> None:
        """Divide the memory between the sessions: together they never hold more than the limit."""
        bounds = self.limits
        share = max(MIN_SESSION_BUFFER_BYTES, bounds.buffer_bytes // max(1, len(self._sessions)))
        for session in self._sessions:
            session.endpoint.limits.session_buffer_bytes = min(bounds.session_buffer_bytes, share)

    def _on_disk_full(self, full: bool) -> None:
        """No room on the disk: nobody is read from until there is."""
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
    """A collector that listens at one URL; see `Collector`. Close it, or use it in `async with`
    a `Collector`, when done."""
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
    """Publish what was left, and give every file that has none its index."""
    found = recover_partial_captures(path)
    for _, name in rotation_files(path):
        if name.endswith(PART_SUFFIX) or os.path.exists(f"{name}.idx"):
            continue
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{name}.idx{PART_SUFFIX}")  # its writer was killed
            write_index(name)
        except (PolymuxError, OSError) as problem:  # readers do without
            found.problems.append(f"{name}: has no index: {problem}")
    return found
