"""`serve`: accept connections at a URL and run a handler for each session."""

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from polymux.aio.runtime import current_runtime
from polymux.aio.transports.stdio import open_stdio_session
from polymux.core.limits import Limits, Timeouts
from polymux.live.arguments import check_handler
from polymux.live.factory import (
    MINMUX,
    NERDBANK,
    OMNISTREAMS,
    STREAMUX,
    YAMUX,
)
from polymux.live.hooks import RecorderFactory, SessionMeter
from polymux.live.pending import Pending
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.live.protocols.streamux import StreamuxSession
from polymux.live.protocols.yamux import YamuxSession
from polymux.live.server import (
    ServeOptions,
    Server,
    ServerBounds,
    SessionHandler,
    server_starter,
)
from polymux.live.session.busy_poll import DEFAULT_BUSY_POLL_SECONDS
from polymux.live.session.session import Session

S = TypeVar("S", bound=Session)

__all__ = ["ServeOptions", "Server", "ServerBounds", "serve", "serve_within"]


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
    reuse_port: bool = False,
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
        reuse_port: Several processes of this user listen at the same TCP address: each sets
            SO_REUSEPORT, and on Linux the kernel divides the connections among them. `limits` then
            hold in each process by itself.

    Returns:
        A `Pending` server. `async with polymux.serve(...) as server` closes it at the end of the
        block; after `await polymux.serve(...)` the caller closes it. If it is cancelled, nothing
        listens.

    Raises:
        Unreachable: When awaited: the address cannot be listened on.
        BadUrl: The URL is invalid or cannot be listened on, or `tls` is missing.
        Unsupported: `reuse_port`, on a system that has no SO_REUSEPORT.
        PolymuxError: The protocol string is invalid.
        TypeError, ValueError: Another argument is invalid.
    """
    return serve_within(
        None,
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
        reuse_port,
    )


def serve_within(
    bounds: ServerBounds | None,
    handler: SessionHandler,
    url: str,
    protocol: str,
    *arguments: Any,
    **options: Any,
) -> Pending[Server]:
    """Like `serve`, with bounds that several servers can share; None: its own."""
    check_handler(handler)
    start = server_starter(
        handler,
        url,
        protocol,
        *arguments,
        runtime=current_runtime,
        open_stdio=open_stdio_session,
        bounds=bounds,
        **options,
    )
    return Pending(start())
