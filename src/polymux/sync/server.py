"""`serve` and `pipe`: sessions of peers that connect, and of this process, each with threads."""

from collections.abc import Callable
from typing import Any, Unpack

from polymux.live.factory import PipeOptions
from polymux.live.handles import ServerHandle
from polymux.live.server import ServeOptions, server_starter
from polymux.live.session import session as plain
from polymux.live.transports.memory import pipe_maker
from polymux.live.urls import parse_url
from polymux.sync.runtime import ThreadRuntime
from polymux.sync.sessions import HandlerThreads, Session, blocking_session


class Server(ServerHandle[Session]):
    """A listening socket and its sessions; see `polymux.Server`.

    Leaving a `with` block closes it.
    """

    __slots__ = ()
    runtime: ThreadRuntime

    def close(self, *, timeout: float | None = None) -> None:
        """Stop listening, and close every session.

        Handlers whose sessions are closed find that out at their next call, and get a second to
        return; the threads of others go on.
        """
        self.runtime.call(self.live.close(), timeout)

    def wait_closed(self, *, timeout: float | None = None) -> None:
        """Wait until the server is closed."""
        self.runtime.call(self.live.wait_closed(), timeout, may_lead=False)

    def _shown(self, session: plain.Session) -> Any:
        return blocking_session(self.runtime, session)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()


def serve(
    handler: Callable[[Any], object], url: str, *, protocol: str, **options: Unpack[ServeOptions]
) -> Server:
    """Listen at `url`, and run `handler(session)` in a thread of its own for each session.

    A session is closed when its handler returns. If the handler raises, the exception is logged and
    the session ends: closed after a PolymuxError, aborted after any other. The server goes on.

    Args:
        handler: A function of one argument, the session.
        url: `tcp://HOST:PORT`, `tls://`, `ws://`, `wss://` or `unix://PATH`. Port 0 takes a free
            port; `server.url` has the actual one.
        protocol: Protocol string, such as `nerdbank:version=2`.
        options: Those of `polymux.serve`: `limits`, `timeouts`, `tls`, `busy_poll`, `recorder`,
            `meter`, `origins`, `allow`, `token` and `reuse_port`, with the same meanings and
            defaults.

    Returns:
        The server. One thread accepts connections and serves the sessions while no handler waits.

    Raises:
        Unreachable: The address cannot be listened on.
        BadUrl: The URL is invalid or cannot be listened on, or `tls` is missing.
        Unsupported: The URL is `stdio:`, which needs asyncio.
        PolymuxError: The protocol string is invalid.
        TypeError, ValueError: Another argument is invalid.
    """
    if not callable(handler):
        raise TypeError(f"the handler is a function, not {type(handler).__name__}")

    async def handle(session: plain.Session) -> None:
        await threads.run(handler, blocking_session(runtime, session))

    start = server_starter(handle, url, protocol, **options, runtime=lambda: runtime)
    runtime = ThreadRuntime(f"polymux server {parse_url(url)}")
    threads = HandlerThreads(runtime)
    runtime.do(runtime.add_user)
    try:
        live = runtime.call(start())
    except BaseException:
        runtime.do(runtime.remove_user)
        raise
    runtime.do(live.closed.add_done_callback, lambda _: runtime.remove_user())
    return Server(runtime, live)


def pipe(
    protocol: str, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[Any, Any]:
    """Connect two sessions in this process, without a network; see `polymux.pipe`.

    Returns:
        The dialer's session and the acceptor's, after their handshake.
    """
    make = pipe_maker(protocol, other, **options, runtime=lambda: runtime)
    runtime = ThreadRuntime("polymux pipe")
    for _ in range(2):
        runtime.do(runtime.add_user)
    try:
        both = runtime.call(make())
    except BaseException:
        for _ in range(2):
            runtime.do(runtime.remove_user)
        raise
    for session in both:
        runtime.do(session.closed.add_done_callback, lambda _: runtime.remove_user())
    return blocking_session(runtime, both[0]), blocking_session(runtime, both[1])
