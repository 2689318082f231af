"""`serve`: sessions for everybody who connects."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from ..core.errors import PolymuxError
from ..core.limits import Limits, Policy
from ..core.side import ACCEPTOR
from .making import name_peer, prepare_socket, session_maker
from .processes import use_stdio
from .session import Session
from .urls import Address, BadUrl, parse_url

log = logging.getLogger("polymux.aio")

Handler = Callable[[Any], Awaitable[None]]
HALF_OPEN = 128  # connections whose handshake is not finished


class Server:
    """A listening socket and the sessions it took. `url` is where it can be reached."""

    def __init__(self, address: Address, handler: Handler) -> None:
        self.address = address
        self.handler = handler
        self.sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.AbstractServer | None = None

    @property
    def url(self) -> str:
        return str(self.address)

    @property
    def port(self) -> int:
        return self.address.port

    async def close(self) -> None:
        """Stop listening, then close every session; handlers that go on are cancelled."""
        if self._listener is not None:
            self._listener.close()
        closing = [session.close() for session in list(self.sessions)]
        await asyncio.gather(*closing, return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_closed(self) -> None:
        """Serve until the server is closed."""
        if isinstance(self._listener, asyncio.Server):
            await self._listener.serve_forever()
        elif self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    def take(self, session: Session) -> None:
        """A new session: run the handler on it once its handshake is done."""
        half_open = sum(1 for other in self.sessions if not other.ready.done())
        if half_open >= HALF_OPEN:
            session.abort(f"{HALF_OPEN} connections have not finished their handshake")
            return
        self.sessions.add(session)
        session.closed.add_done_callback(lambda _: self.sessions.discard(session))
        task = asyncio.get_running_loop().create_task(self.run(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self, session: Session) -> None:
        prepare_socket(session)
        name_peer(session, self.url)
        try:
            await asyncio.shield(session.ready)
            await self.handler(session)
        except PolymuxError as problem:
            log.info("%s: %s", session, problem)
        except Exception:
            log.exception("the handler of %s failed", session)
            session.abort("the handler failed")
        finally:
            if not session.closed.done():
                await session.close()


async def serve(
    handler: Handler,
    url: str,
    *,
    protocol: str,
    limits: Limits | None = None,
    policy: Policy | None = None,
    tls: ssl.SSLContext | None = None,
) -> Server:
    """Listen at `url`; `handler(session)` runs for each session, which closes when it returns.

    Port 0 takes a free port; `server.url` says which. `tls://` needs a context with a certificate.
    """
    address = parse_url(url)
    make = session_maker(protocol, ACCEPTOR, limits, policy, 0.0)
    loop = asyncio.get_running_loop()
    server = Server(address, handler)

    def arrive() -> Session:
        session = make()
        session.when_made = server.take  # a failed TLS handshake never gets there
        return session

    try:
        if address.scheme == "unix":
            server._listener = await loop.create_unix_server(arrive, address.path)
        elif address.scheme in ("tcp", "tls"):
            if address.scheme == "tls" and tls is None:
                raise BadUrl(f"{url!r}: tls:// needs a context with a certificate: tls=...")
            context = tls if address.scheme == "tls" else None
            listener = await loop.create_server(arrive, address.host, address.port, ssl=context)
            server._listener = listener
            port = listener.sockets[0].getsockname()[1]
            server.address = Address(address.scheme, address.host, port)
        elif address.scheme == "stdio":
            server.take(await use_stdio(make))
        else:
            raise BadUrl(f"{url!r}: {address.scheme}: cannot be listened on for this protocol")
    except OSError as problem:
        raise BadUrl(f"{url!r}: cannot listen there: {problem.strerror or problem}") from None
    return server
