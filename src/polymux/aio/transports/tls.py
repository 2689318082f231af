"""TLS connections that a server accepts on asyncio.

asyncio reads every TLS connection through a buffer of its own, 256 KiB by default, which it holds
as long as the connection is open. A server with thousands of connections that send nothing would
hold gigabytes, so connections that are accepted get a smaller one: four TLS records, which is
enough for bulk transfers.
"""

import asyncio
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any, cast

READ_BUFFER_BYTES = 64 * 1024


class AcceptedTls(SSLProtocol):
    """asyncio's TLS, with a smaller buffer."""

    max_size = READ_BUFFER_BYTES


class AsyncioListenerLoop:
    """A loop of asyncio for listeners (`live.listener.ListenerLoop`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.time = loop.time
        self.call_later = loop.call_later
        self.create_task = loop.create_task
        self.add_reader = loop.add_reader
        self.remove_reader = loop.remove_reader
        self.getaddrinfo = loop.getaddrinfo

    async def connect_accepted_socket(
        self,
        protocol_factory: Callable[[], Any],
        sock: socket.socket,
        *,
        ssl: ssl.SSLContext | None = None,
        ssl_handshake_timeout: float | None = None,
    ) -> object:
        """As the loop does it, with `AcceptedTls` where TLS is asyncio's."""
        loop = self._loop
        if ssl is None or not isinstance(loop, asyncio.BaseEventLoop):  # uvloop has its own TLS
            return await loop.connect_accepted_socket(
                protocol_factory, sock, ssl=ssl, ssl_handshake_timeout=ssl_handshake_timeout
            )
        done = loop.create_future()
        handler = protocol_factory()

        def make() -> AcceptedTls:
            # Typeshed says int; asyncio takes any number of seconds.
            seconds = cast(int | None, ssl_handshake_timeout)
            return AcceptedTls(loop, handler, ssl, done, True, ssl_handshake_timeout=seconds)

        try:
            transport, _ = await loop.connect_accepted_socket(make, sock)
        except BaseException:
            done.cancel()
            raise
        try:
            await done
        except BaseException:
            transport.abort()
            raise
        return handler
