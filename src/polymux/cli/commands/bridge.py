"""`polymux bridge`: relay sessions of one protocol to a server of another."""

from __future__ import annotations

import asyncio

import click

from polymux.aio import Unreachable
from polymux.cli.commands.collect import parse_ids
from polymux.cli.support.completion import protocol_names
from polymux.cli.support.output import plural, warn
from polymux.cli.support.peer_io import (
    audit_option,
    check_origins,
    connection_limits,
    connection_options,
    open_audit_log,
    open_recorder,
    origin_option,
)
from polymux.cli.support.queued_output import queued_output
from polymux.cli.support.signals import first_of, stop_event
from polymux.cli.support.tls_options import (
    LISTENING_TOKEN_HELP,
    allowed_clients,
    listening_context,
    listening_tls_options,
    read_token,
    token_option,
    upstream_context,
    upstream_tls_options,
)
from polymux.relay import Bridge
from polymux.relay import bridge as start_bridge


@click.command(
    epilog="Example: polymux bridge tcp://127.0.0.1:9000 tcp://127.0.0.1:9001 --protocol-a mplex "
    "--protocol-b nerdbank",
    no_args_is_help=True,
)
@click.argument("a")
@click.argument("b")
@click.option(
    "--protocol-a", required=True, shell_complete=protocol_names,
    help="Protocol of the sessions accepted at A: NAME[:key=value,...].",
)  # fmt: skip
@click.option(
    "--protocol-b", required=True, shell_complete=protocol_names,
    help="Protocol of the sessions opened to B.",
)  # fmt: skip
@click.option("--record", "record_to", help="Also record both sides to this new capture (pcapng).")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
    help="Seconds to connect to B.",
)  # fmt: skip
@click.option(
    "--wait", type=click.FloatRange(0), default=0.0, show_default=True,
    help="Seconds to retry while B is not listening yet.",
)  # fmt: skip
@click.option(
    "--minmux-streams", callback=parse_ids, default="",
    help="Minmux at A: ids that get credit before the peer sends anything: 1,3,5.",
)  # fmt: skip
@audit_option
@origin_option
@connection_options
@listening_tls_options
@token_option(LISTENING_TOKEN_HELP)
@upstream_tls_options()
@click.option("--upstream-token-file", metavar="FILE", help="File with the token that B asks for.")
def bridge(
    a: str,
    b: str,
    protocol_a: str,
    protocol_b: str,
    record_to: str | None,
    timeout: float,
    wait: float,
    minmux_streams: list[int],
    audit: str | None,
    origins: tuple[str, ...],
    backlog: int,
    clients: int,
    per_host: int | None,
    cert: str | None,
    key: str | None,
    client_ca: str | None,
    crl: str | None,
    allow: tuple[str, ...],
    token_file: str | None,
    ca: str | None,
    server_name: str | None,
    client_cert: str | None,
    client_key: str | None,
    insecure: bool,
    upstream_token_file: str | None,
) -> None:
    """Listen at A, and relay every session that is accepted there to B, stream by stream.

    Each session gets a session of its own to B. Streams that either side opens are re-opened at the
    other, with their content, half-closes and resets. Nothing is read that the other side cannot
    take, so a stream that is not read holds bounded memory and delays no other.

    Two-way protocols are joined with one another (mplex, nerdbank, yamux), one-way protocols with
    each other (omnistreams, minmux); streamux, requests and replies, only with streamux. Names,
    metadata and reasons are passed on where both protocols have them. What cannot be passed on is
    dropped, counted, and printed at the end. The command stops on SIGINT, SIGTERM or SIGHUP.
    """
    check_origins(origins, [a])
    allowed = allowed_clients(allow, [a], client_ca)
    token, upstream_token = read_token(token_file), read_token(upstream_token_file)
    own = listening_context([a], cert, key, client_ca, crl)
    theirs = upstream_context(b, ca, server_name, client_cert, client_key, insecure)

    async def run() -> Bridge:
        stop = stop_event()
        with open_audit_log(audit) as audit_log, open_recorder(record_to, False) as recorder:
            try:
                running = await start_bridge(
                    a, b, protocol_a=protocol_a, protocol_b=protocol_b,
                    limits=connection_limits(backlog, clients, per_host),
                    tls=own, upstream_tls=theirs, server_hostname=server_name,
                    token=token, upstream_token=upstream_token, timeout=timeout, wait=wait,
                    meter=audit_log, recorder=recorder, origins=origins, allow=allowed,
                    minmux_streams=minmux_streams,
                )  # fmt: skip
            except Unreachable as problem:
                raise click.UsageError(str(problem)) from None
            async with running:
                warn(f"listening at {running.url} for {protocol_a}, relaying to {b}")
                closed = asyncio.ensure_future(running.wait_closed())
                await first_of(closed, asyncio.ensure_future(stop.wait()))
        return running

    with queued_output():
        print_result(asyncio.run(run()))


def print_result(done: Bridge) -> None:
    """Print what was relayed, and what could not be passed on."""
    stats = done.stats
    warn(
        f"{plural(done.sessions, 'session')}, {plural(stats.streams, 'stream')}, "
        f"{plural(stats.bytes_a, 'byte')} from A, {stats.bytes_b} from B, "
        f"{stats.aborted} aborted, {stats.rejected} not opened, {done.refused} not relayed"
    )
    if stats.lost:
        parts = [f"{count} {what.replace('_', ' ')}" for what, count in sorted(stats.lost.items())]
        warn(f"not passed on, because the other protocol has no place for it: {', '.join(parts)}")
