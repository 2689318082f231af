"""`RecordingProxy`: a proxy that records every byte before it forwards it.

Each chunk is first given to the operating system as a packet of the capture, and then to the other
peer. So everything that a peer has received is in the file, even if the proxy is killed.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from polymux.aio.transports.tls import AsyncioListenerLoop
from polymux.capture.packets.flows import endpoint_text
from polymux.capture.pcapng.comments import hint_comment
from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.writer import PcapngWriter
from polymux.capture.synthesis.tcp_connection import PacketSink
from polymux.core.limits import Limits
from polymux.core.redaction import Redaction
from polymux.core.side import ACCEPTOR, DIALER
from polymux.live.connection_gate import ConnectionGate, Place, gate_limits
from polymux.live.errors import Unreachable, describe_os_error
from polymux.live.listener import Inherited, Listener, open_listener
from polymux.live.log_limiter import LogLimiter
from polymux.live.one_of import ALONE, OneOf
from polymux.live.peer_identity import AllowedPeers, identity_of, warn_if_open_to_all
from polymux.live.urls import Address, BadUrl, parse_url
from polymux.protocols.registry import parse_protocol
from polymux.record.audit_log import AuditLog
from polymux.record.disk_full_queue import DiskFullQueue
from polymux.record.forwarding_budget import ForwardingBudget
from polymux.record.made_up_ports import MadeUpPorts
from polymux.record.proxy_connection import (
    HOLD_DISK_FULL,
    ProxyConnection,
    ProxySide,
)
from polymux.record.secret_log import SecretLog

log = logging.getLogger("polymux.record")

TICK_SECONDS = 0.25  # how often the writer checks its sync and rotation intervals
CONNECT_TIMEOUT_SECONDS = 10.0  # for connecting to the upstream, and for a TLS handshake
CLOSE_TIMEOUT_SECONDS = 2.0  # for forwarding recorded data when the proxy is closed
# A Unix socket has no addresses: this host stands for both ends, this port for the listening one.
UNIX_SOCKET_HOST = "127.0.0.1"
UNIX_SOCKET_PORT = 1

HostPort = tuple[str, int]


@dataclass
class ProxyStats:
    """Counters of a recording proxy since its start.

    Attributes:
        connections: Connections accepted.
        open: Connections that are open.
        refused: Connections that were not forwarded because the upstream could not be reached, the
            dialer is not allowed, or its TLS handshake failed.
        bytes_dialer: Bytes sent by the dialers.
        bytes_acceptor: Bytes sent by the upstream.
        dropped_bytes: Bytes of packets that waited for disk space when the proxy was closed; they
            were neither recorded nor forwarded.
    """

    connections: int = 0
    open: int = 0
    refused: int = 0
    bytes_dialer: int = 0
    bytes_acceptor: int = 0
    dropped_bytes: int = 0

    def add_bytes(self, side: int, size: int) -> None:
        """Count bytes sent by `side`."""
        if side == DIALER:
            self.bytes_dialer += size
        else:
            self.bytes_acceptor += size


TrafficObserver = Callable[[str], Callable[[int, bytes], None]]
"""Called with the address of a dialer; returns a callback that gets the sending side and the bytes
of every chunk of its connection."""


class RecordingProxy:
    """Listens on one URL, forwards connections to another, and records the traffic.

    Use it in `async with`, or call `start` and `close`. TLS is terminated here, so the capture has
    plain text.

    Args:
        listen: URL to listen on (tcp, tls, ws, wss or unix); port 0 takes a free port.
        upstream: URL to forward to (the same schemes).
        sink: Where packets are written. The caller closes it after the proxy.
        protocol: Protocol string, written into the capture as a comment so that the analysis need
            not detect it; empty if not known.
        tls: Server context; needed if `listen` is tls:// or wss://.
        upstream_tls: Client context for a tls:// or wss:// upstream; None verifies it with the CAs
            of the system.
        server_hostname: Host name to verify the upstream against; None for that of its URL.
        note: Another line for the comment.
        on_full: What happens while the disk is full. "gap": traffic continues and is not recorded.
            "block": traffic waits, and so do new connections; `sink` must then be a PcapngWriter
            or a RotatingWriter.
        observer: See `TrafficObserver`.
        limits: `listen_backlog`, `max_sessions`, `max_sessions_per_address`, `max_half_open` and
            `server_buffer_bytes` of it apply here; `Limits()` by default.
        allow: Dialers that may connect, as for `polymux.serve`.
        audit: Where connections and refusals are logged.
        secrets: Of the contexts `tls` and `upstream_tls`. The secrets of a connection's TLS are
            then written before its first data, so that other captures of it can be opened; `sink`
            must be a PcapngWriter or a RotatingWriter.
        redaction: What is recorded of the content; None for all of it. Needs `protocol`, without a
            preamble.
        inherited: Sockets that listen at `listen` already. What has bound them has also warned
            about an address that is open to all.
        one_of: Which of several processes that record the dialers of one address this one is.

    Raises:
        BadUrl: A URL is invalid, or `listen` needs `tls`.
        ValueError: `redaction` is given without a protocol that it can decode.
    """

    def __init__(
        self,
        listen: str,
        upstream: str,
        sink: PacketSink,
        *,
        protocol: str = "",
        tls: ssl.SSLContext | None = None,
        upstream_tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        note: str = "",
        on_full: Literal["gap", "block"] = "gap",
        observer: TrafficObserver | None = None,
        limits: Limits | None = None,
        allow: Sequence[str] | None = None,
        audit: AuditLog | None = None,
        secrets: SecretLog | None = None,
        redaction: Redaction | None = None,
        inherited: Inherited | None = None,
        one_of: OneOf = ALONE,
    ) -> None:
        if redaction is not None and (
            not protocol or "preamble" in parse_protocol(protocol).options
        ):
            raise ValueError("redaction needs the protocol, and none behind a preamble")
        self.protocol = protocol
        self.redaction = redaction
        self.address = parse_url(listen)
        self.upstream = parse_url(upstream)
        for address in (self.address, self.upstream):
            if address.scheme not in ("tcp", "tls", "ws", "wss", "unix"):
                raise BadUrl(f"{address}: a recording proxy takes tcp, tls, ws, wss or unix URLs")
        if is_secure(self.address) and tls is None:
            raise BadUrl(f"{self.address}: needs a certificate to listen with")
        self.allowed = AllowedPeers(allow)
        self.audit = audit
        self.sink = sink
        self.disk_full_queue: DiskFullQueue | None = None
        if on_full == "block":
            # The other sinks have no `offer_burst`.
            assert isinstance(sink, PcapngWriter | RotatingWriter), "block needs a pcapng writer"
            self.disk_full_queue = DiskFullQueue(sink, self._on_disk_full)
        self.stats = ProxyStats()
        self.observer = observer
        named = protocol
        if redaction is not None and "profile" in parse_protocol(protocol).options:
            named = ""  # a profile is a path of this host
        self.comment = hint_comment(named or None, "middle")
        if note:
            self.comment += f"\n{note}"
        self.failure = ""
        """Why the upstream could not be reached the last time; empty if it could."""
        self._tls = tls
        self._upstream_tls = upstream_tls
        self._server_hostname = server_hostname
        self._limits = limits or Limits()
        self.gate = ConnectionGate(gate_limits(self._limits), self._on_limit)
        """Counts the connections; `gate.counters` has the limits that were hit."""
        self._secrets = secrets
        self._listener: Listener | None = None
        self._connections: set[ProxyConnection] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._inherited = inherited
        self._ports = MadeUpPorts(one_of)
        self.budget = ForwardingBudget(self._limits.server_buffer_bytes)
        """Bounds what was read and not yet forwarded."""
        self._log_limiter = LogLimiter(log)
        self._lost_packets = 0

    def __repr__(self) -> str:
        return f"<polymux recording proxy at {self.address} to {self.upstream}>"

    @property
    def url(self) -> str:
        """The URL that the proxy listens on, with the actual port after `start`."""
        return str(self.address)

    async def start(self) -> None:
        """Start to listen.

        Raises:
            BadUrl: The URL cannot be listened on.
        """
        address = self.address
        try:
            secure = is_secure(address)
            self._listener = await open_listener(
                address,
                self._accept,
                self.gate,
                self._limits.listen_backlog,
                self._tls if secure else None,
                CONNECT_TIMEOUT_SECONDS,
                self._on_refused,
                inherited=self._inherited,
                loop=AsyncioListenerLoop(asyncio.get_running_loop()),
            )
            self.address = self._listener.address
            if self._inherited is None:
                warn_if_open_to_all(self.address, self._tls if secure else None, self.allowed)
        except OSError as problem:
            raise BadUrl(f"{address}: cannot listen there: {describe_os_error(problem)}") from None
        self._tick()

    async def close(self) -> None:
        """Stop listening and recording, and close the open connections.

        Data that was recorded is forwarded first, for at most 2 seconds. The capture gets no ends
        of these connections: the peers did not end them.
        """
        if self._ticker is not None:
            self._ticker.cancel()
        if self._listener is not None:
            self._listener.close()
        if self.disk_full_queue is not None:
            self.stats.dropped_bytes += self.disk_full_queue.discard_waiting()
        for connection in list(self._connections):
            connection.stop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_TIMEOUT_SECONDS
        while self._connections and loop.time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    async def __aenter__(self) -> RecordingProxy:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    # Interface for ProxyConnection

    @property
    def packet_sink(self) -> PacketSink:
        """Where connections write: the sink, or the queue in front of it."""
        return self.sink if self.disk_full_queue is None else self.disk_full_queue

    def read_buffer(self) -> memoryview:
        """Return the buffer for the next read of a connection."""
        return self.budget.read_buffer(self.stats.open)

    @property
    def disk_full(self) -> bool:
        """Whether traffic waits for disk space."""
        return self.disk_full_queue is not None and self.disk_full_queue.full

    def _on_limit(self, name: str) -> None:
        """A limit on connections was hit."""
        if self.audit is not None:
            self.audit.limit_hit("proxy", name)

    def write_secrets(self) -> None:
        """Write the secrets of connections whose TLS handshakes are complete."""
        if self._secrets is not None and isinstance(self.sink, PcapngWriter | RotatingWriter):
            self._secrets.write_to(self.sink)

    def connection_opened(self, connection: ProxyConnection) -> None:
        self.stats.connections += 1
        self.stats.open += 1
        self._connections.add(connection)
        connection.number = self.stats.connections
        if self.audit is not None:
            dialer = connection.sides[DIALER].transport
            connection.dialer_name = endpoint_text(*peer_address(dialer, 0))
            identity = identity_of(dialer)
            self.audit.write(
                "connected",
                connection=connection.number,
                peer=connection.dialer_name,
                identity=str(identity) if identity is not None else None,
            )

    def connection_refused(self, dialer: asyncio.Transport | None, reason: str) -> None:
        """Count and log a dialer that is not allowed."""
        peer = endpoint_text(*peer_address(dialer, 0))
        self._log_limiter.warn("refused", f"{peer} refused: {reason}")
        self._on_refused(peer, reason)

    def connection_closed(self, connection: ProxyConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self.stats.open -= 1
            if self.audit is not None:
                self.audit.write(
                    "disconnected",
                    connection=connection.number,
                    peer=connection.dialer_name,
                    bytes_dialer=connection.forwarded[DIALER],
                    bytes_acceptor=connection.forwarded[ACCEPTOR],
                )

    def endpoint_addresses(
        self, dialer: asyncio.Transport | None, acceptor: asyncio.Transport | None
    ) -> tuple[HostPort, HostPort]:
        """Return the addresses of both peers. A dialer without one gets a unique port."""
        return peer_address(dialer, self._ports.take()), peer_address(acceptor, UNIX_SOCKET_PORT)

    async def connect_upstream(self, connection: ProxyConnection) -> None:
        """Connect to the upstream for an accepted connection; if that fails, close it."""
        loop = asyncio.get_running_loop()
        upstream = self.upstream
        protocol = connection.sides[ACCEPTOR]
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                if upstream.scheme == "unix":
                    await loop.create_unix_connection(lambda: protocol, upstream.path)
                    return
                context = None
                if is_secure(upstream):
                    context = self._upstream_tls or ssl.create_default_context()
                await loop.create_connection(
                    lambda: protocol,
                    upstream.host,
                    upstream.port,
                    ssl=context,
                    server_hostname=(self._server_hostname or upstream.host) if context else None,
                )
        except TimeoutError:
            self._on_connect_failed(connection, f"no answer within {CONNECT_TIMEOUT_SECONDS:g} s")
        except (OSError, UnicodeError) as problem:  # UnicodeError: an invalid host name
            self._on_connect_failed(connection, describe_os_error(problem))

    # Private helpers

    def _accept(self, place: Place) -> ProxySide:
        return ProxyConnection(self, place).sides[DIALER]

    def _on_refused(self, peer: str, reason: str) -> None:
        """A dialer was refused, and that was logged."""
        self.stats.refused += 1
        if self.audit is not None:
            self.audit.refused(peer, reason)

    def _on_connect_failed(self, connection: ProxyConnection, reason: str) -> None:
        self.stats.refused += 1
        self.failure = str(Unreachable(f"{self.upstream}: {reason}"))
        self._log_limiter.warn("upstream", f"not forwarded: {self.failure}")
        connection.stop()

    def _on_disk_full(self, full: bool) -> None:
        for connection in list(self._connections):
            for side in connection.sides:
                if full:
                    side.hold(HOLD_DISK_FULL)
                else:
                    side.release(HOLD_DISK_FULL)
            if not full:
                connection.start()

    def _tick(self) -> None:
        """Let the writer keep its intervals without traffic, and log when it starts to lose
        packets."""
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        if self.disk_full:
            for connection in list(self._connections):
                connection.close_lost_sides()
        sink = self.sink
        if not isinstance(sink, PcapngWriter | RotatingWriter):
            return
        sink.tick()
        loss = sink.loss
        if loss.packets and not self._lost_packets:
            log.warning(
                "%s: traffic continues and is not recorded; missing packets are counted", loss.error
            )
        self._lost_packets = loss.packets


def is_secure(address: Address) -> bool:
    return address.scheme in ("tls", "wss")


def peer_address(transport: asyncio.Transport | None, port: int) -> HostPort:
    """Return the address of a peer; for a Unix socket, the local host and `port`."""
    address = transport.get_extra_info("peername") if transport is not None else None
    if isinstance(address, tuple):
        return str(address[0]), int(address[1])
    return UNIX_SOCKET_HOST, port
