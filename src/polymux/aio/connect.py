"""`connect`: a session to a peer at a URL."""

import asyncio
import ssl
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from ..core.limits import Limits, Policy
from ..core.side import DIALER
from .beginnings import still_awaited
from .failures import Unreachable, why
from .making import name_peer, prepare_socket, session_maker
from .metering import Metering
from .processes import start_process
from .recording import Recording
from .session import Session
from .stdio import use_stdio
from .urls import Address, parse_url
from .websocket import carried, dial

__all__ = ["Connecting", "Unreachable", "connect"]

S = TypeVar("S", bound=Session)


class Connecting(Generic[S]):
    """What `connect` gives: await it for a session, or use it in `async with`."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._session: S | None = None

    def __await__(self) -> Generator[Any, None, S]:
        session: S = yield from self._start().__await__()
        return session

    async def __aenter__(self) -> S:
        self._session = await self
        return self._session

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        assert self._session is not None
        await self._session.__aexit__(kind, error, trace)


def connect(
    url: str,
    *,
    protocol: str,
    limits: Limits | None = None,
    policy: Policy | None = None,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    timeout: float = 10.0,
    opens_per_second: float = 0.0,
    recorder: Recording | None = None,
    meter: Metering | None = None,
) -> Connecting[Session]:
    """A session with the peer at `url`, speaking `protocol` (`mplex`, `nerdbank:version=2`, ...).

    TLS verifies the peer by the system's authorities unless a context is given. `timeout` bounds
    connecting and the protocol's handshake. `opens_per_second` keeps our openings apart, for peers
    that count them (js-libp2p ends a session at the sixth within a second: 4 is safe).
    `recorder` (a `polymux.record.Recorder`) writes down what passes, `meter` (a
    `polymux.metrics.Meter`) counts what happens. If cancelled, no connection and no child is left.
    """
    address = parse_url(url)
    text = carried(protocol, address.scheme)
    make = session_maker(text, DIALER, limits, policy, opens_per_second, recorder, meter)

    async def start() -> Session:
        session: Session | None = None
        try:
            async with asyncio.timeout(timeout):
                session = await reach(address, make, tls, server_hostname, timeout)
                prepare_socket(session)
                name_peer(session, str(address))
                await asyncio.shield(session.ready)
                session._check_open()
        except TimeoutError:
            what = "answer" if session is None else "handshake"
            hint = "" if session is None else still_awaited(session)
            if session is not None:
                session.abort(f"no handshake within {timeout:g} s")
                await session.wait_closed()
            raise Unreachable(
                f"{address}: no {what} within {timeout:g} s{hint}; allow more with timeout=..."
            ) from None
        except BaseException:
            if session is not None:
                session.abort("connecting was given up")
            raise
        return session

    return Connecting(start)


async def reach(
    address: Address,
    make: Callable[[], Session],
    tls: ssl.SSLContext | None,
    server_hostname: str | None,
    timeout: float,
) -> Session:
    """Open the transport and put a session on it; every failure is one clear line."""
    loop = asyncio.get_running_loop()
    try:
        if address.scheme == "unix":
            _, session = await loop.create_unix_connection(make, address.path)
        elif address.scheme == "exec":
            session = await start_process(address.command, make)
        elif address.scheme == "stdio":
            session = await use_stdio(make)
        elif address.scheme in ("tcp", "tls"):
            context = None
            if address.scheme == "tls":
                context = tls if tls is not None else ssl.create_default_context()
            _, session = await loop.create_connection(
                make, address.host, address.port, ssl=context,
                server_hostname=(server_hostname or address.host) if context else None,
                ssl_handshake_timeout=timeout if context else None,
            )  # fmt: skip
        else:
            session = await dial(address, make, tls, server_hostname, timeout)
    except ssl.SSLCertVerificationError as problem:
        raise Unreachable(
            f"{address}: {why(problem)}; give a context that trusts its issuer with tls=..."
        ) from None
    except ConnectionRefusedError:
        raise Unreachable(f"{address}: nobody listens there") from None
    except TimeoutError:
        raise  # ours, or the system's: no answer
    except ConnectionResetError:
        secure = address.scheme in ("tls", "wss")
        what = "the TLS handshake" if secure else "connecting"
        raise Unreachable(
            f"{address}: the peer ended the connection during {what}"
            + ("; does it speak TLS 1.2 or later?" if secure else "")
        ) from None
    except OSError as problem:
        raise Unreachable(f"{address}: {why(problem)}") from None
    return session
