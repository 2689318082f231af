"""`connect`: open a session to a peer at a URL, for programs without an event loop."""

from functools import partial
from typing import Unpack, overload

from polymux.core.errors import Unsupported
from polymux.core.side import DIALER
from polymux.live.arguments import check_seconds, check_session_options
from polymux.live.connecting import ConnectOptions, establish
from polymux.live.factory import MINMUX, NERDBANK, OMNISTREAMS, STREAMUX, YAMUX, session_factory
from polymux.live.session.busy_poll import DEFAULT_BUSY_POLL_SECONDS
from polymux.live.transports.opening import open_transport
from polymux.live.transports.token import check_token
from polymux.live.transports.websocket import protocol_for_scheme
from polymux.live.urls import parse_url
from polymux.sync.runtime import ThreadRuntime
from polymux.sync.sessions import (
    MinmuxSession,
    NerdbankSession,
    OmnistreamsSession,
    Session,
    StreamuxSession,
    YamuxSession,
    blocking_session,
)

SECURE_SCHEMES = ("tls", "wss")


@overload
def connect(
    url: str, *, protocol: NERDBANK, **options: Unpack[ConnectOptions]
) -> NerdbankSession: ...
@overload
def connect(
    url: str, *, protocol: OMNISTREAMS, **options: Unpack[ConnectOptions]
) -> OmnistreamsSession: ...
@overload
def connect(
    url: str, *, protocol: STREAMUX, **options: Unpack[ConnectOptions]
) -> StreamuxSession: ...
@overload
def connect(url: str, *, protocol: MINMUX, **options: Unpack[ConnectOptions]) -> MinmuxSession: ...
@overload
def connect(url: str, *, protocol: YAMUX, **options: Unpack[ConnectOptions]) -> YamuxSession: ...
@overload
def connect(url: str, *, protocol: str, **options: Unpack[ConnectOptions]) -> Session: ...
def connect(url: str, *, protocol: str, **options: Unpack[ConnectOptions]) -> Session:
    """Open a session to the peer at `url`, and wait for its handshake.

    Args:
        url: `tcp://HOST:PORT`, `tls://`, `ws://`, `wss://` or `unix://PATH`.
        protocol: Protocol string, such as `nerdbank:version=2`.
        options: Those of `polymux.connect`: `limits`, `timeouts`, `tls`, `server_hostname`,
            `timeout` (10 seconds by default), `wait`, `opens_per_second`, `busy_poll`, `recorder`,
            `meter` and `token`, with the same meanings and defaults.

    Returns:
        The session, also a context manager that closes it. It has a thread, which ends with it.

    Raises:
        Unreachable: No connection or no handshake within `timeout`.
        SessionClosed: The peer ended the session during the handshake, or broke the protocol.
        BadUrl: The URL is invalid.
        Unsupported: The URL is one of `exec:` or `stdio:`, which need asyncio.
        PolymuxError: The protocol string is invalid.
        TypeError, ValueError: Another argument is invalid.
    """
    limits, timeouts = options.get("limits"), options.get("timeouts")
    check_session_options(protocol, limits, timeouts)
    timeout = check_seconds(options.get("timeout", 10.0), "timeout")
    wait = check_seconds(options.get("wait", 0.0), "wait")
    address = parse_url(url)
    if address.scheme in ("exec", "stdio"):
        raise Unsupported(
            f"{address}: child processes and standard streams need asyncio: use polymux.connect"
        )
    token = check_token(options.get("token"), address)
    make = session_factory(
        protocol_for_scheme(protocol, address.scheme),
        DIALER,
        limits,
        timeouts,
        options.get("opens_per_second", 0.0),
        options.get("busy_poll", DEFAULT_BUSY_POLL_SECONDS),
        options.get("recorder"),
        options.get("meter"),
        runtime=lambda: runtime,
    )
    runtime = ThreadRuntime(f"polymux {address}")
    begin = partial(
        open_transport,
        runtime,
        address,
        make,
        options.get("tls"),
        options.get("server_hostname"),
        token,
    )
    runtime.do(runtime.add_user)
    try:
        live = runtime.call(establish(runtime, address, begin, timeout, wait, token is not None))
    except BaseException:
        runtime.do(runtime.remove_user)
        raise
    runtime.do(live.closed.add_done_callback, lambda _: runtime.remove_user())
    session: Session = blocking_session(runtime, live)
    return session
