"""`serve` and `pipe`: sessions of peers that connect, and of this process, each with threads."""

from collections.abc import Callable
from typing import Any, Unpack

from polymux.core.errors import Unsupported
from polymux.core.limits import Limits
from polymux.core.side import ACCEPTOR, DIALER
from polymux.live.arguments import check_session_options
from polymux.live.factory import PipeOptions, session_factory
from polymux.live.runtime import wait_done
from polymux.live.server import ServeOptions, server_bounds, server_starter
from polymux.live.server import Server as LiveServer
from polymux.live.session import session as plain
from polymux.live.transports.memory import join_in_memory
from polymux.live.urls import parse_url
from polymux.sync.runtime import ThreadRuntime
from polymux.sync.sessions import Session, blocking_session, in_thread
from polymux.sync.streams import Handle


class Server(Handle[LiveServer]):
    """A listening socket and its sessions; see `polymux.Server`.

    Leaving a `with` block closes it.
    """

    __slots__ = ()

    @property
    def url(self) -> str:
        """The URL that the server listens on, with the port that was bound."""
        return self.live.url

    @property
    def port(self) -> int:
        """The TCP port that was bound; 0 where there is none."""
        return self.live.port

    @property
    def sessions(self) -> list[Session]:
        """The open sessions, including those whose handshake is not done."""
        found = self.runtime.do(lambda: list(self.live.sessions))
        return [blocking_session(self.runtime, session) for session in found]

    def close(self, *, timeout: float | None = None) -> None:
        """Stop listening, and close every session.

        Handlers whose sessions are closed find that out at their next call, and get a second to
        return; the threads of others go on.
        """
        self.runtime.call(self.live.close(), timeout)

    def wait_closed(self, *, timeout: float | None = None) -> None:
        """Wait until the server is closed."""
        self.runtime.call(self.live.wait_closed(), timeout, may_lead=False)

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
            `meter`, `origins`, `allow` and `token`, with the same meanings and defaults.

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
    limits, timeouts, meter = options.get("limits"), options.get("timeouts"), options.get("meter")
    check_session_options(protocol, limits, timeouts)
    address = parse_url(url)
    if address.scheme in ("exec", "stdio"):
        raise Unsupported(f"{address}: standard streams need asyncio: use polymux.serve")

    async def handle(session: plain.Session) -> None:
        await in_thread(runtime, handler, blocking_session(runtime, session))

    given: dict[str, Any] = {"limits": None, "timeouts": None, "tls": None, **options}
    bounds = server_bounds(limits or Limits(), protocol, meter)
    start = server_starter(bounds, handle, url, protocol, **given, runtime=lambda: runtime)
    runtime = ThreadRuntime(f"polymux server {address}")
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
    limits, timeouts = options.get("limits"), options.get("timeouts")
    check_session_options(protocol, limits, timeouts)

    def maker(text: str, side: int) -> Callable[[], plain.Session]:
        return session_factory(text, side, limits, timeouts, 0.0, runtime=lambda: runtime)

    makers = maker(protocol, DIALER), maker(other or protocol, ACCEPTOR)
    runtime = ThreadRuntime("polymux pipe")

    async def joined() -> tuple[plain.Session, plain.Session]:
        both = makers[0](), makers[1]()
        join_in_memory(*both)
        try:
            for session in both:
                await wait_done(runtime, session.ready)
                session.check_open()
        except BaseException:
            for session in both:
                session.abort("connecting the two sessions failed")
            raise
        for session in both:
            runtime.add_user()
            session.closed.add_done_callback(lambda _: runtime.remove_user())
        return both

    runtime.do(runtime.add_user)
    try:
        near, far = runtime.call(joined())
    finally:
        runtime.do(runtime.remove_user)
    return blocking_session(runtime, near), blocking_session(runtime, far)
