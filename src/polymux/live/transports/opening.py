"""Opening the connection of a session over a plain socket: TLS, the token, the WebSocket upgrade.

For doors without transports of their own; `connecting` has the rules around it.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Any

from polymux.core.errors import Unsupported
from polymux.core.token_exchange import SharedToken
from polymux.live.connecting import named_failures
from polymux.live.session.session import Session
from polymux.live.transport import ByteHandler
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
        if address.scheme in SECURE_SCHEMES:
            context = tls if tls is not None else ssl.create_default_context()
            name = server_hostname or address.host
            sock = await begin_tls(runtime, sock, context, server_hostname=name)

        def after_token() -> ByteHandler:
            if address.scheme in WEBSOCKET_SCHEMES:
                return ClientUpgrade(address, make, runtime)
            return make()

        first = (
            after_token() if token is None else DialerToken(address, token, after_token, runtime)
        )
        transport = SocketTransport(runtime, sock, first)
        try:
            transport.start()
            following = await first.proved() if isinstance(first, DialerToken) else first
            if isinstance(following, ClientUpgrade):
                following = await following.done
        except BaseException:
            transport.abort()
            raise
    assert isinstance(following, Session)  # what `make` returned
    return following


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
