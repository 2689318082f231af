"""How the tester gets a connection for each case: it dials, starts a child, or accepts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shlex
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from polymux.aio.connect import Unreachable
from polymux.aio.runtime import current_runtime
from polymux.conform.connection import PeerConnection
from polymux.core.errors import PolymuxError
from polymux.live.errors import describe_os_error
from polymux.live.listener import bind_tcp_sockets, bind_unix_socket, inode_of
from polymux.live.session.session import Session
from polymux.live.transports.opening import client_tls, first_handler, opened_session
from polymux.live.transports.websocket import WEBSOCKET_SCHEMES, HttpUpgrade
from polymux.live.urls import BadUrl, parse_url

MakeConnection = Callable[[], PeerConnection]
RETRY_SECONDS = 0.05
EXIT_GRACE_SECONDS = 1.0  # from the end of a connection until the child is killed
START_SECONDS = 30.0  # for a command to start and connect; an interpreter may take a while
BACKLOG = 100  # connections that the kernel holds
STDIN, STDOUT = 0, 1


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
        reason = f"no answer in {self.timeout:g} s"
        while True:
            try:
                async with asyncio.timeout_at(latest):
                    return await self._attempt(make)
            except TimeoutError:  # of the last attempt; one before it may have said why
                raise Unreachable(f"{self.address}: {reason}") from None
            except OSError as problem:
                refused = isinstance(problem, ConnectionRefusedError)
                reason = "nothing listens there" if refused else describe_os_error(problem)
                if loop.time() + RETRY_SECONDS >= latest:
                    raise Unreachable(f"{self.address}: {reason}") from None
            await asyncio.sleep(RETRY_SECONDS)

    async def _attempt(self, make: MakeConnection) -> PeerConnection:
        loop = asyncio.get_running_loop()
        address = self.address
        if address.scheme == "unix":
            return (await loop.create_unix_connection(make, address.path))[1]
        # cast: only the methods of asyncio.Protocol are used
        session = cast("Callable[[], Session]", make)
        first: Any = partial(first_handler, current_runtime(), address, session, None)
        context, name = client_tls(address, self.tls, None)
        transport, made = await loop.create_connection(
            first, address.host, address.port, ssl=context, server_hostname=name
        )
        return cast(PeerConnection, await opened_session(transport, made))


class Acceptor:
    """Listens, and examines what connects; starts `command` for each case if there is one.

    A connection belongs to the case whose command made it: what an earlier command has left behind
    is dropped. Without a command, a connection that came early waits for its case, unless the peer
    has closed it by then.

    Args:
        url: where to listen; port 0 chooses a free one.
        timeout: seconds to wait for the peer to connect; a command that runs has `START_SECONDS`.
        tls: the context of tls:// and wss://.
        command: starts the client under test; `{url}` in it is where it has to connect.

    Attributes:
        child_exited: the command ended without a connection.

    Raises:
        BadUrl: the tester cannot listen there.
        BadCommand: the command cannot be split into words.
    """

    def __init__(
        self, url: str, timeout: float, tls: ssl.SSLContext | None = None, command: str = ""
    ) -> None:
        self.address = parse_url(url)
        scheme = self.address.scheme
        if scheme not in ("tcp", "tls", "unix", *WEBSOCKET_SCHEMES):
            raise BadUrl(
                f"{url!r}: the tester listens at tcp://, tls://, unix://, ws:// and wss://"
            )
        if scheme in ("tls", "wss") and tls is None:
            raise BadUrl(f"{url!r}: listening at {scheme}:// needs a certificate")
        self.timeout = timeout
        self.tls = tls
        self.command = command_words(command)
        self.child_exited = False
        self._sockets: list[socket.socket] = []
        self._inode: tuple[int, int] | None = None  # of a Unix socket
        self._round = 0  # grows with each command; connections of earlier ones are dropped
        self._wanted: tuple[MakeConnection, asyncio.Future[PeerConnection]] | None = None
        self._early: list[_Waiting] = []
        self._accepting: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Acceptor:
        address = self.address
        try:
            if address.scheme == "unix":
                self._sockets = [bind_unix_socket(address.path, BACKLOG)]
                self._inode = inode_of(address.path)
            else:
                self._sockets = await bind_tcp_sockets(
                    asyncio.get_running_loop(), address.host, address.port, BACKLOG
                )
                port = self._sockets[0].getsockname()[1]
                self.address = replace(address, port=port)
        except OSError as problem:
            raise Unreachable(f"{address}: {describe_os_error(problem)}") from None
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.add_reader(listening.fileno(), self._accept_waiting)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._inode is not None:
            with contextlib.suppress(OSError):
                if inode_of(self.address.path) == self._inode:
                    os.unlink(self.address.path)
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening.fileno())
            listening.close()
        self._drop_early()
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)

    # Accepting

    def _take_sockets(self) -> list[socket.socket]:
        """The connections that the kernel holds."""
        found = []
        for listening in self._sockets:
            with contextlib.suppress(OSError):  # no more of them
                while True:
                    found.append(listening.accept()[0])
        return found

    def _accept_waiting(self) -> None:
        for sock in self._take_sockets():
            sock.setblocking(False)
            task = asyncio.create_task(self._make_transport(sock, self._round))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    async def _make_transport(self, sock: socket.socket, number: int) -> None:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(sock)
        first: Any = waiting  # it has the methods of a protocol of asyncio
        upgrade = None
        if self.address.scheme in WEBSOCKET_SCHEMES:
            first = upgrade = _AcceptedUpgrade(waiting)
        try:
            await loop.connect_accepted_socket(lambda: first, sock, ssl=self.tls)
        except OSError:  # of the TLS handshake; the peer may try again
            sock.close()
            return
        if upgrade is not None and not await upgrade.done:
            return
        if number != self._round or not waiting.usable(bool(self.command)):
            waiting.drop()
            return
        wanted, self._wanted = self._wanted, None
        if wanted is None or wanted[1].done():
            self._early.append(waiting)
            return
        make, future = wanted
        future.set_result(waiting.hand_over_to(make()))

    def _drop_early(self) -> None:
        """Drop every connection that has come, those in the kernel's queue too."""
        self._round += 1
        for waiting in self._early:
            waiting.drop()
        self._early.clear()
        for sock in self._take_sockets():
            sock.close()

    # A connection for a case

    @contextlib.asynccontextmanager
    async def connection(self, make: MakeConnection) -> AsyncIterator[PeerConnection]:
        """The next connection of the peer; it is dropped at the end.

        Raises:
            Unreachable: the peer did not connect within the time limit, or did not start.
        """
        if not self.command:
            link = await self._next(make, self.timeout)
            try:
                yield link
            finally:
                link.abort()
            return
        self._drop_early()
        words = tuple(word.replace("{url}", str(self.address)) for word in self.command)
        async with started(words) as child:
            link = await self._next_of_child(make, child)
            try:
                yield link
            finally:
                link.abort()

    async def _next_of_child(self, make: MakeConnection, child: ChildProcess) -> PeerConnection:
        """The connection of a command: it may start slowly, but not end without a connection."""
        connecting = asyncio.create_task(self._next(make, max(START_SECONDS, self.timeout)))
        exiting = asyncio.create_task(child.exited.wait())
        try:
            await asyncio.wait((connecting, exiting), return_when="FIRST_COMPLETED")
            # What it started may still connect, and its own connection may be in the queue.
            done, _ = await asyncio.wait((connecting,), timeout=self.timeout)
            if done or not child.exited.is_set():
                return await connecting
        finally:
            exiting.cancel()
            connecting.cancel()
        self.child_exited = True
        raise Unreachable(
            f"{self.address}: {self.command[0]} exited with {child.code} and did not connect"
        )

    async def _next(self, make: MakeConnection, seconds: float) -> PeerConnection:
        while self._early:
            waiting = self._early.pop(0)
            if waiting.usable(bool(self.command)):
                return waiting.hand_over_to(make())
            waiting.drop()
        future: asyncio.Future[PeerConnection] = asyncio.get_running_loop().create_future()
        self._wanted = make, future
        try:
            async with asyncio.timeout(seconds):
                return await future  # it is cancelled at the limit
        except TimeoutError:
            raise Unreachable(
                f"{self.address}: the peer did not connect in {seconds:g} s"
            ) from None


class _AcceptedUpgrade(HttpUpgrade):
    """Answers the upgrade request of a WebSocket client, on any path.

    The future `done` becomes True when `waiting` has the connection, False if there is none.
    """

    def __init__(self, waiting: _Waiting) -> None:
        super().__init__()
        self._waiting = waiting
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def on_head(self, head: bytes, rest: bytes) -> None:
        from websockets.http11 import Request
        from websockets.server import ServerProtocol

        assert self.transport is not None  # set in `connection_made`
        handshake = ServerProtocol()
        handshake.receive_data(head)
        for event in handshake.events_received():
            if isinstance(event, Request):
                response = handshake.accept(event)
                handshake.send_response(response)
                self.transport.write(b"".join(handshake.data_to_send()))
                if response.status_code == 101:
                    self.hand_over_to(self._waiting, rest)
                    self._decide(True)
                    return
        self.refuse("no WebSocket")

    def refuse(self, reason: str) -> None:
        super().refuse(reason)
        self._decide(False)

    def connection_lost(self, error: Exception | None) -> None:
        self._decide(False)

    def _decide(self, accepted: bool) -> None:
        if not self.done.done():
            self.done.set_result(accepted)


class _Waiting(asyncio.Protocol):
    """An accepted connection until it has its case; it is not read until then."""

    def __init__(self, sock: socket.socket) -> None:
        self.transport: asyncio.Transport | None = None
        self._socket = sock
        self._over = False
        self._received = bytearray()
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._received += data

    def eof_received(self) -> bool:
        self._ended = True
        return self.transport is not None and self.transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True

    def usable(self, may_have_ended: bool) -> bool:
        """Whether a case can have it; `may_have_ended`: even if the peer has closed it already."""
        if self._over or self.transport is None or self.transport.is_closing():
            return False
        return may_have_ended or not has_ended(self._socket)

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def hand_over_to(self, link: PeerConnection) -> PeerConnection:
        assert self.transport is not None  # it was accepted
        self.transport.set_protocol(link)
        link.connection_made(self.transport)
        if self._received:
            link.data_received(bytes(self._received))
        if self._ended:
            link.eof_received()
        else:
            self.transport.resume_reading()
        return link


def has_ended(sock: socket.socket) -> bool:
    """Whether the other side has closed a connection that is not read at the moment."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0))  # Linux; errors are always reported
    if poll.poll(0):
        return True
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


# Child processes


class BadCommand(PolymuxError, ValueError):
    """A command that cannot be split into words."""


def command_words(command: str) -> tuple[str, ...]:
    """The words of a command, as a shell splits them; none for "".

    Raises:
        BadCommand: a quotation has no end, or there is no word.
    """
    try:
        words = tuple(shlex.split(command))
    except ValueError as problem:
        text = str(problem)
        raise BadCommand(f"{command!r} is no command: {text[:1].lower()}{text[1:]}") from None
    if command and (not words or not words[0]):
        raise BadCommand(f"{command!r} is no command: it names no program")
    if any("\0" in word for word in words):
        raise BadCommand(f"{command!r} is no command: it has a zero byte")
    return words


class ChildProcess(asyncio.SubprocessProtocol):
    """A child process in a session of its own, so that whatever it starts ends with it.

    Args:
        link: its transport is the child's standard input and output; None: they are closed.

    Attributes:
        exited: is set when the child has ended.
        code: its exit code; None while it runs.
    """

    def __init__(self, link: PeerConnection | None = None) -> None:
        self.exited = asyncio.Event()
        self.code: int | None = None
        self.transport: asyncio.SubprocessTransport | None = None
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.SubprocessTransport, transport)
        if self._link is not None:
            stdin = cast(asyncio.WriteTransport, self.transport.get_pipe_transport(STDIN))
            self._link.connection_made(_PipeTransport(stdin))

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if self._link is not None and isinstance(data, bytes):
            self._link.data_received(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if self._link is not None and fd == STDOUT:
            self._link.connection_lost(None)

    def process_exited(self) -> None:
        if self.transport is not None:
            self.code = self.transport.get_returncode()
        self.exited.set()

    async def start(self, words: tuple[str, ...], pipe: int) -> None:
        """Start it. `pipe` is what its standard input and output are.

        Raises:
            Unreachable: it cannot be started.
        """
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: self, *words, stdin=pipe, stdout=pipe,
                stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as problem:
            raise Unreachable(f"{words[0]}: {describe_os_error(problem)}") from None

    async def stop(self) -> None:
        """Wait a moment for its end, then kill it and whatever it has started."""
        assert self.transport is not None  # it was started
        group = self.transport.get_pid()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_GRACE_SECONDS):
                    await self.exited.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
            await self.exited.wait()
            self.transport.close()


@contextlib.asynccontextmanager
async def started(words: tuple[str, ...]) -> AsyncIterator[ChildProcess]:
    """Run a command for the time of a case.

    Raises:
        Unreachable: it cannot be started.
    """
    child = ChildProcess()
    await child.start(words, asyncio.subprocess.DEVNULL)
    try:
        yield child
    finally:
        await child.stop()


class _PipeTransport(asyncio.Transport):
    """The standard input of a child as the transport of a `PeerConnection`."""

    def __init__(self, stdin: asyncio.WriteTransport) -> None:
        super().__init__()
        self._stdin = stdin

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return self._stdin.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._stdin.write(data)

    def get_write_buffer_size(self) -> int:
        return self._stdin.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._stdin.close()

    def close(self) -> None:
        self._stdin.close()

    def abort(self) -> None:
        # asyncio would end a pipe that is closing, with nothing left to write, a second time.
        if not self._stdin.is_closing() or self._stdin.get_write_buffer_size():
            self._stdin.abort()


@contextlib.asynccontextmanager
async def child_connection(
    command: tuple[str, ...], make: MakeConnection
) -> AsyncIterator[PeerConnection]:
    """A child process whose standard input and output are the connection.

    Raises:
        Unreachable: it cannot be started.
    """
    link = make()
    child = ChildProcess(link)
    await child.start(command, asyncio.subprocess.PIPE)
    try:
        yield link
    finally:
        link.abort()
        await child.stop()
