"""Connecting: for how long, how often, and what its failures are called."""

import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypedDict

from polymux.core.limits import Limits, Timeouts
from polymux.live.errors import (
    NotListening,
    Unreachable,
    certificate_remedy,
    copy_of,
    describe_os_error,
)
from polymux.live.factory import set_peer_name
from polymux.live.hooks import RecorderFactory, SessionMeter
from polymux.live.runtime import Runtime, sleep, wait_done
from polymux.live.session.peer_diagnosis import missing_handshake_hint
from polymux.live.session.session import Session
from polymux.live.session.socket_options import configure_tcp_keepalive
from polymux.live.urls import Address

RETRY_SECONDS = 0.1  # between two attempts while nothing listens
# The host itself is not there yet.
HOST_ABSENT_ERRNOS = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)

OpenTransport = Callable[[], Awaitable[Session]]


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
