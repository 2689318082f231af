"""`polymux tunnel`: forward TCP connections over the streams of one session."""

from __future__ import annotations

import asyncio
import logging

import click

from polymux.aio import BadUrl, Unreachable
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import plural, warn
from polymux.cli.support.peer_io import (
    audit_option,
    connection_limits,
    connection_options,
    open_audit_log,
    open_recorder,
)
from polymux.cli.support.queued_output import queued_output
from polymux.cli.support.signals import first_of, stop_event
from polymux.cli.support.stall_reporter import StallReporter
from polymux.cli.support.tls_options import (
    allowed_clients,
    dialing_context,
    dialing_tls_options,
    listening_context,
    listening_tls_options,
    read_token,
    token_option,
    unverified_note,
    with_options,
)
from polymux.core.errors import SessionClosed
from polymux.relay.engine import RelayStats
from polymux.relay.tunnel.client import TunnelClient
from polymux.relay.tunnel.forwards import parse_dynamic, parse_local, parse_remote
from polymux.relay.tunnel.server import TunnelServer

protocol_option = click.option(
    "--protocol", default="yamux", show_default=True, shell_complete=protocol_names,
    help="Protocol of the session: mplex, nerdbank or yamux, with options as in yamux:window=...",
)  # fmt: skip
explain_option = click.option(
    "--explain", is_flag=True,
    help="Print which forwarded connection is stalled and why, while it is, and when it goes on; "
    "JSON lines into a pipe.",
)  # fmt: skip
record_option = click.option(
    "--record", "record_to", help="Also record the sessions to this new capture (pcapng)."
)


@click.group(
    epilog="Example: polymux tunnel serve tcp://127.0.0.1:9000 --allow 127.0.0.1:5432",
)
def tunnel() -> None:
    """Forward TCP connections over one session: `serve` at one side, `connect` at the other.

    The client listens on its ports, or as a SOCKS5 proxy, and the server connects to the targets
    that it allows. Every forwarded connection is a stream of its own: one that is not read delays
    no other.
    """


@tunnel.command(
    epilog="Example: polymux tunnel serve tls://0.0.0.0:9443 --cert cert.pem --key key.pem "
    "--token-file token --allow db.internal:5432 --allow 10.0.0.0/8:80,443",
    no_args_is_help=True,
)
@click.argument("url")
@protocol_option
@click.option(
    "--allow", "targets", multiple=True, metavar="HOST:PORTS|CIDR:PORTS",
    help="Connect to this target for clients; repeatable. PORTS: 443, 80,443, 8000-8100 or *. "
    "Nothing else is connected to.",
)  # fmt: skip
@click.option(
    "--allow-remote", "binds", multiple=True, metavar="[BIND:]PORTS",
    help="Listen here for clients that ask for it with -R; repeatable (BIND: 127.0.0.1). By "
    "default such requests are refused.",
)  # fmt: skip
@explain_option
@record_option
@audit_option
@connection_options
@listening_tls_options
@token_option(
    "File with a token that clients have to prove to know, mode 0600; demanded unless URL is a "
    "Unix socket or a loopback address."
)
def serve(
    url: str,
    protocol: str,
    targets: tuple[str, ...],
    binds: tuple[str, ...],
    explain: bool,
    record_to: str | None,
    audit: str | None,
    backlog: int,
    clients: int,
    per_host: int | None,
    cert: str | None,
    key: str | None,
    client_ca: str | None,
    crl: str | None,
    allow: tuple[str, ...],
    token_file: str | None,
) -> None:
    """Listen at URL, and connect to targets for the clients of a tunnel.

    Only targets of --allow are connected to. A host name that a client asks for is resolved here,
    and the address that is connected to has to be allowed: by a network, or because --allow names
    the host. What is refused is logged, and written to --audit. The command stops on SIGINT,
    SIGTERM or SIGHUP.
    """
    allowed = allowed_clients(allow, [url], client_ca)
    token = read_token(token_file)
    own = listening_context([url], cert, key, client_ca, crl)
    if not targets and not binds:
        warn("warning: nothing is allowed: name targets with --allow, or ports with --allow-remote")

    async def run() -> TunnelServer:
        stop = stop_event()
        with open_audit_log(audit) as audit_log, open_recorder(record_to, False) as recorder:
            try:
                server = TunnelServer(
                    url, protocol=protocol, allow=targets, allow_remote=binds, token=token,
                    tls=own, limits=connection_limits(backlog, clients, per_host),
                    allow_clients=allowed, audit=audit_log, recorder=recorder,
                )  # fmt: skip
                await server.start()
            except (BadUrl, Unreachable) as problem:
                raise click.UsageError(with_options(str(problem))) from None
            async with StallReporter(server.relays, explain):
                warn(f"listening at {server.url} for {protocol}")
                closed = asyncio.ensure_future(server.wait_closed())
                await first_of(closed, asyncio.ensure_future(stop.wait()))
                await server.close()
        return server

    with queued_output():
        print_result(asyncio.run(run()).stats)


@tunnel.command(
    epilog="Example: polymux tunnel connect tcp://127.0.0.1:9000 -L 15432:127.0.0.1:5432 -D 1080",
    no_args_is_help=True,
)
@click.argument("url")
@protocol_option
@click.option(
    "-L", "local", multiple=True, metavar="[BIND:]PORT:HOST:HOSTPORT",
    help="Listen on this port; the server connects to HOST:HOSTPORT. Repeatable.",
)  # fmt: skip
@click.option(
    "-R", "remote", multiple=True, metavar="[BIND:]PORT:HOST:HOSTPORT",
    help="The server listens on this port; this side connects to HOST:HOSTPORT. Repeatable.",
)  # fmt: skip
@click.option(
    "-D", "dynamic", multiple=True, metavar="[BIND:]PORT",
    help="Listen on this port as a SOCKS5 proxy; the server resolves host names. Repeatable.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds for one attempt to connect.",
)  # fmt: skip
@click.option(
    "--give-up-after", type=click.FloatRange(0), default=60.0, show_default=True,
    help="Seconds without a connection, at the start or later, after which the command ends; 0: "
    "never.",
)  # fmt: skip
@explain_option
@record_option
@dialing_tls_options
@token_option("File with the token that the server asks for, mode 0600.")
def connect(
    url: str,
    protocol: str,
    local: tuple[str, ...],
    remote: tuple[str, ...],
    dynamic: tuple[str, ...],
    timeout: float,
    give_up_after: float,
    explain: bool,
    record_to: str | None,
    ca: str | None,
    server_name: str | None,
    cert: str | None,
    key: str | None,
    insecure: bool,
    token_file: str | None,
) -> None:
    """Connect to a tunnel server, and forward the ports of -L, -R and -D.

    Ports are bound to 127.0.0.1 unless BIND says otherwise. If the connection is lost it is made
    again, with growing pauses; connections that come meanwhile wait for ten seconds. The command
    stops on SIGINT, SIGTERM or SIGHUP. Exit code 4: there was no connection for --give-up-after.
    """
    if not (local or remote or dynamic):
        raise click.UsageError("nothing to forward: give -L, -R or -D")
    token = read_token(token_file)
    trusted = dialing_context(url, ca, server_name, cert, key, insecure)
    here = [*map(parse_local, local), *map(parse_dynamic, dynamic)]
    there = [*map(parse_remote, remote)]

    async def run() -> TunnelClient:
        stop = stop_event()
        with open_recorder(record_to, False, unverified_note(insecure)) as recorder:
            client = TunnelClient(
                url, protocol=protocol, local=here, remote=there, token=token, tls=trusted,
                server_hostname=server_name, timeout=timeout, give_up_after=give_up_after,
                recorder=recorder,
            )  # fmt: skip
            async with client, StallReporter(client.relays, explain):
                running = asyncio.ensure_future(client.run())
                for forward, bound in zip(here, client.bound, strict=True):
                    warn(f"listening at {bound} for {forward.target or 'SOCKS5'}")
                await first_of(running, asyncio.ensure_future(stop.wait()))
                if not running.cancelled():
                    await running  # it has failed
        return client

    log = logging.getLogger("polymux.aio")
    log.setLevel(logging.ERROR)  # `client.run` reports why a session ended
    try:
        with queued_output():
            print_result(asyncio.run(run()).stats)
    except (BadUrl, Unreachable, SessionClosed) as problem:
        raise type(problem)(with_options(str(problem))) from None


def print_result(stats: RelayStats) -> None:
    """Print what was forwarded."""
    warn(
        f"{plural(stats.streams, 'connection')} forwarded, {stats.rejected} refused, "
        f"{plural(stats.bytes_a + stats.bytes_b, 'byte')}"
    )
