"""`Collector`: accepts sessions of any protocol and stores their bytes as captures.

A sender learns that its data was processed from returned credit, from the answer to the end of its
stream, or from a reply. The collector sends none of these before the data is durable. Files that a
killed collector leaves behind are published by the next one in the same directory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from polymux.aio import Server, Session
from polymux.aio.server import ServerBounds, serve_within
from polymux.capture import write_index
from polymux.capture.io.atomic_write import PART_SUFFIX
from polymux.capture.io.paths import INDEX_SUFFIX, AnyPath, make_private_folders, one_path
from polymux.capture.pcapng.rotation import RotatingWriter, rotation_files
from polymux.core.errors import CaptureError, PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.live.connection_gate import NO_ADDRESS, ConnectionGate, GateLimits, address_group
from polymux.live.hooks import LimitMeter, RecorderFactory, SessionMeter, SessionRecorder
from polymux.live.listener import DESCRIPTOR_LIMIT, Inherited
from polymux.live.one_of import ALONE, OneOf
from polymux.live.session.server_budget import ServerBudget
from polymux.live.session.socket_options import transport_info
from polymux.live.transport import Transport
from polymux.record.crash_recovery import RecoveryResult, recover_partial_captures
from polymux.record.disk_quota import FolderUse, QuotaWriter
from polymux.record.durable_log import DurableLog, NotDurable, SyncPolicy
from polymux.record.held_sessions import HeldSessions
from polymux.record.ingest import SessionIngest
from polymux.record.peer_condition import PeerCondition, peer_condition
from polymux.record.process_files import path_of_process, paths_of_all
from polymux.record.session_recorder import Recorder

log = logging.getLogger("polymux.record")

MIB = 1024 * 1024
CAPTURE_NAME = "collect.pcapng"
MAX_WAITING_BURSTS = 10_000  # on a full disk, some kilobytes of memory each
MIN_DISK_BYTES = 512 * 1024  # of `max_disk` for each process: it holds what one read gives, twice
PEER_CHECK_SECONDS = 1.0  # how often lost peers are looked for while the disk is full


@dataclass
class CollectorLimits:
    """Limits of a collector.

    Attributes:
        clients: Sessions open at a time; further connections are rejected.
        per_host: Sessions open at a time from one address; 0 for no limit besides `clients`, None
            for three quarters of them.
        half_open: Connections at a time whose handshake is not done.
        streams: Streams of one session open at a time.
        buffer_bytes: Received bytes in memory that are not durable, all sessions together, with
            1 KiB for each stream that only has credit.
        session_buffer_bytes: The same for one session.
        listen_backlog: Connections that the kernel holds until they are accepted.
        max_disk: Bytes of all files in the directory of the captures; at this limit nothing is read
            or confirmed until files were removed. At least `MIN_DISK_BYTES` for each process; 0 for
            no limit.
    """

    clients: int = 1024
    per_host: int | None = None
    streams: int = 1024
    buffer_bytes: int = 256 * MIB
    session_buffer_bytes: int = 16 * MIB
    listen_backlog: int = Limits().listen_backlog
    half_open: int = Limits().max_half_open
    max_disk: int = 0

    def gate_limits(self) -> GateLimits:
        """Return the bounds on connections."""
        per_host = -(-3 * self.clients // 4) if self.per_host is None else self.per_host
        return GateLimits(
            self.clients,
            per_host,
            max(1, self.half_open),
            ("clients", "per_host", "half_open"),
            "CollectorLimits",
        )


@dataclass
class CollectorStats:
    """Counters of a collector since its start.

    Attributes:
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


class TurnedAway:
    """The recorder of a session that is rejected: nothing of it is recorded.

    While the disk is full, the beginning and the end of each session wait in memory, and what this
    side writes. Beyond `MAX_WAITING_BURSTS` of them, new sessions leave no trace, and sessions that
    go on writing end.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def begin(self, transport: Transport) -> Transport:
        return transport

    def read(self, data: bytes) -> None:
        """Discard what the session has received."""

    def ended(self) -> None:
        """Discard the end of the peer's direction."""

    def closed(self, error: Exception | None) -> None:
        """Discard the end of the connection."""


class Collector:
    """Accepts sessions on any number of URLs and writes `OUT/collect-00001.pcapng` and so on, or
    `OUT/collect-p1-00001.pcapng` if it is the first of several processes.

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
        rotate_bytes: Publish a file when it has reached this size, or half of `max_disk`, divided
            by the processes: only published files can be removed.
        rotate_seconds: Publish a file that is not empty at this age; 0 stands for one hour.
        limits: See `CollectorLimits`.
        timeouts: Timeouts of the sessions.
        minmux_streams: Ids of Minmux streams that get credit before the peer uses them.
        comment: Comment written into every file.
        meter: Notified of sessions and refused peers, such as an `AuditLog`.
        wrap_recorder: Called with the recorder factory of each listener; returns the one to use,
            for example to observe the traffic as well.
        one_of: Which of several processes that collect into the same directory this one is.
            `limits` are its own.
        disk_count: Of `disk_quota.shared_count_file`: processes that have the same one count their
            files together, so that `max_disk` bounds those of all.

    Raises:
        ValueError: `max_disk` is too small for so many processes.
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
        meter: SessionMeter | None = None,
        wrap_recorder: Callable[[RecorderFactory], RecorderFactory] | None = None,
        one_of: OneOf = ALONE,
        disk_count: int | None = None,
    ) -> None:
        self.out = one_path(out)
        self.stats = CollectorStats()
        self.limits = limits or CollectorLimits()
        self.timeouts = timeouts or Timeouts()
        self.recovered = RecoveryResult()
        """Files of an earlier collector that `start` has published."""
        self.published: list[str] = []
        self._sync = sync
        self._rotation = (
            fitting_rotation(rotate_bytes, self.limits.max_disk, one_of.count),
            rotate_seconds or 3600.0,
        )
        self._minmux_streams = list(minmux_streams)
        self._comment = comment
        self._meter = meter
        self._wrap_recorder = wrap_recorder
        self._one_of = one_of
        self._disk_count = disk_count
        self._durable_log: DurableLog | None = None
        self._servers: list[Server] = []
        self._sessions: dict[Session, None] = {}  # oldest first
        self._bounds = ServerBounds(
            ConnectionGate(self.limits.gate_limits(), self._on_limit, self._end_waiting_session),
            ServerBudget(self.limits.buffer_bytes, self.limits.clients),
        )
        self._failed = asyncio.Event()
        self._disk_full = False
        self._peer_check: asyncio.TimerHandle | None = None  # while the disk is full
        self._held = HeldSessions(MAX_WAITING_BURSTS)
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
            make_private_folders(self.out)
        except OSError as problem:
            raise CaptureError(f"cannot be made: {problem.strerror}", self.out) from None
        loop = asyncio.get_running_loop()
        self.recovered = await loop.run_in_executor(None, partial(recover_and_index, path))
        size, seconds = self._rotation
        writer = RotatingWriter(
            path_of_process(path, self._one_of),
            max_bytes=size,
            max_seconds=seconds,
            sync="none",
            index=True,
            background=True,
            comment=self._comment,
        )
        most = self.limits.max_disk
        use = FolderUse(self.out, self._disk_count)
        sink = QuotaWriter(writer, use, most) if most else None
        self._durable_log = DurableLog(
            writer, self._sync, self._on_disk_full, self._failed.set, sink
        )

    async def listen(
        self,
        url: str,
        protocol: str,
        *,
        tls: ssl.SSLContext | None = None,
        origins: Sequence[str] = (),
        allow: Sequence[str] | None = None,
        token: str | bytes | None = None,
        inherited: Inherited | None = None,
    ) -> str:
        """Accept sessions at a URL.

        Args:
            url: tcp://, tls://, unix://, ws:// or wss://; port 0 takes a free port.
            protocol: Protocol string of the sessions, as for `polymux.serve`.
            tls: Server context; needed for tls:// and wss://.
            origins: Web pages that may connect, as for `polymux.serve`.
            allow: Senders that may connect, as for `polymux.serve`.
            token: What senders have to prove to know, as for `polymux.serve`.
            inherited: Sockets that listen at the URL already.

        Returns:
            The URL with the actual port.

        Raises:
            BadUrl: The URL is invalid, or cannot be listened on.
        """
        limits = Limits(
            max_streams=self.limits.streams,
            accept_backlog=max(128, self.limits.streams),
            session_buffer_bytes=self.limits.session_buffer_bytes,
            server_buffer_bytes=self.limits.buffer_bytes,
            listen_backlog=self.limits.listen_backlog,
        )
        recorder: RecorderFactory = Recorder(self.durable_log, one_of=self._one_of)
        if self._wrap_recorder is not None:
            recorder = self._wrap_recorder(recorder)
        recorder = partial(self._recorder_for, recorder)
        server = await serve_within(
            self._bounds,
            self._handle_session,
            url,
            protocol,
            limits,
            self.timeouts,
            tls,
            recorder=recorder,
            meter=self._meter,
            origins=origins,
            allow=allow,
            token=token,
            inherited=inherited,
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
        except NotDurable as problem:
            log.warning("the last bytes are not durable: %s", problem)
        except TimeoutError:
            log.warning(
                "the last bytes are not durable: the disk did not sync them within %g s",
                max(1.0, grace),
            )
        await asyncio.gather(*(server.close() for server in self._servers))
        if self._peer_check is not None:
            self._peer_check.cancel()
        self.published = await self.durable_log.close()
        return self.published

    async def __aenter__(self) -> Collector:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    # Sessions

    def _recorder_for(self, make: RecorderFactory, protocol: str, side: int) -> SessionRecorder:
        """Return the recorder of a new session, or a `TurnedAway` if it cannot be recorded."""
        waiting = self.durable_log.disk_full_queue.waiting_count
        if waiting < MAX_WAITING_BURSTS:
            return make(protocol, side)
        return TurnedAway(f"the disk is full, and {waiting} packets wait for space")

    async def _handle_session(self, session: Session) -> None:
        """Serve one session until it ends."""
        reason = self.failure
        if isinstance(session.recorder, TurnedAway):
            reason = reason or session.recorder.reason
        if reason:
            self.stats.rejected += 1
            self._bounds.gate.log_limiter.warn("failed", f"{session} rejected: {reason}")
            if self._meter is not None:
                self._meter.refused(session.peer, reason)
            session.abort(reason)
            return
        ingest = SessionIngest(
            session, self.durable_log, self.stats.stream_count_changed, self._minmux_streams
        )
        self.stats.sessions += 1
        self.stats.open += 1
        self._sessions[session] = None
        if self._disk_full:
            session.read_backpressure.hold(True)
        try:
            await ingest.run()
        finally:
            self.stats.open -= 1
            self._sessions.pop(session, None)

    def _on_limit(self, name: str) -> None:
        """A connection was rejected, or lost its place to another."""
        if name != DESCRIPTOR_LIMIT:
            self.stats.rejected += 1
        if isinstance(self._meter, LimitMeter):
            self._meter.limit_hit("collector", name)

    def _on_disk_full(self, full: bool) -> None:
        """Pause reading from all sessions while the disk is full."""
        self._disk_full = full
        for session in self._sessions:
            session.read_backpressure.hold(full)
        if self._peer_check is not None:
            self._peer_check.cancel()
            self._peer_check = None
        if full:
            self._held = HeldSessions(MAX_WAITING_BURSTS)
            self._schedule_peer_check()

    def _schedule_peer_check(self) -> None:
        loop = asyncio.get_running_loop()
        self._peer_check = loop.call_later(PEER_CHECK_SECONDS, self._check_held_sessions)

    def _check_held_sessions(self) -> None:
        """End the sessions whose connection is lost: while they are not read, nothing else does.

        End also those of which too much waits in memory.
        """
        for session in list(self._sessions):
            if peer_condition(session.transport) is PeerCondition.GONE:
                session.abort("the connection was lost while the disk was full")
        waiting = self.durable_log.disk_full_queue.waiting_count
        for session in self._held.overdue(self._sessions, waiting):
            session.abort("the disk is full, and too much of this session waits for space")
        self._schedule_peer_check()

    def _end_waiting_session(self, addresses: list[str]) -> bool:
        """Make room while the disk is full: end the oldest session whose peer sends no more.

        What it has sent and the disk has not taken was not confirmed. Return whether there was one.

        Args:
            addresses: Only sessions of these, as the gate groups them.
        """
        if not self._disk_full:
            return False
        for session in list(self._sessions):
            if (
                address_group(session_host(session)) in addresses
                and peer_condition(session.transport) is not PeerCondition.PRESENT
            ):
                del self._sessions[session]  # it gives its place to one connection only
                session.abort("the disk is full, and another peer needs the place")
                return True
        return False


def session_host(session: Session) -> str:
    """Return the address of a session's peer, without its port; `NO_ADDRESS` if it has none."""
    peer = transport_info(session.transport, "peername")
    return str(peer[0]) if isinstance(peer, tuple) else NO_ADDRESS


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
        out,
        sync=sync,
        rotate_bytes=rotate_bytes,
        rotate_seconds=rotate_seconds,
        limits=limits,
        timeouts=timeouts,
        minmux_streams=minmux_streams,
    )
    await collector.start()
    try:
        await collector.listen(url, protocol, tls=tls)
    except BaseException:
        await collector.close(0)
        raise
    return collector


def fitting_rotation(rotate_bytes: int, max_disk: int, processes: int) -> int:
    """Return the size at which files are published.

    The files that are being written have at most half of `max_disk`: the rest can be removed.

    Args:
        rotate_bytes: The size that is asked for; 0: any.
        max_disk: Of `CollectorLimits`.
        processes: That write to the same directory.

    Raises:
        ValueError: `max_disk` is too small for so many processes.
    """
    if not max_disk:
        return rotate_bytes
    least = MIN_DISK_BYTES * processes
    if max_disk < least:
        raise ValueError(
            f"limit max_disk={max_disk} is below {least}, {MIN_DISK_BYTES} for each process "
            f"({processes}); raise it, or 0 for no limit"
        )
    most = max_disk // (2 * processes)
    return min(rotate_bytes or most, most)


def recover_and_index(path: str) -> RecoveryResult:
    """Publish files left behind by a killed writer, and write missing index files."""
    result = recover_partial_captures(path)
    published = [name for base in paths_of_all(path) for _, name in rotation_files(base)]
    for name in published:
        if name.endswith(PART_SUFFIX) or os.path.exists(name + INDEX_SUFFIX):
            continue
        try:
            write_index(name)
        except (PolymuxError, OSError) as problem:  # an index is optional
            result.problems.append(f"{name}: has no index: {problem}")
    return result
