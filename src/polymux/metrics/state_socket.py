"""Unix sockets on which a process answers requests of one line: its state, for `polymux top`.

`RequestSocket` answers each line with one line of JSON, by a function. `StateSocket` is one whose
only request is `state`: the answer is that of the function which it was made with. Nothing is sent
unasked, and a process without a client computes nothing. However often clients ask for the state,
answers take a tenth of the time at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

from polymux.live.errors import describe_os_error
from polymux.live.listener import bind_unix_socket, inode_of
from polymux.live.urls import BadUrl, parse_url

STATE_VERSION: Final = 1  # of the answers; a client refuses a later one
PRIVATE_SOCKET: Final = 0o600
REQUEST: Final = b"state"
MAX_CLIENTS: Final = 8  # a further one takes the place of an idle one, or is closed at once
IDLE_SECONDS: Final = 10.0  # without a request, after which a client makes room for another
WRITE_SECONDS: Final = 10.0  # in which a client has to read an answer
REUSE_FACTOR: Final = 10  # an answer is sent again for this many times the time it took to make
MAX_REQUEST_BYTES: Final = 256
_BACKLOG: Final = 16

State = Mapping[str, object]
log = logging.getLogger("polymux.metrics")


class RequestSocket:
    """Answers requests of one line at a Unix socket. Use it in `async with`.

    Only processes of the same user can connect: the socket has mode 0600.

    Args:
        url: `unix:///path/of/the/socket`. A socket that was left behind is replaced.
        answer: Called in the event loop with each line; returns the line of the answer. It does
            not raise.
        what: What is served there, for messages: `the state of a process`.
        max_request_bytes: A client that sends a longer line is disconnected.

    Raises:
        BadUrl: `url` is not of a Unix socket.
    """

    def __init__(
        self,
        url: str,
        answer: Callable[[bytes], bytes],
        what: str,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        self._address = parse_url(url)
        if self._address.scheme != "unix":
            raise BadUrl(f"{url}: {what} is served at a unix:// URL only")
        self._answer = answer
        self._what = what
        self._max_request_bytes = max_request_bytes
        self._server: asyncio.Server | None = None
        self._inode: tuple[int, int] | None = None
        # Those that asked most recently are last.
        self._clients: dict[asyncio.StreamWriter, _Client] = {}

    def __repr__(self) -> str:
        return f"<polymux socket for {self._what} at {self._address}>"

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
            self._serve, sock=bound, limit=self._max_request_bytes
        )

    async def close(self) -> None:
        """Stop listening, close all connections, also with unsent answers; remove the socket."""
        if self._server is None:
            return
        with contextlib.suppress(OSError):
            if inode_of(self._address.path) == self._inode:
                os.unlink(self._address.path)
        self._server.close()
        self._server = None
        tasks = [client.task for client in self._clients.values()]
        for writer in list(self._clients):
            writer.transport.abort()
        if tasks:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        if self._server is None or not self._has_room():
            writer.transport.abort()
            return
        client = self._clients[writer] = _Client(task)
        try:
            while line := await reader.readline():
                client.asked_at = time.monotonic()
                self._clients[writer] = self._clients.pop(writer)
                writer.write(self._answer(line))
                async with asyncio.timeout(WRITE_SECONDS):
                    await writer.drain()
            writer.close()
            async with asyncio.timeout(WRITE_SECONDS):
                await writer.wait_closed()
        except (OSError, ValueError):  # it is gone, or does not read, or its line has no end
            pass
        finally:
            del self._clients[writer]
            writer.transport.abort()

    def _has_room(self) -> bool:
        """Whether there is room for one more client, or is made: the one idle for longest goes."""
        served = [writer for writer in self._clients if not writer.transport.is_closing()]
        if len(served) < MAX_CLIENTS:
            return True
        if time.monotonic() - self._clients[served[0]].asked_at < IDLE_SECONDS:
            return False
        served[0].transport.abort()
        return True


class StateSocket(RequestSocket):
    """Answers requests for the state of this process. Use it in `async with`.

    Args:
        url: As for `RequestSocket`.
        state: Returns the state, as values that JSON can express. `Meter.state` is such a function.
            It is called in the event loop, at most once for each request; its last answer is sent
            again as long as it is younger than 10 times the time that it took. If it raises, the
            clients are told, and the first failure is logged (`polymux.metrics`).

    Raises:
        BadUrl: `url` is not of a Unix socket.
    """

    def __init__(self, url: str, state: Callable[[], State]) -> None:
        super().__init__(url, self._answer_state, "the state of a process")
        self._state = state
        self._kept = b""  # the last answer
        self._kept_until = 0.0
        self._failure_logged = False

    def _answer_state(self, line: bytes) -> bytes:
        if line.strip() != REQUEST:
            return encoded({"error": "the only request is: state"})
        began = time.monotonic()
        if began >= self._kept_until:
            try:
                self._kept = encoded({"made_at": began, **self._state()})
            except Exception as failure:  # of the program's own function: any
                if not self._failure_logged:
                    self._failure_logged = True
                    log.exception("%s: the state cannot be told; logged once", self._address)
                reason = f"{type(failure).__name__}: {failure}"
                self._kept = encoded({"error": f"the program cannot tell its state: {reason}"})
            ended = time.monotonic()
            self._kept_until = ended + REUSE_FACTOR * (ended - began)
        return self._kept


class _Client:
    """A connection: the task that serves it, and when it last asked or connected."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.asked_at = time.monotonic()


def encoded(answer: State) -> bytes:
    """One line of JSON. TypeError and ValueError are those of `json.dumps`."""
    text = json.dumps({"polymux": STATE_VERSION, **answer}, separators=(",", ":"))
    return text.encode() + b"\n"
