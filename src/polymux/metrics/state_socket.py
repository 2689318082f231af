"""A Unix socket that answers with the state of a process, for `polymux top`.

A client sends a line, and gets one line of JSON: what it sends is `state`, and the answer is that
of the function which the socket was made with. Nothing is sent unasked, so a client that does not
read costs nothing, and a process without a client computes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Final

from polymux.aio.errors import describe_os_error
from polymux.aio.listener import bind_unix_socket, inode_of
from polymux.aio.urls import BadUrl, parse_url

STATE_VERSION: Final = 1  # of the answers; a client refuses a later one
PRIVATE_SOCKET: Final = 0o600
REQUEST: Final = b"state"
MAX_CLIENTS: Final = 8  # further ones are closed at once
MAX_REQUEST_BYTES: Final = 256
_BACKLOG: Final = 16

State = Mapping[str, object]


class StateSocket:
    """Answers requests for the state of this process. Use it in `async with`.

    Only processes of the same user can connect: the socket has mode 0600.

    Args:
        url: `unix:///path/of/the/socket`. A socket that was left behind is replaced.
        state: Returns the state, as values that JSON can express. `Meter.state` is such a function.
            It is called in the event loop, at most once for each request.

    Raises:
        BadUrl: `url` is not of a Unix socket.
    """

    def __init__(self, url: str, state: Callable[[], State]) -> None:
        self._address = parse_url(url)
        if self._address.scheme != "unix":
            raise BadUrl(f"{url}: the state of a process is served at a unix:// URL only")
        self._state = state
        self._server: asyncio.Server | None = None
        self._inode: tuple[int, int] | None = None
        self._clients: set[asyncio.StreamWriter] = set()

    def __repr__(self) -> str:
        return f"<polymux state socket at {self._address}>"

    @property
    def url(self) -> str:
        """Where it listens."""
        return str(self._address)

    async def start(self) -> None:
        """Listen.

        Raises:
            BadUrl: The path cannot be listened on, for example because a server answers there.
        """
        path = self._address.path
        try:
            bound = bind_unix_socket(path, _BACKLOG, PRIVATE_SOCKET)
        except OSError as problem:
            reason = describe_os_error(problem)
            raise BadUrl(f"{self._address}: cannot listen there: {reason}") from None
        self._inode = inode_of(path)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=bound, limit=MAX_REQUEST_BYTES
        )

    async def close(self) -> None:
        """Stop listening, close all connections and remove the socket."""
        if self._server is None:
            return
        with contextlib.suppress(OSError):
            if inode_of(self._address.path) == self._inode:
                os.unlink(self._address.path)
        self._server.close()
        for writer in list(self._clients):
            writer.close()
        self._server = None
        await asyncio.sleep(0)

    async def __aenter__(self) -> StateSocket:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= MAX_CLIENTS:
            writer.close()
            return
        self._clients.add(writer)
        try:
            while line := await reader.readline():
                writer.write(self._answer(line))
                await writer.drain()
        except (OSError, ValueError):  # it is gone, or its line has no end
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    def _answer(self, line: bytes) -> bytes:
        if line.strip() != REQUEST:
            answer: State = {"error": "the only request is: state"}
        else:
            answer = self._state()
        text = json.dumps({"polymux": STATE_VERSION, **answer}, separators=(",", ":"))
        return text.encode() + b"\n"
