"""`serve`: accept connections at a URL and run a handler for each session."""

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict, TypeVar, Unpack, overload

from polymux.aio.arguments import check_handler, check_session_options
from polymux.aio.errors import Unreachable, describe_os_error
from polymux.aio.factory import (
    MINMUX,
    NERDBANK,
    OMNISTREAMS,
    STREAMUX,
    session_factory,
    set_peer_name,
)
from polymux.aio.hooks import RecorderFactory, SessionMeter
from polymux.aio.pending import Pending
from polymux.aio.protocols.minmux import MinmuxSession
from polymux.aio.protocols.nerdbank import NerdbankSession
from polymux.aio.protocols.omnistreams import OmnistreamsSession
from polymux.aio.protocols.streamux import StreamuxSession
from polymux.aio.session.busy_poll import DEFAULT_BUSY_POLL_SECONDS
from polymux.aio.session.session import Session
from polymux.aio.session.socket_options import configure_tcp_keepalive
from polymux.aio.transports.stdio import open_stdio_session
from polymux.aio.transports.websocket import WEBSOCKET_SCHEMES, UpgradeListener, protocol_for_scheme
from polymux.aio.urls import Address, BadUrl, parse_url
from polymux.core.errors import PeerViolation, PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import ACCEPTOR

log = logging.getLogger("polymux.aio")

S = TypeVar("S", bound=Session)
SessionHandler = Callable[[Any], Awaitable[None]]
MAX_PENDING_HANDSHAKES = 128  # further connections are aborted
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

    def __init__(self, address: Address, handler: SessionHandler) -> None:
        self.address = address
        self.handler = handler
        self.sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.listener: asyncio.AbstractServer | None = None
        self.upgrade_listener: UpgradeListener | None = None  # of a WebSocket server
        self._closing = False
        self._warned_at = -WARNING_INTERVAL_SECONDS
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
            if self.address.scheme == "unix":
                with contextlib.suppress(OSError):
                    os.unlink(self.address.path)
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

    def start_session(self, session: Session) -> None:
        """Run the handler of a new session once its handshake is done."""
        if self._closing:
            session.abort("the server is closed")
            return
        half_open = sum(1 for other in self.sessions if not other.ready.done())
        if half_open >= MAX_PENDING_HANDSHAKES:
            session.abort(f"{MAX_PENDING_HANDSHAKES} connections have not finished their handshake")
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

    def _log_unhandled(self, session: Session, problem: PeerViolation) -> None:
        """Log that a peer broke the protocol before the handler ran, perhaps because it speaks
        another protocol or version.

        It is a warning once in WARNING_INTERVAL_SECONDS, so that peers cannot flood the log, and
        otherwise at level info.
        """
        now = session.loop.time()
        level = logging.INFO
        if now - self._warned_at >= WARNING_INTERVAL_SECONDS:
            self._warned_at = now
            level = logging.WARNING
        log.log(level, "%s ended before it was handled: %s", session, problem)

    async def run_session(self, session: Session) -> None:
        """Run the handler of one session and close it. Exceptions are logged, not raised."""
        configure_tcp_keepalive(session.transport, session.timeouts.keepalive_interval)
        set_peer_name(session, self.url)
        handler_called = False
        try:
            await asyncio.shield(session.ready)
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


class ServeOptions(TypedDict, total=False):
    """The keywords of `serve` that do not depend on the protocol."""

    limits: Limits | None
    timeouts: Timeouts | None
    tls: ssl.SSLContext | None
    busy_poll: float
    recorder: RecorderFactory | None
    meter: SessionMeter | None


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
        limits: Limits on what each peer can make this side hold; `Limits()` by default.
        timeouts: Timeouts of each session in seconds; `Timeouts()` by default.
            `timeouts.handshake` also bounds the TLS and WebSocket handshakes.
        tls: TLS context with a certificate, required for `tls://` and `wss://`.
        busy_poll: Maximum busy-poll time in seconds after a send; 0 disables busy polling.
        recorder: Records the sessions, such as a `polymux.record.Recorder`.
        meter: Counts sessions, such as a `polymux.metrics.Meter`.

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
    address = parse_url(url)
    text = protocol_for_scheme(protocol, address.scheme)
    make = session_factory(text, ACCEPTOR, limits, timeouts, 0.0, busy_poll, recorder, meter)

    async def serve() -> Server:
        server = Server(address, handler)
        if address.scheme == "stdio":
            server.start_session(await open_stdio_session(make))
            return server

        def make_served() -> Session:
            session = make()
            session.on_connection_made = server.start_session  # after the TLS handshake
            return session

        factory: Callable[[], asyncio.Protocol] = make_served
        if address.scheme in WEBSOCKET_SCHEMES:
            factory = server.upgrade_listener = UpgradeListener(
                address.path, make_served, (timeouts or Timeouts()).handshake
            )
        try:
            await listen(server, factory, tls, (timeouts or Timeouts()).handshake)
        except OSError as problem:
            raise Unreachable(
                f"{address}: cannot listen there: {describe_os_error(problem)}"
            ) from None
        return server

    serve.__qualname__ = "serve"
    return Pending(serve())


async def listen(
    server: Server,
    factory: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext | None,
    handshake_timeout: float,
) -> None:
    """Open the listening socket and start to accept. Sets the actual port in `server.address`."""
    loop = asyncio.get_running_loop()
    address = server.address
    listener: asyncio.Server
    if address.scheme == "unix":
        listener = await loop.create_unix_server(factory, address.path, start_serving=False)
    elif address.scheme in ("tcp", "tls", *WEBSOCKET_SCHEMES):
        secure = address.scheme in ("tls", "wss")
        if secure and tls is None:
            raise BadUrl(
                f"{address}: {address.scheme}:// needs a context with a certificate: tls=..."
            )
        context = tls if secure else None
        listener = await loop.create_server(
            factory, address.host, address.port, ssl=context, start_serving=False,
            ssl_handshake_timeout=handshake_timeout if context else None,
        )  # fmt: skip
        port = listener.sockets[0].getsockname()[1]
        server.address = Address(address.scheme, address.host, port, address.path)
    else:
        raise BadUrl(f"{address}: {address.scheme}: cannot be listened on for this protocol")
    server.listener = listener
    try:
        await listener.start_serving()
    except BaseException:
        listener.close()
        raise
