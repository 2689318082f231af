"""Connecting: for how long, how often, and what its failures are called."""

import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypedDict

from polymux.core.limits import Limits, Timeouts
from polymux.core.side import DIALER
from polymux.core.token_exchange import SharedToken
from polymux.live.arguments import check_seconds, check_session_options
from polymux.live.errors import (
    NotListening,
    Unreachable,
    certificate_remedy,
    copy_of,
    describe_os_error,
)
from polymux.live.factory import session_factory, set_peer_name
from polymux.live.hooks import RecorderFactory, SessionMeter
from polymux.live.runtime import Runtime, sleep, wait_done
from polymux.live.session.busy_poll import DEFAULT_BUSY_POLL_SECONDS
from polymux.live.session.peer_diagnosis import missing_handshake_hint
from polymux.live.session.session import Session
from polymux.live.session.socket_options import configure_tcp_keepalive
from polymux.live.transports.token import check_token
from polymux.live.transports.websocket import protocol_for_scheme
from polymux.live.urls import Address, parse_url

RETRY_SECONDS = 0.1  # between two attempts while nothing listens
# The host itself is not there yet.
HOST_ABSENT_ERRNOS = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)

OpenTransport = Callable[[], Awaitable[Session]]
OpenConnection = Callable[
    [
        Any,  # the runtime of the door
        Address,
        Callable[[], Session],
        ssl.SSLContext | None,
        str | None,
        SharedToken | None,
    ],
    Awaitable[Session],
]


class ConnectOptions(TypedDict, total=False):
    """The keywords of `connect` that do not depend on the protocol."""

    limits: Limits | None
    timeouts: Timeouts | None
    tls: ssl.SSLContext | None
    server_hostname: str | None
    timeout: float
    wait: float
    opens_per_second: float
    busy_poll: float
    recorder: RecorderFactory | None
    meter: SessionMeter | None
    token: str | bytes | None


def session_connector(
    url: str,
    protocol: str,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    timeout: float = 10.0,
    wait: float = 0.0,
    opens_per_second: float = 0.0,
    busy_poll: float = DEFAULT_BUSY_POLL_SECONDS,
    recorder: RecorderFactory | None = None,
    meter: SessionMeter | None = None,
    token: str | bytes | None = None,
    *,
    runtime: Callable[[], Runtime],
    open_connection: OpenConnection,
) -> Callable[[], Coroutine[Any, Any, Session]]:
    """Check the arguments of `connect` now, and return a coroutine function that connects.

    Args:
        runtime: Returns where the session runs. It is called when it connects.
        open_connection: Makes a connection to an address, with what comes before its session, and
            returns the session. It gets the runtime, the address, a function that makes the
            session, `tls`, `server_hostname` and the token. Called for each attempt.
        url, protocol, limits, timeouts, tls, server_hostname, timeout, wait, opens_per_second,
            busy_poll, recorder, meter, token: See `polymux.connect`.
    """
    check_session_options(protocol, limits, timeouts)
    check_seconds(timeout, "timeout")
    check_seconds(wait, "wait")
    address = parse_url(url)
    shared = check_token(token, address)
    make = session_factory(
        protocol_for_scheme(protocol, address.scheme),
        DIALER,
        limits,
        timeouts,
        opens_per_second,
        busy_poll,
        recorder,
        meter,
        runtime=runtime,
    )

    async def connect() -> Session:
        where = runtime()
        begin = partial(open_connection, where, address, make, tls, server_hostname, shared)
        return await establish(where, address, begin, timeout, wait, shared is not None)

    connect.__qualname__ = "connect"
    return connect


async def establish(
    runtime: Runtime,
    address: Address,
    open_transport: OpenTransport,
    timeout: float,
    wait: float,
    asks_for_token: bool,
) -> Session:
    """Open a session and wait for its handshake. If cancelled, no connection is left.

    Args:
        runtime: Where the session runs.
        address: Where the peer is.
        open_transport: Makes a connection, and returns its session. Called for each attempt.
        timeout: Seconds for an attempt.
        wait: For how many seconds to try again while nothing listens; 0: one attempt.
        asks_for_token: A token was given, so the server is expected to ask for it.

    Raises:
        Unreachable: No connection or no handshake in time.
        SessionClosed: The peer ended the session during the handshake, or broke the protocol.
    """
    latest = runtime.time() + wait
    while True:
        try:
            return await attempt(runtime, address, open_transport, timeout, asks_for_token)
        except NotListening as problem:
            if not wait:
                raise
            if runtime.time() >= latest:
                raise NotListening(f"{problem}, for {wait:g} s") from None
        await sleep(runtime, min(RETRY_SECONDS, latest - runtime.time()))


async def attempt(
    runtime: Runtime,
    address: Address,
    open_transport: OpenTransport,
    timeout: float,
    asks_for_token: bool,
) -> Session:
    """Try once; see `establish`."""
    session: Session | None = None
    try:
        async with runtime.timeout_at(runtime.time() + timeout):
            session = await open_transport()
            configure_tcp_keepalive(session.transport, session.timeouts.keepalive_interval)
            set_peer_name(session, str(address))
            await wait_done(runtime, session.ready)
            session.check_open()
    except TimeoutError:
        if session is None:
            late = f"no answer within {timeout:g} s"
            hint = "; does the server ask for a token?" if asks_for_token else ""
        else:
            late = f"no handshake within {timeout:g} s"
            hint = missing_handshake_hint(session)
            session.abort(late)
            await session.wait_closed()
            if session.failure is not None and str(session.failure) != late:  # how a child ended
                raise copy_of(session.failure) from None
        raise Unreachable(f"{address}: {late}{hint}; allow more with timeout=...") from None
    except BaseException:
        if session is not None:
            session.abort("connecting was cancelled or failed")
        raise
    return session


@contextmanager
def named_failures(address: Address) -> Iterator[None]:
    """Turn errors of connecting into Unreachable or NotListening; TimeoutError is left as it is."""
    try:
        yield
    except ssl.SSLCertVerificationError as problem:
        raise Unreachable(
            f"{address}: {describe_os_error(problem)}{certificate_remedy(problem)}"
        ) from None
    except ConnectionRefusedError:
        raise NotListening(f"{address}: nothing listens there") from None
    except TimeoutError:
        raise  # the caller reports it
    except ConnectionResetError:
        secure = address.scheme in ("tls", "wss")
        what = "the TLS handshake" if secure else "connecting"
        raise Unreachable(
            f"{address}: the peer ended the connection during {what}"
            + ("; does it speak TLS 1.2 or later?" if secure else "")
        ) from None
    except OSError as problem:
        raise unreachable_class(problem, address)(
            f"{address}: {describe_os_error(problem)}"
        ) from None


def unreachable_class(problem: OSError, address: Address) -> type[Unreachable]:
    """Return NotListening if a peer that has not started yet can be the cause, else Unreachable.

    That is a missing socket file, an unknown host name, or an absent host.
    """
    absent = isinstance(problem, FileNotFoundError) and address.scheme == "unix"
    absent = absent or isinstance(problem, socket.gaierror) or problem.errno in HOST_ABSENT_ERRNOS
    return NotListening if absent else Unreachable
