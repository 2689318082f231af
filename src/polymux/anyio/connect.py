"""`connect` and `pipe`: sessions that end with the block that opened them."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack, overload

from polymux.anyio.runtime import open_runtime
from polymux.anyio.sessions import (
    MinmuxSession,
    NerdbankSession,
    OmnistreamsSession,
    Session,
    StreamuxSession,
    YamuxSession,
    leave,
    session_handle,
)
from polymux.live.connecting import ConnectOptions, session_connector
from polymux.live.factory import (
    MINMUX,
    NERDBANK,
    OMNISTREAMS,
    STREAMUX,
    YAMUX,
    PipeOptions,
)
from polymux.live.transports.memory import pipe_maker


@overload
def connect(
    url: str, *, protocol: NERDBANK, **options: Unpack[ConnectOptions]
) -> AbstractAsyncContextManager[NerdbankSession]: ...
@overload
def connect(
    url: str, *, protocol: OMNISTREAMS, **options: Unpack[ConnectOptions]
) -> AbstractAsyncContextManager[OmnistreamsSession]: ...
@overload
def connect(
    url: str, *, protocol: STREAMUX, **options: Unpack[ConnectOptions]
) -> AbstractAsyncContextManager[StreamuxSession]: ...
@overload
def connect(
    url: str, *, protocol: MINMUX, **options: Unpack[ConnectOptions]
) -> AbstractAsyncContextManager[MinmuxSession]: ...
@overload
def connect(
    url: str, *, protocol: YAMUX, **options: Unpack[ConnectOptions]
) -> AbstractAsyncContextManager[YamuxSession]: ...
@overload
def connect(
    url: str, *, protocol: str, **options: Unpack[ConnectOptions]
) -> AbstractAsyncContextManager[Session]: ...
def connect(
    url: str, *, protocol: str, **options: Unpack[ConnectOptions]
) -> AbstractAsyncContextManager[Session]:
    """Open a session to the peer at `url`, for the time of an `async with` block.

    Leaving the block closes the session, as `Session.close` does; an exception in the block, or its
    cancellation, aborts it. All that the session needs of the event loop ends with the block.

    Args:
        url: `tcp://HOST:PORT`, `tls://`, `ws://`, `wss://` or `unix://PATH`; on asyncio also
            `exec:COMMAND` and `stdio:`.
        protocol: Protocol string, such as `nerdbank:version=2`.
        options: Those of `polymux.connect`: `limits`, `timeouts`, `tls`, `server_hostname`,
            `timeout` (10 seconds by default), `wait`, `opens_per_second`, `busy_poll`, `recorder`,
            `meter` and `token`, with the same meanings and defaults.

    Raises:
        Unreachable: On entering the block: no connection or no handshake within `timeout`.
        SessionClosed: On entering: the peer ended the session during the handshake, or broke the
            protocol.
        BadUrl: On entering: the URL is invalid.
        Unsupported: On entering, on trio: the URL is one of `exec:` or `stdio:`.
        PolymuxError: On entering: the protocol string is invalid.
        TypeError, ValueError: On entering: another argument is invalid.
    """
    return connected(url, protocol, options)


@asynccontextmanager
async def connected(url: str, protocol: str, options: ConnectOptions) -> AsyncIterator[Session]:
    """See `connect`."""
    async with open_runtime("polymux.anyio.connect") as runtime:
        begin = session_connector(
            url,
            protocol,
            **options,
            runtime=lambda: runtime.live,
            open_connection=runtime.open_connection,
        )
        live = await runtime.call(begin())
        async with session_handle(runtime, live) as session:
            yield session


@asynccontextmanager
async def pipe(
    protocol: str, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> AsyncIterator[tuple[Any, Any]]:
    """Connect two sessions in this process, without a network; see `polymux.pipe`.

    An asynchronous context manager, which gives the dialer's session and the acceptor's, after
    their handshake. Leaving the block ends both as `connect` does.
    """
    async with open_runtime("polymux.anyio.pipe") as runtime:
        make = pipe_maker(protocol, other, **options, runtime=lambda: runtime.live)
        both = await runtime.call(make())
        failed = True
        try:
            yield tuple(session_handle(runtime, live) for live in both)
            failed = False
        finally:
            await leave(runtime, both, failed)
