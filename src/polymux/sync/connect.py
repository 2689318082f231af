"""`connect`: open a session to a peer at a URL, for programs without an event loop."""

from typing import Unpack, overload

from polymux.live.connecting import ConnectOptions, session_connector
from polymux.live.factory import MINMUX, NERDBANK, OMNISTREAMS, STREAMUX, YAMUX
from polymux.live.transports.opening import open_connection
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
    begin = session_connector(
        url, protocol, **options, runtime=lambda: runtime, open_connection=open_connection
    )
    runtime = ThreadRuntime(f"polymux {parse_url(url)}")
    runtime.do(runtime.add_user)
    try:
        live = runtime.call(begin())
    except BaseException:
        runtime.do(runtime.remove_user)
        raise
    runtime.do(live.closed.add_done_callback, lambda _: runtime.remove_user())
    session: Session = blocking_session(runtime, live)
    return session
