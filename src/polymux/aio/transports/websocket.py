"""Connecting to a WebSocket: TCP or TLS, perhaps the token, then the HTTP upgrade."""

import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from polymux.aio.runtime import AsyncioRuntime
from polymux.core.token_exchange import SharedToken
from polymux.live.session.session import Session
from polymux.live.transports.token import DialerToken
from polymux.live.transports.websocket import ClientUpgrade
from polymux.live.urls import Address

TLS_HANDSHAKE_SECONDS = 1e6  # the timeout of the whole attempt ends it first


async def connect_websocket(
    runtime: AsyncioRuntime,
    address: Address,
    make: Callable[[], Session],
    tls: ssl.SSLContext | None,
    server_hostname: str | None,
    token: SharedToken | None,
) -> Session:
    """Connect, upgrade, and return the session. If cancelled, no connection is left.

    Args:
        runtime: Where the session runs.
        address: A ws:// or wss:// address.
        make: Creates the session, after the upgrade.
        tls: Client context for wss://; None for the default context.
        server_hostname: Host name to verify; None for that of the address.
        token: Proved before the upgrade is requested; None for none.

    Raises:
        Unreachable: The server rejected the upgrade or closed the connection.
        OSError: The TCP or TLS connection failed.
    """
    context = None
    if address.scheme == "wss":
        context = tls if tls is not None else ssl.create_default_context()

    def first_protocol() -> ClientUpgrade | DialerToken[ClientUpgrade]:
        begin = partial(ClientUpgrade, address, make, runtime)
        return begin() if token is None else DialerToken(address, token, begin, runtime)

    made: ClientUpgrade | DialerToken[ClientUpgrade]
    transport, made = await runtime.loop.create_connection(
        cast(Any, first_protocol),  # it has the methods of asyncio's protocols
        address.host,
        address.port,
        ssl=context,
        server_hostname=(server_hostname or address.host) if context else None,
        ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS if context else None,
    )
    try:
        upgrade = await made.proved() if isinstance(made, DialerToken) else made
        session: Session = await upgrade.done
        return session
    except BaseException:
        transport.abort()
        raise
