"""`polymux testee`: a peer for conformance tests, which does what the tester's streams ask for."""

from __future__ import annotations

import asyncio
import logging

import click

from polymux.aio import Unreachable
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import warn
from polymux.cli.support.signals import stop_event
from polymux.cli.support.tls_options import check_effect, is_secure
from polymux.conform.runner import ROLES
from polymux.conform.testee import dial_testee, serve_testee
from polymux.record import tls_contexts


@click.command(
    epilog="Example: polymux testee tcp://127.0.0.1:9000 --protocol mplex, and beside it polymux "
    "conform tcp://127.0.0.1:9000 --protocol mplex --level 2",
    no_args_is_help=True,
)
@click.argument("url")
@click.option(
    "--protocol", required=True, shell_complete=protocol_names,
    help="NAME[:key=value,...], such as mplex.",
)  # fmt: skip
@click.option(
    "--role", type=click.Choice(ROLES), default="acceptor", show_default=True,
    help="acceptor: listen at URL. dialer: connect to URL, again and again until nothing listens "
    "there.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="As dialer: stop after the first session.")
@click.option("--ca", help="As dialer: authorities (PEM) that verify the tester's certificate.")
@click.option("--cert", help="Certificate chain (PEM) to listen with on tls:// and wss://.")
@click.option("--key", help="Private key of --cert (PEM), mode 0600.")
def testee(
    url: str,
    protocol: str,
    role: str,
    once: bool,
    ca: str | None,
    cert: str | None,
    key: str | None,
) -> None:
    """Be the peer of a conformance test: echo every stream, or do what its name asks for.

    The name of a stream (mplex, Nerdbank), its metadata (omnistreams), or its content after
    `testee: ` (yamux: the first line, Streamux: the request) is a command: echo, sink, source N,
    slow BPS, never-read, half-close, reset N, open N, report. Everything else is echoed. Streams of
    Minmux have fixed roles, in pairs of one that is read and the next one that is written: pairs 1
    to 5 and 9 echo, 6 is a sink, 7 is never read, 8 is a source.
    """
    check_effect([url], {"--ca": ca, "--cert": cert, "--key": key})
    if role == "acceptor" and is_secure(url) and cert is None:
        raise click.UsageError(f"{url}: needs a certificate to listen with: --cert and --key")
    logging.getLogger("polymux.aio").setLevel(logging.CRITICAL)  # bad frames are its business

    async def listen() -> None:
        context = tls_contexts.server_context(cert, key) if cert is not None else None
        try:
            server = await serve_testee(url, protocol, context)
        except Unreachable as problem:
            raise click.UsageError(str(problem)) from None
        async with server:
            warn(f"listening at {server.url}")
            closed = asyncio.create_task(server.wait_closed())
            stop = asyncio.create_task(stop_event().wait())
            await asyncio.wait([closed, stop], return_when="FIRST_COMPLETED")

    async def dial() -> None:
        context = tls_contexts.client_context(ca) if is_secure(url) else None
        work = asyncio.create_task(dial_testee(url, protocol, context, once))
        stop = asyncio.create_task(stop_event().wait())
        await asyncio.wait([work, stop], return_when="FIRST_COMPLETED")
        if work.done():
            work.result()
        work.cancel()

    asyncio.run(listen() if role == "acceptor" else dial())
