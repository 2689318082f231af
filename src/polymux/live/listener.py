"""`Listener`: the listening sockets of a server or a recording proxy, and the connections accepted.

All servers accept here. A `ConnectionGate`, which several listeners can share, says whether there
is room for one more connection. Two things make a listener pause, and the kernel holds further
connections meanwhile: too many young half-open connections, and too few descriptors. Some
descriptors are left for files, so that a server at the limit of the system can still open them.

A TLS connection costs much memory from the moment its handshake starts. So it starts with the
first byte of the peer.

A Unix socket is a name in a directory, which outlives its server and can be taken by another one.
Two rules keep servers from harming each other:

- A path is taken only if no server answers there. A socket that refuses connections was left behind
  by a server that died, and is replaced. The test, the removal and the new socket are one step
  under a lock on the directory, so that two servers that start at once cannot both find it dead.
- A server removes its path only if it still names its own socket.

Several processes can accept at one address: each with sockets of its own that have SO_REUSEPORT,
among which the kernel divides connections by a hash of their addresses; or all from the same
sockets, which they have inherited (`Inherited`). At a shared socket, the process that is there
first accepts. So that the others get a turn, it accepts one connection at a time; and one whose
places are all taken waits a moment before it accepts, and refuses, what another one could serve.
"""

import contextlib
import errno
import fcntl
import logging
import os
import resource
import socket
import ssl
import stat
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from polymux.live.connection_gate import NO_ADDRESS, ConnectionGate, Place
from polymux.live.errors import describe_os_error
from polymux.live.runtime import Task, Timer
from polymux.live.urls import Address

log = logging.getLogger("polymux.aio")

PROBE_SECONDS = 1.0  # for a server to accept; a connection that waits in its queue is accepted
ACCEPTS_PER_TURN = 64  # connections accepted in one event-loop iteration
MAX_RESERVED_DESCRIPTORS = 64  # left for files; an eighth of all, if that is less
# With fewer free descriptors above the reserve, connections are accepted one by one, because a
# proxy needs a second descriptor for each.
FEW_DESCRIPTORS = 128
DESCRIPTOR_RETRY_SECONDS = 0.25
# What a listener without a place leaves to the other processes at a shared socket.
SHARED_GRACE_SECONDS = 0.05
MAX_DEFERRED = 1024  # accepted connections that wait until another one is old enough to go,
MAX_DEFERRED_SECONDS = 5.0  # and how long they wait
DESCRIPTOR_LIMIT = "open_files"  # the name under which a lack of descriptors is counted
# The system has no descriptor or memory for another socket; the connection stays in its queue.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

ProtocolFactory = Callable[[Place], Any]  # of a `ByteHandler`
RefusalCallback = Callable[[str, str], None]
"""Called with the address of a peer and why it was refused."""


class ListenerLoop(Protocol):
    """What a listener needs of where it runs, with asyncio's methods for it."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Timer: ...
    def create_task(self, coroutine: Coroutine[Any, Any, None], /) -> Any: ...
    def add_reader(self, fd: Any, callback: Callable[..., Any], /, *args: Any) -> object: ...
    def remove_reader(self, fd: Any, /) -> object: ...
    async def getaddrinfo(
        self, host: Any, port: Any, /, *, type: int = 0, flags: int = 0
    ) -> list[Any]: ...
    async def connect_accepted_socket(
        self,
        protocol_factory: Callable[[], Any],
        sock: socket.socket,
        *,
        ssl: ssl.SSLContext | None = None,
        ssl_handshake_timeout: float | None = None,
    ) -> object:
        """Begin TLS on an accepted socket if there is a context, and connect a new handler."""


@dataclass(frozen=True)
class Inherited:
    """Listening sockets that another process has bound, for `open_listener`.

    Attributes:
        sockets: Those of one address. The listener closes them.
        shared: Whether other processes accept from these sockets too.
        backlog: 0 if the sockets listen already. Otherwise they may be bound only, and the listener
            makes them listen with this backlog: until then the kernel gives them no connections.
    """

    sockets: Sequence[socket.socket]
    shared: bool
    backlog: int = 0


class BoundSockets:
    """Listening sockets of one address. `bind_sockets` makes them.

    Attributes:
        sockets: One for each address of the host.
        address: Where they listen, with the port that was bound.
    """

    def __init__(
        self, sockets: list[socket.socket], address: Address, inode: tuple[int, int] | None = None
    ) -> None:
        self.sockets = sockets
        self.address = address
        self._inode = inode  # device and number of a Unix socket's path, which is to be removed

    def remove_path(self) -> None:
        """Remove the path of a Unix socket, unless it names another one by now.

        To be called before the socket is closed: its number cannot be that of another file until
        then. A second call has no effect.
        """
        if self._inode is not None:
            with contextlib.suppress(OSError):
                if inode_of(self.address.path) == self._inode:
                    os.unlink(self.address.path)
            self._inode = None

    def close(self) -> None:
        """Close the sockets, and remove the path. A second call has no effect."""
        self.remove_path()
        for listening in self.sockets:
            listening.close()
        self.sockets = []


class Listener:
    """Open listening sockets. `open_listener` makes it.

    Attributes:
        address: Where it listens, with the port that was bound.
    """

    def __init__(
        self,
        bound: BoundSockets,
        factory: ProtocolFactory,
        gate: ConnectionGate,
        tls: ssl.SSLContext | None,
        handshake_timeout: float,
        on_refused: RefusalCallback | None = None,
        *,
        shared: bool = False,
        loop: ListenerLoop,
    ) -> None:
        self.address = bound.address
        self._bound = bound
        self._shared = shared
        self._has_waited = False  # for another process to accept what this one has no place for
        self._factory = factory
        self._gate = gate
        self._tls = tls
        self._handshake_timeout = handshake_timeout
        self._on_refused = on_refused
        self._loop = loop
        self._accepting = False
        self._retry: Timer | None = None
        self._connecting: set[Task] = set()
        self._deferred: dict[socket.socket, Timer] = {}  # wait for a place
        self._unheard: dict[socket.socket, tuple[Place, Timer]] = {}  # TLS, no byte

    @property
    def is_accepting(self) -> bool:
        """Whether connections are accepted at the moment."""
        return self._accepting

    def close(self) -> None:
        """Stop listening, and remove the path of a Unix socket. A second call has no effect.

        Connections whose TLS handshake is not done are closed.
        """
        self._bound.remove_path()
        self._stop_accepting()
        self._bound.close()
        for sock in list(self._unheard):
            self._drop_unheard(sock)
        for sock, timer in self._deferred.items():
            timer.cancel()
            sock.close()
        self._deferred.clear()
        if self._tls is not None:
            for task in self._connecting:
                task.cancel()

    # Accepting

    def start_accepting(self) -> None:
        """Accept connections from now on."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if not self._accepting:
            self._accepting = True
            for listening in self._bound.sockets:
                self._loop.add_reader(listening.fileno(), self._on_readable, listening)

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            for listening in self._bound.sockets:
                self._loop.remove_reader(listening.fileno())
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _pause(self, seconds: float, resume: Callable[[], None]) -> None:
        self._stop_accepting()
        self._retry = self._loop.call_later(seconds, resume)

    def _on_readable(self, listening: socket.socket) -> None:
        """Accept the connections that wait, as far as there is room."""
        for _ in range(ACCEPTS_PER_TURN):
            seconds = self._gate.seconds_until_room(self._tls is not None)
            if seconds > 0:
                self._pause(seconds, self._resume)
                self._gate.call_when_room(self._resume)
                return
            if self._shared and self._gate.is_full and not self._has_waited:
                self._has_waited = True
                self._pause(SHARED_GRACE_SECONDS, self._resume)
                return
            self._has_waited = False
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                if problem.errno not in EXHAUSTED:
                    log.warning(
                        "%s: accepting failed: %s", self.address, describe_os_error(problem)
                    )
                    return
                self._wait_for_descriptors(describe_os_error(problem))
                return
            sock.setblocking(False)
            address = str(peer[0]) if isinstance(peer, tuple) and peer else NO_ADDRESS
            self._begin(sock, address, self._loop.time() + MAX_DEFERRED_SECONDS)
            free = free_descriptors(sock.fileno())
            if free <= 0:
                self._wait_for_descriptors("the rest is left for files")
                return
            if free < FEW_DESCRIPTORS or self._shared:
                return

    def _resume(self) -> None:
        if self._bound.sockets:
            self.start_accepting()

    def _wait_for_descriptors(self, reason: str) -> None:
        self._gate.count(DESCRIPTOR_LIMIT)
        self._gate.log_limiter.warn(
            DESCRIPTOR_LIMIT,
            f"{self.address}: no connections are accepted until descriptors are free: {reason}; "
            f"limit open files={descriptor_limit()}, raise it with ulimit -n",
        )
        self._pause(DESCRIPTOR_RETRY_SECONDS, self._resume_if_descriptors)

    def _resume_if_descriptors(self) -> None:
        self._retry = None
        if not self._bound.sockets:
            return
        try:
            # The system returns the lowest free number.
            lowest = os.dup(self._bound.sockets[0].fileno())
        except OSError:
            free = 0
        else:
            os.close(lowest)
            free = free_descriptors(lowest)
        if free > 0:
            log.info("%s: connections are accepted again", self.address)
            self.start_accepting()
        else:
            self._pause(DESCRIPTOR_RETRY_SECONDS, self._resume_if_descriptors)

    # Accepted connections

    def _begin(self, sock: socket.socket, address: str, deadline: float) -> None:
        """Find a place for a connection, if necessary after a while, and start it."""
        self._deferred.pop(sock, None)
        seconds = self._gate.seconds_until_place(address)
        if seconds > 0 and self._loop.time() < deadline and len(self._deferred) < MAX_DEFERRED:
            self._deferred[sock] = self._loop.call_later(
                seconds, self._begin, sock, address, deadline
            )
            return
        place = self._gate.admit(address, self._loop.call_later)
        if place is None:
            sock.close()
        elif self._tls is None:
            self._connect(sock, place, 0.0)
        else:
            timer = self._loop.call_later(self._handshake_timeout, self._drop_unheard, sock)
            self._unheard[sock] = place, timer
            place.attach(lambda _: self._drop_unheard(sock), lambda: True)
            self._loop.add_reader(sock.fileno(), self._on_first_byte, sock)

    def _on_first_byte(self, sock: socket.socket) -> None:
        """A TLS peer has sent something, or is gone: begin the handshake."""
        place, timer = self._unheard.pop(sock)
        self._loop.remove_reader(sock.fileno())
        self._connect(sock, place, max(0.1, timer.when() - self._loop.time()))
        timer.cancel()

    def _drop_unheard(self, sock: socket.socket) -> None:
        """Close a TLS connection on which nothing was received."""
        if sock in self._unheard:
            place, timer = self._unheard.pop(sock)
            timer.cancel()
            self._loop.remove_reader(sock.fileno())
            sock.close()
            place.release()

    def _connect(self, sock: socket.socket, place: Place, handshake_timeout: float) -> None:
        task = self._loop.create_task(self._make_transport(sock, place, handshake_timeout))
        self._connecting.add(task)
        task.add_done_callback(partial(self._on_connecting_done, sock, place))
        if self._tls is not None:
            place.attach(partial(cancel_connecting, task), lambda: False)

    def _on_connecting_done(self, sock: socket.socket, place: Place, task: Task) -> None:
        self._connecting.discard(task)
        if task.cancelled():  # perhaps before it began
            place.release()
            sock.close()

    async def _make_transport(
        self, sock: socket.socket, place: Place, handshake_timeout: float
    ) -> None:
        # Before the handshake: a connection that it has closed has no address any more.
        peer = peer_of(sock) if self._tls is not None else ""
        try:
            await self._loop.connect_accepted_socket(
                partial(self._factory, place),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=handshake_timeout if self._tls is not None else None,
            )
        except Exception as problem:
            place.release()
            sock.close()
            if not isinstance(problem, OSError):
                log.exception("%s: an accepted connection could not be served", self.address)
                return
            reason = describe_os_error(problem)
            if not isinstance(problem, ssl.SSLError):
                log.info("%s: a connection ended in its handshake: %s", self.address, reason)
                return
            self._gate.log_limiter.warn("handshake", f"{self.address}: {peer} refused: {reason}")
            if self._on_refused is not None:
                self._on_refused(peer, reason)


def peer_of(sock: socket.socket) -> str:
    """HOST:PORT of the peer of a socket; "a peer" where it has none, or is gone."""
    try:
        where = sock.getpeername()
    except OSError:
        return "a peer"
    return f"{where[0]}:{where[1]}" if isinstance(where, tuple) else "a peer"


def cancel_connecting(task: Task, _: str) -> None:
    """Close a connection that has no protocol yet."""
    task.cancel()


def descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit != resource.RLIM_INFINITY else 1 << 30


def free_descriptors(lowest: int) -> int:
    """Return how many more descriptors connections may take, if `lowest` was the lowest free one.

    The system gives out the lowest free number, so all below it are taken.
    """
    limit = descriptor_limit()
    return limit - min(MAX_RESERVED_DESCRIPTORS, limit // 8) - lowest


async def open_listener(
    address: Address,
    factory: ProtocolFactory,
    gate: ConnectionGate,
    backlog: int,
    tls: ssl.SSLContext | None = None,
    handshake_timeout: float = 0.0,
    on_refused: RefusalCallback | None = None,
    *,
    reuse_port: bool = False,
    inherited: Inherited | None = None,
    loop: ListenerLoop,
) -> Listener:
    """Listen at an address.

    Args:
        address: A TCP address (of any scheme) or the path of a Unix socket.
        factory: Makes the protocol of an accepted connection, which has to attach itself to the
            place it gets, and to release it when the connection is gone.
        gate: Says whether there is room for a connection.
        backlog: Connections that the kernel holds until they are accepted; it has a limit of its
            own (`net.core.somaxconn` on Linux).
        tls: Context with a certificate; None: no TLS.
        handshake_timeout: Seconds for a TLS handshake.
        on_refused: Called if a TLS handshake fails, such as for an unknown client certificate.
        reuse_port: Other processes may listen at this TCP address too, if they also say so.
        inherited: Sockets that listen at the address already.
        loop: Where it listens: an event loop of asyncio, or what has its methods.

    Raises:
        OSError: The address cannot be listened on. EADDRINUSE also for a path where another
            server answers.
    """
    if inherited is None:
        bound = await bind_sockets(address, backlog, reuse_port, loop=loop)
    else:
        sockets = list(inherited.sockets)
        if inherited.backlog:
            for listening in sockets:
                listening.listen(inherited.backlog)
        bound = BoundSockets(sockets, with_bound_port(address, sockets))
    listener = Listener(
        bound, factory, gate, tls, handshake_timeout, on_refused,
        shared=inherited is not None and inherited.shared, loop=loop,
    )  # fmt: skip
    listener.start_accepting()
    return listener


async def bind_sockets(
    address: Address, backlog: int, reuse_port: bool = False, *, loop: ListenerLoop
) -> BoundSockets:
    """Bind sockets that listen at an address, without accepting. As for `open_listener`.

    Those of a TCP address are only bound, and do not listen, with a backlog of 0.

    Raises:
        OSError: The address cannot be listened on.
    """
    if address.scheme == "unix":
        sockets = [bind_unix_socket(address.path, backlog)]
        return BoundSockets(sockets, address, inode_of(address.path))
    sockets = await bind_tcp_sockets(loop, address.host, address.port, backlog, reuse_port)
    return BoundSockets(sockets, with_bound_port(address, sockets))


def with_bound_port(address: Address, sockets: Sequence[socket.socket]) -> Address:
    """Return a TCP address with the port that its sockets are bound to."""
    if address.scheme == "unix":
        return address
    port = sockets[0].getsockname()[1]
    return Address(address.scheme, address.host, port, address.path)


async def bind_tcp_sockets(
    loop: ListenerLoop, host: str, port: int, backlog: int, reuse_port: bool = False
) -> list[socket.socket]:
    """Return sockets that listen at every address of a host, on the same port.

    Args:
        backlog: As for `open_listener`; 0: they do not listen yet.
        reuse_port: Set SO_REUSEPORT: other sockets of this user that have it too can be bound to
            the same port.

    Raises:
        OSError: An address cannot be bound.
    """
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, number, _, where in dict.fromkeys(found):
            try:
                bound = socket.socket(family, kind, number)
            except OSError:  # the system does not have this family
                continue
            sockets.append(bound)
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = sockets[0].getsockname()[1] if port == 0 and len(sockets) > 1 else where[1]
            bound.bind((where[0], chosen, *where[2:]))
            if backlog:
                bound.listen(backlog)
    except BaseException:
        for bound in sockets:
            bound.close()
        raise
    if not sockets:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    return sockets


def bind_unix_socket(path: str, backlog: int, mode: int | None = None) -> socket.socket:
    """Return a socket that listens at `path`, instead of a dead one if there is one.

    `mode` are its permissions, which it has before anything can connect; None: as the umask says.

    Raises:
        OSError: A server answers there, or the path is not a socket.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        with directory_lock(os.path.dirname(path) or "."):
            if is_socket(path):
                if answers(path):
                    raise OSError(
                        errno.EADDRINUSE,
                        "the path is in use: a server answers there; choose another path",
                    )
                os.unlink(path)
            bound.bind(path)
            if mode is not None:
                os.chmod(path, mode)
            bound.listen(backlog)  # within the lock: until then it looks dead
    except BaseException:
        bound.close()
        raise
    return bound


@contextlib.contextmanager
def directory_lock(path: str) -> Iterator[None]:
    """Hold a lock on a directory, which ends with the block or the process."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def is_socket(path: str) -> bool:
    """Return whether the path names a socket; a link to one is not followed."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def answers(path: str) -> bool:
    """Return whether a server accepts connections at this path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # its queue is full, or this user may not connect: it is alive
            return True
    return True


def inode_of(path: str) -> tuple[int, int]:
    """Device and number of the file that a path names."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino
