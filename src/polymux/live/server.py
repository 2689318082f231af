"""Serving: a listener, its sessions and their handlers, in any runtime."""

import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypedDict

from polymux.core.errors import PeerViolation, PolymuxError, Unsupported
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import ACCEPTOR
from polymux.core.token_exchange import SharedToken
from polymux.live.arguments import check_session_options
from polymux.live.connection_gate import ConnectionGate, Place, gate_limits
from polymux.live.errors import Unreachable, describe_os_error, only_polymux_errors
from polymux.live.factory import session_factory, set_peer_name
from polymux.live.hooks import LimitMeter, RecorderFactory, SessionMeter
from polymux.live.listener import Inherited, Listener, ListenerLoop, open_listener
from polymux.live.log_limiter import LevelLimiter
from polymux.live.peer_identity import AllowedPeers, warn_if_open_to_all
from polymux.live.runtime import Runtime, Task, resolve, wait_done
from polymux.live.session.busy_poll import DEFAULT_BUSY_POLL_SECONDS
from polymux.live.session.server_budget import ServerBudget
from polymux.live.session.session import Session
from polymux.live.session.socket_options import configure_tcp_keepalive
from polymux.live.transport import ByteHandler, ConnectionInfo
from polymux.live.transports.origin_policy import OriginPolicy
from polymux.live.transports.token import TokenListener, check_token
from polymux.live.transports.websocket import (
    WEBSOCKET_SCHEMES,
    UpgradeListener,
    protocol_for_scheme,
)
from polymux.live.urls import Address, BadUrl, parse_url
from polymux.protocols.registry import parse_protocol

log = logging.getLogger("polymux.aio")

SessionHandler = Callable[[Any], Awaitable[None]]
OpenStdio = Callable[[Callable[[], Session]], Awaitable[Session]]
SECURE_SCHEMES = ("tls", "wss")
HANDLER_GRACE_SECONDS = 1.0  # for handlers to return once their sessions are closed


class ServerRuntime(Runtime, Protocol):
    """A runtime that can listen."""

    @property
    def listener_loop(self) -> ListenerLoop:
        """What its listeners use."""


class Server:
    """A listening socket and its sessions. `serve` creates it.

    A server is an asynchronous context manager: leaving the block closes it.

    Attributes:
        sessions: The open sessions, including those whose handshake is not done.
        url: Where the server can be reached, with the actual port.
        port: The actual port; 0 where there is none.
        closed: A future that is done once the server is closed.
    """

    def __init__(
        self,
        address: Address,
        handler: SessionHandler,
        runtime: Runtime,
        allowed: AllowedPeers | None = None,
    ) -> None:
        self.runtime = runtime
        self.address = address
        self.handler = handler
        self.allowed = allowed or AllowedPeers(None)
        self.sessions: set[Session] = set()
        self._tasks: set[Task] = set()
        self.listener: Listener | None = None
        self.upgrade_listener: UpgradeListener | None = None  # of a WebSocket server
        self.token_listener: TokenListener | None = None  # of a server that asks for a token
        self._closing = False
        self._refused, self._unhandled = LevelLimiter(), LevelLimiter()  # clients, sessions
        self.closed: Any = runtime.create_future()

    def __str__(self) -> str:
        return f"server at {self.address}"

    def __repr__(self) -> str:
        state = "closed" if self.closed.done() else f"sessions open: {len(self.sessions)}"
        return f"<polymux {self}, {state}>"

    @property
    def url(self) -> str:
        """The URL that the server listens on, with the port that was bound."""
        return str(self.address)

    @property
    def port(self) -> int:
        """The TCP port that was bound."""
        return self.address.port

    async def close(self) -> None:
        """Stop listening, close every session, and cancel the handlers that still run.

        Queued data is sent first, for up to `Timeouts.close` seconds; then handlers get a second to
        return. If cancelled, the sessions are aborted and the handlers cancelled at once.
        Exceptions of handlers are logged and not raised here. A second call waits for the first.
        """
        if self._closing:
            await self.wait_closed()
            return
        self._closing = True
        if self.listener is not None:
            self.listener.close()
        if self.upgrade_listener is not None:
            self.upgrade_listener.close()
        if self.token_listener is not None:
            self.token_listener.close()
        try:
            runtime = self.runtime
            for task in [runtime.create_task(close_quietly(session)) for session in self.sessions]:
                await wait_done(runtime, task)
            deadline = runtime.time() + HANDLER_GRACE_SECONDS
            for task in list(self._tasks):
                await wait_done(runtime, task, deadline)
        finally:
            for session in list(self.sessions):
                session.abort("the server was closed")
            for task in self._tasks:
                task.cancel()
            resolve(self.closed)
        await self.wait_handled()

    async def wait_handled(self) -> None:
        """Wait until every handler has returned, and its session is closed."""
        for task in list(self._tasks):
            await wait_done(self.runtime, task)

    async def wait_closed(self) -> None:
        """Wait until the server is closed; over stdio:, until its only session has ended."""
        await wait_done(self.runtime, self.closed)

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    def refuses(self, transport: ConnectionInfo) -> bool:
        """Return whether the peer of a connection is not among the allowed ones."""
        return bool(self.allowed.refusal(transport))

    def start_session(self, session: Session) -> None:
        """Run the handler of a new session once its handshake is done."""
        if self._closing:
            session.abort("the server is closed")
            return
        configure_tcp_keepalive(session.transport, session.timeouts.keepalive_interval)
        set_peer_name(session, self.url)
        refusal = self.allowed.refusal(session.transport)
        if refusal:
            self._log_refused(session, refusal)
            if session.meter is not None:
                session.meter.refused(session.peer, refusal)
            session.abort(f"refused: {refusal}")
            return
        self.sessions.add(session)
        session.closed.add_done_callback(lambda _: self.sessions.discard(session))
        task = self.runtime.create_task(self.run_session(session))
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: Task) -> None:
        self._tasks.discard(task)
        if self.address.scheme == "stdio" and not self.closed.done():
            self.closed.set_result(None)

    def _log_refused(self, session: Session, refusal: str) -> None:
        """Log a refused client, as a warning once in a while."""
        level = self._refused.level(session.runtime.time())
        log.log(level, "%s refused: %s", session.peer, refusal)

    def _log_unhandled(self, session: Session, problem: PeerViolation) -> None:
        """Log that a peer broke the protocol before the handler ran, perhaps because it speaks
        another protocol or version.

        It is a warning once in a while, so that peers cannot flood the log, and otherwise at level
        info.
        """
        level = self._unhandled.level(session.runtime.time())
        log.log(level, "%s ended before it was handled: %s", session, problem)

    async def run_session(self, session: Session) -> None:
        """Run the handler of one session and close it. Exceptions are logged, not raised."""
        handler_called = False
        try:
            await wait_done(session.runtime, session.ready)
            check_begun(session)
            handler_called = True
            await self.handler(session)
        except PolymuxError as problem:
            if isinstance(problem, PeerViolation) and not handler_called:
                self._log_unhandled(session, problem)
            else:
                log.info("%s: %s", session, problem)
        except Exception as problem:
            if only_polymux_errors(problem):
                log.info("%s: %s", session, problem)
            else:
                log.exception("the handler of %s failed", session)
                session.abort("the handler failed")
        finally:
            await session.close()


def check_begun(session: Session) -> None:
    """Raise SessionClosed for a session that has nothing to handle.

    A peer may have said everything by now, and have ended the session in good order: the streams
    that it opened can still be accepted.
    """
    handshake_done = session.endpoint.protocol.handshake_done and session.preamble is None
    if not handshake_done or session.failure is not None or session.shutdown.started:
        session.check_open()


async def close_quietly(session: Session) -> None:
    """Close a session; what goes wrong ends it too."""
    with contextlib.suppress(Exception):
        await session.close()


@dataclass(frozen=True)
class ServerBounds:
    """What all sessions of a server share; several servers can have the same."""

    gate: ConnectionGate
    budget: ServerBudget


def server_bounds(limits: Limits, protocol: str, meter: SessionMeter | None) -> ServerBounds:
    """Return the bounds of one server, from its limits."""

    def on_limit(name: str) -> None:
        if isinstance(meter, LimitMeter):
            meter.limit_hit(parse_protocol(protocol).name, name)

    gate = ConnectionGate(gate_limits(limits), on_limit)
    return ServerBounds(gate, ServerBudget(limits.server_buffer_bytes, limits.max_sessions))


class ServeOptions(TypedDict, total=False):
    """The keywords of `serve` that do not depend on the protocol."""

    limits: Limits | None
    timeouts: Timeouts | None
    tls: ssl.SSLContext | None
    busy_poll: float
    recorder: RecorderFactory | None
    meter: SessionMeter | None
    origins: Sequence[str]
    allow: Sequence[str] | None
    token: str | bytes | None
    reuse_port: bool


def server_starter(
    handler: SessionHandler,
    url: str,
    protocol: str,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    tls: ssl.SSLContext | None = None,
    busy_poll: float = DEFAULT_BUSY_POLL_SECONDS,
    recorder: RecorderFactory | None = None,
    meter: SessionMeter | None = None,
    origins: Sequence[str] = (),
    allow: Sequence[str] | None = None,
    token: str | bytes | None = None,
    reuse_port: bool = False,
    *,
    inherited: Inherited | None = None,
    runtime: Callable[[], ServerRuntime],
    open_stdio: OpenStdio | None = None,
    bounds: ServerBounds | None = None,
) -> Callable[[], Coroutine[Any, Any, Server]]:
    """Check the arguments of `serve` now, and return a coroutine function that starts the server.

    Args:
        inherited: Sockets that listen at `url` already. What has bound them has also warned about
            an address that is open to all.
        runtime: Returns where the server runs. It is called when it starts.
        open_stdio: Opens a session over standard input and output; None: that is not possible.
        bounds: What several servers can share; None: those of this server.
        handler, url, protocol, limits, timeouts, tls, busy_poll, recorder, meter, origins, allow,
            token, reuse_port: See `polymux.serve`.
    """
    check_session_options(protocol, limits, timeouts)
    address = parse_url(url)
    if address.scheme == "stdio" and open_stdio is None:
        raise Unsupported(f"{address}: standard streams need asyncio: use polymux.serve")
    if reuse_port:
        check_reuse_port(address)
    shared = check_token(token, address)
    text = protocol_for_scheme(protocol, address.scheme)
    within = bounds or server_bounds(limits or Limits(), protocol, meter)
    make = session_factory(
        text,
        ACCEPTOR,
        limits,
        timeouts,
        0.0,
        busy_poll,
        recorder,
        meter,
        runtime=runtime,
    )
    policy = OriginPolicy(address, origins)
    allowed = AllowedPeers(allow)
    check_tls(address, tls, allowed)

    async def serve() -> Server:
        where = runtime()
        server = Server(address, handler, where, allowed)
        if address.scheme == "stdio" and open_stdio is not None:
            server.start_session(await open_stdio(make))
            return server

        handshake_timeout = (timeouts or Timeouts()).handshake
        make_served = partial(served_session, server, within.budget, make)
        factory = with_openings(
            server, make_served, policy, shared, handshake_timeout, where, meter
        )
        check_listening(address, tls)
        try:
            server.listener = await open_listener(
                address,
                factory,
                within.gate,
                (limits or Limits()).listen_backlog,
                tls if address.scheme in SECURE_SCHEMES else None,
                handshake_timeout,
                None if meter is None else meter.refused,
                reuse_port=reuse_port,
                inherited=inherited,
                loop=where.listener_loop,
            )
        except OSError as problem:
            raise Unreachable(
                f"{address}: cannot listen there: {describe_os_error(problem)}"
            ) from None
        server.address = server.listener.address
        if inherited is None:
            warn_if_open_to_all(server.address, tls, allowed, shared is not None)
        return server

    serve.__qualname__ = "serve"
    return serve


def check_tls(address: Address, tls: ssl.SSLContext | None, allowed: AllowedPeers) -> None:
    """Raise ValueError or BadUrl for a TLS context, or none, that does not fit the rest."""
    if allowed.needs_certificates and (tls is None or tls.verify_mode is not ssl.CERT_REQUIRED):
        raise ValueError(
            f"allow has names, {', '.join(sorted(allowed.names))}, which only certificates have: "
            "give a TLS context that requires client certificates"
        )
    if tls is not None and address.scheme not in SECURE_SCHEMES:
        raise BadUrl(f"{address}: tls=... has no effect without TLS: use tls:// or wss://")


def check_reuse_port(address: Address) -> None:
    """Raise BadUrl or Unsupported unless several processes can bind the address."""
    if address.scheme in ("unix", "stdio", "exec"):
        raise BadUrl(
            f"{address}: reuse_port=True has no effect: only TCP addresses can be bound several "
            "times"
        )
    if not hasattr(socket, "SO_REUSEPORT"):
        raise Unsupported(f"{address}: reuse_port=True: this system has no SO_REUSEPORT")


def served_session(
    server: Server, budget: ServerBudget, make: Callable[[], Session], place: Place
) -> Session:
    """Return a new session of a server, for the connection of a place."""
    session = make()
    session.read_backpressure.share_budget(budget)
    session.on_connection_made = partial(begin_session, server, place)  # after TLS
    session.is_refused = server.refuses
    return session


def with_openings(
    server: Server,
    make_session: Callable[[Place], Session],
    policy: OriginPolicy,
    shared: SharedToken | None,
    timeout: float,
    where: ServerRuntime,
    meter: SessionMeter | None,
) -> Callable[[Place], ByteHandler]:
    """Return what makes the first handler of a connection, of a token, an upgrade or a session.

    Args:
        server: Gets the listeners of openings that there are.
        make_session: Makes the handler that follows them.
        policy: Of WebSocket upgrades.
        shared: The token; None for none.
        timeout: Seconds for each opening.
        where: The runtime of the server.
        meter: Counts what is refused.
    """
    factory: Callable[[Place], ByteHandler] = make_session
    if server.address.scheme in WEBSOCKET_SCHEMES:
        factory = server.upgrade_listener = UpgradeListener(
            server.address.path, make_session, timeout, policy, where, meter
        )
    if shared is not None:
        factory = server.token_listener = TokenListener(shared, factory, timeout, where, meter)
    return factory


def begin_session(server: Server, place: Place, session: Session) -> None:
    """Tie a new session to the place of its connection, and start it."""
    endpoint = session.endpoint
    direction = endpoint.connection.direction(1 - endpoint.side)

    def is_silent() -> bool:  # or unused, after its handshake
        return direction.total_bytes == 0 and not (session.ready.done() and session.bytes_sent)

    place.attach(session.abort, is_silent)
    if session.ready.done():  # at once: a burst of connections may be accepted before a callback
        place.established()
    else:
        session.ready.add_done_callback(lambda _: place.established())
    session.closed.add_done_callback(lambda _: place.release())
    server.start_session(session)


def check_listening(address: Address, tls: ssl.SSLContext | None) -> None:
    """Raise BadUrl unless a server can listen at the address."""
    if address.scheme not in ("unix", "tcp", *SECURE_SCHEMES, *WEBSOCKET_SCHEMES):
        raise BadUrl(f"{address}: {address.scheme}: cannot be listened on for this protocol")
    if address.scheme in SECURE_SCHEMES and tls is None:
        raise BadUrl(f"{address}: {address.scheme}:// needs a context with a certificate: tls=...")
