"""`serve`: sessions for everybody who connects."""

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
    configure_tcp_keepalive,
    session_factory,
    set_peer_name,
)
from polymux.aio.hooks import RecorderFactory
from polymux.aio.metering import SessionMeter
from polymux.aio.pending import Pending
from polymux.aio.protocols.minmux import MinmuxSession
from polymux.aio.protocols.nerdbank import NerdbankSession
from polymux.aio.protocols.omnistreams import OmnistreamsSession
from polymux.aio.protocols.streamux import StreamuxSession
from polymux.aio.session.busy_poll import DEFAULT_BUSY_POLL_SECONDS
from polymux.aio.session.session import Session
from polymux.aio.transports.stdio import open_stdio_session
from polymux.aio.transports.websocket import WEBSOCKET_SCHEMES, UpgradeListener, protocol_for_scheme
from polymux.aio.urls import Address, BadUrl, parse_url
from polymux.core.errors import PeerViolation, PolymuxError
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import ACCEPTOR

log = logging.getLogger("polymux.aio")

S = TypeVar("S", bound=Session)
SessionHandler = Callable[[Any], Awaitable[None]]
MAX_PENDING_HANDSHAKES = 128  # connections whose handshake is not finished
WARNING_INTERVAL_SECONDS = (
    60.0  # seconds between two warnings of peers that broke a rule before they were handled
)
HANDLER_GRACE_SECONDS = (
    1.0  # seconds for handlers to end by themselves once their sessions are closed
)


class Server:
    """A listening socket and the sessions it took. `url` is where it can be reached."""

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
        """Stop listening, close every session, and end the handlers that go on.

        What was queued before leaves first, within the policy's time. If cancelled, the sessions
        are cut.
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
        """Serve until the server is closed; over stdio:, until its one session has ended."""
        await asyncio.shield(self._closed)

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    def start_session(self, session: Session) -> None:
        """A new session: run the handler on it once its handshake is done."""
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
        """Log that a peer, perhaps of another protocol or version, never got to the handler: as a
        warning, but only one in `QUIET` seconds, so that no peer can flood the log."""
        now = session.loop.time()
        level = logging.INFO
        if now - self._warned_at >= WARNING_INTERVAL_SECONDS:
            self._warned_at = now
            level = logging.WARNING
        log.log(level, "%s ended before it was handled: %s", session, problem)

    async def run_session(self, session: Session) -> None:
        """The life of one session; nothing that happens in it harms another."""
        configure_tcp_keepalive(session)
        set_peer_name(session, self.url)
        called = False
        try:
            await asyncio.shield(session.ready)
            session.check_open()
            called = True
            await self.handler(session)
        except PolymuxError as problem:
            if isinstance(problem, PeerViolation) and not called:
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
    """A group of nothing but our own errors: the peer went away under several tasks at once."""
    return isinstance(problem, ExceptionGroup) and problem.split(PolymuxError)[1] is None


class ServeOptions(TypedDict, total=False):
    """What `serve` takes beside the handler, the URL and the protocol."""

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
    """Listen at `url`; `handler(session)` runs for each session, which closes when it returns.

    `async with polymux.serve(...) as server` closes it at the end of the block; `await
    polymux.serve(...)` gives the server and leaves that to you. Port 0 takes a free port;
    `server.url` says which. `tls://` needs a context with a certificate. `recorder` (a
    `polymux.record.Recorder`) writes down what passes, `meter` (a `polymux.metrics.Meter`) counts
    what happens. If cancelled, nothing listens.
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

        def arrive() -> Session:
            session = make()
            session.on_connection_made = (
                server.start_session
            )  # a failed TLS handshake never gets there
            return session

        factory: Callable[[], asyncio.Protocol] = arrive
        if address.scheme in WEBSOCKET_SCHEMES:
            factory = server.upgrade_listener = UpgradeListener(
                address.path, arrive, (timeouts or Timeouts()).handshake
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
    """Open the listening socket."""
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
