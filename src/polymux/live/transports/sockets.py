"""A connection over a non-blocking socket, with or without TLS, for doors without transports."""

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from polymux.live.runtime import Runtime, Timer
from polymux.live.session.socket_options import EXTRA_RAW_FD
from polymux.live.transport import ByteHandler

RECEIVE_BYTES = 256 * 1024  # for one `recv`
MAX_RECEIVES = 16  # of a TLS socket, before others get their turn
DEFAULT_HIGH_WATER_BYTES = 64 * 1024
TLS_CLOSE_SECONDS = 1.0  # for the peer to end the connection after this side has ended TLS

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class SocketRuntime(Runtime, Protocol):
    """A runtime that watches sockets, with asyncio's methods for it."""

    def add_reader(self, fd: Any, callback: Callable[..., object], /, *args: object) -> object:
        """Call `callback` whenever a descriptor or socket can be read."""

    def remove_reader(self, fd: Any, /) -> object:
        """No longer do. No effect if it did not."""

    def add_writer(self, fd: Any, callback: Callable[..., object], /, *args: object) -> object:
        """Call `callback` whenever a descriptor or socket can be written."""

    def remove_writer(self, fd: Any, /) -> object:
        """No longer do. No effect if it did not."""

    async def getaddrinfo(
        self, host: Any, port: Any, /, *, type: int = 0, flags: int = 0
    ) -> list[Any]:
        """Look up addresses, as `socket.getaddrinfo` does."""


class SocketTransport:
    """A connection over a connected socket; see `transport.Transport`.

    Args:
        runtime: Watches the socket.
        sock: A non-blocking stream socket. If it is an SSLSocket, its handshake is done.
        handler: What is called, with `connection_made` first.
    """

    def __init__(self, runtime: SocketRuntime, sock: socket.socket, handler: ByteHandler) -> None:
        self._runtime = runtime
        self._socket = sock
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._handler = handler
        self._fd = sock.fileno()
        self._addresses = {
            "sockname": name_of(sock.getsockname),
            "peername": name_of(sock.getpeername),
        }
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._high = DEFAULT_HIGH_WATER_BYTES
        self._writing_paused = False
        self._reading_paused = False
        self._reading = False  # it is watched
        self._eof_received = False
        self._eof_queued = False  # this side ends its direction after what is unsent
        self._closing = False
        self._lost = False
        self._timer: Timer | None = None

    def start(self) -> None:
        """Call the handler's `connection_made`, and begin to read."""
        self._handler.connection_made(self)
        self._watch()

    # Receiving

    def _watch(self) -> None:
        """Watch the socket for reading, or not, as it has to be now."""
        wanted = not (self._reading_paused or self._closing or self._eof_received)
        if wanted and not self._reading:
            self._runtime.add_reader(self._fd, self._on_readable)
            if self._tls is not None and self._tls.pending():  # the kernel does not know of it
                self._runtime.call_soon(self._on_readable)
        elif self._reading and not wanted:
            self._runtime.remove_reader(self._fd)
        self._reading = wanted

    def _on_readable(self) -> None:
        for _ in range(1 if self._tls is None else MAX_RECEIVES):
            if not self._reading:
                return
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except WOULD_BLOCK:
                return
            except ssl.SSLEOFError:
                data = b""
            except OSError as problem:
                self._lose(problem)
                return
            if not data:
                self._on_eof()
                return
            try:
                self._handler.data_received(data)
            except BaseException as problem:
                self._lose_after(problem)
                raise
        if self._tls is not None and self._reading and self._tls.pending():
            self._runtime.call_soon(self._on_readable)

    def _on_eof(self) -> None:
        self._eof_received = True
        self._watch()
        try:
            keeps_open = self._handler.eof_received()
        except BaseException as problem:
            self._lose_after(problem)
            raise
        if not keeps_open or self._tls is not None:
            self.close()

    def _lose_after(self, problem: BaseException) -> None:
        """Lose the connection: the handler has raised, in the middle of something."""
        error = problem if isinstance(problem, Exception) else None
        self._lose(error or InterruptedError(type(problem).__name__))

    def pause_reading(self) -> None:
        self._reading_paused = True
        self._watch()

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._watch()

    def is_reading(self) -> bool:
        return self._reading

    # Sending

    def write(self, data: bytes | bytearray | memoryview, /) -> None:
        if self._closing or self._eof_queued or not data:
            return
        view = memoryview(data)
        if not self._unsent:
            try:
                sent = self._socket.send(view)
            except WOULD_BLOCK:
                sent = 0
            except OSError as problem:
                self._lose(problem)
                return
            if sent == len(view):
                return
            view = view[sent:]
            self._runtime.add_writer(self._fd, self._on_writable)
        self._unsent.append(view if isinstance(data, bytes) else memoryview(bytes(view)))
        self._unsent_bytes += len(view)
        if self._unsent_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self._handler.pause_writing()

    def _on_writable(self) -> None:
        while self._unsent:
            view = self._unsent[0]
            try:
                sent = self._socket.send(view)
            except WOULD_BLOCK:
                return
            except OSError as problem:
                self._lose(problem)
                return
            self._unsent_bytes -= sent
            if sent < len(view):
                self._unsent[0] = view[sent:]
                break
            self._unsent.popleft()
        if self._writing_paused and self._unsent_bytes <= self._high // 4:
            self._writing_paused = False
            self._handler.resume_writing()
        if not self._unsent and not self._lost:
            self._runtime.remove_writer(self._fd)
            if self._closing:
                self._finish()
            elif self._eof_queued:
                self._end_direction()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = DEFAULT_HIGH_WATER_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def can_write_eof(self) -> bool:
        return self._tls is None

    def write_eof(self) -> None:
        if not self._closing and not self._eof_queued:
            self._eof_queued = True
            if not self._unsent:
                self._end_direction()

    def _end_direction(self) -> None:
        with contextlib.suppress(OSError):  # the peer is gone, which reading tells
            self._socket.shutdown(socket.SHUT_WR)

    # Ending

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._watch()
            if not self._unsent:
                self._finish()

    def abort(self) -> None:
        self._lose(None)

    def _finish(self) -> None:
        """Everything was sent: end TLS, then the connection.

        A socket that is closed with unread data makes the kernel reset the connection, and the peer
        would lose what it has not read. So what still comes is discarded for a moment.
        """
        if self._tls is None or self._eof_received:
            self._lose(None)
            return
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()  # sends the end; that of the peer is not waited for here
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)  # from here on the socket has no TLS
        self._timer = self._runtime.call_later(TLS_CLOSE_SECONDS, self._lose, None)
        self._runtime.add_reader(self._fd, self._discard)

    def _discard(self) -> None:
        try:
            more = self._socket.recv(RECEIVE_BYTES)
        except WOULD_BLOCK:
            return
        except OSError:
            more = b""
        if not more:
            self._lose(None)

    def _lose(self, problem: Exception | None) -> None:
        """Close the socket, and report it soon."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._reading = False
        if self._timer is not None:
            self._timer.cancel()
        self._runtime.remove_reader(self._fd)
        self._runtime.remove_writer(self._fd)
        self._unsent.clear()
        self._unsent_bytes = 0
        self._runtime.call_soon(self._report, problem)

    def _report(self, problem: Exception | None) -> None:
        try:
            self._handler.connection_lost(problem)
        finally:
            self._socket.close()

    # What it is

    def get_protocol(self) -> ByteHandler:
        return self._handler

    def set_protocol(self, protocol: Any, /) -> None:
        self._handler = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._socket
        if name == "ssl_object":
            return self._tls if self._tls is not None else default
        if name == EXTRA_RAW_FD:
            return self._fd if self._tls is None else default
        return self._addresses.get(name, default)


def name_of(ask: Callable[[], Any]) -> Any:
    """Return an address of a socket; None if it has none any more."""
    try:
        return ask()
    except OSError:
        return None


async def wait_for_socket(runtime: SocketRuntime, sock: socket.socket, *, write: bool) -> None:
    """Wait until a socket can be read or written."""
    waiter = runtime.create_future()

    def ready() -> None:
        if not waiter.done():
            waiter.set_result(None)

    fd = sock.fileno()
    watch, forget = (
        (runtime.add_writer, runtime.remove_writer)
        if write
        else (runtime.add_reader, runtime.remove_reader)
    )
    watch(fd, ready)
    try:
        await waiter
    finally:
        forget(fd)


async def connect_socket(
    runtime: SocketRuntime, family: int, kind: int, number: int, where: Any
) -> socket.socket:
    """Return a non-blocking socket that is connected. If cancelled, none is left.

    Raises:
        OSError: Connecting failed.
    """
    sock = socket.socket(family, kind, number)
    try:
        sock.setblocking(False)
        if family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            sock.connect(where)
        except BlockingIOError:
            await wait_for_socket(runtime, sock, write=True)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, f"connecting failed: {code}") from None
        return sock
    except BaseException:
        sock.close()
        raise


async def begin_tls(
    runtime: SocketRuntime,
    sock: socket.socket,
    context: ssl.SSLContext,
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
) -> ssl.SSLSocket:
    """Do the TLS handshake on a connected socket. The socket is closed if it fails.

    Raises:
        OSError: The handshake failed.
    """
    secure: ssl.SSLSocket | None = None
    try:
        secure = context.wrap_socket(
            sock,
            server_side=server_side,
            server_hostname=server_hostname,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        while True:
            try:
                secure.do_handshake()
                return secure
            except ssl.SSLWantReadError:
                await wait_for_socket(runtime, secure, write=False)
            except ssl.SSLWantWriteError:
                await wait_for_socket(runtime, secure, write=True)
    except BaseException:
        (sock if secure is None else secure).close()
        raise
