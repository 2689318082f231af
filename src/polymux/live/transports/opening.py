"""Opening the connection of a session: TLS, the token, the WebSocket upgrade, in this order.

`open_connection` does it over a plain socket, for doors without transports of their own.
`connecting` has the rules around it.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from polymux.core.errors import Unsupported
from polymux.core.token_exchange import SharedToken
from polymux.live.connecting import named_failures
from polymux.live.runtime import Runtime
from polymux.live.session.session import Session
from polymux.live.transport import ByteHandler, Transport
from polymux.live.transports.sockets import (
    SocketRuntime,
    SocketTransport,
    begin_tls,
    connect_socket,
    connect_unix,
)
from polymux.live.transports.token import DialerToken
from polymux.live.transports.websocket import WEBSOCKET_SCHEMES, ClientUpgrade
from polymux.live.urls import Address

SECURE_SCHEMES = ("tls", "wss")


async def open_connection(
    runtime: SocketRuntime,
    address: Address,
    make: Callable[[], Session],
    tls: ssl.SSLContext | None,
    server_hostname: str | None,
    token: SharedToken | None,
) -> Session:
    """Connect, and go through what comes before the session. If cancelled, no connection is left.

    Raises:
        Unreachable: Connecting failed.
        Unsupported: The address is not that of a socket.
    """
    if address.scheme in ("exec", "stdio"):
        raise Unsupported(
            f"{address}: child processes and standard streams need asyncio: use polymux.connect"
        )
    with named_failures(address):
        sock = await connected_socket(runtime, address)
        context, name = client_tls(address, tls, server_hostname)
        if context is not None:
            sock = await begin_tls(runtime, sock, context, server_hostname=name)
        first = first_handler(runtime, address, make, token)
        transport = SocketTransport(runtime, sock, first)
        try:
            transport.start()
        except BaseException:
            transport.abort()
            raise
        return await opened_session(transport, first)


def client_tls(
    address: Address, tls: ssl.SSLContext | None, server_hostname: str | None
) -> tuple[ssl.SSLContext | None, str | None]:
    """The context for an address and the name to verify, by default the host's; None: no TLS."""
    if address.scheme not in SECURE_SCHEMES:
        return None, None
    return tls if tls is not None else ssl.create_default_context(), server_hostname or address.host


def first_handler(
    runtime: Runtime, address: Address, make: Callable[[], Session], token: SharedToken | None
) -> ByteHandler:
    """Return what handles a new connection first: the token, then the upgrade, then the session."""

    def after_token() -> ByteHandler:
        if address.scheme in WEBSOCKET_SCHEMES:
            return ClientUpgrade(address, make, runtime)
        return make()

    return after_token() if token is None else DialerToken(address, token, after_token, runtime)


async def opened_session(transport: Transport, first: ByteHandler) -> Session:
    """Go through what comes before the session, and return it. If that fails, abort."""
    try:
        following = await first.proved() if isinstance(first, DialerToken) else first
        if isinstance(following, ClientUpgrade):
            following = await following.done
    except BaseException:
        transport.abort()
        raise
    return cast(Session, following)  # what `make` returned


async def connected_socket(runtime: SocketRuntime, address: Address) -> socket.socket:
    """Return a socket that is connected to an address: the first of the host's that answers."""
    if address.scheme == "unix":
        return await connect_unix(runtime, address.path)
    found = await runtime.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    problem: OSError = OSError("the host has no address")
    for family, kind, number, _, where in found:
        try:
            return await connect_socket(runtime, family, kind, number, where)
        except OSError as failed:
            problem = failed
    raise problem


async def accept_transport(
    runtime: SocketRuntime,
    make: Callable[[], Any],
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    handshake_timeout: float | None,
) -> SocketTransport:
    """Do the TLS handshake on an accepted socket, if there is a context, and begin to read.

    Args:
        runtime: Where the connection is served.
        make: Makes what handles it, after the handshake.
        sock: The socket, non-blocking. It is closed if this fails.
        tls: Context with a certificate; None: no TLS.
        handshake_timeout: Seconds; None: as long as it takes.

    Raises:
        OSError: The handshake failed, or took too long (TimeoutError).
    """
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        late = None if handshake_timeout is None else runtime.time() + handshake_timeout
        async with runtime.timeout_at(late):
            sock = await begin_tls(runtime, sock, tls, server_side=True)
    try:
        transport = SocketTransport(runtime, sock, make())
    except BaseException:
        sock.close()
        raise
    try:
        transport.start()
    except BaseException:  # of a recorder that has no space left, for example
        transport.abort()
        raise
    return transport
