"""`TunnelServer`: connects for the clients of a tunnel, to targets that it allows.

Nothing is allowed by default: neither a target, nor listening for a client.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import fields

from polymux.aio.server import Server, serve
from polymux.core.errors import PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.live.connection_gate import ConnectionGate, Place, gate_limits
from polymux.live.errors import describe_os_error
from polymux.live.hooks import RecorderFactory, SessionMeter
from polymux.live.listener import open_listener
from polymux.live.log_limiter import LogLimiter
from polymux.live.peer_identity import is_local
from polymux.live.session.session import Session
from polymux.live.streams.duplex import Stream
from polymux.live.urls import Address, BadUrl, parse_url
from polymux.metrics.families import Family
from polymux.protocols.registry import create
from polymux.record.audit_log import AuditLog
from polymux.relay.channels import Channel
from polymux.relay.ends import Arrival, ArrivalQueue
from polymux.relay.engine import Relay, RelayStats
from polymux.relay.metrics import relay_families
from polymux.relay.sockets import AcceptedSocket, SocketChannel, SocketsEnd
from polymux.relay.traits import CannotRelay, Shape, protocol_traits
from polymux.relay.tunnel.forwards import clean_bind, is_loopback
from polymux.relay.tunnel.requests import (
    CONNECT,
    FORWARDED,
    Request,
    ok_line,
    parse_name,
)
from polymux.relay.tunnel.targets import (
    CONNECTION_REFUSED,
    FAILED,
    HOST_UNREACHABLE,
    MAX_PORT,
    NETWORK_UNREACHABLE,
    NOT_ALLOWED,
    TIMED_OUT,
    AllowedTargets,
    BadForward,
    Target,
    TargetRefused,
    in_ranges,
    parse_ports,
    split_host,
)
from polymux.relay.tunnel.tunnel_end import TunnelEnd, answer_refusal

log = logging.getLogger("polymux.relay")

CONNECT_SECONDS = 10.0  # for one address of a target
MAX_CONNECTIONS = 4096  # forwarded over one session at a time
MAX_LISTENERS = 64  # ports that are listened on for one session at a time
REFUSAL_CODES = {
    errno.ECONNREFUSED: CONNECTION_REFUSED,
    errno.EHOSTUNREACH: HOST_UNREACHABLE,
    errno.ENETUNREACH: NETWORK_UNREACHABLE,
    errno.ETIMEDOUT: TIMED_OUT,
}


def tunnel_limits(limits: Limits | None = None) -> Limits:
    """Limits of a tunnel's sessions: as many streams as connections may be forwarded."""
    found = Limits() if limits is None else limits
    return Limits(
        **{
            **{each.name: getattr(found, each.name) for each in fields(found)},
            "max_streams": max(found.max_streams, MAX_CONNECTIONS + 64),
            "accept_backlog": max(found.accept_backlog, MAX_CONNECTIONS),
            "max_own_streams": max(found.max_own_streams, MAX_CONNECTIONS),
        }
    )


def check_tunnel(protocol: str, url: str, token: object) -> Address:
    """Check what a tunnel runs over; return the address.

    Raises:
        CannotRelay: The protocol has no two-way streams.
        BadUrl: The URL is invalid, or has to be protected by a token.
    """
    shape = protocol_traits(create(protocol)).shape
    if shape is not Shape.DUPLEX:
        raise CannotRelay(
            f"{protocol} has {shape.value}: a tunnel needs two-way streams (mplex, nerdbank, yamux)"
        )
    address = parse_url(url)
    if token is None and address.scheme != "exec" and not is_local(address):
        raise BadUrl(
            f"{address}: a tunnel that others can reach needs a token on both sides: use tls:// "
            "with token=..."
        )
    return address


class AllowedBinds:
    """Where a tunnel server listens for its clients; without entries, nowhere.

    Args:
        entries: `[BIND:]PORTS`, with ports as for `AllowedTargets`; BIND is an address, `*` for
            0.0.0.0 as clients write it, loopback if there is none.

    Raises:
        BadForward: An entry is malformed.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries: list[tuple[str, tuple[tuple[int, int], ...]]] = []
        for entry in entries:
            bind, ports = split_host(entry) if ":" in entry else ("127.0.0.1", entry)
            self._entries.append((clean_bind(bind), parse_ports(ports, entry)))

    def allows(self, bind: Target) -> bool:
        """Whether this address and port may be listened on; port 0 needs a range of all ports."""
        return any(
            host == bind.host
            and (in_ranges(bind.port, ports) if bind.port else (1, MAX_PORT) in ports)
            for host, ports in self._entries
        )


class TunnelServer:
    """Serves tunnels: connects to targets for the clients, and listens for them if allowed.

    Use it in `async with`, or call `start` and `close`.

    Args:
        url: URL to listen on, as for `polymux.serve`.
        protocol: Protocol string of a protocol with two-way streams.
        allow: Targets that may be connected to; see `AllowedTargets`. None by default.
        allow_remote: Addresses and ports that clients may listen on; see `AllowedBinds`.
        token: The token that clients have to prove to know; demanded unless `url` is a Unix socket
            or a loopback address.
        tls: TLS context with a certificate; one that requires client certificates for mutual TLS.
        limits: Limits of the sessions.
        timeouts: Timeouts of the sessions.
        allow_clients: Clients that may connect, as `allow` of `polymux.serve`.
        meter: Counts sessions, such as a `polymux.metrics.Meter`.
        audit: Where sessions, forwarded connections and refusals are logged; instead of `meter`.
        recorder: Records the sessions.

    Attributes:
        stats: Counters of all forwarded connections; end A is the tunnel.
        refused: Requests that were not allowed.

    Raises:
        BadUrl, CannotRelay, BadForward, ValueError, TypeError: An argument is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        protocol: str,
        allow: Iterable[str] = (),
        allow_remote: Iterable[str] = (),
        token: str | bytes | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        allow_clients: Sequence[str] | None = None,
        meter: SessionMeter | None = None,
        audit: AuditLog | None = None,
        recorder: RecorderFactory | None = None,
    ) -> None:
        self.address = check_tunnel(protocol, url, token)
        self.targets = AllowedTargets(allow)
        self.binds = AllowedBinds(allow_remote)
        self.stats = RelayStats()
        self.refused = 0
        self.relays: dict[Relay, str] = {}  # and the peer of each
        self.audit = audit
        self.log_limiter = LogLimiter(log)
        self.gate = ConnectionGate(gate_limits(limits or Limits()))
        self.backlog = (limits or Limits()).listen_backlog
        self._serving = serve(
            self._handle,
            url,
            protocol=protocol,
            limits=tunnel_limits(limits),
            timeouts=timeouts,
            tls=tls,
            recorder=recorder,
            meter=audit if audit is not None else meter,
            allow=allow_clients,
            token=token,
        )
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """Where the server listens, with the port that was bound."""
        return str(self.address) if self._server is None else self._server.url

    async def start(self) -> None:
        """Start to listen.

        Raises:
            Unreachable: The address cannot be listened on.
        """
        self._server = await self._serving

    async def close(self) -> None:
        """Stop listening, and close all sessions and the connections forwarded for them."""
        if self._server is not None:
            await self._server.close()

    async def wait_closed(self) -> None:
        """Wait until the server is closed; over stdio:, until its only session has ended."""
        if self._server is not None:
            await self._server.wait_closed()

    async def __aenter__(self) -> TunnelServer:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    def collect(self) -> list[Family]:
        """Return the metrics of what was forwarded; end `a` is the tunnel."""
        return relay_families(self.stats, self.relays)

    async def _handle(self, session: Session) -> None:
        await ServedTunnel(self, session).run()

    def refuse(self, peer: str, problem: TargetRefused) -> None:
        """Count and log a request that is not met."""
        self.refused += problem.code == NOT_ALLOWED
        if problem.code == NOT_ALLOWED:
            self.log_limiter.warn("refused", f"{peer} refused: {problem}")
        else:
            log.info("%s: %s", peer, problem)
        if self.audit is not None:
            self.audit.refused(peer, str(problem))

    def forwarded(self, peer: str, verb: str, target: Target, address: str) -> None:
        """Log a connection that is forwarded."""
        log.info("%s: %s %s at %s", peer, verb, target, address)
        if self.audit is not None:
            self.audit.write("forwarded", peer=peer, target=str(target), address=address)


class ServedTunnel:
    """One session of a tunnel server."""

    def __init__(self, server: TunnelServer, session: Session) -> None:
        self._server = server
        self._session = session
        self._arrivals = ArrivalQueue()
        self._listeners = 0

    async def run(self) -> None:
        """Serve the session until it ends."""
        session, server = self._session, self._server
        relay = Relay(
            TunnelEnd(session, CONNECT, server.log_limiter, self._listen),
            SocketsEnd(self._arrivals, self._dial),
            stats=server.stats,
        )
        server.relays[relay] = session.peer
        try:
            await relay.run()
        finally:
            del server.relays[relay]

    async def _dial(self, name: bytes) -> Channel:
        """Connect to a target, if it is allowed."""
        target = parse_name(name).target
        server = self._server
        try:
            addresses = await server.targets.resolve(target)
            channel = await connect_to(target, addresses)
        except TargetRefused as problem:
            server.refuse(self._session.peer, problem)
            raise
        server.forwarded(self._session.peer, "connected to", target, channel.label)
        return channel

    async def _listen(self, bind: Target, stream: Stream) -> None:
        """Listen for the client until its stream ends, if it may."""
        refusal = ""
        if not self._server.binds.allows(bind):
            refusal = f"listening on {bind} is not allowed"
        elif self._listeners >= MAX_LISTENERS:
            refusal = (
                f"listening on {bind} is not allowed: one client can listen on {MAX_LISTENERS} "
                "ports at a time"
            )
        if refusal:
            problem = TargetRefused(NOT_ALLOWED, refusal)
            self._server.refuse(self._session.peer, problem)
            answer_refusal(stream, problem)
            return
        self._listeners += 1
        try:
            await self._serve_listener(bind, stream)
        finally:
            self._listeners -= 1

    async def _serve_listener(self, bind: Target, stream: Stream) -> None:
        """Listen for the client until its stream ends."""
        server, peer = self._server, self._session.peer
        accepted: set[AcceptedSocket] = set()
        bound = bind

        def on_connected(channel: AcceptedSocket) -> None:
            channel.established()
            accepted.add(channel)
            channel.closed.add_done_callback(lambda _: accepted.discard(channel))
            request = Request(FORWARDED, bind if bind.port else bound)
            server.forwarded(peer, "accepted on", bound, channel.label)
            self._arrivals.put(Arrival(channel, request.name))

        def make(place: Place) -> AcceptedSocket:
            return AcceptedSocket(place, on_connected)

        try:
            listener = await open_listener(
                Address("tcp", bind.host, bind.port),
                make,
                server.gate,
                server.backlog,
                loop=asyncio.get_running_loop(),
            )
        except OSError as problem:
            refusal = TargetRefused(
                FAILED, f"{bind}: cannot listen there: {describe_os_error(problem)}"
            )
            server.refuse(peer, refusal)
            answer_refusal(stream, refusal)
            return
        bound = Target(bind.host, listener.address.port)
        try:
            warn_if_exposed(bound)
            log.info("%s: listening on %s", peer, bound)
            await stream.send(ok_line(bound))
            while await stream.receive():
                pass
        except PolymuxError:
            pass  # the session has ended
        finally:
            listener.close()
            for channel in list(accepted):
                channel.abort("")


async def connect_to(target: Target, addresses: list[str]) -> SocketChannel:
    """Connect to the first of the addresses that answers.

    Raises:
        TargetRefused: None does.
    """
    loop = asyncio.get_running_loop()
    refusal = TargetRefused(HOST_UNREACHABLE, f"{target} has no address")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, channel = await loop.create_connection(SocketChannel, address, target.port)
            return channel
        except TimeoutError:
            refusal = TargetRefused(TIMED_OUT, f"{target}: no answer within {CONNECT_SECONDS:g} s")
        except OSError as problem:
            code = REFUSAL_CODES.get(problem.errno or 0, FAILED)
            refusal = TargetRefused(code, f"{target}: {describe_os_error(problem)}")
    raise refusal


def warn_if_exposed(bind: Target) -> None:
    """Log a warning if others can connect to a port that is forwarded."""
    if not is_loopback(bind.host):
        log.warning(
            "%s is open to everyone who can reach it: what connects there is forwarded; bind "
            "127.0.0.1 unless that is meant",
            bind,
        )


__all__ = [
    "AllowedBinds",
    "BadForward",
    "TunnelServer",
    "check_tunnel",
    "connect_to",
    "tunnel_limits",
    "warn_if_exposed",
]
