"""`serve`: accept connections at a URL and run a handler for each session."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack, overload

from polymux.aio.listener import Listener, open_listener
from polymux.aio.runtime import current_runtime
from polymux.aio.transports.stdio import open_stdio_session
from polymux.core.errors import PeerViolation, PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import ACCEPTOR
from polymux.live.arguments import check_handler, check_session_options
from polymux.live.connection_gate import ConnectionGate, Place, gate_limits
from polymux.live.errors import Unreachable, describe_os_error
from polymux.live.factory import (
    MINMUX,
    NERDBANK,
    OMNISTREAMS,
    STREAMUX,
    YAMUX,
    session_factory,
    set_peer_name,
)
from polymux.live.hooks import LimitMeter, RecorderFactory, SessionMeter
from polymux.live.peer_identity import AllowedPeers, warn_if_open_to_all
from polymux.live.pending import Pending
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.live.protocols.streamux import StreamuxSession
from polymux.live.protocols.yamux import YamuxSession
from polymux.live.runtime import wait_done
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

S = TypeVar("S", bound=Session)
SessionHandler = Callable[[Any], Awaitable[None]]
SECURE_SCHEMES = ("tls", "wss")
# Between two warnings about peers that broke the protocol before their handler ran.
WARNING_INTERVAL_SECONDS = 60.0
HANDLER_GRACE_SECONDS = 1.0  # for handlers to return once their sessions are closed


class Server:
    """A listening socket and its sessions. `serve` creates it.

    A server is an asynchronous context manager: leaving the block closes it.

    Attributes:
        sessions: The open sessions, including those whose handshake is not done.
        url: Where the server can be reached, with the actual port.
        port: The actual port; 0 where there is none.
    """

    def __init__(
        self, address: Address, handler: SessionHandler, allowed: AllowedPeers | None = None
    ) -> None:
        self.address = address
        self.handler = handler
        self.allowed = allowed or AllowedPeers(None)
        self.sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.listener: Listener | None = None
        self.upgrade_listener: UpgradeListener | None = None  # of a WebSocket server
        self.token_listener: TokenListener | None = None  # of a server that asks for a token
        self._closing = False
        self._warned_at = self._warned_of_refusal_at = -WARNING_INTERVAL_SECONDS
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __str__(self) -> str:
        return f"server at {self.address}"

    def __repr__(self) -> str:
        state = "closed" if self._closed.done() else f"sessions open: {len(self.sessions)}"
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
            closing = [session.close() for session in self.sessions]
            await asyncio.gather(*closing, return_exceptions=True)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=HANDLER_GRACE_SECONDS)
        finally:
            for session in list(self.sessions):
                session.abort("the server was closed")
            for task in self._tasks:
                task.cancel()
            if not self._closed.done():
                self._closed.set_result(None)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_closed(self) -> None:
        """Wait until the server is closed; over stdio:, until its only session has ended."""
        await asyncio.shield(self._closed)

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
        task = asyncio.get_running_loop().create_task(self.run_session(session))
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self.address.scheme == "stdio" and not self._closed.done():
            self._closed.set_result(None)

    def _log_refused(self, session: Session, refusal: str) -> None:
        """Log a refused client, as a warning once in WARNING_INTERVAL_SECONDS."""
        now = session.runtime.time()
        level = logging.INFO
        if now - self._warned_of_refusal_at >= WARNING_INTERVAL_SECONDS:
            self._warned_of_refusal_at = now
            level = logging.WARNING
        log.log(level, "%s refused: %s", session.peer, refusal)

    def _log_unhandled(self, session: Session, problem: PeerViolation) -> None:
        """Log that a peer broke the protocol before the handler ran, perhaps because it speaks
        another protocol or version.

        It is a warning once in WARNING_INTERVAL_SECONDS, so that peers cannot flood the log, and
        otherwise at level info.
        """
        now = session.runtime.time()
        level = logging.INFO
        if now - self._warned_at >= WARNING_INTERVAL_SECONDS:
            self._warned_at = now
            level = logging.WARNING
        log.log(level, "%s ended before it was handled: %s", session, problem)

    async def run_session(self, session: Session) -> None:
        """Run the handler of one session and close it. Exceptions are logged, not raised."""
        handler_called = False
        try:
            await wait_done(session.runtime, session.ready)
            session.check_open()
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


def only_polymux_errors(problem: Exception) -> bool:
    """Return whether `problem` is a group of PolymuxErrors only: several tasks lost the peer."""
    return isinstance(problem, ExceptionGroup) and problem.split(PolymuxError)[1] is None


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
    return ServerBounds(gate, ServerBudget(limits.server_buffer_bytes))


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


@overload
def serve(
    handler: Callable[[NerdbankSession], Awaitable[None]],
    url: str,
    *,
    protocol: NERDBANK,
    **options: Unpack[ServeOptions],
) -> Pending[Server]: ...
@overload
def serve(
    handler: Callable[[OmnistreamsSession], Awaitable[None]],
    url: str,
    *,
    protocol: OMNISTREAMS,
    **options: Unpack[ServeOptions],
) -> Pending[Server]: ...
@overload
def serve(
    handler: Callable[[StreamuxSession], Awaitable[None]],
    url: str,
    *,
    protocol: STREAMUX,
    **options: Unpack[ServeOptions],
) -> Pending[Server]: ...
@overload
def serve(
    handler: Callable[[MinmuxSession], Awaitable[None]],
    url: str,
    *,
    protocol: MINMUX,
    **options: Unpack[ServeOptions],
) -> Pending[Server]: ...
@overload
def serve(
    handler: Callable[[YamuxSession], Awaitable[None]],
    url: str,
    *,
    protocol: YAMUX,
    **options: Unpack[ServeOptions],
) -> Pending[Server]: ...
@overload
def serve(
    handler: Callable[[S], Awaitable[None]],
    url: str,
    *,
    protocol: str,
    **options: Unpack[ServeOptions],
) -> Pending[Server]: ...
def serve(
    handler: SessionHandler,
    url: str,
    *,
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
) -> Pending[Server]:
    """Listen at `url` and run `handler(session)` for each session.

    A session is closed when its handler returns. If the handler raises, the exception is logged and
    the session ends: closed after a PolymuxError, aborted after any other. The server goes on.

    Busy polling is on by default: while replies keep arriving quickly, the event loop spins for up
    to 200 microseconds after each send instead of blocking, which shortens round trips and costs
    processor time. `busy_poll=0` turns it off.

    Args:
        handler: An async function of one argument, the session.
        url: `tcp://HOST:PORT`, `tls://`, `ws://`, `wss://`, `unix://PATH`, or `stdio:` for a single
            session. Port 0 takes a free port; `server.url` has the actual one.
        protocol: Protocol string: a name such as `mplex`, with options as in
            `nerdbank:version=2`.
        limits: Limits on what each peer, and all peers together, can make this side hold;
            `Limits()` by default.
        timeouts: Timeouts of each session in seconds; `Timeouts()` by default.
            `timeouts.handshake` also bounds the TLS and WebSocket handshakes.
        tls: TLS context with a certificate, required for `tls://` and `wss://`.
        busy_poll: Maximum busy-poll time in seconds after a send; 0 disables busy polling.
        recorder: Records the sessions, such as a `polymux.record.Recorder`.
        meter: Counts sessions, such as a `polymux.metrics.Meter`, or writes them to a
            `polymux.record.AuditLog`.
        origins: Web pages that may connect over `ws://` and `wss://`, such as
            `https://example.com`, besides those of the server's own host and port; `null` for pages
            without an origin, `*` for all. Programs that are no browsers are not asked.
        allow: Clients that may connect: names in their certificates (the common name or an
            alternative name; `tls` must require client certificates), addresses, and networks such
            as `192.0.2.0/24`. None: all, which is logged as a warning if the server is neither on a
            loopback address nor requires client certificates or a token.
        token: A secret of 16 to 1,024 bytes that clients have to prove to know, within
            `timeouts.handshake`, before the protocol begins; on `tls://`, `wss://`, `unix://` or a
            loopback address only.

    Returns:
        A `Pending` server. `async with polymux.serve(...) as server` closes it at the end of the
        block; after `await polymux.serve(...)` the caller closes it. If it is cancelled, nothing
        listens.

    Raises:
        Unreachable: When awaited: the address cannot be listened on.
        BadUrl: The URL is invalid or cannot be listened on, or `tls` is missing.
        PolymuxError: The protocol string is invalid.
        TypeError, ValueError: Another argument is invalid.
    """
    check_handler(handler)
    check_session_options(protocol, limits, timeouts)
    bounds = server_bounds(limits or Limits(), protocol, meter)
    return serve_within(
        bounds,
        handler,
        url,
        protocol,
        limits,
        timeouts,
        tls,
        busy_poll,
        recorder,
        meter,
        origins,
        allow,
        token,
    )


def serve_within(
    bounds: ServerBounds,
    handler: SessionHandler,
    url: str,
    protocol: str,
    limits: Limits | None,
    timeouts: Timeouts | None,
    tls: ssl.SSLContext | None,
    busy_poll: float = DEFAULT_BUSY_POLL_SECONDS,
    recorder: RecorderFactory | None = None,
    meter: SessionMeter | None = None,
    origins: Sequence[str] = (),
    allow: Sequence[str] | None = None,
    token: str | bytes | None = None,
) -> Pending[Server]:
    """Like `serve`, with bounds that several servers can share."""
    address = parse_url(url)
    shared = check_token(token, address)
    text = protocol_for_scheme(protocol, address.scheme)
    make = session_factory(
        text,
        ACCEPTOR,
        limits,
        timeouts,
        0.0,
        busy_poll,
        recorder,
        meter,
        runtime=current_runtime,
    )
    policy = OriginPolicy(address, origins)
    allowed = AllowedPeers(allow)
    if allowed.needs_certificates and (tls is None or tls.verify_mode is not ssl.CERT_REQUIRED):
        raise ValueError(
            f"allow has names, {', '.join(sorted(allowed.names))}, which only certificates have: "
            "give a TLS context that requires client certificates"
        )
    if tls is not None and address.scheme not in SECURE_SCHEMES:
        raise BadUrl(f"{address}: tls=... has no effect without TLS: use tls:// or wss://")

    async def serve() -> Server:
        server = Server(address, handler, allowed)
        if address.scheme == "stdio":
            server.start_session(await open_stdio_session(make))
            return server

        def make_served(place: Place) -> Session:
            session = make()
            session.read_backpressure.share_budget(bounds.budget)
            session.on_connection_made = partial(begin_session, server, place)  # after TLS
            session.is_refused = server.refuses
            return session

        factory: Callable[[Place], ByteHandler] = make_served
        handshake_timeout = (timeouts or Timeouts()).handshake
        if address.scheme in WEBSOCKET_SCHEMES:
            factory = server.upgrade_listener = UpgradeListener(
                address.path, make_served, handshake_timeout, policy, current_runtime(), meter
            )
        if shared is not None:
            factory = server.token_listener = TokenListener(
                shared, factory, handshake_timeout, current_runtime(), meter
            )
        check_listening(address, tls)
        try:
            server.listener = await open_listener(
                address,
                factory,
                bounds.gate,
                (limits or Limits()).listen_backlog,
                tls if address.scheme in SECURE_SCHEMES else None,
                handshake_timeout,
                None if meter is None else meter.refused,
            )
        except OSError as problem:
            raise Unreachable(
                f"{address}: cannot listen there: {describe_os_error(problem)}"
            ) from None
        server.address = server.listener.address
        warn_if_open_to_all(server.address, tls, allowed, shared is not None)
        return server

    serve.__qualname__ = "serve"
    return Pending(serve())


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
