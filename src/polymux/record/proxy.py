"""The tap: a proxy that records every byte before it forwards it.

A chunk is handed to the operating system as a packet of the capture first and to the other peer
second, so whatever a peer has received is in the file, even if the tap is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from polymux.aio.errors import Unreachable, describe_os_error
from polymux.aio.urls import Address, BadUrl, parse_url
from polymux.capture.pcapng.comments import hint_comment
from polymux.capture.pcapng.rotation import RotatingWriter
from polymux.capture.pcapng.writer import PcapngWriter
from polymux.capture.synthesis.tcp_connection import PacketSink
from polymux.record.disk_full_queue import DiskFullQueue
from polymux.record.proxy_connection import (
    ACCEPTOR,
    DIALER,
    HOLD_DISK_FULL,
    ProxyConnection,
    ProxySide,
)

log = logging.getLogger("polymux.record")

TICK_SECONDS = 0.25  # seconds between looks at the writer's clock
CONNECT_TIMEOUT_SECONDS = 10.0  # seconds to connect to the upstream, and for a TLS handshake
CLOSE_TIMEOUT_SECONDS = 2.0  # seconds for what was recorded to leave when the tap is closed
UNIX_SOCKET_HOST = "127.0.0.1"  # stands for both ends of a Unix socket
UNIX_SOCKET_PORT = 1  # and this port for its listening end

HostPort = tuple[str, int]


@dataclass
class ProxyStats:
    """What has passed: connections taken, open and not forwarded, and bytes by who sent them."""

    connections: int = 0
    open: int = 0
    refused: int = 0
    bytes_dialer: int = 0
    bytes_acceptor: int = 0
    dropped_bytes: int = 0
    """Bytes of packets that waited for room on the disk when the tap was closed."""

    def add_bytes(self, side: int, size: int) -> None:
        if side == DIALER:
            self.bytes_dialer += size
        else:
            self.bytes_acceptor += size


TrafficObserver = Callable[[str], Callable[[int, bytes], None]]
"""Given a dialer's address, what is told the side and the bytes of all that passes for it."""


class RecordingProxy:
    """Listens at one URL, connects to another, and writes what passes to `sink`.

    `protocol` goes into the capture as a comment, so that nobody has to guess later; `note` is one
    more line of it. TLS is ended here: `tls` is the context we listen with, `upstream_tls` the one
    we connect with. `on_full`: "gap" lets traffic flow while the disk is full, "block" lets it
    wait, and then `sink` must be a writer of `capture`. `watch` is told what passes. The sink is
    the caller's to close.
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
    ) -> None:
        self.address = parse_url(listen)
        self.upstream = parse_url(upstream)
        for address in (self.address, self.upstream):
            if address.scheme not in ("tcp", "tls", "ws", "wss", "unix"):
                raise BadUrl(f"{address}: a tap stands between tcp, tls, ws, wss or unix URLs")
        if is_secure(self.address) and tls is None:
            raise BadUrl(f"{self.address}: needs a certificate to listen with")
        self.sink = sink
        self.disk_full_queue: DiskFullQueue | None = None
        if on_full == "block":
            assert isinstance(sink, PcapngWriter | RotatingWriter), "only these can wait"
            self.disk_full_queue = DiskFullQueue(sink, self._on_disk_full)
        self.stats = ProxyStats()
        self.observer = observer
        self.comment = hint_comment(protocol or None, "middle")
        if note:
            self.comment += f"\n{note}"
        self.failure = ""
        """Why the upstream could not be reached last."""
        self._tls = tls
        self._upstream_tls = upstream_tls
        self._server_hostname = server_hostname
        self._listener: asyncio.AbstractServer | None = None
        self._connections: set[ProxyConnection] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._unnamed_dialers = 0
        self._missed_packets = 0

    def __repr__(self) -> str:
        return f"<polymux tap at {self.address} to {self.upstream}>"

    @property
    def url(self) -> str:
        """The URL that the proxy listens on, with the port that was bound."""
        return str(self.address)

    async def start(self) -> None:
        """Begin to listen; port 0 takes a free port and `url` says which."""
        loop = asyncio.get_running_loop()
        address = self.address
        try:
            if address.scheme == "unix":
                self._listener = await loop.create_unix_server(self._accept, address.path)
            else:
                secure = is_secure(address)
                listener = await loop.create_server(
                    self._accept, address.host, address.port, ssl=self._tls if secure else None,
                    ssl_handshake_timeout=CONNECT_TIMEOUT_SECONDS if secure else None,
                )  # fmt: skip
                self._listener = listener
                port = listener.sockets[0].getsockname()[1]
                self.address = Address(address.scheme, address.host, port, address.path)
        except OSError as problem:
            raise BadUrl(f"{address}: cannot listen there: {describe_os_error(problem)}") from None
        self._tick()

    async def close(self) -> None:
        """Stop listening and recording, and end the connections that are open.

        What was recorded is forwarded first, within 2 s. Ends are not written into the capture:
        the peers did not end.
        """
        if self._ticker is not None:
            self._ticker.cancel()
        if self._listener is not None:
            self._listener.close()
            if self.address.scheme == "unix":
                with contextlib.suppress(OSError):
                    os.unlink(self.address.path)
        if self.disk_full_queue is not None:
            self.stats.dropped_bytes += self.disk_full_queue.discard_waiting()
        for pair in list(self._connections):
            pair.stop()
        loop = asyncio.get_running_loop()
        limit = loop.time() + CLOSE_TIMEOUT_SECONDS
        while self._connections and loop.time() < limit:
            await asyncio.sleep(0.005)
        for pair in list(self._connections):
            pair.abort()
        await asyncio.sleep(0)

    async def __aenter__(self) -> RecordingProxy:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    # --- for the pairs

    @property
    def packet_sink(self) -> PacketSink:
        return self.sink if self.disk_full_queue is None else self.disk_full_queue

    @property
    def disk_full(self) -> bool:
        """Does traffic wait for room on the disk?"""
        return self.disk_full_queue is not None and self.disk_full_queue.full

    def connection_opened(self, connection: ProxyConnection) -> None:
        self.stats.connections += 1
        self.stats.open += 1
        self._connections.add(connection)

    def connection_closed(self, connection: ProxyConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self.stats.open -= 1

    def endpoint_addresses(
        self, dialer: asyncio.Transport | None, acceptor: asyncio.Transport | None
    ) -> tuple[HostPort, HostPort]:
        """The addresses of both peers; each dialer without one gets a port of its own."""
        self._unnamed_dialers = self._unnamed_dialers % 60000 + 1
        return peer_address(dialer, 1024 + self._unnamed_dialers), peer_address(
            acceptor, UNIX_SOCKET_PORT
        )

    async def connect_upstream(self, connection: ProxyConnection) -> None:
        """Connect to the upstream on behalf of somebody who connected to us."""
        loop = asyncio.get_running_loop()
        where = self.upstream
        ear = connection.sides[ACCEPTOR]
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                if where.scheme == "unix":
                    await loop.create_unix_connection(lambda: ear, where.path)
                    return
                context = None
                if is_secure(where):
                    context = self._upstream_tls or ssl.create_default_context()
                await loop.create_connection(
                    lambda: ear,
                    where.host,
                    where.port,
                    ssl=context,
                    server_hostname=(self._server_hostname or where.host) if context else None,
                )
        except TimeoutError:
            self._on_connect_failed(connection, f"no answer within {CONNECT_TIMEOUT_SECONDS:g} s")
        except (OSError, UnicodeError) as problem:  # UnicodeError: a name no host can have
            self._on_connect_failed(connection, describe_os_error(problem))

    # --- inside

    def _accept(self) -> ProxySide:
        return ProxyConnection(self).sides[DIALER]

    def _on_connect_failed(self, connection: ProxyConnection, reason: str) -> None:
        self.stats.refused += 1
        self.failure = str(Unreachable(f"{self.upstream}: {reason}"))
        log.warning("not forwarded: %s", self.failure)
        connection.stop()

    def _on_disk_full(self, full: bool) -> None:
        for pair in self._connections:
            for ear in pair.sides:
                if full:
                    ear.hold(HOLD_DISK_FULL)
                else:
                    ear.release(HOLD_DISK_FULL)

    def _tick(self) -> None:
        """Let the writer keep its sync interval while nothing passes; say what it misses."""
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        sink = self.sink
        if not isinstance(sink, PcapngWriter | RotatingWriter):
            return
        sink.tick()
        missed = sink.loss
        if missed.packets and not self._missed_packets:
            log.warning(
                "%s: traffic flows on and is not recorded; what is missing is counted", missed.error
            )
        self._missed_packets = missed.packets


def is_secure(address: Address) -> bool:
    return address.scheme in ("tls", "wss")


def peer_address(transport: asyncio.Transport | None, port: int) -> HostPort:
    """Where a peer is; for the end of a Unix socket, this machine and `port`."""
    found = transport.get_extra_info("peername") if transport is not None else None
    if isinstance(found, tuple):
        return str(found[0]), int(found[1])
    return UNIX_SOCKET_HOST, port
