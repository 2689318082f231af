"""How the tester gets a connection for each case: it dials, starts a child, or accepts."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import ssl
from collections.abc import AsyncIterator, Callable
from typing import cast

from polymux.aio.connect import Unreachable
from polymux.aio.errors import describe_os_error
from polymux.aio.session.session import Session
from polymux.aio.transports.websocket import WEBSOCKET_SCHEMES, connect_websocket
from polymux.aio.urls import Address, BadUrl, parse_url
from polymux.conform.connection import PeerConnection

MakeConnection = Callable[[], PeerConnection]
RETRY_SECONDS = 0.05
EXIT_GRACE_SECONDS = 1.0  # from the end of a connection until the child is killed


class Dialer:
    """Connects to a peer that listens, or starts it as a child process (`exec:`).

    Args:
        url: where the peer listens.
        timeout: seconds to connect, and to retry while nothing listens.
        tls: the context for tls:// and wss://; None: the system's authorities.
    """

    def __init__(self, url: str, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        self.address = parse_url(url)
        if self.address.scheme == "stdio":
            raise BadUrl("stdio: has one connection only, and each case needs its own")
        self.timeout = timeout
        self.tls = tls

    async def __aenter__(self) -> Dialer:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    @contextlib.asynccontextmanager
    async def connection(self, make: MakeConnection) -> AsyncIterator[PeerConnection]:
        """A new connection; it is dropped at the end.

        Raises:
            Unreachable: the peer cannot be reached within the time limit.
        """
        if self.address.scheme == "exec":
            async with child_connection(self.address.command, make) as link:
                yield link
            return
        link = await self._dial(make)
        try:
            yield link
        finally:
            link.abort()

    async def _dial(self, make: MakeConnection) -> PeerConnection:
        loop = asyncio.get_running_loop()
        latest = loop.time() + self.timeout
        while True:
            try:
                async with asyncio.timeout_at(latest):
                    return await self._attempt(make)
            except TimeoutError:
                raise Unreachable(f"{self.address}: no answer in {self.timeout:g} s") from None
            except OSError as problem:
                if loop.time() + RETRY_SECONDS >= latest:
                    refused = isinstance(problem, ConnectionRefusedError)
                    reason = "nothing listens there" if refused else describe_os_error(problem)
                    raise Unreachable(f"{self.address}: {reason}") from None
            await asyncio.sleep(RETRY_SECONDS)

    async def _attempt(self, make: MakeConnection) -> PeerConnection:
        loop = asyncio.get_running_loop()
        address = self.address
        if address.scheme == "unix":
            return (await loop.create_unix_connection(make, address.path))[1]
        if address.scheme in WEBSOCKET_SCHEMES:
            # cast: only the methods of asyncio.Protocol are used
            session = cast("Callable[[], Session]", make)
            link = await connect_websocket(address, session, self.tls, None, self.timeout)
            return cast(PeerConnection, link)
        secure = address.scheme == "tls"
        context = (self.tls or ssl.create_default_context()) if secure else None
        return (await loop.create_connection(make, address.host, address.port, ssl=context))[1]


class Acceptor:
    """Listens, and examines what connects; starts `command` for each case if there is one.

    Args:
        url: where to listen; port 0 chooses a free one.
        timeout: seconds to wait for the peer to connect.
        tls: the context of tls://.
        command: starts the client under test; `{url}` in it is where it has to connect.
    """

    def __init__(
        self, url: str, timeout: float, tls: ssl.SSLContext | None = None, command: str = ""
    ) -> None:
        self.address = parse_url(url)
        if self.address.scheme not in ("tcp", "tls", "unix"):
            raise BadUrl(f"{url!r}: the tester listens at tcp://, tls:// and unix:// only")
        if self.address.scheme == "tls" and tls is None:
            raise BadUrl(f"{url!r}: listening at tls:// needs a certificate")
        self.timeout = timeout
        self.tls = tls
        self.command = command
        self._server: asyncio.Server | None = None
        self._wanted: asyncio.Queue[tuple[MakeConnection, asyncio.Future[PeerConnection]]]
        self._wanted = asyncio.Queue()
        self._early: list[_Waiting] = []

    async def __aenter__(self) -> Acceptor:
        loop = asyncio.get_running_loop()
        try:
            if self.address.scheme == "unix":
                self._server = await loop.create_unix_server(self._accepted, self.address.path)
            else:
                self._server = await loop.create_server(
                    self._accepted, self.address.host, self.address.port, ssl=self.tls
                )
                port = self._server.sockets[0].getsockname()[1]
                self.address = Address(self.address.scheme, self.address.host, port)
        except OSError as problem:
            raise Unreachable(f"{self.address}: {describe_os_error(problem)}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for waiting in self._early:
            waiting.drop()

    def _accepted(self) -> asyncio.Protocol:
        """A connection has come: for the case that waits, or for the next one."""
        if not self._wanted.empty():
            make, future = self._wanted.get_nowait()
            if not future.done():
                link = make()
                future.set_result(link)
                return link
        waiting = _Waiting()
        self._early.append(waiting)
        return waiting

    @contextlib.asynccontextmanager
    async def connection(self, make: MakeConnection) -> AsyncIterator[PeerConnection]:
        """The next connection of the peer; it is dropped at the end.

        Raises:
            Unreachable: the peer did not connect within the time limit, or did not start.
        """
        async with started(self.command, str(self.address)):
            link = await self._next(make)
            try:
                yield link
            finally:
                link.abort()

    async def _next(self, make: MakeConnection) -> PeerConnection:
        while self._early:
            waiting = self._early.pop(0)
            if not waiting.over:
                link = make()
                waiting.hand_over_to(link)
                return link
        future: asyncio.Future[PeerConnection] = asyncio.get_running_loop().create_future()
        self._wanted.put_nowait((make, future))
        try:
            async with asyncio.timeout(self.timeout):
                link = await future
                while link.transport is None:
                    link.changed.clear()
                    await link.changed.wait()
                return link
        except TimeoutError:
            raise Unreachable(
                f"{self.address}: the peer did not connect in {self.timeout:g} s"
            ) from None


class _Waiting(asyncio.Protocol):
    """A connection that came before its case; it is not read until then."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.over = False
        self._received = bytearray()
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._received += data

    def eof_received(self) -> bool:
        self._ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def hand_over_to(self, link: PeerConnection) -> None:
        assert self.transport is not None  # it was accepted
        self.transport.set_protocol(link)
        link.connection_made(self.transport)
        if self._received:
            link.data_received(bytes(self._received))
        if self._ended:
            link.eof_received()
        else:
            self.transport.resume_reading()


@contextlib.asynccontextmanager
async def started(command: str, url: str) -> AsyncIterator[None]:
    """Run a command for the time of a case; no command: do nothing.

    Raises:
        Unreachable: it cannot be started.
    """
    if not command:
        yield
        return
    words = [word.replace("{url}", url) for word in shlex.split(command)]
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as problem:
        raise Unreachable(f"{words[0]}: {describe_os_error(problem)}") from None
    try:
        yield
    finally:
        await stop_process(process)


async def stop_process(process: asyncio.subprocess.Process) -> None:
    """Wait a moment for the end of a child, then kill it."""
    try:
        async with asyncio.timeout(EXIT_GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class _PipeTransport(asyncio.Transport):
    """The standard input of a child as the transport of a `PeerConnection`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self._process = process
        assert process.stdin is not None  # it is a pipe
        self._stdin = process.stdin

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return self._stdin.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._stdin.write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._stdin.close()

    def close(self) -> None:
        self._stdin.close()

    def abort(self) -> None:
        self._stdin.close()


@contextlib.asynccontextmanager
async def child_connection(
    command: tuple[str, ...], make: MakeConnection
) -> AsyncIterator[PeerConnection]:
    """A child process whose standard input and output are the connection.

    Raises:
        Unreachable: it cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError as problem:
        raise Unreachable(f"{command[0]}: {describe_os_error(problem)}") from None
    link = make()
    link.connection_made(_PipeTransport(process))
    assert process.stdout is not None  # it is a pipe
    output = process.stdout

    async def read() -> None:
        while data := await output.read(65536):
            link.data_received(data)
        link.connection_lost(None)

    reading = asyncio.create_task(read())
    try:
        yield link
    finally:
        link.abort()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stop_process(process)
