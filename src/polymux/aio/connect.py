"""`connect`: open a session to a peer at a URL."""

import ssl
from collections.abc import Callable
from typing import Any, Unpack, cast, overload

from polymux.aio.runtime import AsyncioRuntime, current_runtime
from polymux.aio.transports.process import start_process
from polymux.aio.transports.stdio import open_stdio_session
from polymux.core.limits import Limits, Timeouts
from polymux.core.token_exchange import SharedToken
from polymux.live.connecting import ConnectOptions, named_failures, session_connector
from polymux.live.errors import Unreachable
from polymux.live.factory import MINMUX, NERDBANK, OMNISTREAMS, STREAMUX, YAMUX
from polymux.live.hooks import RecorderFactory, SessionMeter
from polymux.live.pending import Pending
from polymux.live.protocols.minmux import MinmuxSession
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.live.protocols.streamux import StreamuxSession
from polymux.live.protocols.yamux import YamuxSession
from polymux.live.session.busy_poll import DEFAULT_BUSY_POLL_SECONDS
from polymux.live.session.session import Session
from polymux.live.transport import ByteHandler
from polymux.live.transports.opening import client_tls, first_handler, opened_session
from polymux.live.transports.sockets import connect_unix
from polymux.live.urls import Address

__all__ = ["ConnectOptions", "Connecting", "Unreachable", "connect"]

Connecting = Pending

TLS_HANDSHAKE_SECONDS = 1e6  # the timeout of the whole attempt ends it first


@overload
def connect(
    url: str, *, protocol: NERDBANK, **options: Unpack[ConnectOptions]
) -> Pending[NerdbankSession]: ...
@overload
def connect(
    url: str, *, protocol: OMNISTREAMS, **options: Unpack[ConnectOptions]
) -> Pending[OmnistreamsSession]: ...
@overload
def connect(
    url: str, *, protocol: STREAMUX, **options: Unpack[ConnectOptions]
) -> Pending[StreamuxSession]: ...
@overload
def connect(
    url: str, *, protocol: MINMUX, **options: Unpack[ConnectOptions]
) -> Pending[MinmuxSession]: ...
@overload
def connect(
    url: str, *, protocol: YAMUX, **options: Unpack[ConnectOptions]
) -> Pending[YamuxSession]: ...
@overload
def connect(url: str, *, protocol: str, **options: Unpack[ConnectOptions]) -> Pending[Session]: ...
def connect(
    url: str,
    *,
    protocol: str,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    timeout: float = 10.0,
    wait: float = 0.0,
    opens_per_second: float = 0.0,
    busy_poll: float = DEFAULT_BUSY_POLL_SECONDS,
    recorder: RecorderFactory | None = None,
    meter: SessionMeter | None = None,
    token: str | bytes | None = None,
) -> Pending[Session]:
    """Open a session to the peer at `url`.

    Busy polling is on by default: while replies keep arriving quickly, the event loop spins for up
    to 200 microseconds after each send instead of blocking, which shortens round trips and costs
    processor time. `busy_poll=0` turns it off.

    `timeout` and `timeouts` are two things: `timeout` bounds this call, `timeouts` belongs to the
    session and applies as long as it is open.

    Args:
        url: `tcp://HOST:PORT`, `tls://`, `ws://`, `wss://`, `unix://PATH`, `exec:COMMAND` or
            `stdio:`.
        protocol: Protocol string: a name such as `mplex`, with options as in
            `nerdbank:version=2`.
        limits: Limits on what the peer can make this side hold; `Limits()` by default.
        timeouts: Timeouts of the session in seconds; `Timeouts()` by default.
        tls: TLS context for `tls://` and `wss://`. By default the peer is verified by the system's
            certificate authorities.
        server_hostname: Name to verify in the peer's certificate; the URL's host by default.
        timeout: Seconds for connecting and for the protocol's handshake, for each attempt.
        wait: For how many seconds to try again while nothing listens at `url`; 0 means one attempt.
        opens_per_second: Rate limit for opening streams; 0 means none. For peers that count them:
            js-libp2p ends a session at the sixth stream within a second, so 4 is safe.
        busy_poll: Maximum busy-poll time in seconds after a send; 0 disables busy polling.
        recorder: Records the session, such as a `polymux.record.Recorder`.
        meter: Counts sessions, such as a `polymux.metrics.Meter`.
        token: The token that the server asks for, 16 to 1,024 bytes; over TLS, a Unix socket or a
            loopback address only. The server has to prove that it knows the token too.

    Returns:
        A `Pending` session. Await it, or enter it with `async with`, which closes the session at
        the end of the block. If it is cancelled, no connection and no child process is left.

    Raises:
        Unreachable: When awaited: no connection or no handshake within `timeout`.
        SessionClosed: When awaited: the peer ended the session during the handshake, or broke the
            protocol.
        BadUrl: The URL is invalid.
        PolymuxError: The protocol string is invalid.
        TypeError, ValueError: Another argument is invalid.
    """
    begin = session_connector(
        url,
        protocol,
        limits,
        timeouts,
        tls,
        server_hostname,
        timeout,
        wait,
        opens_per_second,
        busy_poll,
        recorder,
        meter,
        token,
        runtime=current_runtime,
        open_connection=open_connection,
    )
    return Pending(begin())


async def open_connection(
    runtime: AsyncioRuntime,
    address: Address,
    make: Callable[[], Session],
    tls: ssl.SSLContext | None,
    server_hostname: str | None,
    token: SharedToken | None,
) -> Session:
    """Connect, and go through what comes before the session.

    Raises:
        NotListening: Nothing listens there yet.
        Unreachable: Connecting failed for another reason.
        TimeoutError: The system gave up, or the caller's timeout has passed.
    """
    loop = runtime.loop

    def make_first() -> ByteHandler:
        return first_handler(runtime, address, make, token)

    first = cast(Any, make_first)  # what it makes has the methods of asyncio's protocols
    with named_failures(address):
        if address.scheme == "exec":
            return await start_process(address.command, make)
        if address.scheme == "stdio":
            return await open_stdio_session(make)
        if address.scheme == "unix":
            transport, made = await loop.create_unix_connection(
                first, sock=await connect_unix(runtime, address.path)
            )
        else:
            context, name = client_tls(address, tls, server_hostname)
            transport, made = await loop.create_connection(
                first,
                address.host,
                address.port,
                ssl=context,
                server_hostname=name,
                ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS if context else None,
            )
        return await opened_session(transport, made)
