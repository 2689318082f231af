"""`connect`: open a session to a peer at a URL."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import TypedDict, Unpack, overload

from polymux.aio.arguments import check_seconds, check_session_options
from polymux.aio.errors import (
    NotListening,
    Unreachable,
    certificate_remedy,
    copy_of,
    describe_os_error,
)
from polymux.aio.factory import (
    MINMUX,
    NERDBANK,
    OMNISTREAMS,
    STREAMUX,
    YAMUX,
    session_factory,
    set_peer_name,
)
from polymux.aio.hooks import RecorderFactory, SessionMeter
from polymux.aio.pending import Pending
from polymux.aio.protocols.minmux import MinmuxSession
from polymux.aio.protocols.nerdbank import NerdbankSession
from polymux.aio.protocols.omnistreams import OmnistreamsSession
from polymux.aio.protocols.streamux import StreamuxSession
from polymux.aio.protocols.yamux import YamuxSession
from polymux.aio.session.busy_poll import DEFAULT_BUSY_POLL_SECONDS
from polymux.aio.session.peer_diagnosis import missing_handshake_hint
from polymux.aio.session.session import Session
from polymux.aio.session.socket_options import configure_tcp_keepalive
from polymux.aio.transports.process import start_process
from polymux.aio.transports.stdio import open_stdio_session
from polymux.aio.transports.token import DialerToken, check_token
from polymux.aio.transports.websocket import connect_websocket, protocol_for_scheme
from polymux.aio.urls import Address, parse_url
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import DIALER
from polymux.core.token_exchange import SharedToken

__all__ = ["ConnectOptions", "Connecting", "Unreachable", "connect"]

Connecting = Pending

RETRY_SECONDS = 0.1  # between two attempts while nothing listens
# The host itself is not there yet.
HOST_ABSENT_ERRNOS = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


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
def connect(
    url: str, *, protocol: YAMUX, **options: Unpack[ConnectOptions]
) -> Pending[YamuxSession]: ...
@overload
def connect(url: str, *, protocol: str, **options: Unpack[ConnectOptions]) -> Pending[Session]: ...
def connect(
    url: str,
    *,
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
) -> Pending[Session]:
    """Open a session to the peer at `url`.

    Busy polling is on by default: while replies keep arriving quickly, the event loop spins for up
    to 200 microseconds after each send instead of blocking, which shortens round trips and costs
    processor time. `busy_poll=0` turns it off.

    `timeout` and `timeouts` are two things: `timeout` bounds this call, `timeouts` belongs to the
    session and applies as long as it is open.

    Args:
        url: `tcp://HOST:PORT`, `tls://`, `ws://`, `wss://`, `unix://PATH`, `exec:COMMAND` or
            `stdio:`.
        protocol: Protocol string: a name such as `mplex`, with options as in
            `nerdbank:version=2`.
        limits: Limits on what the peer can make this side hold; `Limits()` by default.
        timeouts: Timeouts of the session in seconds; `Timeouts()` by default.
        tls: TLS context for `tls://` and `wss://`. By default the peer is verified by the system's
            certificate authorities.
        server_hostname: Name to verify in the peer's certificate; the URL's host by default.
        timeout: Seconds for connecting and for the protocol's handshake, for each attempt.
        wait: For how many seconds to try again while nothing listens at `url`; 0 means one attempt.
        opens_per_second: Rate limit for opening streams; 0 means none. For peers that count them:
            js-libp2p ends a session at the sixth stream within a second, so 4 is safe.
        busy_poll: Maximum busy-poll time in seconds after a send; 0 disables busy polling.
        recorder: Records the session, such as a `polymux.record.Recorder`.
        meter: Counts sessions, such as a `polymux.metrics.Meter`.
        token: The token that the server asks for, 16 to 1,024 bytes; over TLS, a Unix socket or a
            loopback address only. The server has to prove that it knows the token too.

    Returns:
        A `Pending` session. Await it, or enter it with `async with`, which closes the session at
        the end of the block. If it is cancelled, no connection and no child process is left.

    Raises:
        Unreachable: When awaited: no connection or no handshake within `timeout`.
        SessionClosed: When awaited: the peer ended the session during the handshake, or broke the
            protocol.
        BadUrl: The URL is invalid.
        PolymuxError: The protocol string is invalid.
        TypeError, ValueError: Another argument is invalid.
    """
    check_session_options(protocol, limits, timeouts)
    check_seconds(timeout, "timeout")
    check_seconds(wait, "wait")
    address = parse_url(url)
    shared = check_token(token, address)
    text = protocol_for_scheme(protocol, address.scheme)
    make = session_factory(
        text, DIALER, limits, timeouts, opens_per_second, busy_poll, recorder, meter
    )

    async def attempt() -> Session:
        session: Session | None = None
        try:
            async with asyncio.timeout(timeout):
                session = await open_transport(address, make, tls, server_hostname, timeout, shared)
                configure_tcp_keepalive(session.transport, session.timeouts.keepalive_interval)
                set_peer_name(session, str(address))
                await asyncio.shield(session.ready)
                session.check_open()
        except TimeoutError:
            what = "answer" if session is None else "handshake"
            late = f"no {what} within {timeout:g} s"
            if session is not None:
                hint = missing_handshake_hint(session)
            else:
                hint = "" if shared is None else "; does the server ask for a token?"
            if session is not None:
                session.abort(late)
                await session.wait_closed()
                if (
                    session.failure is not None and str(session.failure) != late
                ):  # how a child ended
                    raise copy_of(session.failure) from None
            raise Unreachable(f"{address}: {late}{hint}; allow more with timeout=...") from None
        except BaseException:
            if session is not None:
                session.abort("connecting was cancelled or failed")
            raise
        return session

    async def connect() -> Session:
        loop = asyncio.get_running_loop()
        latest = loop.time() + wait
        while True:
            try:
                return await attempt()
            except NotListening as problem:
                if not wait:
                    raise
                if loop.time() >= latest:
                    raise NotListening(f"{problem}, for {wait:g} s") from None
            await asyncio.sleep(min(RETRY_SECONDS, latest - loop.time()))

    connect.__qualname__ = "connect"
    return Pending(connect())


async def open_transport(
    address: Address,
    make: Callable[[], Session],
    tls: ssl.SSLContext | None,
    server_hostname: str | None,
    timeout: float,
    token: SharedToken | None,
) -> Session:
    """Open the transport of a session, after the exchange of the token if there is one.

    Raises:
        NotListening: Nothing listens there yet.
        Unreachable: Connecting failed for another reason.
        TimeoutError: The system gave up, or the caller's timeout has passed.
    """
    loop = asyncio.get_running_loop()

    def first_protocol() -> Session | DialerToken[Session]:
        return make() if token is None else DialerToken(address, token, make)

    made: Session | DialerToken[Session]
    try:
        if address.scheme == "unix":
            _, made = await loop.create_unix_connection(first_protocol, address.path)
        elif address.scheme == "exec":
            made = await start_process(address.command, make)
        elif address.scheme == "stdio":
            made = await open_stdio_session(make)
        elif address.scheme in ("tcp", "tls"):
            context = None
            if address.scheme == "tls":
                context = tls if tls is not None else ssl.create_default_context()
            _, made = await loop.create_connection(
                first_protocol,
                address.host,
                address.port,
                ssl=context,
                server_hostname=(server_hostname or address.host) if context else None,
                ssl_handshake_timeout=timeout if context else None,
            )
        else:
            made = await connect_websocket(address, make, tls, server_hostname, timeout, token)
        return await made.proved() if isinstance(made, DialerToken) else made
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
