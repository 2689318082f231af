"""`connect`: a session to a peer at a URL."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import TypedDict, Unpack, overload

from polymux.aio.arguments import check_settings, seconds
from polymux.aio.errors import NotListening, Unreachable, again, why
from polymux.aio.factory import (
    MINMUX,
    NERDBANK,
    OMNISTREAMS,
    STREAMUX,
    name_peer,
    prepare_socket,
    session_maker,
)
from polymux.aio.hooks import Recording
from polymux.aio.metering import Metering
from polymux.aio.pending import Pending
from polymux.aio.protocols.minmux import MinmuxSession
from polymux.aio.protocols.nerdbank import NerdbankSession
from polymux.aio.protocols.omnistreams import OmnistreamsSession
from polymux.aio.protocols.streamux import StreamuxSession
from polymux.aio.session.peer_diagnosis import still_awaited
from polymux.aio.session.session import Session
from polymux.aio.transports.process import start_process
from polymux.aio.transports.stdio import use_stdio
from polymux.aio.transports.websocket import carried, dial
from polymux.aio.urls import Address, parse_url
from polymux.core.limits import Limits, Policy
from polymux.core.side import DIALER

__all__ = ["ConnectOptions", "Connecting", "Unreachable", "connect"]

Connecting = Pending

RETRY = 0.1  # seconds between two tries while nothing listens
ABSENT = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class ConnectOptions(TypedDict, total=False):
    """What `connect` takes beside the URL and the protocol, whatever the protocol is."""

    limits: Limits | None
    policy: Policy | None
    tls: ssl.SSLContext | None
    server_hostname: str | None
    timeout: float
    wait: float
    opens_per_second: float
    recorder: Recording | None
    meter: Metering | None


@overload
def connect(
    url: str, *, protocol: NERDBANK, **options: Unpack[ConnectOptions]
) -> Pending[NerdbankSession]: ...
@overload
def connect(
    url: str, *, protocol: OMNISTREAMS, **options: Unpack[ConnectOptions]
) -> Pending[OmnistreamsSession]: ...
@overload
def connect(
    url: str, *, protocol: STREAMUX, **options: Unpack[ConnectOptions]
) -> Pending[StreamuxSession]: ...
@overload
def connect(
    url: str, *, protocol: MINMUX, **options: Unpack[ConnectOptions]
) -> Pending[MinmuxSession]: ...
@overload
def connect(url: str, *, protocol: str, **options: Unpack[ConnectOptions]) -> Pending[Session]: ...
def connect(
    url: str,
    *,
    protocol: str,
    limits: Limits | None = None,
    policy: Policy | None = None,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    timeout: float = 10.0,
    wait: float = 0.0,
    opens_per_second: float = 0.0,
    recorder: Recording | None = None,
    meter: Metering | None = None,
) -> Pending[Session]:
    """A session with the peer at `url`, speaking `protocol` (`mplex`, `nerdbank:version=2`, ...).

    TLS verifies the peer by the system's authorities unless a context is given. `timeout` bounds
    connecting and the protocol's handshake. `wait` is for how many seconds to try again while
    nothing listens at `url` yet. `opens_per_second` keeps our openings apart, for peers
    that count them (js-libp2p ends a session at the sixth within a second: 4 is safe).
    `recorder` (a `polymux.record.Recorder`) writes down what passes, `meter` (a
    `polymux.metrics.Meter`) counts what happens. If cancelled, no connection and no child is left.
    """
    check_settings(protocol, limits, policy)
    seconds(timeout, "timeout")
    seconds(wait, "wait")
    address = parse_url(url)
    text = carried(protocol, address.scheme)
    make = session_maker(text, DIALER, limits, policy, opens_per_second, recorder, meter)

    async def once() -> Session:
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
            late = f"no {what} within {timeout:g} s"
            hint = "" if session is None else still_awaited(session)
            if session is not None:
                session.abort(late)
                await session.wait_closed()
                if session.failure is not None and str(session.failure) != late:  # of a child
                    raise again(session.failure) from None
            raise Unreachable(f"{address}: {late}{hint}; allow more with timeout=...") from None
        except BaseException:
            if session is not None:
                session.abort("connecting was given up")
            raise
        return session

    async def connect() -> Session:
        loop = asyncio.get_running_loop()
        latest = loop.time() + wait
        while True:
            try:
                return await once()
            except NotListening as problem:
                if not wait:
                    raise
                if loop.time() >= latest:
                    raise NotListening(f"{problem}, for {wait:g} s") from None
            await asyncio.sleep(min(RETRY, latest - loop.time()))

    connect.__qualname__ = "connect"
    return Pending(connect())


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
        raise NotListening(f"{address}: nobody listens there") from None
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
        raise kind_of(problem, address)(f"{address}: {why(problem)}") from None
    return session


def kind_of(problem: OSError, address: Address) -> type[Unreachable]:
    """Could a peer that has yet to start be the reason: no socket, no name, no host?"""
    absent = isinstance(problem, FileNotFoundError) and address.scheme == "unix"
    absent = absent or isinstance(problem, socket.gaierror) or problem.errno in ABSENT
    return NotListening if absent else Unreachable
