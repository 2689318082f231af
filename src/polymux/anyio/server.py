"""`serve`: sessions of peers that connect, each with a task for its handler."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Unpack

from anyio.abc import AsyncResource

from polymux.anyio.runtime import DoorRuntime, open_handlers, open_runtime
from polymux.anyio.sessions import Session, session_handle
from polymux.live.arguments import check_handler
from polymux.live.handles import ServerHandle
from polymux.live.server import ServeOptions, server_starter
from polymux.live.session import session as plain


class Server(ServerHandle[Session], AsyncResource):
    """A listening socket and its sessions; see `polymux.Server`. `serve` gives it."""

    runtime: DoorRuntime

    async def close(self) -> None:
        """Stop listening, close every session, and cancel the handlers that still run.

        Queued data is sent first, for up to `Timeouts.close` seconds; then handlers get a second to
        return. If cancelled, the sessions are aborted and the handlers cancelled at once.
        """
        await self.runtime.call(self.live.close(), closing=True)

    async def aclose(self) -> None:
        """The same as `close`."""
        await self.close()

    async def wait_closed(self) -> None:
        """Wait until the server is closed."""
        await self.runtime.call(self.live.wait_closed())

    def _shown(self, session: plain.Session) -> Any:
        return session_handle(self.runtime, session)


@asynccontextmanager
async def serve(
    handler: Callable[[Any], Awaitable[object]],
    url: str,
    *,
    protocol: str,
    **options: Unpack[ServeOptions],
) -> AsyncIterator[Server]:
    """Listen at `url`, and run `handler(session)` in a task for each session.

    An asynchronous context manager, which gives the server. Leaving the block closes the server, as
    `Server.close` does. The handlers are tasks of a group that ends with the block: if that is
    cancelled, so are they.

    A session is closed when its handler returns. If the handler raises, the exception is logged and
    the session ends: closed after a PolymuxError, aborted after any other. The server goes on.

    Args:
        handler: An async function of one argument, the session.
        url: `tcp://HOST:PORT`, `tls://`, `ws://`, `wss://` or `unix://PATH`; on asyncio also
            `stdio:`. Port 0 takes a free port; `server.url` has the actual one.
        protocol: Protocol string, such as `nerdbank:version=2`.
        options: Those of `polymux.serve`: `limits`, `timeouts`, `tls`, `busy_poll`, `recorder`,
            `meter`, `origins`, `allow`, `token` and `reuse_port`, with the same meanings and
            defaults.

    Raises:
        Unreachable: On entering the block: the address cannot be listened on.
        BadUrl: On entering: the URL is invalid or cannot be listened on, or `tls` is missing.
        Unsupported: On entering, on trio: the URL is `stdio:`.
        PolymuxError: On entering: the protocol string is invalid.
        TypeError, ValueError: On entering: another argument is invalid.
    """
    check_handler(handler)
    async with open_runtime("polymux.anyio.serve") as runtime:
        async with open_handlers(runtime) as handlers:

            async def handle(session: plain.Session) -> None:
                await handlers.run(handler, session_handle(runtime, session))

            start = server_starter(
                handle,
                url,
                protocol,
                **options,
                runtime=lambda: runtime.live,
                open_stdio=runtime.open_stdio,
            )
            server = Server(runtime, await runtime.call(start()))
            try:
                yield server
            finally:
                try:
                    await server.close()
                finally:
                    await runtime.finish(server.live.wait_handled())
